"""Nodes that leave for a while: drained under publishes with confirms, revived, and forgotten, by API and command line, on three nodes and on four."""

from __future__ import annotations

import json
import threading

import pika
import pytest

OK, USAGE, DATA, UNAVAILABLE, NOPERM = 0, 64, 65, 69, 77
QUEUES = [f"d{n}" for n in range(12)]


@pytest.fixture(params=[3, 4], ids=["three", "four"])
def own(request, new_cluster):
    """A cluster that this test may take apart."""
    cluster = new_cluster(request.param)
    try:
        cluster.start()
        cluster.run("cluster", "await-ready", "--nodes", str(request.param), "--timeout", "60")
        yield cluster
    finally:
        cluster.stop()


class Publisher(threading.Thread):
    """Publishes numbered messages to all queues in turn, each waited for, until told to stop. What it has written down is confirmed."""

    def __init__(self, node):
        super().__init__(daemon=True)
        self.connection = node.connect()
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.confirmed: list[tuple[str, str]] = []
        self.ending = threading.Event()
        self.error: BaseException | None = None

    def run(self):
        number = 0
        try:
            while not self.ending.is_set():
                queue, body = QUEUES[number % len(QUEUES)], str(number)
                try:
                    self.channel.basic_publish("", queue, body.encode(), pika.BasicProperties(delivery_mode=2), mandatory=True)
                    self.confirmed.append((queue, body))
                except pika.exceptions.NackError:
                    pass  # refused, not lost
                number += 1
        except BaseException as error:  # noqa: BLE001 - the test reports it
            self.error = error

    def end(self):
        self.ending.set()
        self.join(30)
        assert not self.is_alive() and self.error is None, self.error


def member(node, name):
    return next(m for m in node.get("cluster").json["members"] if m["name"] == name)


def contents(node):
    """Everything that is in the queues, taken out."""
    channel = node.connect().channel()
    found = []
    for queue in QUEUES:
        while True:
            method, _, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                break
            found.append((queue, body.decode()))
    return found


def test_a_node_is_drained_under_load_and_nothing_is_lost(own, eventually):
    node, drained = own[1], own[2]
    for queue in QUEUES:
        assert node.put(f"queues/%2F/{queue}", {"durable": True, "arguments": {"x-queue-type": "quorum"}}) == 201
    # What lives in the drained node's memory is announced.
    held = drained.connect().channel()
    held.queue_declare("", exclusive=True)
    publisher = Publisher(node)
    publisher.start()
    eventually(lambda: len(publisher.confirmed) > 50, "publishing")

    result = own.run("cluster", "drain", "node2", "--yes", "--wait", "--timeout", "50", "--output", "json")
    answer = json.loads(result.stdout)
    assert answer["draining"] is True and answer["takes_over"] == [n.name for n in own.nodes if n is not drained]
    assert answer["exclusive_queues"] == 1 and "1 exclusive queues" in answer["lost_when_it_stops"], answer
    assert "is drained" in result.stderr
    entry = member(own[3], "node2")
    assert (entry["up"], entry["draining"], entry["drained"], entry["shards_held"], entry["shards_led"]) == (True, True, True, 0, 0)
    ring = node.get("ring").json
    assert all("node2" not in p["replicas"] and p["leader"] != "node2" for p in ring["placements"])
    assert all(len(p["replicas"]) == min(3, len(own.nodes) - 1) for p in ring["placements"])
    seen = len(publisher.confirmed)
    eventually(lambda: len(publisher.confirmed) > seen + 50, "publishing goes on")
    # It still serves its clients, and its stop takes nothing along that was confirmed.
    assert drained.connect().channel().queue_declare(QUEUES[0], passive=True)
    drained.stop()
    seen = len(publisher.confirmed)
    eventually(lambda: len(publisher.confirmed) > seen + 50, "publishing goes on without the node")
    drained.start()
    drained.ready()
    assert member(node, "node2")["draining"] is True, "a restart does not revive it"

    own.run("cluster", "revive", "node2", "--wait", "--timeout", "50")
    entry = member(node, "node2")
    assert entry["draining"] is False and entry["shards_placed"] > 0
    eventually(lambda: member(node, "node2")["shards_led"] > 0, "it leads again")
    publisher.end()
    found = contents(node)
    lost = set(publisher.confirmed) - set(found)
    assert not lost, f"{len(lost)} of {len(publisher.confirmed)} lost"
    for queue in QUEUES:
        mine = [int(body) for name, body in found if name == queue]
        assert mine == sorted(set(mine)), f"{queue} is out of order or has doubles"


@pytest.mark.parametrize("own", [3], indirect=True, ids=["three"])
def test_who_may_and_what_is_refused(own, eventually):
    node = own[1]
    for verb in ("drain", "revive", "forget"):
        assert node.ask("POST", f"cluster/{verb}/nobody").status == 404
        assert node.ask("GET", f"cluster/{verb}/node2").status == 405
        assert node.ask("POST", f"cluster/{verb}/node2", user=None).status == 401
    assert node.put("users/watcher", {"password": "p", "tags": "monitoring"}) == 201
    assert node.ask("POST", "cluster/drain/node2", user="watcher", password="p").status == 401
    assert own.run("--user", "watcher", "--password", "p", "cluster", "drain", "node2", "--yes", check=False).returncode == NOPERM
    assert own.run("cluster", "drain", "nobody", "--yes", check=False).returncode == DATA

    up = own.run("cluster", "forget", "node3", "--yes", check=False)
    assert up.returncode == DATA and "stop its process first" in up.stderr
    assert own.run("cluster", "forget", "node3", check=False).returncode == USAGE, "it asks first"
    late = own.run("cluster", "await-ready", "--nodes", "4", "--timeout", "1", check=False)
    assert late.returncode == UNAVAILABLE and "3 of 4 nodes are up" in late.stderr

    own[3].kill()
    eventually(lambda: not member(node, "node3")["up"], "node3 is marked down")
    down = node.ask("POST", "cluster/drain/node2")
    assert down.status == 400 and "'node3' is down" in down.json["reason"], down.body
    # The other two are a majority of every shard.
    own.run("cluster", "forget", "node3", "--yes")
    eventually(lambda: {m["name"] for m in node.get("cluster").json["members"]} == {"node1", "node2"}, "node3 has left")
    eventually(lambda: all(sorted(p["replicas"]) == ["node1", "node2"] and p["leader"] for p in node.get("ring").json["placements"]), "the others have its share")
    assert node.ask("POST", "cluster/forget/node3").status == 404
    assert node.ask("POST", "cluster/drain/node1").status == 200
    last = node.ask("POST", "cluster/drain/node2")
    assert last.status == 400 and "no other node" in last.json["reason"], last.body


@pytest.mark.parametrize("own", [3], indirect=True, ids=["three"])
def test_a_dead_node_that_alone_holds_something_is_forgotten_by_force_only(own, eventually):
    node = own[1]
    for name in ("node1", "node2"):
        own.run("cluster", "drain", name, "--yes", "--wait", "--timeout", "50")
    own[3].kill()
    eventually(lambda: not member(node, "node3")["up"], "node3 is marked down")
    refused = own.run("cluster", "forget", "node3", "--yes", check=False)
    assert refused.returncode == DATA and "by force" in refused.stderr, refused.stderr
    shards = len(node.get("ring").json["placements"])
    assert member(node, "node3")["shards_placed"] == shards
    forced = own.run("cluster", "forget", "node3", "--yes", "--force", "--output", "json")
    assert json.loads(forced.stdout)["shards_without_majority"] == shards
    eventually(lambda: len(node.get("cluster").json["members"]) == 2, "node3 has left")


def test_a_queue_that_asks_for_five_replicas_survives_two_nodes(new_cluster, eventually):
    """`x-quorum-initial-group-size`: more replicas than three, where there are so many nodes, for as long as the queue is there."""
    cluster = new_cluster(5)
    try:
        cluster.start()
        node = cluster[1]
        arguments = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 5}
        assert node.put("queues/%2F/wide", {"durable": True, "arguments": arguments}) == 201

        def replicas():
            """Those that are in the group, as its leader says."""
            leader = node.get("queues/quorum/%2F/wide/status").json["leader"]
            at = [n for n in cluster.nodes if n.name == leader]
            if not at:
                return []
            status = at[0].get("queues/quorum/%2F/wide/status").json
            return [] if status["changing"] else [r["node"] for r in status["replicas"] if r["last_index"] is not None]

        eventually(lambda: len(replicas()) == 5, "five replicas are in the group", 30)
        placed = [p for p in node.get("ring").json["placements"] if len(p["replicas"]) != 3]
        assert len(placed) == 1, "no other shard has changed"
        shard = placed[0]["shard"]

        cluster[4].kill()
        cluster[5].kill()
        channel = node.connect().channel()
        channel.confirm_delivery()

        def confirmed():
            try:
                channel.basic_publish("", "wide", b"kept", pika.BasicProperties(delivery_mode=2), mandatory=True)
            except pika.exceptions.NackError:
                return False
            return True

        eventually(confirmed, "publishes are confirmed with two of five nodes gone", 30)
        cluster.heal()
        assert node.delete("queues/%2F/wide") == 204
        eventually(lambda: len(node.get("ring").json["placements"][shard]["replicas"]) == 3, "three replicas are enough again", 30)
    finally:
        cluster.stop()
