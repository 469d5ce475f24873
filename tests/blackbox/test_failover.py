"""A30, A31 and what else a client sees when the node goes that leads its queue, while its own connection lives on.

A consumer whose connection lives on sees no redelivery of what it holds, and its later acks count; a publisher sees neither a duplicate nor a reorder.
What is flagged as redelivered after a failover is at least what may have been delivered before it.
"""

import contextlib
import threading
import time

import pytest

from amqp import Closed, Deadline
from helpers import missing, spread_only
from load import Consumer, Producer, accounts, drained
from replicated import bodies, fill, leader, led_by, queue_led_by, ready
from targets import ApiError, eventually

pytestmark = [pytest.mark.slow, spread_only]


def go(nodes, target, how, node):
    """The node goes: killed, or stopped in order."""
    if how == "kill":
        nodes.kill(node)
    else:
        target.stop(node)
        nodes.forget(node)


def take_all(channels, count, timeout=15):
    """Takes deliveries in at several channels, acking each at once, until `count` have come in all: (channel, event)."""
    got, deadline = [], time.monotonic() + timeout
    while len(got) < count:
        assert time.monotonic() < deadline, f"{len(got)} of {count} deliveries within {timeout} s"
        for ch in channels:
            with contextlib.suppress(Deadline):
                event = ch.wait("basic.deliver", timeout=0.05)
                ch.ack(event.delivery_tag)
                got.append((ch, event))
    return got


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a31_leader_goes_under_two_consumers(nodes, target, how, queue_type):
    """K1 and K2 at other nodes hold ten each: K1's acks after the failover count, K2 keeps its own, and each message is delivered once."""
    target.skip_on("rabbitmq", "a durable classic queue has no other node to go to")
    queue = queue_led_by(nodes, 1, arguments={"x-queue-type": queue_type})
    fill(nodes.channel(2, confirm=True), queue, 1, 1000)
    k1, k2 = nodes.channel(2), nodes.channel(3)
    held = []
    for ch in (k1, k2):
        ch.qos(10)
        ch.consume(queue)
        held.append(ch.deliveries(10))
    go(nodes, target, how, 1)
    for event in held[0]:
        k1.ack(event.delivery_tag)
    started = time.monotonic()
    first = k1.deliveries(1, timeout=5)[0]
    print(f"{how}: the next delivery came {time.monotonic() - started:.3f} s after the node was gone")
    k1.ack(first.delivery_tag)
    # K2 holds ten and gets nothing more until it acks.
    got = [first] + [event for _, event in take_all([k1], 979)]
    assert not k2.quiet(0.3, "basic.deliver"), "K2 got more than its prefetch"
    for event in held[1]:
        k2.ack(event.delivery_tag)
    ready(nodes, queue, 0, [2, 3])
    everything = [int(event.body) for event in (*held[0], *held[1], *got)]
    assert sorted(everything) == list(range(1, 1001)), "each message once"
    if how == "stop":  # after a death, the next leader must take everything for possibly delivered
        flagged = [int(event.body) for event in got if event.redelivered]
        assert not flagged, f"{len(flagged)} messages that were never delivered are flagged, {flagged[0]} to {flagged[-1]}; {queue}, led by node {leader(nodes, queue, 2)}"
    assert [int(e.body) for e in got] == sorted(int(e.body) for e in got), "in order"
    # Both consumers are there still, and nothing comes back with the node.
    assert nodes.channel(2).exists(queue).consumer_count == 2
    nodes.start(1)
    led_by(nodes, queue, 1)
    assert nodes.channel(1).exists(queue).consumer_count == 2
    fill(nodes.channel(3, confirm=True), queue, 2001, 2020)
    after = take_all([k1, k2], 20)
    assert sorted(int(event.body) for _, event in after) == list(range(2001, 2021))
    assert not any(event.redelivered for _, event in after)
    assert {ch for ch, _ in after} == {k1, k2}, "both consumers are served"
    assert not k1.quiet(0.3, "basic.deliver", "basic.cancel") and not k2.quiet(0.1, "basic.deliver", "basic.cancel")
    ready(nodes, queue, 0)


def test_a31_the_consumers_node_becomes_leader(nodes, target):
    """The new leader is the node of one consumer's connection: the same promises, for it and for one at the third node."""
    target.skip_on("rabbitmq", "a durable classic queue has no other node to go to")
    queue = queue_led_by(nodes, 1)
    fill(nodes.channel(1, confirm=True), queue, 1, 100)
    channels = {node: nodes.channel(node) for node in (2, 3)}
    held = {}
    for node, ch in channels.items():
        ch.qos(10)
        ch.consume(queue, f"at{node}")
        held[node] = ch.deliveries(10)
    nodes.kill(1)
    eventually(lambda: leader(nodes, queue, 2) != 1, 15, "another node leads")
    new = leader(nodes, queue, 2)
    at_leader, other = channels[new], channels[5 - new]
    for event in held[new][:5]:
        at_leader.ack(event.delivery_tag)
    at_leader.nack(held[new][5].delivery_tag)  # given back: it comes again, flagged, to whoever has room
    got = at_leader.deliveries(6, timeout=5)
    assert [event.redelivered for event in got if event.body == held[new][5].body] == [True], "what was given back comes again, flagged"
    mine = {event.body for events in held.values() for event in events}
    assert {event.body for event in got} & mine == {held[new][5].body}, "nothing else that is held comes again"
    other.ack(held[5 - new][-1].delivery_tag, multiple=True)
    assert not {event.body for event in other.deliveries(10, timeout=5)} & mine
    # Old tags are used up: acking one again is what it always is.
    other.ack(held[5 - new][0].delivery_tag)
    other.expect_close(406, "basic.ack")


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_new_leader_knows_its_consumers_before_it_answers(nodes, target, how):
    """Purges, deletions of unused queues and passive declares at once after the leader has gone: they spare what a living client holds and uses."""
    target.skip_on("rabbitmq", "a durable classic queue has no other node to go to")
    queues = [queue_led_by(nodes, 1) for _ in range(9)]
    holder = nodes.channel(3)
    holder.qos(3)
    for queue in queues:
        fill(nodes.channel(2, confirm=True), queue, 1, 5)
        holder.consume(queue)
        holder.deliveries(3)
    askers = [nodes.channel(2) for _ in queues]
    gone = threading.Thread(target=go, args=(nodes, target, how, 1))
    if how == "stop":  # leadership is handed over meanwhile
        gone.start()
    else:
        go(nodes, target, how, 1)
    for number, (asker, queue) in enumerate(zip(askers, queues)):
        if number % 3 == 0:
            asker.send("queue.purge", queue=queue)
        elif number % 3 == 1:
            asker.send("queue.delete", queue=queue, if_unused=True)
        else:
            asker.send("queue.declare", queue=queue, passive=True)
    for number, (asker, queue) in enumerate(zip(askers, queues)):
        if number % 3 == 0:
            assert asker.wait("queue.purge-ok").message_count == 2, "without what is held"
        elif number % 3 == 1:
            asker.expect_close(406, "queue.delete")
        else:
            told = asker.wait("queue.declare-ok")
            assert (told.message_count, told.consumer_count) == (2, 1)
    if how == "stop":
        gone.join(60)
    holder.close()
    for number, queue in enumerate(queues):
        ready(nodes, queue, 3 if number % 3 == 0 else 5, [2, 3])
    nodes.start(1)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_publisher_sees_neither_duplicate_nor_reorder(nodes, target, how):
    """Publishers and a consumer at living nodes while the leader goes and comes back, twice: no nack, no loss, no duplicate, order kept."""
    target.skip_on("rabbitmq", "a durable classic queue has no other node to go to")
    queue = queue_led_by(nodes, 1)
    producers = [Producer(target.amqp(node), queue, nodes.vhost, prefix=f"p{node}-", window=30) for node in (2, 3)]
    consumers = [Consumer(target.amqp(3), queue, nodes.vhost)]
    for client in (*producers, *consumers):
        client.start()
    eventually(lambda: len(consumers[0].got) > 200, 10, "messages flow")
    for _ in range(2):
        go(nodes, target, how, 1)
        before = [len(p.confirmed) for p in producers]
        eventually(lambda: all(len(p.confirmed) > b + 200 for p, b in zip(producers, before)), 10, "messages flow without the node")
        nodes.start(1)
        led_by(nodes, queue, 1)
        before = [len(p.confirmed) for p in producers]
        eventually(lambda: all(len(p.confirmed) > b + 200 for p, b in zip(producers, before)), 10, "messages flow with the node")
    drained(producers, consumers)
    print({p.prefix: (len(p.confirmed), f"longest silence {p.silence:.3f} s") for p in producers})
    assert [p.nacked for p in producers] == [[], []] and [p.returned for p in producers] == [0, 0]
    accounts(producers, consumers, flags=how == "kill")
    ready(nodes, queue, 0)
    bound = 1.5 if how == "kill" else 1.0
    assert all(p.silence < bound for p in producers), [p.silence for p in producers]


def test_exclusive_consumer_over_failover(nodes, target):
    """An exclusive consumer keeps its claim when the leader goes and comes back; it ends with its consumer, at any leader."""
    target.skip_on("rabbitmq", "a durable classic queue has no other node to go to")
    queue = queue_led_by(nodes, 1)
    ch = nodes.channel(2)
    ch.qos(1)
    tag = ch.consume(queue, exclusive=True)

    def claimed(node):
        other = nodes.channel(node)
        other.send("basic.consume", queue=queue)
        closed = other.expect_close(403, "basic.consume")
        assert "exclusive" in closed.text, closed

    claimed(3)
    nodes.kill(1)
    fill(nodes.channel(3, confirm=True), queue, 1, 3)
    for number in range(1, 4):
        event = ch.deliveries(1, timeout=5)[0]
        assert event.body == b"%d" % number
        claimed(3)
        ch.ack(event.delivery_tag)
    nodes.start(1)
    led_by(nodes, queue, 1)
    for node in (1, 2, 3):
        claimed(node)
    ch.cancel(tag)
    nodes.channel(1).consume(queue)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_redelivered_flags_after_the_leader_went(nodes, target, how):
    """What was delivered to a connection that is gone comes back flagged. In order, what was never delivered is not flagged; after kill -9
    it may be. What is published afterwards never is."""
    target.skip_on("rabbitmq", "a durable classic queue has no other node to go to")
    queue = queue_led_by(nodes, 1)
    fill(nodes.channel(1, confirm=True), queue, 1, 20)
    ch = nodes.channel(1)
    ch.qos(5)
    ch.consume(queue)
    assert [event.body for event in ch.deliveries(5)] == bodies(1, 5)
    go(nodes, target, how, 1)
    fill(nodes.channel(2, confirm=True), queue, 21, 25)
    taken = nodes.channel(3)
    eventually(lambda: taken.exists(queue).message_count == 25, 15, "all messages are ready again")
    events = taken.drain(queue)
    assert [event.body for event in events] == bodies(1, 25), "in order"
    flags = [event.redelivered for event in events]
    assert flags[:5] == [True] * 5, flags
    assert flags[20:] == [False] * 5, flags
    if how == "stop":
        assert flags[5:20] == [False] * 15, flags


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_redelivered_flags_after_all_nodes_went(nodes, target, how):
    """The same when all nodes go at once, or one after the other in order, and come back."""
    queue = queue_led_by(nodes, 1) if not target.rabbitmq else nodes.channel(1).queue_declare("q1").queue
    fill(nodes.channel(1, confirm=True), queue, 1, 20)
    ch = nodes.channel(2)
    ch.qos(5)
    ch.consume(queue)
    assert [event.body for event in ch.deliveries(5)] == bodies(1, 5)
    if how == "kill":
        nodes.restart_all()
    else:
        nodes.forget(*target.all())
        for node in target.all():
            target.stop(node)
        target.start(*target.all())
    taken = nodes.channel(3)
    eventually(lambda: taken.exists(queue).message_count == 20, 15, "all messages are ready again")
    events = taken.drain(queue)
    assert [event.body for event in events] == bodies(1, 20)
    flags = [event.redelivered for event in events]
    assert flags[:5] == [True] * 5, flags
    if how == "stop":
        assert flags[5:] == [False] * 15, flags


def test_a_queue_that_nobody_consumed_is_not_flagged(nodes, target):
    """Messages of a queue from which nothing was ever delivered are not flagged, though all nodes were killed."""
    ch = nodes.channel(1, confirm=True)
    ch.queue_declare("q1")
    fill(ch, "q1", 1, 20)
    nodes.restart_all()
    events = nodes.channel(2).drain("q1")
    assert [(event.body, event.redelivered) for event in events] == [(body, False) for body in bodies(1, 20)]


def test_acked_messages_stay_away(nodes, target):
    """What was acked, and whose ack the broker has answered for, does not come back with kill -9 of the leader, nor of all nodes."""
    queue = queue_led_by(nodes, 1) if not target.rabbitmq else nodes.channel(1).queue_declare("q1").queue
    fill(nodes.channel(2, confirm=True), queue, 1, 100)
    ch = nodes.channel(2)
    for number in range(1, 41):
        event = ch.get(queue, no_ack=False)
        assert event.body == b"%d" % number
        if number % 2 == 0:
            ch.ack(event.delivery_tag)
    ch.close()
    ready(nodes, queue, 80)
    left = [number for number in range(1, 101) if number > 40 or number % 2]
    if not target.rabbitmq:
        nodes.kill(1)
        ready(nodes, queue, 80, [2, 3])
        nodes.start(1)
        led_by(nodes, queue, 1)
        ready(nodes, queue, 80)
    nodes.restart_all()
    ready(nodes, queue, 80)
    assert [int(event.body) for event in nodes.channel(3).drain(queue)] == left


def test_no_ack_consumers_over_failover(nodes, target):
    """A consumer without acks at a living node: each message comes once, in order."""
    target.skip_on("rabbitmq", "a durable classic queue has no other node to go to")
    queue = queue_led_by(nodes, 1)
    ch = nodes.channel(3)
    ch.consume(queue, no_ack=True)
    publisher = nodes.channel(2, confirm=True)
    fill(publisher, queue, 1, 500)
    nodes.kill(1)
    fill(publisher, queue, 501, 1000)
    got = []
    while not got or got[-1] != 1000:
        got.append(int(ch.wait("basic.deliver", timeout=10).body))
    assert got == list(range(1, 1001))
    ready(nodes, queue, 0, [2, 3])


def test_no_ack_gets_over_failover(nodes, target):
    """basic.get without acks from a living node while the leader is killed, and comes back: each message comes once, in order."""
    target.skip_on("rabbitmq", "a durable classic queue has no other node to go to")
    queue = queue_led_by(nodes, 1)
    fill(nodes.channel(3, confirm=True), queue, 1, 3000)
    ch, got = nodes.channel(2), []

    def restart():
        eventually(lambda: len(got) > 300, 20)
        nodes.target.kill(1)
        eventually(lambda: len(got) > 1000, 20)
        nodes.target.start(1)

    restarter = threading.Thread(target=restart)
    restarter.start()
    while (event := ch.get(queue)) is not None:
        got.append(int(event.body))
    restarter.join()
    assert got == list(range(1, 3001)), (len(got), len(set(got)), got[:1], got[-1:])


def test_consumers_that_connect_again(nodes, target):
    """Consumers at the node that goes connect again elsewhere and take up where they were: nothing lost, what came twice is flagged."""
    target.skip_on("rabbitmq", "a durable classic queue has no other node to go to")
    queue = queue_led_by(nodes, 1)
    producer = Producer(target.amqp(2), queue, nodes.vhost, window=30)
    staying, moving = Consumer(target.amqp(3), queue, nodes.vhost), Consumer(target.amqp(1), queue, nodes.vhost)
    for client in (producer, staying, moving):
        client.start()
    eventually(lambda: len(moving.got) > 100 and len(staying.got) > 100, 10, "messages flow")
    nodes.kill(1)
    moving.address = target.amqp(2)
    eventually(lambda: moving.connections == 2 and len(moving.got) > 200, 10, "it consumes at another node")
    before = len(moving.got)
    eventually(lambda: len(moving.got) > before + 100, 10, "messages flow to it there")
    drained([producer], [staying, moving])
    assert producer.nacked == [] and producer.connections == 1 and staying.connections == 1
    accounts([producer], [staying, moving], lived=False)
    ready(nodes, queue, 0, [2, 3])


# --- A30: the queue's home node is down ---


def test_a30_a_durable_queue_whose_node_is_down(nodes, target):
    """Durable queues are replicated: with the leader's node down everything goes on elsewhere, and it comes back to all of it, to the deletions too."""
    target.skip_on("rabbitmq", "a durable classic queue has no other node to go to")
    queue, gone = queue_led_by(nodes, 1), queue_led_by(nodes, 1)
    fill(nodes.channel(1, confirm=True), queue, 1, 100)
    fill(nodes.channel(1, confirm=True), gone, 1, 100)
    consumer = nodes.channel(2)
    consumer.qos(1)
    tag = consumer.consume(gone)
    assert consumer.deliveries(1)[0].body == b"1"
    nodes.kill(1)
    ch = nodes.channel(2, confirm=True)
    ch.exchange_declare("x1", "direct")
    started = time.monotonic()
    assert ch.exists(queue).message_count == 100
    assert ch.queue_declare(queue).message_count == 100
    assert time.monotonic() - started < 5
    other = nodes.channel(3)
    other.send("queue.declare", queue=queue, durable=True, auto_delete=True)
    other.expect_close(406, "queue.declare")
    ch.queue_bind(queue, "x1", "k")
    assert ch.routed("", queue, b"101") and ch.routed("x1", "k", b"102")
    assert nodes.channel(3).get(queue).body == b"1"
    listed = {q["name"] for q in nodes.api(3).get("queues", nodes.vhost)}
    assert {queue, gone} <= listed
    # Deleted while its first node is down.
    deleted = nodes.channel(3).queue_delete(gone).message_count
    assert deleted in (99, 100), deleted
    assert consumer.wait("basic.cancel", timeout=5).consumer_tag == tag
    assert missing(nodes.channel(2), gone)
    nodes.start(1)
    for node in nodes.distinct:
        assert missing(nodes.channel(node), gone), f"{gone} is back on node {node}"
        assert ch.publish_confirmed("", gone, b"m").returned
    led_by(nodes, queue, 1)
    # Declared anew it is empty.
    assert nodes.channel(1).queue_declare(gone).message_count == 0
    assert nodes.channel(2).get(gone) is None
    ready(nodes, queue, 101)
    assert [int(event.body) for event in nodes.channel(1).drain(queue)] == list(range(2, 103))


def test_a30_a_transient_queue_whose_node_is_down(nodes, target):
    """A queue that is not durable goes with its node: its consumer is told, it is 404 and unroutable at once after, and nothing of it comes back."""
    target.skip_on("rabbitmq", "it differs between versions whether it goes with its node")
    queue = queue_led_by(nodes, 1, ask=2, durable=False)
    fill(nodes.channel(2, confirm=True), queue, 1, 100)
    ch = nodes.channel(2)
    ch.qos(1)
    tag = ch.consume(queue)
    assert ch.deliveries(1)[0].body == b"1"
    nodes.kill(1)
    started = time.monotonic()
    outcome = nodes.channel(3, confirm=True).publish_confirmed("", queue, b"m", timeout=10)
    assert outcome.outcome == "nack" or outcome.returned, f"a bare ack for a queue whose node is down: {outcome}"
    assert ch.wait("basic.cancel", timeout=10).consumer_tag == tag
    for node in (2, 3):
        eventually(lambda: missing(nodes.channel(node), queue), 10, "it is gone")
    assert time.monotonic() - started < 10
    for method in ("basic.consume", "basic.get"):
        again = nodes.channel(3)
        again.send(method, queue=queue)
        again.expect_close(404, method, timeout=5)
    assert nodes.channel(3, confirm=True).publish_confirmed("", queue, b"m").returned
    nodes.channel(3).queue_declare(queue, durable=False)
    fill(nodes.channel(3, confirm=True), queue, 201, 210)
    nodes.start(1)
    ready(nodes, queue, 10)
    assert nodes.channel(1).bodies(queue) == bodies(201, 210)


def test_a30_a_minority_serves_nothing_and_heals(nodes, target):
    """Two of three nodes are down: the third confirms nothing and reads nothing, answers within a bounded time, and heals without a restart; what it
    refused never applies later, and what it confirms after all is there."""
    target.skip_on("rabbitmq", "classic queues are served by the node that has them")
    queue = queue_led_by(nodes, 3)
    fill(nodes.channel(3, confirm=True), queue, 1, 50)
    early, late = nodes.channel(3, confirm=True), nodes.connect(3).channel()
    late.confirm_select()
    getter, asker = nodes.connect(3).channel(), nodes.connect(3).channel()
    target.kill(1, 2)
    started = time.monotonic()
    early.publish("", queue, b"early", mandatory=True)  # before it can know: in its log, it may be confirmed later
    getter.send("basic.get", queue=queue, no_ack=True)
    eventually(lambda: not healthy(nodes, 3), 10, "the node says that it does not serve")
    number = late.publish("", queue, b"late", mandatory=True)
    asker.send("queue.declare", queue="new", durable=True)
    with contextlib.suppress(Closed):
        assert late.confirms([number], timeout=15) == {number: "nack"}
    with pytest.raises(Closed):
        asker.wait("queue.declare-ok", timeout=20)
    with pytest.raises(Closed):
        event = getter.wait("basic.get-ok", "basic.get-empty", timeout=20)
        print("a minority reads", event)
    assert not early.quiet(0.1, "basic.ack"), "a minority confirms"
    print(f"all was answered after {time.monotonic() - started:.1f} s")
    nodes.start(1, 2)
    eventually(lambda: nodes.channel(3, confirm=True).publish_confirmed("", queue, b"51").outcome == "ack", 15, "publishes are confirmed again")
    outcome = early.confirms([1], timeout=15)[1] if not early.connection.closed else "unknown"
    got = nodes.channel(1).bodies(queue)
    assert b"late" not in got, "what was refused applied later"
    assert outcome == "unknown" or (b"early" in got) == (outcome == "ack"), (outcome, got[-3:])
    kept = [body for body in got if body not in (b"51", b"early")]
    assert kept == bodies(1, 50), "the get was refused, so its message is still there"


def healthy(nodes, node):
    with contextlib.suppress(ApiError):
        return nodes.target.api(node).request("GET", "health", timeout=5)[0] == 200
    return False
