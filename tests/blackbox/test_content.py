"""What is inside a message: bodies of any size, field tables to the octet, all properties."""

import struct

import pytest

import wire
from amqp import ChannelClosed, V, refused
from helpers import spread_only
from replicated import settled_leader
from targets import eventually

# --- A21: empty bodies ------------------------------------------------------------------------------------------------------------

EXCHANGES = {
    "": ("q1", None, None),
    "amq.direct": ("k", "k", None),
    "amq.fanout": ("any", "", None),
    "amq.topic": ("a.b", "a.*", None),
    "amq.headers": ("any", "", {"x-match": "all", "n": 1}),
    "hash": ("any", "1", None),
}


def bind_everywhere(nodes, queue="q1", node=1):
    """A queue that every exchange of EXCHANGES routes to."""
    ch = nodes.channel(node)
    ch.exchange_declare("hash", "x-consistent-hash")
    ch.queue_declare(queue)
    for exchange, (_, key, arguments) in EXCHANGES.items():
        if key is not None:
            ch.queue_bind(queue, exchange, key, arguments)
    return ch


def check_empty(connection, event):
    """An empty body: a header that says 0, and no body frame after it."""
    assert event.body == b"" and event.body_size == 0
    assert event.last_seq == event.seq + 1, "the content is its header frame alone"
    assert connection.frames[event.seq + 1][0] == wire.FRAME_HEADER
    assert event.properties["message_id"] == "m" and event.headers["n"] == 1
    following = connection.frames[event.last_seq + 1 : event.last_seq + 2]
    assert all(kind != wire.FRAME_BODY for kind, _, _, _ in following)


@pytest.mark.parametrize("mode", [1, 2], ids=["transient", "persistent"])
def test_a21_empty_bodies(nodes, mode):
    """An empty message passes every exchange type and comes out of deliver, get and return without a body frame."""
    bind_everywhere(nodes, node=2)
    properties = {"delivery_mode": mode, "message_id": "m", "headers": {"n": 1}}
    publishers = nodes.publishers()
    for publisher in publishers:
        for exchange, (key, _, _) in EXCHANGES.items():
            assert publisher.routed(exchange, key, b"", properties=properties), exchange
        outcome = publisher.publish_confirmed("", "none", b"", properties=properties)
        assert outcome.outcome == "ack" and len(outcome.returned) == 1
        check_empty(publisher.connection, outcome.returned[0])
    total = len(publishers) * len(EXCHANGES)
    ch = nodes.channel(3)
    assert ch.exists("q1").message_count == total
    for left in range(total - 1, total // 2, -1):
        event = ch.get("q1")
        assert event.message_count == left
        check_empty(ch.connection, event)
    ch.consume("q1", no_ack=True)
    for event in ch.deliveries(total // 2 + 1):
        check_empty(ch.connection, event)


@pytest.mark.slow
def test_a21_empty_bodies_and_a_restart(nodes, target):
    """Empty persistent messages outlive their node, and are as empty when published after a restart."""
    ch = nodes.channel(2, confirm=True)
    ch.queue_declare("q1")
    properties = {"delivery_mode": 2, "message_id": "m", "headers": {"n": 1}}
    for _ in range(3):
        assert ch.routed("", "q1", b"", properties=properties)
    nodes.restart(2)
    ch = nodes.channel(2, confirm=True)
    assert ch.exists("q1").message_count == 3
    ch.queue_purge("q1")
    assert ch.routed("", "q1", b"", properties=properties)
    event = nodes.channel(3).get("q1")
    check_empty(nodes.main[nodes.number(3)], event)


@pytest.mark.slow
@spread_only
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a21_empty_bodies_and_a_failover(nodes, target, how):
    """The owner goes: others own the queue and take empty messages as before; when it is back, they come back to it and are still empty."""
    target.skip_on("rabbitmq", "a durable classic queue has no other node to go to")
    properties = {"delivery_mode": 2, "message_id": "m", "headers": {"n": 1}}
    bind_everywhere(nodes)
    ch = nodes.channel(1, confirm=True)  # right after another test's restarts, a nack is an honest answer
    eventually(lambda: ch.publish_confirmed("", "q1", b"").outcome == "ack", 10, "the queue takes messages")
    ch.queue_purge("q1")
    owner = settled_leader(nodes, "q1")
    left, right = [node for node in target.all() if node != owner]
    ch = nodes.channel(left, confirm=True)
    for _ in range(3):
        assert ch.routed("", "q1", b"", properties=properties)
    if how == "kill":
        nodes.kill(owner)
    else:  # in order
        nodes.forget(owner)
        target.stop(owner)
    ch = nodes.channel(left, confirm=True)
    eventually(lambda: ch.publish_confirmed("", "q1", b"", properties=properties).outcome == "ack", 10, "another node owns the queue")
    assert queue_node(nodes, left) != f"node{owner}"
    for exchange, (key, _, _) in EXCHANGES.items():
        assert ch.routed(exchange, key, b"", properties=properties), exchange
    total = 3 + 1 + len(EXCHANGES)
    event = nodes.channel(right).get("q1", no_ack=False)
    assert event.message_count == total - 1
    check_empty(nodes.main[right], event)
    nodes.forget(right)  # it goes back, and all of them to the owner that comes back
    nodes.start(owner)
    eventually(lambda: queue_node(nodes, owner) == f"node{owner}", 10, "the queue is back at its node")
    ch = nodes.channel(owner)
    eventually(lambda: ch.exists("q1").message_count == total, 5, f"{total} messages are back")
    for count in range(total - 1, -1, -1):
        event = ch.get("q1")
        assert event.message_count == count
        check_empty(ch.connection, event)


def queue_node(nodes, node):
    """The node that q1 is on, as a node has it."""
    return nodes.api(node).get("queues", nodes.vhost, "q1")["node"]


def test_a21_empty_bodies_over_http(nodes, target):
    """The HTTP API publishes and gets empty payloads."""
    nodes.channel(1).queue_declare("q1")
    body = {"properties": {}, "routing_key": "q1", "payload": "", "payload_encoding": "string"}
    assert nodes.api(2).post("exchanges", nodes.vhost, "amq.default", "publish", body=body) == {"routed": True}
    got = nodes.api(3).post(
        "queues", nodes.vhost, "q1", "get", body={"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    )
    assert [message["payload"] for message in got] == [""] and got[0]["payload_bytes"] == 0


# --- bodies of other sizes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame_max", [4096, 131072])
def test_bodies_are_cut_to_the_receivers_frames(nodes, frame_max):
    """Bodies arrive whole in frames no larger than the receiver's frame_max, whatever the publisher's was."""
    sizes = [0, 1, 4087, 4088, 4089, 8176, 131064, 131065, 300_000, 2_000_000]
    publisher = nodes.channel(1, confirm=True)
    publisher.queue_declare("q1")
    receiver = nodes.connect(3, frame_max=frame_max)
    ch = receiver.channel()
    ch.consume("q1", no_ack=True)
    for size in sizes:
        body = (b"%d," % size * (size // 2 + 1))[:size]
        assert publisher.routed("", "q1", body)
        assert ch.deliveries(1)[0].body == body
    assert max(size for _, _, size, _ in receiver.frames) <= frame_max


# --- A23: field tables ------------------------------------------------------------------------------------------------------------

EVERY_TYPE = [
    ("t-true", V("t", True)),
    ("t-false", V("t", False)),
    *[(f"b{v}", V("b", v)) for v in (-128, -1, 0, 127)],
    *[(f"B{v}", V("B", v)) for v in (0, 128, 255)],
    *[(f"s{v}", V("s", v)) for v in (-32768, -1, 32767)],
    *[(f"u{v}", V("u", v)) for v in (0, 32768, 65535)],
    *[(f"I{v}", V("I", v)) for v in (-(2**31), -1, 2**31 - 1)],
    *[(f"i{v}", V("i", v)) for v in (0, 2**31, 2**32 - 1)],
    *[(f"l{v}", V("l", v)) for v in (-(2**63), -1, 2**31, 2**63 - 1)],
    ("f", V("f", -1.5)),
    ("d", V("d", 3.141592653589793)),
    ("d-tiny", V("d", 5e-324)),
    ("D", V("D", (2, 31415))),
    ("D0", V("D", (0, 0))),
    ("S-empty", V("S", b"")),
    ("S-bytes", V("S", b"\x80\xff\x00\xc3\x28")),
    ("S-utf8", V("S", "żółw 🐢")),
    ("x-empty", V("x", b"")),
    ("x-bytes", V("x", bytes(range(256)))),
    ("T0", V("T", 0)),
    ("T63", V("T", 2**63)),
    ("V", V("V", None)),
    ("A-empty", V("A", [])),
    ("F-empty", V("F", [])),
    ("A-mixed", V("A", [V("I", 1), V("S", "two"), V("F", [("three", V("l", 3))]), V("V", None), V("A", [V("t", True)])])),
    ("deep", V("F", [("1", V("F", [("2", V("A", [V("F", [("4", V("F", [("5", V("s", -5))]))])]))]))])),
    ("Case", V("I", 1)),
    ("case", V("I", 2)),
    ("CASE", V("S", "three")),
    ("", V("S", "empty key")),
    ("k" * 128, V("I", 128)),
]
SIGNED_L = [("L-negative", V("L", -1)), ("L-max", V("L", 2**63 - 1)), ("L-min", V("L", -(2**63)))]


def inside(fields):
    """A table's octets without its length."""
    return wire.table(fields)[4:]


def round_trip(nodes, raw):
    """Publishes with these header octets; they come back the same by return, get and deliver, from every node."""
    nodes.channel(2).queue_declare("q1")
    for publisher in nodes.publishers():
        for key in ("q1", "none"):
            outcome = publisher.publish_confirmed("", key, b"m", headers=raw, properties={"delivery_mode": 2})
            assert outcome.outcome == "ack" and bool(outcome.returned) == (key == "none")
            for event in outcome.returned:
                assert event.headers.raw == raw, "by return"
        getter = nodes.channel(3)
        event = getter.get("q1", no_ack=False)
        assert event.headers.raw == raw, "by get"
        getter.nack(event.delivery_tag)
        consumer = nodes.channel(1)
        consumer.consume("q1", no_ack=True)
        event = consumer.deliveries(1)[0]
        assert event.headers.raw == raw and event.redelivered, "by deliver"
        consumer.close()


def test_a23_headers_keep_every_type(nodes):
    """Every tag of the dialect, with its extremes, arrives with the same octets in the same order."""
    round_trip(nodes, inside(EVERY_TYPE))


def test_a23_signed_64_bit_L(nodes, target):
    """`L` is a signed 64-bit integer like `l`."""
    target.skip_on("rabbitmq", "3.10.8 does not know the tag L")
    round_trip(nodes, inside(SIGNED_L))


def test_a23_order_and_repeats_are_kept(nodes):
    """Fields keep their order, and a key given twice stays given twice."""
    round_trip(nodes, inside([("z", 1), ("a", 2), ("m", V("s", 3)), ("a", V("S", "again"))]))


@pytest.mark.slow
def test_a23_types_survive_a_restart(nodes, target):
    """A persistent message's header octets are the same after its node was killed and started; so are a binding's arguments."""
    raw = inside(EVERY_TYPE)
    ch = nodes.channel(2, confirm=True)
    ch.queue_declare("q1")
    ch.queue_bind("q1", "amq.headers", "", [("x-match", "all"), ("n", V("s", 5)), ("x", V("S", b"\x80"))])
    ch.publish_confirmed("", "q1", b"m", headers=raw, properties={"delivery_mode": 2})
    nodes.restart(2)
    ch = nodes.channel(3, confirm=True)
    eventually(lambda: nodes.channel(3).exists("q1"), 10)
    assert ch.get("q1").headers.raw == raw
    assert ch.routed("amq.headers", "", headers=[("x", V("S", b"\x80")), ("n", V("l", 5))])
    assert not ch.routed("amq.headers", "", headers=[("x", V("S", b"\x81")), ("n", V("l", 5))])


def test_a23_every_type_as_arguments(nodes):
    """Client properties and the arguments of declare, bind and consume take every type; the queue stays equivalent to itself."""
    arguments = [("x-unknown-" + key, value) for key, value in EVERY_TYPE if key and len(key) < 100]
    connection = nodes.connect(2, properties=[("product", "tables"), *EVERY_TYPE])
    ch = connection.channel()
    ch.queue_declare("q1", arguments=arguments)
    nodes.channel(3).queue_declare("q1", arguments=arguments)
    ch.exchange_declare("x1", "topic", arguments=arguments)
    nodes.channel(1).exchange_declare("x1", "topic", arguments=arguments)
    ch.queue_bind("q1", "x1", "k", arguments)
    ch.queue_bind("q1", "x1", "k", list(reversed(arguments)))
    ch.consume("q1", "tag", no_ack=True, arguments=arguments)
    for publisher in nodes.publishers():
        assert publisher.routed("x1", "k", b"m")
    assert len(ch.deliveries(len(nodes.distinct))) == len(nodes.distinct)
    ch.cancel("tag")
    nodes.channel(3).queue_unbind("q1", "x1", "k", arguments)
    assert not nodes.channel(1, confirm=True).routed("x1", "k")


# --- A24: properties --------------------------------------------------------------------------------------------------------------

FULL = {
    "content_type": "application/x-żółw",
    "content_encoding": "none",
    "headers": {"a": 1},
    "delivery_mode": 2,
    "priority": 255,
    "correlation_id": "c" * 255,
    "reply_to": "r",
    "expiration": "1000000",
    "message_id": "",
    "timestamp": 2**64 - 1,
    "type": "t",
    "user_id": "guest",
    "app_id": "a",
    "cluster_id": "reserved",
}


def echo(nodes, properties, node=1):
    """Publishes with these properties at one node and gets the message at another: what came."""
    publisher = nodes.channel(node, confirm=True)
    publisher.queue_declare("q1")
    assert publisher.routed("", "q1", b"m", properties=properties)
    event = nodes.channel(3).get("q1")
    assert event.body == b"m"
    return event


def test_a24_all_properties_come_back(nodes):
    """All fourteen, none, and each alone come back octet by octet."""
    for properties in (FULL, {}, *({name: value} for name, value in FULL.items())):
        event = echo(nodes, properties)
        assert event.header_raw == wire.encode_properties(properties), properties


@pytest.mark.parametrize("mode", [0, 1, 2, 7, 255])
def test_a24_any_delivery_mode(nodes, target, mode):
    """Mode 2 is persistent and anything else transient; the number itself comes back."""
    if mode not in (1, 2):
        target.skip_on("rabbitmq", "3.10.8 closes the channel with 406 on a delivery mode it does not know")
    assert echo(nodes, {"delivery_mode": mode}).properties == {"delivery_mode": mode}


@pytest.mark.parametrize("expiration, good", [("1000", True), ("", False), ("-1", False), ("1.5", False), ("abc", False), (" 1", False)])
def test_a24_expiration_is_checked(nodes, expiration, good):
    """A per-message expiration is a whole number of milliseconds in text; anything else is 406."""
    if good:
        assert echo(nodes, {"expiration": expiration}).properties == {"expiration": expiration}
        return
    ch = nodes.channel(2)
    ch.queue_declare("q1")
    ch.publish("", "q1", b"m", properties={"expiration": expiration})
    ch.expect_close(406, "basic.publish")
    assert nodes.channel(1).bodies("q1") == []


def test_a24_expiration_zero_is_for_waiting_consumers_only(nodes, target):
    """expiration 0: delivered to a consumer that waits, else expired at once."""
    target.skip_on("warren", "messages do not expire yet")
    ch = nodes.channel(1, confirm=True)
    ch.queue_declare("q1")
    assert ch.routed("", "q1", b"gone", properties={"expiration": "0"})
    assert nodes.channel(2).get("q1") is None
    consumer = nodes.channel(3)
    consumer.consume("q1", no_ack=True)
    assert ch.routed("", "q1", b"kept", properties={"expiration": "0"})
    assert consumer.deliveries(1)[0].body == b"kept"


def test_a24_user_id_is_the_login(nodes):
    """user_id must be the connection's user: anything else is 406."""
    assert echo(nodes, {"user_id": "guest"}).properties == {"user_id": "guest"}
    ch = nodes.channel(2)
    ch.publish("", "q1", b"m", properties={"user_id": "someone"})
    closed = ch.expect_close(406, "basic.publish")
    assert "user_id property set to 'someone' but authenticated user was 'guest'" in closed.text, closed


def test_a24_cc_and_bcc(nodes):
    """CC and BCC arrays are further routing keys, one copy a queue; BCC is removed before delivery."""
    ch = nodes.channel(1, confirm=True)
    for queue in ("q1", "q2", "q3"):
        ch.queue_declare(queue)
        ch.queue_bind(queue, "amq.direct", queue)
    headers = [("CC", ["q2", "q1"]), ("BCC", ["q3", "q2"]), ("other", 1)]
    for exchange in ("", "amq.direct"):
        for publisher in nodes.publishers():
            assert publisher.routed(exchange, "q1", b"m", headers=headers)
            for queue in ("q1", "q2", "q3"):
                (event,) = nodes.channel(2).drain(queue)
                assert event.routing_key == "q1"
                assert dict(event.headers) == {"CC": ["q2", "q1"], "other": 1}
    assert ch.routed("", "none", b"only cc", headers={"CC": ["q3"]})
    assert ch.bodies("q3") == [b"only cc"]


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_a24_cc_must_be_an_array(nodes, header):
    """CC or BCC of another type is 406."""
    ch = nodes.channel(2)
    ch.queue_declare("q1")
    ch.publish("", "q1", b"m", headers={header: "q1"})
    ch.expect_close(406, "basic.publish")
    assert nodes.channel(1).bodies("q1") == []


def test_a24_second_property_flag_word(nodes, target):
    """A continued property-flag word is parsed and ignored, or refused with 501 or 502: never misread."""
    connection = nodes.connect(2)
    ch = connection.channel()
    ch.queue_declare("q1")
    # priority 9, and a second, empty flag word.
    payload = struct.pack(">HHQ", 60, 0, 1) + struct.pack(">HH", (1 << 11) | 1, 0) + b"\x09"
    connection.send_raw(
        wire.method_frame(ch.number, "basic.publish", routing_key="q1")
        + wire.frame(wire.FRAME_HEADER, ch.number, payload)
        + wire.frame(wire.FRAME_BODY, ch.number, b"m")
    )
    away = nodes.channel(1)
    connection.pump_for(3, until=lambda: connection.closed or away.exists("q1").message_count)
    if connection.closed:
        assert connection.closed.code in (501, 502, 541 if target.rabbitmq else 502), connection.closed
        assert away.exists("q1").message_count == 0
    else:
        assert away.get("q1").properties == {"priority": 9}


def test_body_larger_than_announced(nodes, target):
    """More body than the header said is a connection error; nothing of it is queued."""
    target.skip_on("rabbitmq", "3.10.8 says nothing and goes on waiting for the rest")
    connection = nodes.connect(2)
    ch = connection.channel()
    ch.queue_declare("q1")
    connection.send_raw(
        wire.method_frame(ch.number, "basic.publish", routing_key="q1")
        + wire.frame(wire.FRAME_HEADER, ch.number, wire.content_header(3))
        + wire.frame(wire.FRAME_BODY, ch.number, b"four")
    )
    connection.pump_for(5, until=lambda: connection.closed is not None)
    assert connection.closed and connection.closed.code in (501, 502, 505), connection.closed
    assert nodes.channel(1).bodies("q1") == []


def test_a_refused_publish_keeps_earlier_ones(nodes):
    """A refused publish names basic.publish in channel.close; the channel's earlier messages are kept."""
    connection = nodes.connect(1)
    ch = connection.channel()
    ch.queue_declare("q1")
    ch.publish("", "q1", b"kept")
    ch.publish("", "q1", b"refused", properties={"expiration": "x"})
    with pytest.raises(ChannelClosed) as error:
        ch.wait("basic.ack")
    assert (error.value.code, error.value.method) == (406, "basic.publish")
    assert eventually(lambda: nodes.channel(2).bodies("q1")) == [b"kept"]
    refused(connection, 404, "queue.declare", queue="none", passive=True)
