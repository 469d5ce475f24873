"""Fixtures of the black-box tests: the cluster, and for each test a virtual host of its own with connections to any node.

Every test with the `nodes` fixture runs twice: "one" sends all operations to node 1, "spread" sends each to the node that the scenario
names. Tests share the cluster and nothing else, so they run in any order.

`--restarts` runs the tests that are fit for it once more in another way: operations are spread over two nodes while the third is restarted again
and again, each node in its turn (see `restarts`). Not fit are those marked slow, which restart nodes or measure by themselves, and those marked `calm`, with the reason.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import secrets
from typing import Any, Iterator

import pytest

import targets
from amqp import Channel, Connection
from restarts import Restarts
from targets import Api, ApiError, Target, eventually

_count = itertools.count(1)
_restarted = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--restarts", action="store_true", help="restart nodes one after the other while the tests that are fit for it run")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "calm(reason): not fit for nodes that are restarted meanwhile")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if _restarted in config.stash:
        terminalreporter.write_line(f"{config.stash[_restarted]} restarts of nodes meanwhile")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("restarts"):
        return

    def fit(item: pytest.Item) -> bool:
        marked = item.get_closest_marker("slow") or item.get_closest_marker("calm")
        return "nodes" in item.fixturenames and item.callspec.params.get("nodes") == "spread" and not marked

    config.hook.pytest_deselected(items=[item for item in items if not fit(item)])
    items[:] = [item for item in items if fit(item)]


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """The cluster under test."""
    target = targets.from_environment()
    try:
        target.up()
    except AssertionError as error:
        with contextlib.suppress(AssertionError):
            target.down(failed=True)
        pytest.exit(f"the cluster did not start: {error}", 70)
    yield target
    target.down(failed=request.session.testsfailed > 0)


@pytest.fixture(scope="session")
def restarts(request: pytest.FixtureRequest, target: Target) -> Iterator[Restarts | None]:
    """What restarts nodes meanwhile, where that was asked for."""
    if not request.config.getoption("restarts"):
        yield None
        return
    restarts = Restarts(target)
    yield restarts
    restarts.end()
    request.config.stash[_restarted] = restarts.count
    assert not restarts.error, restarts.error
    assert restarts.count or request.session.testscollected < 10, "no node was restarted: this run says nothing"


@pytest.fixture
def names(request: pytest.FixtureRequest) -> Any:
    """Makes names that no other test uses: names("q")."""
    stem = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-")
    run = secrets.token_hex(3)
    return lambda suffix: f"{stem}-{run}-{suffix}"


class Nodes:
    """Connections to the cluster's nodes, in the test's own virtual host."""

    def __init__(self, target: Target, mode: str, vhost: str, used: list[int] | None = None) -> None:
        self.target, self.mode, self.vhost = target, mode, vhost
        self.used = used  # the nodes to use, where not all are
        self.open: list[Connection] = []
        self.main: dict[int, Connection] = {}
        self.vhosts = [vhost]

    def number(self, node: int) -> int:
        """The node that an operation for `node` goes to in this mode."""
        if self.used:
            return self.used[(node - 1) % len(self.used)]
        return 1 if self.mode == "one" else node

    def api(self) -> Api:
        """The HTTP API of a node in use: while nodes are restarted, not of the one whose turn it is."""
        return self.target.api(self.number(1))

    @property
    def distinct(self) -> list[int]:
        """The nodes in use: one, or all."""
        return self.used or ([1] if self.mode == "one" else self.target.all())

    def connect(self, node: int, **options: Any) -> Connection:
        """A new connection, closed at the test's end."""
        options.setdefault("vhost", self.vhost)
        connection = Connection(self.target.amqp(self.number(node)), **options)
        self.open.append(connection)
        return connection

    def raw(self, node: int = 1, **options: Any) -> Connection:
        """A bare socket to a node's AMQP port."""
        return self.connect(node, handshake=False, **options)

    def channel(self, node: int, confirm: bool = False) -> Channel:
        """A new channel on the test's standing connection to that node."""
        node = self.number(node)
        connection = self.main.get(node)
        if connection is None or connection.eof or connection.closed:
            connection = self.main[node] = self.connect(node)
        channel = connection.channel()
        if confirm:
            channel.confirm_select()
        return channel

    def publishers(self) -> list[Channel]:
        """A channel in confirm mode at every node in use."""
        return [self.channel(node, confirm=True) for node in self.distinct]

    def api(self, node: int = 1) -> Api:
        """The node's HTTP API."""
        return self.target.api(self.number(node))

    def apis(self) -> list[Api]:
        """The HTTP API of every node in use."""
        return [self.api(node) for node in self.distinct]

    def bindings(self, api: Api, source: str | None = None) -> list[dict[str, Any]]:
        """The vhost's bindings as one node lists them, without the default exchange's; of one source where it is named."""
        listed = [b for b in api.get("bindings", self.vhost) if b["source"]]
        return listed if source is None else [b for b in listed if b["source"] == source]

    def add_vhost(self, vhost: str) -> None:
        """One more virtual host, deleted at the test's end."""
        _open_vhost(self.target, vhost, self.number(1))
        self.vhosts.append(vhost)

    # --- processes ---

    def forget(self, *nodes: int) -> None:
        """Closes this test's connections to nodes that are about to go."""
        ports = {self.target.amqp(node)[1] for node in nodes}
        for connection in list(self.open):
            with contextlib.suppress(OSError):
                if connection.sock.getpeername()[1] in ports:
                    connection.drop()
                    self.open.remove(connection)
        for node in nodes:
            self.main.pop(node, None)

    def kill(self, node: int) -> None:
        """kill -9 of the node that `node` stands for."""
        self.forget(self.number(node))
        self.target.kill(self.number(node))

    def start(self, *nodes: int) -> None:
        self.target.start(*(self.number(node) for node in nodes))

    def restart(self, node: int) -> None:
        """kill -9 and start again of the node that `node` stands for."""
        self.kill(node)
        self.start(node)

    def restart_all(self) -> None:
        """kill -9 of the whole cluster, then all nodes started again."""
        self.forget(*self.target.all())
        self.target.restart(*self.target.all())

    def close(self) -> None:
        for connection in self.open:
            connection.drop()


def _open_vhost(target: Target, vhost: str, node: int) -> None:
    target.api(node).put("vhosts", vhost)
    target.api(node).put("permissions", vhost, "guest", body={"configure": ".*", "write": ".*", "read": ".*"})
    if target.rabbitmq:  # it starts a vhost on the other nodes after it has answered

        def opens(node: int) -> bool:
            Connection(target.amqp(node), vhost=vhost).close()
            return True

        for node in target.all():
            eventually(lambda: opens(node), 20, f"vhost {vhost} on node {node}")


@pytest.fixture(params=["one", "spread"])
def nodes(request: pytest.FixtureRequest, target: Target, restarts: Restarts | None) -> Iterator[Nodes]:
    """Connections to the nodes, in a virtual host made for this test."""
    if restarts:
        restarts.turn()
    elif target.dirty:
        target.heal()
    vhost = f"t{next(_count)}-{secrets.token_hex(3)}"
    nodes = Nodes(target, request.param, vhost, restarts.stable if restarts else None)
    _open_vhost(target, vhost, nodes.number(1))
    yield nodes
    nodes.close()
    if target.dirty and not restarts:
        target.heal()
    for each in nodes.vhosts:
        with contextlib.suppress(ApiError):
            target.api(nodes.number(1)).delete("vhosts", each)
