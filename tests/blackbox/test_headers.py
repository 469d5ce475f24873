"""Headers exchanges: how values compare, what x-match means, and `x-` keys."""

from amqp import V, refused


def make(nodes, **bindings):
    """A headers exchange x1 with a queue for each keyword, bound with its arguments."""
    ch = nodes.channel(1)
    ch.exchange_declare("x1", "headers")
    for number, (queue, arguments) in enumerate(bindings.items()):
        ch = nodes.channel(number % 3 + 1)
        ch.queue_declare(queue)
        ch.queue_bind(queue, "x1", "any key", arguments)


def matches(nodes, headers, *queues):
    """Which of the queues get a message with these headers, whatever node it is published at; each at most once."""
    answers = set()
    for publisher in nodes.publishers():
        routed = publisher.routed("x1", "some other key", b"m", headers=headers)
        found = {queue: len(publisher.bodies(queue)) for queue in queues}
        assert set(found.values()) <= {0, 1}, found
        assert routed == any(found.values()), (headers, found)
        answers.add(tuple(sorted(queue for queue, count in found.items() if count)))
    assert len(answers) == 1, f"nodes differ: {answers}"
    return list(answers.pop())


def test_a07_integers_match_in_any_width(nodes, target):
    """An integer matches the same number in any width; a string, a bool or nothing does not."""
    make(nodes, q1={"x-match": "all", "n": V("I", 1)})
    for tag in "bBsuIil":
        assert matches(nodes, {"n": V(tag, 1)}, "q1") == ["q1"], tag
    assert matches(nodes, {"n": V("S", "1")}, "q1") == []
    assert matches(nodes, {"n": V("I", 2)}, "q1") == []
    assert matches(nodes, {}, "q1") == []
    assert matches(nodes, None, "q1") == []
    with target.differs("rabbitmq", "3.10.8 compares numbers across classes", strict=False):
        assert matches(nodes, {"n": V("t", True)}, "q1") == []
        assert matches(nodes, {"n": V("d", 1.0)}, "q1") == []


def test_a07_match_modes(nodes):
    """all is the default; any needs one; `x-` keys count only for the -with-x modes; no arguments: all matches, any does not."""
    make(
        nodes,
        default={"a": 1, "b": 2},
        any={"x-match": "any", "a": 1, "b": 2},
        plain={"x-match": "all", "x-k": 1, "c": 1},
        withx={"x-match": "all-with-x", "x-k": 1, "c": 1},
        anywithx={"x-match": "any-with-x", "x-k": 7},
        anyplain={"x-match": "any", "x-k": 7},
        presence={"x-match": "all", "d": None},
    )
    queues = ("default", "any", "plain", "withx", "anywithx", "anyplain", "presence")
    assert matches(nodes, {"a": 1}, *queues) == ["any"]
    assert matches(nodes, {"b": 2}, *queues) == ["any"]
    assert matches(nodes, {"a": 1, "b": 2, "z": 5}, *queues) == ["any", "default"]
    assert matches(nodes, {"a": 2, "b": 1}, *queues) == []
    assert matches(nodes, {}, *queues) == []
    assert matches(nodes, {"c": 1}, *queues) == ["plain"]
    assert matches(nodes, {"c": 1, "x-k": 1}, *queues) == ["plain", "withx"]
    assert matches(nodes, {"x-k": 7}, *queues) == ["anywithx"]
    assert matches(nodes, {"d": "whatever"}, *queues) == ["presence"]
    assert matches(nodes, {"d": None}, *queues) == ["presence"]
    assert matches(nodes, {"x-match": "any"}, *queues) == []


def test_a07_no_criteria(nodes):
    """A binding without criteria: all matches every message, any matches none."""
    make(nodes, all={"x-match": "all"}, none={}, any={"x-match": "any"})
    for headers in ({}, {"a": 1}, None):
        assert matches(nodes, headers, "all", "none", "any") == ["all", "none"], headers


def test_a07_different_criteria_on_one_exchange(nodes):
    """Each message goes to the one queue whose criteria it meets; types matter, the routing key does not."""
    make(
        nodes,
        red={"x-match": "all", "colour": "red"},
        blue={"x-match": "all", "colour": "blue", "size": 3},
        text={"x-match": "all", "size": "3"},
        flag={"x-match": "all", "flag": True},
    )
    queues = ("red", "blue", "text", "flag")
    assert matches(nodes, {"colour": "red", "size": 3}, *queues) == ["red"]
    assert matches(nodes, {"colour": "blue", "size": V("l", 3)}, *queues) == ["blue"]
    assert matches(nodes, {"size": "3"}, *queues) == ["text"]
    assert matches(nodes, {"flag": True}, *queues) == ["flag"]
    assert matches(nodes, {"flag": False}, *queues) == []
    assert matches(nodes, {"colour": "Red"}, *queues) == []


def test_a07_bad_x_match_is_refused(nodes):
    """Any other x-match is 406 and no binding is made."""
    make(nodes, q1={"x-match": "all", "a": 1})
    connection = nodes.connect(2)
    for value in ("some", "", 5):
        refused(connection, 406, "queue.bind", queue="q1", exchange="x1", arguments={"x-match": value, "b": 1})
    for api in nodes.apis():
        assert len(nodes.bindings(api, "x1")) == 1
