"""A34: alarms. A node that is low on memory blocks publishers, and says so to those who asked; nobody else notices, and nothing is lost.

The queue that fills the node is not durable: of durable ones, memory keeps only what is being delivered.
"""

import contextlib
import time

import pytest

import wire
from amqp import ALL_CAPABILITIES, Connection
from own import OwnCluster, own_cluster
from targets import eventually

LIMIT = 24 << 20
PIECE = 1 << 20


def machine_memory():
    """The machine's memory in octets, of which the limit is a part."""
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with own_cluster(tmp_path_factory.mktemp("alarms"), limits={"memory_watermark": round(LIMIT / machine_memory(), 6)}) as cluster:
        yield cluster


@pytest.fixture
def full(cluster):
    """Fills node 1 with a queue of its own until it alarms; gives a function that clears the alarm. What the filling took is away at the end."""
    queue, connection = fill(cluster)
    yield lambda: drain(cluster, queue)
    drain(cluster, queue)
    with Connection(cluster.amqp(2)) as other:
        other.channel().queue_delete(queue)
    connection.drop()


def fill(cluster, queue="filling"):
    """Publishes at node 1 until the connection is told that it is blocked."""
    number = 0
    while True:  # a transient queue that node 1 owns
        connection = Connection(cluster.amqp(1), timeout=20)
        ch = connection.channel()
        ch.queue_declare(f"{queue}{number}", durable=False)
        if eventually(lambda: cluster.api(1).get("queues", "/", f"{queue}{number}")["node"], 5) == "node1":
            break
        ch.queue_delete(f"{queue}{number}")
        connection.close()
        number += 1
    with contextlib.suppress(Exception):
        for _ in range(3 * LIMIT // PIECE):
            ch.publish("", f"{queue}{number}", b"x" * PIECE)
            connection.pump_for(0.02)
            if connection.inbox[0]:
                break
    blocked = connection.wait(0, "connection.blocked", timeout=10)
    assert blocked.reason, blocked
    return f"{queue}{number}", connection


def drain(cluster, queue):
    with Connection(cluster.amqp(3), timeout=20) as connection:
        with contextlib.suppress(Exception):
            connection.channel().queue_purge(queue)


def control(connection, seconds=0.5):
    """What the connection was told on channel 0, after a while."""
    connection.pump_for(seconds)
    return [event.name for event in connection.inbox[0]]


def test_a34_publishers_are_blocked_and_told(cluster, full):
    """P1 is told once on its first publish and held back, P3 without the capability is held back without a word; declares and acks work; then all goes through, in order."""
    without = {**ALL_CAPABILITIES, "connection.blocked": False}
    p1, p3 = Connection(cluster.amqp(1), heartbeat=2, timeout=20), Connection(cluster.amqp(1), heartbeat=2, timeout=20, capabilities=without)
    both = Connection(cluster.amqp(1), timeout=20)
    with Connection(cluster.amqp(2)) as setup:
        ch = setup.channel()
        for queue in ("one", "three"):
            ch.queue_declare(queue)
    channels = []
    for connection, queue in ((p1, "one"), (p3, "three")):
        ch = connection.channel()
        ch.confirm_select()
        for number in range(20):
            ch.publish("", queue, b"%d" % number, mandatory=True)
        channels.append(ch)
    # Longer than three heartbeat intervals: both sides keep their connections.
    end = time.monotonic() + 7
    while time.monotonic() < end:
        for connection in (p1, p3):
            connection.send_raw(wire.HEARTBEAT)
            connection.pump_for(0.25)
    assert [event.name for event in p1.inbox[0]] == ["connection.blocked"], p1.inbox[0]
    assert p1.inbox[0][0].reason
    assert list(p3.inbox[0]) == [], "it did not ask to be told"
    for connection, ch in zip((p1, p3), channels):
        assert not connection.eof and not connection.closed, "a blocked connection is killed"
        assert not connection.inbox[ch.number], f"a blocked publish was answered: {connection.inbox[ch.number]}"
    # Declares work wholly, consumers drain.
    with Connection(cluster.amqp(2)) as other:
        assert other.channel().exists("one").message_count == 0, "publishes of a blocked connection got through"
    ch = both.channel()
    ch.queue_declare("during")
    with Connection(cluster.amqp(3)) as other:
        other.channel().exists("during")
    # A client may say these things too; they mean nothing.
    both.send(0, "connection.blocked", reason="mine")
    both.send(0, "connection.unblocked")
    assert both.alive
    full()
    assert p1.wait(0, "connection.blocked").name  # the one from above
    p1.wait(0, "connection.unblocked", timeout=10)
    for ch, queue in zip(channels, ("one", "three")):
        assert set(ch.confirms(range(1, 21), timeout=15).values()) == {"ack"}
        with Connection(cluster.amqp(3)) as other:
            assert other.channel().bodies(queue) == [b"%d" % number for number in range(20)], "in order"
    assert control(p1) == [] and control(p3) == []
    for connection in (p1, p3, both):
        connection.drop()


def test_a34_consumers_drain_during_the_alarm(cluster):
    """A consumer at another node takes the filling out with acks: that alone clears the alarm."""
    queue, connection = fill(cluster, "drained")
    consumer = Connection(cluster.amqp(3), timeout=20).channel()
    consumer.qos(5)
    consumer.consume(queue)
    end = time.monotonic() + 30
    while True:
        assert time.monotonic() < end, "the alarm does not clear"
        consumer.ack(consumer.wait("basic.deliver", timeout=10).delivery_tag)
        connection.pump_for(0.01)
        if any(event.name == "connection.unblocked" for event in connection.inbox[0]):
            break
    drain(cluster, queue)
    consumer.connection.drop()
    connection.drop()


def test_a34_quick_alarms_come_in_pairs(cluster):
    """The alarm starts and ends several times: a connection that publishes is told in pairs, one at most per edge, and no message is lost."""
    watcher = Connection(cluster.amqp(1), timeout=30)
    ch = watcher.channel()
    ch.confirm_select()
    ch.queue_declare("watched")
    published = 0
    for turn in range(5):
        queue, connection = fill(cluster, f"turn{turn}-")
        ch.publish("", "watched", b"%d" % turn, mandatory=True)
        published += 1
        watcher.pump_for(0.3)
        drain(cluster, queue)
        connection.drop()
        assert ch.confirms([published], timeout=15) == {published: "ack"}
    told = control(watcher, 1)
    assert len(told) <= 2 * 5 and told == ["connection.blocked", "connection.unblocked"] * (len(told) // 2), told
    with Connection(cluster.amqp(2)) as other:
        assert other.channel().bodies("watched") == [b"%d" % turn for turn in range(5)]
    watcher.drop()


def test_a34_the_alarm_holds_on_all_nodes(cluster, full):
    """Node 1 alarms: who publishes at node 2 is told and held back, without the capability held back only; a consumer there is not. Then all goes through."""
    with Connection(cluster.amqp(3), timeout=20) as setup:
        setup.channel().queue_declare("two")
    told = Connection(cluster.amqp(2), timeout=20)
    untold = Connection(cluster.amqp(2), timeout=20, capabilities={**ALL_CAPABILITIES, "connection.blocked": False})
    consumer = Connection(cluster.amqp(2), timeout=20).channel()
    channels = []
    for connection in (told, untold):
        ch = connection.channel()
        ch.confirm_select()
        ch.publish("", "two", b"held", mandatory=True)
        channels.append(ch)
    consumer.consume("two", no_ack=True)
    told.wait(0, "connection.blocked", timeout=5)
    assert control(told, 1) == [] and control(untold, 1) == []
    assert not [event for ch in channels for event in ch.quiet(0.2)], "a blocked publish was answered"
    assert not consumer.quiet(0.2, "basic.deliver"), "a blocked publish got through"
    full()
    told.wait(0, "connection.unblocked", timeout=10)
    for ch in channels:
        assert ch.confirms([1], timeout=10) == {1: "ack"}
    assert len(consumer.deliveries(2, timeout=5)) == 2
    assert control(told) == [] and control(untold) == []
    for connection in (told, untold, consumer.connection):
        connection.drop()


def test_a34_disk_alarm(tmp_path):
    """A limit on free disk space above what is free: the node starts with its alarm, and a publisher is told."""
    cluster = OwnCluster(tmp_path / "cluster", 1, limits={"disk_free_bytes_min": 1 << 50})
    node = cluster.nodes[0]
    try:
        node.start()
        eventually(lambda: node.process.poll() is not None or node.healthy(), 20)
        assert node.process.poll() is None, node.log
        with Connection(cluster.amqp(1), timeout=20) as connection:
            ch = connection.channel()
            ch.queue_declare("q1")
            ch.publish("", "q1", b"m")
            assert "disk" in connection.wait(0, "connection.blocked", timeout=5).reason
    finally:
        cluster.down()


def test_bodies_that_are_never_finished_raise_the_alarm(tmp_path):
    """Forty channels send most of a message each: the node takes no more of that than its limit, blocks the sender, gives it up after a while, and serves again."""
    with own_cluster(tmp_path / "own", size=1, limits={"memory_watermark": round(LIMIT / machine_memory(), 6)}) as cluster:
        connection = Connection(cluster.amqp(1), timeout=20)
        whole, frame = 4 << 20, 131064
        with contextlib.suppress(OSError):
            for number in range(1, 41):
                channel = connection.channel()
                header = wire.method_frame(number, "basic.publish", routing_key="q") + wire.frame(2, number, wire.content_header(whole))
                connection.send_raw(header)
                for _ in range(whole // frame - 1):
                    connection.send_raw(wire.frame(3, number, b"z" * frame))
                assert channel.number == number
                connection.pump_for(0.02)
                if connection.inbox[0]:
                    break
        assert connection.wait(0, "connection.blocked", timeout=10).reason
        assert number < 20, "it was let on for too long"
        with Connection(cluster.amqp(1)) as other:
            ch = other.channel()
            ch.queue_declare("q")
            ch.confirm_select()
            ch.publish("", "q", b"small")
            other.pump_for(0.5)
            assert not ch.connection.inbox[ch.number], "publishes wait"
            # Who is not read from cannot be seen to have gone: it is given up after 15 s, and its socket closed 5 s later.
            connection.drop()
            assert ch.confirms([1], timeout=45) == {1: "ack"}
