"""Topic exchanges: wildcards over zero or more words, and keys without any word."""

import pytest

from conftest import Nodes
from own import own_cluster
from targets import eventually

PATTERNS = ["#", "#.#", "*", "#.*", "*.#", "a.#", "#.a", "a.#.b", "a.*.c.#", "a.*.#.b", ""]
_TWO = {"#", "#.#", "#.*", "*.#", "a.#"}
MATCHES = {
    "": {"#", "#.#", ""},
    "a": {"#", "#.#", "*", "#.*", "*.#", "a.#", "#.a"},
    "a.b": _TWO | {"a.#.b"},
    "a.x.b": _TWO | {"a.#.b", "a.*.#.b"},
    "a.x.y.b": _TWO | {"a.#.b", "a.*.#.b"},
    "a.b.c": _TWO | {"a.*.c.#"},
    "a.b.c.d": _TWO | {"a.*.c.#"},
    "b": {"#", "#.#", "*", "#.*", "*.#"},
}


def test_a05_wildcards_over_zero_words(nodes):
    """Each key reaches exactly the patterns that it should, with one copy a queue, from every node."""
    ch = nodes.channel(1)
    ch.exchange_declare("x1", "topic")
    for index, pattern in enumerate(PATTERNS):
        binder = nodes.channel(index % 3 + 1)
        binder.queue_declare(f"q{index}")
        binder.queue_bind(f"q{index}", "x1", pattern)
    for node in nodes.distinct:
        publisher = nodes.channel(node, confirm=True)
        for key in MATCHES:
            assert publisher.routed("x1", key, key.encode())
    for index, pattern in enumerate(PATTERNS):
        expected = sorted(key for key in MATCHES if pattern in MATCHES[key]) * len(nodes.distinct)
        assert sorted(body.decode() for body in ch.bodies(f"q{index}")) == sorted(expected), f"pattern {pattern!r}"


def test_one_copy_under_several_matching_bindings(nodes):
    """A key that matches several bindings of one queue gives it one copy: orders.*.completed and orders.#."""
    ch = nodes.channel(1)
    ch.exchange_declare("x1", "topic")
    ch.queue_declare("q1")
    for pattern in ("orders.*.completed", "orders.#", "#", "orders.eu.completed"):
        nodes.channel(2).queue_bind("q1", "x1", pattern)
    ch.queue_declare("completed")
    ch.queue_bind("completed", "x1", "orders.*.completed")
    publisher = nodes.channel(3, confirm=True)
    for key in ("orders.eu.completed", "orders.completed", "orders.eu.new", "orders.eu.north.completed", "orders"):
        assert publisher.routed("x1", key, key.encode())
    assert len(ch.bodies("q1")) == 5
    assert ch.bodies("completed") == [b"orders.eu.completed"]


class EmptyKeys:
    """The scenario A06: exchanges with a queue bound under "" and one under `*`."""

    def __init__(self, nodes: Nodes, names) -> None:
        self.nodes, self.other = nodes, names("vhost")
        nodes.add_vhost(self.other)
        self.places = [(nodes.vhost, "x1", "topic"), (nodes.vhost, "x2", "topic"), (self.other, "x1", "topic"), (nodes.vhost, "x3", "direct")]
        for index, (vhost, exchange, kind) in enumerate(self.places):
            with nodes.connect(index % 3 + 1, vhost=vhost) as connection:
                ch = connection.channel()
                ch.exchange_declare(exchange, kind)
                for queue, key in ((f"{exchange}-empty", ""), (f"{exchange}-star", "*")):
                    ch.queue_declare(queue)
                    ch.queue_bind(queue, exchange, key)

    def check(self, unbound: set[int] = frozenset()) -> None:
        """Publishes "" everywhere from every node; each publish reaches its own exchange's "" queue alone."""
        for node in self.nodes.distinct:
            for index, (vhost, exchange, _) in enumerate(self.places):
                with self.nodes.connect(node, vhost=vhost) as connection:
                    ch = connection.channel()
                    ch.confirm_select()
                    assert ch.routed(exchange, "", b"m") == (index not in unbound), (vhost, exchange, node)
        for index, (vhost, exchange, _) in enumerate(self.places):
            with self.nodes.connect(2, vhost=vhost) as connection:
                ch = connection.channel()
                expected = 0 if index in unbound else len(self.nodes.distinct)
                assert len(ch.bodies(f"{exchange}-empty")) == expected, (vhost, exchange)
                assert ch.bodies(f"{exchange}-star") == [], (vhost, exchange)


def test_a06_empty_key_stays_inside_its_exchange(nodes, names):
    """A binding under the empty key receives only what is published with the empty key to its own exchange in its own vhost."""
    scenario = EmptyKeys(nodes, names)
    scenario.check()
    with nodes.connect(2) as connection:
        connection.channel().queue_unbind("x2-empty", "x2", "")
    scenario.check({1})


@pytest.mark.slow
def test_a06_after_restarts(nodes, names):
    """The same after every node was killed and started, and after an empty binding was removed since."""
    scenario = EmptyKeys(nodes, names)
    nodes.restart_all()
    eventually(lambda: nodes.connect(3).channel().exists("x1-empty"), 10)
    scenario.check()
    with nodes.connect(2) as connection:
        connection.channel().queue_unbind("x1-empty", "x1", "")
    scenario.check({0})


@pytest.mark.slow
def test_a06_on_a_node_that_was_added_later(tmp_path, names):
    """A node that joins a cluster that runs gets the table by log or snapshot, and routes the empty key as the others do."""
    with own_cluster(tmp_path / "cluster") as cluster:
        nodes = Nodes(cluster, "spread", names("v"))
        nodes.add_vhost(nodes.vhost)
        try:
            scenario = EmptyKeys(nodes, names)
            scenario.check()
            added = cluster.add("node4")
            assert added in nodes.distinct
            members = {member["name"]: member["up"] for member in cluster.view(added)["members"]}
            assert members == {"node1": True, "node2": True, "node3": True, "node4": True}
            eventually(lambda: len({cluster.digest(node)["digest"] for node in cluster.all()}) == 1, 5, "equal digests")
            scenario.check()
            with nodes.connect(added) as connection:
                connection.channel().queue_unbind("x1-empty", "x1", "")
            scenario.check({0})
            # The nodes that were there first may go: the new one is a full member.
            eventually(lambda: all(member["voter"] for member in cluster.view(added)["members"]), 10, "all are voters")
            nodes.kill(1)
            ch = nodes.channel(added, confirm=True)
            eventually(lambda: ch.publish_confirmed("x2", "").outcome == "ack", 10, "node4 routes without node1")
        finally:
            nodes.close()
