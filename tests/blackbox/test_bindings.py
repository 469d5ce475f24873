"""Bindings: their identity, exchanges as destinations, and what goes when an end of them goes."""

import itertools

import pytest

from amqp import ChannelClosed
from helpers import exchange_missing, missing
from targets import eventually

KINDS = ["direct", "fanout", "topic"]


def routed_everywhere(nodes, exchange, key, copies, queue="q1", **options):
    """Publishes at every node; whether it was routed, which must be the same everywhere, with this many copies each."""
    answers = {publisher.routed(exchange, key, b"m", **options) for publisher in nodes.publishers()}
    assert len(answers) == 1, "nodes route differently"
    assert len(nodes.channel(1).bodies(queue)) == copies * len(nodes.distinct)
    return answers.pop()


def bind_twice(nodes, kind):
    """x1 of this kind with q1 bound under k with {a:1} and {a:2}, and a repeat."""
    ch = nodes.channel(1)
    ch.exchange_declare("x1", kind)
    ch.queue_declare("q1")
    ch.queue_bind("q1", "x1", "k", {"a": 1, "b": "z"})
    nodes.channel(2).queue_bind("q1", "x1", "k", {"a": 2})
    nodes.channel(3).queue_bind("q1", "x1", "k", {"a": 1, "b": "z"})
    nodes.channel(3).queue_bind("q1", "x1", "k", {"b": "z", "a": 1})


def unbind_in_turn(nodes, restart=lambda: None):
    """Removes the two bindings one after the other, with a no-op between, checking routing on every node."""
    nodes.channel(2).queue_unbind("q1", "x1", "k", {"b": "z", "a": 1})
    restart()
    assert routed_everywhere(nodes, "x1", "k", 1)
    nodes.channel(3).queue_unbind("q1", "x1", "k", {})
    assert routed_everywhere(nodes, "x1", "k", 1)
    for api in nodes.apis():
        assert [b["arguments"] for b in nodes.bindings(api, "x1")] == [{"a": 2}]
    nodes.channel(1).queue_unbind("q1", "x1", "k", {"a": 2})
    assert not routed_everywhere(nodes, "x1", "k", 0)
    for api in nodes.apis():
        assert nodes.bindings(api, "x1") == []


@pytest.mark.parametrize("kind", KINDS)
def test_a03_arguments_are_part_of_a_binding(nodes, kind):
    """Same ends and key with other arguments is another binding; one copy a publish; routing ends with the last of them."""
    bind_twice(nodes, kind)
    for api in nodes.apis():
        assert len(nodes.bindings(api, "x1")) == 2
    assert routed_everywhere(nodes, "x1", "k", 1)
    unbind_in_turn(nodes)


@pytest.mark.slow
def test_a03_with_a_restart_between(nodes, target):
    """The same where each node was killed and started after the first unbind."""
    for kind, node in itertools.islice(zip(KINDS, itertools.cycle((2, 3, 1))), 3):
        bind_twice(nodes, kind)
        unbind_in_turn(nodes, restart=lambda: nodes.restart(node))
        nodes.channel(1).exchange_delete("x1")


SOURCES = {
    "direct": ("k", None),
    "topic": ("k", None),
    "fanout": ("", None),
    "headers": ("", {"x-match": "all", "n": 1}),
    "x-consistent-hash": ("1", None),
}


def publish_each(nodes, count=1):
    """Publishes `count` messages to each source exchange from each node: which sources returned something."""
    returned = set()
    for publisher, (kind, _), number in itertools.product(nodes.publishers(), SOURCES.items(), range(count)):
        key = f"key{number}" if kind == "x-consistent-hash" else "k"
        if not publisher.routed(f"s-{kind}", key, kind.encode(), headers={"n": 1}):
            returned.add(kind)
    return returned


def test_a10_deleting_a_destination_exchange(nodes):
    """Deleting an exchange removes the bindings to and from it in every index, and does not leave a hole in the hash ring."""
    ch = nodes.channel(1)
    for y in ("y1", "y2"):
        ch.exchange_declare(y, "fanout")
        ch.queue_declare(f"q-{y}")
        ch.queue_bind(f"q-{y}", y)
    for kind, (key, arguments) in SOURCES.items():
        nodes.channel(2).exchange_declare(f"s-{kind}", kind)
        for y in ("y1", "y2"):
            nodes.channel(3).exchange_bind(y, f"s-{kind}", key, arguments)
    count = 20
    assert publish_each(nodes, count) == set()
    for y in ("y1", "y2"):
        assert set(nodes.channel(1).bodies(f"q-{y}")) == {kind.encode() for kind in SOURCES}

    nodes.channel(1).exchange_delete("y1")
    for api in nodes.apis():
        named = [b for b in nodes.bindings(api) if "y1" in (b["source"], b["destination"])]
        assert named == []
    assert publish_each(nodes, count) == set()
    assert len(nodes.channel(2).bodies("q-y2")) == count * len(SOURCES) * len(nodes.distinct)
    assert nodes.channel(2).bodies("q-y1") == []

    nodes.channel(3).exchange_declare("y1", "fanout")
    nodes.channel(3).queue_bind("q-y1", "y1")
    assert publish_each(nodes, count) == set()
    assert nodes.channel(1).bodies("q-y1") == []
    assert len(nodes.channel(1).bodies("q-y2")) == count * len(SOURCES) * len(nodes.distinct)

    nodes.channel(2).exchange_delete("s-topic")
    for api in nodes.apis():
        assert nodes.bindings(api, "s-topic") == []
    for publisher in nodes.publishers():
        assert publisher.routed("y2", "k", b"m")
        assert publisher.routed("s-direct", "k", b"m")
    with pytest.raises(ChannelClosed, match="404"):
        nodes.channel(1, confirm=True).publish_confirmed("s-topic", "k", b"m")


def cascade(nodes, target):
    """t1 -> auto-delete h1 -> auto-delete q1, whose only consumer is then cancelled; all of it is gone everywhere."""
    ch = nodes.channel(1)
    ch.exchange_declare("t1", "topic")
    ch.exchange_declare("h1", "headers", auto_delete=True)
    ch.queue_declare("q1", auto_delete=True)
    ch.exchange_bind("h1", "t1", "#")
    ch.queue_bind("q1", "h1", "", {"x-match": "all", "n": 1})
    consumer = nodes.channel(2)
    tag = consumer.consume("q1")
    assert nodes.channel(3, confirm=True).routed("t1", "k", b"m", headers={"n": 1})
    assert consumer.deliveries(1)[0].body == b"m"
    consumer.cancel(tag)
    for node in nodes.distinct:
        eventually(lambda: missing(nodes.channel(node), "q1"), 2, f"q1 is gone on node {node}")
        assert exchange_missing(nodes.channel(node), "h1")
        assert nodes.bindings(nodes.api(node)) == []
        nodes.channel(node).exchange_declare("t1", "topic", passive=True)


def test_a11_auto_delete_cascade(nodes, target):
    """The last consumer takes the auto-delete queue with it, that the auto-delete exchange, and that the binding to it."""
    cascade(nodes, target)
    again = nodes.channel(3)
    again.exchange_declare("h1", "headers", auto_delete=True)
    again.queue_declare("q2")
    again.queue_bind("q2", "h1", "", {"x-match": "all"})
    for publisher in nodes.publishers():
        assert not publisher.routed("t1", "k", b"m", headers={"n": 1})
    assert nodes.channel(1).bodies("q2") == []
    nodes.channel(1).exchange_delete("t1")


def test_a11_auto_delete_counts_bindings_as_source(nodes):
    """An auto-delete exchange goes with its last binding as a source: not as a destination, and not before it ever had one."""
    ch = nodes.channel(1)
    ch.exchange_declare("t1", "topic")
    for name in ("y1", "z1", "w1"):
        nodes.channel(2).exchange_declare(name, "fanout", auto_delete=True)
    for key in ("a", "b"):
        ch.exchange_bind("y1", "t1", key)
    for key in ("a", "b"):
        nodes.channel(3).exchange_unbind("y1", "t1", key)
    for name in ("y1", "z1"):
        for node in nodes.distinct:
            nodes.channel(node).exchange_declare(name, passive=True)

    ch.queue_declare("q1")
    ch.queue_bind("q1", "w1")
    owner = nodes.connect(2)
    owner.channel().queue_declare("mine", exclusive=True)
    owner.channel().queue_bind("mine", "w1")
    nodes.channel(3).queue_unbind("q1", "w1")
    nodes.channel(1).exchange_declare("w1", passive=True)
    owner.close()
    for node in nodes.distinct:
        eventually(lambda: exchange_missing(nodes.channel(node), "w1"), 2, f"w1 is gone on node {node}")
        assert nodes.bindings(nodes.api(node)) == []


@pytest.mark.slow
def test_a11_restart_resurrects_nothing(nodes, target):
    """What auto-deletion removed stays away when all nodes were killed and started."""
    cascade(nodes, target)
    nodes.restart_all()
    for node in nodes.distinct:
        assert missing(nodes.channel(node), "q1")
        assert exchange_missing(nodes.channel(node), "h1")
        nodes.channel(node).exchange_declare("t1", passive=True)
        assert nodes.bindings(nodes.api(node)) == []


def test_delete_if_unused_and_if_empty(nodes):
    """if-unused and if-empty refuse with 406; deleting what is missing is fine."""
    ch = nodes.channel(1, confirm=True)
    ch.exchange_declare("x1", "direct")
    ch.queue_declare("q1")
    ch.queue_bind("q1", "x1", "k")
    assert ch.routed("x1", "k", b"m")
    for call in (
        lambda c: c.exchange_delete("x1", if_unused=True),
        lambda c: c.queue_delete("q1", if_empty=True),
    ):
        with pytest.raises(ChannelClosed, match="406"):
            call(nodes.channel(2))
    consumer = nodes.channel(3)
    consumer.consume("q1")
    with pytest.raises(ChannelClosed, match="406"):
        nodes.channel(2).queue_delete("q1", if_unused=True)
    nodes.channel(2).queue_delete("q1")
    nodes.channel(2).exchange_delete("x1", if_unused=True)
    nodes.channel(3).queue_delete("q1")
    nodes.channel(3).exchange_delete("x1")
