"""A32: nodes come back in any order. One node alone waits; a majority serves all that was durable, and what was not is gone with its bindings.

The scenario's rolling upgrade needs the binaries of two releases, and comes with the second one.
"""

import contextlib
import itertools
import os
import threading
import time

import pytest

import wire
from amqp import Closed, Connection, Deadline
from helpers import exchange_missing, missing, spread_only
from replicated import bodies, fill, ready
from targets import ApiError, eventually

ALONE_S = float(os.environ.get("WARREN_A32_ALONE_SECONDS", "4"))
KINDS = {"direct": ("k", None), "fanout": ("", None), "topic": ("k.#", None), "headers": ("", {"x-match": "all", "n": 1}), "x-consistent-hash": ("1", None)}
QUEUES, KEYS = 200, 300

pytestmark = [pytest.mark.slow, spread_only]


class World:
    """Topology of all kinds with messages, and the check that all of it is there."""

    def __init__(self, nodes):
        self.nodes = nodes
        ch = nodes.channel(1, confirm=True)
        for kind in KINDS:
            ch.exchange_declare(f"x-{kind}", kind)
        ch.exchange_declare("ring", "x-consistent-hash")
        ch.connection.send_raw(b"".join(wire.method_frame(ch.number, "queue.declare", queue=f"q{n}", durable=True) for n in range(QUEUES)))
        for _ in range(QUEUES):
            ch.wait("queue.declare-ok", timeout=30)
        for number in range(QUEUES):
            kind = list(KINDS)[number % len(KINDS)]
            ch.send("queue.bind", queue=f"q{number}", exchange=f"x-{kind}", routing_key=KINDS[kind][0], arguments=KINDS[kind][1])
        for _ in range(QUEUES):
            ch.wait("queue.bind-ok", timeout=30)
        for number in range(5):
            ch.queue_declare(f"ring{number}", arguments={"x-queue-type": ("classic", "quorum")[number % 2]})
            ch.queue_bind(f"ring{number}", "ring", str(number + 1))
        for number in range(10):
            ch.queue_declare(f"full{number}", arguments={"x-queue-type": ("classic", "quorum")[number % 2]})
            fill(ch, f"full{number}", 1, 20)
        # What is not durable; the exclusive queues' connection lives for as long as its node does.
        ch.queue_declare("fleeting", durable=False)
        ch.queue_bind("fleeting", "x-direct", "fleeting")
        self.exclusive = nodes.connect(2).channel()
        self.exclusive.queue_declare("exclusive", durable=True, exclusive=True)
        self.exclusive.queue_bind("exclusive", "x-direct", "exclusive")
        self.lists = self.listed(1)
        self.homes = self.hash_homes(1)

    def listed(self, node):
        """The durable exchanges, queues and bindings, as a node lists them."""
        api = self.nodes.target.api(node)
        exchanges = {(x["name"], x["type"]) for x in api.get("exchanges", self.nodes.vhost)}
        queues = {(q["name"], q["type"]) for q in api.get("queues", self.nodes.vhost) if q["name"] not in ("fleeting", "exclusive")}
        bindings = {
            (b["source"], b["destination"], b["routing_key"], str(b["arguments"]))
            for b in self.nodes.bindings(api)
            if b["destination"] not in ("fleeting", "exclusive")
        }
        return exchanges, queues, bindings

    def hash_homes(self, node):
        """Where each key goes by the hash ring, as published at a node."""
        publisher = self.nodes.channel(node, confirm=True)
        for key in range(KEYS):
            publisher.publish("ring", f"key{key}", b"%d" % key, mandatory=True)
        assert set(publisher.confirms(range(1, KEYS + 1), timeout=30).values()) == {"ack"}
        homes = {int(body): f"ring{n}" for n in range(5) for body in self.nodes.channel(node).bodies(f"ring{n}")}
        assert len(homes) == KEYS
        return homes

    def is_back(self, asked):
        """All of it is there at the nodes asked; what is not durable is gone."""
        for node in asked:
            eventually(lambda: self.listed(node) == self.lists, 20, f"node {node} lists all that is durable")
            for number in range(10):
                ready(self.nodes, f"full{number}", 20, [node])
            ch = self.nodes.channel(node, confirm=True)
            for kind, (_, arguments) in KINDS.items():
                assert ch.routed(f"x-{kind}", "k", b"routed", headers=arguments and {"n": 1}), f"node {node} does not route by {kind}"
            for number in range(10):
                events = [ch.get(f"full{number}", no_ack=False) for _ in range(20)]
                assert [event.body for event in events] == bodies(1, 20)
                assert ch.get(f"full{number}") is None
                ch.nack(0, multiple=True)
                ch.barrier()
            for queue in ("fleeting", "exclusive"):
                assert missing(self.nodes.channel(node), queue), f"{queue} is there on node {node}"
                assert not ch.routed("x-direct", queue)
            assert self.hash_homes(node) == self.homes, f"node {node} hashes differently"


def serves(nodes, node):
    """Whether a node lets a client in and answers it."""
    with contextlib.suppress(Closed, Deadline, OSError, ApiError):
        if nodes.target.api(node).request("GET", "health", timeout=3)[0] == 200:
            return True
        with Connection(nodes.target.amqp(node), vhost=nodes.vhost, timeout=3) as connection:
            connection.channel().exists("full0")
            return True
    return False


def begin(target, node):
    """Starts a node's process without waiting until it is ready, which one alone never is."""

    def start():
        with contextlib.suppress(AssertionError):  # told by whoever waits for the node
            target.start_process(node)

    threading.Thread(target=start, daemon=True).start()
    eventually(lambda: target.listens(node), 20, f"node {node} listens")


@pytest.mark.timeout(900)
def test_a32_all_start_orders(nodes, target):
    """Stopped in order 1, 2, 3; then started in each of the six orders, the first alone for a while: it serves nobody, and with the second all is back."""
    target.skip_on("rabbitmq", "its nodes wait for the one that stopped last")
    world = World(nodes)
    for order in itertools.permutations(target.all()):
        nodes.forget(*target.all())
        for node in target.all():
            target.stop(node)
        first, second, third = order
        begin(target, first)
        end = time.monotonic() + ALONE_S
        while time.monotonic() < end:
            assert not serves(nodes, first), f"node {first} serves alone"
            time.sleep(0.2)
        begin(target, second)
        for node in (first, second):
            target.wait_ready(node)
        world.is_back([first, second])
        target.start(third)
        world.is_back([third])


@pytest.mark.timeout(600)
def test_a32_power_cut_of_all(nodes, target):
    """All three are killed at once, thrice; each time all is back on all."""
    target.skip_on("rabbitmq", "3.10.8's nodes may not come back from this by themselves")
    world = World(nodes)
    for _ in range(3):
        nodes.restart_all()
        world.is_back(target.all())


@pytest.mark.timeout(600)
def test_a32_one_stays_away(nodes, target):
    """All are killed and two come back, each pair in turn: all is there without the third, and is with it when it comes."""
    target.skip_on("rabbitmq", "3.10.8's nodes may not come back from this by themselves")
    world = World(nodes)
    for away in target.all():
        nodes.forget(*target.all())
        target.kill(*target.all())
        rest = [node for node in target.all() if node != away]
        for node in rest:
            begin(target, node)
        for node in rest:
            target.wait_ready(node)
        world.is_back(rest)
        target.start(away)
        world.is_back([away])


@pytest.mark.timeout(600)
def test_a32_stopped_one_after_the_other(nodes, target):
    """A rolling restart in order, twice: everything durable is there throughout, from the nodes that are up."""
    world = World(nodes)
    for _ in range(2):
        for node in target.all():
            nodes.forget(node)
            target.stop(node)
            rest = [other for other in target.all() if other != node]
            ready(nodes, "full0", 20, rest)
            target.start(node)
        world.is_back(target.all())


def test_a32_transient_exchanges_end_with_the_cluster(nodes):
    """An exchange that is not durable is gone with its bindings when all nodes have been down."""
    ch = nodes.channel(1)
    ch.queue_declare("q1")
    for kind, (key, arguments) in KINDS.items():
        ch.exchange_declare(f"fleeting-{kind}", kind, durable=False)
        ch.queue_bind("q1", f"fleeting-{kind}", key, arguments)
    nodes.restart_all()
    for node in nodes.distinct:
        assert nodes.bindings(nodes.api(node)) == []
        for kind in KINDS:
            assert exchange_missing(nodes.channel(node), f"fleeting-{kind}")
