"""Every route of the API with exactly one of three nodes dead, asked through another: the answer that it always gives, in time."""

from __future__ import annotations

import importlib.util
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest


def gets() -> list[str]:
    """What the tests of all routes ask."""
    spec = importlib.util.spec_from_file_location("all_routes", Path(__file__).with_name("test_routes.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.GETS


#: How long a GET may take; a change waits for an election if the dead node led.
GET_S, CHANGE_S = 2.5, 4.0

#: Changes in an order in which each does something, with what each answers.
CHANGES = [
    ("PUT", "vhosts/od", {}, 201), ("POST", "vhosts/od/start/node2", None, 204), ("PUT", "users/od", {"tags": ""}, 201),
    ("PUT", "permissions/od/od", {"configure": "", "write": "", "read": ""}, 201), ("DELETE", "permissions/od/od", None, 204),
    ("PUT", "topic-permissions/od/od", {"exchange": "amq.topic", "write": "", "read": ""}, 201), ("DELETE", "topic-permissions/od/od/amq.topic", None, 204),
    ("DELETE", "topic-permissions/od/od", None, 204),
    ("PUT", "exchanges/od/e", {"type": "direct"}, 201), ("PUT", "queues/od/q", {"durable": True}, 201), ("POST", "bindings/od/e/e/q/q", {"routing_key": "k"}, 201),
    ("POST", "exchanges/od/e/publish", {"properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string"}, 200),
    ("POST", "queues/od/q/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}, 200), ("DELETE", "queues/od/q/contents", None, 204),
    ("POST", "queues/od/q/actions", {"action": "sync"}, 204), ("PUT", "queues/quorum/od/q/leader", {"node": "{other}"}, 200),
    ("DELETE", "bindings/od/e/e/q/q/k", None, 204), ("DELETE", "queues/od/q", None, 204), ("DELETE", "exchanges/od/e", None, 204),
    ("PUT", "policies/od/p", {"pattern": "", "definition": {"max-length": 1}}, 201), ("DELETE", "policies/od/p", None, 204),
    ("PUT", "operator-policies/od/p", {"pattern": "", "definition": {"max-length": 1}}, 201), ("DELETE", "operator-policies/od/p", None, 204),
    ("PUT", "vhost-limits/od/max-queues", {"value": 1}, 204), ("DELETE", "vhost-limits/od/max-queues", None, 204),
    ("PUT", "user-limits/od/max-channels", {"value": 1}, 204), ("DELETE", "user-limits/od/max-channels", None, 204),
    ("PUT", "parameters/c/od/p", {"value": 1}, 201), ("DELETE", "parameters/c/od/p", None, 204),
    ("PUT", "global-parameters/od", {"value": 1}, 201), ("DELETE", "global-parameters/od", None, 204),
    ("POST", "definitions/od", {"queues": []}, 204), ("POST", "definitions", {"vhosts": [{"name": "od"}]}, 204), ("POST", "all-configuration", {"vhosts": [{"name": "od"}]}, 204),
    ("DELETE", "connections/username/od", None, 204), ("DELETE", "users/od/connections", None, 204), ("POST", "rebalance/queues", None, 204),
    ("POST", "cluster/revive/{other}", None, 200), ("DELETE", "users/od", None, 204), ("POST", "users/bulk-delete", {"users": ["od"]}, 204),
    ("DELETE", "vhosts/od", None, 204),
]


def asked(node, method: str, path: str, body=None) -> tuple[int, float, bytes]:
    started = time.monotonic()
    answer = node.ask(method, path, body, timeout=10)
    return answer.status, time.monotonic() - started, answer.body


def leader(cluster) -> str:
    return cluster[1].get("cluster").json["leader"]


@pytest.fixture(params=["follower", "leader"])
def lost(request, cluster):
    """A node that lives, and the other one that does; the third has just been killed: a follower of the metadata group, or its leader."""
    first = cluster[1]
    assert first.put("queues/%2F/w", {"durable": True}) in (201, 204)
    assert first.ask("POST", "bindings/%2F/e/amq.topic/q/w", {"routing_key": "k"}).status == 201
    for path in ("policies/%2F/w", "operator-policies/%2F/w"):
        assert first.put(path, {"pattern": "^none$", "definition": {"max-length": 9}}) in (201, 204)
    for path in ("parameters/c/%2F/w", "global-parameters/w"):
        assert first.put(path, {"value": 1}) in (201, 204)
    led = leader(cluster)
    dead = next(n for n in cluster.nodes if (n.name == led) == (request.param == "leader"))
    living = [n for n in cluster.nodes if n is not dead]
    dead.kill()
    yield living
    cluster.heal()
    for path in ("vhosts/od", "users/od", "policies/%2F/w", "operator-policies/%2F/w", "parameters/c/%2F/w", "global-parameters/w", "queues/%2F/w"):
        first.delete(path)


#: These tell of the node that has died, or that the cluster can do without no further one.
FAIL = {"health/checks/node-is-quorum-critical"}


def test_gets_with_one_node_dead(lost):
    """Several at once, so that many are asked before the cluster has noticed."""
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda path: (path, *asked(lost[0], "GET", path)), gets()))
    wrong = []
    for path, status, took, body in answers:
        normal = (200, 503) if path in FAIL else (200,)
        if status not in normal or took > GET_S:
            wrong.append((path, status, round(took, 2), body[:200]))
    assert not wrong, wrong


def test_changes_with_one_node_dead(lost):
    wrong = []
    for method, path, body, expected in CHANGES:
        path = path.replace("{other}", lost[1].name).replace("start/node2", f"start/{lost[1].name}")
        if body == {"node": "{other}"}:
            body = {"node": lost[1].name}
        status, took, answer = asked(lost[0], method, path, body)
        if status != expected or took > CHANGE_S:
            wrong.append((method, path, status, round(took, 2), answer[:200]))
    assert not wrong, wrong


def test_a_dead_node_is_forgotten_and_its_like_refused(lost, cluster):
    """At once after its death, before the cluster has marked it down."""
    dead = next(n for n in cluster.nodes if n not in lost)
    status, took, body = asked(lost[0], "POST", f"cluster/drain/{lost[1].name}")
    assert status == 400 and b"is down" in body and took < 8, (status, took, body)
    status, took, body = asked(lost[0], "POST", f"cluster/forget/{lost[1].name}")
    assert status == 400 and b"is up" in body, (status, took, body)
    status, took, body = asked(lost[0], "GET", f"nodes/{dead.name}/memory")
    assert status == 200 and b"not_available" in body and took < 1, (status, took, body)
    assert asked(lost[0], "POST", f"vhosts/%2F/start/{dead.name}")[0] == 503
