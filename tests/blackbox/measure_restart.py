"""How long a node with a million bindings takes until it routes again, and what a binding costs in memory. Not a test: it takes minutes, and prints figures.

Run it on an idle machine, after a release build:

    target/venv/bin/python tests/blackbox/measure_restart.py                  # one node: a million bindings, killed three times
    target/venv/bin/python tests/blackbox/measure_restart.py --nodes 3        # three nodes, all killed at once
    target/venv/bin/python tests/blackbox/measure_restart.py --bindings 10000 # quick, to try it

Marks: 5 s from the process's start until a publish is routed and confirmed, 300 octets of resident memory a binding and node. It exits with 1
if one is missed. Bindings are made as clients make them, pipelined, with keys of three words; half are of a topic exchange and half of a direct one. The nodes
are a cluster of their own in a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import wire  # noqa: E402
from amqp import Closed, Connection, Deadline  # noqa: E402
from own import OwnCluster  # noqa: E402
from targets import eventually  # noqa: E402

MARK_S, MARK_OCTETS = 5.0, 300
QUEUES, WINDOW = 100, 2000


def key(number: int) -> str:
    """A binding's key, of the length that keys have in practice."""
    return f"region{number % 97}.customer{number}.created"


def topology(ch) -> None:
    """Two exchanges and the queues, without bindings."""
    for exchange, kind in (("topic", "topic"), ("direct", "direct")):
        ch.exchange_declare(exchange, kind)
    for queue in range(QUEUES):
        ch.queue_declare(f"q{queue}", arguments={"x-max-length": 1})


def bind(connection, ch, count: int) -> None:
    """Makes the bindings, `WINDOW` ahead of their answers."""
    for start in range(0, count, WINDOW):
        numbers = range(start, min(start + WINDOW, count))
        connection.send_raw(
            b"".join(
                wire.method_frame(ch.number, "queue.bind", queue=f"q{n % QUEUES}", exchange=("topic", "direct")[n % 2], routing_key=key(n))
                for n in numbers
            )
        )
        for _ in numbers:
            ch.wait("queue.bind-ok", timeout=120)
        connection.frames.clear()
        if start % 100_000 == 0:
            print(f"\r  {start:>9} bindings", end="", flush=True)
    print(f"\r  {count:>9} bindings")


def routed(address, number: int) -> bool:
    """Whether a mandatory publish under this binding's key is confirmed; a nack is an honest "not yet", a return means that the binding is missing."""
    with Connection(address, timeout=30) as connection:
        ch = connection.channel()
        ch.confirm_select()
        result = ch.publish_confirmed(("topic", "direct")[number % 2], key(number), b"m")
        assert not result.returned, f"binding {number} is missing"
        return result.outcome == "ack"


def until_routed(cluster: OwnCluster, node: int, number: int, since: float) -> float:
    """Seconds until a publish at this node was routed; tried all the time."""
    while True:
        try:
            if routed(cluster.amqp(node), number):
                return time.monotonic() - since
        except (OSError, Closed, Deadline):  # nobody listens or lets clients in yet
            pass
        assert time.monotonic() - since < 300, cluster.nodes[node - 1].log[-2000:]
        time.sleep(0.01)


def settled_rss(cluster: OwnCluster, node: int) -> int:
    """Resident octets once they change no more: flushes and compactions are over."""
    sizes = [cluster.rss(node)]

    def steady() -> bool:
        time.sleep(1)
        sizes.append(cluster.rss(node))
        return len(sizes) > 5 and max(sizes[-5:]) - min(sizes[-5:]) < 2 << 20

    eventually(steady, 60, "the memory in use settles")
    return sizes[-1]


def memory(cluster: OwnCluster, empty: list[int], count: int, when: str) -> float:
    """Prints and returns the octets a binding that the node with the most of them uses."""
    per = [(settled_rss(cluster, node) - before) / count for node, before in zip(cluster.all(), empty)]
    print(f"  memory {when}: {', '.join(f'{each:.0f}' for each in per)} octets a binding (mark: {MARK_OCTETS})")
    return max(per)


def measure(cluster: OwnCluster, count: int, rounds: int) -> bool:
    """Does it all; whether the marks are met."""
    with Connection(cluster.amqp(1), timeout=120) as connection:
        ch = connection.channel()
        topology(ch)
        bind(connection, ch, QUEUES)  # so that everything that is made once is there
        empty = [settled_rss(cluster, node) for node in cluster.all()]
        print(f"  memory without them: {', '.join(f'{each / 2**20:.0f} MiB' for each in empty)}")
        started = time.monotonic()
        bind(connection, ch, count)
        took = time.monotonic() - started
        print(f"  declared in {took:.0f} s, {count / took:.0f}/s")
    live = memory(cluster, empty, count, "after they were declared")
    seconds, after = [], 0.0
    for turn in range(rounds):
        for node in cluster.nodes:
            node.process.send_signal(signal.SIGKILL)
        for node in cluster.nodes:
            node.stop(signal.SIGKILL)
        since = time.monotonic()
        for node in cluster.nodes:
            node.start()
        took = [until_routed(cluster, node, count - 1 - turn, since) for node in cluster.all()]
        print(f"  restart {turn + 1}: routes after {', '.join(f'{each:.2f} s' for each in took)} (mark: {MARK_S} s)")
        seconds.append(max(took))
        if turn == 0:
            after = memory(cluster, empty, count, "after the restart")
    print(f"median of {rounds} restarts: {statistics.median(seconds):.2f} s; memory a binding: {live:.0f} live, {after:.0f} restarted")
    return statistics.median(seconds) <= MARK_S and max(live, after) <= MARK_OCTETS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bindings", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=1, choices=[1, 3])
    parser.add_argument("--rounds", type=int, default=3, help="restarts")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warren-restart-") as folder:
        cluster = OwnCluster(Path(folder) / "cluster", arguments.nodes)
        try:
            cluster.up()
            print(f"{arguments.nodes} node(s), {arguments.bindings} bindings, {os.cpu_count()} cores")
            met = measure(cluster, arguments.bindings, arguments.rounds)
        finally:
            cluster.down()
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
