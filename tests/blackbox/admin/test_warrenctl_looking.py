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
        assert answer["equal"] is True and answer["differences"] == [] and sorted(n["node"] for n in answer["nodes"]) == ["node1", "node3"]
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


# --- health ---

def test_a_cluster_is_healthy_until_a_node_is_not(cluster, eventually):
    well = cluster.run("cluster", "health")
    assert "the cluster is healthy" in well.stdout and all(f"node{n}" in well.stdout for n in (1, 2, 3))
    answer = json.loads(cluster.run("cluster", "health", "--output", "json", node=2).stdout)
    assert answer["healthy"] is True and answer["reasons"] == answer["warnings"] == []
    assert [(n["up"], n["serves"], n["alarms"], n["links"], n["quorum_critical"]) for n in answer["nodes"]] == [(True, True, [], "2/2", False)] * 3
    refused = cluster.run("cluster", "health", environment={"WARREN_PASSWORD": "wrong"}, check=False)
    assert refused.returncode == NOPERM
    cluster[3].signal(signal.SIGSTOP)
    hangs, took = timed(cluster, "cluster", "health")
    assert hangs.returncode == UNAVAILABLE and "node3" in hangs.stderr and took < DEADLINE, (took, hangs)
    cluster[3].kill()

    def told():
        result, took = timed(cluster, "cluster", "health")
        assert took < DEADLINE
        return result.returncode == UNAVAILABLE and "node3: it is down" in result.stderr and "no majority" in result.stderr and "healthy" in result.stderr

    eventually(told, "the node that is down, and that no other may go")


def test_an_alarm_and_a_node_that_is_drained_are_told(new_cluster, eventually):
    own = new_cluster(2)
    own.limits = "disk_free_bytes_min = 0"
    try:
        own.start()
        own.run("cluster", "await-ready", "--nodes", "2", "--timeout", "60")
        two = json.loads(own.run("cluster", "health", "--output", "json").stdout)
        assert two["healthy"] is True and "no majority" in two["warnings"][0], "two nodes never can lose one"
        own[2].stop()
        own.limits = f"disk_free_bytes_min = {1 << 60}"
        own[2].start()
        alarm = eventually(lambda: (r := own.run("cluster", "health", check=False)).returncode == UNAVAILABLE and "low on disk" in r.stderr and r, "an alarm", 40)
        assert "node2 is low on disk" in alarm.stderr and "node1 is low" not in alarm.stderr
    finally:
        own.stop()
