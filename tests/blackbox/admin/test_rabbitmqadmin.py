"""rabbitmqadmin, as RabbitMQ 3.10 ships it, unchanged: every subcommand, every format, and what it makes of refusals."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from debian import program

LISTS = {"connections", "channels", "consumers", "exchanges", "queues", "bindings", "users", "vhosts", "permissions", "nodes", "parameters", "policies",
         "operator_policies", "vhost_limits"}


@pytest.fixture
def rabbitmqadmin(cluster):
    """Runs it against a node; gives back what it prints."""
    script = program("rabbitmq-server", "usr/bin/rabbitmqadmin")

    def run(*arguments, node=2, user="guest", password="guest", fails=False, text=""):
        options = ["-H", "127.0.0.1", "-P", str(cluster[node].http), "-u", user, "-p", password]
        result = subprocess.run([sys.executable, str(script), *options, *arguments], input=text, capture_output=True, text=True, timeout=30)
        assert (result.returncode != 0) == fails, f"{arguments}: {result.stdout}{result.stderr}"
        assert "Traceback" not in result.stderr, result.stderr
        return result.stderr if fails else result.stdout

    run.json = lambda *arguments, **options: json.loads(run("-f", "raw_json", *arguments, **options))
    return run


def test_every_kind_of_object_is_declared_listed_and_deleted(rabbitmqadmin):
    run = rabbitmqadmin
    for declared, kind in [
        (["vhost", "name=ra"], "vhost"),
        (["user", "name=rauser", "password=p", "tags=management,policymaker"], "user"),
        (["user", "name=rahash", "password_hash=", "tags=", "hashing_algorithm=rabbit_password_hashing_sha512"], "user"),
        (["permission", "vhost=ra", "user=rauser", "configure=.*", "write=.*", "read=.*"], "permission"),
    ]:
        assert run("declare", *declared) == f"{kind} declared\n"
    for declared in [
        ["exchange", "name=ra.e", "type=topic"],
        ["exchange", "name=ra.f", "type=fanout", "auto_delete=true", "durable=false", "internal=true", 'arguments={"x": 1}'],
        ["queue", "name=ra.q"],
        ["queue", "name=ra.quorum", "queue_type=quorum"],
        ["queue", "name=ra.a", "auto_delete=true", "durable=true", 'arguments={"x-max-length": 10}'],
        ["binding", "source=ra.e", "destination=ra.q", "routing_key=a.#"],
        ["binding", "source=ra.e", "destination=ra.q", 'arguments={"n": 1}'],
        ["binding", "source=ra.e", "destination=ra.f", "destination_type=exchange", "routing_key=b c/d"],
        ["parameter", "component=shovel", "name=ra.s", 'value={"src-uri": "amqp://"}'],
        ["policy", "name=ra.p", "pattern=^ra", 'definition={"max-length": 5}', "priority=3", "apply-to=queues"],
        ["operator_policy", "name=ra.op", "pattern=^ra", 'definition={"max-length": 4}'],
    ]:
        assert run("-V", "ra", "declare", *declared) == f"{declared[0]} declared\n"
    run("declare", "vhost_limit", "vhost=ra", "name=max-queues", "value=50")

    def row(kind, **fields):
        rows = [row for row in run.json("list", kind) if row.items() >= fields.items()]
        assert len(rows) == 1, (kind, fields, rows)
        return rows[0]

    assert row("vhosts", name="ra") and row("users", name="rauser")["tags"] == ["management", "policymaker"]
    assert row("permissions", vhost="ra", user="rauser", configure=".*")
    assert row("exchanges", vhost="ra", name="ra.e", type="topic", durable=True, auto_delete=False, internal=False)
    assert row("exchanges", vhost="ra", name="ra.f", durable=False, auto_delete=True, internal=True)["arguments"] == {"x": 1}
    assert row("queues", vhost="ra", name="ra.q", durable=True, type="classic")["effective_policy_definition"] == {"max-length": 4}
    assert row("queues", vhost="ra", name="ra.quorum", type="quorum")["arguments"] == {"x-queue-type": "quorum"}
    assert row("bindings", vhost="ra", source="ra.e", destination="ra.q", routing_key="a.#")["arguments"] == {}
    assert row("bindings", vhost="ra", source="ra.e", destination="ra.f", destination_type="exchange", routing_key="b c/d")
    assert row("parameters", vhost="ra", component="shovel", name="ra.s")["value"] == {"src-uri": "amqp://"}
    assert row("policies", vhost="ra", name="ra.p", priority=3)["apply-to"] == "queues"
    assert row("operator_policies", vhost="ra", name="ra.op")["definition"] == {"max-length": 4}
    assert row("vhost_limits", vhost="ra")["value"] == {"max-queues": 50}

    with_arguments = row("bindings", vhost="ra", source="ra.e", destination="ra.q", routing_key="")["properties_key"]
    for deleted in [
        ["binding", "source=ra.e", "destination_type=queue", "destination=ra.q", "properties_key=a.%23"],
        ["binding", "source=ra.e", "destination_type=queue", "destination=ra.q", f"properties_key={with_arguments}"],
        ["binding", "source=ra.e", "destination_type=exchange", "destination=ra.f", "properties_key=b c/d"],
        ["parameter", "component=shovel", "name=ra.s"], ["policy", "name=ra.p"], ["operator_policy", "name=ra.op"],
        ["queue", "name=ra.q"], ["exchange", "name=ra.e"],
    ]:
        assert run("-V", "ra", "delete", *deleted) == f"{deleted[0]} deleted\n"
    assert not any(b["vhost"] == "ra" and b["source"] for b in run.json("list", "bindings"))
    assert [e["name"] for e in run.json("-V", "ra", "list", "exchanges") if e["name"].startswith("ra.")] == ["ra.f"]
    for deleted in [["vhost_limit", "vhost=ra", "name=max-queues"], ["permission", "vhost=ra", "user=rauser"], ["user", "name=rauser"], ["user", "name=rahash"],
                    ["vhost", "name=ra"]]:
        assert run("delete", *deleted) == f"{deleted[0]} deleted\n"
    assert "ra" not in {v["name"] for v in run.json("list", "vhosts")}


def test_messages_are_published_got_and_purged(rabbitmqadmin, tmp_path):
    run = rabbitmqadmin
    run("declare", "queue", "name=ra m")
    assert run("publish", "routing_key=ra m", "payload=first") == "Message published\n"
    assert run("publish", "routing_key=ra m", 'properties={"content_type": "text/x", "headers": {"n": 1}}', text="from standard input") == "Message published\n"
    assert run("publish", "exchange=amq.topic", "routing_key=nobody", "payload=x") == "Message published but NOT routed\n"
    first, second = run.json("get", "queue=ra m", "count=5")
    assert (first["payload"], first["message_count"], first["redelivered"]) == ("first", 1, False)
    assert (second["payload"], second["properties"]) == ("from standard input", {"content_type": "text/x", "headers": {"n": 1}})
    assert "from standard input" in run("get", "queue=ra m", "count=2", "ackmode=reject_requeue_true", "encoding=auto")
    run("get", "queue=ra m", f"payload_file={tmp_path}/payload", "ackmode=ack_requeue_false")
    assert (tmp_path / "payload").read_text() == "first"
    assert run("purge", "queue", "name=ra m") == "queue purged\n"
    assert run("get", "queue=ra m") == "No items\n"
    run("delete", "queue", "name=ra m")


def test_lists_in_every_format_and_connections_closed(rabbitmqadmin, cluster, eventually):
    run = rabbitmqadmin
    run("declare", "queue", "name=ra.l")
    channel = cluster[1].connect().channel()
    channel.basic_consume("ra.l", lambda *_: None)
    run("declare", "parameter", "component=c", "name=ra.v", "value=1")
    run("declare", "policy", "name=ra.v", "pattern=^none$", 'definition={"max-length": 5}')
    run("declare", "operator_policy", "name=ra.v", "pattern=^none$", 'definition={"max-length": 5}')
    run("declare", "vhost_limit", "vhost=/", "name=max-queues", "value=-1")
    eventually(lambda: run.json("list", "consumers"), "the consumer is listed")
    for kind in sorted(LISTS):
        rows = run.json("list", kind)
        assert rows, kind
        # The one fails on values that are null, the other on those that are no texts.
        assert run("-d", "3", "list", kind).count("\n") == len(rows) + 4
        assert run("-d", "3", "-f", "tsv", "list", kind).count("\n") == len(rows) + 1
    assert json.loads(run("-f", "pretty_json", "list", "queues"))
    for options in (["-f", "table"], ["-f", "long"], ["-f", "kvp"], ["-q"]):
        assert "ra.l" in run(*options, "list", "queues")
    assert "ra.l" in run("-f", "bash", "list", "queues").split()
    sorted_names = run("-q", "-f", "bash", "-S", "name", "-R", "list", "exchanges").split()
    assert sorted_names == sorted(sorted_names, reverse=True)
    columns = ["name", "messages", "message_stats.publish_details.rate"]

    def published():
        # A queue counts from when its owner took it over.
        channel.basic_publish("", "ra.l", b"x")
        return [row for row in run.json("-V", "/", "list", "queues", *columns) if row["name"] == "ra.l" and row.get("message_stats")]

    narrow = eventually(published, "it was published to")
    assert set(narrow[0]) == {"name", "messages", "message_stats"} and set(narrow[0]["message_stats"]) == {"publish_details"}, narrow
    overview = run("show", "overview")
    assert "cluster_name" in overview and "admin" in overview
    shown = run.json("show", "overview", "cluster_name", "queue_totals.messages")
    assert shown[0]["cluster_name"] == "admin" and set(shown[0]["queue_totals"]) == {"messages"}
    name = run.json("list", "connections")[0]["name"]
    assert run("close", "connection", f"name={name}") == "connection closed\n"
    eventually(lambda: name not in {c["name"] for c in run.json("list", "connections")}, "the connection is closed")
    for gone in (["parameter", "component=c", "name=ra.v"], ["policy", "name=ra.v"], ["operator_policy", "name=ra.v"], ["vhost_limit", "vhost=/", "name=max-queues"],
                 ["queue", "name=ra.l"]):
        run("delete", *gone)


def test_definitions_go_out_and_in(rabbitmqadmin, tmp_path):
    run = rabbitmqadmin
    run("declare", "vhost", "name=ra.d")
    run("-V", "ra.d", "declare", "queue", "name=q")
    run("-V", "ra.d", "declare", "binding", "source=amq.fanout", "destination=q")
    whole, part = tmp_path / "whole.json", tmp_path / "part.json"
    assert run("export", str(whole)).startswith("Exported definitions")
    run("-V", "ra.d", "export", str(part))
    run("delete", "vhost", "name=ra.d")
    assert run("import", str(whole)).startswith("Uploaded definitions")
    assert [b["source"] for b in run.json("-V", "ra.d", "list", "bindings")] == ["", "amq.fanout"]
    run("-V", "ra.d", "delete", "queue", "name=q")
    run("-V", "ra.d", "import", str(part))
    assert [q["name"] for q in run.json("-V", "ra.d", "list", "queues")] == ["q"]
    run("delete", "vhost", "name=ra.d")


def test_refusals_are_told(rabbitmqadmin):
    run = rabbitmqadmin
    assert "Access refused: /api/queues" in run("list", "queues", password="wrong", fails=True)
    assert "Not found" in run("delete", "queue", "name=ra.none", fails=True)
    assert "Not found" in run("-V", "ra.none", "list", "queues", fails=True)
    assert "no-such-type" in run("declare", "exchange", "name=ra.x", "type=no-such-type", fails=True)
    run("declare", "queue", "name=ra.r")
    assert "inequivalent arg 'durable'" in run("declare", "queue", "name=ra.r", "durable=false", fails=True)
    run("delete", "queue", "name=ra.r")


def test_over_tls(rabbitmqadmin, cluster, tmp_path):
    settings = tmp_path / "rabbitmqadmin.conf"
    settings.write_text(f"""[tls]
hostname = localhost
port = {cluster[1].https}
username = guest
password = guest
ssl = True
ssl_ca_cert_file = {cluster.certificates.path("clients.pem")}
""")
    script = program("rabbitmq-server", "usr/bin/rabbitmqadmin")
    result = subprocess.run([sys.executable, str(script), "-c", str(settings), "-N", "tls", "-f", "raw_json", "list", "nodes"], capture_output=True, text=True, timeout=30)
    assert result.returncode == 0, result.stderr
    assert [n["name"] for n in json.loads(result.stdout)] == ["node1", "node2", "node3"]
