"""Topology that one node has confirmed is there on every node: after bind-ok nothing is returned, after unbind-ok nothing delivered."""

import contextlib
import itertools
import os
import signal
import threading
import time

import pytest

from amqp import ChannelClosed, Closed, Deadline, refused
from conftest import Nodes
from helpers import missing, spread_only
from own import own_cluster
from targets import ApiError, eventually

ITERATIONS = int(os.environ.get("WARREN_A28_ITERATIONS", "1000"))
LAG_S = 0.2
FAR_S = 20
LATE = "3.10.8 promises this on the node used only; others may lag a moment"
KINDS = {
    "direct": ("k", None),
    "fanout": ("", None),
    "topic": ("*", None),
    "headers": ("", {"x-match": "all", "n": 1}),
    "x-consistent-hash": ("1", None),
}


class Turn:
    """One turn of the scenario: connection C1 changes topology at one node, C2 and C3 publish at others.

    `calm` says that no node goes away meanwhile. Otherwise a queue may be lost with its node, and a publish may be refused (nack) while its
    queue's owner is unknown; but nothing may be routed by a table older than what C1 was told.
    """

    def __init__(self, nodes, calm=True):
        self.nodes, self.calm = nodes, calm
        self.c1 = nodes.channel(1)
        self.others = [nodes.channel(2, confirm=True), nodes.channel(3, confirm=True)]

    def exchanges(self):
        for kind in KINDS:
            self.c1.exchange_declare(f"x-{kind}", kind)

    def publish(self, exchange, key):
        """What became of the other nodes' publishes, sent at the same moment: "routed", "returned" or "nack" for each."""
        numbers = [(ch, ch.publish(exchange, key, b"m", mandatory=True, headers={"n": 1})) for ch in self.others]
        answers = []
        for ch, number in numbers:
            outcome = ch.confirms([number])[number]
            inbox = ch.connection.inbox[ch.number]
            returned = any(event.name == "basic.return" for event in inbox)
            inbox.clear()
            answers.append("returned" if returned else "routed" if outcome == "ack" else "nack")
        return answers

    def reaches(self, exchange, key, queue, when):
        """Both publishes are routed, unless the queue went down with a node."""
        answers = self.publish(exchange, key)
        if answers == ["routed", "routed"]:
            return
        lost = not self.calm and ("returned" not in answers or missing(self.nodes.channel(1), queue))
        assert lost, f"{queue} {when}: {answers} by exchange {exchange!r}"

    def misses(self, exchange, key, queue, when):
        """Both publishes come back."""
        answers = self.publish(exchange, key)
        assert "routed" not in answers and (answers == ["returned", "returned"] or not self.calm), f"{queue} {when}: {answers} by {exchange!r}"

    def run(self, number, kind):
        """Declares and binds, publishes, unbinds, publishes, deletes, with the checks in between."""
        queue, exchange = f"q{number}", f"x-{kind}"
        key, arguments = KINDS[kind]
        if not self.calm:  # an exchange of its own, since an interrupted turn leaves its bindings behind
            exchange = f"x{number}-{kind}"
            self.c1.exchange_declare(exchange, kind)
        self.c1.queue_declare(queue, durable=number % 2 == 0)
        self.reaches("", queue, queue, "after declare-ok")
        self.c1.queue_bind(queue, exchange, key, arguments)
        self.reaches(exchange, "k", queue, "after bind-ok")
        self.c1.queue_unbind(queue, exchange, key, arguments)
        self.misses(exchange, "k", queue, "after unbind-ok")
        deleted = self.c1.queue_delete(queue).message_count
        assert deleted == 4 or not self.calm, f"{queue}: {deleted} messages instead of 4"
        self.misses("", queue, queue, "after delete-ok")

    def consume_is_404(self, number):
        for ch in self.others:
            refused(ch.connection, 404, "basic.consume", queue=f"q{number}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a28_other_nodes_see_it_at_once(nodes, target):
    """A thousand turns: declare, bind, unbind and delete at N1, published to at N2 and N3 the moment the answer is there."""
    turn = Turn(nodes)
    turn.exchanges()
    with target.differs("rabbitmq", LATE, strict=False):
        for number, kind in zip(range(ITERATIONS), itertools.cycle(KINDS)):
            turn.run(number, kind)
            if number % 50 == 0:
                turn.consume_is_404(number)


@pytest.mark.slow
@spread_only
@pytest.mark.timeout(300)
def test_a28_with_a_lagging_follower(nodes, target):
    """The same while N3 is stopped and continued all the time: it may make others wait, but never routes by an old table."""
    target.skip_on("rabbitmq", LATE)
    turn = Turn(nodes, calm=False)
    pid, over = target.pid(3), threading.Event()

    def lag():
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(0.1)
            os.kill(pid, signal.SIGCONT)
            over.wait(0.1)

    thread = threading.Thread(target=lag)
    thread.start()
    try:
        end = time.monotonic() + 20
        for number, kind in zip(itertools.count(), itertools.cycle(KINDS)):
            if time.monotonic() > end:
                break
            turn.run(number, kind)
        assert number >= 20, f"only {number} turns in 20 s"
    finally:
        over.set()
        thread.join()
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a28_with_a_far_follower(tmp_path):
    """The same while all that N3 sends, and all that it gets, takes 200 ms: declares wait for it, and it routes by what they confirmed."""
    with own_cluster(tmp_path / "cluster", far=True) as cluster:
        # It is a follower: whoever led is stopped until one of the near nodes leads.
        if cluster.leader(1) == 3:
            cluster.stop(3)
            eventually(lambda: cluster.view(1)["leader"] in ("node1", "node2"), 10, "a near node leads")
            cluster.start(3)
        term = cluster.view(1)["term"]
        cluster.relay.delay_s = LAG_S
        cluster.api(1).put("vhosts", "far")
        cluster.api(1).put("permissions", "far", "guest", body={"configure": ".*", "write": ".*", "read": ".*"})
        nodes = Nodes(cluster, "spread", "far")
        try:
            turn = Turn(nodes)
            turn.exchanges()
            started = time.monotonic()
            turn.c1.queue_declare("first")
            took = time.monotonic() - started
            assert took > LAG_S, f"a declare took {took} s: it did not wait for N3, or N3 is not far"
            before, end = cluster.view(3)["applied_index"], time.monotonic() + FAR_S
            for number, kind in zip(itertools.count(), itertools.cycle(KINDS)):
                turn.run(number, kind)
                if time.monotonic() > end and number >= len(KINDS):
                    break
            assert cluster.view(3)["applied_index"] >= before + 4 * number
            assert cluster.view(1)["term"] == term, "the far node's lag made the others elect anew"
        finally:
            nodes.close()


@pytest.mark.slow
@spread_only
@pytest.mark.timeout(400)
@pytest.mark.parametrize("aim", ["each in turn", "the leader"])
def test_a28_with_restarts(nodes, target, aim):
    """The same while one node after the other, or always the metadata leader, is killed and started: what was confirmed holds at the nodes that are up."""
    target.skip_on("rabbitmq", LATE)
    over, failures, led = threading.Event(), [], []

    def leader():
        for node in target.all():
            with contextlib.suppress(ApiError, OSError):
                if name := target.api(node).get("cluster")["leader"]:
                    return int(name.removeprefix("node"))
        return None

    def restarts():
        try:
            for node in itertools.islice(itertools.cycle((1, 2, 3)), 4):
                if aim == "the leader":
                    node = eventually(leader, 10, "a leader is known")
                    led.append(node)
                target.kill(node)
                if aim == "the leader":
                    # One that is back before the others have elected would go on leading.
                    eventually(lambda: leader() not in (None, node), 10, "another node leads")
                target.start(node)
                if over.wait(5):
                    return
        except BaseException as error:  # told by the test's own thread
            failures.append(error)
        finally:
            over.set()

    thread = threading.Thread(target=restarts)
    thread.start()
    completed = interrupted = 0
    try:
        for number, kind in zip(itertools.count(), itertools.cycle(KINDS)):
            if over.is_set():
                break
            try:
                Turn(nodes, calm=False).run(number, kind)
                completed += 1
            except (Closed, Deadline, OSError):  # a node of this turn went away: the next turn has new connections
                interrupted += 1
                nodes.forget(*target.all())
                over.wait(0.2)
            for node in nodes.distinct:
                connection = nodes.main.get(node)
                if connection and connection.next_channel > 500:
                    nodes.forget(node)
    finally:
        over.set()
        thread.join()
    assert not failures, failures
    assert len(set(led)) != 1, f"killing the leader {len(led)} times moved leadership nowhere: {led}"
    assert completed >= 20, f"{completed} turns completed, {interrupted} were interrupted"


def test_http_changes_are_seen_at_once(nodes, target):
    """A queue that the HTTP API lists at one node after declare-ok at another, and no more after delete-ok."""
    ch = nodes.channel(1)
    for number in range(20):
        ch.queue_declare(f"q{number}")
        with target.differs("rabbitmq", LATE, strict=False):
            for api in nodes.apis():
                assert api.get("queues", nodes.vhost, f"q{number}")["name"] == f"q{number}"
        ch.queue_delete(f"q{number}")
        for api in nodes.apis():
            with pytest.raises(ApiError) as error:
                api.get("queues", nodes.vhost, f"q{number}")
            assert error.value.status == 404


def test_a_race_to_declare_has_one_winner(nodes):
    """Different declares of one name at all nodes at once: one wins, equal ones are answered alike, others get 406 or 405."""
    for number in range(20):
        channels = [nodes.channel(node) for node in (1, 2, 3)]
        for index, ch in enumerate(channels):
            ch.send("queue.declare", queue=f"q{number}", durable=True, arguments={"x-max-length": 10 + index})
        won = []
        for index, ch in enumerate(channels):
            with contextlib.suppress(ChannelClosed):
                ch.wait("queue.declare-ok")
                won.append(index)
            if index not in won:
                ch.expect_close(406, "queue.declare")
        assert len(won) == 1, won
        nodes.channel(2).queue_declare(f"q{number}", arguments={"x-max-length": 10 + won[0]})


def test_a_binding_races_with_a_deletion(nodes):
    """Binding to a queue that is deleted at the same time: 404 or bound and then gone; never a binding to nothing."""
    nodes.channel(1).exchange_declare("x1", "topic")
    for number in range(30):
        a, b = nodes.channel(1), nodes.channel(2)
        a.queue_declare(f"q{number}")
        b.send("queue.bind", queue=f"q{number}", exchange="x1", routing_key="k")
        a.send("queue.delete", queue=f"q{number}")
        a.wait("queue.delete-ok")
        with contextlib.suppress(ChannelClosed):
            b.wait("queue.bind-ok")
    for api in nodes.apis():
        eventually(lambda: nodes.bindings(api) == [], 2)
    for publisher in nodes.publishers():
        assert not publisher.routed("x1", "k")
