"""Declaring: equivalence, exclusive queues, the channel's last queue, and names that are the broker's own."""

import pytest

from amqp import ChannelClosed, V, refused

TTL = "x-message-ttl"


def declare_with(nodes, node, value, queue="q1", **flags):
    """Declares on a fresh channel with this x-message-ttl."""
    return nodes.channel(node).queue_declare(queue, arguments={} if value is None else {TTL: value}, **flags)


def test_a01_integer_width_does_not_matter(nodes):
    """A queue declared with an integer argument may be declared again with the same number in any other integer width."""
    declare_with(nodes, 1, V("I", 60000))
    for node, tag in ((2, "l"), (3, "u"), (1, "i"), (2, "I")):
        assert declare_with(nodes, node, V(tag, 60000)).queue == "q1"
    declare_with(nodes, 1, V("I", 6000), "q2")
    declare_with(nodes, 2, V("s", 6000), "q2")
    declare_with(nodes, 1, V("I", 100), "q3")
    for node, tag in ((2, "b"), (3, "B"), (1, "s"), (2, "l")):
        declare_with(nodes, node, V(tag, 100), "q3")


def test_a01_unsigned_64_bit(nodes, target):
    """The tag `L`, which clients use for 64-bit integers too, belongs to the same class."""
    target.skip_on("rabbitmq", "3.10.8 closes the connection on tag L")
    declare_with(nodes, 1, V("I", 60000))
    declare_with(nodes, 2, V("L", 60000))


@pytest.mark.parametrize(
    "value, flags, argument, words",
    [
        (V("S", "60000"), {}, TTL, ["60000"]),
        (60001, {}, TTL, ["60001", "60000"]),
        (None, {}, TTL, ["none", "60000"]),
        (V("d", 60000.0), {}, TTL, ["60000"]),
        (60000, {"durable": False}, "durable", ["true", "false"]),
        (60000, {"auto_delete": True}, "auto_delete", ["true", "false"]),
    ],
    ids=["string", "other number", "absent", "float", "durable", "auto_delete"],
)
def test_a01_anything_else_is_refused(nodes, target, value, flags, argument, words):
    """A different number, type class or flag is 406, naming the argument and both values; the queue stays as it was."""
    declare_with(nodes, 1, V("I", 60000))
    arguments = {} if value is None else {TTL: value}
    flags = {"durable": True, **flags}
    closed = refused(nodes.connect(2), 406, "queue.declare", queue="q1", arguments=arguments, **flags)
    assert closed.text.startswith("PRECONDITION_FAILED - inequivalent arg"), closed
    for word in [f"'{argument}'", "'q1'", *words]:
        assert word in closed.text, closed
    if isinstance(value, V) and value.tag == "S":
        with target.differs("rabbitmq", "3.10.8 prints both values alike, without their types"):
            named = [part.split("'")[1] for part in closed.text.split("of type ")[1:]]
            assert len(set(named)) == 2, f"both types are to be told apart: {closed}"
    declare_with(nodes, 3, V("l", 60000))


def test_a02_exclusive_lock_comes_first(nodes, target):
    """Whatever another connection does with an exclusive queue, the answer is 405, even where 406 or 404 could be said as well."""
    c1, c2 = nodes.connect(1), nodes.connect(2)
    owner = c1.channel()
    owner.queue_declare("q1", exclusive=True)
    owner.queue_bind("q1", "amq.direct", "bound")
    exact = {"queue": "q1", "durable": True, "exclusive": True}
    attempts = [
        ("queue.declare", {**exact, "durable": False}),
        ("queue.declare", {**exact, "exclusive": False}),
        ("queue.declare", exact),
        ("queue.declare", {"queue": "q1", "passive": True}),
        ("queue.declare", {"queue": "q1", "passive": True, "nowait": True}),
        ("queue.bind", {"queue": "q1", "exchange": "amq.direct", "routing_key": "k"}),
        ("queue.unbind", {"queue": "q1", "exchange": "amq.direct", "routing_key": "bound"}),
        ("queue.purge", {"queue": "q1"}),
        ("queue.delete", {"queue": "q1"}),
        ("basic.consume", {"queue": "q1", "consumer_tag": "t"}),
        ("basic.get", {"queue": "q1"}),
    ]
    for method, arguments in attempts:
        closed = refused(c2, 405, method, **arguments)
        assert closed.text.startswith("RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q1'"), closed
    with target.differs("rabbitmq", "3.10.8 says unbind-ok before it looks at the queue when there is no such binding"):
        refused(nodes.connect(2, timeout=3), 405, "queue.unbind", queue="q1", exchange="amq.direct", routing_key="unbound")
    refused(c1, 405, "queue.declare", queue="q1", durable=True, exclusive=False)
    assert owner.exists("q1").queue == "q1"


def test_a02_passive_declare_looks_at_the_name_only(nodes):
    """Passive declare ignores attributes and tells the real counts; of a missing queue it is 404, no-wait or not."""
    ch = nodes.channel(1, confirm=True)
    ch.queue_declare("q1")
    for _ in range(3):
        assert ch.routed("", "q1", b"m")
    consumer = nodes.channel(3)
    consumer.queue_declare("q2")
    consumer.consume("q2")
    consumer.consume("q2")
    other = nodes.channel(2)
    answer = other.call("queue.declare", queue="q1", passive=True, durable=False, auto_delete=True, arguments={TTL: 5})
    assert (answer.queue, answer.message_count, answer.consumer_count) == ("q1", 3, 0)
    answer = other.call("queue.declare", queue="q2", passive=True, exclusive=True)
    assert (answer.queue, answer.message_count, answer.consumer_count) == ("q2", 0, 2)
    closed = refused(nodes.connect(2), 404, "queue.declare", queue="none", passive=True, nowait=True)
    assert closed.text.startswith("NOT_FOUND - no queue 'none' in vhost"), closed
    refused(nodes.connect(3), 404, "queue.declare", queue="none", passive=True)


def test_a02_exclusive_queue_goes_with_its_connection(nodes):
    """An exclusive queue is gone for others when its connection has been closed, and its name is free."""
    c1 = nodes.connect(1)
    c1.channel().queue_declare("q1", exclusive=True)
    refused(nodes.connect(2), 405, "queue.declare", queue="q1", passive=True)
    c1.close()
    nodes.channel(3).queue_declare("q1", exclusive=True)


def test_a04_last_declared_queue(nodes):
    """queue="" means the channel's last declared queue; an empty key is then that queue's name, and only then."""
    c1 = nodes.connect(1)
    ch = c1.channel()
    ch.exchange_declare("x1", "direct")
    ch.queue_declare("q1")
    ch.queue_bind("", "x1", "")
    away = nodes.channel(2, confirm=True)
    assert away.routed("x1", "q1")
    assert not away.routed("x1", "")
    ch.queue_bind("", "x1", "k2")
    assert away.routed("x1", "k2")
    ch.queue_bind("q1", "x1", "")
    assert away.routed("x1", "")

    ch.queue_unbind("", "x1", "")
    assert not away.routed("x1", "q1")
    assert away.routed("x1", "")
    ch.queue_unbind("", "x1", "k2")
    assert not away.routed("x1", "k2")
    ch.queue_unbind("q1", "x1", "")
    assert not away.routed("x1", "")

    refused(c1, 404, "queue.bind", queue="", exchange="x1", routing_key="")


def test_a04_server_named_queue(nodes):
    """An empty name gets a fresh amq.gen-… name, which the shortcut refers to for consume, get, purge and delete as well."""
    ch = nodes.channel(1, confirm=True)
    first = ch.queue_declare("", exclusive=True).queue
    second = ch.queue_declare("", exclusive=True).queue
    assert first.startswith("amq.gen-") and second.startswith("amq.gen-") and first != second
    assert ch.routed("", second, b"one")
    assert ch.get("").body == b"one"
    assert ch.routed("", second, b"two")
    assert ch.queue_purge("").message_count == 1
    assert ch.queue_delete("").message_count == 0
    assert ch.exists(first).queue == first
    refused(nodes.connect(2), 403, "queue.declare", queue="amq.mine")


def test_a27_default_exchange_only_publishes(nodes):
    """Every operation on the default exchange but publishing is 403; publishing reaches any queue of the vhost from every node."""
    c1 = nodes.connect(1)
    nodes.channel(2).queue_declare("q1")
    nodes.channel(2).exchange_declare("x1", "fanout")
    attempts = [
        ("exchange.declare", {"exchange": "", "type": "direct", "durable": True}),
        ("exchange.declare", {"exchange": "", "passive": True}),
        ("exchange.delete", {"exchange": ""}),
        ("queue.bind", {"queue": "q1", "exchange": "", "routing_key": "k"}),
        ("queue.unbind", {"queue": "q1", "exchange": "", "routing_key": "q1"}),
        ("exchange.bind", {"source": "", "destination": "x1", "routing_key": "k"}),
        ("exchange.bind", {"source": "x1", "destination": "", "routing_key": "k"}),
    ]
    for method, arguments in attempts:
        closed = refused(c1, 403, method, **arguments)
        assert closed.text == "ACCESS_REFUSED - operation not permitted on the default exchange", closed
    for node in (1, 2, 3):
        nodes.channel(node).queue_declare(f"on{node}")
        for publisher in nodes.publishers():
            assert publisher.routed("", f"on{node}", b"m")
        assert len(nodes.channel(1).bodies(f"on{node}")) == len(nodes.distinct)


def test_a27_predeclared_exchanges(nodes, target):
    """amq.* exchanges can't be deleted or made anew; declaring one as it is is fine, differently 406."""
    c1 = nodes.connect(2)
    refused(c1, 403, "exchange.delete", exchange="amq.direct")
    refused(c1, 403, "exchange.declare", exchange="amq.new", type="direct", durable=True)
    refused(c1, 406, "exchange.declare", exchange="amq.direct", type="direct", durable=False)
    refused(c1, 406, "exchange.declare", exchange="amq.direct", type="fanout", durable=True)
    ch = c1.channel()
    for name, kind in (
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ):
        ch.exchange_declare(name, kind)
        ch.exchange_declare(name, passive=True)


def test_a27_internal_exchange(nodes):
    """Clients can't publish to an internal exchange; other exchanges route into it."""
    c1 = nodes.connect(1)
    ch = c1.channel()
    ch.exchange_declare("inner", "fanout", internal=True)
    ch.exchange_declare("outer", "fanout")
    ch.queue_declare("q1")
    ch.queue_bind("q1", "inner")
    ch.exchange_bind("inner", "outer")
    for publisher in nodes.publishers():
        assert publisher.routed("outer", "k", b"through")
    victim = nodes.channel(3)
    victim.publish("inner", "k", b"direct")
    victim.expect_close(403, "basic.publish")
    assert set(nodes.channel(2).bodies("q1")) == {b"through"}


def test_a27_internal_exchange_is_deleted_over_http(nodes):
    """The HTTP API may delete an internal exchange."""
    nodes.channel(1).exchange_declare("inner", "fanout", internal=True)
    assert nodes.api(2).delete("exchanges", nodes.vhost, "inner") == 204
    with pytest.raises(ChannelClosed, match="404"):
        nodes.channel(3).exchange_declare("inner", passive=True)
