"""Classic and quorum queues: both are replicated here, and each has RabbitMQ's own rules for properties, arguments and equivalence."""

import pytest

from amqp import V, refused

QUORUM, CLASSIC = {"x-queue-type": "quorum"}, {"x-queue-type": "classic"}


def refusal(nodes, code, queue="q1", **declare):
    """The text with which a declare is refused, the same at every node."""
    declare = {"durable": True, "exclusive": False, "auto_delete": False, "passive": False, **declare}
    texts = {refused(nodes.channel(node).connection, code, "queue.declare", queue=queue, **declare).text for node in nodes.distinct}
    assert len(texts) == 1, texts
    return texts.pop()


@pytest.mark.parametrize(
    ("declare", "name"),
    [({"durable": False}, "non-durable"), ({"exclusive": True}, "exclusive-owner"), ({"auto_delete": True}, "auto-delete")],
    ids=["non-durable", "exclusive", "auto-delete"],
)
def test_a_quorum_queue_is_durable_shared_and_stays(nodes, target, declare, name):
    """A quorum queue cannot be transient, exclusive or auto-delete: 406, and there is no queue. A classic one can."""
    text = refusal(nodes, 406, arguments=QUORUM, **declare)
    assert text.startswith("PRECONDITION_FAILED - invalid property") and name in text, text
    ch = nodes.channel(1)
    assert [q["name"] for q in nodes.api(2).get("queues", nodes.vhost)] == []
    ch.queue_declare("q1", arguments=CLASSIC, **declare)


@pytest.mark.parametrize("argument", ["x-max-priority", "x-queue-mode", "x-queue-version"])
def test_what_only_classic_queues_know(nodes, target, argument):
    """Arguments of classic queues: refused for a quorum queue with 406, naming the argument."""
    value = "default" if argument == "x-queue-mode" else 1
    if argument == "x-queue-version":
        target.skip_on("rabbitmq", "3.10.8 does not check it")
    text = refusal(nodes, 406, arguments={**QUORUM, argument: value})
    assert argument in text and "invalid arg" in text, text
    nodes.channel(1).queue_declare("q1", arguments={**CLASSIC, argument: value})
    nodes.channel(2).queue_declare("q2", arguments={argument: value})


@pytest.mark.parametrize(("argument", "value"), [("x-quorum-initial-group-size", 3), ("x-delivery-limit", 5), ("x-dead-letter-strategy", "at-least-once")])
@pytest.mark.parametrize("arguments", [CLASSIC, {}], ids=["classic", "no type"])
def test_what_only_quorum_queues_know(nodes, target, argument, value, arguments):
    """Arguments of quorum queues: refused for a classic queue, and for one without a type, with 406; fine for a quorum queue."""
    text = refusal(nodes, 406, arguments={**arguments, argument: value})
    assert argument in text and "invalid arg" in text, text
    more = {"x-overflow": "reject-publish", "x-dead-letter-exchange": "amq.fanout"} if argument == "x-dead-letter-strategy" else {}
    nodes.channel(3).queue_declare("q1", arguments={**QUORUM, argument: value, **more})


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_initial_group_size(nodes, size):
    """Any size from 1 is taken, also one that the cluster has not so many nodes for; the queue works and shows the argument as it was sent."""
    arguments = {**QUORUM, "x-quorum-initial-group-size": size}
    nodes.channel(1).queue_declare("q1", arguments=arguments)
    nodes.channel(3).queue_declare("q1", arguments={**QUORUM, "x-quorum-initial-group-size": V("l", size)})
    for api in nodes.apis():
        assert api.get("queues", nodes.vhost, "q1")["arguments"] == arguments
    publisher = nodes.channel(2, confirm=True)
    assert publisher.routed("", "q1", b"m")
    assert nodes.channel(3).get("q1").body == b"m"
    text = refusal(nodes, 406, arguments={**QUORUM, "x-quorum-initial-group-size": size + 1})
    assert "inequivalent arg 'x-quorum-initial-group-size'" in text, text


@pytest.mark.parametrize("size", [0, -1, "3", 2.5, True], ids=str)
def test_initial_group_sizes_that_are_none(nodes, size):
    """Zero, negative numbers and what is no integer: 406."""
    assert "x-quorum-initial-group-size" in refusal(nodes, 406, arguments={**QUORUM, "x-quorum-initial-group-size": size})


def test_types_are_compared(nodes):
    """A redeclare with another type is 406 with both values in the text; the default type may be named or left out."""
    ch = nodes.channel(1)
    ch.queue_declare("q1", arguments=QUORUM)
    ch.queue_declare("q2", arguments=CLASSIC)
    ch.queue_declare("q3")
    for node in nodes.distinct:
        again = nodes.channel(node)
        again.queue_declare("q1", arguments=QUORUM)
        for queue in ("q2", "q3"):
            again.queue_declare(queue, arguments=CLASSIC)
            again.queue_declare(queue)
    listed = {q["name"]: q["type"] for q in nodes.api(3).get("queues", nodes.vhost)}
    assert listed == {"q1": "quorum", "q2": "classic", "q3": "classic"}
    text = refusal(nodes, 406, "q1", arguments=CLASSIC)
    assert "inequivalent arg 'x-queue-type' for queue 'q1'" in text and "'classic'" in text and "'quorum'" in text, text
    text = refusal(nodes, 406, "q1")
    assert "inequivalent arg 'x-queue-type' for queue 'q1'" in text and "'quorum'" in text, text
    for queue in ("q2", "q3"):
        assert f"inequivalent arg 'x-queue-type' for queue '{queue}'" in refusal(nodes, 406, queue, arguments=QUORUM)


def test_unknown_types(nodes):
    """An unknown type, and one that is no text, are refused: 406 here and in RabbitMQ 4; nothing is declared."""
    for kind in ("heap", "", 1, "Quorum"):
        assert "x-queue-type" in refusal(nodes, 406, arguments={"x-queue-type": kind})
    assert nodes.api(2).get("queues", nodes.vhost) == []


def test_arguments_that_nobody_knows_are_not_compared(nodes):
    """Unknown arguments are kept and shown, for either type, and a redeclare without them is fine."""
    for queue, arguments in (("q1", QUORUM), ("q2", CLASSIC)):
        nodes.channel(1).queue_declare(queue, arguments={**arguments, "x-mine": 1})
        nodes.channel(2).queue_declare(queue, arguments=arguments)
        assert nodes.api(3).get("queues", nodes.vhost, queue)["arguments"] == {**arguments, "x-mine": 1}


def test_types_over_http(nodes):
    """The HTTP API declares with the same rules, and what it declared is equivalent over AMQP."""
    body = {"durable": True, "arguments": {"x-queue-type": "quorum", "x-quorum-initial-group-size": 3}}
    assert nodes.api(1).put("queues", nodes.vhost, "q1", body=body) == 201
    assert nodes.api(2).put("queues", nodes.vhost, "q1", body=body) == 204
    nodes.channel(3).queue_declare("q1", arguments=body["arguments"])
    assert "inequivalent arg 'x-queue-type'" in refusal(nodes, 406, "q1")


def test_transient_messages_of_a_durable_queue_are_kept_like_any(nodes):
    """delivery_mode 1 in a replicated queue: routed, confirmed and delivered like any other."""
    for queue, arguments in (("q1", QUORUM), ("q2", CLASSIC)):
        nodes.channel(1).queue_declare(queue, arguments=arguments)
        publisher = nodes.channel(2, confirm=True)
        for number in range(20):
            assert publisher.routed("", queue, b"%d" % number, properties={"delivery_mode": 1 + number % 2})
        events = nodes.channel(3).drain(queue)
        assert [event.body for event in events] == [b"%d" % number for number in range(20)]
        assert [event.properties["delivery_mode"] for event in events] == [1, 2] * 10
