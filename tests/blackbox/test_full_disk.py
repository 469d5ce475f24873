"""A node's disk gets full under load: it says so, the others go on, nothing that was confirmed is lost, and it serves again by itself when there is room.

The node's folder is a small file system of its own, in a mount namespace that only the node's process is in; what fills it is written by way of /proc.
"""

import contextlib
import http.client
import json
import os
import subprocess
from pathlib import Path

import pytest

from amqp import Closed, Connection, Deadline
from load import Consumer, Producer, accounts, drained
from own import OwnCluster
from targets import eventually, from_environment

QUEUES = 6
ROOM = "320m"  # a few segments of the log
AS_ROOT = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def cluster(tmp_path):
    from_environment().skip_on("rabbitmq", "the test starts nodes with a configuration of its own")
    if subprocess.run([*AS_ROOT, "sh", "-c", "mount -t tmpfs tmpfs /mnt"], capture_output=True, timeout=20).returncode:
        pytest.skip("no mount namespaces here")
    cluster = OwnCluster(tmp_path / "cluster", limits={"disk_free_bytes_min": 0})
    data = cluster.nodes[2].folder / "data"
    data.mkdir()
    cluster.nodes[2].within = [*AS_ROOT, "sh", "-c", f'mount -t tmpfs -o size={ROOM} tmpfs "{data}" && exec "$@"', "sh"]
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


def filler(cluster) -> Path:
    """A file on the third node's disk, as this process can reach it."""
    return Path(f"/proc/{cluster.pid(3)}/root{cluster.nodes[2].folder}/data/filler")


def fill(cluster):
    """Takes all that is left of the disk."""
    with open(filler(cluster), "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))


def health(cluster):
    """Status and what the third node says of itself, whatever it is."""
    connection = http.client.HTTPConnection("127.0.0.1", cluster.nodes[2].http, timeout=5)
    try:
        connection.request("GET", "/api/health")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def through(cluster, body):
    """What comes of a publish through the third node: its outcome, or none if the connection or the wait for it ends first."""
    with contextlib.suppress(OSError, Closed, Deadline), Connection(cluster.amqp(3), timeout=3) as connection:
        ch = connection.channel()
        ch.confirm_select()
        return ch.publish_confirmed("", "aside", body, timeout=3).outcome
    return None


def test_a_node_with_a_full_disk_comes_back_by_itself(cluster):
    with Connection(cluster.amqp(1), timeout=30) as connection:
        for number in range(QUEUES):
            connection.channel().queue_declare(f"load{number}", arguments={"x-queue-type": ("classic", "quorum")[number % 2]})
        connection.channel().queue_declare("aside", durable=True)
    at = lambda number: cluster.amqp(number % 2 + 1)  # noqa: E731
    producers = [Producer(at(n), f"load{n}", prefix=f"p{n}-", window=20, size=30_000) for n in range(QUEUES)]
    consumers = [Consumer(at(n + 1), f"load{n}") for n in range(QUEUES)]
    for client in (*consumers, *producers):
        client.start()

    def flows(more=50):
        before = [len(p.confirmed) for p in producers]
        eventually(lambda: all(len(p.confirmed) >= b + more for p, b in zip(producers, before)), 30, "confirms flow through every queue")
        assert not [c.error for c in (*producers, *consumers) if c.error]

    flows()
    eventually(lambda: any(q["node"] == "node3" for q in cluster.api(1).get("queues")), 30, "the node leads something")
    pid = cluster.pid(3)
    fill(cluster)

    def says_so():
        fill(cluster)  # what it freed meanwhile
        status, body = health(cluster)
        assert status == 503 and "full" in body["reason"], (status, body)
        return True

    eventually(says_so, 60, "the node says that its disk is full")
    # The others serve all of it, and it stays as it is while there is no room.
    flows()
    assert all(q["node"] in ("node1", "node2") for q in cluster.api(1).get("queues")), "it leads nothing any more"
    assert health(cluster)[0] == 503
    # It may still pass on what others store. What it says of that must be true.
    said = {body: through(cluster, body.encode()) for body in ("a", "b", "c", "d")}

    filler(cluster).unlink()
    eventually(lambda: health(cluster)[0] == 200, 30, "it serves again")
    assert cluster.pid(3) == pid and cluster.nodes[2].process.poll() is None, "by itself, in the same process"
    eventually(lambda: any(q["node"] == "node3" for q in cluster.api(1).get("queues")), 60, "it leads again")
    flows()
    drained(producers, consumers)
    accounts(producers, consumers, flags=True)
    with Connection(cluster.amqp(3), timeout=30) as connection:
        ch = connection.channel()
        ch.confirm_select()
        assert ch.publish_confirmed("", "load0", b"again", timeout=20).outcome == "ack"
        there = [event.body.decode() for event in ch.drain("aside")]
    for body, outcome in said.items():
        assert outcome != "ack" or body in there, f"a confirmed message is lost: {said}, {there}"
        assert outcome != "nack" or body not in there, f"a refused message was stored: {said}, {there}"
