"""AMQP 0-9-1 on the wire, for the black-box tests: frames, methods, field tables and content properties.

Written from the specification and apart from the broker's own code, so that both can't share a mistake. It is deliberately
permissive: it can write what a broker must refuse. Values in field tables are plain Python values, for which the usual tag is
chosen, or `V(tag, value)` where the test cares about the tag. Decoded tables keep the bytes they were read from (`Table.raw`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE

# One method a line: name, class, method, arguments in order.
_METHODS = """
connection.start 10 10 version_major:octet version_minor:octet server_properties:table mechanisms:longstr locales:longstr
connection.start-ok 10 11 client_properties:table mechanism:shortstr response:longstr locale:shortstr
connection.secure 10 20 challenge:longstr
connection.secure-ok 10 21 response:longstr
connection.tune 10 30 channel_max:short frame_max:long heartbeat:short
connection.tune-ok 10 31 channel_max:short frame_max:long heartbeat:short
connection.open 10 40 virtual_host:shortstr reserved1:shortstr reserved2:bit
connection.open-ok 10 41 reserved1:shortstr
connection.close 10 50 reply_code:short reply_text:shortstr class_id:short method_id:short
connection.close-ok 10 51
connection.blocked 10 60 reason:shortstr
connection.unblocked 10 61
connection.update-secret 10 70 new_secret:longstr reason:shortstr
connection.update-secret-ok 10 71
channel.open 20 10 reserved1:shortstr
channel.open-ok 20 11 reserved1:longstr
channel.flow 20 20 active:bit
channel.flow-ok 20 21 active:bit
channel.close 20 40 reply_code:short reply_text:shortstr class_id:short method_id:short
channel.close-ok 20 41
exchange.declare 40 10 ticket:short exchange:shortstr type:shortstr passive:bit durable:bit auto_delete:bit internal:bit nowait:bit arguments:table
exchange.declare-ok 40 11
exchange.delete 40 20 ticket:short exchange:shortstr if_unused:bit nowait:bit
exchange.delete-ok 40 21
exchange.bind 40 30 ticket:short destination:shortstr source:shortstr routing_key:shortstr nowait:bit arguments:table
exchange.bind-ok 40 31
exchange.unbind 40 40 ticket:short destination:shortstr source:shortstr routing_key:shortstr nowait:bit arguments:table
exchange.unbind-ok 40 51
queue.declare 50 10 ticket:short queue:shortstr passive:bit durable:bit exclusive:bit auto_delete:bit nowait:bit arguments:table
queue.declare-ok 50 11 queue:shortstr message_count:long consumer_count:long
queue.bind 50 20 ticket:short queue:shortstr exchange:shortstr routing_key:shortstr nowait:bit arguments:table
queue.bind-ok 50 21
queue.purge 50 30 ticket:short queue:shortstr nowait:bit
queue.purge-ok 50 31 message_count:long
queue.delete 50 40 ticket:short queue:shortstr if_unused:bit if_empty:bit nowait:bit
queue.delete-ok 50 41 message_count:long
queue.unbind 50 50 ticket:short queue:shortstr exchange:shortstr routing_key:shortstr arguments:table
queue.unbind-ok 50 51
basic.qos 60 10 prefetch_size:long prefetch_count:short global_:bit
basic.qos-ok 60 11
basic.consume 60 20 ticket:short queue:shortstr consumer_tag:shortstr no_local:bit no_ack:bit exclusive:bit nowait:bit arguments:table
basic.consume-ok 60 21 consumer_tag:shortstr
basic.cancel 60 30 consumer_tag:shortstr nowait:bit
basic.cancel-ok 60 31 consumer_tag:shortstr
basic.publish 60 40 ticket:short exchange:shortstr routing_key:shortstr mandatory:bit immediate:bit
basic.return 60 50 reply_code:short reply_text:shortstr exchange:shortstr routing_key:shortstr
basic.deliver 60 60 consumer_tag:shortstr delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr
basic.get 60 70 ticket:short queue:shortstr no_ack:bit
basic.get-ok 60 71 delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr message_count:long
basic.get-empty 60 72 cluster_id:shortstr
basic.ack 60 80 delivery_tag:longlong multiple:bit
basic.reject 60 90 delivery_tag:longlong requeue:bit
basic.recover-async 60 100 requeue:bit
basic.recover 60 110 requeue:bit
basic.recover-ok 60 111
basic.nack 60 120 delivery_tag:longlong multiple:bit requeue:bit
tx.select 90 10
tx.select-ok 90 11
tx.commit 90 20
tx.commit-ok 90 21
tx.rollback 90 30
tx.rollback-ok 90 31
confirm.select 85 10 nowait:bit
confirm.select-ok 85 11
"""


@dataclass(frozen=True)
class MethodSpec:
    """A method's name, its two ids and its arguments as (name, type) pairs."""

    name: str
    class_id: int
    method_id: int
    arguments: tuple[tuple[str, str], ...]


METHODS: dict[str, MethodSpec] = {}
METHODS_BY_ID: dict[tuple[int, int], MethodSpec] = {}
for _line in _METHODS.strip().splitlines():
    _name, _class, _method, *_args = _line.split()
    _spec = MethodSpec(_name, int(_class), int(_method), tuple(tuple(a.split(":")) for a in _args))
    METHODS[_name] = METHODS_BY_ID[_spec.class_id, _spec.method_id] = _spec

WITH_CONTENT = {"basic.publish", "basic.return", "basic.deliver", "basic.get-ok"}


# --- field values ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class V:
    """A field value whose tag is said: V("I", 60000), V("F", [("k", V("t", True))]), V("D", (2, 314))."""

    tag: str
    value: Any


class Table(dict):
    """A decoded field table: plain values by key, the bytes it was read from, and each key's tag."""

    raw: bytes = b""
    tags: dict[str, str] = {}


_INTEGERS = {"b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q", "f": ">f", "d": ">d", "T": ">Q"}


def _bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def shortstr(value: str | bytes) -> bytes:
    """A short string: one octet of length."""
    data = _bytes(value)
    return struct.pack(">B", len(data)) + data


def longstr(value: str | bytes) -> bytes:
    """A long string: four octets of length."""
    data = _bytes(value)
    return struct.pack(">I", len(data)) + data


def _typed(value: Any) -> V:
    """The tag that clients usually choose for a plain Python value."""
    if isinstance(value, V):
        return value
    if value is None:
        return V("V", None)
    if isinstance(value, bool):
        return V("t", value)
    if isinstance(value, int):
        return V("I" if -(2**31) <= value < 2**31 else "l", value)
    if isinstance(value, float):
        return V("d", value)
    if isinstance(value, (str, bytes)):
        return V("S", value)
    if isinstance(value, dict):
        return V("F", value)
    if isinstance(value, (list, tuple)):
        return V("A", value)
    raise TypeError(f"no field-table tag for {value!r}")


def field_value(value: Any) -> bytes:
    """A field value with its tag octet."""
    typed = _typed(value)
    tag, inner = typed.tag, typed.value
    head = tag.encode()
    if tag in _INTEGERS:
        return head + struct.pack(_INTEGERS[tag], inner)
    if tag == "t":
        return head + (b"\x01" if inner else b"\x00")
    if tag == "V":
        return head
    if tag in "Sx":
        return head + longstr(inner)
    if tag == "F":
        return head + table(inner)
    if tag == "A":
        items = b"".join(field_value(item) for item in inner)
        return head + struct.pack(">I", len(items)) + items
    if tag == "D":
        scale, mantissa = inner
        return head + struct.pack(">Bi", scale, mantissa)
    raise ValueError(f"unknown field-table tag {tag!r}")


def table(fields: Any) -> bytes:
    """A field table with its length, from a dict, a list of (key, value) pairs, or ready-made bytes of its inside."""
    if isinstance(fields, Table) and fields.raw:
        fields = fields.raw
    if isinstance(fields, (bytes, bytearray)):
        return struct.pack(">I", len(fields)) + fields
    pairs = fields.items() if isinstance(fields, dict) else (fields or [])
    data = b"".join(shortstr(key) + field_value(value) for key, value in pairs)
    return struct.pack(">I", len(data)) + data


class Reader:
    """Reads primitive values off a byte string."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        """The next `count` octets."""
        if self.at + count > len(self.data):
            raise ValueError(f"{count} octets wanted at {self.at} of {len(self.data)}: {self.data!r}")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> Any:
        """One number in `struct` notation."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def shortstr(self) -> str:
        return _text(self.take(self.number(">B")))

    def longstr(self) -> bytes:
        return self.take(self.number(">I"))

    def value(self) -> tuple[str, Any]:
        """A tagged field value: its tag and its plain Python value."""
        tag = chr(self.number(">B"))
        if tag in _INTEGERS:
            return tag, self.number(_INTEGERS[tag])
        if tag == "t":
            return tag, self.number(">B") != 0
        if tag == "V":
            return tag, None
        if tag == "S":
            data = self.longstr()
            try:
                return tag, data.decode()
            except UnicodeDecodeError:
                return tag, data
        if tag == "x":
            return tag, self.longstr()
        if tag == "F":
            return tag, self.table()
        if tag == "A":
            inner, items = Reader(self.longstr()), []
            while inner.at < len(inner.data):
                items.append(inner.value()[1])
            return tag, items
        if tag == "D":
            return tag, (self.number(">B"), self.number(">i"))
        raise ValueError(f"unknown field-table tag {tag!r} at {self.at} in {self.data!r}")

    def table(self) -> Table:
        result, raw = Table(), self.longstr()
        inner = Reader(raw)
        result.raw, result.tags = raw, {}
        while inner.at < len(raw):
            key = inner.shortstr()
            result.tags[key], result[key] = inner.value()
        return result


# --- methods --------------------------------------------------------------------------------------------------------------------

_ENCODE = {
    "octet": lambda v: struct.pack(">B", v or 0),
    "short": lambda v: struct.pack(">H", v or 0),
    "long": lambda v: struct.pack(">I", v or 0),
    "longlong": lambda v: struct.pack(">Q", v or 0),
    "shortstr": lambda v: shortstr(v or ""),
    "longstr": lambda v: longstr(v or ""),
    "table": lambda v: table(v or {}),
}


def encode_method(name: str, **arguments: Any) -> bytes:
    """A method frame's payload. Arguments left out are zero, empty or false."""
    spec = METHODS[name]
    unknown = set(arguments) - {argument for argument, _ in spec.arguments}
    if unknown:
        raise TypeError(f"{name} has no argument {sorted(unknown)}")
    out, bits, count = [struct.pack(">HH", spec.class_id, spec.method_id)], 0, 0
    for argument, kind in spec.arguments:
        value = arguments.get(argument)
        if kind == "bit":
            bits |= bool(value) << count
            count += 1
            continue
        if count:
            out.append(struct.pack(">B", bits))
            bits = count = 0
        out.append(_ENCODE[kind](value))
    if count:
        out.append(struct.pack(">B", bits))
    return b"".join(out)


def decode_method(payload: bytes) -> tuple[str, dict[str, Any]]:
    """A method's name and arguments from a method frame's payload."""
    reader = Reader(payload)
    spec = METHODS_BY_ID[reader.number(">H"), reader.number(">H")]
    arguments: dict[str, Any] = {}
    bits, left = 0, 0
    for argument, kind in spec.arguments:
        if kind == "bit":
            if not left:
                bits, left = reader.number(">B"), 8
            arguments[argument] = bool(bits & 1)
            bits >>= 1
            left -= 1
            continue
        left = 0
        if kind in ("shortstr", "longstr", "table"):
            arguments[argument] = getattr(reader, kind)()
        else:
            arguments[argument] = reader.number({"octet": ">B", "short": ">H", "long": ">I", "longlong": ">Q"}[kind])
    if reader.at != len(payload):
        raise ValueError(f"{spec.name}: {len(payload) - reader.at} octets left over in {payload!r}")
    return spec.name, arguments


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """A whole frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([FRAME_END])


def method_frame(channel: int, name: str, **arguments: Any) -> bytes:
    """A whole method frame."""
    return frame(FRAME_METHOD, channel, encode_method(name, **arguments))


HEARTBEAT = frame(FRAME_HEARTBEAT, 0, b"")


# --- content --------------------------------------------------------------------------------------------------------------------

PROPERTIES = (
    ("content_type", "shortstr"),
    ("content_encoding", "shortstr"),
    ("headers", "table"),
    ("delivery_mode", "octet"),
    ("priority", "octet"),
    ("correlation_id", "shortstr"),
    ("reply_to", "shortstr"),
    ("expiration", "shortstr"),
    ("message_id", "shortstr"),
    ("timestamp", "longlong"),
    ("type", "shortstr"),
    ("user_id", "shortstr"),
    ("app_id", "shortstr"),
    ("cluster_id", "shortstr"),
)


def encode_properties(properties: dict[str, Any] | bytes | None) -> bytes:
    """Property flags and list; bytes are taken as they are. A property given as None is left out."""
    if isinstance(properties, (bytes, bytearray)):
        return bytes(properties)
    given = {name: value for name, value in (properties or {}).items() if value is not None}
    unknown = set(given) - {name for name, _ in PROPERTIES}
    if unknown:
        raise TypeError(f"no property {sorted(unknown)}")
    flags, out = 0, []
    for index, (name, kind) in enumerate(PROPERTIES):
        if name in given:
            flags |= 1 << (15 - index)
            out.append(_ENCODE[kind](given[name]))
    return struct.pack(">H", flags) + b"".join(out)


def decode_properties(data: bytes) -> dict[str, Any]:
    """Properties that are present, by name. Continued flag words are read, and may name no property that exists."""
    reader, result = Reader(data), {}
    flags = more = reader.number(">H")
    while more & 1:
        more = reader.number(">H")
        if more & ~1:
            raise ValueError(f"unknown properties: {data!r}")
    for index, (name, kind) in enumerate(PROPERTIES):
        if flags & (1 << (15 - index)):
            if kind == "shortstr":
                result[name] = reader.shortstr()
            elif kind == "table":
                result[name] = reader.table()
            else:
                result[name] = reader.number(">B" if kind == "octet" else ">Q")
    if reader.at != len(data):
        raise ValueError(f"properties: {len(data) - reader.at} octets left over in {data!r}")
    return result


def content_header(size: int, properties: dict[str, Any] | bytes | None = None, class_id: int = 60) -> bytes:
    """A content header frame's payload."""
    return struct.pack(">HHQ", class_id, 0, size) + encode_properties(properties)


def content_frames(channel: int, body: bytes, properties: dict[str, Any] | bytes | None, frame_max: int) -> bytes:
    """Header and body frames of one content, bodies cut to `frame_max` (0: not cut)."""
    out = [frame(FRAME_HEADER, channel, content_header(len(body), properties))]
    piece = frame_max - 8 if frame_max else max(len(body), 1)
    for start in range(0, len(body), piece):
        out.append(frame(FRAME_BODY, channel, body[start : start + piece]))
    return b"".join(out)
