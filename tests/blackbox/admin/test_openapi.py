"""The HTTP API under what nobody sane sends it: requests made from its own description, by schemathesis and by hand; no server error, no wait."""

from __future__ import annotations

import base64
import http.client
import itertools
import os
import re
import subprocess
import sys
import time
from urllib.parse import quote

import pytest

#: Seconds that a request may take: two for other nodes, five for a change, and slack.
PATIENCE = 8.0
CONFIGURATION = """
base-url = "http://127.0.0.1:{port}"
headers = {{ Authorization = "Basic ZnV6emVyOmZ1enplcg==" }}
request-timeout = 20.0
continue-on-failure = true
suppress-health-check = ["filter_too_much"]

[generation]
max-examples = {examples}
database = "none"

[phases]
stateful.enabled = false

[checks]
enabled = false
not_a_server_error.enabled = true
status_code_conformance.enabled = true
content_type_conformance.enabled = true
response_schema_conformance.enabled = true

# There, requests find something, and not the user who makes them.
[parameters]
"path.vhost" = "fuzz"
"path.user" = "fuzzed"
"path.node" = "none"

[[operations]]
include-name = "DELETE /api/vhosts/{{vhost}}"
enabled = false

# A check of the node that fails says so with 503, as in RabbitMQ.
[[operations]]
include-path-regex = "^/api/health"
checks.not_a_server_error.expected-statuses = ["2xx", "4xx", "503"]
"""
#: Names that are hard on a path: of nothing, long, with slashes, signs, control characters, in no encoding.
NAMES = ["%2F", "%00", "%25", "%FF%FE", "%zz", "..", "%2E%2E%2F", "+", quote("ü€𝄞 "), "x" * 255, "x" * 256, "x" * 4000, "99999999999999999999",
         "%0D%0AX-Injected:%20yes"]
BODIES = [b"", b"{", b"null", b"[]", b"[{}]", b"\"x\"", b"1e999", b"\xff\xfe", b"{\"a\":1}", b"{" * 5000, b"[" * 100000, b"{\"a\":" * 2000 + b"1" + b"}" * 2000]
VALUES = [b"null", b"true", b"-1", b"18446744073709551616", b"-9223372036854775809", b"0.5", b"\"(\"", b"\"\\u0000\"", b"\"\\ud800\"", b"[1]", b"[null]", b"{}",
          b"{\"x\": {\"\": [[[[1e308]]]]}}", b"\"" + b"x" * 300 + b"\""]


@pytest.fixture(scope="module")
def document(admin_cluster):
    node = admin_cluster[1]
    answer = node.get("openapi.json", user=None)
    assert answer.status == 200 and answer.json["openapi"].startswith("3.")
    for name, tags in (("fuzzer", "administrator"), ("fuzzed", "")):
        assert node.put(f"users/{name}", {"password": name, "tags": tags}) in (201, 204)
        assert node.put(f"permissions/%2F/{name}", {"configure": ".*", "write": ".*", "read": ".*"}) in (201, 204)
    assert node.put("vhosts/fuzz", {}) in (201, 204)
    assert node.put("permissions/fuzz/fuzzer", {"configure": ".*", "write": ".*", "read": ".*"}) in (201, 204)
    assert node.put("queues/%2F/fuzz", {"durable": True}) in (201, 204)
    yield answer.json
    node.delete("queues/%2F/fuzz")
    node.delete("vhosts/fuzz")
    node.delete("users/fuzzed")
    node.delete("users/fuzzer")


def operations(document):
    for path, item in document["paths"].items():
        for method in item:
            if method != "parameters":
                yield method.upper(), path, item[method]


class Client:
    """Sends targets as they are, over one connection while it holds."""

    def __init__(self, node) -> None:
        self.port, self.connection = node.http, None

    def close(self) -> None:
        if self.connection:
            self.connection.close()
        self.connection = None

    def send(self, method: str, target: str, body: bytes | None = None, user: str | None = "fuzzer", password: str | None = None,
             headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        sent = dict(headers or {})
        if user is not None:
            sent["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password or user}".encode()).decode()
        if body is not None:
            sent["Content-Length"] = str(len(body))
        reused = self.connection is not None
        started = time.monotonic()
        try:
            answer, text = self.try_to_send(method, target, body, sent)
        except (http.client.HTTPException, ConnectionError):
            self.close()
            if not reused:
                raise
            # What came before may have made the node close the connection.
            answer, text = self.try_to_send(method, target, body, sent)
        if answer.will_close:
            self.close()
        assert time.monotonic() - started < PATIENCE, f"{method} {target[:200]} took too long"
        assert "X-Injected" not in answer.headers
        return answer.status, text

    def try_to_send(self, method: str, target: str, body: bytes | None, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        self.connection = self.connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        self.connection.putrequest(method, target, skip_accept_encoding=True)
        for key, value in headers.items():
            self.connection.putheader(key, value)
        self.connection.endheaders(body)
        answer = self.connection.getresponse()
        return answer, answer.read()


def fails(status: int, path: str, text: bytes) -> bool:
    """Whether it is an answer that nobody should get, whatever was sent."""
    if path.startswith("/api/health") and status == 503:
        return False
    return status >= 500


def filled(path: str, name: str) -> str:
    return re.sub(r"\{[^}]+\}", lambda _: name, path)


def test_strange_names_in_every_path(cluster, document):
    client, failures, sent = Client(cluster[1]), [], 0
    for method, path, _ in operations(document):
        if "{" not in path:
            continue
        for name in NAMES:
            # What is destroyed by its right name is not asked for with it.
            if method == "DELETE" and name == "%2F" and path.count("{") == 1:
                continue
            status, text = client.send(method, filled(path, name), b"{}" if method in ("PUT", "POST") else None)
            sent += 1
            if fails(status, path, text):
                failures.append((status, method, path, name[:50], text[:200]))
            if status >= 400 and status != 405:
                assert text.startswith(b"{\"error\":") or b"\"status\":" in text or status in (400, 431), (status, method, path, name[:50], text[:200])
    assert sent > 1000 and not failures, failures[:10]
    cleaned(cluster[1])


def cleaned(node):
    """Takes away what strange names have made."""
    for vhost in node.get("vhosts").json:
        if vhost["name"] not in ("/", "fuzz"):
            node.delete(f"vhosts/{quote(vhost['name'], safe='')}")
    for kind in ("policies", "operator-policies"):
        for policy in node.get(f"{kind}/%2F").json:
            node.delete(f"{kind}/%2F/{quote(policy['name'], safe='')}")
    for user in node.get("users").json:
        if user["name"] not in ("guest", "fuzzer", "fuzzed") and (user["name"] in NAMES or not user["name"].isidentifier()):
            node.delete(f"users/{quote(user['name'], safe='')}")


def test_strange_bodies_and_values(cluster, document):
    client, failures, sent = Client(cluster[2]), [], 0
    right = {"vhost": "%2F", "user": "fuzzed", "exchange": "amq.topic", "queue": "fuzz", "source": "amq.topic", "kind": "q", "destination": "fuzz", "component": "c",
             "name": "fuzz", "node": "none", "properties_key": "~"}
    for method, path, operation in operations(document):
        if "requestBody" not in operation:
            continue
        target = re.sub(r"\{([^}]+)\}", lambda found: right[found[1]], path)
        if path.startswith("/api/vhost-limits") or path.startswith("/api/user-limits"):
            target = target.replace("/fuzz", "/max-connections")
        schema = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
        fields = document["components"]["schemas"][schema]["properties"]
        strange = itertools.chain(BODIES, (b'{"' + field.encode() + b'": ' + value + b"}" for field in fields for value in VALUES),
                                  (b"{" + b", ".join(b'"' + field.encode() + b'": ' + value for field in fields) + b"}" for value in VALUES))
        for body in strange:
            status, text = client.send(method, target, body)
            sent += 1
            if fails(status, path, text):
                failures.append((status, method, target, body[:100], text[:200]))
    assert sent > 1000 and not failures, failures[:10]
    for gone in ("vhost-limits/%2F/max-connections", "user-limits/fuzzed/max-connections", "policies/%2F/fuzz", "operator-policies/%2F/fuzz", "parameters/c/%2F/fuzz", "global-parameters/fuzz", "bindings/%2F/e/amq.topic/q/fuzz/~"):
        cluster[1].delete(gone)


def test_strange_queries(cluster, document):
    client, failures = Client(cluster[3]), []
    values = ["", "0", "99999999999999999999", "%00%FF", "%", "a.b,,", "x" * 3000, "(a{1000}){1000}"]
    right = {"vhost": "%2F", "user": "guest", "exchange": "amq.topic", "queue": "fuzz", "source": "amq.topic", "kind": "q", "destination": "fuzz", "component": "c", "name": "fuzz",
             "node": "node1", "properties_key": "~", "within": "1", "unit": "days", "port": "1", "protocol": "amqp"}
    for method, path, operation in operations(document):
        if method != "GET":
            continue
        target = re.sub(r"\{([^}]+)\}", lambda found: right[found[1]], path)
        listed = any("$ref" in parameter for parameter in operation.get("parameters", []))
        names = ["page", "page_size", "sort", "columns"] if listed else [parameter["name"] for parameter in operation.get("parameters", [])] or ["x"]
        queries = [f"{name}={value}" for name in names for value in values] + [f"page=1&page_size=5&name={value}&use_regex=true" for value in values if listed]
        for query in queries:
            status, text = client.send(method, f"{target}?{query}")
            if fails(status, path, text):
                failures.append((status, target, query[:80], text[:200]))
    assert not failures, failures[:10]


def test_no_operation_is_open_to_who_may_not(cluster, document):
    client = Client(cluster[1])
    who = [(None, None), ("fuzzer", "wrong"), ("fuzzed", None), ("nobody", "x"), ("guest\x00", "guest"), ("", "")]
    for number, (method, path, operation) in enumerate(operations(document)):
        target = filled(path, "%2F")
        open_to_all = operation.get("security") == []
        for user, password in who if number < 10 else who[:3]:
            status, text = client.send(method, target, b"{}" if method in ("PUT", "POST") else None, user=user, password=password)
            assert open_to_all and status in (200, 404, 503) or status == 401, (status, method, path, user, text[:200])
    for header in ("Basic", "Basic ===", "Bearer x", "Basic " + "A" * 20000, "\xff", "Basic OnNlY3JldA=="):
        status, _ = client.send("GET", "/api/overview", user=None, headers={"Authorization": header})
        assert status == 401, header[:20]


def test_what_is_no_request_is_refused_and_nothing_hangs(cluster):
    client = Client(cluster[1])
    for method, target, body, headers in (
        ("GET", "/" + "a" * 70000, None, {}), ("GET", "/api/overview", None, {f"X-{n}": "y" * 500 for n in range(200)}), ("BREW", "/api/overview", None, {}),
        ("OPTIONS", "/api/queues", None, {}), ("TRACE", "/api/queues", None, {}), ("GET", "/api/../api/whoami", None, {}), ("GET", "//", None, {}),
        ("PUT", "/api/queues/%2F/fuzz", b"x" * 2_000_000, {}), ("GET", "http://other/api/whoami", None, {"Host": "x"}), ("GET", "*", None, {}),
    ):
        try:
            status, _ = client.send(method, target, body, headers=headers)
        except (http.client.HTTPException, ConnectionError):
            # Refused by closing, before all of it was sent.
            continue
        assert status < 500 or status == 501, (method, target[:50], status)
    assert client.send("GET", "/api/whoami")[0] == 200


def test_schemathesis(cluster, document, tmp_path):
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION.format(port=cluster[1].http, examples=int(os.environ.get("WARREN_FUZZ_EXAMPLES", "3"))))
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(tmp_path / "schemathesis.toml"), "run", f"http://127.0.0.1:{cluster[1].http}/api/openapi.json",
               "--phases", "fuzzing", "--workers", "1", "--no-color", "--generation-deterministic"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert result.returncode == 0, result.stdout[-12000:] + result.stderr[-3000:]
    assert "Authentication failed" not in result.stdout, result.stdout[-5000:]
    tested = re.search(r"Tested: (\d+)", result.stdout)
    assert tested and int(tested[1]) >= len(list(operations(document))) - 2, result.stdout[-3000:]
    cleaned(cluster[1])
