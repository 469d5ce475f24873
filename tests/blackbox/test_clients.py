"""Clients that people use, each a program of its own: declare and publish with confirms at one node, consume at another.

The programs stand in tests/clients. They are built here into a temporary folder with the language's own tools; a language whose tools
are missing fails rather than being passed over, unless WARREN_CLIENTS names the clients to run (separated by commas).
"""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from targets import REPOSITORY

CLIENTS = REPOSITORY / "tests/clients"
CHOSEN = [name for name in os.environ.get("WARREN_CLIENTS", "").split(",") if name]


def run(command, **options):
    """Runs a command with a deadline; its output, which is also the error's text."""
    options.setdefault("timeout", 90)
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)
    assert result.returncode == 0, f"{command} ended with {result.returncode}:\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Builds a client once: the command that runs it."""
    builders = {"node": build_node, "java": build_java, "go": build_go, "lapin": build_lapin}

    @functools.cache
    def build(name: str) -> tuple[str, ...]:
        if name in ("pika", "aio-pika"):
            return sys.executable, str(CLIENTS / "python" / f"with_{name.replace('-', '_')}.py")
        return builders[name](tmp_path_factory.mktemp(name))

    return build


def build_node(folder: Path) -> tuple[str, ...]:
    for file in ("package.json", "package-lock.json", "client.js"):
        shutil.copy(CLIENTS / "node" / file, folder)
    run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, timeout=180)
    return "node", str(folder / "client.js")


def build_java(folder: Path) -> tuple[str, ...]:
    library = os.environ.get("AMQP_CLIENT_JAR", "/usr/share/java/amqp-client.jar")
    classpath = ":".join([library, "/usr/share/java/slf4j-api.jar", "/usr/share/java/slf4j-nop.jar", str(folder)])
    run(["javac", "-cp", classpath, "-d", str(folder), str(CLIENTS / "java/Client.java")])
    return "java", "-Xmx128m", "-cp", classpath, "Client"


def build_go(folder: Path) -> tuple[str, ...]:
    environment = {**os.environ, "GO111MODULE": "off", "GOPATH": os.environ.get("GOPATH", "/usr/share/gocode"), "GOFLAGS": ""}
    run(["go", "build", "-o", str(folder / "client"), str(CLIENTS / "go/client.go")], env=environment, timeout=180)
    return (str(folder / "client"),)


def build_lapin(folder: Path) -> tuple[str, ...]:
    given = os.environ.get("WARREN_CLIENT_LAPIN")
    if given:
        return (given,)
    run(["cargo", "build", "--quiet", "--release", "--package", "warren-client-lapin"], cwd=REPOSITORY, timeout=600)
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    return (str(target / "release/warren-client-lapin"),)


@pytest.mark.timeout(700)
@pytest.mark.parametrize("client", ["pika", "aio-pika", "node", "java", "go", "lapin"])
def test_client(nodes, target, names, build, client):
    """Declares, binds and publishes with confirms through node 1, consumes through node 2; unroutable messages come back."""
    if CHOSEN and client not in CHOSEN:
        pytest.skip("WARREN_CLIENTS names other clients")
    command = build(client)
    uris = []
    for node in (1, 2):
        host, port = target.amqp(nodes.number(node))
        uris.append(f"amqp://guest:guest@{host}:{port}/{nodes.vhost}")
    output = run([*command, *uris, names("q")])
    assert output.splitlines()[-1] == "ok 200", output


def test_amqp_tools(nodes, target, names):
    """The C client's command-line tools: declare and publish at one node, get at another."""
    if CHOSEN and "c" not in CHOSEN:
        pytest.skip("WARREN_CLIENTS names other clients")
    queue = names("q")

    def tool(node, name, *arguments):
        host, port = target.amqp(nodes.number(node))
        return run([f"amqp-{name}", "--url", f"amqp://guest:guest@{host}:{port}/{nodes.vhost}", *arguments])

    assert tool(1, "declare-queue", "--durable", "-q", queue).strip() == queue
    tool(1, "publish", "-r", queue, "-p", "-b", "hello")
    assert tool(2, "get", "-q", queue) == "hello"
    tool(3, "delete-queue", "-q", queue)
