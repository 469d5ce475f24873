"""/metrics: readable by Prometheus' rules, without a login, and the sum over the nodes is the cluster."""

from __future__ import annotations

import re

LINE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^}]*\})? (\S+)$')


def scrape(node, path="/metrics"):
    answer = node.get(path, user=None)
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    samples = {}
    for line in answer.body.decode().splitlines():
        if not line.startswith("#"):
            match = LINE.match(line)
            assert match, line
            samples[match[1] + (match[2] or "")] = float(match[3])
    return samples


def test_the_sum_over_the_nodes_is_the_cluster(cluster, eventually):
    def total(name):
        return sum(scrape(node)[name] for node in cluster.nodes)

    received = 'rabbitmq_global_messages_received_total{protocol="amqp091"}'
    before = total(received)
    channel = cluster[1].connect().channel()
    channel.confirm_delivery()
    for name in ("m1", "m2", "m3", "m4"):
        channel.queue_declare(name, durable=True)
        channel.basic_publish("", name, b"x")
    cluster[2].connect()
    eventually(lambda: total(received) == before + 4, "publishes are counted once")
    assert total("rabbitmq_connections") == 2
    assert total("warren_shards_owned") == 12
    assert total("warren_raft_is_leader") == 1
    queued = sum(q["messages"] for q in cluster[1].get("queues").json)
    assert total("rabbitmq_queue_messages") == queued
    assert total("rabbitmq_queues") == len(cluster[1].get("queues").json)
    for node in cluster.nodes:
        found = scrape(node)
        assert found["warren_links"] == 2 and len([name for name in found if name.startswith("warren_link_rtt_seconds{")]) == 2


def test_single_queues_are_bounded(cluster):
    channel = cluster[1].connect().channel()
    for n in range(30):
        channel.queue_declare(f"po{n}", durable=True)
        channel.basic_publish("", f"po{n}", b"x")
    for node in cluster.nodes:
        found = [name for name in scrape(node, "/metrics/per-object") if name.startswith("rabbitmq_queue_messages{")]
        assert len(found) <= 5


CHURN = {"connection_created": "connections_opened", "connection_closed": "connections_closed", "channel_created": "channels_opened",
         "channel_closed": "channels_closed", "queue_declared": "queues_declared", "queue_created": "queues_created", "queue_deleted": "queues_deleted"}


def test_what_comes_and_goes_is_counted_once_in_the_cluster(cluster, eventually):
    """Connections and channels where they are, queues once whoever asks and however they go; in the metrics as in the overview."""
    def total():
        found = [scrape(node) for node in cluster.nodes]
        return {name: sum(one[f"rabbitmq_{of}_total"] for one in found) for name, of in CHURN.items()}

    def told(node):
        rates = cluster[node].get("overview").json["churn_rates"]
        assert all(rates[f"{name}_details"]["rate"] >= 0 for name in CHURN)
        return {name: rates[name] for name in CHURN}

    eventually(lambda: cluster[1].get("connections").json == [], "no connection is left of earlier tests")
    before = eventually(lambda: (lambda counts: counts if counts == told(3) else None)(total()), "both say the same")
    connection = cluster[2].connect()
    first, second = connection.channel(), connection.channel()
    for _ in range(3):
        first.queue_declare("churn-a", durable=True)
    first.queue_declare("churn-b", exclusive=True)
    first.queue_declare("churn-a", passive=True)
    second.queue_declare("churn-c", auto_delete=True)
    second.basic_cancel(second.basic_consume("churn-c", lambda *_: None))
    second.close()
    assert cluster[3].put("queues/%2F/churn-d", {"durable": True}) == 201
    queues = [{"name": f"churn-{n}", "vhost": "/", "durable": True} for n in range(4)]
    assert cluster[1].ask("POST", "definitions", {"queues": queues}).status == 204
    def since():
        now = total()
        return {name: int(now[name] - before[name]) for name in CHURN}
    so_far = {"connection_created": 1, "connection_closed": 0, "channel_created": 2, "channel_closed": 1, "queue_declared": 10, "queue_created": 8, "queue_deleted": 1}
    eventually(lambda: since() == so_far, f"{so_far}, not {since()}")
    connection.close()
    for name in ("churn-a", "churn-d", *(queue["name"] for queue in queues)):
        assert cluster[2].delete(f"queues/%2F/{name}") == 204
    end = {**so_far, "connection_closed": 1, "channel_closed": 2, "queue_deleted": 8}
    eventually(lambda: since() == end, f"{end}, not {since()}")
    for node in (1, 2, 3):
        eventually(lambda: told(node) == total(), f"node {node} tells the same")


def test_commits_are_timed(cluster, eventually):
    """Changes on the node that they are asked of, entries of shards on the leaders."""
    def counts(group):
        return [scrape(node)[f'warren_commit_seconds_count{{group="{group}"}}'] for node in cluster.nodes]

    changes, entries = counts("metadata"), sum(counts("shards"))
    channel = cluster[2].connect().channel()
    channel.confirm_delivery()
    channel.queue_declare("timed", durable=True)
    channel.basic_publish("", "timed", b"x")
    channel.queue_delete("timed")
    eventually(lambda: [now - then for now, then in zip(counts("metadata"), changes)] == [0, 2, 0], "two changes at the second node")
    assert sum(counts("shards")) > entries
    found = scrape(cluster[2])
    buckets = [found[name] for name in found if name.startswith('warren_commit_seconds_bucket{group="metadata"')]
    assert len(buckets) == 14 and buckets == sorted(buckets) and buckets[-1] == found['warren_commit_seconds_count{group="metadata"}']
    assert 0 < found['warren_commit_seconds_sum{group="metadata"}'] < 60
