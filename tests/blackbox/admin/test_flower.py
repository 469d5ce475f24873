"""Celery's Flower, unchanged: its page of the broker, which asks the management API, beside a worker that works through the broker."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys

import pytest
from ports import free_ports

APPLICATION = """
from celery import Celery
app = Celery("shop", broker={broker!r}, backend="rpc://")
app.conf.task_default_queue = "flower.tasks"
app.conf.worker_hijack_root_logger = False

@app.task(name="double")
def double(number):
    return 2 * number
"""


@pytest.fixture
def celery(cluster, tmp_path):
    """Starts `celery ARGUMENTS…` of an application whose broker is node 2, and ends what it has started."""
    (tmp_path / "shop.py").write_text(APPLICATION.format(broker=f"amqp://guest:guest@127.0.0.1:{cluster[2].amqp}//"))
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "FLOWER_UNAUTHENTICATED_API": "true"}
    started = []

    def start(*arguments):
        log = (tmp_path / f"{arguments[0]}.log").open("wb")
        command = [sys.executable, "-m", "celery", "-A", "shop", *arguments]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    yield start
    for process in started:
        process.terminate()
    for process in started:
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(15)


def ask(port: int, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def get(port: int, path: str):
    status, body = ask(port, "GET", path)
    assert status == 200, body
    return json.loads(body)


def test_flower_shows_the_broker(cluster, celery, eventually, tmp_path):
    cluster[1].put("queues/%2F/flower.tasks", {"durable": True})
    channel = cluster[1].connect().channel()
    for _ in range(3):
        channel.basic_publish("", "flower.tasks", json.dumps([[1], {}, {}]).encode())
    (port,) = free_ports(1)
    celery("flower", f"--port={port}", "--address=127.0.0.1", f"--broker-api=http://guest:guest@127.0.0.1:{cluster[3].http}/api/")
    lengths = eventually(lambda: get(port, "/api/queues/length")["active_queues"], "Flower has asked the management API", 40)
    assert [(q["name"], q["messages"]) for q in lengths] == [("flower.tasks", 3)]
    status, page = ask(port, "GET", "/broker")
    row = " ".join(page.split("<tbody>")[1].split("</tbody>")[0].split())
    assert status == 200 and "flower.tasks" in row and row.count(">3<") == 2, row
    channel.queue_purge("flower.tasks")

    celery("worker", "--pool=solo", "--loglevel=WARNING", "--events")
    eventually(lambda: get(port, "/api/workers?refresh=1"), "Flower sees the worker", 40)
    status, answer = ask(port, "POST", "/api/task/apply/double", json.dumps({"args": [21]}))
    assert (status, json.loads(answer)["result"]) == (200, 42), answer
    def seen():
        return [(queue["name"], queue["messages"], queue["consumers"]) for queue in get(port, "/api/queues/length")["active_queues"]]

    eventually(lambda: seen() == [("flower.tasks", 0, 1)], "Flower counts the worker as a consumer")
    consumers = cluster[1].get("consumers").json
    assert "flower.tasks" in {c["queue"]["name"] for c in consumers}
