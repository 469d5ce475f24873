"""Alternate exchanges, exchange-to-exchange pipelines and other examples of where a message goes."""

import pytest

from amqp import ChannelClosed


def test_a12_chains_and_cycles(nodes):
    """A ring of alternate exchanges ends: an unroutable mandatory message comes back once; the first exchange that can route, does."""
    for number, name in enumerate(("x1", "x2", "x3")):
        after = {"x1": "x2", "x2": "x3", "x3": "x1"}[name]
        nodes.channel(number + 1).exchange_declare(name, "direct", arguments={"alternate-exchange": after})
    for publisher in nodes.publishers():
        assert not publisher.routed("x1", "k", b"nowhere")
    ch = nodes.channel(2)
    ch.queue_declare("q3")
    ch.queue_bind("q3", "x3", "k")
    for publisher in nodes.publishers():
        assert publisher.routed("x1", "k", b"third")
        message = ch.get("q3")
        assert (message.body, message.exchange, message.routing_key) == (b"third", "x1", "k")
    ch.queue_declare("q1")
    ch.queue_bind("q1", "x1", "k")
    for publisher in nodes.publishers():
        assert publisher.routed("x1", "k", b"first")
        assert ch.bodies("q1") == [b"first"]
        assert ch.bodies("q3") == []


def test_a12_missing_alternate(nodes):
    """An alternate exchange that does not exist routes nothing, and is used from the moment it exists."""
    ch = nodes.channel(1)
    ch.exchange_declare("x4", "direct", arguments={"alternate-exchange": "later"})
    for publisher in nodes.publishers():
        assert not publisher.routed("x4", "k", b"m")
    away = nodes.channel(2)
    away.exchange_declare("later", "fanout")
    away.queue_declare("q1")
    away.queue_bind("q1", "later")
    for publisher in nodes.publishers():
        assert publisher.routed("x4", "k", b"m")
    nodes.channel(3).exchange_delete("later")
    for publisher in nodes.publishers():
        assert not publisher.routed("x4", "k", b"m")


def test_a12_key_is_kept_and_long_chains_work(nodes):
    """The alternate exchange sees the original key; a chain of a hundred exchanges is followed to its end."""
    ch = nodes.channel(1)
    ch.exchange_declare("x6", "direct")
    ch.exchange_declare("x5", "direct", arguments={"alternate-exchange": "x6"})
    ch.queue_declare("q1")
    ch.queue_bind("q1", "x6", "other")
    for publisher in nodes.publishers():
        assert not publisher.routed("x5", "k")
        assert publisher.routed("x5", "other")
    for number in range(100):
        ch.exchange_declare(f"c{number}", "direct", arguments={"alternate-exchange": f"c{number + 1}"})
    ch.exchange_declare("c100", "fanout")
    ch.queue_declare("end")
    ch.queue_bind("end", "c100")
    for publisher in nodes.publishers():
        assert publisher.routed("c0", "k", b"far")
    assert nodes.channel(3).bodies("end") == [b"far"] * len(nodes.distinct)


def test_a12_equivalence_compares_the_alternate(nodes):
    """Declaring again with another alternate exchange is 406."""
    nodes.channel(1).exchange_declare("x1", arguments={"alternate-exchange": "a"})
    nodes.channel(2).exchange_declare("x1", arguments={"alternate-exchange": "a"})
    with pytest.raises(ChannelClosed, match="406 PRECONDITION_FAILED - inequivalent arg 'alternate-exchange'"):
        nodes.channel(3).exchange_declare("x1", arguments={"alternate-exchange": "b"})


def test_exchange_pipeline(nodes):
    """topic -> fanout -> headers -> direct: each stage filters by the message's own key and headers; one copy where paths meet."""
    ch = nodes.channel(1)
    for name, kind in (("in", "topic"), ("spread", "fanout"), ("match", "headers"), ("out", "direct")):
        ch.exchange_declare(name, kind)
    away = nodes.channel(2)
    away.exchange_bind("spread", "in", "orders.#")
    away.exchange_bind("match", "spread")
    away.exchange_bind("out", "spread")
    away.exchange_bind("out", "match", "", {"x-match": "all", "vip": True})
    ch.queue_declare("q1")
    ch.queue_bind("q1", "out", "orders.new")
    ch.queue_declare("vips")
    ch.queue_bind("vips", "match", "", {"x-match": "all", "vip": True})
    for publisher in nodes.publishers():
        assert publisher.routed("in", "orders.new", b"plain")
        assert publisher.routed("in", "orders.new", b"vip", headers={"vip": True})
        assert not publisher.routed("in", "orders.old", b"no queue")
        assert not publisher.routed("in", "other", b"no stage")
        assert ch.bodies("q1") == [b"plain", b"vip"]
        assert ch.bodies("vips") == [b"vip"]


def test_exchange_cycle_gives_one_copy(nodes):
    """Exchanges bound in a circle do not loop: each queue gets one copy."""
    ch = nodes.channel(1)
    for number in range(3):
        ch.exchange_declare(f"x{number}", "fanout")
        ch.queue_declare(f"q{number}")
        ch.queue_bind(f"q{number}", f"x{number}")
    for number in range(3):
        nodes.channel(number + 1).exchange_bind(f"x{(number + 1) % 3}", f"x{number}")
    for publisher in nodes.publishers():
        assert publisher.routed("x1", "k", b"m")
    for number in range(3):
        assert ch.bodies(f"q{number}") == [b"m"] * len(nodes.distinct)


def test_direct_and_fanout(nodes):
    """direct compares the whole key; fanout ignores it; several bindings of one queue give one copy."""
    ch = nodes.channel(1)
    ch.exchange_declare("d", "direct")
    ch.exchange_declare("f", "fanout")
    for queue in ("q1", "q2"):
        ch.queue_declare(queue)
        ch.queue_bind(queue, "d", "k")
        ch.queue_bind(queue, "d", queue)
        ch.queue_bind(queue, "f", "one")
        ch.queue_bind(queue, "f", "two")
    for publisher in nodes.publishers():
        for exchange, key, expected in (("d", "k", (1, 1)), ("d", "q1", (1, 0)), ("d", "K", (0, 0)), ("f", "", (1, 1)), ("f", "one", (1, 1))):
            assert publisher.routed(exchange, key) == any(expected)
            assert (len(ch.bodies("q1")), len(ch.bodies("q2"))) == expected, (exchange, key)


def test_publish_to_a_missing_exchange(nodes):
    """404 on the channel, mandatory or not; other channels are untouched."""
    connection = nodes.connect(2)
    other = connection.channel()
    for mandatory in (False, True):
        ch = connection.channel()
        ch.publish("none", "k", b"m", mandatory=mandatory)
        closed = ch.expect_close(404, "basic.publish")
        assert closed.text.startswith("NOT_FOUND - no exchange 'none' in vhost"), closed
    other.barrier()
