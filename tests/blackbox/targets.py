"""The broker under test: where its nodes listen, how to stop and start them, and where it is known to differ.

`WARREN_TARGET=warren` (the default) starts a fresh three-node cluster through `xtask cluster` (`WARREN_XTASK`, default
target/release/xtask) in a directory of its own and takes it down at the end; with `WARREN_CLUSTER_DIR` a cluster that already runs with that
data directory is used and left running. `WARREN_TARGET=rabbitmq` uses a RabbitMQ cluster that already runs on ports 5682… and
15682…; `RABBITMQ_PEER` names a command which can `start N` a node again, for the tests that restart nodes.
RabbitMQ is the check on the tests themselves: `Target.differs` says where the version in use is known to behave otherwise.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator
from urllib.parse import quote

import pytest

from amqp import Closed, Deadline

REPOSITORY = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"


def eventually(check: Callable[[], Any], timeout: float = 2.0, what: str = "") -> Any:
    """Calls `check` until it returns something true, and returns that. The last failure is the error when time is up."""
    deadline = time.monotonic() + timeout
    while True:
        failure: BaseException | None = None
        try:
            result = check()
            if result:
                return result
        except (AssertionError, Closed, Deadline, OSError, http.client.HTTPException, ApiError) as error:
            failure = error
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout} s: {what or check}") from failure
        time.sleep(0.05)


class ApiError(Exception):
    """An HTTP answer outside 2xx."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP {status}: {body[:300]!r}")
        self.status, self.body = status, body


class Api:
    """The HTTP API of one node. Path parts are escaped: api.get("bindings", "/", "e", "x1")."""

    def __init__(self, port: int, user: str = "guest", password: str = "guest") -> None:
        self.port = port
        self.authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def request(self, method: str, *path: str, body: Any = None, timeout: float = 30.0) -> tuple[int, Any]:
        """Status and decoded body."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body).encode()
            headers = {"Authorization": self.authorization, "Content-Type": "application/json"}
            connection.request(method, "/api/" + "/".join(quote(part, safe="") for part in path), data, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            raise ApiError(answer.status, text)
        return answer.status, json.loads(text) if text.strip() else None

    def get(self, *path: str) -> Any:
        return self.request("GET", *path)[1]

    def put(self, *path: str, body: Any = None) -> int:
        return self.request("PUT", *path, body={} if body is None else body)[0]

    def post(self, *path: str, body: Any = None) -> Any:
        return self.request("POST", *path, body={} if body is None else body)[1]

    def delete(self, *path: str) -> int:
        return self.request("DELETE", *path)[0]


def listening_pid(port: int) -> int | None:
    """The process that listens on a TCP port of this machine."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor) in inodes:
                        return int(process.name)
    return None


def ended(pid: int) -> bool:
    """Whether a process is gone, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


class Target:
    """A cluster of three nodes, numbered from 1."""

    name = ""
    amqp_base = 0
    http_base = 0
    size = 3

    # --- addresses ---

    def amqp(self, node: int) -> tuple[str, int]:
        return HOST, self.amqp_base + node - 1

    def api(self, node: int, user: str = "guest", password: str = "guest") -> Api:
        return Api(self.http_base + node - 1, user, password)

    def all(self) -> list[int]:
        return list(range(1, self.size + 1))

    # --- what is known about it ---

    @property
    def rabbitmq(self) -> bool:
        return self.name == "rabbitmq"

    def number_of(self, name: str) -> int:
        """The number of the node that the HTTP API calls so."""
        return int(name.removeprefix("rabbit@").removeprefix("node"))

    @contextlib.contextmanager
    def differs(self, target: str, reason: str, strict: bool = True) -> Iterator[None]:
        """What stands inside must fail on `target`, for this reason, and must hold on any other. Not strict: it may hold there too."""
        if target != self.name:
            yield
            return
        try:
            yield
        except (AssertionError, Closed, Deadline, ApiError):
            return
        if strict:
            pytest.fail(f"{target} was expected to differ, and did not: {reason}")

    def skip_on(self, target: str, reason: str) -> None:
        """Ends the test as skipped on `target`, unless WARREN_RUN_SKIPPED is set: to see whether the reason still holds."""
        if target == self.name and not os.environ.get("WARREN_RUN_SKIPPED"):
            pytest.skip(f"{target}: {reason}")

    # --- processes ---

    dirty = False

    def pid(self, node: int) -> int:
        pid = listening_pid(self.amqp(node)[1])
        assert pid, f"nothing listens on node {node}'s AMQP port"
        return pid

    def rss(self, node: int) -> int:
        """Resident memory in octets."""
        for line in Path(f"/proc/{self.pid(node)}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def listens(self, node: int) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(self.amqp(node)) == 0

    def signal(self, node: int, number: int) -> None:
        self.dirty = True
        os.kill(self.pid(node), number)

    def kill(self, *nodes: int) -> None:
        """kill -9 of nodes, all at once, and waits until their ports are closed."""
        pids = [self.pid(node) for node in nodes]
        self.dirty = True
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        # Its ports close before it is gone: a process that still dies would be taken for one that runs.
        for node, pid in zip(nodes, pids):
            eventually(lambda: ended(pid) and not self.listens(node), 20, f"node {node} is gone")

    def stop(self, node: int) -> None:
        """A clean stop (SIGTERM), and waits until the process is gone."""
        pid = self.pid(node)
        self.signal(node, signal.SIGTERM)

        def gone() -> bool:
            try:
                return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
            except OSError:
                return True

        eventually(gone, 60, f"node {node} has stopped")

    def start(self, *nodes: int) -> None:
        """Starts nodes that are down, all at once, and waits until they are ready."""
        failures: list[BaseException] = []

        def one(node: int) -> None:
            try:
                self.start_process(node)
            except BaseException as error:  # carried over to the caller's thread
                failures.append(error)

        threads = [threading.Thread(target=one, args=(node,)) for node in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        for node in nodes:
            self.wait_ready(node)

    def restart(self, *nodes: int) -> None:
        """kill -9 and start again, all of them down at the same time."""
        self.kill(*nodes)
        self.start(*nodes)

    def heal(self) -> None:
        """Brings every node up again after a test that stopped some."""
        down = [node for node in self.all() if not self.listens(node)]
        if down:
            self.start(*down)
        for node in self.all():
            self.wait_ready(node)
        self.dirty = False

    def wait_ready(self, node: int, timeout: float = 60.0) -> None:
        raise NotImplementedError

    def start_process(self, node: int) -> None:
        raise NotImplementedError

    def up(self) -> None:
        """Makes the cluster ready at the session's start."""

    def down(self, failed: bool = False) -> None:
        """Takes down what `up` started."""


class Warren(Target):
    """Warren, started through xtask with the repository's own three-node configuration."""

    name, amqp_base, http_base = "warren", 5672, 15672
    quic_base = 7671

    def __init__(self) -> None:
        given = os.environ.get("WARREN_CLUSTER_DIR")
        self.own = given is None
        self.directory = Path(given) if given else Path(tempfile.gettempdir()) / f"warren-blackbox-{os.getpid()}"
        self.xtask = Path(os.environ.get("WARREN_XTASK", REPOSITORY / "target/release/xtask"))
        self.binary = Path(os.environ.get("WARREN_BIN", REPOSITORY / "target/release/warren"))

    def _cluster(self, *arguments: str) -> None:
        command = [str(self.xtask), "cluster", *arguments, "--data-dir", str(self.directory)]
        result = subprocess.run(command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180)
        assert result.returncode == 0, f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout}\n{result.stderr}"

    def up(self) -> None:
        if self.own:
            self._cluster("--detach", "--fresh", "--no-build")
        for node in self.all():
            self.wait_ready(node)

    def down(self, failed: bool = False) -> None:
        if self.own:
            self._cluster("down")
            if not failed:  # else data and logs are left for whoever looks into it
                shutil.rmtree(self.directory, ignore_errors=True)

    def start_process(self, node: int) -> None:
        self._cluster("start", str(node))

    def wait_ready(self, node: int, timeout: float = 60.0) -> None:
        eventually(lambda: self.api(node).request("GET", "health", timeout=5)[0] == 200, timeout, f"node {node} is healthy")

    def digest(self, node: int) -> dict[str, Any]:
        """A node's routing digest and the metadata index that it stands for."""
        return self.api(node).get("routing", "digest")


class RabbitMQ(Target):
    """A RabbitMQ cluster that runs already."""

    name, amqp_base, http_base = "rabbitmq", 5682, 15682

    def up(self) -> None:
        for node in self.all():
            self.wait_ready(node)

    def start_process(self, node: int) -> None:
        peer = os.environ.get("RABBITMQ_PEER")
        assert peer, "RABBITMQ_PEER names no command to start a node again"
        subprocess.run([peer, "start", str(node)], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=120)

    def kill(self, *nodes: int) -> None:
        if not os.environ.get("RABBITMQ_PEER"):
            pytest.skip("rabbitmq: RABBITMQ_PEER is needed to restart nodes")
        super().kill(*nodes)

    def wait_ready(self, node: int, timeout: float = 90.0) -> None:
        def ready() -> bool:
            running = [n["name"] for n in self.api(node).get("nodes") if n["running"]]
            return len(running) == sum(self.listens(n) for n in self.all()) and self.listens(node)

        eventually(ready, timeout, f"RabbitMQ node {node} runs")


def from_environment() -> Target:
    """The target that WARREN_TARGET names."""
    targets = {"warren": Warren, "rabbitmq": RabbitMQ}
    name = os.environ.get("WARREN_TARGET", "warren")
    if name not in targets:
        raise pytest.UsageError(f"WARREN_TARGET={name}: expected one of {sorted(targets)}")
    return targets[name]()
