"""`tracing.otlp_endpoint`: spans come to a collector over HTTP or HTTPS in protobuf; one that is away, hangs or refuses holds nobody up."""

from __future__ import annotations

import http.server
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any, Iterator

import pytest

from amqp import Connection
from own import Authority, OwnCluster, own_cluster
from targets import HOST, eventually, from_environment


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message: numbers as such, the rest as bytes."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            octet = data[at]
            at += 1
            value |= (octet & 127) << shift
            shift += 7
            if octet < 128:
                return value

    while at < len(data):
        key = number()
        kind = key & 7
        if kind == 0:
            yield key >> 3, number()
            continue
        size = {1: 8, 5: 4}.get(kind) or number()
        yield key >> 3, data[at:at + size]
        at += size


def one(data: bytes, field: int) -> Any:
    return next((value for number, value in fields(data) if number == field), b"")


def every(data: bytes, field: int) -> list[Any]:
    return [value for number, value in fields(data) if number == field]


def attributes(data: bytes, field: int) -> dict[str, Any]:
    """KeyValue lists: texts as text, numbers as such."""
    found = {}
    for pair in every(data, field):
        ((number, value),) = fields(one(pair, 2))
        found[one(pair, 1).decode()] = value.decode() if number == 1 else value
    return found


class Collector:
    """Takes what is posted to it, as the OpenTelemetry protocol says."""

    def __init__(self, port: int = 0, status: int = 200, certificate: Path | None = None) -> None:
        self.requests: list[tuple[str, str]] = []
        self.spans: list[dict[str, Any]] = []
        self.status = status
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests.append((self.path, self.headers["Content-Type"]))
                if collector.status == 200:
                    collector.take(body)
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer((HOST, port), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.with_suffix(".pem"), certificate.with_suffix(".key"))
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, body: bytes) -> None:
        for of_resource in every(body, 1):
            resource = attributes(one(of_resource, 1), 1)
            for scope in every(of_resource, 2):
                for span in every(scope, 2):
                    begun, ended = (int.from_bytes(one(span, field), "little") for field in (7, 8))
                    self.spans.append({
                        "trace": one(span, 1), "id": one(span, 2), "parent": one(span, 4), "name": one(span, 5).decode(), "seconds": (ended - begun) / 1e9,
                        "begun": begun / 1e9, "resource": resource, **attributes(span, 9),
                    })

    def find(self, name: str, **wanted: Any) -> dict[str, Any]:
        def found():
            return next((s for s in list(self.spans) if s["name"] == name and all(s.get(key.replace("__", ".")) == value for key, value in wanted.items())), None)

        return eventually(found, 10, f"a span {name} with {wanted}")

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def configured(folder, port: int, ca: Path | None = None) -> OwnCluster:
    from_environment().skip_on("rabbitmq", "it is Warren's")
    cluster = OwnCluster(folder, size=1)
    endpoint = f"https://localhost:{port}" if ca else f"http://{HOST}:{port}"
    with open(cluster.nodes[0].folder / "node.toml", "a") as file:
        file.write(f'\n[tracing]\notlp_endpoint = "{endpoint}"\n')
        if ca:
            file.write(f'otlp_ca = "{ca}"\n')
    return cluster


@pytest.fixture(scope="module")
def collector():
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, collector):
    cluster = configured(tmp_path_factory.mktemp("traces"), collector.port)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


def test_requests_and_what_they_change(cluster, collector):
    """A request of the HTTP API is a span, the change that it makes one below it; both say what came of it, and where they are from."""
    begun = time.time()
    cluster.api(1).put("queues", "/", "traced", body={"durable": True})
    request = collector.find("http.request", url__path="/api/queues/%2F/traced")
    assert (request["http.request.method"], request["http.route"], request["http.response.status_code"]) == ("PUT", "/api/queues/{vhost}/{queue}", 201)
    change = collector.find("metadata.change", object="traced")
    assert (change["action"], change["vhost"], change["outcome"]) == ("queue.declare", "/", "ok")
    assert (change["trace"], change["parent"], request["parent"]) == (request["trace"], request["id"], b"")
    assert 0 < change["seconds"] <= request["seconds"] < 10 and begun - 1 < request["begun"] < time.time() + 1
    resource = request["resource"]
    assert (resource["service.name"], resource["service.instance.id"], resource["warren.cluster"]) == ("warren", "node1", "own")
    assert set(collector.requests) == {("/v1/traces", "application/x-protobuf")}


def test_connections(cluster, collector):
    """A connection is a span that ends with it; what it changes has traces of its own, and messages have none."""
    with Connection(cluster.amqp(1)) as connection:
        ch = connection.channel()
        ch.queue_declare("by-amqp")
        ch.confirm_select()
        for _ in range(20):
            assert ch.routed("", "by-amqp")
        ch.queue_delete("by-amqp")
    span = collector.find("amqp.connection", user="guest")
    assert (span["vhost"], span["reason"]) == ("/", "closed") and span["peer"].startswith(HOST)
    change = collector.find("metadata.change", object="by-amqp", action="queue.delete")
    assert change["parent"] == b"" and change["trace"] != span["trace"]
    assert {s["name"] for s in collector.spans} <= {"http.request", "metadata.change", "amqp.connection"}
    assert len([s for s in collector.spans if s.get("object") == "by-amqp"]) == 2


def test_refused_requests(cluster, collector):
    with pytest.raises(Exception, match="401"):
        cluster.api(1, "guest", "wrong-and-secret").get("queues", "/", "no-such")
    assert collector.find("http.request", url__path="/api/queues/%2F/no-such")["http.response.status_code"] == 401
    with pytest.raises(Exception, match="400"):
        cluster.api(1).put("queues", "/", "traced", body={"durable": False})
    assert collector.find("metadata.change", object="traced", outcome="refused")
    assert not any("secret" in str(span) for span in collector.spans)


def test_nothing_is_asked_of_a_node_without_it(tmp_path, collector):
    """Off by default: a node that is not told of a collector sends nothing, and its log shows no spans."""
    with own_cluster(tmp_path / "plain", size=1) as cluster:
        before = len(collector.requests)
        cluster.api(1).put("queues", "/", "untraced", body={"durable": True})
        with Connection(cluster.amqp(1)) as connection:
            connection.channel().queue_declare("untraced")
        time.sleep(1.5)  # longer than spans are gathered for: nothing may come
        assert len(collector.requests) == before
        assert "http.request" not in cluster.nodes[0].log and "metadata.change" not in cluster.nodes[0].log


def test_a_collector_with_tls_is_sent_to_if_it_is_who_it_should_be(tmp_path):
    """Spans go to a collector whose certificate is of the CA that is named, and to no other; what is no CA stops the start."""
    known, foreign = Authority(tmp_path / "known"), Authority(tmp_path / "foreign")
    for ca, trusted in ((known, True), (foreign, False)):
        collector = Collector(certificate=known.issue("localhost"))
        cluster = configured(tmp_path / f"cluster-{trusted}", collector.port, ca.folder / "ca.pem")
        try:
            cluster.up()
            cluster.api(1).put("queues", "/", "traced", body={"durable": True})
            if trusted:
                assert collector.find("metadata.change", object="traced")["outcome"] == "ok"
                assert "spans cannot be exported" not in cluster.nodes[0].log
            else:
                eventually(lambda: "spans cannot be exported" in cluster.nodes[0].log, 15, "the log says so")
                assert "UnknownIssuer" in cluster.nodes[0].log or "certificate" in cluster.nodes[0].log
                assert not collector.spans
        finally:
            cluster.down()
            collector.close()
    node = cluster.nodes[0]
    (foreign.folder / "ca.pem").write_text("nothing")
    node.start()
    assert node.process.wait(10) == 78
    assert "tracing.otlp_ca" in node.log and "ca.pem" in node.log


def rss(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


@pytest.mark.parametrize("how", ["away", "hangs", "refuses"])
def test_a_collector_that_takes_nothing_holds_nobody_up(tmp_path, how):
    """Requests and declares take as long as ever, the memory stays, the node stops in time; when the collector is back, later spans come."""
    silent = socket.socket()
    silent.bind((HOST, 0))
    port = silent.getsockname()[1]
    collector = None
    if how == "hangs":
        silent.listen(100)
    else:
        silent.close()
    if how == "refuses":
        collector = Collector(port, status=503)
    cluster = configured(tmp_path / "cluster", port)
    try:
        cluster.up()
        api = cluster.api(1)

        def round_of(requests):
            started = time.monotonic()
            for _ in range(requests):
                api.get("whoami")
            with Connection(cluster.amqp(1)) as connection:
                ch = connection.channel()
                for n in range(50):
                    ch.queue_declare(f"q{n}")
            return time.monotonic() - started

        round_of(2500)  # more than the queue of spans has room for
        settled = rss(cluster.pid(1))
        assert round_of(1000) < 20
        grown = rss(cluster.pid(1)) - settled
        assert grown < 40_000, f"{grown} KiB more for spans that go nowhere"
        eventually(lambda: "spans cannot be exported" in cluster.nodes[0].log, 15, "the log says so")
        assert cluster.nodes[0].log.count("spans cannot be exported") == 1
        if how != "hangs":
            if collector:
                collector.status = 200
            else:
                collector = Collector(port)
            eventually(lambda: api.get("overview") and any(s.get("url.path") == "/api/overview" for s in collector.spans), 15, "spans come again")
            assert "spans are exported again" in cluster.nodes[0].log
        started = time.monotonic()
        cluster.nodes[0].stop()
        assert time.monotonic() - started < 15
    finally:
        cluster.down()
        silent.close()
        if collector:
            collector.close()
