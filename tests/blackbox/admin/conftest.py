"""A cluster of its own for the tests of administration: free ports, TLS for clients, certificates made by openssl, nodes that a test may stop.

The tests speak HTTP and AMQP with the standard library and pika, as tools do that know nothing of Warren.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Iterator
from urllib.parse import quote, urlencode

import pika
import pytest
from ports import free_ports

REPOSITORY = Path(__file__).resolve().parents[3]
HOST = "127.0.0.1"


def eventually(check: Callable[[], Any], what: str, timeout: float = 20.0) -> Any:
    """Calls `check` until it returns something true, and returns that."""
    deadline = time.monotonic() + timeout
    while True:
        failure: BaseException | None = None
        try:
            result = check()
            if result:
                return result
        except (AssertionError, OSError, http.client.HTTPException, pika.exceptions.AMQPError) as error:
            failure = error
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout} s: {what}") from failure
        time.sleep(0.02)


def openssl(*arguments: str, cwd: Path) -> None:
    result = subprocess.run(["openssl", *arguments], cwd=cwd, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, f"openssl {' '.join(arguments)}: {result.stderr}"


class Certificates:
    """CAs and certificates in PEM files of one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()

    def path(self, name: str) -> Path:
        return self.directory / name

    def authority(self, name: str) -> None:
        """`NAME.pem` and `NAME.key`, which may sign."""
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj", f"/CN={name}",
                "-keyout", f"{name}.key", "-out", f"{name}.pem", "-addext", "keyUsage=critical,keyCertSign,cRLSign", cwd=self.directory)

    def issue(self, name: str, subject: str, authority: str, names: list[str], days: int = 30) -> None:
        """`NAME.pem` and `NAME.key`, signed by an authority, for both ends of a connection."""
        (self.directory / "extensions").write_text(
            "basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
            + (f"subjectAltName={','.join(names)}\n" if names else ""))
        openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", subject,
                "-keyout", f"{name}.key", "-out", f"{name}.csr", cwd=self.directory)
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-days", str(days),
                "-extfile", "extensions", "-out", f"{name}.pem", cwd=self.directory)


class Answer:
    """What a node answers over HTTP."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Node:
    """One process, its addresses, and its API as one user."""

    def __init__(self, cluster: "Cluster", number: int, ports: list[int]) -> None:
        self.cluster, self.number, self.name = cluster, number, f"node{number}"
        self.amqp, self.http, self.links, self.amqps, self.https = ports
        self.process: subprocess.Popen[bytes] | None = None

    # --- the process ---

    def start(self) -> None:
        log = (self.cluster.directory / f"{self.name}.log").open("ab")
        self.process = subprocess.Popen([str(self.cluster.binary), "--config", str(self.cluster.config(self))],
                                        stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.cluster.directory)

    def ready(self) -> None:
        def serves() -> bool:
            assert self.process and self.process.poll() is None, f"{self.name} has ended: {self.log()[-2000:]}"
            return self.get("health").status == 200

        eventually(serves, f"{self.name} serves", 60)

    def log(self) -> str:
        return (self.cluster.directory / f"{self.name}.log").read_text(errors="replace")

    def signal(self, number: int) -> None:
        assert self.process
        self.process.send_signal(number)

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait(20)

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    # --- its API ---

    def ask(self, method: str, path: str, body: Any = None, user: str | None = "guest", password: str = "guest",
            headers: dict[str, str] | None = None, timeout: float = 30.0, query: dict[str, str] | None = None) -> Answer:
        """`path` is what follows `/api/`, already encoded; `user=None` sends no login."""
        sent = dict(headers or {})
        if user is not None:
            sent["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(HOST, self.http, timeout=timeout)
        try:
            target = path if path.startswith("/") else f"/api/{path}"
            connection.request(method, target + (f"?{urlencode(query)}" if query else ""), data, sent)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **options: Any) -> Answer:
        return self.ask("GET", path, **options)

    def put(self, path: str, body: Any, **options: Any) -> int:
        return self.ask("PUT", path, body, **options).status

    def delete(self, path: str, **options: Any) -> int:
        return self.ask("DELETE", path, **options).status

    # --- AMQP ---

    def connect(self, user: str = "guest", password: str = "guest", vhost: str = "/", **options: Any) -> pika.BlockingConnection:
        credentials = pika.PlainCredentials(user, password)
        connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, self.amqp, vhost, credentials, **options))
        self.cluster.connections.append(connection)
        return connection


class Cluster:
    """Three nodes, or another number of them."""

    def __init__(self, directory: Path, limits: str = "", count: int = 3) -> None:
        directory.mkdir(exist_ok=True)
        self.directory, self.limits = directory, limits
        self.binary = Path(os.environ.get("WARREN_BIN", REPOSITORY / "target/release/warren"))
        self.ctl = Path(os.environ.get("WARRENCTL", REPOSITORY / "target/release/warrenctl"))
        self.connections: list[pika.BlockingConnection] = []
        self.certificates = Certificates(directory / "certificates")
        self.certificates.authority("links")
        self.certificates.authority("clients")
        self.certificates.issue("server", "/O=Warren/CN=server", "clients", ["DNS:localhost", f"IP:{HOST}"])
        ports = free_ports(5 * count)
        self.nodes = [Node(self, n + 1, ports[n * 5:n * 5 + 5]) for n in range(count)]
        for node in self.nodes:
            self.certificates.issue(node.name, f"/CN={node.name}", "links", ["DNS:warren-node", f"DNS:{node.name}"])

    def config(self, node: Node) -> Path:
        peers = ", ".join(f'{{ name = "{n.name}", address = "{HOST}:{n.links}" }}' for n in self.nodes)
        path = self.directory / f"{node.name}.toml"
        path.write_text(f"""
[node]
name = "{node.name}"
data_dir = "{self.directory / node.name}"
[amqp]
listen = "{HOST}:{node.amqp}"
tls_listen = "{HOST}:{node.amqps}"
[http]
listen = "{HOST}:{node.http}"
tls_listen = "{HOST}:{node.https}"
metrics_objects_max = 5
[cluster]
name = "admin"
listen = "{HOST}:{node.links}"
peers = [{peers}]
shards = 12
[tls]
ca = "certificates/links.pem"
certificate = "certificates/{node.name}.pem"
key = "certificates/{node.name}.key"
[client_tls]
certificate = "certificates/server.pem"
key = "certificates/server.key"
ca = "certificates/clients.pem"
login_from = "common_name"
[limits]
{self.limits or "login_failures_per_minute = 0"}
""")
        return path

    def __getitem__(self, number: int) -> Node:
        """A node by its number, from 1."""
        return self.nodes[number - 1]

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.ready()

    def heal(self) -> None:
        """Brings back what a test has stopped."""
        for node in self.nodes:
            if node.process is None or node.process.poll() is not None:
                node.start()
        for node in self.nodes:
            node.signal(signal.SIGCONT)
            node.ready()
        eventually(lambda: all(n["running"] for n in self[1].get("nodes").json), "all nodes run")

    def close_connections(self) -> None:
        for connection in self.connections:
            with contextlib.suppress(Exception):
                connection.close()
        self.connections.clear()

    def stop(self) -> None:
        self.close_connections()
        for node in self.nodes:
            node.stop()

    # --- the command line ---

    def run(self, *arguments: str, node: int = 1, check: bool = True, text: str | None = None,
            environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """warrenctl against a node, as guest unless the arguments say otherwise."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("WARREN_")}
        env["WARREN_URL"] = f"http://{HOST}:{self[node].http}"
        env.update(environment or {})
        result = subprocess.run([str(self.ctl), *arguments], env=env, input=text if text is not None else "", capture_output=True, text=True, timeout=60)
        if check:
            assert result.returncode == 0, f"warrenctl {' '.join(arguments)} ended with {result.returncode}: {result.stderr}{result.stdout}"
        return result

    def client_context(self, certificate: str | None = None, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        """What a client needs to trust the nodes, with a certificate of its own or none."""
        context = ssl.create_default_context(cafile=str(self.certificates.path("clients.pem")))
        if certificate:
            context.load_cert_chain(self.certificates.path(f"{certificate}.pem"), self.certificates.path(f"{certificate}.key"))
        if version:
            context.minimum_version = context.maximum_version = version
        return context


@pytest.fixture(scope="session")
def admin_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("admin"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(admin_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, whole at each test's start, without connections of earlier tests."""
    yield admin_cluster
    admin_cluster.close_connections()
    admin_cluster.heal()


@pytest.fixture
def new_cluster(tmp_path: Path) -> Callable[..., Cluster]:
    """Makes a cluster of so many nodes, not started, that the test stops itself."""
    return lambda count, limits="": Cluster(tmp_path / "cluster", limits, count)


@pytest.fixture
def segment() -> Callable[[str], str]:
    """A name as one part of a path."""
    return lambda name: quote(name, safe="")


@pytest.fixture(name="eventually")
def _eventually() -> Callable[..., Any]:
    return eventually
