"""Hostile and broken input: garbage on every port, floods of connections. The node lives on, at the same size."""

import contextlib
import os
import random
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import wire
from amqp import Connection, ConnectionClosed
from targets import HOST, ApiError, eventually

FLOOD = int(os.environ.get("WARREN_FLOOD_CONNECTIONS", "10000"))


pytestmark = pytest.mark.calm("each test watches the process of every node")


@pytest.fixture(autouse=True)
def _lives_on(nodes, target):
    """After each of these tests every node is the same process, serves AMQP and HTTP, and has not grown out of bounds."""
    if target.rabbitmq:
        before = {}
    else:
        before = {node: (target.pid(node), target.rss(node)) for node in target.all()}
    yield
    for node in target.all():
        with Connection(target.amqp(node), vhost=nodes.vhost) as connection:
            assert connection.alive
        assert target.api(node).get("vhosts")
        if before:
            pid, rss = before[node]
            assert target.pid(node) == pid, f"node {node} died and was started again"
            assert target.rss(node) < rss + (200 << 20), f"node {node} grew from {rss >> 20} to {target.rss(node) >> 20} MiB"


def garbage(seed):
    """Octets of several kinds, the same for the same seed."""
    dice = random.Random(seed)
    kind = seed % 6
    if kind == 0:
        return dice.randbytes(dice.randrange(1, 2000))
    if kind == 1:
        return wire.PROTOCOL_HEADER + dice.randbytes(dice.randrange(1, 2000))
    if kind == 2:
        return wire.PROTOCOL_HEADER + struct.pack(">BHI", dice.choice([1, 2, 3, 8]), dice.randrange(65536), dice.randrange(2**32))
    if kind == 3:
        return wire.PROTOCOL_HEADER + wire.frame(1, 0, struct.pack(">HH", 10, 11) + dice.randbytes(dice.randrange(200)))
    if kind == 4:
        return b"GET /" + b"a" * dice.randrange(100_000) + b" HTTP/1.1\r\n"
    return b"\x00" * dice.randrange(1, 5000)


def fling(address, data, patience=0.2):
    """Sends octets to a port, reads what comes for a moment, and drops the socket."""
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=5) as sock:
        sock.sendall(data)
        sock.settimeout(patience)
        while sock.recv(65536):
            pass


def test_garbage_on_the_amqp_port(nodes, target):
    """Two hundred pieces of garbage, before and in the midst of the handshake."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: fling(target.amqp(nodes.number(seed % 3 + 1)), garbage(seed)), range(200)))


def test_garbage_on_an_open_connection(nodes, target):
    """Broken frames on a connection that is open: it ends with an error, others go on."""
    other = nodes.channel(1, confirm=True)
    other.queue_declare("q1")
    for seed in range(100):
        dice = random.Random(seed)
        connection = nodes.connect(seed % 3 + 1)
        ch = connection.channel(1)
        ch.queue_declare("q1")
        good = bytearray(ch.publish_bytes("", "q1", dice.randbytes(50), headers={"a": [1, {"b": "c"}]}))
        for _ in range(dice.randint(1, 5)):
            good[dice.randrange(len(good))] = dice.randrange(256)
        with contextlib.suppress(ConnectionClosed, AssertionError):
            connection.send_raw(bytes(good))
            connection.send_raw(wire.method_frame(1, "basic.qos"))
            connection.pump_for(0.05)
        connection.drop()
    assert other.routed("", "q1", b"still here")


def test_garbage_in_tables_and_properties(nodes):
    """Tables that lie about their lengths, unknown tags, depth without end: an error on the connection, and nothing is queued."""
    ch = nodes.channel(1)
    ch.queue_declare("q1")
    deep = b""
    for _ in range(4000):
        deep = wire.shortstr("d") + b"F" + struct.pack(">I", len(deep)) + deep
        if len(deep) > 60_000:
            break
    tables = [
        struct.pack(">I", 1000) + b"short",
        struct.pack(">I", 0xFFFFFFFF),
        wire.table(wire.shortstr("k") + b"?junk"),
        wire.table(wire.shortstr("k") + b"S" + struct.pack(">I", 5000) + b"x"),
        wire.table(wire.shortstr("k") + b"A" + struct.pack(">I", 5000)),
        wire.table(b"\xff"),
        wire.table(wire.shortstr("k")),
        wire.table(deep),
    ]
    for table in tables:
        for where in ("declare", "client properties"):
            if where == "declare":
                connection = nodes.connect(2)
                channel = connection.channel(1)
                payload = wire.encode_method("queue.declare", queue="q2", durable=True)[:-4] + table
                connection.send_raw(wire.frame(1, channel.number, payload))
            else:
                connection = nodes.raw(2)
                connection.send_raw(wire.PROTOCOL_HEADER)
                connection.wait(0, "connection.start")
                tail = wire.shortstr("PLAIN") + wire.longstr("\0guest\0guest") + wire.shortstr("en_US")
                connection.send_raw(wire.frame(1, 0, struct.pack(">HH", 10, 11) + table + tail))
            try:
                connection.pump_for(4, until=lambda: connection.closed is not None or bool(connection.inbox[1]))
            except ConnectionClosed:
                pass
            if table is not tables[-1]:  # depth alone may be fine
                assert connection.closed or connection.eof, (where, table[:40])
            connection.drop()
    ch.exists("q1")


def test_oversized_frames(nodes):
    """A frame that announces more than frame_max is refused before its payload comes, whatever its type."""
    for kind in (1, 2, 3, 8):
        connection = nodes.connect(3)
        connection.channel(1)
        connection.send_raw(struct.pack(">BHI", kind, 1 if kind != 8 else 0, 0xFFFFFFF0) + b"x" * 100)
        try:
            connection.pump_for(8, until=lambda: connection.closed is not None)
        except ConnectionClosed:
            pass
        assert connection.closed and connection.closed.code in (501, 505), (kind, connection.closed)


def test_announced_giant_bodies_cost_nothing(nodes, target):
    """Headers that announce gigantic bodies take no memory in advance (the fixture looks at it), and may be refused."""
    for number in range(50):
        connection = nodes.connect(number % 3 + 1)
        ch = connection.channel(1)
        connection.send_raw(
            wire.method_frame(ch.number, "basic.publish", routing_key="q1")
            + wire.frame(wire.FRAME_HEADER, ch.number, wire.content_header(2**62 + number))
        )


def test_too_large_a_message(nodes, target):
    """A body above the limit of 16 MiB is 406 on the channel, and the connection goes on."""
    target.skip_on("rabbitmq", "3.10.8 allows 128 MiB")
    connection = nodes.connect(2, timeout=60)
    ch = connection.channel(1)
    ch.queue_declare("q1")
    ch.publish("", "q1", b"x" * ((16 << 20) + 1))
    ch.expect_close(406, "basic.publish")
    again = connection.channel(2)
    again.confirm_select()
    assert again.routed("", "q1", b"x" * (16 << 20))
    assert len(again.get("q1").body) == 16 << 20


def test_garbage_on_the_http_port(nodes, target):
    """Broken requests get 4xx or a closed socket."""
    requests = [
        b"NONSENSE\r\n\r\n",
        b"GET /api/overview HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 10_000 + b"\r\n",
        b"GET /api/queues/%ff%fe/%00 HTTP/1.1\r\nHost: a\r\nAuthorization: Basic !!!\r\n\r\n",
        b"PUT /api/vhosts/x HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n{",
        b"POST /api/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        wire.PROTOCOL_HEADER,
        *[garbage(seed) for seed in range(60)],
    ]
    for number, data in enumerate(requests):
        fling((HOST, target.http_base + number % 3), data, 0.1)
    for path in (("vhosts", "%"), ("queues", "no such vhost"), ("nothing",), ("queues", nodes.vhost, "none")):
        with pytest.raises(ApiError) as error:
            target.api(1).get(*path)
        assert 400 <= error.value.status < 500, (path, error.value)
    with pytest.raises(ApiError) as error:
        target.api(2, password="wrong").get("queues")
    assert error.value.status == 401
    for body in ([], "text", 5, {"durable": "perhaps"}, {"arguments": []}):
        with contextlib.suppress(ApiError):
            target.api(3).put("queues", nodes.vhost, "q1", body=body)


def test_garbage_on_the_quic_port(nodes, target):
    """Datagrams of garbage to the ports between nodes: links stay up, and declares still reach every node."""
    target.skip_on("rabbitmq", "it has no such port")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for seed in range(2000):
            dice = random.Random(seed)
            data = dice.randbytes(dice.randrange(1, 1400))
            if seed % 2:  # a long header with QUIC's version 1
                data = bytes([0xC0 | dice.randrange(64)]) + b"\x00\x00\x00\x01" + data
            sock.sendto(data, (HOST, target.quic_base + seed % 3))
    nodes.channel(1).queue_declare("q1")
    for publisher in nodes.publishers():
        assert publisher.routed("", "q1", b"m")


def test_half_open_connections(nodes, target):
    """Clients that vanish without a word in the midst of things: their exclusive queues go, and what they held comes back."""
    for number in range(30):
        connection = nodes.connect(number % 3 + 1)
        ch = connection.channel(1)
        ch.queue_declare(f"mine{number}", exclusive=True)
        ch.publish("", f"mine{number}", b"m")
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not a goodbye
        data = ch.publish_bytes("", f"mine{number}", b"x" * 5000)
        connection.send_raw(data[: 20 + number * 50])
        connection.drop()
    eventually(lambda: nodes.api(1).get("queues", nodes.vhost) == [], 10, "the exclusive queues are gone")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_connections_opened_and_dropped(nodes, target):
    """Ten thousand connections, some dropped half-way, some with a channel and an exclusive queue; memory stays as it was."""
    count = FLOOD if not target.rabbitmq else FLOOD // 5

    def visit(number):
        node = nodes.number(number % 3 + 1)
        stage = number % 4
        if stage == 0:
            fling(target.amqp(node), wire.PROTOCOL_HEADER, 0.05)
            return
        connection = Connection(target.amqp(node), vhost=nodes.vhost, timeout=30)
        if stage == 1:
            connection.drop()
            return
        ch = connection.channel()
        if stage == 3 and number % 20 == 3:
            ch.queue_declare("", durable=False, exclusive=True)
        if stage == 2:
            connection.close()
        else:
            connection.drop()

    def flood(start, end):
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(visit, range(start, end)))

    flood(0, count // 5)  # warm: allocators and pools have their size
    eventually(lambda: nodes.api(1).get("queues", nodes.vhost) == [], 30)
    warm = {node: target.rss(node) for node in target.all()}
    flood(count // 5, count)
    eventually(lambda: nodes.api(1).get("queues", nodes.vhost) == [], 30, "the exclusive queues are gone")
    time.sleep(1)  # what is freed later has been freed
    for node, rss in warm.items():
        assert target.rss(node) < rss * 1.5 + (30 << 20), f"node {node}: {rss >> 20} MiB when warm, now {target.rss(node) >> 20} MiB"
