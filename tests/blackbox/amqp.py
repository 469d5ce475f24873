"""A small blocking AMQP 0-9-1 client for the black-box tests: every wait has a deadline, every frame is at the test's disposal.

`Connection` owns a socket and sorts what arrives into one inbox a channel; `Channel` is the convenient side of one channel. Nothing is
read but by a call that waits, so a test can pipeline at will and look at the order of frames afterwards (`Event.seq`). Errors
of the broker are exceptions: `ChannelClosed`, `ConnectionClosed`. A wait that ends without what it wanted is `Deadline`.
"""

from __future__ import annotations

import select
import socket
import time
from collections import defaultdict, deque
from typing import Any, Callable, Iterable

import wire
from wire import V  # noqa: F401  (tests import it from here)

ALL_CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


class Closed(Exception):
    """The broker closed something: code, text and the failing method's ids."""

    def __init__(self, code: int, text: str, class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(f"{code} {text} (class {class_id}, method {method_id})")
        self.code, self.text, self.class_id, self.method_id = code, text, class_id, method_id

    @property
    def method(self) -> str:
        """The failing method's name, or '' where none is given."""
        spec = wire.METHODS_BY_ID.get((self.class_id, self.method_id))
        return spec.name if spec else ""


class ChannelClosed(Closed):
    """The broker sent channel.close."""


class ConnectionClosed(Closed):
    """The broker sent connection.close, or closed the socket (code 0)."""


class Deadline(Exception):
    """What was waited for did not come in time."""


class Event:
    """A method that arrived, with its content where it has one. Arguments are attributes: `event.delivery_tag`."""

    def __init__(self, seq: int, channel: int, name: str, arguments: dict[str, Any]) -> None:
        self.seq, self.channel, self.name = seq, channel, name
        self.arguments = arguments
        self.header_raw = b""
        self.properties: dict[str, Any] = {}
        self.body = b""
        self.body_size = -1
        self.last_seq = seq

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["arguments"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __repr__(self) -> str:
        body = f", body={self.body[:40]!r}" if self.body_size >= 0 else ""
        return f"<{self.seq} ch{self.channel} {self.name} {self.arguments}{body}>"

    @property
    def headers(self) -> dict[str, Any]:
        """The headers table, empty where there is none."""
        return self.properties.get("headers", wire.Table())


class Connection:
    """One AMQP connection. `handshake=False` gives the bare socket, for tests that speak before, or besides, the protocol."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        vhost: str = "/",
        user: str = "guest",
        password: str = "guest",
        channel_max: int | None = None,
        frame_max: int | None = None,
        heartbeat: int = 0,
        properties: dict[str, Any] | list | None = None,
        capabilities: dict[str, bool] | None = None,
        timeout: float = 15.0,
        handshake: bool = True,
    ) -> None:
        self.timeout = timeout
        self.sock = socket.create_connection(address, timeout=timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.eof = False
        self.received = bytearray()
        self.octets_received = 0
        self.frames: list[tuple[int, int, int, str]] = []  # (type, channel, size with frame overhead, method name)
        self.heartbeats: list[float] = []
        self.inbox: dict[int, deque[Event]] = defaultdict(deque)
        self.unfinished: dict[int, Event] = {}
        self.closed: ConnectionClosed | None = None
        self.channel_closed: dict[int, ChannelClosed] = {}
        self.hold_close_ok: set[int] = set()
        self.frame_max = 131072
        self.channel_max = 2047
        self.server_properties: dict[str, Any] = {}
        self.next_channel = 0
        if handshake:
            self._handshake(vhost, user, password, channel_max, frame_max, heartbeat, properties, capabilities)

    def _handshake(self, vhost, user, password, channel_max, frame_max, heartbeat, properties, capabilities) -> None:
        self.send_raw(wire.PROTOCOL_HEADER)
        self.start_ok(user, password, properties, capabilities)
        tune = self.wait(0, "connection.tune")
        self.channel_max = tune.channel_max if channel_max is None else channel_max
        self.frame_max = tune.frame_max if frame_max is None else frame_max
        self.send(0, "connection.tune-ok", channel_max=self.channel_max, frame_max=self.frame_max, heartbeat=heartbeat)
        self.send(0, "connection.open", virtual_host=vhost)
        self.wait(0, "connection.open-ok")

    def start_ok(self, user="guest", password="guest", properties=None, capabilities=None) -> Event:
        """Waits for connection.start and answers it with SASL PLAIN."""
        start = self.wait(0, "connection.start")
        self.server_properties = start.server_properties
        if properties is None:
            wanted = ALL_CAPABILITIES if capabilities is None else capabilities
            properties = {"product": "black-box tests", "capabilities": wanted}
        self.send(
            0,
            "connection.start-ok",
            client_properties=properties,
            mechanism="PLAIN",
            response=f"\0{user}\0{password}",
            locale="en_US",
        )
        return start

    # --- sending ---

    def send_raw(self, data: bytes) -> None:
        """Sends octets as they are, taking in what arrives meanwhile so that neither side waits for the other for ever."""
        view, deadline = memoryview(data), time.monotonic() + self.timeout
        while view:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Deadline(f"{len(view)} of {len(data)} octets could not be sent in {self.timeout} s")
            readable, writable, _ = select.select([] if self.eof else [self.sock], [self.sock], [], left)
            if readable:
                self._receive()
            if writable:
                try:
                    view = view[self.sock.send(view) :]
                except BlockingIOError:
                    continue
                except OSError as error:
                    self._drain_after_error()
                    raise self.closed or ConnectionClosed(0, f"socket: {error}") from error

    def _drain_after_error(self) -> None:
        """After a failed send: reads what the broker said before it closed the socket."""
        while not self.eof:
            readable, _, _ = select.select([self.sock], [], [], 1.0)
            if not readable:
                break
            self._receive()
        try:
            while self._dispatch_one():
                pass
        except (Closed, ValueError):
            pass

    def send(self, channel: int, method: str, **arguments: Any) -> None:
        """Sends one method frame."""
        self.send_raw(wire.method_frame(channel, method, **arguments))

    # --- receiving ---

    def _receive(self) -> None:
        try:
            data = self.sock.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.eof = True
        self.octets_received += len(data)
        self.received += data

    def fill(self, deadline: float) -> bool:
        """Waits for octets until the deadline. False: none came. Raises when the socket is closed."""
        if self.eof:
            raise self.closed or ConnectionClosed(0, "the socket was closed")
        readable, _, _ = select.select([self.sock], [], [], max(0.0, deadline - time.monotonic()))
        if readable:
            self._receive()
        return bool(readable)

    def read_octets(self, count: int, timeout: float | None = None) -> bytes:
        """The next `count` raw octets, fewer where the socket closes first."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while len(self.received) < count and not self.eof:
            if not self.fill(deadline) and time.monotonic() >= deadline:
                raise Deadline(f"{count} octets wanted, {len(self.received)} came")
        data = bytes(self.received[:count])
        del self.received[:count]
        return data

    def wait_eof(self, timeout: float) -> float:
        """Waits until the broker closes the socket (reading what comes); seconds that took."""
        started = time.monotonic()
        while not self.eof:
            if not self.fill(started + timeout) and time.monotonic() >= started + timeout:
                raise Deadline(f"the socket is still open after {timeout} s")
        return time.monotonic() - started

    def _dispatch_one(self) -> bool:
        """Takes one whole frame out of the buffer into its inbox. False: there is none."""
        if len(self.received) < 7:
            return False
        if self.received[:4] == b"AMQP":
            raise ConnectionClosed(0, f"the broker answered with its protocol header {bytes(self.received[:8])!r}")
        kind, channel = self.received[0], int.from_bytes(self.received[1:3], "big")
        size = int.from_bytes(self.received[3:7], "big")
        if len(self.received) < size + 8:
            return False
        payload, end = bytes(self.received[7 : 7 + size]), self.received[7 + size]
        del self.received[: size + 8]
        assert end == wire.FRAME_END, f"frame type {kind} on channel {channel} ends with {end:#x}"
        seq, name = len(self.frames), ""
        if kind == wire.FRAME_METHOD:
            name, arguments = wire.decode_method(payload)
            assert channel not in self.unfinished, f"{name} interrupts the content of {self.unfinished[channel]!r}"
            self._on_method(Event(seq, channel, name, arguments))
        elif kind == wire.FRAME_HEADER:
            self._on_header(channel, payload, seq)
        elif kind == wire.FRAME_BODY:
            event = self.unfinished[channel]
            assert payload, f"an empty body frame for {event!r}"
            event.body += payload
            self._finish(event, seq)
        elif kind == wire.FRAME_HEARTBEAT:
            assert channel == 0 and size == 0, f"a heartbeat of {size} octets on channel {channel}"
            self.heartbeats.append(time.monotonic())
        else:
            raise AssertionError(f"frame type {kind}")
        self.frames.append((kind, channel, size + 8, name))
        return True

    def _on_method(self, event: Event) -> None:
        if event.name in wire.WITH_CONTENT:
            self.unfinished[event.channel] = event
            return
        if event.name == "connection.close":
            self.closed = ConnectionClosed(event.reply_code, event.reply_text, event.class_id, event.method_id)
            try:
                self.sock.send(wire.method_frame(0, "connection.close-ok"))
            except OSError:
                pass
            return
        if event.name == "channel.close":
            closed = ChannelClosed(event.reply_code, event.reply_text, event.class_id, event.method_id)
            assert event.channel not in self.channel_closed, f"a second channel.close on channel {event.channel}: {event!r}"
            self.channel_closed[event.channel] = closed
            if event.channel not in self.hold_close_ok:
                self.sock.send(wire.method_frame(event.channel, "channel.close-ok"))
            return
        self.inbox[event.channel].append(event)

    def _on_header(self, channel: int, payload: bytes, seq: int) -> None:
        event = self.unfinished[channel]
        reader = wire.Reader(payload)
        assert reader.number(">H") == 60, "content of another class than basic"
        reader.number(">H")
        event.body_size = reader.number(">Q")
        event.header_raw = payload[12:]
        event.properties = wire.decode_properties(event.header_raw)
        self._finish(event, seq)

    def _finish(self, event: Event, seq: int) -> None:
        assert len(event.body) <= event.body_size, f"more body than announced: {event!r}"
        if len(event.body) == event.body_size:
            event.last_seq = seq
            del self.unfinished[event.channel]
            self.inbox[event.channel].append(event)

    def pump(self, deadline: float) -> bool:
        """Takes in one frame, waiting until the deadline. False: none came."""
        while not self._dispatch_one():
            if self.eof:
                raise self.closed or ConnectionClosed(0, "the socket was closed")
            if not self.fill(deadline) and time.monotonic() >= deadline:
                return False
        return True

    def pump_for(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Takes in whatever comes for a while, or until `until` holds."""
        deadline = time.monotonic() + seconds
        while not until() and self.pump(deadline):
            pass

    def wait(self, channel: int, *names: str, timeout: float | None = None, where: Callable[[Event], bool] = lambda _: True) -> Event:
        """The next event of these names on a channel (any event where none is named), taken out of the inbox."""
        seconds = self.timeout if timeout is None else timeout
        deadline, inbox, looked = time.monotonic() + seconds, self.inbox[channel], 0
        while True:
            for index in range(looked, len(inbox)):
                if (not names or inbox[index].name in names) and where(inbox[index]):
                    event = inbox[index]
                    del inbox[index]
                    return event
            looked = len(inbox)
            if channel in self.channel_closed:
                raise self.channel_closed[channel]
            if self.closed:
                raise self.closed
            if not self.pump(deadline):
                raise Deadline(f"no {' / '.join(names) or 'event'} on channel {channel} within {seconds} s; there is {list(inbox)[:5]}")

    def expect_close(self, code: int, timeout: float | None = None, method: str | None = None) -> ConnectionClosed:
        """Waits for connection.close with this code, and for the socket's end after it."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while not self.closed:
            if not self.pump(deadline):
                raise Deadline(f"no connection.close {code}")
        assert self.closed.code == code, self.closed
        if method is not None:
            assert self.closed.method == method, self.closed
        self.wait_eof(max(1.0, deadline - time.monotonic()))
        return self.closed

    # --- channels and closing ---

    def channel(self, number: int | None = None) -> "Channel":
        """Opens a channel, the next unused number where none is given."""
        if number is None:
            number = self.next_channel + 1
        self.next_channel = max(self.next_channel, number)
        self.channel_closed.pop(number, None)
        self.inbox.pop(number, None)
        self.send(number, "channel.open")
        self.wait(number, "channel.open-ok")
        return Channel(self, number)

    def close(self) -> None:
        """Closes politely: connection.close, its answer, the socket."""
        try:
            if not self.closed and not self.eof:
                self.send(0, "connection.close", reply_code=200, reply_text="bye")
                self.wait(0, "connection.close-ok", timeout=5)
        except (Closed, Deadline, OSError):
            pass
        finally:
            self.drop()

    def drop(self) -> None:
        """Closes the socket without a word."""
        self.eof = True
        self.sock.close()

    @property
    def alive(self) -> bool:
        """Whether the connection still answers: a channel can be opened."""
        try:
            self.channel()
        except (Closed, Deadline, OSError):
            return False
        return True

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Channel:
    """One channel: calls that wait for their answer, publishing, and what is received."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection, self.number = connection, number
        self.published = 0

    # --- general ---

    def send(self, method: str, **arguments: Any) -> None:
        """Sends a method and waits for nothing."""
        self.connection.send(self.number, method, **arguments)

    def wait(self, *names: str, timeout: float | None = None, where: Callable[[Event], bool] = lambda _: True) -> Event:
        """The next event of these names on this channel."""
        return self.connection.wait(self.number, *names, timeout=timeout, where=where)

    def call(self, method: str, timeout: float | None = None, **arguments: Any) -> Event:
        """Sends a method and waits for its answer."""
        self.send(method, **arguments)
        answers = ("basic.get-ok", "basic.get-empty") if method == "basic.get" else (method + "-ok",)
        return self.wait(*answers, timeout=timeout)

    def expect_close(self, code: int, method: str | None = None, timeout: float | None = None) -> ChannelClosed:
        """Waits for channel.close with this code (and failing method)."""
        deadline = time.monotonic() + (self.connection.timeout if timeout is None else timeout)
        while self.number not in self.connection.channel_closed:
            if self.connection.closed:
                raise self.connection.closed
            if not self.connection.pump(deadline):
                raise Deadline(f"no channel.close {code} on channel {self.number}")
        closed = self.connection.channel_closed[self.number]
        assert closed.code == code, closed
        if method is not None:
            assert closed.method == method, closed
        return closed

    def close(self) -> None:
        """Closes the channel and waits for the answer."""
        self.call("channel.close", reply_code=200)

    def barrier(self) -> None:
        """A round trip on this channel: whatever the broker's session did for it before has arrived."""
        self.call("basic.qos")

    # --- topology ---

    def queue_declare(self, queue="", *, durable=True, exclusive=False, auto_delete=False, passive=False, arguments=None) -> Event:
        return self.call(
            "queue.declare",
            queue=queue,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            passive=passive,
            arguments=arguments,
        )

    def queue_bind(self, queue, exchange, key="", arguments=None) -> Event:
        return self.call("queue.bind", queue=queue, exchange=exchange, routing_key=key, arguments=arguments)

    def queue_unbind(self, queue, exchange, key="", arguments=None) -> Event:
        return self.call("queue.unbind", queue=queue, exchange=exchange, routing_key=key, arguments=arguments)

    def queue_delete(self, queue, *, if_unused=False, if_empty=False) -> Event:
        return self.call("queue.delete", queue=queue, if_unused=if_unused, if_empty=if_empty)

    def queue_purge(self, queue) -> Event:
        return self.call("queue.purge", queue=queue)

    def exchange_declare(
        self, exchange, type="direct", *, durable=True, auto_delete=False, internal=False, passive=False, arguments=None
    ) -> Event:
        return self.call(
            "exchange.declare",
            exchange=exchange,
            type=type,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            passive=passive,
            arguments=arguments,
        )

    def exchange_delete(self, exchange, *, if_unused=False) -> Event:
        return self.call("exchange.delete", exchange=exchange, if_unused=if_unused)

    def exchange_bind(self, destination, source, key="", arguments=None) -> Event:
        return self.call("exchange.bind", destination=destination, source=source, routing_key=key, arguments=arguments)

    def exchange_unbind(self, destination, source, key="", arguments=None) -> Event:
        return self.call("exchange.unbind", destination=destination, source=source, routing_key=key, arguments=arguments)

    def exists(self, queue: str) -> Event:
        """A passive declare: the queue's counts, or ChannelClosed 404."""
        return self.call("queue.declare", queue=queue, passive=True)

    # --- messages ---

    def confirm_select(self) -> None:
        self.call("confirm.select")
        self.published = 0

    def publish_bytes(self, exchange, key, body=b"", *, mandatory=False, immediate=False, properties=None, headers=None) -> bytes:
        """The frames of a publish."""
        if headers is not None:
            properties = {**(properties or {}), "headers": headers}
        return wire.method_frame(
            self.number, "basic.publish", exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate
        ) + wire.content_frames(self.number, body, properties, self.connection.frame_max)

    def publish(self, exchange, key, body=b"", **options: Any) -> int:
        """Publishes and waits for nothing; the publish's number since confirm.select."""
        self.connection.send_raw(self.publish_bytes(exchange, key, body, **options))
        self.published += 1
        return self.published

    def confirms(self, numbers: Iterable[int], timeout: float | None = None) -> dict[int, str]:
        """Waits until each number is covered by ack or nack; its outcome by number. Each must be covered once."""
        wanted, outcome = set(numbers), {}
        if not wanted:
            return outcome
        lowest = min(wanted)
        deadline = time.monotonic() + (self.connection.timeout if timeout is None else timeout)
        while len(outcome) < len(wanted):
            event = self.wait("basic.ack", "basic.nack", timeout=max(0.001, deadline - time.monotonic()))
            for number in range(lowest if event.multiple else event.delivery_tag, event.delivery_tag + 1):
                if number in wanted and number not in outcome:
                    outcome[number] = event.name[6:]
                elif not event.multiple:
                    raise AssertionError(f"{number} is confirmed twice or was never published: {event!r}")
        return outcome

    def publish_confirmed(self, exchange, key, body=b"", timeout: float | None = None, **options: Any) -> "Outcome":
        """Publishes mandatory (unless told otherwise) in confirm mode and waits for the outcome."""
        options.setdefault("mandatory", True)
        number = self.publish(exchange, key, body, **options)
        outcome = self.confirms([number], timeout)[number]
        returned = [event for event in self.connection.inbox[self.number] if event.name == "basic.return"]
        for event in returned:
            self.connection.inbox[self.number].remove(event)
        return Outcome(outcome, returned)

    def routed(self, exchange, key, body=b"", **options: Any) -> bool:
        """A mandatory, confirmed publish: True for an ack without a return, False for exactly one return and an ack."""
        result = self.publish_confirmed(exchange, key, body, **options)
        assert result.outcome == "ack", f"publish to {exchange!r} {key!r}: {result.outcome}"
        assert len(result.returned) <= 1, result.returned
        for event in result.returned:
            assert (event.reply_code, event.exchange, event.routing_key, event.body) == (312, exchange, key, body), event
        return not result.returned

    def get(self, queue, *, no_ack=True) -> Event | None:
        """basic.get: the message, or None."""
        event = self.call("basic.get", queue=queue, no_ack=no_ack)
        return event if event.name == "basic.get-ok" else None

    def drain(self, queue) -> list[Event]:
        """All ready messages of a queue, taken out with basic.get."""
        events = []
        while (event := self.get(queue)) is not None:
            events.append(event)
        return events

    def bodies(self, queue) -> list[bytes]:
        """The bodies of all ready messages of a queue, taken out."""
        return [event.body for event in self.drain(queue)]

    def consume(self, queue, tag="", *, no_ack=False, exclusive=False, arguments=None) -> str:
        """Starts a consumer; its tag."""
        return self.call(
            "basic.consume", queue=queue, consumer_tag=tag, no_ack=no_ack, exclusive=exclusive, arguments=arguments
        ).consumer_tag

    def cancel(self, tag: str) -> Event:
        return self.call("basic.cancel", consumer_tag=tag)

    def qos(self, count: int, global_: bool = False) -> Event:
        return self.call("basic.qos", prefetch_count=count, global_=global_)

    def deliveries(self, count: int, timeout: float | None = None, tag: str | None = None) -> list[Event]:
        """The next `count` deliveries (of one consumer)."""
        wanted = (lambda _: True) if tag is None else (lambda event: event.consumer_tag == tag)
        return [self.wait("basic.deliver", timeout=timeout, where=wanted) for _ in range(count)]

    def quiet(self, seconds: float = 0.4, *names: str) -> list[Event]:
        """What arrived on this channel after a while of listening and was not waited for (of these names), left in the inbox."""
        self.connection.pump_for(seconds)
        inbox = self.connection.inbox[self.number]
        return [event for event in inbox if not names or event.name in names]

    def ack(self, tag: int, multiple: bool = False) -> None:
        self.send("basic.ack", delivery_tag=tag, multiple=multiple)

    def nack(self, tag: int, multiple: bool = False, requeue: bool = True) -> None:
        self.send("basic.nack", delivery_tag=tag, multiple=multiple, requeue=requeue)

    def reject(self, tag: int, requeue: bool = True) -> None:
        self.send("basic.reject", delivery_tag=tag, requeue=requeue)


class Outcome:
    """What became of a confirmed publish: "ack" or "nack", and the returns that came before."""

    def __init__(self, outcome: str, returned: list[Event]) -> None:
        self.outcome, self.returned = outcome, returned

    def __repr__(self) -> str:
        return f"{self.outcome}, returned {self.returned}"


def refused(connection: Connection, code: int, method: str, **arguments: Any) -> ChannelClosed:
    """Does a method on a fresh channel, which must be refused with channel.close `code`, naming the method; the connection lives."""
    channel = connection.channel()
    channel.send(method, **arguments)
    closed = channel.expect_close(code, method)
    assert connection.alive, f"{method} closed the connection"
    return closed
