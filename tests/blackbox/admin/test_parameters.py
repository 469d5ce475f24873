"""Parameters of the cluster and of virtual hosts, as warrenctl shows and sets them, and after a node's restart."""

from __future__ import annotations

import json


def test_warrenctl(cluster):
    run = cluster.run

    def listed(*arguments: str, node: int = 1) -> list:
        return json.loads(run(*arguments, "--output", "json", node=node).stdout)

    run("set_parameter", "-p", "/", "shovel", "move", '{"src-queue": "a"}')
    row = {"vhost": "/", "component": "shovel", "name": "move", "value": {"src-queue": "a"}}
    assert listed("list_parameters", "-p", "/", node=2) == [row]
    run("parameter", "set", "other", "5", "--component", "tool", node=3)
    assert listed("parameter", "list", "--component", "tool") == [{"vhost": "/", "component": "tool", "name": "other", "value": 5}]
    assert len(listed("parameter", "list", "--vhost", "/")) == 2
    assert json.loads(run("parameter", "show", "move", "--component", "shovel", "--output", "json").stdout) == row
    assert run("parameter", "show", "none", "--component", "shovel", check=False).returncode != 0
    run("parameter", "set", "owner", '"orders"')
    assert {"name": "owner", "value": "orders"} in listed("parameter", "list")

    cluster[2].kill()
    cluster[2].start()
    cluster[2].ready()
    assert listed("list_parameters", "-p", "/", node=2)[0] == row

    run("clear_parameter", "-p", "/", "shovel", "move")
    assert run("parameter", "clear", "other", "--component", "tool", check=False).returncode == 64, "it asks first"
    run("parameter", "clear", "other", "--component", "tool", "--yes")
    assert listed("list_parameters", "-p", "/") == []
    run("parameter", "clear", "owner", "--yes")
    assert run("set_parameter", "-p", "none", "c", "n", "1", check=False).returncode != 0
    assert run("set_parameter", "-p", "/", "c", "n", "{", check=False).returncode == 64
