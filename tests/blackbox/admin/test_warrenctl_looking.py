"""warrenctl looks at a cluster that is whole, and at one with a node that is down or hangs: what differs, what is wrong, and in what time it says so."""

from __future__ import annotations

import json
import signal
import time

import pytest

OK, USAGE, DATA, UNAVAILABLE, NOPERM = 0, 64, 65, 69, 77
# A node that fails makes no call longer than 2 s; the rest is for the process itself on a busy machine.
DEADLINE = 2.5


def timed(cluster, *arguments, **options):
    begun = time.monotonic()
    result = cluster.run(*arguments, check=False, **options)
    return result, time.monotonic() - begun


# --- what differs ---

def test_nodes_have_the_same_routing_table(cluster):
    cluster.run("queue", "declare", "compared")
    try:
        same = cluster.run("routing", "diff")
        assert "no node has what another one lacks" in same.stdout and all(f"node{n}" in same.stdout for n in (1, 2, 3))
        answer = json.loads(cluster.run("routing", "diff", "node1", "node3", "--output", "json", node=2).stdout)
        assert answer["equal"] is True and answer["differences"] == [] and [n["node"] for n in answer["nodes"]] == ["node1", "node3"]
        assert len({n["digest"] for n in answer["nodes"]}) == 1
        unknown = cluster.run("routing", "diff", "node9", check=False)
        assert unknown.returncode == DATA and "node9" in unknown.stderr
        assert cluster.run("routing", "diff", environment={"WARREN_PASSWORD": "wrong"}, check=False).returncode == NOPERM
    finally:
        cluster.run("queue", "delete", "compared", "--yes")


def test_a_node_that_cannot_be_compared_is_told(cluster):
    cluster[3].kill()
    result, took = timed(cluster, "routing", "diff")
    assert result.returncode == UNAVAILABLE and "node3" in result.stderr and took < DEADLINE, (took, result)


# --- a node that hangs ---

def test_a_node_that_hangs_keeps_nobody_waiting(cluster):
    cluster[3].signal(signal.SIGSTOP)
    for command, code in ((("queue", "list"), OK), (("node", "list"), OK), (("cluster", "status"), OK), (("connection", "list"), OK),
                          (("routing", "digest"), UNAVAILABLE), (("log", "tail", "--node", "node3"), UNAVAILABLE)):
        result, took = timed(cluster, *command)
        assert result.returncode == code and took < DEADLINE, (command, took, result)
    hung, took = timed(cluster, "queue", "list", node=3)
    assert hung.returncode == UNAVAILABLE and "--deadline" in hung.stderr and took < DEADLINE + 0.3, (took, hung)
    short, took = timed(cluster, "queue", "declare", "never", "--deadline", "0.3", node=3)
    assert short.returncode == UNAVAILABLE and "0.6 s" in short.stderr and took < 1.5, (took, short)
    for wrong in ("0", "-1", "x"):
        assert cluster.run("queue", "list", f"--deadline={wrong}", check=False).returncode == USAGE
