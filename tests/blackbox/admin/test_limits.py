"""Limits of virtual hosts and users: what is refused with which words, on every node, and what warrenctl says of them."""

from __future__ import annotations

import json
import re

import pika
import pytest

VHOST = "limits"


@pytest.fixture
def limited(cluster):
    """A vhost and a user of its own, without limits."""
    node = cluster[1]
    assert node.put(f"vhosts/{VHOST}", {}) == 201
    assert node.put("users/bound", {"password": "p", "tags": ""}) in (201, 204)
    assert node.put(f"permissions/{VHOST}/bound", {"configure": ".*", "write": ".*", "read": ".*"}) in (201, 204)
    yield cluster
    cluster.close_connections()
    cluster[1].delete(f"vhosts/{VHOST}")
    cluster[1].delete("users/bound")


def refused(node, user: str = "guest", password: str = "guest") -> str:
    """What a client is told that may not open the vhost; nothing if it may."""
    try:
        node.connect(user, password, VHOST).close()
    except pika.exceptions.ProbableAccessDeniedError as closed:
        told = re.fullmatch(r"""ConnectionClosedByBroker: \((\d+)\) ["'](.*)["']""", str(closed))
        assert told and told[1] == "530", closed
        return told[2]
    return ""


def test_queues(limited):
    one, two = limited[1], limited[2]
    assert one.put(f"vhost-limits/{VHOST}/max-queues", {"value": 2}) == 204
    channel = one.connect(vhost=VHOST).channel()
    channel.queue_declare("a", durable=True)
    channel.queue_declare("", exclusive=True)
    elsewhere = two.connect(vhost=VHOST)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        elsewhere.channel().queue_declare("b", durable=True)
    assert closed.value.reply_code == 406
    assert closed.value.reply_text == f"PRECONDITION_FAILED - cannot declare queue 'b': queue limit in vhost '{VHOST}' (2) is reached"
    elsewhere.channel().queue_declare("a", durable=True)
    answer = two.ask("PUT", f"queues/{VHOST}/b", {"durable": True})
    assert answer.status == 400 and "queue limit in vhost" in answer.json["reason"]
    channel.queue_delete("a")
    elsewhere.channel().queue_declare("b", durable=True)


def test_connections_of_a_vhost(limited, eventually):
    one, two = limited[1], limited[2]
    assert one.put(f"vhost-limits/{VHOST}/max-connections", {"value": 2}) == 204
    first, second = one.connect(vhost=VHOST), one.connect(vhost=VHOST)
    words = f"NOT_ALLOWED - access to vhost '{VHOST}' refused for user 'guest': connection limit (2) is reached"
    assert refused(one) == words
    # Other nodes hear of it, also of what was open before there was a limit.
    eventually(lambda: refused(two) == words, "another node refuses")
    one.connect()
    # A closed one counts no more once its close is answered.
    first.close()
    one.connect(vhost=VHOST)
    assert refused(one) == words
    second.close()
    eventually(lambda: two.connect(vhost=VHOST), "another node lets one in")
    eventually(lambda: refused(one) == words, "and this one hears of it")
    assert one.delete(f"vhost-limits/{VHOST}/max-connections") == 204
    one.connect(vhost=VHOST)
    assert one.put(f"vhost-limits/{VHOST}/max-connections", {"value": 0}) == 204
    assert "(0)" in refused(one)


def test_connections_and_channels_of_a_user(limited, eventually):
    one, three = limited[1], limited[3]
    first = one.connect("bound", "p", VHOST)
    assert one.put("user-limits/bound/max-connections", {"value": 1}) == 204
    words = "NOT_ALLOWED - connection refused for user 'bound': user connection limit (1) is reached"
    assert refused(one, "bound", "p") == words
    eventually(lambda: refused(three, "bound", "p") == words, "another node refuses")
    one.connect(vhost=VHOST)
    assert one.delete("user-limits/bound/max-connections") == 204
    assert one.put("user-limits/bound/max-channels", {"value": 3}) == 204
    channels = [first.channel() for _ in range(3)]
    channels[0].close()
    channels.append(first.channel())
    words = "NOT_ALLOWED - number of channels opened for user 'bound' has reached the maximum allowed user limit of (3)"

    def full() -> bool:
        connection = three.connect("bound", "p", VHOST)
        try:
            connection.channel()
        except pika.exceptions.ConnectionClosedByBroker as closed:
            return closed.reply_code == 530 and closed.reply_text == words
        connection.close()
        return False

    eventually(full, "channels of another node count")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        first.channel()
    assert closed.value.reply_text == words
    # All channels of that connection are gone.
    eventually(lambda: three.connect("bound", "p", VHOST).channel(), "there is room again")


def test_limits_outlive_nodes(limited, eventually):
    assert limited[1].put(f"vhost-limits/{VHOST}/max-queues", {"value": 1}) == 204
    limited[2].kill()
    limited[2].start()
    limited[2].ready()
    eventually(lambda: limited[2].get(f"vhost-limits/{VHOST}").json == [{"vhost": VHOST, "value": {"max-queues": 1}}], "it is still set")


def test_warrenctl(limited):
    run = limited.run
    run("limit", "set", "max-queues", "5", "--vhost", VHOST)
    run("limit", "set", "max-connections", "-1", "--vhost", VHOST, node=2)
    rows = json.loads(run("limit", "list", "--vhost", VHOST, "--output", "json").stdout)
    assert rows == [{"vhost": VHOST, "value": {"max-connections": -1, "max-queues": 5}}]
    assert run("limit", "clear", "max-queues", "--vhost", VHOST, check=False).returncode == 64, "it asks first"
    run("limit", "clear", "max-queues", "--vhost", VHOST, "--yes")
    run("limit", "set", "max-channels", "9", "--of-user", "bound")
    assert run("list_user_limits", "--of-user", "bound", "--columns", "value.max-channels", "--silent").stdout.split() == ["9"]
    run("set_vhost_limits", "-p", VHOST, '{"max-queues": 3}')
    assert json.loads(run("list_vhost_limits", "--global", "--output", "json").stdout) == [{"vhost": VHOST, "value": {"max-queues": 3}}]
    run("clear_vhost_limits", "-p", VHOST)
    assert json.loads(run("list_vhost_limits", "-p", VHOST, "--output", "json").stdout) == []
    run("set_user_limits", "bound", '{"max-connections": 2}')
    run("clear_user_limits", "bound", "max-connections")
    assert json.loads(run("limit", "list", "--users", "--output", "json").stdout) == [{"user": "bound", "value": {"max-channels": 9}}]
    run("clear_user_limits", "bound", "all")
    assert json.loads(run("list_user_limits", "--output", "json").stdout) == []
    assert run("limit", "set", "max-queues", "5", "--of-user", "bound", check=False).returncode == 65
    assert run("limit", "set", "max-queues", "5", check=False).returncode == 64
