"""A35: removing one destination with thousands of bindings, or thousands of queues at once, does not hold up the rest."""

import os
import threading
import time
from collections import deque

import pytest

import wire
from amqp import Connection
from targets import ApiError, eventually

BINDINGS = int(os.environ.get("WARREN_A35_BINDINGS", "10000"))
EXCLUSIVE_QUEUES = int(os.environ.get("WARREN_A35_QUEUES", "20000"))
RATE = int(os.environ.get("WARREN_A35_RATE", "1000"))
OTHERS = 50


def scaled(target, count, part):
    """A part of it on RabbitMQ, which takes minutes to remove ten thousand bindings of a topic exchange, or thousands of queues."""
    return count // part if target.rabbitmq else count


class Load:
    """Publishes with confirms at one node, at a steady rate, in a thread of its own, and keeps every confirm's latency."""

    def __init__(self, nodes, node):
        self.node, self.rate = node, scaled(nodes.target, RATE, 3)
        self.connection = nodes.connect(node, timeout=30)
        self.channel = self.connection.channel()
        self.channel.confirm_select()
        self.frames = [self.channel.publish_bytes("x1", f"other.{number}", b"m", mandatory=True) for number in range(OTHERS)]
        self.latencies, self.returned, self.error, self.took = [], 0, None, 0.0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.guarded)
        self.thread.start()

    def guarded(self):
        try:
            self.run()
        except BaseException as error:  # told by stop()
            self.error = error

    def run(self):
        sent, number, started = deque(), 0, time.monotonic()
        while not self.over.is_set() or sent:
            now = time.monotonic()
            if not self.over.is_set():
                due = int((now - started) * self.rate)
                if due > number:
                    self.connection.send_raw(b"".join(self.frames[each % OTHERS] for each in range(number, due)))
                    sent.extend((each + 1, now) for each in range(number, due))
                    number, self.took = due, now - started
            self.connection.pump_for(0.002)
            self.take(sent)
            assert not sent or now - sent[0][1] < 20, f"node {self.node}: publish {sent[0][0]} has no outcome after 20 s"

    def take(self, sent):
        inbox = self.connection.inbox[self.channel.number]
        while inbox:
            event, now = inbox.popleft(), time.monotonic()
            if event.name == "basic.return":
                self.returned += 1
                continue
            assert event.name == "basic.ack", event
            if event.multiple:
                while sent and sent[0][0] <= event.delivery_tag:
                    self.latencies.append(now - sent.popleft()[1])
            else:
                item = next(item for item in sent if item[0] == event.delivery_tag)
                sent.remove(item)
                self.latencies.append(now - item[1])
        self.connection.frames.clear()

    def stop(self):
        """Ends it; the 99th percentile of the confirm latencies in seconds."""
        self.over.set()
        self.thread.join(60)
        assert not self.thread.is_alive()
        if self.error:
            raise self.error
        assert self.returned == 0, f"node {self.node}: {self.returned} publishes came back"
        assert len(self.latencies) > 0.9 * self.rate * self.took > 50, f"node {self.node}: {len(self.latencies)} publishes in {self.took} s"
        return sorted(self.latencies)[int(len(self.latencies) * 0.99)]


def others(nodes):
    """x1 with fifty queues that the load goes to and that keep themselves short."""
    ch = nodes.channel(1)
    ch.exchange_declare("x1", "topic")
    for number in range(OTHERS):
        ch.queue_declare(f"other{number}", arguments={"x-max-length": 10})
        ch.queue_bind(f"other{number}", "x1", f"other.{number}")


def pipelined(connection, channel, frames, answer, timeout=240):
    """Sends many methods and waits for all their answers."""
    for start in range(0, len(frames), 500):
        part = frames[start : start + 500]
        connection.send_raw(b"".join(part))
        for _ in part:
            channel.wait(answer, timeout=timeout)


def bind_many(nodes, queue, **declare):
    """A queue with thousands of bindings; the connection that made it."""
    connection = nodes.connect(2, timeout=60)
    ch = connection.channel()
    ch.queue_declare(queue, **declare)
    frames = [
        wire.method_frame(ch.number, "queue.bind", queue=queue, exchange="x1", routing_key=f"many.{number}.*.{number % 7}.#")
        for number in range(scaled(nodes.target, BINDINGS, 10))
    ]
    pipelined(connection, ch, frames, "queue.bind-ok")
    return connection, ch


def listed(api, vhost, queue):
    """Whether a node lists this queue. Asked for one by one, since whole lists of thousands keep this process busy and spoil its measurements."""
    try:
        return bool(api.get("queues", vhost, queue))
    except ApiError as error:
        assert error.status == 404, error
        return False


def gone(nodes, queue):
    """No node lists the queue or a binding of it, within ten seconds."""
    for node in nodes.distinct:
        api = nodes.api(node)

        eventually(lambda: not listed(api, nodes.vhost, queue), 10, f"{queue} is gone on node {node}")

        def nothing():
            assert queue not in [q["name"] for q in api.get("queues", nodes.vhost)]
            assert len(nodes.bindings(api, "x1")) == OTHERS
            return True

        eventually(nothing, 10, f"{queue} and its bindings are gone on node {node}")
        with Connection(nodes.target.amqp(node), vhost=nodes.vhost) as connection:
            ch = connection.channel()
            ch.confirm_select()
            assert not ch.routed("x1", "many.1.x.1.y.z")


class Quiet:
    """The metadata group over a deletion: nobody is elected, and the log and what is stored grow by little. On Warren only."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.before = self.seen()

    def seen(self):
        """Leader, term, and by node the applied index and the octets in its data folder; None where it cannot be told."""
        target = self.nodes.target
        if target.rabbitmq:
            return None
        views = [target.api(node).get("cluster") for node in target.all()]
        stored = [sum(file_size(file) for file in (target.directory / f"node{node}").rglob("*") if file.name != "log") for node in target.all()]
        return {(view["leader"], view["term"]) for view in views}, [view["applied_index"] for view in views], stored

    def check(self, entries, octets):
        """Whether the leader is the same in the same term, and no more entries and octets a node were added."""
        if self.before is None:
            return
        (led, indices, stored), (leads, now, stores) = self.before, self.seen()
        assert len(led) == 1 and led == leads, f"leader and term: {led}, then {leads}"
        assert max(now) - min(indices) <= entries, f"applied: {indices}, then {now}"
        assert max(b - a for a, b in zip(stored, stores)) <= octets, f"octets stored: {stored}, then {stores}"


def file_size(file):
    try:
        return file.stat().st_size
    except FileNotFoundError:  # a compaction took it
        return 0


def check_latency(nodes, loads):
    worst = {load.node: load.stop() for load in loads}
    with nodes.target.differs("rabbitmq", "3.10.8 holds confirms up meanwhile", strict=False):
        assert max(worst.values()) < 0.5, f"p99 confirm latency by node, in seconds: {worst}"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["delete", "owner closes", "auto-delete"])
def test_a35_one_queue_with_thousands_of_bindings(nodes, target, way):
    """Deleting it in any of three ways is complete on all nodes in ten seconds, while confirms elsewhere stay under half a second."""
    others(nodes)
    if way == "delete":
        connection, ch = bind_many(nodes, "q1")
    elif way == "owner closes":
        connection, ch = bind_many(nodes, "q1", exclusive=True)
    else:
        connection, ch = bind_many(nodes, "q1", auto_delete=True)
    quiet = Quiet(nodes)
    loads = [Load(nodes, node) for node in nodes.distinct]
    time.sleep(1)  # a second of the load as it is without the deletion
    if way == "delete":
        nodes.channel(1).queue_delete("q1")
    elif way == "owner closes":
        connection.close()
    else:
        ch.cancel(ch.consume("q1"))
    gone(nodes, "q1")
    time.sleep(1)  # a second of the load in which late clean-up would show
    check_latency(nodes, loads)
    quiet.check(entries=5, octets=4 << 20)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a35_thousands_of_exclusive_queues(nodes, target):
    """A connection with thousands of exclusive queues drops: all of them and their bindings are gone in ten seconds."""
    others(nodes)
    connection = nodes.connect(2, timeout=60)
    ch = connection.channel()
    count = scaled(target, EXCLUSIVE_QUEUES, 100)
    declares = [
        wire.method_frame(ch.number, "queue.declare", queue=f"mine{number}", exclusive=True) for number in range(count)
    ]
    pipelined(connection, ch, declares, "queue.declare-ok")
    binds = [
        wire.method_frame(ch.number, "queue.bind", queue=f"mine{number}", exchange="x1", routing_key=f"{word}.{number}")
        for number in range(count)
        for word in ("many", "more")
    ]
    pipelined(connection, ch, binds, "queue.bind-ok")
    quiet = Quiet(nodes)
    loads = [Load(nodes, node) for node in nodes.distinct]
    time.sleep(1)  # a second of the load as it is without the drop
    connection.drop()
    started = time.monotonic()
    for node in nodes.distinct:
        for number in (0, count // 2, count - 1):
            eventually(lambda: not listed(nodes.api(node), nodes.vhost, f"mine{number}"), 10, f"mine{number} is gone on node {node}")
    took = time.monotonic() - started
    time.sleep(1)  # a second of the load in which late clean-up would show
    check_latency(nodes, loads)
    quiet.check(entries=50, octets=16 << 20)
    assert took < 10, f"{count} queues took {took} s to go"
    for node in nodes.distinct:
        api = nodes.api(node)
        eventually(lambda: len(nodes.bindings(api, "x1")) == OTHERS, 10, f"the bindings are gone on node {node}")
        eventually(lambda: len(api.get("queues", nodes.vhost)) == OTHERS, 10, f"the queues are gone on node {node}")
