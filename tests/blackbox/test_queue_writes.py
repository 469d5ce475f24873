"""`authorization.queue_write_checks`: a publisher needs write permission on each queue that its messages go to; queues without are left out, counted and audited."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest

from amqp import Connection
from own import OwnCluster
from targets import HOST, eventually, from_environment

WRITE = r"^(events|amq\.default|amq\.headers|open.*)$"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    from_environment().skip_on("rabbitmq", "it is Warren's")
    cluster = OwnCluster(tmp_path_factory.mktemp("writes"), size=3)
    for node in cluster.nodes:
        with open(node.folder / "node.toml", "a") as file:
            file.write(f'\n[authorization]\nqueue_write_checks = true\n[audit]\nfile = "{node.folder}/audit"\n')
    try:
        cluster.up()
        api = cluster.api(1)
        api.put("users", "writer", body={"password": "writer", "tags": "management"})
        with Connection(cluster.amqp(1)) as connection:
            ch = connection.channel()
            ch.exchange_declare("events", "topic", durable=True)
            for queue, key in (("open", "a.#"), ("closed", "#")):
                ch.queue_declare(queue)
                ch.queue_bind(queue, "events", key)
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(autouse=True)
def permissions(cluster):
    """As every test finds them."""
    permit(cluster, WRITE)
    with Connection(cluster.amqp(1)) as connection:
        for queue in ("open", "closed"):
            connection.channel().queue_purge(queue)


def permit(cluster, write, node=1):
    cluster.api(node).put("permissions", "/", "writer", body={"configure": ".*", "write": write, "read": ".*"})


@pytest.fixture
def writer(cluster):
    """A channel of the user in question, at the second node."""
    with Connection(cluster.amqp(2), user="writer", password="writer") as connection:
        ch = connection.channel()
        ch.confirm_select()
        yield ch


def bodies(cluster, queue):
    with Connection(cluster.amqp(3)) as connection:
        return connection.channel().bodies(queue)


def denied(cluster, node=2):
    port = cluster.nodes[node - 1].http
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as answer:
        return int(re.search(r"^warren_queue_writes_denied_total (\d+)$", answer.read().decode(), re.MULTILINE)[1])


def audited(cluster, node=2):
    lines = (cluster.nodes[node - 1].folder / "audit").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == "publish"]


def test_queues_that_the_publisher_may_not_write_to_are_left_out(cluster, writer):
    """The others get each message; what was left out is counted a message, and is in the audit log once."""
    before = denied(cluster)
    for n in range(5):
        assert writer.routed("events", "a.b", b"%d" % n), "a queue is left"
    assert bodies(cluster, "open") == [b"%d" % n for n in range(5)]
    assert bodies(cluster, "closed") == []
    assert denied(cluster) == before + 5
    records = eventually(lambda: [r for r in audited(cluster) if r["object"] == "closed" and r["detail"] == "exchange events"], 5, "a record")
    assert len(records) == 1, records
    assert (records[0]["user"], records[0]["vhost"], records[0]["outcome"]) == ("writer", "/", "left out")
    assert "write permission" in records[0]["reason"] and records[0]["peer"].startswith("127.0.0.1")


def test_a_message_that_loses_all_its_queues_is_unroutable(cluster, writer):
    """Mandatory: 312 NO_ROUTE and an ack; else an ack alone. The same through the default exchange, with CC, and by headers."""
    for _ in range(2):
        assert not writer.routed("events", "b"), "found, and remembered"
    assert not writer.routed("", "closed")
    assert writer.publish_confirmed("events", "b", mandatory=False).outcome == "ack"
    assert not writer.routed("events", "b", headers={"CC": ["b.c"]})
    writer.queue_declare("shut", arguments={})
    with Connection(cluster.amqp(1)) as connection:
        ch = connection.channel()
        ch.queue_bind("shut", "amq.headers", "", {"x-match": "all", "kind": "k"})
        assert not writer.routed("amq.headers", "", headers={"kind": "k"})
        ch.confirm_select()
        assert ch.routed("amq.headers", "", headers={"kind": "k"}), "others may"
        assert ch.routed("events", "b")
        ch.queue_delete("shut")
    assert bodies(cluster, "closed") == [b""]


def test_changed_permissions_hold_at_once_on_every_node(cluster, writer):
    """A route that is remembered does not outlive the permissions that it was found with."""
    for write, routed in ((WRITE, False), (".*", True), (WRITE, False), ("^(events|closed)$", True)):
        permit(cluster, write, node=3)
        assert writer.routed("events", "b", write.encode()) == routed, write
    assert bodies(cluster, "closed") == [b".*", b"^(events|closed)$"]


def test_own_and_exclusive_queues_are_queues_like_any_other(cluster, writer):
    """Whoever may declare a queue may not for that write to it."""
    writer.queue_declare("private", exclusive=True, durable=False)
    writer.queue_declare("open-private", exclusive=True, durable=False)
    assert not writer.routed("", "private")
    assert writer.routed("", "open-private")


def test_publishes_over_http_are_checked_alike(cluster):
    message = {"properties": {}, "routing_key": "b", "payload": "x", "payload_encoding": "string"}
    assert cluster.api(2, "writer", "writer").post("exchanges", "/", "events", "publish", body=message) == {"routed": False}
    assert cluster.api(2).post("exchanges", "/", "events", "publish", body=message) == {"routed": True}


def test_the_exchange_is_checked_first(cluster, writer):
    permit(cluster, "^open$")
    writer.publish("events", "a.b")
    closed = writer.expect_close(403)
    assert "exchange 'events'" in closed.text
