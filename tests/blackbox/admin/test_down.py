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
