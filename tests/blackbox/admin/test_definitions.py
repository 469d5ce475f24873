"""Definitions: exports of RabbitMQ go in as they are and come out equal; an import is one change of the whole cluster, or none."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Callable, Iterator
from urllib.parse import quote

import pytest

EXPORTS = Path(__file__).parent / "exports"
ABOUT_RABBITMQ = {"internal_cluster_id", "cluster_name"}
LISTS = ("users", "vhosts", "permissions", "topic_permissions", "parameters", "global_parameters", "policies", "queues", "exchanges", "bindings")


def recorded(name: str) -> dict[str, Any]:
    return json.loads((EXPORTS / name).read_text())


def comparable(definitions: dict[str, Any]) -> dict[str, list[str]]:
    """The lists in an order of their own, with RabbitMQ's fields alone, and without what names the exporting cluster."""
    def plain(kind: str, row: dict[str, Any]) -> dict[str, Any]:
        if kind == "vhosts":
            return {"name": row["name"]}
        return {key: value for key, value in row.items() if key != "arguments_table"}

    def rows(kind: str) -> Iterator[str]:
        for row in definitions.get(kind, []):
            if not (kind == "global_parameters" and row["name"] in ABOUT_RABBITMQ):
                yield json.dumps(plain(kind, row), sort_keys=True)

    return {kind: sorted(rows(kind)) for kind in LISTS}


@pytest.fixture
def fresh(new_cluster: Callable[[int], Any]) -> Iterator[Any]:
    cluster = new_cluster(1)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def test_an_export_of_rabbitmq_comes_back_equal(fresh):
    given = recorded("rabbitmq-3.10.8.json")
    assert all(given[kind] for kind in LISTS), "every kind of object is in it"
    node = fresh[1]
    planned = node.ask("POST", "definitions", given, query={"dry_run": "true"})
    assert planned.status == 200, planned.body
    assert planned.json["queues"] == len(given["queues"]) and planned.json["creates"]["bindings"] == len(given["bindings"])
    idle = {(row["object"], row["what"]) for row in planned.json["without_effect"]}
    for expected in (("queue 'lost' in vhost 'shop'", "x-queue-mode"), ("policy 'mirrors' in vhost 'shop'", "ha-mode"),
                     ("parameter 'old-orders' of component 'shovel' in vhost 'shop'", "component shovel")):
        assert expected in idle, idle
    assert node.get("vhosts").json[0]["name"] == "/" and len(node.get("vhosts").json) == 1, "a dry run changes nothing"
    assert node.ask("POST", "definitions", given).status == 204
    back = node.get("definitions").json
    assert comparable(back) == comparable(given)
    again = node.ask("POST", "definitions", back, query={"report": "true"})
    assert again.status == 200 and not any(again.json["creates"].values()) and not any(again.json["changes"].values()), again.json
    assert node.get("definitions").json == back
    # Passwords hold, in both of RabbitMQ's forms.
    for user, password in (("alice", "alice-secret"), ("dave", "dave-secret")):
        assert node.get("whoami", user=user, password=password).status == 200
    assert node.get("whoami", user="bob", password="").status == 401


def test_imports_that_came_about_and_that_did_not_are_replayed_alike(new_cluster, eventually):
    cluster = new_cluster(3)
    try:
        cluster.start()
        node = cluster[1]
        assert node.ask("POST", "definitions/%2F", many(200, 3)).status == 204
        bad = many(300, 2)
        bad["bindings"].append({**bad["bindings"][0], "source": "none"})
        assert cluster[2].ask("POST", "definitions/%2F", bad).status == 400
        assert cluster[3].ask("POST", "definitions/%2F", many(250, 1)).status == 204
        for one in cluster.nodes:
            one.kill()
        for one in cluster.nodes:
            one.start()
        for one in cluster.nodes:
            one.ready()
        for one in cluster.nodes:
            eventually(lambda: one.get("queues/%2F", query={"page": "1", "page_size": "1"}).json["total_count"] == 250, "all queues are there")
            assert len(one.get("bindings/%2F", query={"columns": "source"}).json) == 250 + 250 + 200 * 2
        assert len({one.get("routing/digest").json["digest"] for one in cluster.nodes}) == 1
    finally:
        cluster.stop()


def test_an_export_of_one_virtual_host_goes_into_another(cluster):
    given = recorded("rabbitmq-3.10.8-vhost.json")
    node = cluster[1]
    assert node.put("vhosts/copy", {}) == 201
    try:
        assert node.ask("POST", "definitions/copy", given).status == 204
        back = cluster[2].get("definitions/copy").json
        kinds = ("policies", "queues", "exchanges", "bindings", "parameters")
        mine, theirs = comparable(back), comparable(given)
        # RabbitMQ says in some lists, though not in all, which virtual host it was.
        for kind in kinds:
            assert mine[kind] == sorted(json.dumps({k: v for k, v in json.loads(row).items() if k != "vhost"}, sort_keys=True) for row in theirs[kind])
    finally:
        assert node.delete("vhosts/copy") == 204


def many(queues: int, bindings: int) -> dict[str, Any]:
    names = [f"q{number}" for number in range(queues)]
    return {
        "queues": [{"name": name, "durable": True, "auto_delete": False, "arguments": {}} for name in names],
        "bindings": [{"source": "amq.topic", "destination": name, "destination_type": "queue", "routing_key": f"k.{key}", "arguments": {}}
                     for name in names for key in range(bindings)],
    }


def test_an_import_is_seen_whole_or_not_at_all(cluster, eventually):
    assert cluster[1].put("vhosts/whole", {}) == 201
    ended, seen = threading.Event(), set()

    def look() -> None:
        while not ended.is_set():
            seen.add((len(cluster[3].get("queues/whole", query={"columns": "name"}).json)))

    looking = threading.Thread(target=look)
    try:
        digest = cluster[1].get("routing/digest").json
        looking.start()
        definitions = many(300, 5)
        bad = {**definitions, "bindings": [*definitions["bindings"], {**definitions["bindings"][0], "destination": "nobody"}]}
        refused = cluster[2].ask("POST", "definitions/whole", bad)
        assert refused.status == 400 and "the binding from 'amq.topic' to 'nobody' in vhost 'whole'" in refused.json["reason"], refused.body
        assert "nothing is imported" in refused.json["reason"]
        for node in (1, 2, 3):
            assert cluster[node].get("queues/whole").json == []
        eventually(lambda: cluster[1].get("routing/digest").json["digest"] == digest["digest"], "the tables are as they were")
        assert cluster[2].ask("POST", "definitions/whole", definitions).status == 204
        assert len(cluster[3].get("bindings/whole", query={"columns": "source"}).json) == 300 * 5 + 300
        eventually(lambda: 300 in seen, "the import is seen")
    finally:
        ended.set()
        looking.join()
        assert cluster[1].delete("vhosts/whole") == 204
    assert seen == {0, 300}


def test_imported_queues_carry_messages_with_a_node_down(cluster, eventually):
    cluster[3].kill()
    node = cluster[1]
    assert node.put("vhosts/two", {}) == 201
    try:
        answer = eventually(lambda: (lambda a: a if a.status == 204 else None)(node.ask("POST", "definitions/two", many(20, 1))), "two of three import")
        assert answer.status == 204
        channel = node.connect(vhost="two").channel()
        channel.confirm_delivery()
        for name in range(20):
            channel.basic_publish("", f"q{name}", b"x", mandatory=True)
        method, _, body = cluster[2].connect(vhost="two").channel().basic_get("q7", auto_ack=True)
        assert method and body == b"x"
    finally:
        cluster.heal()
        assert node.delete("vhosts/two") == 204


@pytest.mark.parametrize("body, said", [
    (b"{", "not_json"), (b"[]", "object"), ({"queues": 3}, "queues must be a list"), ({"queues": [3]}, "queues[0]"),
    ({"shovels": [{}]}, "shovels (1)"), ({"policies": [{"name": "p", "vhost": "/", "pattern": "(", "definition": {"max-length": 1}}]}, "policies[0]"),
])
def test_what_makes_no_sense_is_named(cluster, body, said):
    for path in ("definitions", "definitions/%2F"):
        answer = cluster[1].ask("POST", path, body)
        assert answer.status == 400 and said in answer.json["reason"], answer.body


def test_who_may_not(cluster, segment):
    node = cluster[1]
    assert node.put("users/looker", {"password": "pw", "tags": "monitoring"}) == 201
    try:
        for path in ("definitions", f"definitions/{segment('/')}"):
            for method in ("GET", "POST"):
                assert node.ask(method, path, {}, user="looker", password="pw").status == 401
                assert node.ask(method, path, {}, user="nobody").status == 401
        for method in ("GET", "POST"):
            assert node.ask(method, f"definitions/{quote('no/such', safe='')}", {}).status == 404
    finally:
        assert node.delete("users/looker") == 204


def test_the_command_line_tells_what_it_would_do_and_what_has_no_effect(cluster, tmp_path):
    file = tmp_path / "d.json"
    file.write_text(json.dumps({"vhosts": [{"name": "cli"}], "queues": [{"name": "q", "vhost": "cli", "durable": True, "arguments": {"x-max-length": 5, "x-max-priority": 3}}]}))
    try:
        planned = cluster.run("definitions", "import", str(file), "--dry-run").stdout
        assert "new 1 vhosts, 1 queues; changed nothing" in planned and "queue 'q' in vhost 'cli': x-max-length, x-max-priority" in planned
        done = cluster.run("definitions", "import", str(file))
        assert "new 1 vhosts, 1 queues" in done.stderr and "x-max-length, x-max-priority" in done.stderr and not done.stdout
        again = cluster.run("definitions", "import", str(file), "--dry-run", "--output", "json")
        assert json.loads(again.stdout)["creates"]["queues"] == 0
        assert not cluster.run("definitions", "import", str(file), "--quiet").stderr
    finally:
        cluster.run("vhost", "delete", "cli", "--yes")
    file.write_text(json.dumps({"queues": [{"name": "q", "vhost": "none"}]}))
    for more in ((), ("--dry-run",)):
        refused = cluster.run("definitions", "import", str(file), *more, check=False)
        assert refused.returncode == 65 and "queue 'q' in vhost 'none'" in refused.stderr
