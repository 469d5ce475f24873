"""Nodes join, die for good and are replaced while clients publish and consume: replicas move, and nothing is lost, doubled or out of order for whoever stays."""

import shutil
import signal
import time

import pytest

from amqp import Connection
from load import Consumer, Producer, accounts, drained
from own import own_cluster
from targets import ApiError, eventually

QUEUES = 6
MOVED_S = 60

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def cluster(tmp_path):
    with own_cluster(tmp_path / "cluster") as cluster:
        yield cluster


class Load:
    """A producer and a consumer for each of some queues, at different nodes; and queues that only keep what they have."""

    def __init__(self, cluster, nodes, kept=500):
        self.cluster, self.kept = cluster, kept
        with Connection(cluster.amqp(nodes[0]), timeout=30) as connection:
            ch = connection.channel()
            ch.confirm_select()
            for number in range(QUEUES):
                kind = {"x-queue-type": ("classic", "quorum")[number % 2]}
                ch.queue_declare(f"load{number}", arguments=kind)
                ch.queue_declare(f"kept{number}", arguments=kind)
                for n in range(kept):
                    ch.publish("", f"kept{number}", b"%d" % n + b"." * 1000, mandatory=True, properties={"delivery_mode": 2})
            assert set(ch.confirms(range(1, QUEUES * kept + 1), timeout=60).values()) == {"ack"}
        at = lambda number: cluster.amqp(nodes[number % len(nodes)])  # noqa: E731
        self.producers = [Producer(at(n), f"load{n}", prefix=f"p{n}-", window=10, pause_s=0.002, size=500) for n in range(QUEUES)]
        self.consumers = [Consumer(at(n + 1), f"load{n}") for n in range(QUEUES)]
        for client in (*self.consumers, *self.producers):
            client.start()
        self.flows(20)

    def flows(self, more=50):
        """Each producer gets further confirms, and each consumer further messages."""
        assert not [c.error for c in (*self.producers, *self.consumers) if c.error]
        before = [(len(p.confirmed), len(c.got)) for p, c in zip(self.producers, self.consumers)]

        def moved():
            now = [(len(p.confirmed), len(c.got)) for p, c in zip(self.producers, self.consumers)]
            assert all(a + more <= b and c + more <= d for (a, c), (b, d) in zip(before, now)), (before, now)
            return True

        eventually(moved, 20, "messages flow through every queue")

    def end(self, asked, lived=True, flags=False):
        """All accounts are right, and what was kept is there, as every node asked says."""
        drained(self.producers, self.consumers)
        assert [p.nacked for p in self.producers] == [[]] * QUEUES
        for producer, consumer in zip(self.producers, self.consumers):
            accounts([producer], [consumer], lived=lived, flags=flags)
        print("longest silences:", [round(p.silence, 2) for p in self.producers])
        for node in asked:
            with Connection(self.cluster.amqp(node), timeout=30) as connection:
                for number in range(QUEUES):
                    assert connection.channel().exists(f"load{number}").message_count == 0
                    assert connection.channel().exists(f"kept{number}").message_count == self.kept
        with Connection(self.cluster.amqp(asked[-1]), timeout=30) as connection:
            ch = connection.channel()
            for number in range(QUEUES):
                assert [int(event.body.split(b".")[0]) for event in ch.drain(f"kept{number}")] == list(range(self.kept))


def leads(cluster, node, name):
    """Queues that a node leads, as another has it."""
    return [q["name"] for q in cluster.api(node).get("queues") if q["node"] == name]


def owned(cluster, node):
    """Shards by member, as a node has the ring."""
    return {member["name"]: member["shards_owned"] for member in cluster.api(node).get("ring")["members"]}


def test_a_fourth_node_joins_under_load(cluster):
    """The configuration names three; a fourth joins, takes its share of shards, and then a founder may die, and another: all is there."""
    load = Load(cluster, [1, 2])
    before = owned(cluster, 1)
    fourth = cluster.add("node4")
    assert fourth == 4
    load.flows()
    eventually(lambda: owned(cluster, 4).get("node4", 0) > 0, MOVED_S, "the fourth node owns shards")
    after = owned(cluster, 1)
    shards = sum(after.values())
    assert shards == sum(before.values()) == 12
    assert after["node4"] <= shards // 2, f"more than a fair share moved: {before}, {after}"
    with Connection(cluster.amqp(4), timeout=30) as connection:
        ch = connection.channel()
        ch.confirm_select()
        for number in range(64):
            ch.queue_declare(f"new{number}")
        for number in range(64):
            assert ch.routed("", f"new{number}", b"m")
    eventually(lambda: len(leads(cluster, 1, "node4")) > 0, MOVED_S, "it leads queues")
    load.flows()
    # Replicas have moved for good once any one node may go.
    time.sleep(5)
    cluster.kill(3)
    load.flows()
    with Connection(cluster.amqp(4), timeout=30) as connection:
        for number in range(64):
            assert connection.channel().exists(f"new{number}").message_count == 1
    cluster.start(3)
    load.flows()
    cluster.kill(4)
    load.flows()
    load.end([1, 2, 3], flags=True)


@pytest.mark.parametrize("kept", [500, 5000], ids=["short queues", "long queues"])
def test_a_node_is_replaced_under_load(cluster, kept):
    """A node dies and loses its disk; a new one of its name comes, with nothing: it is given all replicas, after which another may die."""
    load = Load(cluster, [1, 2], kept)
    was = {m["name"]: m["node"] for m in cluster.view(1)["members"]}["node3"]
    cluster.kill(3)
    load.flows()
    shutil.rmtree(cluster.nodes[2].folder / "data")
    cluster.start(3)
    load.flows()

    def replaced():
        members = {m["name"]: m for m in cluster.view(1)["members"]}
        assert len(members) == 3 and members["node3"]["up"] and members["node3"]["voter"], members
        assert members["node3"]["node"] != was, "it votes under the identity of the one that is gone"
        return True

    eventually(replaced, MOVED_S, "node3 is another node of the old name")
    eventually(lambda: owned(cluster, 1)["node3"] > 0 and leads(cluster, 1, "node3"), MOVED_S, "it leads again")
    load.flows()
    # Now it counts: with node 1 or node 2 gone, it is needed for a majority, and has everything.
    time.sleep(5)
    stays = [client for client in (*load.producers, *load.consumers) if client.address == cluster.amqp(2)]
    for client in (*load.producers, *load.consumers):
        client.address = cluster.amqp(2)
    cluster.kill(1)
    load.flows()
    load.end([2, 3], lived=False)
    assert all(client.connections == 1 for client in stays), "who was connected to a node that stayed, stayed connected"


def test_a_node_is_replaced_and_the_others_die_in_turn(cluster):
    """Each node in turn dies, loses its disk and is replaced: in the end no node has the disk that it began with, and all messages are there."""
    with Connection(cluster.amqp(1), timeout=30) as connection:
        ch = connection.channel()
        ch.confirm_select()
        for number in range(20):
            ch.queue_declare(f"q{number}", arguments={"x-queue-type": ("classic", "quorum")[number % 2]})
            for n in range(100):
                ch.publish("", f"q{number}", b"%d" % n, mandatory=True)
        assert set(ch.confirms(range(1, 2001), timeout=60).values()) == {"ack"}
    for node in cluster.all():
        cluster.nodes[node - 1].stop(signal.SIGKILL)
        shutil.rmtree(cluster.nodes[node - 1].folder / "data")
        cluster.start(node)
        other = node % 3 + 1
        name = cluster.nodes[node - 1].name
        eventually(lambda: {m["name"]: m["voter"] and m["up"] for m in cluster.view(other)["members"]}[name], MOVED_S, f"{name} votes again")
        eventually(lambda: leads(cluster, other, name), MOVED_S, f"{name} leads again")
        time.sleep(5)  # by when its replicas should have been made: nothing else says so yet
    for node in cluster.all():
        with Connection(cluster.amqp(node), timeout=30) as connection:
            for number in range(20):
                assert connection.channel().exists(f"q{number}").message_count == 100, f"q{number} at node {node}"
    with Connection(cluster.amqp(2), timeout=30) as connection:
        ch = connection.channel()
        for number in range(20):
            assert ch.bodies(f"q{number}") == [b"%d" % n for n in range(100)]


def entry(cluster, node, name):
    """A member of the cluster as a node sees it."""
    return next(m for m in cluster.view(node)["members"] if m["name"] == name)


def drain(cluster, node, name):
    """Has a node emptied. From when it is said to be, it leads nothing, has no replica, and none is placed there, in any node's eyes."""
    cluster.api(node).post("cluster", "drain", name)
    eventually(lambda: entry(cluster, node, name)["drained"], MOVED_S, f"{name} is drained")
    seen = entry(cluster, node, name)
    assert (seen["shards_placed"], seen["shards_led"], seen["shards_held"]) == (0, 0, 0), seen
    for placement in cluster.api(node).get("ring")["placements"]:
        assert name not in placement["replicas"] and placement["leader"] != name, placement


def forget(cluster, node, name):
    """Has the cluster forget a node that is down, or is about to be seen to be."""

    def forgotten():
        try:
            return cluster.api(node).post("cluster", "forget", name)["forgotten"]
        except ApiError as error:
            assert error.status == 400 and b"is up" in error.body, error
            return False

    eventually(forgotten, 20, f"{name} is forgotten")
    eventually(lambda: name not in {m["name"] for m in cluster.view(node)["members"]}, 20, f"{name} is no member")


def test_two_nodes_join_one_is_drained_and_leaves_and_a_dead_one_is_replaced(cluster):
    """All under load. In the end replicas are on one node that was there from the beginning and one that was not, and everything is there."""
    load = Load(cluster, [1, 2])
    for name in ("node4", "node5"):
        cluster.add(name)
        load.flows()
    eventually(lambda: all(owned(cluster, 1).get(name, 0) > 0 for name in ("node4", "node5")), MOVED_S, "both lead shards")
    load.flows()
    # A founder goes in order: it is empty before it stops, so that nobody misses it.
    drain(cluster, 1, "node3")
    load.flows()
    cluster.nodes[2].stop()
    load.flows()
    forget(cluster, 1, "node3")
    load.flows()
    # Another one dies, disk and all; one of another name takes its place.
    cluster.kill(4)
    load.flows()
    forget(cluster, 1, "node4")
    shutil.rmtree(cluster.nodes[3].folder / "data")
    sixth = cluster.add("node6")
    eventually(lambda: owned(cluster, 1).get("node6", 0) > 0, MOVED_S, "the new one leads shards")
    load.flows()
    assert {m["name"] for m in cluster.view(sixth)["members"]} == {"node1", "node2", "node5", "node6"}
    # With the fifth empty, what there is is on the other three, and two of them are enough.
    drain(cluster, 2, "node5")
    load.flows()
    for client in (*load.producers, *load.consumers):
        client.address = cluster.amqp(2)
    cluster.kill(1)
    load.flows()
    load.end([2, 5, sixth], lived=False)
