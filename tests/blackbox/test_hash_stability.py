"""The hash ring is a function of the bindings: no restart moves a key between queues that still exist.

Where ten thousand keys go is recorded, through a ring of durable and non-durable queues. Then nodes are killed and started one by one and all
at once, and it is recorded again. A non-durable queue that went with its node gives its keys to the others, and gets the very same keys back when it is
declared and bound again.
"""

import os

import pytest

from helpers import missing
from targets import eventually

KEYS = int(os.environ.get("WARREN_HASH_KEYS", "10000"))
DURABLE = [f"d{number}" for number in range(5)]
FLEETING = [f"f{number}" for number in range(5)]
WEIGHTS = {queue: str(1 + number % 4) for number, queue in enumerate(DURABLE + FLEETING)}


def record(nodes, node, queues):
    """Publishes every key at one node and takes the messages out: the queue of each key. Every key has exactly one."""
    publisher = nodes.channel(node, confirm=True)
    for start in range(0, KEYS, 2000):
        part = range(start, min(start + 2000, KEYS))
        publisher.connection.send_raw(
            b"".join(publisher.publish_bytes("ring", f"key-{number}", b"%d" % number, mandatory=True) for number in part)
        )
        publisher.published += len(part)
    outcomes = publisher.confirms(range(1, KEYS + 1), timeout=60)
    assert set(outcomes.values()) == {"ack"}
    assert not [event for event in publisher.connection.inbox[publisher.number] if event.name == "basic.return"]
    publisher.close()
    homes = {}
    for queue in queues:
        ch = nodes.channel(node)
        expected = ch.exists(queue).message_count
        ch.consume(queue, "take", no_ack=True)
        for event in ch.deliveries(expected, timeout=30):
            key = int(event.body)
            assert key not in homes, f"key {key} is in {homes[key]} and {queue}"
            homes[key] = queue
        ch.cancel("take")
        ch.close()
    assert len(homes) == KEYS, f"{KEYS - len(homes)} keys went nowhere"
    return homes


def settled(nodes, queues):
    """Every queue takes messages again from every node: a nack is an honest answer for a moment after a restart, not for long."""
    for publisher in nodes.publishers():
        for queue in queues:
            eventually(lambda: publisher.publish_confirmed("", queue, b"0").outcome == "ack", 5, f"{queue} takes messages")
    for queue in queues:
        nodes.channel(1).queue_purge(queue)


def declare(nodes, node, queue):
    ch = nodes.channel(node)
    ch.queue_declare(queue, durable=queue in DURABLE)
    ch.queue_bind(queue, "ring", WEIGHTS[queue])


def owned(nodes, numbers):
    """The queues that these nodes own, by the HTTP API."""
    names = {f"node{number}" for number in numbers}
    return {queue["name"] for queue in nodes.api(1).get("queues", nodes.vhost) if queue["node"] in names}


def living(nodes):
    """The queues that are there, which each node must answer alike."""
    answers = {tuple(queue for queue in WEIGHTS if not missing(nodes.channel(node), queue)) for node in nodes.distinct}
    assert len(answers) == 1, answers
    return list(answers.pop())


def compare(before, after, queues):
    """No key whose queue is still there has moved."""
    moved = [key for key, queue in before.items() if queue in queues and after[key] != queue]
    assert not moved, f"{len(moved)} of {KEYS} keys moved, as {[(key, before[key], after[key]) for key in moved[:5]]}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_restarts_move_no_key(nodes, target):
    """Each node in turn, then all at once: keys of queues that still exist stay; lost queues' keys come back with them."""
    target.skip_on("rabbitmq", "3.10.8 builds another ring after a restart (its consistent-hash-exchange#32 and #45)")
    nodes.channel(1).exchange_declare("ring", "x-consistent-hash")
    for number, queue in enumerate(WEIGHTS):
        declare(nodes, number % 3 + 1, queue)
    homes = record(nodes, 1, WEIGHTS)
    assert set(homes.values()) == set(WEIGHTS), "every queue has keys"
    for node in nodes.distinct:
        assert record(nodes, node, WEIGHTS) == homes, f"node {node} routes differently"

    lost_once = set()
    for restarted in [[node] for node in target.all()] + [target.all()]:
        gone = owned(nodes, restarted) & set(FLEETING)
        there = [queue for queue in WEIGHTS if queue not in gone]
        nodes.forget(*target.all())
        target.restart(*restarted)
        eventually(lambda: living(nodes) == there, 10, f"after {restarted}: only the non-durable queues {gone} are gone")
        lost_once |= gone
        settled(nodes, there)
        for node in nodes.distinct:
            compare(homes, record(nodes, node, there), there)
        for queue in gone:
            declare(nodes, restarted[0], queue)
        settled(nodes, gone)
        assert record(nodes, nodes.distinct[-1], WEIGHTS) == homes, f"after {restarted}: not the same keys came back"
    assert lost_once == set(FLEETING), "every non-durable queue went with its node at least once"


@pytest.mark.calm("queues that are not durable go with their nodes")
def test_a_queue_declared_again_gets_its_keys_back(nodes, target):
    """Deleting a queue of the ring gives its keys to others and moves none between the rest; the same queue gets the same keys back."""
    target.skip_on("rabbitmq", "3.10.8 numbers its buckets, so that others' keys move")
    nodes.channel(1).exchange_declare("ring", "x-consistent-hash")
    for number, queue in enumerate(WEIGHTS):
        declare(nodes, number % 3 + 1, queue)
    homes = record(nodes, 1, WEIGHTS)
    nodes.channel(2).queue_delete("d1")
    rest = [queue for queue in WEIGHTS if queue != "d1"]
    after = record(nodes, 3, rest)
    compare(homes, after, rest)
    assert len({after[key] for key, queue in homes.items() if queue == "d1"}) > 1, "d1's keys all went to one queue"
    declare(nodes, 3, "d1")
    assert record(nodes, 1, WEIGHTS) == homes


def test_order_of_binding_does_not_matter(nodes, target):
    """An exchange made anew with the same bindings in the opposite order, at other nodes, sends every key to the same queue."""
    target.skip_on("rabbitmq", "3.10.8 numbers its buckets in the order of binding")
    queues = ["a", "b", "c", "d"]
    for queue in queues:
        nodes.channel(1).queue_declare(queue)
    homes = []
    for order in (queues, list(reversed(queues))):
        nodes.channel(2).exchange_declare("ring", "x-consistent-hash")
        for number, queue in enumerate(order):
            nodes.channel(number % 3 + 1).queue_bind(queue, "ring", str(1 + queues.index(queue)))
        publisher = nodes.channel(3, confirm=True)
        for key in range(500):
            publisher.publish("ring", f"k{key}", b"%d" % key, mandatory=True)
        publisher.confirms(range(1, 501))
        homes.append({queue: sorted(nodes.channel(1).bodies(queue)) for queue in queues})
        nodes.channel(1).exchange_delete("ring")
    assert homes[0] == homes[1]
    assert sum(len(bodies) for bodies in homes[0].values()) == 500
