"""Every route of the API: without a login, with one that may not, with a method that it does not have, on a node that has lost the others."""

from __future__ import annotations

import time

import pytest

GETS = ["whoami", "overview", "cluster-name", "nodes", "nodes/node1", "nodes/node1/memory", "extensions", "feature-flags", "definitions", "definitions/%2F", "all-configuration", "connections", "channels",
        "consumers", "consumers/%2F", "exchanges", "exchanges/%2F", "exchanges/%2F/amq.topic", "exchanges/%2F/amq.topic/bindings/source",
        "exchanges/%2F/amq.topic/bindings/destination", "queues", "queues/%2F", "bindings", "bindings/%2F", "vhosts", "vhosts/%2F", "vhosts/%2F/permissions",
        "vhosts/%2F/connections", "vhosts/%2F/channels", "users", "users/without-permissions", "users/guest", "users/guest/permissions", "users/guest/connections", "permissions",
        "permissions/%2F/guest", "topic-permissions", "topic-permissions/%2F/guest", "users/guest/topic-permissions", "vhosts/%2F/topic-permissions", "policies", "policies/%2F", "operator-policies", "operator-policies/%2F", "vhost-limits", "vhost-limits/%2F", "user-limits", "user-limits/guest", "parameters", "parameters/shovel", "parameters/shovel/%2F", "global-parameters", "connections/username/guest", "routing/digest", "routing/diff", "routing/explain", "ring", "ring/plan", "cluster", "aliveness-test/%2F",
        "health/checks/alarms", "health/checks/local-alarms", "health/checks/certificate-expiration/1/days", "health/checks/protocol-listener/amqp",
        "health/checks/virtual-hosts", "health/checks/node-is-quorum-critical", "health/checks/node-is-mirror-sync-critical",
        "health/checks/below-node-connection-limit", "health/checks/ready-to-serve-clients", "health/checks/is-in-service",
        "health/checks/metadata-store/initialized", "health/checks/metadata-store/initialized/with-data",
        "log", "queues/%2F/w", "queues/%2F/w/bindings", "queues/quorum/%2F/w/status", "bindings/%2F/e/amq.topic/q/w", "bindings/%2F/e/amq.topic/q/w/k",
        "policies/%2F/w", "operator-policies/%2F/w", "parameters/c/%2F/w", "global-parameters/w"]
#: What only an administrator sees.
SECRET = {"users", "users/without-permissions", "all-configuration", "users/guest", "users/guest/permissions", "permissions", "permissions/%2F/guest", "vhosts/%2F/permissions", "definitions", "definitions/%2F", "global-parameters", "parameters", "parameters/shovel", "parameters/shovel/%2F",
          "log", "parameters/c/%2F/w", "global-parameters/w", "topic-permissions", "topic-permissions/%2F/guest", "users/guest/topic-permissions", "vhosts/%2F/topic-permissions"}
#: What needs permissions in the virtual host, whatever the tag.
SESSION = {"aliveness-test/%2F"}
#: What says something of the node itself, in whatever state it is.
OWN = {"whoami", "overview", "cluster-name", "nodes", "nodes/node1", "nodes/node1/memory", "extensions", "feature-flags", "connections", "channels", "consumers",
       "routing/digest", "routing/diff", "ring", "ring/plan", "cluster", "log"}


@pytest.fixture(scope="module", autouse=True)
def users(admin_cluster):
    node = admin_cluster[1]
    for name, tags in (("plain", ""), ("watcher", "monitoring"), ("manager", "management")):
        assert node.put(f"users/{name}", {"password": "p", "tags": tags}) in (201, 204)
    assert node.put("queues/%2F/w", {"durable": True}) in (201, 204)
    assert node.put("exchanges/%2F/w", {"type": "direct"}) in (201, 204)
    assert node.ask("POST", "bindings/%2F/e/amq.topic/q/w", {"routing_key": "k"}).status == 201
    for path in ("policies/%2F/w", "operator-policies/%2F/w"):
        assert node.put(path, {"pattern": "^none$", "definition": {"max-length": 9}}) in (201, 204)
    for path in ("parameters/c/%2F/w", "global-parameters/w"):
        assert node.put(path, {"value": 1}) in (201, 204)
    yield
    for path in ("policies/%2F/w", "operator-policies/%2F/w", "parameters/c/%2F/w", "global-parameters/w", "queues/%2F/w", "exchanges/%2F/w"):
        assert node.delete(path) == 204


@pytest.mark.parametrize("path", GETS)
def test_who_may_and_who_may_not(cluster, path):
    node = cluster[2]
    assert node.get(path).status == 200
    for options in ({"user": None}, {"password": "wrong"}, {"user": "nobody"}, {"user": "plain", "password": "p"}):
        answer = node.get(path, **options)
        assert answer.status == 401 and answer.json["error"] == "not_authorised", (options, answer.body)
    expected = 401 if path in SECRET | SESSION else 200
    assert node.get(path, user="watcher", password="p").status == expected
    if "%2F" in path and "permissions" not in path:
        assert node.get(path, user="manager", password="p").status == 401, "no permissions in the vhost"
        answer = node.get(path.replace("%2F", "no%20such"))
        assert answer.status == 404, answer.body
    assert node.ask("PATCH", path, {}).status == 405
    assert node.ask("HEAD", path).status == 200


#: Changes that only an administrator makes, or who has permissions.
CHANGES = [
    ("PUT", "vhosts/w", {}), ("DELETE", "vhosts/%2F", None), ("POST", "vhosts/%2F/start/node1", None), ("PUT", "users/w", {"tags": ""}), ("POST", "users/bulk-delete", {"users": ["w"]}), ("DELETE", "users/guest", None),
    ("PUT", "permissions/%2F/guest", {"configure": "", "write": "", "read": ""}), ("DELETE", "permissions/%2F/guest", None),
    ("PUT", "exchanges/%2F/w", {"type": "direct"}), ("DELETE", "exchanges/%2F/w", None), ("PUT", "queues/%2F/w", {}), ("DELETE", "queues/%2F/w", None),
    ("POST", "bindings/%2F/e/amq.topic/q/w", {}), ("POST", "definitions", {}), ("POST", "definitions/%2F", {}),
    ("POST", "exchanges/%2F/amq.topic/publish", {"properties": {}, "routing_key": "", "payload": "", "payload_encoding": "string"}),
    ("POST", "queues/%2F/w/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}), ("DELETE", "queues/%2F/w/contents", None),
    ("DELETE", "connections/username/guest", None), ("PUT", "policies/%2F/w", {"pattern": "", "definition": {"max-length": 1}}), ("DELETE", "policies/%2F/w", None),
    ("PUT", "operator-policies/%2F/w", {"pattern": "", "definition": {"max-length": 1}}), ("DELETE", "operator-policies/%2F/w", None),
    ("PUT", "vhost-limits/%2F/max-queues", {"value": 1}), ("DELETE", "vhost-limits/%2F/max-queues", None),
    ("PUT", "user-limits/guest/max-channels", {"value": 1}), ("DELETE", "user-limits/guest/max-channels", None),
    ("PUT", "topic-permissions/%2F/guest", {"exchange": "amq.topic", "write": "", "read": ""}), ("DELETE", "topic-permissions/%2F/guest/amq.topic", None), ("DELETE", "topic-permissions/%2F/guest", None), ("POST", "all-configuration", {}),
    ("PUT", "parameters/c/%2F/w", {"value": 1}), ("DELETE", "parameters/c/%2F/w", None), ("PUT", "global-parameters/w", {"value": 1}), ("DELETE", "global-parameters/w", None),
    ("DELETE", "users/guest/connections", None), ("DELETE", "bindings/%2F/e/amq.topic/q/w/k", None), ("PUT", "queues/quorum/%2F/w/leader", {"node": "node1"}),
    ("POST", "queues/%2F/w/actions", {"action": "sync"}), ("POST", "rebalance/queues", None),
    ("POST", "cluster/drain/node1", None), ("POST", "cluster/revive/node1", None), ("POST", "cluster/forget/node1", None)]


@pytest.mark.parametrize("method, path, body", CHANGES)
def test_who_may_not_change(cluster, method, path, body):
    for options in ({"user": None}, {"password": "wrong"}, {"user": "plain", "password": "p"}, {"user": "manager", "password": "p"}, {"user": "watcher", "password": "p"}):
        answer = cluster[1].ask(method, path, body, **options)
        assert answer.status == 401, (options, answer.status, answer.body)


def test_permissions_say_who_changes_exchanges_queues_and_bindings(cluster):
    """As over AMQP: configure on what is declared or deleted; to bind, write on the destination and read on the source."""
    node = cluster[2]
    assert node.put("permissions/%2F/manager", {"configure": "^mine", "write": "^mine", "read": "^(mine|amq.topic$)"}) == 201
    try:
        manager = {"user": "manager", "password": "p"}
        for method, path, body, expected in (
            ("PUT", "queues/%2F/w", {"durable": True}, "queue 'w'"), ("DELETE", "queues/%2F/w", None, "queue 'w'"),
            ("PUT", "exchanges/%2F/other", {"type": "direct"}, "exchange 'other'"), ("DELETE", "exchanges/%2F/w", None, "exchange 'w'"),
            ("PUT", "exchanges/%2F/mine", {"type": "direct", "arguments": {"alternate-exchange": "w"}}, "exchange 'w'"),
            ("POST", "bindings/%2F/e/amq.topic/q/w", {"routing_key": "k2"}, "queue 'w'"), ("DELETE", "bindings/%2F/e/amq.topic/q/w/k", None, "queue 'w'"),
            ("PUT", "queues/%2F/mine", {}, 201), ("PUT", "exchanges/%2F/mine", {"type": "direct"}, 201), ("POST", "bindings/%2F/e/amq.topic/q/mine", {"routing_key": "k"}, 201),
            ("POST", "bindings/%2F/e/amq.direct/q/mine", {"routing_key": "k"}, "exchange 'amq.direct'"), ("POST", "bindings/%2F/e/amq.topic/e/mine", {"routing_key": "k"}, 201),
            ("POST", "bindings/%2F/e/amq.topic/e/w", {"routing_key": "k"}, "exchange 'w'"), ("DELETE", "bindings/%2F/e/amq.topic/q/mine/k", None, 204),
            ("DELETE", "queues/%2F/mine", None, 204), ("DELETE", "exchanges/%2F/mine", None, 204),
        ):
            answer = node.ask(method, path, body, **manager)
            if isinstance(expected, int):
                assert answer.status == expected, (method, path, answer.status, answer.body)
            else:
                assert answer.status == 401 and expected in answer.json["reason"], (method, path, answer.status, answer.body)
        assert node.get("bindings/%2F/e/amq.topic/q/w/k").status == 200, "what was refused has changed nothing"
    finally:
        assert node.delete("permissions/%2F/manager") == 204


#: What needs no login: it says whether a node serves, how to log in, and how much of everything there is.
OPEN = ["health", "auth", "openapi.json", "/metrics", "/metrics/per-object"]


@pytest.mark.parametrize("path", OPEN)
def test_what_needs_no_login(cluster, path):
    assert cluster[1].get(path, user=None).status == 200
    assert cluster[1].ask("PUT", path, {}, user=None).status == 405


#: What names a client connection.
OF_CONNECTIONS = ["connections/{name}", "connections/{name}/channels", "channels/{name}"]


@pytest.mark.parametrize("path", OF_CONNECTIONS)
def test_a_connection_is_shown_to_its_user_and_to_who_monitors(cluster, eventually, segment, path):
    cluster[2].connect().channel()
    name = eventually(lambda: next((c["name"] for c in cluster[1].get("connections").json if c["channels"] == 1), None), "the connection is listed")
    name = f"{name} (1)" if path.startswith("channels") else name
    node, path = cluster[1], path.format(name=segment(name))
    assert node.get(path).status == 200 and node.get(path, user="watcher", password="p").status == 200
    for options in ({"user": None}, {"password": "wrong"}, {"user": "plain", "password": "p"}, {"user": "manager", "password": "p"}):
        assert node.get(path, **options).status == 401, options
    assert node.get(path.replace(segment(name), "none")).status == 404
    if path == f"connections/{segment(name)}":
        for user in ("plain", "manager", "watcher"):
            assert node.ask("DELETE", path, user=user, password="p").status == 401
        assert node.delete(path) == 204
        eventually(lambda: node.delete(path) == 404, "the connection is gone")


@pytest.mark.parametrize("method, path", [("PUT", "vhosts/bad"), ("PUT", "users/bad"), ("PUT", "permissions/%2F/guest"), ("PUT", "exchanges/%2F/bad"), ("PUT", "queues/%2F/bad"), ("PUT", "policies/%2F/bad"), ("PUT", "operator-policies/%2F/bad"), ("PUT", "global-parameters/bad"), ("PUT", "parameters/c/%2F/bad"), ("PUT", "vhost-limits/%2F/max-queues"), ("PUT", "user-limits/guest/max-channels"), ("PUT", "queues/quorum/%2F/w/leader"), ("PUT", "topic-permissions/%2F/guest"),
                                          ("POST", "bindings/%2F/e/amq.topic/q/bad"), ("POST", "definitions"), ("POST", "all-configuration"), ("POST", "users/bulk-delete"), ("POST", "exchanges/%2F/amq.topic/publish"), ("POST", "queues/%2F/bad/get"), ("POST", "queues/%2F/w/actions")])
@pytest.mark.parametrize("body", [b"{", b"[]", b"\"x\"", b"\xff", b"{\"arguments\": 5, \"tags\": 5, \"routing_key\": 5, \"users\": 5, \"count\": -1}"])
def test_bodies_that_make_no_sense(cluster, method, path, body):
    answer = cluster[1].ask(method, path, body)
    assert answer.status in (400, 404), (answer.status, answer.body)
    assert answer.json["reason"]


def test_what_does_not_exist(cluster):
    for path in ("nothing", "queues/%2F/none", "exchanges/%2F/none", "nodes/none", "users/none", "vhosts/none", "permissions/%2F/none", "connections/none",
                 "channels/none", "health/checks/none", "connections/none/channels", "policies/%2F/none", "operator-policies/%2F/none", "parameters/c/%2F/none",
                 "global-parameters/none", "queues/%2F/none/bindings", "queues/quorum/%2F/none/status", "bindings/%2F/e/amq.topic/q/none", "user-limits/none",
                 "bindings/%2F/e/amq.topic/q/w/none", "exchanges/%2F/none/bindings/source", "exchanges/%2F/none/bindings/destination", "users/none/permissions",
                 "users/none/topic-permissions", "topic-permissions/%2F/none", "nodes/none/memory"):
        answer = cluster[3].get(path)
        assert answer.status == 404 and answer.json["error"], path


def test_actions_on_queues(cluster):
    """RabbitMQ's, of mirrored queues: they are taken for every type of queue, and there is nothing to do."""
    node = cluster[3]
    try:
        for name, body in (("act-q", {"durable": True, "arguments": {"x-queue-type": "quorum"}}), ("act-c", {"durable": True}), ("act-t", {"durable": False})):
            assert node.put(f"queues/%2F/{name}", body) == 201
            for action in ("sync", "cancel_sync"):
                answer = node.ask("POST", f"queues/%2F/{name}/actions", {"action": action})
                assert answer.status == 204 and answer.body == b"", (name, action)
            for body in ({"action": "shout"}, {"action": 5}, {}):
                answer = node.ask("POST", f"queues/%2F/{name}/actions", body)
                assert answer.status == 400 and "action" in answer.json["reason"], body
        for path in ("queues/%2F/none/actions", "queues/none/act-q/actions"):
            for body in ({"action": "sync"}, b"{"):
                assert node.ask("POST", path, body).status == 404, path
    finally:
        for name in ("act-q", "act-c", "act-t"):
            node.delete(f"queues/%2F/{name}")


# Last in this file: the others stay away until its end.
@pytest.fixture(scope="module")
def alone(admin_cluster):
    """Node 1 without the others, when it has noticed."""
    admin_cluster[2].kill()
    admin_cluster[3].kill()
    deadline = time.monotonic() + 30
    while admin_cluster[1].get("health").status != 503:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield admin_cluster[1]
    admin_cluster.heal()


@pytest.mark.parametrize("path", GETS)
def test_a_node_that_has_lost_the_others_answers_in_time(alone, path):
    started = time.monotonic()
    answer = alone.get(path)
    assert time.monotonic() - started < 3.5, f"{path} took too long"
    if path in OWN or path in {"health/checks/alarms", "health/checks/local-alarms", "connections/username/guest", "users/guest/connections",
                               "vhosts/%2F/connections", "vhosts/%2F/channels", "consumers/%2F"}:
        assert answer.status == 200, answer.body
    elif path.startswith("health/checks/"):
        assert answer.status in (200, 503)
        if path.endswith(("ready-to-serve-clients", "is-in-service", "virtual-hosts")):
            assert answer.status == 503 and answer.json["status"] == "failed"
    else:
        assert answer.status == 503 and answer.json["reason"], (answer.status, answer.body)
