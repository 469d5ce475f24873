"""What is said of virtual hosts, and the type that they give to queues, on every node and after a restart."""

from __future__ import annotations

import json

import pika
import pytest

VHOST = "described"


@pytest.fixture
def described(cluster):
    """A vhost whose queues are quorum queues by default."""
    cluster.run("vhost", "declare", VHOST, "--description", "Orders", "--tags", "eu,production", "--default-queue-type", "quorum")
    yield cluster
    cluster.close_connections()
    cluster[1].delete(f"vhosts/{VHOST}")


def test_warrenctl(described):
    run = described.run
    columns = ["--columns", "name,description,tags,default_queue_type", "--output", "json"]
    shown = [row for row in json.loads(run("vhost", "list", *columns, node=2).stdout) if row["name"] == VHOST]
    assert shown and (shown[0]["description"], shown[0]["tags"], shown[0]["default_queue_type"]) == ("Orders", ["eu", "production"], "quorum")
    run("update_vhost_metadata", VHOST, "--description", "Stock", node=3)
    vhost = described[1].get(f"vhosts/{VHOST}").json
    assert (vhost["description"], vhost["tags"], vhost["default_queue_type"]) == ("Stock", ["eu", "production"], "quorum")
    assert run("update_vhost_metadata", "none", "--description", "x", check=False).returncode != 0
    assert described[1].get("vhosts/none").status == 404
    assert run("add_vhost", "other", "--default-queue-type", "stream", check=False).returncode == 65
    assert described[1].get("vhosts/other").status == 404


def test_the_default_type_of_queues(described):
    channel = described[2].connect(vhost=VHOST).channel()
    channel.queue_declare("durable", durable=True)
    channel.queue_declare("named", durable=True, arguments={"x-queue-type": "classic"})
    channel.queue_declare("passing", durable=True, auto_delete=True)
    channel.queue_declare("transient")
    own = channel.queue_declare("", exclusive=True).method.queue
    kinds = {q["name"]: q["type"] for q in described[3].get(f"queues/{VHOST}").json}
    assert kinds == {"durable": "quorum", "named": "classic", "passing": "classic", "transient": "classic", own: "classic"}
    # The same words mean the same queue, with the type or without it.
    channel.queue_declare("durable", durable=True)
    channel.queue_declare("durable", durable=True, arguments={"x-queue-type": "quorum"})
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.queue_declare("named", durable=True)
    assert closed.value.reply_code == 406 and "x-queue-type" in closed.value.reply_text


def test_it_outlives_nodes(described):
    for node in described.nodes:
        node.kill()
    for node in described.nodes:
        node.start()
    for node in described.nodes:
        node.ready()
    for node in described.nodes:
        assert node.get(f"vhosts/{VHOST}").json["metadata"] == {"description": "Orders", "tags": ["eu", "production"], "default_queue_type": "quorum"}
