"""The audit log: who did what, from where, and what came of it."""

import json
import shutil
import time

import pytest

from amqp import Closed, Connection
from own import OwnCluster
from targets import ApiError, eventually, from_environment


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    from_environment().skip_on("rabbitmq", "it is Warren's")
    cluster = OwnCluster(tmp_path_factory.mktemp("audit"), size=1)
    node = cluster.nodes[0]
    with open(node.folder / "node.toml", "a") as file:
        file.write(f'\n[audit]\nfile = "{node.folder}/audit"\n')
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


def records(cluster, name="audit"):
    path = cluster.nodes[0].folder / name
    return [json.loads(line) for line in path.read_text().splitlines()]


def recorded(cluster, name="audit", **fields):
    """The record that has these fields, once it is there."""

    def find():
        return next((r for r in records(cluster, name) if all(r.get(key) == value for key, value in fields.items())), None)

    return eventually(find, 5, f"a record of {fields}")


def test_connections_and_logins(cluster):
    """A client that comes and goes, and one that may not, are recorded with user, address and outcome."""
    with Connection(cluster.amqp(1)):
        record = recorded(cluster, event="connect", via="amqp")
        assert (record["user"], record["vhost"], record["outcome"]) == ("guest", "/", "ok")
        assert record["peer"].startswith("127.0.0.1:") and record["timestamp"]
    assert recorded(cluster, event="disconnect", peer=record["peer"])["reason"] == "closed"
    with pytest.raises(Closed):
        Connection(cluster.amqp(1), user="nobody", password="wrong-and-secret")
    record = recorded(cluster, event="login", via="amqp", outcome="refused")
    assert "nobody" in record["reason"] and record["peer"].startswith("127.0.0.1:")
    with pytest.raises(ApiError):
        cluster.api(1, "guest", "wrong-and-secret").get("overview")
    record = recorded(cluster, event="login", via="http", outcome="refused", user="guest")
    assert record["peer"].startswith("127.0.0.1:")
    assert "wrong-and-secret" not in (cluster.nodes[0].folder / "audit").read_text()


def test_changes(cluster):
    """Changes are recorded with what they are of and what came of them, by AMQP and by HTTP, and no secret with them."""
    with Connection(cluster.amqp(1)) as connection:
        ch = connection.channel()
        ch.queue_declare("audited")
        ch.exchange_declare("x", "direct")
        ch.queue_bind("audited", "x", "k")
        record = recorded(cluster, event="change", action="queue.declare", object="audited")
        assert (record["user"], record["vhost"], record["via"], record["outcome"]) == ("guest", "/", "amqp", "ok")
        assert recorded(cluster, action="exchange.declare", object="x")["detail"] == "direct"
        assert recorded(cluster, action="binding.declare", object="x")["detail"] == "to queue audited, key k"
        ch.queue_delete("audited")
        recorded(cluster, action="queue.delete", object="audited", outcome="ok")
    api = cluster.api(1)
    api.put("users", "someone", body={"password": "very-secret", "tags": "monitoring"})
    record = recorded(cluster, action="user.declare", object="someone", via="http", user="guest")
    assert (record["detail"], record["outcome"]) == ("tags monitoring", "ok")
    api.put("permissions", "/", "someone", body={"configure": "^c", "write": "^w", "read": "^r"})
    assert recorded(cluster, action="permission.set", object="someone")["detail"] == "configure ^c, write ^w, read ^r"
    with pytest.raises(ApiError):
        api.put("permissions", "/", "no-such-user", body={"configure": "", "write": "", "read": ""})
    assert "very-secret" not in (cluster.nodes[0].folder / "audit").read_text()


def test_imports(cluster):
    """An import is one deed, with how much it brought; one that is refused is recorded as such."""
    api = cluster.api(1)
    queues = [{"name": f"imported{n}", "vhost": "/", "durable": True} for n in range(3)]
    binding = {"source": "amq.fanout", "vhost": "/", "destination": "imported0", "destination_type": "queue", "routing_key": ""}
    users = [{"name": "imported", "tags": "", "password": "imported-secret"}]
    api.post("definitions", body={"queues": queues, "bindings": [binding], "users": users})
    record = recorded(cluster, action="definitions.import", outcome="ok")
    assert (record["user"], record["via"], record["detail"]) == ("guest", "http", "1 bindings, 3 queues, 1 users")
    with pytest.raises(ApiError):
        api.post("definitions", body={"queues": queues, "bindings": [{**binding, "source": "none"}]})
    assert "no exchange 'none'" in recorded(cluster, action="definitions.import", outcome="refused")["reason"]
    assert "imported-secret" not in (cluster.nodes[0].folder / "audit").read_text()


def test_a_file_that_is_moved_away_is_followed_by_another(cluster):
    """As logrotate does: later records go to a new file of the same name."""
    folder = cluster.nodes[0].folder
    (folder / "audit").rename(folder / "audit.1")

    def declared():
        cluster.api(1).put("vhosts", "rotated")
        return (folder / "audit").exists()

    eventually(declared, 10, "a new file")
    recorded(cluster, action="vhost.declare", object="rotated")
    assert records(cluster, "audit.1")


def test_nodes_that_come_and_go(tmp_path):
    """Nodes that join, stop, come back, are drained, replaced and forgotten are recorded once in the cluster, and those that may not come in, too."""
    from_environment().skip_on("rabbitmq", "it is Warren's")
    cluster = OwnCluster(tmp_path / "members", size=3)
    for node in cluster.nodes:
        with open(node.folder / "node.toml", "a") as file:
            file.write(f'\n[audit]\nfile = "{node.folder}/audit"\n')

    def found(**fields):
        lines = [line for node in cluster.nodes if (node.folder / "audit").exists() for line in (node.folder / "audit").read_text().splitlines()]
        return [r for r in map(json.loads, lines) if all(r.get(key) == value for key, value in fields.items())]

    def once(**fields):
        eventually(lambda: found(**fields), 20, f"a record of {fields}")
        (record,) = found(**fields)
        assert (record["outcome"], record["via"]) == ("ok", "link" if record["event"] == "membership" else "http")
        return record

    def back(number):
        cluster.start(number)
        eventually(lambda: all(m["up"] and m["voter"] for m in cluster.view(1)["members"]) and len(cluster.view(1)["members"]) == 3, 30, "all are up")

    try:
        cluster.up()
        for node in cluster.nodes:
            record = once(action="node.join", object=node.name)
            assert record["peer"] == f"127.0.0.1:{node.quic}" and record["detail"].endswith("incarnation 1")
        cluster.nodes[2].stop()
        once(action="node.down", object="node3")
        back(3)
        assert once(action="node.up", object="node3")["detail"].endswith("incarnation 2")
        api = cluster.api(1)
        was = {m["name"]: m["node"] for m in cluster.view(1)["members"]}["node3"]
        for verb in ("drain", "revive"):
            api.post("cluster", verb, "node3")
            record = once(action=f"node.{verb}")
            assert (record["user"], record["object"], record["detail"]) == ("guest", "node3", f"id {was}") and record["peer"].startswith("127.0.0.1:")
        cluster.kill(3)
        shutil.rmtree(cluster.nodes[2].folder / "data")
        back(3)
        assert was in once(action="node.replace", object="node3")["detail"]
        cluster.nodes[2].stop()
        eventually(lambda: [m["name"] for m in cluster.view(1)["members"] if not m["up"]] == ["node3"], 20, "it is down")
        with pytest.raises(ApiError):
            api.post("cluster", "forget", "node2")  # it is up: refused before anything is proposed
        api.post("cluster", "forget", "node3")
        assert once(action="node.forget", object="node3")["user"] == "guest"
        once(action="node.leave", object="node3")
        assert not found(action="node.join", object="node3")[1:], "it joined once, and was replaced later"
        # One that belongs to another cluster tries again and again, and is recorded once for each node that refuses it.
        stranger = cluster.stranger("node4", "other")
        cluster.configure(stranger, {})
        stranger.start()
        eventually(stranger.healthy, 20, "the other cluster's node is healthy")
        stranger.stop()
        cluster.configure(stranger)
        stranger.start()
        try:
            def refused():
                return [r for r in found(event="membership", action="node.link") if "node4" in r["object"]]

            eventually(refused, 20, "it is refused")
            time.sleep(3)  # for more attempts
            assert len(refused()) <= 2 and all(r["outcome"] == "refused" and "belongs to cluster" in r["reason"] for r in refused()), refused()
            assert all(r["peer"].startswith("127.0.0.1:") for r in refused())
        finally:
            stranger.stop()
    finally:
        cluster.down()
