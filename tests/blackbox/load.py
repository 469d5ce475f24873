"""Publish and consume load for tests in which nodes come and go, with the accounts of both sides.

A `Producer` publishes numbered messages with confirms and remembers which of them were confirmed; a `Consumer` acks what it gets and remembers
it. Both connect again when their connection is lost, and then say so: what is promised to a client whose connection lives on is more than what
is promised to one whose node died. `Producer.settle` and `accounts` compare the two sides.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

from amqp import Closed, Connection, Deadline
from targets import eventually

PATIENCE_S = 30.0


class Client(threading.Thread):
    """A client of one node that connects again when it has to, until told to stop."""

    def __init__(self, address: Any, queue: str, vhost: str = "/") -> None:
        super().__init__(daemon=True)
        self.address, self.queue, self.vhost = address, queue, vhost
        self.connections = 0
        self.over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.over.is_set():
                try:
                    with Connection(self.address, vhost=self.vhost, timeout=PATIENCE_S) as connection:
                        self.connections += 1
                        self.session(connection)
                except (OSError, Closed) as error:
                    if isinstance(error, Closed) and error.code not in (0, 320):
                        raise
                    self.lost()
                    self.over.wait(0.05)
        except BaseException as error:  # told by the test's own thread
            self.error = error

    def session(self, connection: Connection) -> None:
        """What is done with one connection."""
        raise NotImplementedError

    def lost(self) -> None:
        """The connection went away."""

    def finish(self) -> None:
        """Waits until the client has ended; its error is the caller's."""
        self.over.set()
        self.join(PATIENCE_S + 10)
        assert not self.is_alive(), f"{self.name} does not end"
        if self.error:
            raise self.error


class Producer(Client):
    """Publishes `prefix`0, `prefix`1… to a queue, mandatory and persistent, with at most `window` unconfirmed."""

    def __init__(self, address: Any, queue: str, vhost: str = "/", *, window: int = 50, pause_s: float = 0.0, prefix: str = "", size: int = 0, limit: int | None = None) -> None:
        super().__init__(address, queue, vhost)
        self.window, self.pause_s, self.prefix, self.limit = window, pause_s, prefix, limit
        self.filler = b"." * size
        self.next = 0
        self.confirmed: list[int] = []
        self.nacked: list[int] = []
        self.returned = 0
        self.unknown: list[int] = []  # their connection was lost before an outcome
        self.waiting: dict[int, int] = {}  # sequence numbers with the messages' numbers, in order
        self.last = time.monotonic()
        self.silence = 0.0  # the longest time between two confirms while something waited for one

    def session(self, connection: Connection) -> None:
        ch = connection.channel()
        ch.confirm_select()
        self.last = time.monotonic()
        while not self.over.is_set() or self.waiting:
            while len(self.waiting) < self.window and not self.over.is_set() and (self.limit is None or self.next < self.limit):
                body = f"{self.prefix}{self.next}".encode() + b" " + self.filler
                # Told apart from those that were never sent, even if the sending fails.
                self.waiting[ch.published + 1], self.next = self.next, self.next + 1
                ch.publish("", self.queue, body, mandatory=True, properties={"delivery_mode": 2})
                if self.pause_s:
                    break
            if not self.waiting:
                if self.limit is not None and self.next >= self.limit:
                    return self.over.set()
                continue
            self.take(ch.wait("basic.ack", "basic.nack", "basic.return", timeout=PATIENCE_S))
            if self.pause_s:
                self.over.wait(self.pause_s)

    def take(self, event: Any) -> None:
        if event.name == "basic.return":
            self.returned += 1
            return
        now = time.monotonic()
        self.silence, self.last = max(self.silence, now - self.last), now
        tag = event.delivery_tag
        numbers = [n for n in self.waiting if n <= tag] if event.multiple else [tag]
        for number in numbers:
            (self.confirmed if event.name == "basic.ack" else self.nacked).append(self.waiting.pop(number))

    def lost(self) -> None:
        self.unknown += self.waiting.values()
        self.waiting.clear()


class Consumer(Client):
    """Takes messages in with acks; `got` is what it got, in order, as (number or text, redelivered)."""

    def __init__(self, address: Any, queue: str, vhost: str = "/", *, prefetch: int = 20, no_ack: bool = False) -> None:
        super().__init__(address, queue, vhost)
        self.prefetch, self.no_ack = prefetch, no_ack
        self.got: list[tuple[str, bool]] = []
        self.cancelled = 0

    def session(self, connection: Connection) -> None:
        ch = connection.channel()
        ch.qos(self.prefetch)
        ch.consume(self.queue, no_ack=self.no_ack)
        while not self.over.is_set():
            try:
                event = ch.wait("basic.deliver", "basic.cancel", timeout=0.2)
            except Deadline:
                continue
            if event.name == "basic.cancel":
                self.cancelled += 1
                return
            self.got.append((event.body.split(b" ")[0].decode(), event.redelivered))
            if not self.no_ack:
                ch.ack(event.delivery_tag)


def accounts(producers: list[Producer], consumers: list[Consumer], *, lived: bool = True, flags: bool = False) -> None:
    """Asserts that what was confirmed was consumed: nothing lost and nothing that was never published; and where all connections `lived`, each
    message once, in order for each producer and consumer, and none flagged unless `flags` may be (after a leader died, what it may have delivered is)."""
    got = [message for consumer in consumers for message in consumer.got]
    bodies = Counter(body for body, _ in got)
    for producer in producers:
        mine = {f"{producer.prefix}{n}" for n in producer.confirmed}
        missing = sorted((body for body in mine if not bodies[body]), key=lambda body: int(body[len(producer.prefix) :]))
        assert not missing, f"{len(missing)} confirmed messages of {len(mine)} were lost: {missing[:10]}"
    sent = {f"{producer.prefix}{n}" for producer in producers for n in range(producer.next)}
    assert set(bodies) <= sent, f"never published: {sorted(set(bodies) - sent)[:10]}"
    seen: set[str] = set()
    for consumer in consumers:
        for body, redelivered in consumer.got:
            assert redelivered or body not in seen or len(consumers) > 1, f"{body} came twice and is not flagged"
            seen.add(body)
    if not lived:
        return
    assert all(client.connections == 1 for client in (*producers, *consumers)), [(c.name, c.connections) for c in (*producers, *consumers)]
    twice = [body for body, count in bodies.items() if count > 1]
    assert not twice, f"{len(twice)} messages came twice: {twice[:10]}"
    flagged = [body for body, redelivered in got if redelivered]
    assert flags or not flagged, f"{len(flagged)} messages are flagged as redelivered: {flagged[:10]}"
    for consumer in consumers:
        for producer in producers:
            numbers = [int(body[len(producer.prefix) :]) for body, _ in consumer.got if body.startswith(producer.prefix) and body[len(producer.prefix) :].isdigit()]
            wrong = next(((a, b) for a, b in zip(numbers, numbers[1:]) if a > b), None)
            assert wrong is None, f"not in order: {wrong}"


def drained(producers: list[Producer], consumers: list[Consumer], timeout: float = 30.0) -> None:
    """Ends the producers, waits until all they had confirmed has come to the consumers, and ends those."""
    for producer in producers:
        producer.finish()
    wanted = {f"{producer.prefix}{n}" for producer in producers for n in producer.confirmed}

    def all_there() -> bool:
        assert not any(consumer.error for consumer in consumers), [consumer.error for consumer in consumers]
        missing = wanted - {body for consumer in consumers for body, _ in consumer.got}
        assert not missing, f"{len(missing)} of {len(wanted)} have not come, as {sorted(missing)[:10]}"
        return True

    eventually(all_there, timeout, "all that was confirmed is consumed")
    for consumer in consumers:
        consumer.finish()
