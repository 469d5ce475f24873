"""Queues longer than what memory keeps: published without a consumer, read from another node, over restarts; and what every node answers of a queue.

`WARREN_LONG_MESSAGES` makes the queue longer.
"""

import os
import threading
import time

import pytest

from helpers import missing, spread_only
from replicated import bodies, fill, ready
from targets import eventually

MESSAGES = int(os.environ.get("WARREN_LONG_MESSAGES", "200000"))
SIZE = 4096
GROWTH_MAX = 600 << 20  # octets a node may grow by, while 800 MB wait in the queue: far more than it should be, and bounded
PIECE = 2000


def body(number):
    """A message that is told by its first octets."""
    return b"%08d" % number + b"." * (SIZE - 8)


class Memory(threading.Thread):
    """Watches how much resident memory each node takes."""

    def __init__(self, target):
        super().__init__(daemon=True)
        self.target, self.over = target, threading.Event()
        self.pids = {node: target.pid(node) for node in target.all()}
        self.before = {node: self.rss(pid) for node, pid in self.pids.items()}
        self.most = dict(self.before)
        self.start()

    @staticmethod
    def rss(pid):
        """Resident octets that are the process's own: pages of mapped files are the system's cache."""
        with open(f"/proc/{pid}/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        return int(fields["RssAnon"].split()[0]) * 1024

    def run(self):
        while not self.over.wait(0.2):
            for node, pid in self.pids.items():
                self.most[node] = max(self.most[node], self.rss(pid))

    def growth(self):
        self.over.set()
        self.join(10)
        assert not self.is_alive()
        return {node: self.most[node] - self.before[node] for node in self.pids}

    def check(self, what):
        growth = self.growth()
        print(f"{what}: grew by {', '.join(f'{octets / 2**20:.0f} MiB' for octets in growth.values())}")
        assert max(growth.values()) < GROWTH_MAX, f"{what}: {growth}"


def publish_all(ch, queue, count):
    """Publishes with confirms, some thousands ahead of them."""
    properties = {"delivery_mode": 2}
    for start in range(0, count, PIECE):
        part = range(start, min(start + PIECE, count))
        ch.connection.send_raw(b"".join(ch.publish_bytes("", queue, body(n), mandatory=True, properties=properties) for n in part))
        before, ch.published = ch.published, ch.published + len(part)
        if start >= PIECE:
            outcomes = ch.confirms(range(before - PIECE + 1, before + 1), timeout=60)
            assert set(outcomes.values()) == {"ack"}
        ch.connection.frames.clear()
    ch.confirms(range(count - len(part) + 1, count + 1), timeout=60)


def consume_all(ch, queue, first, count, flags=None):
    """Takes so many messages in order, acking now and then. `flags` is what redelivered must say, if it must."""
    ch.qos(1000)
    tag = ch.consume(queue)
    for number in range(first, first + count):
        event = ch.wait("basic.deliver", timeout=30)
        assert event.body == body(number), f"{event.body[:8]} instead of {number}"
        assert flags is None or event.redelivered == flags, f"{number}: redelivered is {event.redelivered}"
        if number % 250 == 249 or number == first + count - 1:
            ch.ack(event.delivery_tag, multiple=True)
            ch.connection.frames.clear()
    ch.cancel(tag)
    ch.close()  # and with it, what was delivered beyond `count` goes back


@pytest.mark.slow
@spread_only
@pytest.mark.timeout(900)
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_queue_longer_than_memory(nodes, target, queue_type):
    """Many messages without a consumer; then a part is consumed at another node, all nodes restart, and the rest comes, in order, memory being bounded."""
    ch = nodes.channel(1, confirm=True)
    ch.queue_declare("long", arguments={"x-queue-type": queue_type})
    memory, started = Memory(target), time.monotonic()
    publish_all(ch, "long", MESSAGES)
    took = time.monotonic() - started
    print(f"{MESSAGES} messages published in {took:.1f} s, {MESSAGES / took:.0f}/s")
    ready(nodes, "long", MESSAGES)
    memory.check("publishing without a consumer")
    third = MESSAGES // 3
    memory, started = Memory(target), time.monotonic()
    consume_all(nodes.channel(2), "long", 0, third, flags=False)
    print(f"{third} consumed at {third / (time.monotonic() - started):.0f}/s")
    memory.check("consuming")
    ready(nodes, "long", MESSAGES - third)
    nodes.restart_all()
    ready(nodes, "long", MESSAGES - third)
    memory, started = Memory(target), time.monotonic()
    consume_all(nodes.channel(3), "long", third, MESSAGES - third)  # flagged or not: after kill -9, all may have been delivered
    print(f"{MESSAGES - third} consumed at {(MESSAGES - third) / (time.monotonic() - started):.0f}/s after the restart")
    memory.check("consuming after the restart")
    ready(nodes, "long", 0)


@pytest.mark.slow
@spread_only
@pytest.mark.timeout(900)
def test_a_long_queue_over_a_death(nodes, target):
    """A long queue while the nodes are killed one after the other: all of it is there each time, and at the end in order from any node."""
    count = MESSAGES // 10
    ch = nodes.channel(2, confirm=True)
    ch.queue_declare("long")
    publish_all(ch, "long", count)
    for node in target.all():
        nodes.kill(node)
        rest = [other for other in target.all() if other != node]
        ready(nodes, "long", count, rest)
        nodes.start(node)
        ready(nodes, "long", count)
    consume_all(nodes.channel(1), "long", 0, count)
    ready(nodes, "long", 0)


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_every_node_answers_alike(nodes, queue_type):
    """get, consume, purge, counts and deletion of one queue from every node in turn."""
    arguments = {"x-queue-type": queue_type}
    for turn, node in enumerate(nodes.distinct):
        ch = nodes.channel(node)
        ch.queue_declare("q1", arguments=arguments)
        fill(nodes.channel(nodes.distinct[turn - 1], confirm=True), "q1", 1, 30)
        ready(nodes, "q1", 30, timeout=2)
        for number, other in enumerate(nodes.distinct * 3, 1):
            event = nodes.channel(other).get("q1")
            assert (event.body, event.redelivered) == (b"%d" % number, False)
        taken = 3 * len(nodes.distinct)
        # Held by a consumer here and by gets there; what is held is not counted, not purged, and comes back.
        ch.qos(3)
        ch.consume("q1", "c")
        assert [event.body for event in ch.deliveries(3)] == bodies(taken + 1, taken + 3)
        holder = nodes.channel(nodes.distinct[turn - 1])
        assert holder.get("q1", no_ack=False).body == b"%d" % (taken + 4)
        for each in nodes.distinct:
            answer = nodes.channel(each).exists("q1")
            assert (answer.message_count, answer.consumer_count) == (30 - taken - 4, 1)
        purger = nodes.channel(nodes.distinct[(turn + 1) % len(nodes.distinct)])
        assert purger.queue_purge("q1").message_count == 30 - taken - 4
        ready(nodes, "q1", 0, timeout=2)
        ch.cancel("c")
        ch.nack(0, multiple=True)
        ch.barrier()
        holder.close()
        ready(nodes, "q1", 4, timeout=2)
        events = nodes.channel(node).drain("q1")
        assert [(event.body, event.redelivered) for event in events] == [(b, True) for b in bodies(taken + 1, taken + 4)]
        fill(nodes.channel(node, confirm=True), "q1", 1, 7)
        assert nodes.channel(nodes.distinct[turn - 1]).queue_delete("q1").message_count == 7
        for each in nodes.distinct:
            assert missing(nodes.channel(each), "q1")


def test_counts_are_exact_after_acks(nodes):
    """Acks, and a round trip behind them on the channel: then a passive declare at any node counts exactly what is left."""
    publisher = nodes.channel(1, confirm=True)
    publisher.queue_declare("q1")
    fill(publisher, "q1", 1, 200)
    ch = nodes.channel(2)
    ch.consume("q1")
    events = ch.deliveries(200)
    for event in events[:100:2]:
        ch.ack(event.delivery_tag)
    ch.close()
    for node in nodes.distinct:
        eventually(lambda: nodes.channel(node).exists("q1").message_count == 150, 2, "150 are left")
    again = nodes.channel(3)
    again.consume("q1")
    events = again.deliveries(150)
    assert [int(e.body) for e in events] == [n for n in range(1, 201) if n > 100 or n % 2 == 0]
    assert all(event.redelivered for event in events)
    again.ack(0, multiple=True)
    again.close()
    for node in nodes.distinct:
        eventually(lambda: nodes.channel(node).exists("q1").message_count == 0, 2, "nothing is left")


def test_purge_beside_publishers(nodes):
    """Purges at one node while others publish: what purges counted and what is left is what was confirmed; nothing that was purged comes back."""
    publisher = nodes.channel(1, confirm=True)
    publisher.queue_declare("q1")
    purger, purged = nodes.channel(3), 0
    for turn in range(20):
        for number in range(100):
            publisher.publish("", "q1", b"%d" % (turn * 100 + number), mandatory=True)
        purged += purger.queue_purge("q1").message_count
    assert set(publisher.confirms(range(1, 2001), timeout=30).values()) == {"ack"}
    left = [int(event.body) for event in nodes.channel(2).drain("q1")]
    assert purged + len(left) == 2000, f"{purged} purged and {len(left)} left of 2000"
    assert left == sorted(left)
