"""Python's clients of RabbitMQ's management API, unchanged: pyrabbit2 and rabbitmq-admin, every call that they have."""

from __future__ import annotations

import base64
import hashlib

import pytest
import requests
from pyrabbit2.api import Client
from pyrabbit2.api import PermissionError as Refused
from pyrabbit2.http import HTTPError
from rabbitmq_admin import AdminAPI

VHOST = "py/v host"


def test_pyrabbit2(cluster, eventually):
    node = cluster[2]
    client = Client(f"127.0.0.1:{node.http}", "guest", "guest", timeout=20)
    assert client.is_alive() and client.get_whoami()["tags"] == ["administrator"]
    assert client.get_overview()["cluster_name"] == client.get_cluster_name()["name"] == "admin"
    assert [n["running"] for n in client.get_nodes()] == [True] * 3
    assert client.get_extensions() == []

    assert client.create_vhost(VHOST) == 201
    assert VHOST in client.get_vhost_names() and client.get_vhost(VHOST)["name"] == VHOST
    assert client.create_user("pyuser", password="p", tags="monitoring") == 201
    hashed = base64.b64encode(b"salt" + hashlib.sha256(b"salt" + b"q").digest()).decode()
    assert client.create_user("pyhash", password_hash=hashed, tags="management") == 201
    assert {"pyuser", "pyhash"} <= {u["name"] for u in client.get_users()}
    assert Client(f"127.0.0.1:{node.http}", "pyhash", "q").get_whoami()["name"] == "pyhash"
    client.set_vhost_permissions(VHOST, "pyuser", ".*", "r.*", "w.*")
    expected = {"user": "pyuser", "vhost": VHOST, "configure": ".*", "read": "r.*", "write": "w.*"}
    assert client.get_permission(VHOST, "pyuser") == expected
    assert expected in client.get_permissions() and expected in client.get_vhost_permissions(VHOST) and client.get_user_permissions("pyuser") == [expected]

    assert client.create_exchange(VHOST, "py.e", "topic") and client.get_exchange(VHOST, "py.e")["type"] == "topic"
    assert "py.e" in {e["name"] for e in client.get_exchanges(VHOST)} & {e["name"] for e in client.get_exchanges()}
    assert client.create_queue(VHOST, "py q", durable=True) == 201
    assert client.create_binding(VHOST, "py.e", "py q", "a.*") is not None
    assert client.create_binding(VHOST, "py.e", "py q", None, {"n": 1}) is not None
    assert [(b["source"], b["routing_key"]) for b in client.get_queue_bindings(VHOST, "py q")] == [("", "py q"), ("py.e", ""), ("py.e", "a.*")]
    assert any(b["vhost"] == VHOST and b["source"] == "py.e" for b in client.get_bindings())
    assert client.publish(VHOST, "py.e", "a.b", "hello", properties={"delivery_mode": 2}) is True
    assert client.publish(VHOST, "py.e", "a.b.c", "lost") is False
    assert eventually(lambda: client.get_queue_depth(VHOST, "py q") == 1, "the message is counted")
    assert [q["name"] for q in client.get_queues(VHOST)] == ["py q"] and client.get_queue(VHOST, "py q")["messages"] == 1
    assert [q["name"] for q in client.get_queues(VHOST, pattern="^py", regex=True)] == ["py q"]
    assert client.get_messages(VHOST, "py q", requeue=True)[0]["payload"] == "hello"
    assert client.get_messages(VHOST, "py q", truncate=2)[0]["payload"] == "he"
    client.publish(VHOST, "py.e", "a.b", "more")
    assert client.purge_queue(VHOST, "py q") == 204 and client.purge_queues([("py q", VHOST)])
    assert client.delete_binding(VHOST, "py.e", "py q", "a.*") == 204

    channel = cluster[1].connect().channel()
    name = eventually(lambda: client.get_connections(), "the connection is listed")[0]["name"]
    assert client.get_connection(name)["name"] == name
    shown = eventually(lambda: client.get_channels(), "the channel is listed")[0]
    assert client.get_channel(shown["name"])["number"] == channel.channel_number
    assert client.delete_connection(name) is True

    assert client.create_policy(VHOST, "py.p", pattern="^py", definition={"max-length": 5}, priority=1, **{"apply-to": "queues"}) == 201
    assert client.get_policy(VHOST, "py.p")["priority"] == 1 and "py.p" in {p["name"] for p in client.get_all_policies()}
    assert client.create_shovel(VHOST, "py.s", **{"src-queue": "a", "dest-queue": "b"}) == 201
    assert client.get_shovel(VHOST, "py.s")["value"]["src-queue"] == "a" and "py.s" in {s["name"] for s in client.get_all_shovels()}
    assert VHOST in {v["name"] for v in client.get_definitions()["vhosts"]}
    for done in (client.delete_shovel(VHOST, "py.s"), client.delete_policy(VHOST, "py.p"), client.delete_queue(VHOST, "py q"), client.delete_exchange(VHOST, "py.e"),
                 client.delete_permission(VHOST, "pyuser"), client.delete_user("pyuser"), client.delete_user("pyhash"), client.delete_vhost(VHOST)):
        assert done in (204, True)
    with pytest.raises(HTTPError, match="404"):
        client.get_vhost(VHOST)
    with pytest.raises(Refused):
        Client(f"127.0.0.1:{node.http}", "guest", "wrong").get_users()


def test_rabbitmq_admin(cluster, eventually):
    api = AdminAPI(f"http://127.0.0.1:{cluster[3].http}/", ("guest", "guest"))
    assert api.overview()["node"] == "node3"
    with pytest.raises(requests.HTTPError, match="401"):
        AdminAPI(api.url, ("guest", "wrong")).whoami()
    assert [n["name"] for n in api.list_nodes()] == ["node1", "node2", "node3"] and api.get_node("node2", memory=True, binary=True)["running"]
    assert api.list_extensions() == [] and api.whoami()["name"] == "guest"

    api.create_vhost("ra/v", tracing=True)
    assert api.get_vhost("ra/v")["name"] == "ra/v" and api.is_vhost_alive("/") == {"status": "ok"}
    api.create_user("rau", "p", tags=["monitoring", "policymaker"])
    api.create_user("ran", "", tags=None)
    assert api.get_user("rau")["tags"] == ["monitoring", "policymaker"] and api.get_user("ran")["tags"] == []
    assert {"rau", "ran"} <= {u["name"] for u in api.list_users()}
    api.create_user_permission("rau", "ra/v", read="^r")
    assert api.get_user_permission("ra/v", "rau") == {"user": "rau", "vhost": "ra/v", "configure": ".*", "write": ".*", "read": "^r"}
    assert api.list_user_permissions("rau") == [p for p in api.list_permissions() if p["user"] == "rau"]

    api.create_exchange_for_vhost("e", "ra/v", {"type": "headers", "durable": True, "arguments": {}})
    assert api.get_exchange_for_vhost("e", "ra/v")["type"] == "headers"
    assert "e" in {e["name"] for e in api.list_exchanges_for_vhost("ra/v")} and len(api.list_exchanges()) > 7
    assert api.list_bindings_for_vhost("ra/v") == [] and isinstance(api.list_bindings(), list)
    assert api.list_consumers_for_vhost("ra/v") == [] and isinstance(api.list_consumers(), list)
    api.create_policy_for_vhost("ra/v", "p", {"max-length": 1}, pattern="^x", priority=2, apply_to="queues")
    assert api.get_policy_for_vhost("ra/v", "p")["priority"] == 2
    assert [p["name"] for p in api.list_policies_for_vhost("ra/v")] == ["p"] and "p" in {p["name"] for p in api.list_policies()}
    definitions = api.get_definitions()
    api.delete_policy_for_vhost("ra/v", "p")
    api.delete_exchange_for_vhost("e", "ra/v", if_unused=True)
    api.post_definitions(definitions)
    assert api.get_policy_for_vhost("ra/v", "p") and api.get_exchange_for_vhost("e", "ra/v")

    channel = cluster[1].connect().channel()
    name = eventually(lambda: api.list_connections(), "the connection is listed")[0]["name"]
    assert api.get_connection(name)["name"] == name
    assert [c["number"] for c in eventually(lambda: api.list_connection_channels(name), "its channel is listed")] == [channel.channel_number]
    assert api.get_channel(api.list_channels()[0]["name"])["connection_details"]["name"] == name
    api.delete_connection(name, reason="a test")
    eventually(lambda: name not in {c["name"] for c in api.list_connections()}, "the connection is closed")

    api.delete_user_permission("rau", "ra/v")
    for user in ("rau", "ran"):
        api.delete_user(user)
    api.delete_vhost("ra/v")
    with pytest.raises(requests.HTTPError, match="404"):
        api.get_vhost("ra/v")
