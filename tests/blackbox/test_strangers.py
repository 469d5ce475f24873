"""Who may not come in: a second node of a name, a node of a foreign CA, a node with another cluster's data. Each is told why.

The healthy cluster is one of the test's own. What is watched meanwhile: it has the same members under the same leader in the same term, all nodes stay up, each
declares and routes, and none loses its lease.
"""

import shutil
import threading
import time

import pytest

from amqp import Connection
from own import Authority, OwnNode, own_cluster
from targets import eventually

LONG_S = 6  # a node that may join has joined, and routes, in less than half of this


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three nodes, shared by this module's tests: none of them may change it."""
    with own_cluster(tmp_path_factory.mktemp("strangers")) as cluster:
        yield cluster


class Watch:
    """Publishes and declares at every node, all the time; what it sees of the group before and after must be the same."""

    def __init__(self, cluster, nodes):
        self.cluster, self.nodes = cluster, nodes
        self.before = self.seen()
        self.over, self.failures, self.turns = threading.Event(), [], 0
        self.thread = threading.Thread(target=self.run)

    def seen(self):
        """Members, leader and term as each node has them: what a disturbance would change."""
        views = [self.cluster.view(node) for node in self.nodes]
        members = [sorted((m["name"], m["node"], m["incarnation"], m["up"], m["voter"]) for m in view["members"] if m["name"] in self.names) for view in views]
        others = [[m["name"] for m in view["members"] if m["name"] not in self.names] for view in views]
        return [(view["cluster"], view["leader"], view["term"], view["lease_held"]) for view in views], members, others

    @property
    def names(self):
        return {self.cluster.nodes[node - 1].name for node in self.nodes}

    def run(self):
        try:
            connections = [Connection(self.cluster.amqp(node)) for node in self.nodes]
            channels = [connection.channel() for connection in connections]
            for ch in channels:
                ch.confirm_select()
            while not self.over.is_set():
                queue, at = f"watch{self.turns % 50}", self.turns % len(channels)
                started = time.monotonic()
                channels[at].queue_declare(queue)
                for ch in channels:
                    assert ch.routed("", queue, b"m"), f"{queue} is not there at once"
                channels[at].queue_delete(queue)
                took = time.monotonic() - started
                assert took < 1.5, f"a turn took {took} s: somebody waited for a lease"
                self.turns += 1
            for connection in connections:
                connection.close()
        except BaseException as error:  # told by the test's own thread
            self.failures.append(error)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, *_):
        self.over.set()
        self.thread.join(60)
        if kind is None:
            assert not self.failures, self.failures
            assert self.turns > 20, self.turns
            assert self.seen() == self.before
            eventually(lambda: len({self.cluster.digest(node)["digest"] for node in self.nodes}) == 1, 5, "equal digests")


def logged(node: OwnNode, *words: str) -> str:
    """Waits until one line of a node's log has all these words."""

    def line():
        return next((line for line in node.log.splitlines() if all(word in line for word in words)), None)

    return eventually(line, 15, f"a line with {words} in the log of {node.name}:\n{node.log[-3000:]}")


def stays_out(stranger):
    """For a good while, it does not serve: nobody can log in there and its health says no."""
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        assert stranger.process.poll() is None, stranger.log
        assert not stranger.healthy(), f"{stranger.name} serves:\n{stranger.log}"
        time.sleep(0.2)


def own_data(cluster, name):
    """A node of this name that has founded a cluster of its own, with certificates of the same CA, and is stopped again."""
    stranger = cluster.stranger(name, f"other-{name}")
    cluster.configure(stranger, {})
    stranger.start()
    eventually(stranger.healthy, 20, "the other cluster's node is healthy")
    identity = stranger.api().get("cluster")["cluster"]
    stranger.stop()
    assert identity != cluster.view(1)["cluster"]
    return stranger, identity


@pytest.mark.parametrize("name", ["node1", "node3"])
def test_two_nodes_of_one_name(cluster, name):
    """A second node of a name, with data of its own: it is told so, the others' logs say so, it never serves, and the first one goes on."""
    number = cluster.number_of(name)
    stranger = cluster.stranger(name, f"second-{name}")
    cluster.configure(stranger)
    with Watch(cluster, [1, 2, 3]):
        stranger.start()
        try:
            words = (f'two nodes are called "{name}"', f":{cluster.nodes[number - 1].quic}", f":{stranger.quic}", "rename one")
            logged(stranger, *words)
            stays_out(stranger)
            assert any(all(word in node.log for word in words) for node in cluster.nodes)
        finally:
            stranger.stop()


def test_two_nodes_of_one_name_found_no_cluster_twice(tmp_path):
    """Two nodes of one name and a third, all new: one of the two founds a cluster with the third, the other is told; no second cluster."""
    with own_cluster(tmp_path / "unused", size=1) as other:  # for its CA and its program
        first, second, third = (other.stranger(name, folder) for name, folder in (("a", "a1"), ("a", "a2"), ("b", "b")))
        for node in (first, second, third):
            other.configure(node, {"a": first.quic, "b": third.quic})
        for node in (second, first, third):
            node.start()
        try:
            one = eventually(lambda: next((node for node in (first, second) if node.healthy()), None), 20, "one of the two serves")
            rest = second if one is first else first
            eventually(third.healthy, 10, "the third serves")
            logged(rest, 'two nodes are called "a"')
            stays_out(rest)
            assert one.api().get("cluster")["cluster"] == third.api().get("cluster")["cluster"]
        finally:
            for node in (first, second, third):
                node.stop()


@pytest.mark.parametrize("called", ["another CA", "CA of a test"])
def test_a_node_of_a_foreign_ca(cluster, tmp_path, called):
    """A node whose certificate and CA are another cluster's: both sides say that a certificate is of an unknown CA, and there is no link."""
    stranger = cluster.stranger("node4", f"foreign-{called[0]}")
    foreign = Authority(tmp_path / "foreign", called)
    stranger.configure({**cluster.peers, "node4": stranger.quic}, foreign.folder, foreign.issue("node4"))
    told = [node.log.count("unknown CA") for node in cluster.nodes]
    with Watch(cluster, [1, 2, 3]):
        stranger.start()
        try:
            logged(stranger, "no link with node", "certificate", "refused")
            stays_out(stranger)
            assert "unknown CA" in stranger.log, stranger.log
            assert told != [node.log.count("unknown CA") for node in cluster.nodes], "no node of the cluster says it"
        finally:
            stranger.stop()


def test_a_certificate_that_is_not_of_its_ca(cluster, tmp_path):
    """A node that trusts the cluster's CA and shows a foreign CA's certificate does not even start, and names both files."""
    stranger = cluster.stranger("node5", "mixed")
    foreign = Authority(tmp_path / "foreign")
    stranger.configure({**cluster.peers, "node5": stranger.quic}, cluster.authority.folder, foreign.issue("node5"))
    stranger.start()
    try:
        assert stranger.process.wait(20) == 78, stranger.log
    finally:
        stranger.stop()
    for words in ("other nodes would refuse the certificate", "node5.pem", "ca.pem", "issued by that CA"):
        assert words in stranger.log, stranger.log


def test_data_of_another_cluster(cluster):
    """A node that belongs to another cluster and is configured into this one: it is told both clusters, and does not join."""
    stranger, identity = own_data(cluster, "node4")
    cluster.configure(stranger)
    with Watch(cluster, [1, 2, 3]):
        stranger.start()
        try:
            line = logged(stranger, "belongs to cluster", identity)
            assert cluster.view(1)["cluster"] in line, line
            end = time.monotonic() + LONG_S
            while time.monotonic() < end:
                if stranger.healthy():  # it is still its own cluster's only node, and no more than that
                    assert stranger.api().get("cluster")["cluster"] == identity
                time.sleep(0.2)
            assert any(identity in node.log for node in cluster.nodes)
        finally:
            stranger.stop()


def test_data_of_another_cluster_in_a_nodes_place(tmp_path):
    """A node's data folder is replaced by one of another cluster: it is refused, the two others go on, and with its own data back it is one of three."""
    with own_cluster(tmp_path / "cluster") as cluster:
        stranger, identity = own_data(cluster, "node3")
        node = cluster.nodes[2]
        node.stop()
        data, aside = node.folder / "data", node.folder / "aside"
        shutil.move(data, aside)
        shutil.copytree(stranger.folder / "data", data)
        eventually(lambda: [m["up"] for m in cluster.view(1)["members"] if m["name"] == "node3"] == [False], 10, "node3 is marked down")
        with Watch(cluster, [1, 2]):
            node.start()
            line = logged(node, "belongs to cluster", identity)
            assert cluster.view(1)["cluster"] in line, line
            time.sleep(2)  # in which it would disturb the two
            node.stop()
        shutil.rmtree(data)
        shutil.move(aside, data)
        cluster.start(3)
        eventually(lambda: all(m["up"] and m["linked"] is not False for m in cluster.view(1)["members"]), 10, "three nodes are up")
        eventually(lambda: len({cluster.digest(n)["digest"] for n in cluster.all()}) == 1, 5, "equal digests")
