"""Settling messages: delivery tags and their errors, and the place that a requeued message returns to."""

import pytest

from amqp import Channel
from targets import eventually


def five_held(nodes, node=1, no_ack=False) -> Channel:
    """A channel that holds five deliveries m1…m5 with tags 1…5, unacked."""
    ch = nodes.channel(node, confirm=True)
    ch.queue_declare("q1")
    for number in range(1, 6):
        assert ch.routed("", "q1", b"m%d" % number)
    for number in range(1, 6):
        assert ch.get("q1", no_ack=no_ack).delivery_tag == number
    return ch


def back(nodes, bodies, node=2):
    """These messages are ready again in this order, marked redelivered."""
    ch = nodes.channel(node)
    eventually(lambda: ch.exists("q1").message_count == len(bodies), 5, f"{len(bodies)} messages are back")
    events = ch.drain("q1")
    assert [event.body for event in events] == bodies
    assert all(event.redelivered for event in events)


ALL = [b"m1", b"m2", b"m3", b"m4", b"m5"]


def test_a15_zero_means_all(nodes):
    """ack(0, multiple) settles everything; nack(0, multiple, requeue) requeues everything; with nothing open both are fine."""
    ch = five_held(nodes)
    ch.ack(0, multiple=True)
    ch.ack(0, multiple=True)
    ch.nack(0, multiple=True)
    ch.barrier()
    ch.close()
    back(nodes, [])

    ch = five_held(nodes, node=3)
    ch.nack(0, multiple=True, requeue=True)
    ch.barrier()
    back(nodes, ALL)
    ch.nack(0, multiple=True, requeue=False)
    ch.barrier()


@pytest.mark.parametrize(
    "settle, method, left",
    [
        (lambda ch: ch.ack(0), "basic.ack", ALL),
        (lambda ch: (ch.ack(3), ch.ack(3)), "basic.ack", [b"m1", b"m2", b"m4", b"m5"]),
        (lambda ch: ch.ack(99), "basic.ack", ALL),
        (lambda ch: ch.ack(99, multiple=True), "basic.ack", ALL),
        (lambda ch: (ch.ack(3), ch.ack(3, multiple=True)), "basic.ack", [b"m1", b"m2", b"m4", b"m5"]),
        (lambda ch: ch.reject(99), "basic.reject", ALL),
        (lambda ch: ch.nack(99), "basic.nack", ALL),
        (lambda ch: ch.nack(0), "basic.nack", ALL),
    ],
    ids=["ack 0", "ack twice", "ack 99", "ack 99 multiple", "ack 3, then multiple", "reject 99", "nack 99", "nack 0"],
)
def test_a15_unknown_tags(nodes, settle, method, left):
    """An unknown tag is 406; all that is not settled goes back, and the connection's other channels don't notice."""
    ch = five_held(nodes)
    other = ch.connection.channel()
    other.queue_declare("q2")
    other.publish("", "q2", b"other")
    eventually(lambda: other.exists("q2").message_count == 1)
    held = other.get("q2", no_ack=False)
    settle(ch)
    closed = ch.expect_close(406, method)
    assert closed.text.startswith("PRECONDITION_FAILED - unknown delivery tag"), closed
    back(nodes, left)
    other.ack(held.delivery_tag)
    other.barrier()
    assert other.exists("q2").message_count == 0


def test_a15_ack_of_a_no_ack_delivery(nodes):
    """A message taken with no-ack is settled already: acking it is 406, and nothing comes back."""
    ch = five_held(nodes, no_ack=True)
    ch.ack(2)
    ch.expect_close(406, "basic.ack")
    back(nodes, [])


def test_a15_multiple_settles_up_to_the_tag(nodes):
    """ack(3, multiple) settles 1 to 3; nack(5, multiple, no requeue) drops the rest."""
    ch = five_held(nodes)
    ch.ack(3, multiple=True)
    ch.barrier()
    ch.nack(4)
    ch.barrier()
    back(nodes, [b"m4"])
    ch.nack(5, multiple=True, requeue=False)
    ch.barrier()
    ch.connection.close()
    back(nodes, [])


def test_closing_requeues(nodes):
    """Unacked messages go back when their channel closes, and when their connection's socket just goes away."""
    five_held(nodes).close()
    back(nodes, ALL)
    connection = nodes.connect(3)
    ch = connection.channel()
    ch.confirm_select()
    assert ch.routed("", "q1", b"m1")
    assert ch.get("q1", no_ack=False).body == b"m1"
    connection.drop()
    back(nodes, [b"m1"])


def test_a16_requeue_keeps_the_place(nodes):
    """Requeued messages return to their old places, whatever order they are requeued in; fresh ones stay not redelivered."""
    publisher = nodes.channel(3, confirm=True)
    publisher.queue_declare("q1")
    for number in range(1, 7):
        assert publisher.routed("", "q1", b"m%d" % number)
    ch = nodes.channel(1)
    tags = {}

    def get():
        event = ch.get("q1", no_ack=False)
        tags[event.body] = event.delivery_tag
        return event.body, event.redelivered, event.message_count

    for number in range(1, 6):
        assert get() == (b"m%d" % number, False, 6 - number)
    ch.nack(tags[b"m3"])
    ch.barrier()
    assert get() == (b"m3", True, 1)
    ch.reject(tags[b"m2"])
    ch.nack(tags[b"m1"])
    ch.barrier()
    assert get() == (b"m1", True, 2)
    assert get() == (b"m2", True, 1)
    ch.nack(0, multiple=True)
    ch.barrier()
    for number in range(1, 7):
        assert get() == (b"m%d" % number, number != 6, 6 - number)
    ch.nack(0, multiple=True)
    ch.barrier()

    consumer = nodes.channel(2)
    consumer.qos(1)
    consumer.consume("q1")
    for turn in range(4):
        event = consumer.deliveries(1)[0]
        assert (event.body, event.redelivered) == (b"m1", True), turn
        consumer.nack(event.delivery_tag)
    consumer.ack(consumer.deliveries(1)[0].delivery_tag)
    assert consumer.deliveries(1)[0].body == b"m2"


def test_recover_requeues_all(nodes):
    """basic.recover with requeue puts everything unacked back; without it, it is not implemented (540)."""
    ch = five_held(nodes, node=2)
    ch.call("basic.recover", requeue=True)
    back(nodes, ALL)
    connection = nodes.connect(2)
    connection.channel().send("basic.recover", requeue=False)
    connection.expect_close(540)
