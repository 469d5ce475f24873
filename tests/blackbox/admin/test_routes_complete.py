"""Every route and method in the API's source is in the tests of who may and who may not: who adds one adds its tests."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]

#: Health checks that depend on what is configured; they have tests of their own.
ELSEWHERE = {("get", "/api/health/checks/port-listener/{port}")}


def arguments(source: str, start: int) -> str:
    """What stands in the parentheses that open before `start`."""
    depth, at = 1, start
    while depth:
        depth += {"(": 1, ")": -1}.get(source[at], 0)
        at += 1
    return source[start:at - 1]


def routes() -> set[tuple[str, str]]:
    """Methods and paths in the router's source."""
    source = (REPOSITORY / "crates/management/src/router.rs").read_text()
    found = set()
    for match in re.finditer(r"\.route\(", source):
        text = arguments(source, match.end())
        path = re.search(r'"([^"]+)"', text)[1]
        paths = [path if path.startswith(("/api", "/metrics")) else f"/api/health/checks{path}"]
        if "{path}" in path:
            paths = [path.replace("{path}", kind).replace("{{", "{").replace("}}", "}") for kind in ("policies", "operator-policies")]
        found |= {(method, path) for path in paths for method in re.findall(r"\b(get|put|post|delete)\(", text)}
    return found


def covered() -> set[tuple[str, str]]:
    """Methods and paths in the tests."""
    spec = importlib.util.spec_from_file_location("routes_under_test", Path(__file__).with_name("test_routes.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    gets = {("get", path) for path in [*module.GETS, *module.OPEN, *module.OF_CONNECTIONS]}
    changes = {(method.lower(), path) for method, path, _ in module.CHANGES} | {("delete", "connections/{name}")}
    return {(method, path if path.startswith("/") else f"/api/{path}") for method, path in gets | changes}


def fits(route: str, path: str) -> bool:
    parts = re.split(r"(\{[^}]*\})", route)
    pattern = "".join(".+" if part.startswith("{*") else "[^/]+" if part.startswith("{") else re.escape(part) for part in parts)
    return re.fullmatch(pattern, path) is not None


def test_the_source_is_understood():
    found = routes()
    assert len(found) > 110, sorted(found)
    for method in ("get", "put", "delete"):
        assert (method, "/api/queues/{vhost}/{queue}") in found and (method, "/api/operator-policies/{vhost}/{name}") in found


def test_every_route_is_tested():
    known = covered()
    missing = [route for route in routes() - ELSEWHERE if not any(method == route[0] and fits(route[1], path) for method, path in known)]
    assert not missing, sorted(missing)


def test_what_is_tested_is_there():
    found = routes()
    gone = [path for method, path in covered() if not any(method == known and fits(route, path) for known, route in found)]
    assert not gone, sorted(gone)
