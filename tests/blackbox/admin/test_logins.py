"""Passwords: Argon2id for those that are set here, RabbitMQ's hashes as they are, changes that hold at once, and a burst of logins."""

from __future__ import annotations

import base64
import hashlib
import http.client
import threading
import time

import pika
import pytest

ARGON2ID = "$argon2id$v=19$m=19456,t=2,p=1$"


@pytest.fixture
def user(cluster):
    """A user who may use the API and everything in vhost /."""
    allow(cluster[1], "someone", {"password": "first", "tags": "management"})
    yield cluster
    cluster.close_connections()
    cluster[1].delete("users/someone")


def allow(node, name: str, body: dict) -> None:
    assert node.put(f"users/{name}", body) in (201, 204)
    assert node.put(f"permissions/%2F/{name}", {"configure": ".*", "write": ".*", "read": ".*"}) in (201, 204)


def enters(node, password: str, name: str = "someone") -> bool:
    """Whether a login over AMQP is accepted."""
    try:
        node.connect(name, password).close()
        return True
    except pika.exceptions.ProbableAuthenticationError:
        return False


def test_passwords_are_hashed_with_argon2id(user):
    shown = user[2].get("users/someone").json
    assert shown["hashing_algorithm"] == "argon2id" and shown["password_hash"].startswith(ARGON2ID)
    assert enters(user[2], "first") and not enters(user[2], "First") and not enters(user[2], "")
    assert user[3].get("whoami", user="someone", password="first").json["name"] == "someone"
    assert user[3].get("whoami", user="someone", password="other").status == 401
    guest = user[1].get("users/guest").json
    assert guest["password_hash"].startswith(ARGON2ID)


def test_a_change_holds_at_once_everywhere(user):
    for node in user.nodes:
        assert node.get("whoami", user="someone", password="first").status == 200
    assert user[2].put("users/someone", {"password": "second", "tags": "management"}) == 204
    for node in user.nodes:
        assert node.get("whoami", user="someone", password="first").status == 401, "it was right a moment ago"
        assert not enters(node, "first") and enters(node, "second")
        assert node.get("whoami", user="someone", password="second").status == 200
    # Without a password, nothing changes about it; with an empty one, nobody logs in.
    assert user[1].put("users/someone", {"tags": "monitoring"}) == 204
    assert user[3].get("overview", user="someone", password="second").status == 200
    assert user[1].put("users/someone", {"password": "", "tags": "monitoring"}) == 204
    assert user[3].get("overview", user="someone", password="").status == 401
    assert user[3].get("overview", user="someone", password="second").status == 401
    assert user[1].put("users/someone", {"password": "second", "tags": "monitoring"}) == 204
    assert user[2].get("overview", user="someone", password="second").status == 200
    assert user[1].delete("users/someone") == 204
    for node in user.nodes:
        assert node.get("overview", user="someone", password="second").status == 401


@pytest.mark.parametrize("algorithm, make", [("rabbit_password_hashing_sha256", hashlib.sha256), ("rabbit_password_hashing_sha512", hashlib.sha512)])
def test_rabbitmqs_hashes_are_taken_as_they_are(user, algorithm, make):
    salt = b"salt"
    encoded = base64.b64encode(salt + make(salt + b"rabbit").digest()).decode()
    body = {"users": [{"name": "someone", "tags": ["management"], "password_hash": encoded, "hashing_algorithm": algorithm}]}
    assert user[1].ask("POST", "definitions", body).status == 204
    shown = user[2].get("users/someone").json
    assert (shown["password_hash"], shown["hashing_algorithm"]) == (encoded, algorithm)
    assert enters(user[2], "rabbit") and not enters(user[2], "first")
    assert user[3].get("whoami", user="someone", password="rabbit").status == 200


def test_hashes_of_warrenctl_and_of_exports(user):
    hashed = user.run("password", "hash", text="third\n").stdout.strip()
    assert hashed.startswith(ARGON2ID)
    user.run("user", "declare", "someone", "--tags", "management", "--password-hash", hashed)
    assert enters(user[3], "third") and not enters(user[3], "first")
    exported = user[1].get("definitions").json
    kept = [u for u in exported["users"] if u["name"] == "someone"]
    assert kept[0]["password_hash"] == hashed
    assert user[1].delete("users/someone") == 204
    assert user[1].ask("POST", "definitions", {"users": kept, "permissions": [p for p in exported["permissions"] if p["user"] == "someone"]}).status == 204
    assert enters(user[2], "third")
    body = {"users": [{"name": "someone", "tags": "", "password": "plain"}]}
    assert user[1].ask("POST", "definitions", body).status == 204
    assert enters(user[2], "plain")
    old = user.run("password", "hash", "--algorithm", "sha256", text="x\n").stdout.strip()
    assert len(base64.b64decode(old)) == 36
    dear = "$argon2id$v=19$m=9999999,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4"
    answer = user[1].ask("PUT", "users/someone", {"tags": "", "password_hash": dear})
    assert answer.status == 400 and "costs too much" in answer.json["reason"]


def test_a_burst_of_logins_does_not_stall_the_node(user):
    node = user[1]
    channel = node.connect().channel()
    channel.confirm_delivery()
    channel.queue_declare("burst", exclusive=True)
    verdicts: list[int] = []

    def attack(number: int) -> None:
        verdicts.append(node.get("whoami", user="someone", password=f"wrong {number}", timeout=60).status)

    threads = [threading.Thread(target=attack, args=(number,)) for number in range(80)]
    for thread in threads:
        thread.start()
    slowest, published = 0.0, 0
    while any(thread.is_alive() for thread in threads):
        started = time.monotonic()
        channel.basic_publish("", "burst", b"x", mandatory=True)
        slowest, published = max(slowest, time.monotonic() - started), published + 1
    assert verdicts == [401] * 80
    assert published > 20, "all the while messages are confirmed"
    assert slowest < 1.0, f"a confirm took {slowest} s"
    assert node.get("whoami", user="someone", password="first").status == 200


def test_who_fails_too_often_is_refused_unseen(new_cluster, eventually):
    """From one source, over AMQP and HTTP together; other sources are not concerned, and after a while the first may try again."""
    cluster = new_cluster(1, "login_failures_per_minute = 30")
    node = cluster[1]
    try:
        cluster.start()
        allow(node, "someone", {"password": "right", "tags": "management"})
        assert enters(node, "right") and node.get("whoami", user="someone", password="right").status == 200
        assert not any(enters(node, f"wrong {number}") for number in range(5)), "over AMQP"
        started = time.monotonic()
        for number in range(30):
            assert node.get("whoami", user="someone", password=f"wrong {number}").status == 401
        assert node.get("whoami", user="someone", password="right").status == 401, "the right one is refused, too"
        assert node.get("whoami").status == 401 and not enters(node, "right"), "and other users, and AMQP"
        assert time.monotonic() - started < 20, "it was not just slow"
        assert "too many" in node.log(), "the log says why"
        connection = http.client.HTTPConnection("127.0.0.1", node.http, timeout=10, source_address=("127.0.0.9", 0))
        secret = base64.b64encode(b"someone:right").decode()
        connection.request("GET", "/api/whoami", headers={"Authorization": f"Basic {secret}"})
        assert connection.getresponse().status == 200, "another source is let in"
        connection.close()
        eventually(lambda: node.get("whoami", user="someone", password="right").status == 200, "after a while the first may try again", 30)
    finally:
        cluster.stop()
