"""Connections, channels, consumers and rates, seen through any node, and with one node down."""

from __future__ import annotations

import signal
import time

import pika
import pytest


def named(rows, name):
    return [row for row in rows if row.get("user_provided_name") == name]


def open_named(node, name, **options):
    return node.connect(client_properties={"connection_name": name}, **options)


def test_all_nodes_show_the_clients_of_all(cluster, eventually):
    # What consumes from a queue is counted by its leader, which just after the cluster's start may still hand over to the preferred one.
    eventually(lambda: not cluster[1].get("ring").json["moves"], "preferred leaders lead")
    for node in cluster.nodes:
        connection = open_named(node, f"c{node.number}")
        channel = connection.channel()
        channel.queue_declare(f"q{node.number}", durable=True)
        channel.basic_consume(f"q{node.number}", lambda *_: None, consumer_tag=f"t{node.number}")
    for asked in cluster.nodes:
        rows = asked.get("connections").json
        found = {row["user_provided_name"]: row["node"] for row in rows if row.get("user_provided_name")}
        assert found == {"c1": "node1", "c2": "node2", "c3": "node3"}, found
        consumers = {c["consumer_tag"]: c["queue"]["name"] for c in asked.get("consumers").json}
        assert {f"t{n}": f"q{n}" for n in (1, 2, 3)}.items() <= consumers.items()
        assert len(asked.get("channels").json) == 3
        queue = asked.get("queues/%2F/q3").json
        assert [c["channel_details"]["node"] for c in queue["consumer_details"]] == ["node3"]
        totals = asked.get("overview").json["object_totals"]
        assert (totals["connections"], totals["channels"], totals["consumers"]) == (3, 3, 3), totals


def test_rates_come_from_the_whole_cluster(cluster, eventually):
    # What went through a queue is counted by its leader, which just after the cluster's start may still hand over to the preferred one.
    eventually(lambda: not cluster[1].get("ring").json["moves"], "preferred leaders lead")
    channel = open_named(cluster[1], "publisher").channel()
    channel.confirm_delivery()
    channel.queue_declare("rated", durable=True)
    before = cluster[3].get("overview").json["message_stats"].get("publish", 0)
    for _ in range(50):
        channel.basic_publish("", "rated", b"x")
    for asked in cluster.nodes:
        queue = eventually(lambda: (q := asked.get("queues/%2F/rated").json).get("message_stats", {}).get("publish") == 50 and q, "counted")
        assert queue["messages"] == queue["messages_ready"] == 50
        assert queue["message_stats"]["publish_details"]["rate"] > 0
        overview = eventually(lambda: (o := asked.get("overview").json)["message_stats"]["publish"] == before + 50 and o, "summed up")
        assert overview["message_stats"]["publish_details"]["rate"] > 0
        assert overview["queue_totals"]["messages"] >= 50
    got = channel.basic_get("rated", auto_ack=True)
    assert got[0]
    stats = eventually(lambda: (s := cluster[2].get("queues/%2F/rated").json["message_stats"]).get("deliver_get") == 1 and s, "the get is counted")
    assert "ack" not in stats


def test_exchanges_show_what_went_through_them_at_all_nodes(cluster, eventually):
    channels = [open_named(node, f"through {node.name}").channel() for node in cluster.nodes]
    channels[0].exchange_declare("counted", "fanout")
    for name in ("counted1", "counted2"):
        channels[0].queue_declare(name)
        channels[0].queue_bind(name, "counted")
    for channel in channels:
        channel.confirm_delivery()
        for _ in range(10):
            channel.basic_publish("counted", "", b"x")
    for asked in cluster.nodes:
        stats = eventually(lambda: (s := asked.get("exchanges/%2F/counted").json.get("message_stats", {})).get("publish_in") == 30 and s, "counted")
        assert stats["publish_out"] == 60 and stats["publish_in_details"]["rate"] > 0 and stats["publish_out_details"]["rate"] > 0, stats
        [row] = [row for row in asked.get("exchanges/%2F").json if row["name"] == "counted"]
        assert row["message_stats"]["publish_in"] == 30
        assert "message_stats" not in asked.get("exchanges/%2F/amq.match").json, "never used"
    channels[1].exchange_delete("counted")
    channels[2].exchange_declare("counted", "fanout")
    assert "message_stats" not in cluster[1].get("exchanges/%2F/counted").json, "another one of that name"
    channels[0].basic_publish("counted", "", b"x")
    stats = eventually(lambda: cluster[2].get("exchanges/%2F/counted").json.get("message_stats"), "counted anew")
    assert (stats["publish_in"], stats["publish_out"]) == (1, 0)
    cluster[3].kill()
    eventually(lambda: cluster[1].get("exchanges/%2F/counted").json["message_stats"]["publish_in"] == 1, "what the others know is shown")
    cluster.heal()


def test_a_connection_is_closed_through_another_node(cluster, eventually, segment):
    connection = open_named(cluster[1], "victim")
    [row] = named(cluster[3].get("connections").json, "victim")
    path = f"connections/{segment(row['name'])}"
    assert cluster[2].get(path).json["name"] == row["name"]
    assert cluster[3].delete(path, headers={"X-Reason": "out you go"}) == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        connection.process_data_events(time_limit=10)
    assert (closed.value.reply_code, closed.value.reply_text) == (320, "CONNECTION_FORCED - out you go")
    eventually(lambda: cluster[3].get(path).status == 404, "the connection is gone")
    assert cluster[3].delete(path) == 404


def test_a_node_that_hangs_is_left_out_in_time(cluster):
    open_named(cluster[1], "here")
    open_named(cluster[3], "there")
    cluster[3].signal(signal.SIGSTOP)
    for path in ("connections", "channels", "consumers", "overview", "nodes", "queues", "health/checks/alarms"):
        started = time.monotonic()
        answer = cluster[1].get(path)
        took = time.monotonic() - started
        assert answer.status == 200, (path, answer.body)
        assert took < 3.0, f"{path} took {took:.1f} s"
    assert named(cluster[1].get("connections").json, "here")
    assert not named(cluster[1].get("connections").json, "there")


def test_a_dead_node_is_shown_as_not_running_and_its_clients_are_gone(cluster, eventually):
    open_named(cluster[2], "lost")
    assert named(cluster[1].get("connections").json, "lost")
    cluster[2].kill()

    def down() -> bool:
        nodes = {n["name"]: n["running"] for n in cluster[1].get("nodes").json}
        return nodes == {"node1": True, "node2": False, "node3": True}

    eventually(down, "node2 is shown as down", 10)
    assert not named(cluster[3].get("connections").json, "lost")
    started = time.monotonic()
    assert cluster[1].get("overview").status == 200
    assert time.monotonic() - started < 2.5


@pytest.mark.parametrize("path", ["connections", "channels", "consumers", "users/guest/connections", "vhosts/%2F/connections",
                                  "vhosts/%2F/channels", "connections/username/guest", "consumers/%2F"])
def test_lists_of_clients_need_a_login_and_a_tag(cluster, path):
    assert cluster[1].get(path, user=None).status == 401
    assert cluster[1].get(path, password="wrong").status == 401
    assert cluster[1].put("users/plain", {"password": "p", "tags": ""}) in (201, 204)
    assert cluster[1].get(path, user="plain", password="p").status == 401
    assert cluster[1].get(path).status == 200
    assert cluster[1].ask("POST", path, {}).status == 405
    assert cluster[1].get(path, query={"page": "0"}).status == 400


def test_users_close_their_own_connections_only(cluster, segment):
    node = cluster[1]
    for name, tags in (("owner", "management"), ("other", "monitoring")):
        assert node.put(f"users/{name}", {"password": "p", "tags": tags}) in (201, 204)
    assert node.put("permissions/%2F/owner", {"configure": "", "write": "", "read": ""}) in (201, 204)
    open_named(node, "own", user="owner", password="p")
    open_named(node, "guests")
    rows = node.get("connections", user="owner", password="p").json
    assert [row["user"] for row in rows] == ["owner"]
    [guests] = named(node.get("connections", user="other", password="p").json, "guests")
    for user in ("owner", "other"):
        assert node.delete(f"connections/{segment(guests['name'])}", user=user, password="p") == 401
    assert node.delete(f"connections/{segment(rows[0]['name'])}", user="owner", password="p") == 204
