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
