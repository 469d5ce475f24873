"""What tests of replicated queues share: a queue whose leader is a given node, where it is led now, and its counts."""

from __future__ import annotations

import itertools
import time
from typing import Any

from amqp import Channel
from targets import eventually

_numbers = itertools.count(1)


def leader(nodes: Any, queue: str, asked: int = 1) -> int:
    """The number of the node that leads a queue, as another node has it; 0 where none is known, as for a moment after a change."""
    listed = nodes.target.api(asked).get("queues", nodes.vhost, queue)["node"]
    return nodes.target.number_of(listed) if listed else 0


def settled_leader(nodes: Any, queue: str, asked: int = 1, calm_s: float = 1.0) -> int:
    """The node that leads a queue and has for a while: leadership goes home when nodes have just been started, and what a test is to see is not that."""
    state = {"leader": 0, "since": 0.0}

    def calm() -> bool:
        now = leader(nodes, queue, asked)
        if now != state["leader"]:
            state.update(leader=now, since=time.monotonic())
        return bool(now) and time.monotonic() - state["since"] >= calm_s

    eventually(calm, 20, f"the leader of {queue} changes no more")
    return state["leader"]


def queue_led_by(nodes: Any, node: int, ask: int | None = None, **options: Any) -> str:
    """Declares queues until one is led by this node; its name."""
    ask = node if ask is None else ask
    ch = nodes.channel(ask)
    for _ in range(200):
        queue = f"led{next(_numbers)}"
        ch.queue_declare(queue, **options)
        if leader(nodes, queue, ask) == node and settled_leader(nodes, queue, ask) == node:
            return queue
        ch.queue_delete(queue)
    raise AssertionError(f"of 200 queues node {node} leads none")


def fill(ch: Channel, queue: str, first: int, last: int, prefix: str = "") -> None:
    """Publishes numbered persistent messages, all confirmed."""
    before = ch.published
    for number in range(first, last + 1):
        ch.publish("", queue, f"{prefix}{number}".encode(), mandatory=True, properties={"delivery_mode": 2})
    outcomes = ch.confirms(range(before + 1, ch.published + 1), timeout=60)
    assert set(outcomes.values()) <= {"ack"}, outcomes


def bodies(first: int, last: int) -> list[bytes]:
    """What `fill` has published."""
    return [b"%d" % number for number in range(first, last + 1)]


def ready(nodes: Any, queue: str, count: int, asked: list[int] | None = None, timeout: float = 10.0) -> None:
    """Waits until every node (or those `asked`) says that a queue has so many ready messages."""
    for node in asked or nodes.distinct:

        def counted() -> bool:
            found = nodes.channel(node).exists(queue).message_count
            assert found == count, f"{queue} has {found} messages instead of {count}, as node {node} says"
            return True

        eventually(counted, timeout, f"node {node} says {queue} has {count} messages")


def led_by(nodes: Any, queue: str, node: int, asked: int | None = None, timeout: float = 15.0) -> None:
    """Waits until a node leads a queue."""
    eventually(lambda: leader(nodes, queue, asked or node) == node, timeout, f"node {node} leads {queue}")
