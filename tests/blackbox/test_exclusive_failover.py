"""A29: clients with exclusive queues come back after their node, or they themselves, went away; the old queues don't haunt the new."""

import time

import pytest

from amqp import ChannelClosed, Closed
from helpers import spread_only
from targets import eventually

CLIENTS = 200
PATIENCE_S = 5.0


def flags(number):
    """Some of the queues are durable, some auto-delete."""
    return {"durable": number % 2 == 0, "auto_delete": number % 3 == 0}


def settle_in(nodes, node, numbers, patience=PATIENCE_S):
    """A connection for each of these numbers declares, binds and consumes its queue, trying again while it is locked."""
    channels, started = {}, time.monotonic()
    for number in numbers:
        connection = nodes.connect(node(number))
        while number not in channels:
            ch = connection.channel()
            try:
                ch.queue_declare(f"reply.{number}", exclusive=True, **flags(number))
                ch.queue_bind(f"reply.{number}", "x1", f"key.{number}")
                ch.consume(f"reply.{number}", no_ack=True)
                channels[number] = ch
            except ChannelClosed as closed:
                assert closed.code == 405, closed
                assert time.monotonic() - started < patience, f"reply.{number} is still locked after {patience} s"
                time.sleep(0.05)
    return channels


def prove(nodes, channels):
    """Exactly these queues and bindings exist, on each node, and each gets the one message for its key."""

    def listed(api):
        queues = sorted(queue["name"] for queue in api.get("queues", nodes.vhost))
        bindings = sorted((b["destination"], b["routing_key"]) for b in nodes.bindings(api, "x1"))
        assert queues == sorted(f"reply.{number}" for number in channels)
        assert bindings == sorted((f"reply.{number}", f"key.{number}") for number in channels)
        return True

    for node in nodes.distinct:
        eventually(lambda: listed(nodes.api(node)), 10, f"{len(channels)} queues and bindings on node {node}")
    publisher = nodes.channel(3, confirm=True)
    for number in channels:
        publisher.publish("x1", f"key.{number}", b"%d" % number, mandatory=True)
    outcomes = publisher.confirms(range(1, publisher.published + 1), timeout=30)
    assert set(outcomes.values()) == {"ack"}
    assert [e for e in publisher.connection.inbox[publisher.number] if e.name == "basic.return"] == []
    for number, ch in channels.items():
        assert ch.deliveries(1)[0].body == b"%d" % number
    for number, ch in list(channels.items())[::20]:
        assert ch.quiet(0.05) == [], "one copy each"


def prepare(nodes):
    nodes.channel(2).exchange_declare("x1", "topic")


def away(number):
    return 2 + number % 2


@pytest.mark.slow
def test_a29_the_clients_are_gone_and_back(nodes):
    """All sockets break while the node lives: the same names can be declared again at other nodes within seconds."""
    prepare(nodes)
    channels = settle_in(nodes, lambda number: 1, range(CLIENTS))
    prove(nodes, channels)
    for ch in channels.values():
        ch.connection.drop()
    channels = settle_in(nodes, away, range(CLIENTS))
    prove(nodes, channels)
    time.sleep(1)  # the time in which a late clean-up of the old queues would strike
    prove(nodes, channels)


@pytest.mark.slow
@spread_only
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a29_the_node_is_gone_and_back(nodes, target, how):
    """N1 dies or stops with two hundred exclusive queues: declared again at N2 and N3 in a few seconds, and N1's return harms none."""
    prepare(nodes)
    channels = settle_in(nodes, lambda number: 1, range(CLIENTS))
    prove(nodes, channels)
    if how == "kill":
        nodes.kill(1)
    else:
        target.stop(1)
        nodes.forget(1)
    # A node that died is noticed by missed heartbeats first: the failure-detection time is part of the patience.
    channels = settle_in(nodes, away, range(CLIENTS), 2 * PATIENCE_S)
    publisher = nodes.channel(2, confirm=True)
    assert publisher.routed("x1", "key.7", b"early")
    assert channels[7].deliveries(1)[0].body == b"early"
    nodes.start(1)
    prove(nodes, channels)
    for number, ch in channels.items():
        if number < 100:
            ch.connection.close()
    eventually(lambda: len(nodes.api(1).get("queues", nodes.vhost)) == CLIENTS - 100, 10)
    for number in range(100):
        channels.pop(number)
    prove(nodes, channels)


def test_a29_one_client_and_a_broken_socket(nodes):
    """The simplest case: the socket breaks, the queue can be declared anew elsewhere in seconds, and only the new one is there."""
    prepare(nodes)
    for _ in range(5):
        channels = settle_in(nodes, lambda number: 1, [1])
        channels[1].connection.drop()
        channels = settle_in(nodes, lambda number: 2, [1])
        prove(nodes, channels)
        channels[1].connection.close()
        eventually(lambda: nodes.api(3).get("queues", nodes.vhost) == [], 5)
        assert nodes.bindings(nodes.api(2)) == []


def test_exclusive_queues_of_a_closed_channel_stay(nodes):
    """An exclusive queue belongs to the connection, not to the channel that declared it."""
    connection = nodes.connect(1)
    connection.channel().queue_declare("q1", exclusive=True)
    try:
        connection.channel().exists("none")
    except Closed as closed:
        assert closed.code == 404
    assert connection.channel().exists("q1").queue == "q1"
