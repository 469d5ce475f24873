"""A node that has died or stands still is shown as down, within a second, whichever other node is asked, and nobody's call hangs for it."""

from __future__ import annotations

import signal
import time

import pytest


def shown(cluster, path: str, name: str) -> bool:
    """Whether node 1 shows that node as up."""
    answer = cluster[1].get(path, timeout=3)
    assert answer.status == 200, answer.body
    if path == "nodes":
        return next(n["running"] for n in answer.json if n["name"] == name)
    if path == "overview":
        return any(listener["node"] == name for listener in answer.json["listeners"])
    return next(member["up"] for member in answer.json["members"] if member["name"] == name)


@pytest.mark.parametrize("path", ["nodes", "cluster", "ring", "overview"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_that_is_down_is_shown_as_down_within_a_second(cluster, how, path):
    assert shown(cluster, path, "node3"), "it is up before"
    cluster[3].signal(how)
    started = time.monotonic()
    while shown(cluster, path, "node3"):
        assert time.monotonic() - started < 1.0, "it is still shown as up"
    assert time.monotonic() - started < 1.0, "the call has taken too long"
    while time.monotonic() - started < 4.0:
        again = time.monotonic()
        assert not shown(cluster, path, "node3"), "it stays down, also when the cluster marks it so"
        assert time.monotonic() - again < 1.0
    if how == signal.SIGKILL:
        cluster[3].process.wait(20)


def test_tables_are_compared_whoever_answers(cluster, eventually):
    node = cluster[2]
    for number in range(20):
        assert node.put(f"exchanges/%2F/diff{number}", {"type": "topic"}) == 201
    try:
        diff = eventually(lambda: (d := cluster[1].get("routing/diff").json)["equal"] and d, "the tables are seen to be equal")
        assert [n["node"] for n in sorted(diff["nodes"], key=lambda n: n["node"])] == ["node1", "node2", "node3"]
        assert len({(n["applied_index"], n["digest"], n["error"]) for n in diff["nodes"]}) == 1
        assert diff["differences"] == [] and diff["more"] is False
        cluster[3].signal(signal.SIGSTOP)
        started = time.monotonic()
        diff = node.get("routing/diff").json
        assert time.monotonic() - started < 2.5
        errors = {n["node"]: n["error"] for n in diff["nodes"]}
        assert errors["node3"] and not errors["node1"] and not errors["node2"], errors
        assert diff["equal"] is None, "it is not known of a table that nobody has seen"
    finally:
        cluster[3].signal(signal.SIGCONT)
        for number in range(20):
            node.delete(f"exchanges/%2F/diff{number}")


def test_a_node_tells_its_links_and_a_vhost_where_it_runs(cluster, eventually):
    for name, peers in (("node1", ["node2", "node3"]), ("node2", ["node1", "node3"])):
        links = cluster[3].get(f"nodes/{name}").json["cluster_links"]
        assert sorted(link["name"] for link in links) == peers, links
        for link in links:
            assert link["send_bytes"] > 1000 and link["recv_bytes"] > 1000, link
            assert link["peer_port"] == next(n.links for n in cluster.nodes if n.name == link["name"]), link
    contexts = cluster[2].get("overview").json["contexts"]
    assert sorted((c["node"], int(c["port"])) for c in contexts) == sorted((n.name, port) for n in cluster.nodes for port in (n.http, n.https))
    node = cluster[1]
    assert node.put("vhosts/runs", {}) == 201
    try:
        assert node.get("vhosts/runs").json["cluster_state"] == {"node1": "running", "node2": "running", "node3": "running"}
        for number in range(12):
            assert node.put(f"queues/runs/q{number}", {"durable": True}) == 201
            message = {"properties": {}, "routing_key": f"q{number}", "payload": "x", "payload_encoding": "string"}
            assert node.ask("POST", "exchanges/runs/amq.default/publish", message).status == 200
        for other in cluster.nodes:
            eventually(lambda: other.get("vhosts/runs").json["messages"] == 12, "messages on all nodes are added up")
        places = {q["name"]: (q["leader"], sorted(q["members"]), sorted(q["online"])) for q in node.get("queues/runs").json}
        for name, (leader, members, online) in places.items():
            status = node.get(f"queues/quorum/runs/{name}/status").json
            assert leader == status["leader"] and members == online == sorted(r["node"] for r in status["replicas"])
        cluster[3].signal(signal.SIGSTOP)
        vhost = node.get("vhosts/runs").json
        assert vhost["cluster_state"] == {"node1": "running", "node2": "running", "node3": "nodedown"}
        if any(leader == "node3" for leader, _, _ in places.values()):
            assert vhost["messages"] < 12, "what its node does not tell is not counted"
    finally:
        cluster[3].signal(signal.SIGCONT)
        assert node.delete("vhosts/runs") == 204
