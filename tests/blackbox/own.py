"""A cluster of the test's own, beside the shared one: on free ports, with any names, certificates and limits, and nodes added at will.

For what would spoil the shared cluster (a node that joins stays a member), needs another configuration, or must not be a cluster at all. Its nodes
are processes that this module starts and ends by their id. Certificates come from `openssl`, under a CA of the cluster's own.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from pathlib import Path
from typing import Any, Iterator

from ports import free_ports
from relay import Relay
from targets import HOST, Api, Warren, eventually, from_environment

CONFIGURATION = """\
[node]
name = "{name}"
data_dir = "{data}"

[amqp]
listen = "{host}:{amqp}"

[http]
listen = "{host}:{http}"

[cluster]
name = "own"
listen = "{host}:{quic}"
peers = [{peers}]
shards = 12

[limits]
{limits}

[tls]
ca = "{authority}/ca.pem"
certificate = "{certificate}.pem"
key = "{certificate}.key"
"""


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path, name: str = "CA of a test") -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._openssl("req", "-x509", "-newkey", "ed25519", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", f"/CN={name}", "-days", "2")

    def _openssl(self, *arguments: str) -> None:
        result = subprocess.run(["openssl", *arguments], cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
        assert result.returncode == 0, f"openssl {arguments[0]}: {result.stderr}"

    def issue(self, name: str) -> Path:
        """The certificate of a node; the path without its ending."""
        path = self.folder / name
        if not path.with_suffix(".pem").exists():
            extensions = self.folder / f"{name}.extensions"
            extensions.write_text(f"subjectAltName=DNS:warren-node,DNS:{name}\nextendedKeyUsage=serverAuth,clientAuth\nkeyUsage=digitalSignature\n")
            self._openssl("req", "-newkey", "ed25519", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
            self._openssl(
                *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
                *("-out", f"{name}.pem", "-days", "2", "-extfile", extensions.name),
            )
        return path


class OwnNode:
    """One node: its configuration, its process, its log."""

    def __init__(self, folder: Path, name: str, binary: Path) -> None:
        self.folder, self.name, self.binary = folder, name, binary
        self.amqp, self.http, self.quic = free_ports(3)
        self.announced = self.quic  # where the others are told to reach it
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def configure(self, peers: dict[str, int], authority: Path, certificate: Path, limits: dict[str, Any] | None = None) -> None:
        """Writes the configuration file. `peers` are names with their QUIC ports, this node among them."""
        (self.folder / "node.toml").write_text(
            CONFIGURATION.format(
                name=self.name,
                data=self.folder / "data",
                host=HOST,
                amqp=self.amqp,
                http=self.http,
                quic=self.quic,
                peers=", ".join(f'{{ name = "{name}", address = "{HOST}:{port}" }}' for name, port in peers.items()),
                limits="\n".join(f"{key} = {value}" for key, value in (limits or {}).items()),
                authority=authority,
                certificate=certificate,
            )
        )

    def start(self) -> None:
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [str(self.binary), "--config", str(self.folder / "node.toml")], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Sends a signal, and waits until the process is gone."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(number)
            self.process.wait(30)
            self.process = None

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def api(self) -> Api:
        return Api(self.http)

    def healthy(self) -> bool:
        """Whether it routes now."""
        with contextlib.suppress(Exception):
            return self.api().request("GET", "health", timeout=5)[0] == 200
        return False


class OwnCluster(Warren):
    """A cluster of nodes node1, node2…, as a target like any other.

    With `far`, the last node is reached through a relay, whose delay a test may set. It is called "far": of two nodes the one with the greater
    name dials, so that all links to this one are dialled by others, at the address that it announces: the relay's.
    """

    def __init__(self, folder: Path, size: int = 3, limits: dict[str, Any] | None = None, far: bool = False) -> None:
        super().__init__()
        self.folder, self.limits = folder, limits
        self.authority = Authority(folder / "certificates")
        names = [f"node{number}" for number in range(1, size + 1)]
        if far:
            names[-1] = "far"
        self.nodes = [OwnNode(folder / name, name, self.binary) for name in names]
        self.relay = Relay(self.nodes[-1].quic) if far else None
        if self.relay:
            self.nodes[-1].announced = self.relay.port
        self.peers = {node.name: node.announced for node in self.nodes}
        for node in self.nodes:
            self.configure(node)

    def configure(self, node: OwnNode, peers: dict[str, int] | None = None) -> None:
        """Writes a node's configuration with this cluster's certificates; its peers are the nodes that form the cluster, unless told otherwise."""
        peers = self.peers if peers is None else peers
        node.configure({**peers, node.name: node.announced}, self.authority.folder, self.authority.issue(node.name), self.limits)

    def stranger(self, name: str, folder: str | None = None) -> OwnNode:
        """A node that is not of the cluster (yet), with a folder of its own."""
        return OwnNode(self.folder / (folder or f"stranger-{name}"), name, self.binary)

    def add(self, name: str) -> int:
        """Starts one more node, whose configuration names those that formed the cluster, and waits until it routes; its number."""
        node = self.stranger(name, name)
        self.configure(node)
        self.nodes.append(node)
        self.start(self.size)
        return self.size

    # --- what a target is ---

    @property
    def size(self) -> int:  # type: ignore[override]
        return len(self.nodes)

    def amqp(self, node: int) -> tuple[str, int]:
        return HOST, self.nodes[node - 1].amqp

    def api(self, node: int, user: str = "guest", password: str = "guest") -> Api:
        return Api(self.nodes[node - 1].http, user, password)

    def start_process(self, node: int) -> None:
        self.nodes[node - 1].start()

    def wait_ready(self, node: int, timeout: float = 60.0) -> None:
        this = self.nodes[node - 1]

        def ready() -> bool:
            if this.process is not None and this.process.poll() is not None:
                raise RuntimeError(f"{this.name} has ended with {this.process.returncode}:\n{this.log[-2000:]}")
            return this.healthy()

        try:
            eventually(ready, timeout, f"{this.name} is healthy")
        except AssertionError as error:
            logs = "\n".join(f"--- {each.name}\n{each.log[-2000:]}" for each in self.nodes)
            raise AssertionError(f"{error}\n{logs}") from error

    def pid(self, node: int) -> int:
        process = self.nodes[node - 1].process
        assert process is not None, f"node {node} is not running"
        return process.pid

    def kill(self, *nodes: int) -> None:
        self.dirty = True
        for node in nodes:
            self.nodes[node - 1].stop(signal.SIGKILL)

    def up(self) -> None:
        self.start(*self.all())

    def down(self, failed: bool = False) -> None:
        for node in self.nodes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.stop(signal.SIGKILL)
        if self.relay:
            self.relay.close()

    # --- what can be seen of it ---

    def view(self, node: int) -> dict[str, Any]:
        """The metadata group as a node sees it."""
        return self.api(node).get("cluster")

    def leader(self, node: int) -> int:
        """The number of the metadata group's leader, as a node sees it."""
        return self.number_of(eventually(lambda: self.view(node)["leader"], 10, "a leader is known"))

    def number_of(self, name: str) -> int:
        return [node.name for node in self.nodes].index(name) + 1


@contextlib.contextmanager
def own_cluster(folder: Path, size: int = 3, **options: Any) -> Iterator[OwnCluster]:
    """A cluster that is up, and is gone afterwards."""
    from_environment().skip_on("rabbitmq", "the test starts nodes with a configuration of its own")
    cluster = OwnCluster(folder, size, **options)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
