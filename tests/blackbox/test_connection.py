"""Opening and keeping a connection: handshake, virtual hosts, limits agreed in tune, heartbeats."""

import contextlib
import os
import select
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import wire
from amqp import Closed, Connection, ConnectionClosed, Deadline
from helpers import missing
from own import own_cluster
from targets import eventually

SILENCE_S = float(os.environ.get("WARREN_A22_SILENCE_S", "125"))  # the scenario says 180
SILENT = "3.10.8 says no error before the connection is open but closes the socket after three seconds"

# --- A25: refusals ----------------------------------------------------------------------------------------------------------------


def refused_vhost(nodes, vhost, node=1, user="guest", password="guest"):
    """connection.open of this vhost is 530, naming connection.open."""
    connection = nodes.raw(node)
    connection.send_raw(wire.PROTOCOL_HEADER)
    connection.start_ok(user, password)
    connection.wait(0, "connection.tune")
    connection.send(0, "connection.tune-ok", channel_max=0x7FF, frame_max=131072, heartbeat=0)
    connection.send(0, "connection.open", virtual_host=vhost)
    closed = connection.expect_close(530, method="connection.open")
    assert (closed.class_id, closed.method_id) == (10, 40)
    return closed


def test_a25_missing_and_forbidden_vhosts(nodes, names):
    """A vhost that is missing, or that the user may not enter, is 530 on connection.open; names are taken literally."""
    missing = names("no such")
    closed = refused_vhost(nodes, missing)
    assert closed.text == f"NOT_ALLOWED - vhost {missing} not found", closed
    for vhost in ("", "//", "%2F", "%2f"):
        refused_vhost(nodes, vhost, node=2)
    with nodes.connect(3, vhost="/") as connection:
        assert connection.alive

    user = names("user")
    nodes.api().put("users", user, body={"password": "secret", "tags": ""})
    try:
        closed = refused_vhost(nodes, nodes.vhost, node=2, user=user, password="secret")
        assert user in closed.text and nodes.vhost in closed.text, closed
        nodes.api().put("permissions", nodes.vhost, user, body={"configure": "^$", "write": ".*", "read": ".*"})
        with nodes.connect(3, user=user, password="secret") as connection:
            ch = connection.channel()
            ch.send("queue.declare", queue="q1")
            closed = ch.expect_close(403, "queue.declare")
            assert closed.text.startswith(f"ACCESS_REFUSED - access to queue 'q1' in vhost '{nodes.vhost}' refused for user '{user}'"), closed
    finally:
        nodes.api().delete("users", user)


@pytest.mark.parametrize("stem", ["a/b", "50%", "%2F", "sp ace", "żółw", "a.b#c?d"])
def test_a25_vhost_names_are_literal(nodes, names, stem):
    """A vhost's name may hold any characters, none of which means anything."""
    vhost = f"{names('v')}{stem}"
    nodes.add_vhost(vhost)
    with nodes.connect(2, vhost=vhost) as connection:
        connection.channel().queue_declare("q1")
    with nodes.connect(3, vhost=vhost) as connection:
        assert connection.channel().exists("q1").queue == "q1"
    assert [queue["name"] for queue in nodes.api(1).get("queues", vhost)] == ["q1"]


def test_a25_failed_login(nodes):
    """A wrong password is 403 connection.close for a client that announced authentication_failure_close, else a closed socket."""
    with pytest.raises(ConnectionClosed) as error:
        nodes.connect(1, password="wrong")
    assert error.value.code == 403 and error.value.text.startswith("ACCESS_REFUSED - Login was refused"), error.value
    with pytest.raises(ConnectionClosed) as error:
        nodes.connect(2, user="nobody", capabilities={})
    assert error.value.code == 0, error.value


def test_a25_unknown_mechanism(nodes, target):
    """An unknown SASL mechanism ends the connection."""
    connection = nodes.raw(2)
    connection.send_raw(wire.PROTOCOL_HEADER)
    start = connection.wait(0, "connection.start")
    assert b"PLAIN" in start.mechanisms.split() and b"AMQPLAIN" in start.mechanisms.split()
    assert (start.version_major, start.version_minor) == (0, 9) and b"en_US" in start.locales.split()
    connection.send(0, "connection.start-ok", mechanism="NONSENSE", locale="en_US")
    with target.differs("rabbitmq", SILENT):
        connection.expect_close(503)


LATER = {"consumer_priorities", "direct_reply_to"}  # not announced before they work


def test_server_properties(nodes, target):
    """The server announces what clients look for before they use it, and nothing that it does not have."""
    properties = nodes.connect(3).server_properties
    capabilities = properties["capabilities"]
    for name in (
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ):
        assert name in capabilities or (name in LATER and not target.rabbitmq), name
        assert capabilities.get(name, True) is True, name
    for name in ("product", "version", "platform", "cluster_name"):
        assert properties[name], name


@pytest.mark.parametrize(
    "greeting",
    [b"AMQP\x00\x01\x00\x00", b"AMQP\x01\x01\x08\x00", b"AMQP\x02\x01\x00\x00", b"AMQP\x00\x00\x09\x02", b"AMQPjunk", b"GET / HT"],
    ids=["1.0", "0-8", "TLS of 1.0", "0-9-2", "junk", "HTTP"],
)
def test_a25_wrong_protocol_header(nodes, target, greeting):
    """Anything but 0-9-1's header is answered with the server's own header, and the socket is closed."""
    if greeting[6:] == b"\x08\x00":
        target.skip_on("rabbitmq", "3.10.8 still speaks 0-8")
    connection = nodes.raw(2)
    connection.send_raw(greeting + (b"TP/1.1\r\nHost: localhost\r\n\r\n" if greeting.startswith(b"GET") else b""))
    assert connection.read_octets(9, timeout=5) == wire.PROTOCOL_HEADER
    connection.wait_eof(5)


def test_a25_tls_hello_to_the_plain_port(nodes):
    """A TLS client hello is no AMQP: the header comes back and the socket is closed."""
    hello = bytes.fromhex("160301003a010000360303") + bytes(32) + bytes.fromhex("0000021301010000") + bytes(9)
    connection = nodes.raw(1)
    connection.send_raw(hello)
    assert connection.read_octets(9, timeout=5) == wire.PROTOCOL_HEADER
    connection.wait_eof(5)


def test_a25_plain_bytes_to_the_tls_port(nodes):
    """Plain AMQP on the TLS port gets an alert or a closed socket within a second."""
    port = os.environ.get("WARREN_TLS_PORT")
    if not port:
        pytest.skip("WARREN_TLS_PORT names no TLS listener")
    connection = Connection(("127.0.0.1", int(port)), handshake=False)
    connection.send_raw(wire.PROTOCOL_HEADER)
    octets = connection.read_octets(9, timeout=1)
    assert octets == b"" or octets[0] == 21, octets
    connection.drop()


def test_a25_methods_out_of_order(nodes):
    """connection.open before tune-ok, or channel.open before connection.open, ends the connection."""
    for step in ("connection.open", "channel.open", "basic.publish"):
        connection = nodes.raw(3)
        connection.send_raw(wire.PROTOCOL_HEADER)
        connection.start_ok()
        connection.wait(0, "connection.tune")
        if step == "channel.open":
            connection.send(1, step)
        else:
            connection.send(0, step)
        with contextlib.suppress(ConnectionClosed):
            connection.pump_for(5, until=lambda: connection.closed is not None)
        assert connection.closed or connection.eof, step


@pytest.mark.slow
def test_a25_handshake_timeout(nodes, target):
    """Sockets that stop half-way through the handshake hinder nobody and are closed after the handshake timeout of ten seconds."""
    started = time.monotonic()
    idle = []
    for number in range(200):
        sock = socket.create_connection(target.amqp(nodes.number(number % 3 + 1)), timeout=5)
        sock.sendall((b"", b"AMQ", wire.PROTOCOL_HEADER)[number % 3])
        idle.append(sock)
    for node in (1, 2, 3):
        with nodes.connect(node) as connection:
            assert connection.alive
    left, closed_at = set(idle), []
    while left and time.monotonic() - started < 20:
        readable, _, _ = select.select(list(left), [], [], 1)
        for sock in readable:
            try:
                data = sock.recv(65536)
            except OSError:
                data = b""
            if not data:
                left.discard(sock)
                closed_at.append(time.monotonic() - started)
    assert not left, f"{len(left)} of 200 are still open after 20 s"
    assert min(closed_at) > 5, "closed long before the handshake timeout"
    for sock in idle:
        sock.close()
    for node in (1, 2, 3):
        with nodes.connect(node) as connection:
            assert connection.alive


# --- A26: tune-ok -----------------------------------------------------------------------------------------------------------------


def tuned(nodes, node, **values):
    """A connection that has answered tune with these values and asked for its vhost; the server's tune."""
    connection = nodes.raw(node)
    connection.send_raw(wire.PROTOCOL_HEADER)
    connection.start_ok()
    tune = connection.wait(0, "connection.tune")
    answer = {"channel_max": tune.channel_max, "frame_max": tune.frame_max, "heartbeat": 0, **values}
    connection.send(0, "connection.tune-ok", **answer)
    connection.send(0, "connection.open", virtual_host=nodes.vhost)
    connection.frame_max = answer["frame_max"] or 131072
    return connection, tune


@pytest.mark.parametrize(
    "field, value, limit",
    [
        ("channel_max", 0, 2047),
        ("channel_max", 2048, 2047),
        ("channel_max", 65535, 2047),
        ("frame_max", 0, 131072),
        ("frame_max", 131073, 131072),
        ("frame_max", 100, 4096),
    ],
)
def test_a26_values_beyond_the_limits(nodes, target, field, value, limit):
    """A tune-ok beyond the server's limits is 530, naming the field, the value and the limit; 0 means no limit and is beyond."""
    connection, tune = tuned(nodes, 2, **{field: value})
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131072, 60)
    with target.differs("rabbitmq", SILENT):
        closed = connection.expect_close(530)
        for word in (field, str(value), str(limit)):
            assert word in closed.text, closed


def test_a26_channel_max_one(nodes):
    """With channel_max 1 there is one channel; another number ends the connection."""
    connection, _ = tuned(nodes, 1, channel_max=1)
    connection.wait(0, "connection.open-ok")
    ch = connection.channel(1)
    ch.barrier()
    connection.send(2, "channel.open")
    connection.pump_for(5, until=lambda: connection.closed is not None)
    assert connection.closed and connection.closed.code in (504, 530), connection.closed


def test_a26_highest_channel(nodes, target):
    """Channel 2047 can be used, 2048 ends the connection."""
    connection = nodes.connect(2)
    connection.channel(2047).barrier()
    target.skip_on("rabbitmq", "3.10.8 counts channels and does not look at their numbers")
    connection.send(2048, "channel.open")
    connection.pump_for(5, until=lambda: connection.closed is not None)
    assert connection.closed and connection.closed.code in (504, 530), connection.closed


@pytest.mark.parametrize("frame_max", [4096, 131072])
def test_a26_frame_max_binds_both(nodes, frame_max):
    """The agreed frame_max is kept by the server, and a larger frame from the client is 501 before its payload has come."""
    connection, _ = tuned(nodes, 2, frame_max=frame_max)
    connection.wait(0, "connection.open-ok")
    ch = connection.channel()
    ch.queue_declare("q1")
    ch.confirm_select()
    body = os.urandom(300_000)
    assert ch.routed("", "q1", body)
    assert ch.get("q1").body == body
    assert max(size for _, _, size, _ in connection.frames) == frame_max
    connection.send_raw(
        wire.method_frame(ch.number, "basic.publish", routing_key="q1")
        + wire.frame(wire.FRAME_HEADER, ch.number, wire.content_header(1_000_000))
        + wire.frame(wire.FRAME_BODY, ch.number, b"x" * (frame_max + 100))[:50]
    )
    connection.expect_close(501)


# --- A22: heartbeats --------------------------------------------------------------------------------------------------------------


def beat(connection, seconds, interval=0.9):
    """Keeps a connection's heartbeats going for a while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.send_raw(wire.HEARTBEAT)
        connection.pump_for(min(interval, max(0.0, end - time.monotonic())))


def silent_without_heartbeats(nodes, seconds):
    """Heartbeat 0: neither side sends any, and silence is fine."""
    connection = nodes.connect(1, heartbeat=0)
    connection.pump_for(seconds)
    assert connection.heartbeats == []
    assert connection.alive


def silent_with_heartbeats(nodes, seconds):
    """Heartbeat 2: a client that says nothing is dropped after two to three intervals, and what it held goes back."""
    connection = nodes.connect(2, heartbeat=2)
    ch = connection.channel()
    ch.queue_declare("held")
    ch.confirm_select()
    assert ch.routed("", "held", b"m")
    assert ch.get("held", no_ack=False).body == b"m"
    took = connection.wait_eof(seconds)
    assert 3 <= took <= 10, took
    with Connection(nodes.target.amqp(nodes.number(3)), vhost=nodes.vhost) as other:
        ch = other.channel()
        event = eventually(lambda: ch.get("held"), 5)
        assert (event.body, event.redelivered) == (b"m", True)


def busy_publisher(nodes, seconds):
    """Heartbeat 2: publishes alone keep the connection alive."""
    connection = nodes.connect(3, heartbeat=2)
    ch = connection.channel()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ch.publish("", "none", b"m")
        connection.pump_for(1)
    assert connection.alive


def trickling_upload(nodes, seconds):
    """Heartbeat 2: a frame that takes ten seconds to arrive keeps the connection alive octet by octet."""
    connection = nodes.connect(2, heartbeat=2)
    ch = connection.channel()
    ch.queue_declare("trickle")
    ch.confirm_select()
    data = ch.publish_bytes("", "trickle", os.urandom(100_000))
    steps = int(seconds * 2)
    piece = len(data) // steps + 1
    for start in range(0, len(data), piece):
        connection.send_raw(data[start : start + piece])
        connection.pump_for(0.5)
    assert ch.confirms([1]) == {1: "ack"}


def server_traffic(nodes, seconds):
    """Heartbeat 2: the server says something at least every interval; heartbeats are 8 octets on channel 0 (the client checks)."""
    connection = nodes.connect(1, heartbeat=2)
    beat(connection, seconds)
    assert len(connection.heartbeats) >= seconds // 2 - 1
    moments = connection.heartbeats
    gaps = [b - a for a, b in zip(moments, moments[1:])]
    assert max(gaps) <= 3.0, gaps


def half_a_minute(nodes, seconds):
    """Heartbeat 30: the client's value is used, so silence for a while is fine and no heartbeat comes soon."""
    connection = nodes.connect(3, heartbeat=30)
    connection.pump_for(seconds)
    assert connection.heartbeats == []
    assert connection.alive


def one_second(nodes, seconds):
    """Heartbeat 1: the client's value is used."""
    connection = nodes.connect(3, heartbeat=1)
    beat(connection, seconds, 0.4)
    assert len(connection.heartbeats) >= seconds - 2
    assert connection.alive


@pytest.mark.slow
def test_a22_heartbeats(nodes):
    """The client's heartbeat value is used: all the cases side by side, for twelve seconds."""
    cases = [
        silent_without_heartbeats,
        silent_with_heartbeats,
        busy_publisher,
        trickling_upload,
        server_traffic,
        half_a_minute,
        one_second,
    ]
    with ThreadPoolExecutor(len(cases)) as pool:
        futures = {case.__name__: pool.submit(case, nodes, 12) for case in cases}
    failures = {name: future.exception() for name, future in futures.items() if future.exception()}
    assert not failures, failures


def trickled(connection, data, piece, pause):
    """Sends in small pieces with pauses, and says nothing else."""
    for start in range(0, len(data), piece):
        connection.send_raw(data[start : start + piece])
        connection.pump_for(pause)


def fifty_megabytes(cluster, vhost):
    """Heartbeat 2: 50 MB in some 400 frames, of which the first, one in the middle and the last take twelve seconds each."""
    body = os.urandom(50_000_000)
    with Connection(cluster.amqp(2), vhost=vhost, heartbeat=2, timeout=30) as connection:
        ch = connection.channel()
        ch.queue_declare("large")
        ch.confirm_select()
        data = ch.publish_bytes("", "large", body)
        frame, ends = connection.frame_max, []
        for position in (0, len(data) // 2, len(data) - frame):
            start = ends[-1] if ends else 0
            trickled(connection, data[start:position], 1_000_000, 0.02)
            trickled(connection, data[position : position + frame], frame // 24 + 1, 0.5)
            ends.append(position + frame)
        connection.send_raw(data[ends[-1] :])
        assert ch.confirms([1], timeout=30) == {1: "ack"}
    with Connection(cluster.amqp(3), vhost=vhost, timeout=60) as connection:
        assert connection.channel().get("large").body == body


def silent_for_minutes(cluster, vhost):
    """Heartbeat 0: silence for longer than two intervals of the sixty seconds that the server had suggested."""
    with Connection(cluster.amqp(1), vhost=vhost, heartbeat=0) as connection:
        ch = connection.channel()
        ch.queue_declare("silent")
        ch.consume("silent")
        connection.pump_for(SILENCE_S)
        assert connection.heartbeats == []
        ch.confirm_select()
        assert ch.routed("", "silent", b"m")
        assert ch.deliveries(1)[0].body == b"m"


def silent_with_thirty(cluster, vhost):
    """Heartbeat 30: silence ends the connection after two to three intervals, not of the server's sixty."""
    connection = Connection(cluster.amqp(3), vhost=vhost, heartbeat=30)
    started = time.monotonic()
    with contextlib.suppress(ConnectionClosed):
        connection.pump_for(SILENCE_S)
    took = time.monotonic() - started
    assert connection.eof and 55 <= took <= 100, took
    assert connection.heartbeats, "the server said nothing either"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a22_minutes_of_silence_and_a_large_upload(tmp_path):
    """What takes long, side by side: silence for minutes without heartbeats, the end of one with, and 50 MB of which single frames take many intervals."""
    with own_cluster(tmp_path / "cluster", limits={"message_bytes_max": 64 << 20}) as cluster:
        cases = [silent_for_minutes, silent_with_thirty, fifty_megabytes]
        with ThreadPoolExecutor(len(cases)) as pool:
            futures = {case.__name__: pool.submit(case, cluster, "/") for case in cases}
        failures = {name: future.exception() for name, future in futures.items() if future.exception()}
        assert not failures, failures


def test_a22_heartbeats_during_the_handshake(nodes):
    """Heartbeat frames between the handshake's steps are tolerated."""
    connection = nodes.raw(2)
    connection.send_raw(wire.PROTOCOL_HEADER)
    connection.wait(0, "connection.start")
    connection.send_raw(wire.HEARTBEAT)
    connection.inbox[0].clear()
    connection.send(0, "connection.start-ok", mechanism="PLAIN", response="\0guest\0guest", locale="en_US")
    connection.wait(0, "connection.tune")
    connection.send_raw(wire.HEARTBEAT)
    connection.send(0, "connection.tune-ok", channel_max=100, frame_max=131072, heartbeat=2)
    connection.send_raw(wire.HEARTBEAT)
    connection.send(0, "connection.open", virtual_host=nodes.vhost)
    connection.wait(0, "connection.open-ok")
    connection.send_raw(wire.HEARTBEAT * 3)
    assert connection.alive


@pytest.mark.parametrize("data", [wire.frame(8, 1, b""), wire.frame(8, 0, b"x")], ids=["on channel 1", "with payload"])
def test_malformed_heartbeat(nodes, target, data):
    """A heartbeat on another channel or with a payload is refused as a frame error, or ignored; the node lives either way."""
    connection = nodes.connect(3)
    connection.send_raw(data)
    try:
        connection.pump_for(0.5)
        assert connection.alive
    except Closed as closed:
        assert closed.code in (501, 503, 504, 505), closed
    with nodes.connect(3) as other:
        assert other.alive


def test_connection_close_by_the_client(nodes):
    """connection.close is answered with close-ok whatever channels were open, and what was exclusive is gone then."""
    connection = nodes.connect(1)
    connection.channel().queue_declare("q1", exclusive=True)
    connection.send(0, "connection.close", reply_code=200, reply_text="bye")
    connection.wait(0, "connection.close-ok")
    eventually(lambda: missing(nodes.channel(2), "q1"), 2)


def test_unexpected_frames(nodes, target):
    """A bad frame end, an unknown frame type, and content without a method each end the connection with its proper code."""
    broken = bytearray(wire.method_frame(1, "basic.qos"))
    broken[-1] = 0
    cases = [
        (bytes(broken), (501,)),
        (wire.frame(7, 1, b"x"), (501, 505)),
        (wire.frame(wire.FRAME_HEADER, 1, wire.content_header(1)), (505,)),
        (wire.frame(wire.FRAME_BODY, 1, b"x"), (505,)),
        (wire.method_frame(1, "basic.publish") + wire.method_frame(1, "basic.qos"), (505,)),
        (wire.frame(wire.FRAME_METHOD, 1, b"\x00\x3c\x03\xe7"), (502, 503, 540)),
        (wire.frame(wire.FRAME_METHOD, 1, b"\x00\x3c"), (501, 502, 503)),
    ]
    if target.rabbitmq:
        cases = cases[:-2]  # 3.10.8 closes the socket without a word
    for data, codes in cases:
        connection = nodes.connect(2)
        connection.channel(1)
        connection.send_raw(data)
        try:
            connection.pump_for(5, until=lambda: connection.closed is not None)
        except ConnectionClosed as closed:
            assert closed.code, (data, closed)
        assert connection.closed and connection.closed.code in codes, (data, connection.closed)
        with pytest.raises((Closed, Deadline)):
            connection.channel(2)
