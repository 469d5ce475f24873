"""What operators do with warrenctl beside changing definitions: watch, profiles, certificates, logs, nodes that join, who leads a queue."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

OK, USAGE, DATA, UNAVAILABLE, NOPERM, CONFIG, OUTPUT = 0, 64, 65, 69, 77, 78, 74


def environment(cluster, node=1, **more):
    env = {key: value for key, value in os.environ.items() if not key.startswith("WARREN_")}
    return {**env, "WARREN_URL": f"http://127.0.0.1:{cluster[node].http}", **more}


class Running:
    """A command that goes on until it is interrupted, and what it has printed so far."""

    def __init__(self, cluster, tmp_path, *arguments, node=1):
        self.out, self.err = tmp_path / "out", tmp_path / "err"
        self.process = subprocess.Popen([str(cluster.ctl), *arguments], env=environment(cluster, node), stdin=subprocess.DEVNULL,
                                        stdout=self.out.open("wb"), stderr=self.err.open("wb"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            # Not SIGINT: whoever runs the tests in the background of a shell has it ignored.
            self.process.terminate()
            self.process.wait(10)

    def printed(self):
        return self.out.read_text()


# --- watch ---

def test_what_is_watched_is_shown_again_as_it_changes(cluster, tmp_path, eventually):
    cluster.run("vhost", "declare", "watched")
    try:
        with Running(cluster, tmp_path, "queue", "list", "--vhost", "watched", "--columns", "name", "--watch", "0.2") as watch:
            eventually(lambda: watch.printed().count("name") >= 2, "it is shown twice")
            assert "seen" not in watch.printed()
            cluster.run("queue", "declare", "seen", "--vhost", "watched")
            eventually(lambda: "seen" in watch.printed(), "the new queue is shown")
            assert watch.process.poll() is None and "\x1b" not in watch.printed(), "no control sequences where nobody sees them"
    finally:
        cluster.run("vhost", "delete", "watched", "--yes")


def test_watching_outlives_a_node_that_is_away(cluster, tmp_path, eventually):
    with Running(cluster, tmp_path, "vhost", "list", "--watch", "0.2", node=2) as watch:
        eventually(lambda: "/" in watch.printed(), "it is shown")
        cluster[2].kill()
        eventually(lambda: "cannot reach" in watch.err.read_text(), "the failure is told")
        seen = len(watch.printed())
        cluster.heal()
        eventually(lambda: len(watch.printed()) > seen, "it goes on")


def test_what_changes_things_is_not_watched(cluster):
    for arguments in (("queue", "declare", "q"), ("message", "get", "q"), ("definitions", "export"), ("cluster", "drain", "node1")):
        refused = cluster.run(*arguments, "--watch", "1", check=False)
        assert refused.returncode == USAGE and "--watch" in refused.stderr, refused
    for wrong in ("0", "-1", "x", "0.01"):
        assert cluster.run("queue", "list", f"--watch={wrong}", check=False).returncode == USAGE


def test_a_watcher_ends_when_nobody_reads(cluster):
    ctl = subprocess.Popen([str(cluster.ctl), "vhost", "list", "--watch", "0.1"], env=environment(cluster), stdout=subprocess.PIPE)
    assert ctl.stdout and ctl.stdout.readline()
    ctl.stdout.close()
    assert ctl.wait(20) == OK


# --- profiles ---

@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home/.config/warren"
    folder.mkdir(parents=True)
    return folder


def profiles(home: Path, text: str, mode: int = 0o600):
    file = home / "profiles.toml"
    file.write_text(text)
    file.chmod(mode)


def without_url(cluster, home, *arguments, **more):
    env = {key: value for key, value in os.environ.items() if not key.startswith(("WARREN_", "XDG_"))}
    env["HOME"] = str(home.parent.parent)
    return subprocess.run([str(cluster.ctl), *arguments], env={**env, **more}, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)


def test_a_profile_says_whom_to_ask_and_as_whom(cluster, home):
    cluster.run("user", "declare", "prof", "--tags", "monitoring", "--password-stdin", text="s3cret\n")
    try:
        url = f"http://127.0.0.1:{cluster[3].http}"
        secret = home / "secret"
        secret.write_text("s3cret\n")
        secret.chmod(0o600)
        profiles(home, f'[default]\nurl = "{url}"\n\n[shop]\nurl = "{url}"\nuser = "prof"\npassword_file = "secret"\n')
        assert "/" in without_url(cluster, home, "vhost", "list").stdout
        named = without_url(cluster, home, "node", "list", "--profile", "shop")
        assert named.returncode == OK and "node1" in named.stdout, named.stderr
        assert without_url(cluster, home, "user", "list", "--profile", "shop").returncode == NOPERM, "it asks as that user"
        by_environment = without_url(cluster, home, "user", "list", WARREN_PROFILE="shop", WARREN_USER="guest", WARREN_PASSWORD="guest")
        assert by_environment.returncode == OK, "the environment goes before the profile"
        assert without_url(cluster, home, "vhost", "list", "--profile", "shop", "--url", "http://127.0.0.1:1").returncode == UNAVAILABLE
        elsewhere = home / "other.toml"
        shutil.copy(home / "profiles.toml", elsewhere)
        assert without_url(cluster, home, "node", "list", "--profiles", str(elsewhere), "--profile", "shop").returncode == OK
    finally:
        cluster.run("user", "delete", "prof", "--yes")


@pytest.mark.parametrize("text, mode, said", [
    ('[other]\nurl = "x"\n', 0o600, "no profile 'shop'"), ("[shop", 0o600, "profiles.toml"), ('[shop]\nurll = "x"\n', 0o600, "urll"),
    ('[shop]\npassword = "p"\n', 0o644, "chmod 600"), ('[shop]\npassword_file = "none"\n', 0o600, "none"), ('[shop]\nurl = "ftp://x"\n', 0o600, "ftp://x"),
])
def test_a_profile_that_is_no_use_is_told(cluster, home, text, mode, said):
    profiles(home, text, mode)
    result = without_url(cluster, home, "vhost", "list", "--profile", "shop")
    assert result.returncode == CONFIG and said in result.stderr, result


def test_a_profile_that_is_asked_for_must_be_there(cluster, home):
    result = without_url(cluster, home, "vhost", "list", "--profile", "shop")
    assert result.returncode == CONFIG and "no profile 'shop'" in result.stderr


# --- certificates ---

def test_certificates_that_are_generated_link_a_cluster_and_serve_clients(cluster, tmp_path, new_cluster):
    folder = tmp_path / "made"
    made = cluster.run("cert", "generate", "node1", "node2", "--folder", str(folder), "--host", "localhost", "--host", "127.0.0.1")
    assert made.stdout.splitlines() == [f"made {folder}/node1.pem", f"made {folder}/node2.pem"]
    assert {f.name for f in folder.iterdir()} == {"ca.pem", "ca.key", "node1.pem", "node1.key", "node2.pem", "node2.key"}
    for secret in ("ca.key", "node1.key"):
        assert (folder / secret).stat().st_mode & 0o777 == 0o600
    again = cluster.run("cert", "generate", "node2", "node3", "--folder", str(folder))
    assert again.stdout.splitlines() == [f"kept {folder}/node2.pem", f"made {folder}/node3.pem"]
    other = new_cluster(2)
    try:
        for name in ("node1", "node2"):
            for ending in ("pem", "key"):
                shutil.copy(folder / f"{name}.{ending}", other.certificates.path(f"{name}.{ending}"))
        for ending in ("pem", "key"):
            shutil.copy(folder / f"node1.{ending}", other.certificates.path(f"server.{ending}"))
        shutil.copy(folder / "ca.pem", other.certificates.path("links.pem"))
        other.start()
        other.run("cluster", "await-ready", "--nodes", "2", "--timeout", "60")
        url = {"WARREN_URL": f"https://localhost:{other[1].https}"}
        assert "/" in other.run("vhost", "list", "--ca", str(folder / "ca.pem"), environment=url).stdout
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        with socket.create_connection(("127.0.0.1", other[1].amqps)) as plain:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
                assert secure.version()
    finally:
        other.stop()


def test_certificates_that_cannot_be_made(cluster, tmp_path):
    for bad in ("a/b", "..", "ca", ""):
        assert cluster.run("cert", "generate", bad, "--folder", str(tmp_path), check=False).returncode == USAGE
    assert cluster.run("cert", "generate", check=False).returncode == USAGE
    assert cluster.run("cert", "generate", "nöde", "--folder", str(tmp_path / "f"), check=False).returncode == DATA
    assert cluster.run("cert", "generate", "n", "--folder", "/proc/none", check=False).returncode == OUTPUT
    (tmp_path / "ca.pem").write_text("spoilt")
    (tmp_path / "ca.key").write_text("spoilt")
    spoilt = cluster.run("cert", "generate", "n", "--folder", str(tmp_path), check=False)
    assert spoilt.returncode == DATA and "remove that folder" in spoilt.stderr


# --- logs ---

def test_the_last_lines_of_a_log(cluster, tmp_path, eventually):
    def lines(text):
        # Each takes the time when it is written.
        return [line.split(" ", 1)[-1] for line in text.splitlines()]

    tail = lines(cluster.run("log", "tail", "--lines", "20").stdout)
    assert len(tail) == 20 and set(tail) <= set(lines(cluster[1].log()))
    assert len(cluster.run("log", "tail", "--lines", "1").stdout.splitlines()) <= 1
    node2 = json.loads(cluster.run("log", "tail", "--node", "node2", "--output", "json", "--lines", "1").stdout)
    assert lines(node2["text"])[0] in cluster[2].log()
    with Running(cluster, tmp_path, "log", "tail", "--follow", "--lines", "1") as follow:
        eventually(follow.printed, "a first line")
        before = len(follow.printed().splitlines())
        cluster[3].kill()
        eventually(lambda: any("node3" in line for line in follow.printed().splitlines()[before:]), "what happens is shown as it happens", 30)
        lines = follow.printed().splitlines()
        assert len(lines) == len(set(lines)), "each once"
    cluster.heal()


def test_logs_by_the_api(cluster):
    node = cluster[1]
    answer = node.get("log", query={"limit": "3"}).json
    assert answer["node"] == "node1" and 1 <= len(answer["lines"]) <= 3 and answer["lost"] == 0
    first = answer["lines"][0]["number"]
    assert answer["next"] == answer["lines"][-1]["number"] + 1
    assert node.get("log", query={"since": str(first), "limit": "1"}).json["lines"] == answer["lines"][:1]
    for bad in ({"since": "x"}, {"limit": "-1"}, {"since": "-1"}):
        assert node.get("log", query=bad).status == 400
    for tags in ("", "management", "policymaker", "monitoring"):
        assert node.put("users/looker", {"password": "p", "tags": tags}) in (201, 204)
        assert node.get("log", user="looker", password="p").status == 401
    assert node.delete("users/looker") == 204
    assert cluster.run("log", "tail", "--node", "none", check=False).returncode == DATA
    assert cluster.run("log", "tail", "--lines", "0", check=False).returncode == USAGE
    assert cluster.run("log", "tail", environment={"WARREN_PASSWORD": "wrong"}, check=False).returncode == NOPERM


# --- joining ---

def test_a_node_joins_with_the_configuration_that_is_written_for_it(new_cluster, tmp_path):
    from ports import free_ports

    own = new_cluster(1)
    process = None
    try:
        own.start()
        amqp, http, links = free_ports(3)
        shutil.copy(own.certificates.path("links.pem"), own.certificates.path("ca.pem"))
        own.certificates.issue("node2", "/CN=node2", "links", ["DNS:warren-node", "DNS:node2"])
        file = tmp_path / "node2.toml"
        wanted = ("cluster", "join", "node2", "--address", f"127.0.0.1:{links}", "--amqp", f"127.0.0.1:{amqp}", "--http", f"127.0.0.1:{http}",
                  "--data-dir", str(tmp_path / "data"), "--certificates", str(own.certificates.directory), "--out", str(file))
        written = own.run(*wanted)
        assert "cert generate node2" in written.stderr and "await-ready --nodes 2" in written.stderr
        again = own.run(*wanted, check=False)
        assert again.returncode == OUTPUT and "exists" in again.stderr, "what is there is not overwritten"
        log = (tmp_path / "node2.log").open("wb")
        process = subprocess.Popen([str(own.binary), "--config", str(file)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=tmp_path)
        own.run("cluster", "await-ready", "--nodes", "2", "--timeout", "60")
        assert sorted(m["name"] for m in own[1].get("cluster").json["members"] if m["up"]) == ["node1", "node2"]
        taken = own.run("cluster", "join", "node2", "--address", "127.0.0.1:9", check=False)
        assert taken.returncode == DATA and "is up in this cluster already" in taken.stderr
        same = own.run("cluster", "join", "node3", "--address", f"127.0.0.1:{links}", check=False)
        assert same.returncode == DATA and "'node2'" in same.stderr
        printed = own.run("cluster", "join", "node3", "--address", "127.0.0.1:9")
        assert 'name = "node3"' in printed.stdout and "node2" in printed.stdout
        for wrong in (("cluster", "join", "node3"), ("cluster", "join", "node3", "--address", "nowhere")):
            assert own.run(*wrong, check=False).returncode == USAGE
    finally:
        if process:
            process.terminate()
            process.wait(20)
        own.stop()


# --- replicas ---

def test_leadership_of_a_queue_goes_to_the_replica_that_is_named(cluster, eventually):
    node = cluster[1]
    assert node.put("queues/%2F/led", {"durable": True, "arguments": {"x-queue-type": "quorum"}}) in (201, 204)
    try:
        status = eventually(lambda: (lambda s: s if s["leader"] else None)(json.loads(cluster.run("queue", "quorum-status", "led", "--output", "json").stdout)), "a leader")
        assert {r["node"] for r in status["replicas"]} == {"node1", "node2", "node3"}
        assert [r["node"] for r in status["replicas"] if r["state"] == "leader"] == [status["leader"]]
        assert all(isinstance(r["last_index"], int) for r in status["replicas"]), "the leader knows how far each is"
        before = status["leader"]
        to = next(r["node"] for r in status["replicas"] if r["node"] != before)
        cluster.run("queue", "transfer-leader", "led", to, "--wait", "--timeout", "50")
        table = cluster.run("queue", "quorum-status", "led", node=2).stdout
        assert f"leader {to}, preferred leader {to}" in table and "follower" in table
        assert f"leader {to}" in cluster.run("quorum_status", "led").stdout
        eventually(lambda: node.get("queues/%2F/led").json["node"] == to, "lists show it")
        channel = node.connect().channel()
        channel.confirm_delivery()
        channel.basic_publish("", "led", b"x", mandatory=True)
        assert channel.basic_get("led", auto_ack=True)[2] == b"x"
        cluster.run("queue", "transfer-leader", "led", before, "--wait", "--timeout", "50")
    finally:
        assert node.delete("queues/%2F/led") == 204


def test_a_rebalance_brings_leaderships_home(cluster, eventually):
    """What was given to another node goes back to the one that the ring prefers, with RabbitMQ's route and with warrenctl."""
    node = cluster[1]
    assert node.put("queues/%2F/led", {"durable": True}) in (201, 204)

    def ring():
        return node.get("ring").json

    def leader():
        return json.loads(cluster.run("queue", "quorum-status", "led", "--output", "json").stdout)["leader"]

    def give():
        status = json.loads(cluster.run("queue", "quorum-status", "led", "--output", "json").stdout)
        to = next(r["node"] for r in status["replicas"] if r["node"] != home)
        cluster.run("queue", "transfer-leader", "led", to, "--wait", "--timeout", "50")
        return status["shard"], to

    try:
        eventually(lambda: not ring()["moves"], "preferred leaders lead", 60)
        cluster.run("ring", "rebalance", "--wait")
        assert "nothing moves" in cluster.run("ring", "plan").stdout
        assert json.loads(cluster.run("ring", "plan", "--output", "json").stdout) == []
        home = leader()
        for rebalance in (lambda: cluster.run("ring", "rebalance", "--wait", "--timeout", "50", node=3),
                          lambda: node.ask("POST", "rebalance/queues", b"").status == 204 or pytest.fail("not 204")):
            shard, to = give()
            given = {"shard": shard, "what": "leadership", "from": to, "to": home}
            assert ring()["given"] == [given] and ring()["moves"] == []
            plan = json.loads(cluster.run("ring", "plan", "--output", "json", node=2).stdout)
            assert plan == [{**given, "when": "with a rebalance"}]
            assert "with a rebalance" in cluster.run("ring", "plan").stdout
            rebalance()
            eventually(lambda: leader() == home, "it is led at home", 30)
            assert ring()["given"] == []
        shard, to = give()
        number = next(n.number for n in cluster.nodes if n.name == home)
        cluster[number].kill()
        other = cluster[number % 3 + 1]
        eventually(lambda: not other.get(f"nodes/{home}").json["running"] and all(m["up"] == (m["name"] != home) for m in other.get("cluster").json["members"]), "it is down")

        def stays():
            """It is shown as down as soon as it is silent, and is no home to go to once the cluster has marked it down."""
            cluster.run("queue", "transfer-leader", "led", to, node=other.number)
            assert other.ask("POST", "rebalance/queues", b"").status == 204
            return other.get("ring").json["placements"][shard]["preferred_leader"] == to

        eventually(stays, "it stays where it was given to: its home is down")
        cluster.heal()
        cluster.run("ring", "rebalance", "--wait", "--timeout", "50")
        assert leader() == home
    finally:
        cluster.heal()
        node.delete("queues/%2F/led")


def test_a_rebalance_that_is_refused(cluster, eventually):
    """Administrators alone; and nothing without a majority."""
    assert cluster[1].put("users/looker", {"password": "p", "tags": "monitoring"}) in (201, 204)
    try:
        looker = {"WARREN_USER": "looker", "WARREN_PASSWORD": "p"}
        assert cluster.run("ring", "plan", environment=looker).returncode == OK
        assert cluster.run("ring", "rebalance", environment=looker, check=False).returncode == NOPERM
        assert cluster.run("ring", "rebalance", "node1", check=False).returncode == USAGE
        assert cluster.run("ring", "plan", "--bogus", check=False).returncode == USAGE
        cluster[2].kill()
        cluster[3].kill()
        eventually(lambda: cluster.run("ring", "rebalance", check=False).returncode == UNAVAILABLE, "its table may be old")
    finally:
        cluster.heal()
        cluster[1].delete("users/looker")


def test_leadership_that_cannot_go_there(cluster):
    node = cluster[1]
    assert node.put("queues/%2F/led", {"durable": True}) in (201, 204)
    assert node.put("queues/%2F/fleeting", {"durable": False}) in (201, 204)
    try:
        for arguments in (("transfer-leader", "led", "none"), ("transfer-leader", "none", "node1"), ("transfer-leader", "fleeting", "node1"),
                          ("quorum-status", "none"), ("quorum-status", "fleeting"), ("grow", "none"), ("shrink", "none")):
            assert cluster.run("queue", *arguments, "--yes", check=False).returncode == DATA, arguments
        for verb in ("transfer-leader", "quorum-status", "grow", "shrink"):
            assert cluster.run("queue", verb, check=False).returncode == USAGE
        cluster[3].kill()
        down = cluster.run("queue", "transfer-leader", "led", "node3", check=False)
        # Until it is marked down it may be named, and is not given anything before it is back.
        assert down.returncode in (OK, DATA)
        deadline = time.monotonic() + 20
        while (down := cluster.run("queue", "transfer-leader", "led", "node3", check=False)).returncode != DATA:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "is down" in down.stderr
        states = {r["node"]: r["state"] for r in json.loads(cluster.run("queue", "quorum-status", "led", "--output", "json").stdout)["replicas"]}
        assert states["node3"] == "down"
        cluster.heal()
        assert node.put("users/looker", {"password": "p", "tags": "monitoring"}) in (201, 204)
        assert node.get("queues/quorum/%2F/led/status", user="looker", password="p").status == 200
        assert node.ask("PUT", "queues/quorum/%2F/led/leader", {"node": "node1"}, user="looker", password="p").status == 401
        for body in (b"{", {}, {"node": 5}):
            assert node.ask("PUT", "queues/quorum/%2F/led/leader", body).status == 400
        node.delete("users/looker")
    finally:
        node.delete("queues/%2F/led")
        node.delete("queues/%2F/fleeting")


def test_growing_and_shrinking_are_reviving_and_draining(new_cluster, eventually):
    own = new_cluster(3)
    try:
        own.start()
        own.run("cluster", "await-ready", "--nodes", "3", "--timeout", "60")
        own.run("queue", "shrink", "node3", "--yes", "--wait", "--timeout", "50")
        assert all("node3" not in p["replicas"] for p in own[1].get("ring").json["placements"])
        own.run("queue", "grow", "node3", "--wait", "--timeout", "50")
        assert all("node3" in p["replicas"] for p in own[1].get("ring").json["placements"])
    finally:
        own.stop()


def test_a_node_is_drained_when_it_is_meant(cluster):
    for command in (("cluster", "drain", "node3"), ("queue", "shrink", "node3")):
        for answer in ("n\n", ""):
            unsure = cluster.run(*command, text=answer, check=False)
            assert unsure.returncode == USAGE and "nothing was done" in unsure.stderr and "--yes" in unsure.stderr, unsure
    assert not any(m["draining"] for m in cluster[1].get("cluster").json["members"])


def test_an_import_that_changes_what_is_there_asks(cluster, tmp_path):
    file = tmp_path / "d.json"
    hashed = cluster.run("password", "hash", "second").stdout.strip()
    cluster.run("user", "declare", "imported", "--new-password", "first", "--tags", "management")
    try:
        # What is new, and what is there just so, is no question.
        file.write_text(json.dumps({"vhosts": [{"name": "imported"}], "users": [cluster[1].get("users/imported").json]}))
        cluster.run("definitions", "import", str(file))
        file.write_text(json.dumps({"users": [{"name": "imported", "password_hash": hashed, "tags": ["management"]}]}))
        for answer in ("n\n", ""):
            unsure = cluster.run("definitions", "import", str(file), text=answer, check=False)
            assert unsure.returncode == USAGE and "1 users" in unsure.stderr and "--yes" in unsure.stderr, unsure
        cluster.run("authenticate_user", "imported", "first")
        cluster.run("definitions", "import", str(file), text="y\n")
        cluster.run("authenticate_user", "imported", "second")
        cluster.run("change_password", "imported", "third")
        assert cluster.run("definitions", "import", "-", text=file.read_text(), check=False).returncode == USAGE, "nobody can be asked"
        cluster.run("definitions", "import", "-", "--yes", text=file.read_text())
        cluster.run("authenticate_user", "imported", "second")
    finally:
        cluster.run("user", "delete", "imported", "--yes")
        cluster.run("vhost", "delete", "imported", "--yes")


# --- mistakes ---

@pytest.mark.parametrize("arguments, said", [
    (("queue", "lst"), "list"), (("quee", "list"), "queue"), (("queue", "list", "--vhsot", "x"), "--vhost"), (("list_queus",), "list_queues"),
    (("check", "alarm"), "did you mean 'alarms'?"), (("check", "port-listener"), "port-listener PORT"), (("queue", "list", "--output", "jsn"), "json"),
    (("queue", "list", "--columns", "nmae"), "'name'"), (("connection", "list", "--sort=-usr"), "'user'"), (("node", "list", "--columns", "name,uptme"), "'uptime'"),
    (("permission", "list", "--columns", "usr", "--output", "json"), "'user'"), (("completions", "bsh"), "bash"), (("limit", "set", "max-queue", "1", "--vhost", "/"), "max-queues"),
])
def test_mistakes_get_suggestions(cluster, arguments, said):
    result = cluster.run(*arguments, check=False)
    assert result.returncode == USAGE and said in result.stderr, result.stderr


def test_columns_that_no_row_has_now_are_columns_all_the_same(cluster):
    cluster.run("vhost", "declare", "bare")
    try:
        for list_, columns in (("queue", "name,policy,message_stats.publish,arguments.x-max-length,state"), ("exchange", "name,policy"), ("connection", "user_provided_name,ssl_protocol"),
                               ("channel", "state,connection_details.name"), ("consumer", "arguments.x-priority,activity_status"), ("binding", "properties_key")):
            result = cluster.run(list_, "list", "--vhost", "bare", "--columns", columns, "--output", "csv")
            assert result.stdout.splitlines()[0] == columns, result
    finally:
        cluster.run("vhost", "delete", "bare", "--yes")


@pytest.mark.parametrize("check", ["alarms", "local-alarms", "certificate-expiration 1 days", "protocol-listener amqp", "virtual-hosts", "node-is-quorum-critical",
                                   "node-is-mirror-sync-critical", "below-node-connection-limit", "ready-to-serve-clients", "is-in-service",
                                   "metadata-store initialized", "metadata-store initialized with-data"])
def test_every_check(cluster, check):
    assert "ok" in cluster.run("check", *check.split()).stdout


def test_a_check_that_fails_says_so(cluster, eventually):
    cluster[2].kill()
    eventually(lambda: cluster.run("check", "node-is-quorum-critical", check=False).returncode == UNAVAILABLE, "two of three are critical")
    assert cluster.run("check", "port-listener", "1", check=False).returncode == UNAVAILABLE
    assert cluster.run("check", "port-listener", str(cluster[1].amqp)).returncode == OK


# --- waiting ---

def test_a_cluster_that_has_just_been_started_is_waited_for(new_cluster):
    """From the first moment on: nobody answers, then nobody can log in, then it is ready."""
    own = new_cluster(3)
    try:
        for node in own.nodes:
            node.start()
        waited = own.run("cluster", "await-ready", "--nodes", "3", "--timeout", "60")
        assert "the cluster is ready" in waited.stderr
        assert own.run("list_users").returncode == OK
    finally:
        own.stop()


def test_a_node_that_is_down_takes_its_share_when_it_is_back(cluster):
    """`revive --wait` does not say that all is done before the node is there."""
    cluster.run("cluster", "drain", "node3", "--yes", "--wait", "--timeout", "50")
    cluster[3].stop()
    try:
        early = cluster.run("cluster", "revive", "node3", "--wait", "--timeout", "2", check=False)
        assert early.returncode == UNAVAILABLE and "is down" in early.stderr
        cluster.heal()
        cluster.run("cluster", "revive", "node3", "--wait", "--timeout", "50")
        ring = cluster[1].get("ring").json
        assert not ring["moves"] and any(m["name"] == "node3" and m["shards_owned"] for m in ring["members"])
    finally:
        cluster.heal()
        cluster.run("cluster", "revive", "node3")


# --- looking at the cluster ---

def test_status_and_ring_show_a_node_that_is_down(cluster, eventually):
    status = cluster.run("cluster", "status").stdout
    assert status.startswith("cluster ") and all(f"node{n}" in status for n in (1, 2, 3))
    assert all(m["up"] for m in json.loads(cluster.run("cluster", "status", "--output", "json").stdout)["members"])
    ring = json.loads(cluster.run("ring", "show", "--output", "json").stdout)
    assert ring["shards"] == 12 and {m["name"] for m in ring["members"]} == {"node1", "node2", "node3"}
    cluster[3].kill()

    def down():
        members = json.loads(cluster.run("cluster", "status", "--output", "json").stdout)["members"]
        return [m["name"] for m in members if not m["up"]] == ["node3"]

    eventually(down, "it is shown as down")
    members = json.loads(cluster.run("ring", "show", "--output", "json").stdout)["members"]
    assert [m["name"] for m in members if not m["up"]] == ["node3"]
    assert "node3" in cluster.run("ring", "show").stdout
    for command in (("cluster", "status"), ("ring", "show"), ("routing", "digest")):
        refused = cluster.run(*command, environment={"WARREN_PASSWORD": "wrong"}, check=False)
        assert refused.returncode == NOPERM, command
    dead = cluster.run("cluster", "status", node=3, check=False)
    assert dead.returncode == UNAVAILABLE and "WARREN_URL" in dead.stderr


def test_routing_is_proven_and_explained(cluster):
    digest = cluster.run("routing", "digest")
    assert all(f"node{n}" in digest.stdout for n in (1, 2, 3))
    cluster.run("queue", "declare", "explained")
    try:
        cluster.run("binding", "declare", "amq.topic", "explained", "--key", "orders.#")
        why = cluster.run("routing", "explain", "amq.topic", "orders.eu.new").stdout
        assert "explained" in why and "orders.#" in why
        assert "explained" in cluster.run("routing", "explain", "amq.topic", "bills", "--output", "json").stdout, "bindings that do not match are shown, too"
        assert "no exchange 'none' in vhost '/'" in cluster.run("routing", "explain", "none", "k").stdout
        assert cluster.run("routing", "explain", check=False).returncode == USAGE
    finally:
        cluster.run("queue", "delete", "explained", "--yes")


def test_a_queue_is_purged_when_it_is_meant(cluster):
    cluster.run("queue", "declare", "purged")
    try:
        cluster.run("message", "publish", "--key", "purged", "--payload", "x")
        unsure = cluster.run("queue", "purge", "purged", text="n\n", check=False)
        assert unsure.returncode == USAGE and "nothing was done" in unsure.stderr
        assert "x" in cluster.run("message", "get", "purged").stdout
        cluster.run("queue", "purge", "purged", text="y\n")
        assert "x" not in cluster.run("message", "get", "purged").stdout.split()
        assert cluster.run("queue", "purge", "none", "--yes", check=False).returncode == DATA
    finally:
        cluster.run("queue", "delete", "purged", "--yes")


def test_an_operator_policy_is_shown(cluster):
    cluster.run("operator-policy", "declare", "shown", "--pattern", "^none$", "--apply-to", "queues", "--set", "max-length=5")
    try:
        assert json.loads(cluster.run("operator-policy", "show", "shown", "--output", "json").stdout)["definition"] == {"max-length": 5}
        assert cluster.run("operator-policy", "show", "none", check=False).returncode == DATA
    finally:
        cluster.run("operator-policy", "delete", "shown", "--yes")
