"""Stored data that rots: it is never served, and the node is restored from the others."""

import signal

import pytest

from amqp import Connection
from own import own_cluster
from targets import eventually

COUNT = 300
BODY = b"0123456789abcdef" * 64


def body(number):
    return b"%06d:" % number + BODY


@pytest.fixture
def cluster(tmp_path):
    with own_cluster(tmp_path / "cluster") as cluster:
        yield cluster


QUEUE = "q1"


def owner(cluster, seen_by=1):
    """The node that the queue is on."""
    return cluster.number_of(eventually(lambda: cluster.api(seen_by).get("queues", "/", QUEUE)["node"], 10))


def filled(cluster):
    """The queue, with messages; and the node that leads it, once leaders are where they belong."""
    with Connection(cluster.amqp(3)) as connection:
        ch = connection.channel()
        ch.queue_declare(QUEUE)
        ch.confirm_select()
        for number in range(COUNT):
            assert ch.publish_confirmed("", QUEUE, body(number), properties={"delivery_mode": 2}).outcome == "ack"
    eventually(lambda: not cluster.api(1).get("ring")["moves"], 20, "nothing moves")
    return owner(cluster)


def rot(cluster, node, what):
    """Turns bits over in the first segment that holds `what`, in every place where it is; how many there were."""
    folder = cluster.nodes[node - 1].folder / "data" / "raft-log"
    count = 0
    for path in sorted(folder.iterdir()):
        data = bytearray(path.read_bytes())
        at = data.find(what)
        while at >= 0:
            data[at + len(what) - 1] ^= 0x10
            count += 1
            at = data.find(what, at + 1)
        if count:
            path.write_bytes(bytes(data))
            return count
    raise AssertionError(f"{what!r} is nowhere in {folder}")


def all_there(cluster, node):
    """All messages come out, as they were published, in order."""
    with Connection(cluster.amqp(node), timeout=30) as connection:
        ch = connection.channel()
        got = []
        while len(got) < COUNT:
            event = eventually(lambda: ch.get(QUEUE), 20, f"message {len(got)}")
            got.append(event.body)
        assert got == [body(number) for number in range(COUNT)]


def restored(cluster, node, before):
    """The node is a member under another identity, and says so."""
    this = cluster.nodes[node - 1]

    def is_back():
        members = {member["name"]: member for member in cluster.view(node % 3 + 1)["members"]}
        return members[this.name]["node"] != before and len(members) == cluster.size and members[this.name]["up"] and this.healthy()

    eventually(is_back, 60, "the node is restored")
    assert (this.folder / "data" / "damaged" / "raft-log").is_dir()
    assert "set aside" in this.log


def identity(cluster, node):
    return next(member["node"] for member in cluster.view(node)["members"] if member["name"] == cluster.nodes[node - 1].name)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "stop"])
def test_a_message_that_rots_is_restored_from_the_others(cluster, how):
    """A message's octets change on its leader's disk while the node is down: it finds that when it reads it, never delivers it, and is restored."""
    node = filled(cluster)
    before = identity(cluster, node)
    cluster.nodes[node - 1].stop(how)
    rot(cluster, node, body(COUNT // 2)[:40])
    cluster.start(node)
    other = node % 3 + 1
    if how == signal.SIGTERM:  # it need not read its log to start
        eventually(lambda: owner(cluster, other) == node, 20, "the node leads the queue again")
    all_there(cluster, other)
    restored(cluster, node, before)


@pytest.mark.slow
def test_a_log_that_cannot_be_opened_is_restored_from_the_others(cluster):
    """The log rots so that the node cannot start from it: it starts without, and is restored; a second time it wants to be looked at."""
    number = filled(cluster)
    before = identity(cluster, number)
    node = cluster.nodes[number - 1]

    def spoil():
        node.stop(signal.SIGKILL)
        for path in (node.folder / "data" / "raft-log").iterdir():
            data = bytearray(path.read_bytes())
            data[64 : 1 << 16] = bytes(octet ^ 0xFF for octet in data[64 : 1 << 16])
            path.write_bytes(bytes(data))

    spoil()
    cluster.start(number)
    restored(cluster, number, before)
    all_there(cluster, number)
    spoil()
    node.start()
    assert node.process.wait(30) == 69
    assert "set aside before" in node.log
