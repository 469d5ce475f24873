"""A33: a node that is stopped, cut off or dead delays nobody for longer than it takes to notice, and comes back without leading anyone astray.

`WARREN_A33_SECONDS` is how long the node is away in each case. The cluster is the test's own, with the third node behind a relay that can drop all packets.
"""

import contextlib
import os
import signal
import threading
import time

import pytest

from amqp import Closed, Connection, Deadline
from load import Consumer, Producer, accounts, drained
from own import own_cluster
from targets import eventually

SECONDS = float(os.environ.get("WARREN_A33_SECONDS", "15"))
NOTICE_S = 10.0  # within it, everything that has a majority goes on
PART_S = 5.0  # what is held back meanwhile is held back no longer than this
CALM = {"declare": 1.0, "confirm": 1.0, "list": 1.0}  # the longest each may take afterwards
GROWTH_MAX = 150 << 20
GONE = ["stopped", "cut off", "killed"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class Probe(threading.Thread):
    """Does one thing again and again at a node; remembers when each began and how long it took."""

    def __init__(self, cluster, node, what):
        super().__init__(daemon=True)
        self.cluster, self.node, self.what = cluster, node, what
        self.over, self.error, self.took = threading.Event(), None, []

    def run(self):
        try:
            act = getattr(self, self.what)()
            while not self.over.is_set():
                started = time.monotonic()
                next(act)
                self.took.append((started, time.monotonic() - started))
                self.over.wait(0.1)
        except BaseException as error:  # told by the test's own thread
            self.error = error

    def declare(self):
        with Connection(self.cluster.amqp(self.node), timeout=30) as connection:
            ch = connection.channel()
            for number in range(1_000_000):
                queue = f"probe-{self.node}-{number}"
                ch.queue_declare(queue)
                ch.queue_bind(queue, "amq.topic", "k")
                ch.queue_delete(queue)
                yield

    def confirm(self):
        """Publishes through the exchange to queues of all shards, and waits for all of them."""
        with Connection(self.cluster.amqp(self.node), timeout=30) as connection:
            ch = connection.channel()
            ch.confirm_select()
            while True:
                assert ch.publish_confirmed("amq.fanout", "", b"m", timeout=30).outcome == "ack"
                yield

    def list(self):
        while True:
            assert self.cluster.api(self.node).get("queues") is not None
            yield

    def worst(self, since, until=float("inf")):
        """The longest that began in a span of time; what has not ended yet counts too."""
        times = [took for started, took in self.took if since <= started <= until]
        assert times, f"{self.what} at node {self.node}: none began in {until - since:.0f} s, {self.error}"
        return max(times)


@pytest.fixture
def cluster(tmp_path):
    with own_cluster(tmp_path / "cluster", far=True) as cluster:
        yield cluster


def leave(cluster, how):
    if how == "stopped":
        os.kill(cluster.pid(3), signal.SIGSTOP)
    elif how == "cut off":
        cluster.relay.drops = True
    else:
        cluster.kill(3)


def come_back(cluster, how):
    if how == "stopped":
        os.kill(cluster.pid(3), signal.SIGCONT)
    elif how == "cut off":
        cluster.relay.drops = False
    else:
        cluster.start_process(3)


@pytest.mark.parametrize("how", GONE)
def test_a33_a_node_is_gone(cluster, how):
    """Load and probes at N1 and N2 while N3 is away, and its return."""
    setup = Connection(cluster.amqp(1)).channel()
    for number in range(24):  # some in every shard, most likely
        setup.queue_declare(f"shard{number}")
        setup.queue_bind(f"shard{number}", "amq.fanout")
    setup.queue_declare("load", arguments={"x-queue-type": "quorum"})
    at_third = Connection(cluster.amqp(3), timeout=5).channel()
    at_third.queue_declare("mine", exclusive=True)
    producers = [Producer(cluster.amqp(node), "load", prefix=f"p{node}-", size=1024, window=20) for node in (1, 2)]
    consumers = [Consumer(cluster.amqp(2), "load")]
    probes = [Probe(cluster, node, what) for node in (1, 2) for what in ("declare", "confirm", "list")]
    for thread in (*producers, *consumers, *probes):
        thread.start()
    eventually(lambda: len(consumers[0].got) > 500 and all(len(p.took) > 3 for p in probes), 20, "all goes well before")
    rss = {node: cluster.rss(node) for node in (1, 2)}
    left = time.monotonic()
    leave(cluster, how)
    over = threading.Event()
    over.wait(NOTICE_S)
    calm = time.monotonic()
    over.wait(SECONDS)
    back = time.monotonic()
    grown = {node: cluster.rss(node) - before for node, before in rss.items()}
    members = {m["name"]: m["up"] for m in cluster.view(1)["members"]}
    assert members == {"node1": True, "node2": True, "far": False}, f"the API marks the node down: {members}"
    came_back = time.monotonic()
    come_back(cluster, how)
    cluster.wait_ready(3, 30)
    print(f"{how}: healthy {time.monotonic() - came_back:.1f} s after its return")
    # What it routes by is what the others have, before it lets a client in: what was declared meanwhile is there, its dead client's queue is not.
    with Connection(cluster.amqp(3), timeout=20) as connection:
        ch = connection.channel()
        ch.confirm_select()
        assert ch.routed("", "load", b"from-the-third 0")
        assert not ch.routed("", "mine", b"m"), "an exclusive queue of a connection that is gone"
    eventually(lambda: len({cluster.digest(node)["digest"] for node in cluster.all()}) == 1, 10, "equal digests")
    over.wait(2)
    for probe in probes:
        probe.over.set()
        probe.join(40)
    for producer in producers:
        producer.finish()
    consumers[0].over.wait(1)
    consumers[0].got = [got for got in consumers[0].got if not got[0].startswith("from")]
    drained(producers, consumers)
    assert [probe.error for probe in probes if probe.error] == []
    noticing = {(p.what, p.node): round(p.worst(left - 1, calm), 2) for p in probes}
    calmly = {(p.what, p.node): round(p.worst(calm, back - 1), 3) for p in probes}
    returning = {(p.what, p.node): round(p.worst(back), 3) for p in probes}
    print(f"{how}: until noticed {noticing}\n  then {calmly}\n  at its return {returning}\n  memory grew by {grown}, silence {[p.silence for p in producers]}")
    assert [p.nacked for p in producers] == [[], []]
    consumers[0].got = [got for got in consumers[0].got if not got[0].startswith("from")]
    accounts(producers, consumers, flags=True)
    assert max(noticing.values()) <= PART_S, noticing
    for (what, node), longest in calmly.items():
        assert longest < CALM[what], f"{what} at node {node} took {longest} s with node 3 {how}"
    assert max(returning.values()) <= PART_S, returning
    assert max(grown.values()) < GROWTH_MAX, f"a backlog for node 3 grows: {grown}"


def test_a33_what_the_stuck_node_says_when_it_goes_on(cluster):
    """Publishes to N3's socket while it is stopped: when it goes on, it answers each honestly. What is acked is there, what is nacked is not."""
    setup = Connection(cluster.amqp(1)).channel()
    setup.queue_declare("q1")
    ch = Connection(cluster.amqp(3), timeout=20).channel()
    ch.confirm_select()
    assert ch.routed("", "q1", b"0")
    os.kill(cluster.pid(3), signal.SIGSTOP)
    for number in range(1, 51):
        ch.publish("", "q1", b"%d" % number, mandatory=True)
    eventually(lambda: {m["name"]: m["up"] for m in cluster.view(1)["members"]}["far"] is False, 15, "it is marked down")
    os.kill(cluster.pid(3), signal.SIGCONT)
    outcomes = {}
    with contextlib.suppress(Closed, Deadline):
        for number in range(2, 52):
            outcomes |= ch.confirms([number], timeout=10)
    cluster.wait_ready(3)
    print(f"{sorted(set(outcomes.values()))} for {len(outcomes)} of 50")
    got = [int(body) for body in Connection(cluster.amqp(2)).channel().bodies("q1")]
    assert len(set(got)) == len(got) and got == sorted(got)
    for number, outcome in outcomes.items():
        assert (number - 1 in got) == (outcome == "ack"), f"{number - 1}: {outcome}"
