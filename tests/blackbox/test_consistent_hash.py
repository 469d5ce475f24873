"""x-consistent-hash: weights, bindings listed twice, and shares."""

import pytest

from amqp import ChannelClosed, refused
from helpers import spread_evenly
from targets import ApiError

KEYS = 10_000


def publish_keys(nodes, queues, keys=KEYS, exchange="x1", stem="key"):
    """Publishes distinct keys, mandatory and confirmed, spread over the nodes: how many each queue got, and how many came back."""
    publishers = nodes.publishers()
    for number in range(keys):
        publisher = publishers[number % len(publishers)]
        publisher.publish(exchange, f"{stem}{number}", b"", mandatory=True)
    returned = 0
    for publisher in publishers:
        outcomes = publisher.confirms(range(1, publisher.published + 1), timeout=60)
        assert set(outcomes.values()) == {"ack"}
        returned += sum(event.name == "basic.return" for event in publisher.connection.inbox[publisher.number])
    ch = nodes.channel(1)
    counts = [ch.exists(queue).message_count for queue in queues]
    for queue in queues:
        ch.queue_purge(queue)
    assert sum(counts) + returned == keys, f"{counts} and {returned} returned of {keys}"
    return counts, returned


def hash_exchange(nodes, queues=("q1", "q2")):
    ch = nodes.channel(1)
    ch.exchange_declare("x1", "x-consistent-hash")
    for queue in queues:
        ch.queue_declare(queue)
    return ch


def duplicate_bindings(nodes, target, restart):
    """The scenario A08, with something done between its steps."""
    hash_exchange(nodes)
    bind = [("q1", "1", None), ("q1", "10", None), ("q1", "1", {"a": 1}), ("q2", "1", None)]
    for node, (queue, weight, arguments) in enumerate(bind):
        nodes.channel(node % 3 + 1).queue_bind(queue, "x1", weight, arguments)
    (q1, q2), returned = publish_keys(nodes, ("q1", "q2"))
    assert returned == 0 and q1 > 0 and q2 > 0
    for node, (queue, weight, arguments) in ((2, ("q1", "10", None)), (3, ("q1", "1", {"a": 1}))):
        nodes.channel(node).queue_unbind(queue, "x1", weight, arguments)
        restart(node)
        with target.differs("rabbitmq", "3.10.8 drops the queue from the ring with any duplicate, until a restart", strict=False):
            (q1, q2), returned = publish_keys(nodes, ("q1", "q2"))
            assert returned == 0 and q1 > 0 and q2 > 0
    nodes.channel(1).queue_unbind("q1", "x1", "1")
    restart(1)
    counts, returned = publish_keys(nodes, ("q1", "q2"))
    assert (counts, returned) == ([0, KEYS], 0)
    nodes.channel(2).queue_unbind("q2", "x1", "1")
    assert publish_keys(nodes, ("q1", "q2"), 300) == ([0, 0], 300)


def test_a08_duplicate_bindings(nodes, target):
    """A queue bound several times stays in the ring until its last binding goes; every message has exactly one queue."""
    duplicate_bindings(nodes, target, lambda node: None)


@pytest.mark.slow
def test_a08_duplicate_bindings_and_restarts(nodes, target):
    """The same with a node killed and started between the steps."""
    duplicate_bindings(nodes, target, nodes.restart)


BAD_WEIGHTS = ["abc", "", "0", "-1", "1.5", " 1", "1 "]


def test_a09_bad_weights_are_refused(nodes, target):
    """A weight that is no integer from 1 up is 406 and leaves no binding on any node."""
    hash_exchange(nodes)
    connection = nodes.connect(2)
    for weight in BAD_WEIGHTS:
        refused(connection, 406, "queue.bind", queue="q1", exchange="x1", routing_key=weight)
        for api in nodes.apis():
            assert nodes.bindings(api, "x1") == [], f"weight {weight!r}"
    assert publish_keys(nodes, ("q1",), 3) == ([0], 3)


def test_a09_bad_weights_over_http(nodes):
    """The HTTP API refuses the same weights with 4xx, and takes good ones."""
    hash_exchange(nodes)
    path = ("bindings", nodes.vhost, "e", "x1", "q", "q1")
    for weight in BAD_WEIGHTS:
        with pytest.raises(ApiError) as error:
            nodes.api(2).post(*path, body={"routing_key": weight, "arguments": {}})
        assert 400 <= error.value.status < 500, error.value
        for api in nodes.apis():
            assert nodes.bindings(api, "x1") == [], f"weight {weight!r}"
    nodes.api(3).post(*path, body={"routing_key": "2", "arguments": {}})
    assert publish_keys(nodes, ("q1",), 3) == ([3], 0)


@pytest.mark.calm("it compares the memory of all nodes")
@pytest.mark.parametrize("weight", ["100000000", "99999999999999999999"])
def test_a09_huge_weights_cost_nothing(nodes, target, weight):
    """A huge weight is refused, or taken without memory in proportion to it; the exchange goes on routing."""
    target.skip_on("rabbitmq", "3.10.8 allocates its ring in proportion to the weight (its server#16118)")
    hash_exchange(nodes)
    before = {node: target.rss(node) for node in target.all()}
    ch = nodes.channel(2)
    ch.send("queue.bind", queue="q1", exchange="x1", routing_key=weight)
    refusal = None
    try:
        ch.wait("queue.bind-ok")
    except ChannelClosed as error:
        refusal = error
        assert error.code == 406, error
    for node in target.all():
        assert target.rss(node) - before[node] < 64 << 20, f"node {node}"
    for api in nodes.apis():
        assert len(nodes.bindings(api, "x1")) == (0 if refusal else 1)
    expected = ([0], 3) if refusal else ([3], 0)
    assert publish_keys(nodes, ("q1",), 3) == expected


@pytest.mark.parametrize(
    "weights, tolerance", [((1, 1), 0.05), ((1, 3), 0.05), ((1, 2, 5), 0.05), ((10, 10), 0.05)], ids=["1:1", "1:3", "1:2:5", "10:10"]
)
def test_a09_shares_follow_weights(nodes, target, weights, tolerance):
    """Queues get shares near their weights', for keys as alike as user1, user2, …."""
    if target.rabbitmq:
        tolerance = 0.06  # its jump hash over few buckets
    queues = [f"q{number}" for number in range(len(weights))]
    ch = hash_exchange(nodes, queues)
    for queue, weight in zip(queues, weights, strict=True):
        ch.queue_bind(queue, "x1", str(weight))
    counts, returned = publish_keys(nodes, queues, stem="user")
    assert returned == 0
    spread_evenly(counts, [weight / sum(weights) for weight in weights], tolerance)


def test_one_key_one_queue_at_every_node(nodes):
    """A key goes to the same queue whichever node it is published at."""
    queues = ["q0", "q1", "q2", "q3"]
    ch = hash_exchange(nodes, queues)
    for queue in queues:
        ch.queue_bind(queue, "x1", "3")
    for publisher in nodes.publishers():
        for key in range(200):
            assert publisher.routed("x1", f"k{key}", f"{key}".encode())
    keys = [sorted(set(ch.bodies(queue))) for queue in queues]
    assert sum(len(some) for some in keys) == 200, "some key reached two queues"


@pytest.mark.parametrize("by", ["hash-header", "message_id", "correlation_id", "timestamp"])
def test_hash_by_header_or_property(nodes, by):
    """hash-header and hash-property choose what is hashed; the routing key then plays no part."""
    ch = nodes.channel(1)
    arguments = {"hash-header": "h"} if by == "hash-header" else {"hash-property": by}
    ch.exchange_declare("x1", "x-consistent-hash", arguments=arguments)
    for queue in ("q1", "q2"):
        ch.queue_declare(queue)
        ch.queue_bind(queue, "x1", "1")

    def properties(number):
        if by == "hash-header":
            return {"headers": {"h": f"value{number}"}}
        return {by: number if by == "timestamp" else f"value{number}"}

    for publisher in nodes.publishers():
        for number in range(100):
            assert publisher.routed("x1", f"k{number % 7}", f"{number}".encode(), properties=properties(number))
    split = [set(ch.bodies(queue)) for queue in ("q1", "q2")]
    assert not split[0] & split[1]
    assert len(split[0] | split[1]) == 100 and min(map(len, split)) >= 20, [len(part) for part in split]


def test_hash_header_and_property_together(nodes):
    """Both at once is 406."""
    arguments = {"hash-header": "h", "hash-property": "message_id"}
    refused(nodes.connect(1), 406, "exchange.declare", exchange="x1", type="x-consistent-hash", arguments=arguments)
    refused(nodes.connect(1), 406, "exchange.declare", exchange="x1", type="x-consistent-hash", arguments={"hash-property": "no_such"})
