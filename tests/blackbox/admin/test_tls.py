"""AMQPS and HTTPS: versions, client certificates, EXTERNAL, and certificates that are replaced under way."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import ssl

import pika
import pytest

HOST = "127.0.0.1"


def connect(cluster, node, context, credentials=None):
    options = pika.SSLOptions(context, "localhost")
    parameters = pika.ConnectionParameters(HOST, node.amqps, ssl_options=options, credentials=credentials or pika.PlainCredentials("guest", "guest"))
    connection = pika.BlockingConnection(parameters)
    cluster.connections.append(connection)
    return connection


def serial(cluster, port):
    """The serial number of the certificate that a port shows."""
    with socket.create_connection((HOST, port), 10) as plain, cluster.client_context().wrap_socket(plain, server_hostname="localhost") as tls:
        return tls.getpeercert()["serialNumber"]


@pytest.mark.parametrize("version, name", [(ssl.TLSVersion.TLSv1_2, "tlsv1.2"), (ssl.TLSVersion.TLSv1_3, "tlsv1.3")])
def test_amqps_speaks_both_versions(cluster, eventually, version, name):
    channel = connect(cluster, cluster[1], cluster.client_context(version=version)).channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    body = bytes(range(256)) * 1000
    channel.basic_publish("", queue, body)
    assert channel.basic_get(queue, auto_ack=True)[2] == body
    rows = [row for row in cluster[2].get("connections").json if row["ssl"]]
    assert [(row["ssl_protocol"], row["port"], row["peer_cert_subject"]) for row in rows] == [(name, cluster[1].amqps, None)]
    assert rows[0]["ssl_cipher"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_and_plain_clients_are_refused_and_disturb_nobody(cluster):
    node = cluster[1]
    with socket.create_connection((HOST, node.amqps), 10) as sock:
        sock.sendall(b"AMQP\x00\x00\x09\x01")
        sock.settimeout(10)
        answer = sock.recv(100)
        assert not answer.startswith(b"AMQP"), answer
    context = cluster.client_context()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection((HOST, node.amqps), 10) as plain, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(plain, server_hostname="localhost")
    connect(cluster, node, cluster.client_context())


def test_a_certificate_logs_in_with_external(cluster):
    node = cluster[1]
    cluster.certificates.issue("alice", "/O=Warren/CN=alice", "clients", [])
    external = pika.credentials.ExternalCredentials()
    assert node.delete("users/alice") in (204, 404)
    with pytest.raises(pika.exceptions.AMQPError):
        connect(cluster, node, cluster.client_context("alice"), external)
    assert node.put("users/alice", {"tags": "management", "password_hash": ""}) == 201
    assert node.put("permissions/%2F/alice", {"configure": ".*", "write": ".*", "read": ".*"}) == 201
    connect(cluster, node, cluster.client_context("alice"), external).channel()
    [row] = [row for row in node.get("connections").json if row["user"] == "alice"]
    assert (row["auth_mechanism"], row["peer_cert_subject"], row["peer_cert_issuer"]) == ("EXTERNAL", "CN=alice,O=Warren", "CN=clients")
    assert row["peer_cert_validity"]


def test_external_needs_a_certificate_that_a_known_authority_signed(cluster):
    node = cluster[1]
    with pytest.raises(pika.exceptions.AMQPError):
        connect(cluster, node, cluster.client_context(), pika.credentials.ExternalCredentials())
    if not cluster.certificates.path("forger.pem").exists():
        cluster.certificates.authority("forger")
        cluster.certificates.issue("forged", "/CN=guest", "forger", [])
    with pytest.raises((pika.exceptions.AMQPError, OSError)):
        connect(cluster, node, cluster.client_context("forged"), pika.credentials.ExternalCredentials())
    with pytest.raises((pika.exceptions.AMQPError, OSError)):
        connect(cluster, node, cluster.client_context("forged"))


def test_https_is_the_same_api(cluster):
    connection = http.client.HTTPSConnection("localhost", cluster[2].https, context=cluster.client_context(), timeout=20)
    connection.request("GET", "/api/whoami", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["name"]) == (200, "guest")
    connection.request("GET", "/api/whoami")
    answer = connection.getresponse()
    assert (answer.status, answer.read() != b"") == (401, True)
    connection.close()
    ports = {row["protocol"]: row["port"] for row in cluster[1].get("overview").json["listeners"] if row["node"] == "node2"}
    assert (ports["amqp/ssl"], ports["https"]) == (cluster[2].amqps, cluster[2].https)
    for protocol in ("amqp/ssl", "amqps", "https"):
        assert cluster[2].get(f"health/checks/protocol-listener/{protocol}").status == 200
    assert cluster[2].get(f"health/checks/port-listener/{cluster[2].https}").status == 200
    assert cluster[2].get(f"health/checks/port-listener/{cluster[1].https}").status == 503


def test_certificates_are_replaced_while_connections_go_on(cluster, eventually):
    node = cluster[3]
    old = connect(cluster, node, cluster.client_context())
    before = serial(cluster, node.amqps)
    saved = {}
    for suffix in ("pem", "key"):
        path = cluster.certificates.path(f"server.{suffix}")
        saved[suffix] = path.read_bytes()
    try:
        cluster.certificates.issue("next", "/O=Warren/CN=server", "clients", ["DNS:localhost", f"IP:{HOST}"], days=3)
        for suffix in ("pem", "key"):
            shutil.copyfile(cluster.certificates.path(f"next.{suffix}"), cluster.certificates.path(f"server.{suffix}"))
        assert node.get("health/checks/certificate-expiration/4/days").status == 200
        node.signal(signal.SIGHUP)
        eventually(lambda: serial(cluster, node.amqps) != before, "the new certificate is shown")
        assert serial(cluster, node.https) == serial(cluster, node.amqps)
        failed = node.get("health/checks/certificate-expiration/4/days")
        assert failed.status == 503 and failed.json["expired"][0]["subject"] == "CN=server,O=Warren"
        # The others have not been asked to, and look by themselves.
        eventually(lambda: serial(cluster, cluster[1].amqps) != before, "the change is noticed", 30)

        renewed = serial(cluster, node.amqps)
        cluster.certificates.path("server.key").write_text("spoilt")
        node.signal(signal.SIGHUP)
        eventually(lambda: "cannot be read again" in node.log(), "the spoilt key is told of")
        assert "spoilt" not in node.log()
        assert serial(cluster, node.amqps) == renewed
        connect(cluster, node, cluster.client_context())
        old.channel().queue_declare("", exclusive=True)
    finally:
        for suffix, content in saved.items():
            cluster.certificates.path(f"server.{suffix}").write_bytes(content)
        node.signal(signal.SIGHUP)
        eventually(lambda: serial(cluster, node.amqps) == before, "the old certificate is back")


def test_secrets_are_in_no_log(cluster):
    node = cluster[1]
    secret = "s3cret-and-unlikely"
    assert node.put("users/keeper", {"password": secret, "tags": "administrator"}) in (201, 204)
    assert node.get("whoami", user="keeper", password=secret).status == 200
    assert node.get("whoami", user="keeper", password=secret + "x").status == 401
    with pytest.raises(pika.exceptions.AMQPError):
        node.connect("keeper", secret + "y")
    assert secret not in node.log()
    assert "keeper" in node.log(), "the refusals are told"
