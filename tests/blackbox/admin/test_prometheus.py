"""A Prometheus server from Debian's package, with the configuration, alerts and Grafana dashboard of cluster-config/monitoring, on three nodes."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import urllib.parse
from pathlib import Path

import pytest
import yaml
from debian import program
from ports import free_ports

MONITORING = Path(__file__).resolve().parents[3] / "cluster-config/monitoring"
#: What RabbitMQ's own dashboards, Overview and Quorum Queues Raft, ask for, and what has a meaning here.
RABBITMQ = """rabbitmq_queue_messages_ready rabbitmq_queue_messages_unacked rabbitmq_queues rabbitmq_connections rabbitmq_channels rabbitmq_consumers
rabbitmq_channel_consumers rabbitmq_channel_messages_unconfirmed rabbitmq_connections_opened_total rabbitmq_connections_closed_total rabbitmq_build_info
rabbitmq_channels_opened_total rabbitmq_channels_closed_total rabbitmq_queues_declared_total rabbitmq_queues_created_total rabbitmq_queues_deleted_total
rabbitmq_channel_messages_published_total rabbitmq_channel_messages_confirmed_total rabbitmq_channel_messages_unroutable_dropped_total
rabbitmq_channel_messages_unroutable_returned_total rabbitmq_channel_messages_delivered_total rabbitmq_channel_messages_delivered_ack_total
rabbitmq_channel_messages_redelivered_total rabbitmq_channel_messages_acked_total rabbitmq_channel_get_total rabbitmq_channel_get_ack_total rabbitmq_channel_get_empty_total
rabbitmq_global_messages_received_total rabbitmq_global_messages_confirmed_total rabbitmq_global_messages_delivered_total
rabbitmq_resident_memory_limit_bytes rabbitmq_process_resident_memory_bytes rabbitmq_disk_space_available_bytes rabbitmq_disk_space_available_limit_bytes
rabbitmq_process_max_fds rabbitmq_process_open_fds rabbitmq_process_max_tcp_sockets rabbitmq_process_open_tcp_sockets
rabbitmq_raft_term_total rabbitmq_raft_log_last_applied_index rabbitmq_raft_log_commit_index rabbitmq_raft_log_last_written_index rabbitmq_raft_log_snapshot_index""".split()


class Prometheus:
    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str, **parameters: str):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        assert response.status == 200, text
        answer = json.loads(text)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str):
        return self.get("query", query=expression)["result"]

    def up(self):
        return sum(target["health"] == "up" for target in self.get("targets", state="active")["activeTargets"])


@pytest.fixture
def prometheus(cluster, tmp_path, eventually):
    """A server that scrapes the cluster as the shipped configuration says, but every half second."""
    configuration = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    configuration["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    configuration["rule_files"] = [str(MONITORING / "alerts.yml")]
    (job,) = configuration["scrape_configs"]
    assert [len(group["targets"]) for group in job["static_configs"]] == [3]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{node.http}" for node in cluster.nodes]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    (port,) = free_ports(1)
    command = [str(program("prometheus", "usr/bin/prometheus")), f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
               f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    log = (tmp_path / "prometheus.log").open("wb")
    server = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        found = Prometheus(port)
        eventually(lambda: found.up() == 3, "Prometheus scrapes three nodes", 30)
        yield found
    finally:
        server.terminate()
        server.wait(20)


def test_files_and_metrics_pass_promtool(cluster):
    promtool = str(program("prometheus", "usr/bin/promtool"))
    checked = subprocess.run([promtool, "check", "config", str(MONITORING / "prometheus.yml")], capture_output=True, text=True, timeout=30)
    assert checked.returncode == 0 and "rules found" in checked.stdout, checked.stdout + checked.stderr
    for path in ("/metrics", "/metrics/per-object"):
        text = cluster[1].get(path, user=None).body.decode()
        checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=30)
        # RabbitMQ's names are what they are: the rules of good names that promtool also knows are not ours to choose.
        faults = [line for line in (checked.stdout + checked.stderr).splitlines() if line and not line.startswith("rabbitmq_")]
        assert not faults and checked.returncode in (0, 3), faults


def test_dashboards_and_alerts(cluster, prometheus, eventually):
    channel = cluster[1].connect().channel()
    channel.confirm_delivery()
    channel.queue_declare("prom", durable=True)
    channel.basic_publish("", "prom", b"x")
    channel.basic_get("prom")

    for name in RABBITMQ:
        joined = f'sum({name} * on(instance) group_left(rabbitmq_cluster) rabbitmq_identity_info{{rabbitmq_cluster="admin", namespace=""}})'
        assert eventually(lambda: prometheus.query(joined), f"{name} has a value", 10)
    published = 'sum(rabbitmq_channel_messages_published_total * on(instance) group_left(rabbitmq_cluster) rabbitmq_identity_info{rabbitmq_cluster="admin"})'
    told = sum(int(re.search(r"^rabbitmq_channel_messages_published_total (\d+)$", node.get("/metrics", user=None).body.decode(), re.M)[1]) for node in cluster.nodes)
    eventually(lambda: float(prometheus.query(published)[0]["value"][1]) == told > 0, "Prometheus has the cluster's number")

    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 30
    for expression in expressions:
        asked = expression.replace("$cluster", "admin").replace("$__rate_interval", "10s")
        assert "$" not in asked
        assert eventually(lambda: prometheus.query(asked), f"{asked} has a value", 10)

    groups = prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) >= 10 and all(rule["health"] == "ok" for rule in eventually(lambda: [r for g in prometheus.get("rules")["groups"] for r in g["rules"]], "rules"))
    # What they compare exists: an expression on a metric that is not there would never fire.
    names = set(prometheus.get("label/__name__/values"))
    for rule in rules:
        used = set(re.findall(r"\b(?:warren|rabbitmq)_[a-z_]+\b", rule["query"]))
        assert used <= names, (rule["name"], used - names)
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]
    eventually(lambda: prometheus.get("alerts")["alerts"] == [], "no alert while all is well")

    cluster[3].kill()
    def pending():
        return {alert["labels"]["alertname"] for alert in prometheus.get("alerts")["alerts"]}
    eventually(lambda: {"WarrenNodeDown", "WarrenLinksMissing", "WarrenQuorumCritical"} <= pending(), "a dead node is told", 20)
    assert prometheus.up() == 2
    cluster.heal()
    eventually(lambda: not {"WarrenNodeDown", "WarrenLinksMissing", "WarrenQuorumCritical"} & pending(), "and so is that it is back", 20)
