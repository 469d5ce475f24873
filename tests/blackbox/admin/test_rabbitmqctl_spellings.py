"""rabbitmqctl's commands as its users write them: its columns, its formats, its options, and what is said where Warren does otherwise."""

from __future__ import annotations

import csv
import io
import json
import signal
import time

import pytest

OK, USAGE, DATA, UNAVAILABLE, NOPERM = 0, 64, 65, 69, 77


@pytest.fixture
def shop(cluster):
    """A virtual host with a bound queue that has a consumer."""
    cluster.run("add_vhost", "rmq")
    channel = cluster[1].connect(vhost="rmq").channel()
    channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_bind("q", "amq.topic", "a.#")
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume("q", lambda *_: None, consumer_tag="tag")
    yield channel
    cluster.close_connections()
    cluster.run("delete_vhost", "rmq")


def tabs(cluster, *command):
    """What `--formatter table` prints: cells divided by tabs."""
    return [line.split("\t") for line in cluster.run(*command, "--formatter", "table").stdout.splitlines()]


def test_lists_have_rabbitmqctls_columns(cluster, shop):
    assert tabs(cluster, "list_queues", "-p", "rmq", "name", "type", "leader", "policy")[0] == ["name", "type", "leader", "policy"]
    [heading, row] = tabs(cluster, "list_queues", "-p", "rmq", "name", "type", "pid")
    assert heading == ["name", "type", "pid"] and row[:2] == ["q", "quorum"] and row[2].startswith("node")
    heading, *rows = tabs(cluster, "list_bindings", "-p", "rmq")
    assert heading == ["source_name", "source_kind", "destination_name", "destination_kind", "routing_key", "arguments"]
    assert ["", "exchange", "q", "queue", "q", "{}"] in rows and ["amq.topic", "exchange", "q", "queue", "a.#", "{}"] in rows
    heading, row = tabs(cluster, "list_consumers", "-p", "rmq")
    assert heading == ["queue_name", "channel_pid", "consumer_tag", "ack_required", "prefetch_count", "active", "arguments"]
    assert row[0] == "q" and row[1].endswith(" (1)") and row[2:] == ["tag", "true", "7", "true", "{}"]
    assert tabs(cluster, "list_consumers", "-p", "rmq", "queue_name", "consumer_tag")[1] == ["q", "tag"]
    heading, *rows = tabs(cluster, "list_channels", "connection", "pid", "number", "user")
    assert heading == ["connection", "pid", "number", "user"] and any(row[1] == f"{row[0]} (1)" and row[2:] == ["1", "guest"] for row in rows), rows
    assert tabs(cluster, "list_channels")[0] == ["pid", "user", "consumer_count", "messages_unacknowledged"]
    assert tabs(cluster, "list_connections", "pid", "user")[1][1] == "guest"
    heading, *rows = tabs(cluster, "list_users")
    assert heading == ["user", "tags"] and ["guest", "[administrator]"] in rows
    assert tabs(cluster, "list_vhosts", "name", "tracing")[0] == ["name", "tracing"]
    assert tabs(cluster, "list_permissions", "-p", "rmq") == [["user", "configure", "write", "read"], ["guest", ".*", ".*", ".*"]]
    assert tabs(cluster, "list_user_permissions", "guest")[0] == ["vhost", "configure", "write", "read"]
    cluster.run("set_vhost_limits", "-p", "rmq", '{"max-queues": 9}')
    assert tabs(cluster, "list_vhost_limits", "-p", "rmq") == [["vhost", "limits"], ["rmq", '{"max-queues":9}']]


def test_columns_that_are_not_there_are_refused(cluster, shop):
    for command, said in ((("list_queues", "slave_pids"), "quorum_status"), (("list_queues", "memory"), "message_bytes"), (("list_queues", "nmae"), "'name'"),
                          (("list_consumers", "queue"), None), (("list_bindings", "source_nam"), "'source_name'"), (("list_channels", "conection"), "'connection'"),
                          (("list_vhosts", "nam"), "'name'"), (("list_queues", "--columns", "nmae"), "'name'"), (("list_queues", "--sort", "nmae"), "'name'"),
                          (("list_exchanges", "policy"), None), (("list_queues", "name,messages"), None)):
        result = cluster.run(*command, check=False)
        assert result.returncode == (USAGE if said else OK) and (said or "") in result.stderr, (command, result)


def test_the_common_options(cluster, shop):
    inside = ("list_queues", "-p", "rmq", "name", "durable")
    assert json.loads(cluster.run(*inside, "--formatter", "json").stdout) == [{"name": "q", "durable": True}]
    assert list(csv.reader(io.StringIO(cluster.run(*inside, "--formatter=csv").stdout))) == [["name", "durable"], ["q", "true"]]
    assert cluster.run(*inside, "--formatter", "pretty_table").stdout == cluster.run(*inside).stdout == "name  durable\nq     yes\n"
    for quiet in ("-q", "--quiet"):
        assert cluster.run(*inside, quiet).stdout.startswith("name"), "headings stay"
    for silent in ("-s", "--silent", "--no-table-headers"):
        assert cluster.run(*inside, silent, "--formatter", "table").stdout == "q\ttrue\n"
    assert not cluster.run("set_user_tags", "-s", "guest", "administrator").stderr
    assert cluster.run(*inside, "--formatter", "erlang", check=False).returncode == USAGE
    assert json.loads(cluster.run("status", "-n", "node3", "--output", "json").stdout)["name"] == "node3"
    assert json.loads(cluster.run("-n", "node2", "-q", "--formatter", "json", "status").stdout)["name"] == "node2", "or before the command"
    assert json.loads(cluster.run("-n", "node2", "status", "-n", "node3", "--output", "json").stdout)["name"] == "node3"
    other = cluster.run("status", "--node", "rabbit@node9", check=False)
    assert other.returncode == DATA and "'rabbit@node9' in the cluster, which has " in other.stderr
    mixed = cluster.run("-n", "node2", "queue", "list", check=False)
    assert mixed.returncode == USAGE and "--url" in mixed.stderr
    cluster[3].signal(signal.SIGSTOP)
    begun = time.monotonic()
    late = cluster.run("list_users", "-n", "node3", "-t", "1", check=False)
    assert late.returncode == UNAVAILABLE and "within 1 s" in late.stderr and time.monotonic() - begun < 2


def test_users_without_a_password(cluster):
    cluster.run("add_user", "nopw", "secret")
    try:
        cluster.run("set_user_tags", "nopw", "management")
        cluster.run("authenticate_user", "nopw", "secret")
        cluster.run("clear_password", "nopw")
        for secret in ("secret", ""):
            assert cluster.run("authenticate_user", "nopw", secret, check=False).returncode == NOPERM
        assert cluster[1].get("users/nopw").json["tags"] == ["management"]
        assert cluster.run("clear_password", "nobody", check=False).returncode == DATA
    finally:
        cluster.run("delete_user", "nopw")


def test_waiting_for_a_node(cluster):
    assert "serves" in cluster.run("await_startup").stderr
    cluster[3].signal(signal.SIGSTOP)
    late = cluster.run("await_startup", "--timeout", "0.5", node=3, check=False)
    assert late.returncode == UNAVAILABLE and "0.5 s" in late.stderr


def test_what_warren_does_otherwise_is_said(cluster):
    flags = cluster.run("list_feature_flags")
    assert flags.stdout.split() == ["name", "state"] and "cluster status" in flags.stderr
    for command, said in ((("set_cluster_name", "x"), "cluster.name"), (("join_cluster", "rabbit@node1", "--ram"), "warrenctl cluster join"), (("stop_app",), "drain"),
                          (("start_app",), "revive"), (("reset",), "forget")):
        result = cluster.run(*command, check=False)
        assert result.returncode == USAGE and said in result.stderr, result
    up = cluster.run("forget_cluster_node", "node3", check=False)
    assert up.returncode == DATA and "stop its process first" in up.stderr
    assert cluster.run("forget_cluster_node", "nobody", check=False).returncode == DATA


def test_a_dead_node_is_forgotten(new_cluster, eventually):
    own = new_cluster(3)
    try:
        own.start()
        own.run("cluster", "await-ready", "--nodes", "3", "--timeout", "60")
        own[3].kill()
        eventually(lambda: own.run("forget_cluster_node", "node3", check=False).returncode == OK, "it is marked down, and forgotten", 30)
        eventually(lambda: {m["name"] for m in own[1].get("cluster").json["members"]} == {"node1", "node2"}, "it has left")
    finally:
        own.stop()
