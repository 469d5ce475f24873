"""All nodes hold the same routing table: random changes from clients at all nodes, with nodes killed and started meanwhile.

What is compared is each node's own digest of its table, at the same applied index, and the lists of the HTTP API; and again after each
node has been killed and started, when a node's table comes from its disk and its peers instead of from the changes themselves. A failing run is repeated
with `WARREN_SEED`; `WARREN_EQUAL_SECONDS` makes it longer.
"""

import contextlib
import itertools
import os
import random
import secrets
import threading
import time

import pytest

from amqp import ChannelClosed, Closed, Connection, Deadline
from helpers import spread_only
from targets import eventually

SECONDS = float(os.environ.get("WARREN_EQUAL_SECONDS", "60"))
SEED = int(os.environ.get("WARREN_SEED", secrets.randbelow(2**32)))
KINDS = ["direct", "fanout", "topic", "headers", "x-consistent-hash"]


class Client(threading.Thread):
    """Declares, binds and deletes at random at one node, for a while; starts anew whenever its node goes away."""

    def __init__(self, nodes, node, seed, end):
        super().__init__(name=f"client at node {node}")
        self.nodes, self.node, self.end = nodes, node, end
        self.dice = random.Random(seed)
        self.done = self.refused = self.lost = 0
        self.error = None
        self.over = threading.Event()

    def run(self):
        try:
            while time.monotonic() < self.end and not self.over.is_set():
                with contextlib.suppress(Closed, Deadline, OSError):
                    self.session()
                self.lost += 1
                time.sleep(0.1)
        except BaseException as error:  # told by the test's own thread
            self.error = error

    def session(self):
        """One connection's worth of changes."""
        connection = Connection(self.nodes.target.amqp(self.node), vhost=self.nodes.vhost, timeout=20)
        try:
            channel = connection.channel()
            while time.monotonic() < self.end and not self.over.is_set():
                try:
                    self.change(channel)
                    self.done += 1
                except ChannelClosed as closed:
                    assert closed.code in (404, 405, 406), closed
                    self.refused += 1
                    channel = connection.channel(channel.number)
        finally:
            connection.drop()

    def change(self, ch):
        """One random change, from a small set of names so that the clients meet."""
        dice = self.dice
        number = dice.randrange(12)
        queue, kind = f"q{number}", dice.choice(KINDS)
        exchange, other = f"x-{kind}-{number % 3}", f"x-{dice.choice(KINDS)}-{dice.randrange(3)}"
        key = str(dice.randint(1, 9)) if kind == "x-consistent-hash" else dice.choice(["", "a", "a.*", "a.#", "*.b", "#"])
        arguments = {"x-match": dice.choice(["all", "any"]), "n": dice.randrange(4)} if kind == "headers" else {}
        action = dice.choices(
            ["queue", "exchange", "bind", "unbind", "e2e", "e2e-off", "queue-off", "exchange-off", "brief"],
            [10, 8, 30, 10, 8, 4, 5, 2, 4],
        )[0]
        if action == "queue":
            ch.queue_declare(queue, durable=number % 2 == 0, auto_delete=number % 5 == 0)
        elif action == "exchange":
            ch.exchange_declare(exchange, kind, durable=number % 2 == 0, auto_delete=number % 4 == 0)
        elif action == "bind":
            ch.queue_bind(queue, exchange, key, arguments)
        elif action == "unbind":
            ch.queue_unbind(queue, exchange, key, arguments)
        elif action == "e2e":
            ch.exchange_bind(other, exchange, key, arguments)
        elif action == "e2e-off":
            ch.exchange_unbind(other, exchange, key, arguments)
        elif action == "queue-off":
            ch.queue_delete(queue)
        elif action == "exchange-off":
            ch.exchange_delete(exchange)
        else:
            name = ch.queue_declare("", durable=False, exclusive=True).queue
            ch.queue_bind(name, exchange, key, arguments)
            if dice.random() < 0.5:
                ch.queue_delete(name)


def tables(nodes, node):
    """What a node's HTTP API lists of the vhost, without what differs by nature (counters)."""
    api = nodes.api(node)
    queues = {(q["name"], q["durable"], q["auto_delete"], q.get("exclusive", False)) for q in api.get("queues", nodes.vhost)}
    exchanges = {(x["name"], x["type"], x["durable"], x["auto_delete"], x["internal"]) for x in api.get("exchanges", nodes.vhost)}
    bindings = {
        (b["source"], b["destination_type"], b["destination"], b["routing_key"], tuple(sorted(b["arguments"].items())))
        for b in api.get("bindings", nodes.vhost)
        if b["source"]
    }
    return queues, exchanges, bindings


def equal(nodes):
    """All nodes tell the same; Warren's digests are equal at an equal applied index."""

    def same():
        if not nodes.target.rabbitmq:
            digests = [nodes.target.digest(node) for node in nodes.distinct]
            assert len({d["applied_index"] for d in digests}) == 1, digests
            assert len({d["digest"] for d in digests}) == 1, digests
        first, *rest = [tables(nodes, node) for node in nodes.distinct]
        for other in rest:
            assert other == first, [a ^ b for a, b in zip(first, other)]
        return True

    eventually(same, 20, "equal nodes")


@spread_only
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_equal_nodes(nodes, target):
    """A minute of random changes from three nodes while nodes are killed and started; then equal tables, after every restart too."""
    print(f"WARREN_SEED={SEED}")
    target.skip_on("rabbitmq", "3.10.8 loses bindings in such restarts, and its nodes may hang")
    dice = random.Random(SEED)
    end = time.monotonic() + SECONDS
    clients = [Client(nodes, node, dice.random(), end) for node in target.all()]
    for client in clients:
        client.start()
    try:
        restarted = 0
        for node in itertools.cycle(dice.sample(target.all(), 3)):
            time.sleep(dice.uniform(2, 6))
            if time.monotonic() > end - 5:
                break
            target.restart(node)
            restarted += 1
    finally:
        for client in clients:
            client.over.set()
            client.join(60)
    assert not [client.error for client in clients if client.error]
    print([(client.name, client.done, client.refused, client.lost) for client in clients], f"{restarted} restarts")
    assert restarted >= 1 and sum(client.done for client in clients) > 200, "too little happened to say anything"
    equal(nodes)
    for node in target.all():
        target.restart(node)
        equal(nodes)
    target.restart(*target.all())
    equal(nodes)


@spread_only
def test_equal_nodes_without_restarts(nodes, target):
    """A few seconds of random changes from three nodes: equal tables as soon as it is over."""
    print(f"WARREN_SEED={SEED}")
    end = time.monotonic() + 5
    clients = [Client(nodes, node, f"{SEED} {node}", end) for node in target.all()]
    for client in clients:
        client.start()
    for client in clients:
        client.join(60)
    assert not [client.error for client in clients if client.error]
    assert sum(client.done for client in clients) > 50
    equal(nodes)
    assert all(tables(nodes, 1)), "nothing was made"
