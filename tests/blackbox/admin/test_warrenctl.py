"""warrenctl, every command: right and wrong input, who may not, exit codes, and the spellings of rabbitmqctl."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json

import pika
import pytest

OK, USAGE, DATA, INPUT, UNAVAILABLE, NOPERM, CONFIG = 0, 64, 65, 66, 69, 77, 78


@pytest.fixture
def vhost(cluster):
    """A virtual host that only this test uses."""
    cluster.run("vhost", "declare", "ctl")
    yield "ctl"
    cluster.run("vhost", "delete", "ctl", "--yes")


def listed(cluster, *arguments, **options):
    return json.loads(cluster.run(*arguments, "--output", "json", **options).stdout)


def names(rows, field="name"):
    return [row[field] for row in rows]


def test_everything_is_declared_listed_shown_and_deleted(cluster, vhost):
    run = cluster.run
    inside = ("--vhost", vhost)
    run("exchange", "declare", "events", "--type", "topic", "--argument", "alternate-exchange=lost", *inside)
    run("exchange", "declare", "inner", "--internal", "--transient", "--auto-delete", *inside)
    run("queue", "declare", "orders", "--argument", "x-max-length=1000", "--argument", 'note="5"', *inside)
    run("queue", "declare", "orders", "--argument", "x-max-length=1000", "--argument", 'note="5"', *inside)
    run("binding", "declare", "events", "orders", "--key", "orders.#", *inside)
    run("binding", "declare", "events", "inner", "--to", "exchange", "--argument", "a=1", *inside)

    [orders] = listed(cluster, "queue", "list", *inside, node=2)
    assert (orders["name"], orders["durable"], orders["arguments"]) == ("orders", True, {"x-max-length": 1000, "note": "5"})
    exchanges = {row["name"]: row for row in listed(cluster, "exchange", "list", *inside, node=3)}
    assert exchanges["events"]["arguments"] == {"alternate-exchange": "lost"}
    assert (exchanges["inner"]["internal"], exchanges["inner"]["durable"], exchanges["inner"]["auto_delete"]) == (True, False, True)
    bound = [(row["source"], row["destination_type"], row["destination"], row["routing_key"], row["arguments"])
             for row in listed(cluster, "binding", "list", *inside) if row["source"]]
    assert sorted(bound) == [("events", "exchange", "inner", "", {"a": 1}), ("events", "queue", "orders", "orders.#", {})]
    assert listed(cluster, "queue", "show", "orders", *inside)["consumer_details"] == []
    assert listed(cluster, "exchange", "show", "events", *inside)["type"] == "topic"
    assert vhost in names(listed(cluster, "vhost", "list"))
    assert listed(cluster, "vhost", "show", vhost)["name"] == vhost

    clash = run("queue", "declare", "orders", *inside, check=False)
    assert clash.returncode == DATA and "inequivalent" in clash.stderr
    missing = run("binding", "delete", "events", "orders", "--key", "other", "--yes", *inside, check=False)
    assert missing.returncode == DATA and "binding list" in missing.stderr
    run("binding", "delete", "events", "orders", "--key", "orders.#", "--yes", *inside)
    run("binding", "delete", "events", "inner", "--to", "exchange", "--argument", "a=1", "--yes", *inside)
    assert not [row for row in listed(cluster, "binding", "list", *inside) if row["source"]]
    run("queue", "delete", "orders", "--if-empty", "--if-unused", "--yes", *inside)
    run("exchange", "delete", "events", "--if-unused", "--yes", *inside)
    assert listed(cluster, "queue", "list", *inside) == []
    for noun in ("queue", "exchange"):
        for verb in (("show",), ("delete", "--yes")):
            gone = run(noun, verb[0], "events", *verb[1:], *inside, check=False)
            assert gone.returncode == DATA and "events" in gone.stderr, gone


def test_messages_are_published_got_and_purged(cluster, vhost):
    run, inside = cluster.run, ("--vhost", vhost)
    run("queue", "declare", "q", *inside)
    run("message", "publish", "--key", "q", "--payload", "one", "--property", "delivery_mode=2", "--property", 'headers={"h": 1}', *inside)
    run("message", "publish", "--key", "q", *inside, text="from standard input\n")
    got = listed(cluster, "message", "get", "q", "--count", "5", *inside)
    assert [m["payload"] for m in got] == ["one", "from standard input\n"]
    assert got[0]["properties"] == {"delivery_mode": 2, "headers": {"h": 1}}
    [taken] = listed(cluster, "message", "get", "q", "--take", "--truncate", "2", *inside, node=2)
    assert (taken["payload"], taken["redelivered"]) == ("on", True)
    assert listed(cluster, "queue", "show", "q", *inside)["messages"] == 1
    asked = run("message", "purge", "q", *inside, text="n\n", check=False)
    assert asked.returncode == USAGE and "--yes" in asked.stderr
    assert listed(cluster, "queue", "show", "q", *inside)["messages"] == 1
    run("message", "purge", "q", *inside, text="y\n")
    assert listed(cluster, "queue", "show", "q", *inside)["messages"] == 0
    lost = run("message", "publish", "--key", "nowhere", "--payload", "x", *inside, check=False)
    assert lost.returncode == DATA and "routing explain" in lost.stderr
    none = run("message", "get", "none", *inside, check=False)
    assert none.returncode == DATA and "none" in none.stderr


def test_a_queue_has_the_type_that_is_named(cluster, vhost):
    inside = ("--vhost", vhost)
    for kind in ("quorum", "classic"):
        cluster.run("queue", "declare", kind, "--type", kind, *inside)
        shown = listed(cluster, "queue", "show", kind, *inside)
        assert (shown["type"], shown["arguments"]) == (kind, {"x-queue-type": kind})
    for wrong in (("--type", "quorm"), ("--type", "quorum", "--argument", "x-queue-type=classic")):
        assert cluster.run("queue", "declare", "w", *wrong, *inside, check=False).returncode == USAGE
    assert cluster.run("queue", "declare", "quorum", "--type", "classic", *inside, check=False).returncode == DATA


def test_users_passwords_and_permissions(cluster, vhost):
    run = cluster.run
    try:
        run("user", "declare", "carol", "--tags", "management,monitoring", "--password-stdin", text="first\nignored\n")
        as_carol = {"WARREN_USER": "carol", "WARREN_PASSWORD": "first"}
        assert names(listed(cluster, "vhost", "list", environment=as_carol)) != []
        assert run("user", "list", environment=as_carol, check=False).returncode == NOPERM
        assert run("vhost", "declare", "x", environment=as_carol, check=False).returncode == NOPERM
        run("user", "change-password", "carol", "--new-password", "second")
        assert run("vhost", "list", environment=as_carol, check=False).returncode == NOPERM
        as_carol["WARREN_PASSWORD"] = "second"
        run("vhost", "list", environment=as_carol)
        assert sorted(listed(cluster, "user", "show", "carol")["tags"]) == ["management", "monitoring"], "a new password keeps the tags"
        run("user", "set-tags", "carol", "monitoring")
        run("vhost", "list", environment=as_carol)
        assert listed(cluster, "user", "show", "carol")["tags"] == ["monitoring"]
        run("permission", "set", "carol", "--vhost", vhost, "--configure", "^$", "--write", ".*", "--read", "a")
        assert listed(cluster, "permission", "list", "--of-user", "carol") == [
            {"user": "carol", "vhost": vhost, "configure": "^$", "write": ".*", "read": "a"}]
        assert names(listed(cluster, "permission", "list", "--vhost", vhost), "user") == ["carol", "guest"], "who makes a vhost may do all in it"
        bad = run("permission", "set", "carol", "--vhost", vhost, "--read", "(", check=False)
        assert bad.returncode == DATA and "carol" not in bad.stdout
        run("permission", "clear", "carol", "--vhost", vhost, "--yes")
        assert listed(cluster, "permission", "list", "--of-user", "carol") == []
        assert run("user", "change-password", "carol", check=False).returncode == USAGE
        assert run("user", "declare", "dave", "--password-stdin", check=False).returncode == INPUT
    finally:
        run("user", "delete", "carol", "--yes")
    assert run("user", "delete", "carol", "--yes", check=False).returncode == DATA


def test_a_hash_is_a_password(cluster):
    printed = cluster.run("password", "hash", "--algorithm", "sha256", text="s3cret\n").stdout.strip()
    raw = base64.b64decode(printed)
    assert raw[4:] == hashlib.sha256(raw[:4] + b"s3cret").digest()
    assert cluster.run("password", "hash", "s3cret", "--algorithm", "sha256").stdout.strip() != printed, "each has a salt of its own"
    assert len(base64.b64decode(cluster.run("password", "hash", "x", "--algorithm", "sha512").stdout)) == 4 + 64
    cluster.run("user", "declare", "hashed", "--password-hash", printed, "--tags", "management")
    cluster.run("vhost", "list", environment={"WARREN_USER": "hashed", "WARREN_PASSWORD": "s3cret"})
    cluster.run("user", "delete", "hashed", "--yes")


def test_connections_channels_and_consumers(cluster, eventually):
    connection = cluster[2].connect(client_properties={"connection_name": "ctl"})
    channel = connection.channel()
    channel.queue_declare("ctl-q", exclusive=True)
    channel.basic_consume("ctl-q", lambda *_: None, consumer_tag="ctl-tag")
    [row] = [row for row in listed(cluster, "connection", "list") if row.get("user_provided_name") == "ctl"]
    assert row["node"] == "node2"
    name = row["name"]
    assert name in names(listed(cluster, "connection", "list", "--of-user", "guest"))
    assert name in names(listed(cluster, "connection", "list", "--vhost", "/"))
    shown = listed(cluster, "connection", "show", name)
    assert names(shown["channel_list"]) == [f"{name} (1)"]
    assert f"{name} (1)" in names(listed(cluster, "channel", "list", "--vhost", "/"))
    one = listed(cluster, "channel", "show", f"{name} (1)", node=3)
    assert (one["consumer_count"], one["user"]) == (1, "guest")
    assert cluster.run("channel", "show", "none", check=False).returncode == DATA
    assert "ctl-tag" in names(listed(cluster, "consumer", "list"), "consumer_tag")
    assert cluster.run("connection", "close", name, check=False).returncode == USAGE
    cluster.run("connection", "close", name, "--reason", "enough", "--yes", node=3)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="enough"):
        connection.process_data_events(time_limit=10)
    gone = eventually(lambda: (r := cluster.run("connection", "close", name, "--yes", check=False)).returncode == DATA and r, "it is gone")
    assert name in gone.stderr
    again = cluster[1].connect()
    cluster.run("connection", "close-all", "--of-user", "guest", "--yes")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        again.process_data_events(time_limit=10)


def test_nodes_and_checks(cluster, eventually):
    assert {row["name"]: row["running"] for row in listed(cluster, "node", "list")} == {"node1": True, "node2": True, "node3": True}
    assert listed(cluster, "node", "show", "node3")["serves_clients"] is True
    assert cluster.run("node", "show", "node9", check=False).returncode == DATA
    for check in (("alarms",), ("local-alarms",), ("virtual-hosts",), ("node-is-quorum-critical",), ("is-in-service",), ("certificate-expiration", "1", "days"),
                  ("port-listener", str(cluster[1].amqp)), ("protocol-listener", "https"), ("metadata-store", "initialized")):
        assert listed(cluster, "check", *check)["status"] == "ok", check
    failed = cluster.run("check", "port-listener", "1", check=False)
    assert failed.returncode == UNAVAILABLE and "No active listener" in failed.stderr
    assert cluster.run("check", "certificate-expiration", "1", "year", check=False).returncode == UNAVAILABLE
    assert cluster.run("check", "port-listener", "x", check=False).returncode == DATA
    assert cluster.run("check", "nothing", check=False).returncode == USAGE
    cluster[2].kill()
    critical = eventually(lambda: (r := cluster.run("check", "node-is-quorum-critical", node=1, check=False)).returncode == UNAVAILABLE and r,
                          "two of three nodes are left, and none may go")
    assert "quorum" in critical.stderr
    dead = cluster.run("queue", "list", node=2, check=False)
    assert dead.returncode == UNAVAILABLE and "WARREN_URL" in dead.stderr


def test_definitions_go_out_and_come_back(cluster, vhost, tmp_path):
    cluster.run("queue", "declare", "kept", "--vhost", vhost)
    cluster.run("binding", "declare", "amq.topic", "kept", "--key", "k.#", "--vhost", vhost)
    whole, part = tmp_path / "all.json", tmp_path / "part.json"
    cluster.run("definitions", "export", str(whole))
    cluster.run("definitions", "export", str(part), "--vhost", vhost)
    assert vhost in names(json.loads(whole.read_text())["vhosts"])
    assert json.loads(cluster.run("definitions", "export").stdout)["queues"]
    cluster.run("queue", "delete", "kept", "--vhost", vhost, "--yes")
    counted = listed(cluster, "definitions", "import", str(part), "--vhost", vhost, "--dry-run")
    assert (counted["queues"], counted["bindings"]) == (1, 1)
    assert listed(cluster, "queue", "list", "--vhost", vhost) == []
    cluster.run("definitions", "import", str(part), "--vhost", vhost)
    assert names(listed(cluster, "queue", "list", "--vhost", vhost)) == ["kept"]
    cluster.run("definitions", "import", "-", text=whole.read_text())
    (tmp_path / "bad.json").write_text("{")
    assert cluster.run("definitions", "import", str(tmp_path / "bad.json"), check=False).returncode == DATA
    assert cluster.run("definitions", "import", str(tmp_path / "none.json"), check=False).returncode == INPUT
    wrong = cluster.run("definitions", "import", "-", text='{"queues": [{"name": "q"}]}', check=False)
    assert wrong.returncode == DATA and "vhost" in wrong.stderr
    assert cluster.run("definitions", "export", "/nonexistent/file", check=False).returncode == 74


def test_lists_as_table_csv_and_json_with_columns_and_order(cluster, vhost):
    for name, length in (("b", 10), ("a,1", 9), ("c", 100)):
        cluster.run("queue", "declare", name, "--argument", f"x-max-length={length}", "--vhost", vhost)
    inside = ("queue", "list", "--vhost", vhost, "--columns", "name,arguments.x-max-length")
    rows = list(csv.reader(io.StringIO(cluster.run(*inside, "--output", "csv", "--sort=-arguments.x-max-length").stdout)))
    assert rows == [["name", "arguments.x-max-length"], ["c", "100"], ["b", "10"], ["a,1", "9"]]
    table = cluster.run(*inside, "--sort", "name").stdout.splitlines()
    assert [line.split() for line in table] == [["name", "arguments.x-max-length"], ["a,1", "9"], ["b", "10"], ["c", "100"]]
    quiet = cluster.run(*inside, "--sort", "name", "--quiet").stdout.splitlines()
    assert [line.split()[0] for line in quiet] == ["a,1", "b", "c"]
    assert listed(cluster, *inside, "--sort", "name")[0] == {"name": "a,1", "arguments.x-max-length": 9}
    noisy = cluster.run("queue", "declare", "d", "--vhost", vhost)
    assert "declared" in noisy.stderr and not noisy.stdout
    assert not cluster.run("queue", "declare", "d", "--vhost", vhost, "--quiet").stderr


def test_rabbitmqctls_commands(cluster, eventually):
    run = cluster.run
    run("add_vhost", "alias")
    try:
        run("add_user", "erin", text="pw\n")
        twice = run("add_user", "erin", "other", check=False)
        assert twice.returncode == DATA and "exists" in twice.stderr
        run("set_user_tags", "erin", "management")
        run("set_permissions", "-p", "alias", "erin", ".*", ".*", ".*")
        assert listed(cluster, "list_permissions", "-p", "alias")[0]["user"] == "erin"
        assert listed(cluster, "list_user_permissions", "erin")[0]["vhost"] == "alias"
        run("authenticate_user", "erin", "pw")
        assert run("authenticate_user", "erin", "wrong", check=False).returncode == NOPERM
        run("change_password", "erin", "pw2")
        run("authenticate_user", "erin", text="pw2\n")
        run("set_user_tags", "erin")
        run("authenticate_user", "erin", "pw2")
        assert "erin" in names(listed(cluster, "list_users"))
        assert "alias" in names(listed(cluster, "list_vhosts", "name"))
        run("queue", "declare", "q", "--vhost", "alias")
        run("message", "publish", "--key", "q", "--payload", "x", "--vhost", "alias")

        def listed_queues():
            table = run("list_queues", "-p", "alias", "name", "messages", "consumers").stdout.splitlines()
            return [line.split() for line in table] == [["name", "messages", "consumers"], ["q", "1", "0"]]

        eventually(listed_queues, "the message is counted")
        assert run("delete_queue", "-p", "alias", "q", "--if-empty", check=False).returncode == DATA
        run("purge_queue", "-p", "alias", "q")
        assert "amq.topic" in run("list_exchanges", "-p", "alias").stdout
        assert run("list_bindings", "-p", "alias", "source_name", "destination_name").stdout.splitlines()[0].split() == ["source_name", "destination_name"]
        run("delete_queue", "-p", "alias", "q")
        run("clear_permissions", "-p", "alias", "erin")
        run("delete_user", "erin")
        assert run("delete_user", "erin", check=False).returncode == DATA
    finally:
        run("delete_vhost", "alias")
    connection = cluster[1].connect(client_properties={"connection_name": "aliased"})
    [row] = [row for row in listed(cluster, "connection", "list") if row.get("user_provided_name") == "aliased"]
    assert "guest" in run("list_connections", "user", "state").stdout
    run("list_channels", "name")
    run("list_consumers")
    run("close_connection", row["name"], "aliased away")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="aliased away"):
        connection.process_data_events(time_limit=10)
    run("close_all_user_connections", "guest", "all of you")
    assert "node2" in run("cluster_status").stdout
    assert listed(cluster, "status")["rabbitmq_version"]
    run("ping")


def test_policies_apply_at_once_on_every_node(cluster, vhost):
    run, inside = cluster.run, ("--vhost", vhost)
    run("exchange", "declare", "events", *inside)
    run("exchange", "declare", "lost", "--type", "fanout", *inside)
    run("queue", "declare", "q", *inside)
    run("binding", "declare", "lost", "q", *inside)
    publish = ("message", "publish", "--exchange", "events", "--key", "k", "--payload", "x", *inside)
    assert run(*publish, check=False).returncode == DATA
    run("policy", "declare", "p", "--pattern", "^ev", "--apply-to", "exchanges", "--priority", "-1", "--set", "alternate-exchange=lost", *inside, node=2)
    for node in (1, 2, 3):
        run(*publish, node=node)
    assert listed(cluster, "exchange", "show", "events", *inside, node=3)["policy"] == "p"
    assert listed(cluster, "policy", "show", "p", *inside)["priority"] == -1
    assert names(listed(cluster, "policy", "list", *inside)) == ["p"]
    run("operator-policy", "declare", "o", "--pattern", ".*", "--apply-to", "queues", "--set", "max-length=5", *inside)
    assert listed(cluster, "queue", "show", "q", *inside)["effective_policy_definition"] == {"max-length": 5}
    assert names(listed(cluster, "operator-policy", "list")) == ["o"]
    run("operator-policy", "delete", "o", "--yes", *inside)
    run("policy", "delete", "p", "--yes", *inside)
    assert run(*publish, node=3, check=False).returncode == DATA
    for wrong in (("--set", "nonsense=1"), ("--set", "max-length=many"), ("--pattern", "(", "--set", "max-length=1")):
        pattern = () if "--pattern" in wrong else ("--pattern", "a")
        assert run("policy", "declare", "w", *pattern, *wrong, *inside, check=False).returncode == DATA
    assert run("policy", "delete", "none", "--yes", *inside, check=False).returncode == DATA
    assert run("policy", "show", "none", *inside, check=False).returncode == DATA
    assert run("policy", "declare", "w", "--pattern", "a", *inside, check=False).returncode == USAGE

    run("set_policy", "-p", vhost, "--apply-to", "exchanges", "a", "^ev", '{"alternate-exchange": "lost"}')
    run(*publish)
    assert names(listed(cluster, "list_policies", "-p", vhost)) == ["a"]
    run("set_operator_policy", "-p", vhost, "b", ".*", '{"expires": 100000}')
    assert names(listed(cluster, "list_operator_policies", "-p", vhost)) == ["b"]
    run("clear_operator_policy", "-p", vhost, "b")
    run("clear_policy", "-p", vhost, "a")
    assert run("clear_policy", "-p", vhost, "a", check=False).returncode == DATA
    assert run("set_policy", "-p", vhost, "a", "^ev", "{", check=False).returncode == USAGE


def test_topic_permissions_hold_over_amqp(cluster, vhost):
    run = cluster.run
    run("user", "declare", "frank", "--new-password", "p")
    try:
        run("permission", "set", "frank", "--vhost", vhost, "--configure", ".*", "--write", ".*", "--read", ".*")
        run("topic-permission", "set", "frank", "amq.topic", "--vhost", vhost, "--write", "^a", "--read", "^b")
        assert listed(cluster, "topic-permission", "list", "--of-user", "frank", node=3) == [
            {"user": "frank", "vhost": vhost, "exchange": "amq.topic", "write": "^a", "read": "^b"}]
        connection = cluster[2].connect("frank", "p", vhost)

        def attempt(action):
            channel = connection.channel()
            channel.confirm_delivery()
            try:
                action(channel)
                return True
            except pika.exceptions.ChannelClosedByBroker as closed:
                assert closed.reply_code == 403 and "topic" in closed.reply_text, closed
                return False

        assert attempt(lambda c: c.queue_declare("tq"))
        assert [attempt(lambda c, key=key: c.basic_publish("amq.topic", key, b"x")) for key in ("a.1", "b.1", "a.2")] == [True, False, True]
        assert [attempt(lambda c, key=key: c.queue_bind("tq", "amq.topic", key)) for key in ("a.1", "b.1")] == [False, True]
        assert attempt(lambda c: c.queue_unbind("tq", "amq.topic", "b.1"))
        assert attempt(lambda c: c.queue_bind("tq", "amq.direct", "a.1"))
        run("topic-permission", "clear", "frank", "--vhost", vhost, "--exchange", "amq.topic", "--yes")
        assert attempt(lambda c: c.basic_publish("amq.topic", "b.1", b"x")), "a change is seen at once"
        run("set_topic_permissions", "-p", vhost, "frank", "amq.topic", "^a", "")
        assert names(listed(cluster, "list_topic_permissions", "-p", vhost), "exchange") == ["amq.topic"]
        assert names(listed(cluster, "list_user_topic_permissions", "frank"), "read") == [""]
        assert not attempt(lambda c: c.basic_publish("amq.topic", "b.1", b"x"))
        run("clear_topic_permissions", "-p", vhost, "frank")
        assert listed(cluster, "topic-permission", "list", "--vhost", vhost) == []
        assert run("topic-permission", "set", "nobody", "amq.topic", "--vhost", vhost, check=False).returncode == DATA
    finally:
        run("user", "delete", "frank", "--yes")


def test_global_parameters(cluster):
    cluster.run("parameter", "set", "owner", '{"team": "orders"}')
    assert listed(cluster, "parameter", "show", "owner", node=2)["value"] == {"team": "orders"}
    assert "owner" in names(listed(cluster, "parameter", "list"))
    cluster.run("parameter", "clear", "owner", "--yes")
    assert cluster.run("parameter", "show", "owner", check=False).returncode == DATA
    cluster.run("set_global_parameter", "owner", "5")
    assert listed(cluster, "list_global_parameters")[0]["value"] == 5
    cluster.run("clear_global_parameter", "owner")
    assert cluster.run("clear_global_parameter", "owner", check=False).returncode == DATA


def test_definitions_by_rabbitmqctls_names(cluster, tmp_path):
    file = tmp_path / "d.json"
    cluster.run("export_definitions", str(file))
    cluster.run("import_definitions", str(file))


def test_https_needs_the_ca_and_works_with_it(cluster):
    url = {"WARREN_URL": f"https://127.0.0.1:{cluster[1].https}"}
    assert cluster.run("vhost", "list", environment=url, check=False).returncode == CONFIG
    ca = str(cluster.certificates.path("clients.pem"))
    assert "/" in names(listed(cluster, "vhost", "list", "--ca", ca, environment=url))
    other = cluster.run("vhost", "list", "--ca", str(cluster.certificates.path("links.pem")), environment=url, check=False)
    assert other.returncode == UNAVAILABLE and "ertificate" in other.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions(cluster, shell):
    assert "list_queues" in cluster.run("completions", shell).stdout


@pytest.mark.parametrize("arguments", [("queue", "lst"), ("queue",), ("nothing",), ("queue", "declare"), ("queue", "declare", "q", "--argument", "a"),
                                       ("check",), ("completions", "tcsh"), ("binding", "declare", "e")])
def test_mistakes_are_told_as_usage(cluster, arguments):
    result = cluster.run(*arguments, check=False)
    assert result.returncode == USAGE and result.stderr and not result.stdout


def test_a_wrong_password_and_no_login(cluster):
    for command in (("queue", "list"), ("connection", "list"), ("check", "alarms"), ("definitions", "export"), ("user", "delete", "guest", "--yes"),
                    ("message", "get", "q"), ("vhost", "declare", "v")):
        result = cluster.run(*command, environment={"WARREN_PASSWORD": "wrong"}, check=False)
        assert result.returncode == NOPERM and "WARREN_PASSWORD" in result.stderr, command
