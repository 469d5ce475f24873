"""Publisher confirms and returns, and what happens to traffic behind a channel that the broker has closed."""

import random

import wire
from amqp import ChannelClosed, ConnectionClosed
from helpers import missing


def check_covered_once(events, numbers):
    """Every number is covered by exactly one ack or nack; the event that covers each number."""
    open_numbers, covering = set(numbers), {}
    for event in events:
        if event.name not in ("basic.ack", "basic.nack"):
            continue
        covered = {n for n in open_numbers if n <= event.delivery_tag} if event.multiple else {event.delivery_tag}
        assert covered and covered <= open_numbers, f"{event!r} covers what is confirmed already"
        open_numbers -= covered
        covering |= dict.fromkeys(covered, event)
    assert not open_numbers, f"never confirmed: {sorted(open_numbers)[:20]}"
    return covering


def test_a13_return_precedes_the_ack(nodes):
    """Of a pipelined mix, every unroutable mandatory message is returned whole before any ack that covers its number."""
    for node in (1, 2, 3):
        nodes.channel(node).queue_declare(f"q{node}")
    connection = nodes.connect(1)
    ch = connection.channel()
    for _ in range(3):
        ch.publish("", "q1", b"before confirm.select")
    ch.confirm_select()

    dice = random.Random(13)
    unroutable, silent, data = {}, set(), []
    for number in range(1, 1001):
        body = b"%d " % number * dice.choice([0, 1, 30, 3000])
        mandatory = dice.random() < 0.9
        if dice.random() < 0.5:
            key = f"q{dice.randint(1, 3)}"
        else:
            key = f"none{number % 3}"
            if mandatory:
                unroutable[number] = (key, body)
            else:
                silent.add(number)
        data.append(ch.publish_bytes("", key, body, mandatory=mandatory, headers={"number": number}))
    connection.send_raw(b"".join(data))

    inbox = connection.inbox[ch.number]
    connection.pump_for(30, until=lambda: inbox and inbox[-1].name == "basic.ack" and covered_up_to(inbox) == 1000)
    covering = check_covered_once(inbox, range(1, 1001))
    assert {event.name for event in covering.values()} == {"basic.ack"}
    returned = {event.headers["number"]: event for event in inbox if event.name == "basic.return"}
    assert len([event for event in inbox if event.name == "basic.return"]) == len(returned)
    assert returned.keys() == unroutable.keys()
    assert silent and not silent & returned.keys()
    for number, event in returned.items():
        key, body = unroutable[number]
        assert (event.reply_code, event.reply_text, event.exchange) == (312, "NO_ROUTE", "")
        assert (event.routing_key, event.body) == (key, body)
        assert event.last_seq < covering[number].seq, f"{number} was acked before its return was complete"
    # Frames of one return stand together: method, header and bodies without another frame of the channel between.
    for event in returned.values():
        between = connection.frames[event.seq + 1 : event.last_seq + 1]
        assert all(kind in (wire.FRAME_HEADER, wire.FRAME_BODY) for kind, channel, _, _ in between if channel == ch.number)


def covered_up_to(inbox):
    """How many numbers the acks so far cover (the first pass; the exact check follows)."""
    singles, upto = set(), 0
    for event in inbox:
        if event.name == "basic.ack":
            if event.multiple:
                upto = max(upto, event.delivery_tag)
            else:
                singles.add(event.delivery_tag)
    return upto + len({n for n in singles if n > upto})


def test_confirm_numbers_start_at_one(nodes):
    """Selecting again changes nothing: the numbers go on."""
    ch = nodes.channel(2, confirm=True)
    ch.queue_declare("q1")
    assert ch.confirms([ch.publish("", "q1")]) == {1: "ack"}
    ch.call("confirm.select")
    assert ch.confirms([ch.publish("", "q1")]) == {2: "ack"}


def test_confirms_and_transactions_exclude_each_other(nodes, target):
    """tx.select on a channel in confirm mode is 406."""
    target.skip_on("warren", "transactions come in a later release; until then tx.select is 540 (see below)")
    ch = nodes.channel(2, confirm=True)
    ch.send("tx.select")
    ch.expect_close(406, "tx.select")


def test_transactions_are_refused_until_they_exist(nodes, target):
    """tx.select is an honest 540, not a transaction that guarantees nothing."""
    target.skip_on("rabbitmq", "it has transactions")
    connection = nodes.connect(2)
    connection.channel().send("tx.select")
    connection.expect_close(540, method="tx.select")


def close_behind_a_bad_publish(nodes):
    """Channel 1 in confirm mode has sent 10 good publishes, a bad one and much more; channel 2 has a consumer."""
    nodes.channel(2).queue_declare("q1")
    nodes.channel(3).queue_declare("q2")
    connection = nodes.connect(1)
    first, second = connection.channel(1), connection.channel(2)
    connection.hold_close_ok.add(1)
    first.confirm_select()
    second.confirm_select()
    second.consume("q2", "keep", no_ack=True)
    data = [first.publish_bytes("", "q1", b"good") for _ in range(10)]
    data.append(first.publish_bytes("none", "k", b"bad"))
    for number in range(1000):
        data.append(first.publish_bytes("", "q1", b"late" * 50))
        if number % 10 == 0:
            data.append(second.publish_bytes("", "q2", b"%d" % number, mandatory=True))
    data.append(wire.method_frame(1, "queue.declare", queue="never", durable=True))
    data.append(wire.method_frame(1, "basic.ack", delivery_tag=1))
    connection.send_raw(b"".join(data))
    closed = first.expect_close(404)
    assert (closed.class_id, closed.method_id) == (60, 40), closed
    return connection, first, second


def check_what_was_done(nodes, second):
    """Ten messages and nothing after them; channel 2 got all of its own."""
    second.confirms(range(1, 101))
    assert [event.body for event in second.deliveries(100)] == [b"%d" % number for number in range(0, 1000, 10)]
    assert nodes.channel(3).bodies("q1") == [b"good"] * 10
    assert missing(nodes.channel(2), "never")


def test_a19_pipelined_traffic_after_a_channel_close(nodes):
    """What follows the failing publish is discarded; the channel number can be opened anew at once and starts from nothing."""
    connection, first, second = close_behind_a_bad_publish(nodes)
    nodes.channel(2).queue_declare("q3")  # not q2, whose messages may still be on their way: a consumer more would get its share of them
    acked = {event.name for event in connection.inbox[1]}
    assert acked <= {"basic.ack"}, acked
    del connection.channel_closed[1]
    connection.inbox[1].clear()
    connection.send_raw(
        wire.method_frame(1, "channel.close-ok")
        + wire.method_frame(1, "channel.open")
        + wire.method_frame(1, "basic.consume", queue="q3", consumer_tag="new")
    )
    connection.wait(1, "channel.open-ok")
    connection.wait(1, "basic.consume-ok")
    check_what_was_done(nodes, second)

    first.publish("", "q3", b"unconfirmed")
    assert first.deliveries(1)[0].delivery_tag == 1
    assert first.quiet(0.3) == [], "the new channel is not in confirm mode"
    first.confirm_select()
    assert first.confirms([first.publish("", "q1", b"x")]) == {1: "ack"}
    assert connection.alive


def test_a19_publish_without_opening(nodes):
    """After close-ok the number is not open: a publish on it is 504 for the connection."""
    connection, first, second = close_behind_a_bad_publish(nodes)
    check_what_was_done(nodes, second)
    connection.send_raw(wire.method_frame(1, "channel.close-ok") + first.publish_bytes("", "q1", b"not open"))
    connection.expect_close(504)
    assert nodes.channel(2).bodies("q1") == []


def test_content_of_a_closed_channel_may_end_later(nodes):
    """The channel is closed between a publish's method and its content: the rest is discarded without a frame error."""
    connection = nodes.connect(2)
    ch = connection.channel(1)
    ch.queue_declare("q1")
    connection.hold_close_ok.add(1)
    bad, rest = ch.publish_bytes("none", "k", b"bad"), ch.publish_bytes("", "q1", b"x" * 300)
    cut = len(rest) - 200
    connection.send_raw(bad + rest[:cut])
    ch.expect_close(404, "basic.publish")
    connection.send_raw(rest[cut:] + wire.method_frame(1, "channel.close-ok"))
    assert connection.channel(1).bodies("q1") == []


def test_immediate_is_not_implemented(nodes):
    """basic.publish with immediate set is 540 for the connection."""
    connection = nodes.connect(2)
    ch = connection.channel()
    ch.publish("", "q1", b"m", immediate=True)
    connection.expect_close(540)
    assert isinstance(connection.closed, ConnectionClosed)


def test_opening_an_open_channel(nodes):
    """A second channel.open on an open channel is 504; use of one that is not open too."""
    connection = nodes.connect(1)
    connection.channel(7)
    connection.send(7, "channel.open")
    assert "second 'channel.open' seen" in connection.expect_close(504).text
    connection = nodes.connect(2)
    connection.send(3, "basic.qos")
    connection.expect_close(504)


def test_a_channel_error_leaves_other_channels_alone(nodes):
    """Deliveries, unacked messages and confirms of the connection's other channels go on."""
    connection = nodes.connect(3)
    ch = connection.channel()
    ch.confirm_select()
    ch.queue_declare("q1")
    tag = ch.consume("q1")
    assert ch.routed("", "q1", b"one")
    held = ch.deliveries(1)[0]
    bad = connection.channel()
    try:
        bad.exists("none")
    except ChannelClosed as closed:
        assert closed.code == 404
    assert ch.routed("", "q1", b"two")
    assert ch.deliveries(1)[0].body == b"two"
    ch.ack(held.delivery_tag)
    ch.cancel(tag)
    assert ch.exists("q1").message_count == 0
