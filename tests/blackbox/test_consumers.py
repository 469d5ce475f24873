"""Consumers: prefetch, cancel notifications, tags, exclusiveness."""

from collections import Counter

import pytest

from amqp import ALL_CAPABILITIES, ChannelClosed
from targets import eventually


def hundred(nodes, queue, node=1):
    """A queue with a hundred messages."""
    ch = nodes.channel(node, confirm=True)
    ch.queue_declare(queue)
    ch.confirms([ch.publish("", queue, b"%d" % number) for number in range(100)])


def held(channel, seconds=0.4):
    """How many deliveries each consumer of a channel holds once nothing more comes."""
    events = channel.quiet(seconds, "basic.deliver")
    return Counter(event.consumer_tag for event in events)


QUEUES = [("q1", 1), ("q-b", 2), ("q-c", 3)]  # several, so that owners differ from the consumer's node


@pytest.mark.parametrize("queue, node", QUEUES)
def test_a17_per_consumer_prefetch(nodes, queue, node):
    """qos(n, false) limits each consumer that starts after it, and no other."""
    hundred(nodes, queue, node)
    ch = nodes.channel(1)
    ch.qos(10)
    ch.consume(queue, "a")
    ch.consume(queue, "b")
    assert held(ch) == {"a": 10, "b": 10}
    ch.close()

    hundred(nodes, queue + "2", node)
    ch = nodes.channel(1)
    ch.consume(queue + "2", "a")
    assert len(ch.deliveries(100)) == 100
    ch.nack(0, multiple=True)
    ch.cancel("a")
    ch.close()
    ch = nodes.channel(1)
    eventually(lambda: ch.exists(queue + "2").message_count == 100)
    ch.consume(queue + "2", "a")
    ch.qos(5)
    ch.consume(queue + "2", "b")
    counts = held(ch)
    assert counts["a"] + counts["b"] == 100 and counts["b"] <= 5, counts
    ch.close()

    ch = nodes.channel(1)
    eventually(lambda: ch.exists(queue + "2").message_count == 100)
    ch.qos(0)
    ch.consume(queue + "2", "a")
    assert held(ch, 1.0) == {"a": 100}


def test_a17_limit_binds_the_second_consumer_alone(nodes):
    """After qos(5, false) the first consumer stays unlimited and the second holds five at most."""
    ch = nodes.channel(1, confirm=True)
    ch.queue_declare("q1")
    ch.consume("q1", "a")
    ch.qos(5)
    ch.consume("q1", "b")
    publisher = nodes.channel(2, confirm=True)
    publisher.confirms([publisher.publish("", "q1", b"m") for _ in range(100)])
    assert held(ch, 1.0) == {"a": 95, "b": 5}


@pytest.mark.parametrize("queue, node", QUEUES)
def test_a17_shared_prefetch(nodes, queue, node):
    """qos(n, true) is the channel's limit on top of the consumers' own; raising it delivers at once; other channels have their own."""
    hundred(nodes, queue, node)
    connection = nodes.connect(1)
    ch, other = connection.channel(), connection.channel()
    ch.qos(10, False)
    ch.qos(15, True)
    ch.consume(queue, "a")
    ch.consume(queue, "b")
    counts = held(ch)
    assert sum(counts.values()) == 15 and max(counts.values()) <= 10, counts

    first = ch.wait("basic.deliver")
    ch.ack(first.delivery_tag)
    counts = held(ch)
    assert sum(counts.values()) == 15, "one acked, one more delivered"
    ch.qos(20, True)
    counts = held(ch)
    assert sum(counts.values()) == 20, counts

    other.consume(queue, "c")
    assert held(other) == {"c": 100 - 1 - 20}


def test_a17_prefetch_size_is_not_implemented(nodes):
    """A prefetch window in octets is 540."""
    connection = nodes.connect(1)
    connection.channel().send("basic.qos", prefetch_size=1000)
    connection.expect_close(540)


@pytest.mark.parametrize("answer", [False, True], ids=["silent", "cancel-ok"])
def test_a18_consumer_cancel_notification(nodes, target, answer):
    """Deleting a queue sends each consumer of a client that asked for it one basic.cancel, and nothing to other clients."""
    if answer:
        target.skip_on("rabbitmq", "3.10.8 closes the connection with 503 on a client's basic.cancel-ok")
    publisher = nodes.channel(3, confirm=True)
    publisher.queue_declare("q1")
    c1 = nodes.connect(1)
    c2 = nodes.connect(1, capabilities={**ALL_CAPABILITIES, "consumer_cancel_notify": False})
    first, second, deaf = c1.channel(), c1.channel(), c2.channel()
    first.qos(2)
    first.consume("q1", "tag-1")
    for number in range(5):
        assert publisher.routed("", "q1", b"%d" % number)
    held_before = first.deliveries(2)
    second.qos(1)
    deaf.qos(1)
    second.consume("q1", "tag-2")
    deaf.consume("q1", "tag-3")
    second.deliveries(1)
    deaf.deliveries(1)

    assert nodes.channel(2).queue_delete("q1").message_count == 1
    for channel, tag in ((first, "tag-1"), (second, "tag-2")):
        cancel = channel.wait("basic.cancel")
        assert (cancel.consumer_tag, cancel.nowait) == (tag, True)
        if answer:
            channel.send("basic.cancel-ok", consumer_tag=tag)
    assert first.quiet(0.3) == [] and second.quiet(0.1) == [], "one basic.cancel a consumer"
    assert deaf.quiet(0.3) == []
    deaf.barrier()

    publisher.queue_declare("q1")
    first.consume("q1", "tag-1")
    second.consume("q1", "tag-2")
    for event in held_before:
        first.ack(event.delivery_tag)
    first.barrier()
    for _ in range(3):
        assert publisher.routed("", "q1", b"again")
    assert [event.consumer_tag for event in first.deliveries(2)] == ["tag-1"] * 2
    assert second.deliveries(1)[0].consumer_tag == "tag-2"


def test_consumer_tags(nodes):
    """An empty tag gets a generated one; a tag in use on the channel is 530; exclusive consumers keep others out with 403."""
    ch = nodes.channel(1)
    ch.queue_declare("q1")
    tags = {ch.consume("q1") for _ in range(3)}
    assert len(tags) == 3 and all(tag.startswith("amq.ctag-") for tag in tags), tags
    nodes.channel(1).consume("q1", next(iter(tags)))
    ch.close()

    away = nodes.channel(2)
    eventually(lambda: away.exists("q1").consumer_count == 1)
    with pytest.raises(ChannelClosed, match="403"):
        away.consume("q1", exclusive=True)
    nodes.channel(2).queue_declare("q2")
    nodes.channel(2).consume("q2", exclusive=True)
    with pytest.raises(ChannelClosed, match="403"):
        nodes.channel(3).consume("q2")
    with pytest.raises(ChannelClosed, match="404"):
        nodes.channel(3).consume("none")

    connection = nodes.connect(3)
    ch = connection.channel()
    ch.consume("q1", "same")
    ch.send("basic.consume", queue="q1", consumer_tag="same")
    assert "attempt to reuse consumer tag 'same'" in connection.expect_close(530).text


def test_deliveries_are_shared_and_in_order(nodes):
    """Consumers at every node share a queue's messages; each sees its own in order; none is delivered twice."""
    publisher = nodes.channel(1, confirm=True)
    publisher.queue_declare("q1")
    consumers = [nodes.channel(node) for node in (1, 2, 3)]
    for consumer in consumers:
        consumer.qos(20)
        consumer.consume("q1")
    publisher.confirms([publisher.publish("", "q1", b"%d" % number) for number in range(600)], timeout=30)
    seen = []

    def settle(consumer):
        mine = []
        while consumer.quiet(0, "basic.deliver"):
            event = consumer.wait("basic.deliver")
            mine.append(int(event.body))
            consumer.ack(event.delivery_tag)
        return mine

    parts = [[], [], []]
    eventually(
        lambda: [part.extend(settle(consumer)) for part, consumer in zip(parts, consumers)] and sum(map(len, parts)) == 600, 20
    )
    for part in parts:
        assert part == sorted(part) and part, "each consumer's deliveries are in order"
        seen += part
    assert sorted(seen) == list(range(600))


def test_cancel_stops_deliveries(nodes):
    """After cancel-ok nothing more is delivered; what is unacked stays with the channel until it is settled or closed."""
    ch = nodes.channel(1, confirm=True)
    ch.queue_declare("q1")
    assert ch.routed("", "q1", b"held")
    consumer = nodes.channel(2)
    tag = consumer.consume("q1")
    event = consumer.deliveries(1)[0]
    consumer.cancel(tag)
    assert ch.routed("", "q1", b"later")
    assert consumer.quiet(0.3, "basic.deliver") == []
    assert ch.exists("q1").message_count == 1
    consumer.ack(event.delivery_tag)
    consumer.close()
    assert ch.bodies("q1") == [b"later"]
    nodes.channel(3).cancel("unknown")
