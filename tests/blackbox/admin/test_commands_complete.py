"""Every command of warrenctl: it is run by a test and its help has an example; it is refused to a user who may nothing; and a node that is down neither
delays it nor changes what comes of it. Who adds a command adds its tests and its line in `CASES`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Iterator, NamedTuple

import pytest

OK, USAGE, DATA, UNAVAILABLE, NOPERM = 0, 64, 65, 69, 77
# A node that is down makes no command longer than 2 s; the rest is for the process itself on a busy machine.
SECONDS_MAX = 2.5
REPOSITORY = Path(__file__).resolve().parents[3]
CTL = Path(os.environ.get("WARRENCTL", REPOSITORY / "target/release/warrenctl"))


def usage(*command: str) -> str:
    result = subprocess.run([str(CTL), *command, "--help"], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stderr
    return result.stdout


def leaves(*command: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Commands that have none below them, with their help."""
    text = usage(*command)
    below = re.search(r"^Commands:\n((?:  .*\n|\n)+)", text, re.MULTILINE)
    names = re.findall(r"^  ([a-z][a-z_-]*)", below[1], re.MULTILINE) if below else []
    if not names:
        yield command, text
    for name in names:
        if name != "help":
            yield from leaves(*command, name)


@pytest.fixture(scope="module")
def commands():
    found = dict(leaves())
    assert len(found) > 120 and ("queue", "list") in found and ("list_queues",) in found, sorted(found)
    return found


def test_every_command_is_run_by_a_test(commands):
    text = "\n".join(file.read_text() for file in sorted(Path(__file__).parent.glob("test_*.py")) if file.name != Path(__file__).name)
    missing = []
    for command in commands:
        words = r'",\s*"'.join(re.escape(word) for word in command)
        if not re.search(f'"{words}"', text):
            missing.append(" ".join(command))
    assert not missing, missing


def test_every_help_has_an_example_that_is_taken(commands):
    for command, text in commands.items():
        examples = re.findall(r"^Example: warrenctl (.*)$", text, re.MULTILINE)
        assert examples, command
        assert command[-1] in examples[0].split(), (command, examples)  # operator policies share the help of policies


# --- who may not, and one node down ---

class Case(NamedTuple):
    """How a command is called, and what comes of it."""

    arguments: str = ""
    """Divided by blanks; {names} are put in by `told`."""
    code: int = OK
    """While node3 is down."""
    nobody: int = NOPERM
    """As a user without a tag."""
    first: tuple[str, ...] = ()
    """What is to be run before, as administrator."""


IN = "--vhost complete"
ALONE = {"nobody": OK}  # asks no node, or nobody's rights
ELSEWHERE = {"code": USAGE, "nobody": USAGE}  # says what is to be done instead
NONE = {"code": DATA}  # there is no such thing
QUEUE, EXCHANGE = f"queue declare gone {IN}", f"exchange declare gone {IN}"
BINDING = f"binding declare amq.topic q --key gone {IN}"
USER, VHOST = "user declare gone --new-password p", "vhost declare gone"

CASES = {
    "cluster status": Case(), "cluster health": Case(code=UNAVAILABLE), "cluster join": Case("node9 --address 127.0.0.1:9"), "cluster drain": Case("node2 --yes", DATA),
    "cluster revive": Case("node2"), "cluster forget": Case("nobody --yes", **NONE), "cluster await-ready": Case("--nodes 3 --timeout 1", UNAVAILABLE),
    "ring show": Case(), "ring plan": Case(), "ring rebalance": Case(),
    "routing digest": Case(code=UNAVAILABLE), "routing diff": Case(code=UNAVAILABLE), "routing explain": Case("amq.topic k"),
    "exchange list": Case(), "exchange show": Case("amq.topic"), "exchange declare": Case(f"e {IN}"), "exchange delete": Case(f"gone --yes {IN}", first=(EXCHANGE,)),
    "queue list": Case(), "queue show": Case(f"q {IN}"), "queue declare": Case(f"q2 {IN}"), "queue delete": Case(f"gone --yes {IN}", first=(QUEUE,)),
    "queue quorum-status": Case(f"q {IN}"), "queue transfer-leader": Case(f"q node2 {IN}"), "queue grow": Case("node2"), "queue shrink": Case("node2 --yes", DATA),
    "queue purge": Case(f"q --yes {IN}"),
    "binding list": Case(), "binding declare": Case(f"amq.topic q --key k {IN}"),
    "binding delete": Case(f"amq.topic q --key gone --yes {IN}", first=(BINDING,)),
    "vhost list": Case(), "vhost show": Case("complete"), "vhost declare": Case("complete --description d"), "vhost delete": Case("gone --yes", first=(VHOST,)),
    "user list": Case(), "user show": Case("one"), "user declare": Case("one --new-password p"), "user change-password": Case("one --new-password p"),
    "user set-tags": Case("one management"), "user delete": Case("gone --yes", first=(USER,)),
    "permission list": Case(), "permission set": Case(f"one --read .* {IN}"), "permission clear": Case(f"one --yes {IN}", first=(f"permission set one --read .* {IN}",)),
    "topic-permission list": Case(), "topic-permission set": Case(f"one amq.topic --read .* --write .* {IN}"),
    "topic-permission clear": Case(f"one --yes {IN}", first=(f"topic-permission set one amq.topic --read .* --write .* {IN}",)),
    "policy list": Case(), "policy show": Case(f"p {IN}"), "policy declare": Case(f"p --pattern ^none --set max-length=5 --apply-to queues {IN}"),
    "policy delete": Case(f"gone --yes {IN}", first=(f"policy declare gone --pattern ^none --set max-length=5 --apply-to queues {IN}",)),
    "operator-policy list": Case(), "operator-policy show": Case(f"o {IN}"), "operator-policy declare": Case(f"o --pattern ^none --set max-length=5 --apply-to queues {IN}"),
    "operator-policy delete": Case(f"gone --yes {IN}", first=(f"operator-policy declare gone --pattern ^none --set max-length=5 --apply-to queues {IN}",)),
    "limit list": Case(), "limit set": Case(f"max-queues 100 {IN}"), "limit clear": Case(f"max-connections --yes {IN}", first=(f"limit set max-connections 9 {IN}",)),
    "parameter list": Case(), "parameter show": Case("one"), "parameter set": Case("one 1"), "parameter clear": Case("gone --yes", first=("parameter set gone 1",)),
    "connection list": Case(), "connection show": Case("{connection}"), "connection close": Case("none --yes", **NONE), "connection close-all": Case("--of-user one --yes"),
    "channel list": Case(), "channel show": Case("{channel}"), "consumer list": Case(), "node list": Case(), "node show": Case("node3"),
    "message publish": Case(f"--key q --payload x {IN}"), "message get": Case(f"q {IN}"), "message purge": Case(f"q --yes {IN}"),
    "definitions export": Case(), "definitions import": Case("{definitions}"), "check": Case("alarms"), "log tail": Case(),
    "password hash": Case("x", **ALONE), "cert generate": Case("n --folder {folder}", **ALONE), "completions": Case("bash", **ALONE),
    # rabbitmqctl's
    "list_queues": Case("-p complete"), "list_exchanges": Case(), "list_bindings": Case(), "list_connections": Case(), "list_channels": Case(), "list_consumers": Case(),
    "list_vhosts": Case(), "list_users": Case(), "list_permissions": Case(), "list_user_permissions": Case("one"),
    "add_user": Case("gone p", first=(USER, "delete_user gone")), "delete_user": Case("gone", first=(USER,)), "change_password": Case("one p"), "clear_password": Case("one"),
    "authenticate_user": Case("tagless secret", **ALONE), "set_user_tags": Case("one management"),
    "add_vhost": Case("complete"), "update_vhost_metadata": Case("complete --tags t"), "delete_vhost": Case("gone", first=(VHOST,)),
    "set_permissions": Case("-p complete one .* .* .*"), "clear_permissions": Case("-p complete one", first=(f"permission set one --read .* {IN}",)),
    "list_topic_permissions": Case(), "list_user_topic_permissions": Case("one"), "set_topic_permissions": Case("-p complete one amq.topic .* .*"),
    "clear_topic_permissions": Case("-p complete one", first=(f"topic-permission set one amq.topic --read .* --write .* {IN}",)),
    "list_policies": Case(), "set_policy": Case('-p complete p ^none {{"max-length":5}}'), "clear_policy": Case("-p complete gone", **NONE),
    "list_operator_policies": Case(), "set_operator_policy": Case('-p complete o ^none {{"max-length":5}}'), "clear_operator_policy": Case("-p complete gone", **NONE),
    "list_vhost_limits": Case(), "set_vhost_limits": Case('-p complete {{"max-queues":100}}'), "clear_vhost_limits": Case("-p complete"),
    "list_user_limits": Case(), "set_user_limits": Case('one {{"max-channels":9}}'), "clear_user_limits": Case("one all"),
    "list_parameters": Case(), "set_parameter": Case("-p complete shovel one 1"), "clear_parameter": Case("-p complete shovel gone", **NONE),
    "list_global_parameters": Case(), "set_global_parameter": Case("one 1"), "clear_global_parameter": Case("gone", first=("parameter set gone 1",)),
    "purge_queue": Case("-p complete q"), "delete_queue": Case("-p complete gone", first=(QUEUE,)), "close_connection": Case("none why", **NONE),
    "close_all_user_connections": Case("one why"), "export_definitions": Case("{folder}/exported.json"), "import_definitions": Case("{definitions}"),
    "quorum_status": Case("-p complete q"), "cluster_status": Case(), "await_startup": Case(**ALONE), "forget_cluster_node": Case("nobody", **NONE),
    "list_feature_flags": Case(), "set_cluster_name": Case("x", **ELSEWHERE), "join_cluster": Case("x", **ELSEWHERE), "stop_app": Case(**ELSEWHERE),
    "start_app": Case(**ELSEWHERE), "reset": Case(**ELSEWHERE), "status": Case(), "ping": Case(),
}


@pytest.fixture(scope="module")
def told(admin_cluster, tmp_path_factory):
    """What the commands are about, and the words for it."""
    admin_cluster.heal()
    run = admin_cluster.run
    folder = tmp_path_factory.mktemp("complete")
    (folder / "new.json").write_text('{"vhosts": [{"name": "complete"}]}')
    for command in ("vhost declare complete", f"queue declare q --type quorum {IN}", f"binding declare amq.topic q {IN}", "user declare tagless --new-password secret",
                    f"permission set tagless --configure .* --write .* --read .* {IN}", "user declare one --new-password p", "parameter set one 1",
                    f"policy declare p --pattern ^none --set max-length=5 {IN}", f"operator-policy declare o --pattern ^none --set max-length=5 --apply-to queues {IN}"):
        run(*command.split())
    yield {"folder": str(folder), "definitions": str(folder / "new.json")}
    admin_cluster.heal()
    for command in ("vhost delete complete --yes", "user delete one --yes", "user delete tagless --yes", "parameter clear one --yes"):
        run(*command.split())
    run("user", "delete", "gone", "--yes", check=False)


def call(cluster, command, case, told, **options):
    arguments = [word.format(**{"connection": "none", "channel": "none", **told}) for word in case.arguments.split()]
    return cluster.run(*command.split(), *arguments, check=False, **options)


def test_every_command_has_a_case(commands):
    assert {" ".join(command) for command in commands} == set(CASES)


@pytest.mark.parametrize("command", CASES)
def test_a_command_is_refused_to_who_may_nothing(cluster, told, command):
    case = CASES[command]
    result = call(cluster, command, case, told, environment={"WARREN_USER": "tagless", "WARREN_PASSWORD": "secret"})
    assert result.returncode == case.nobody, result
    if case.nobody == NOPERM:
        assert "user 'tagless'" in result.stderr and not result.stdout, result


@pytest.mark.parametrize("command", CASES)
def test_a_command_that_is_written_wrongly(admin_cluster, command):
    result = admin_cluster.run(*command.split(), "--bogus-option", check=False)
    assert result.returncode == USAGE and result.stderr and not result.stdout


def wait(check, what):
    deadline = time.monotonic() + 30
    while not (found := check()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module", params=[signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
def down(request, admin_cluster, told):
    """The cluster while node3 is down, or hangs and is taken for down, with a connection that is open."""
    admin_cluster.heal()
    connection = admin_cluster[1].connect()
    connection.channel()
    admin_cluster[3].signal(request.param)
    if request.param == signal.SIGKILL:
        admin_cluster[3].kill()
    node = admin_cluster[1]

    def settled():
        ring = node.get("ring").json
        return not any(m["up"] for m in ring["members"] if m["name"] == "node3") and all(owner in ("node1", "node2") for owner in ring["owners"])

    wait(settled, "the others lead all shards")
    [name] = wait(lambda: [c["name"] for c in node.get("connections").json], "the connection is listed")
    yield admin_cluster, {**told, "connection": name, "channel": f"{name} (1)"}
    admin_cluster.close_connections()
    admin_cluster.heal()


@pytest.mark.parametrize("command", CASES)
def test_a_node_that_is_down_does_not_delay_a_command(down, command):
    cluster, told = down
    case = CASES[command]
    for first in case.first:
        cluster.run(*first.split())
    begun = time.monotonic()
    result = call(cluster, command, case, told)
    took = time.monotonic() - begun
    assert result.returncode == case.code, result
    assert took < SECONDS_MAX, (took, result)
