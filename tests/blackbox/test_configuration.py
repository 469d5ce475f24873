"""A wrong configuration is told with file, line, key and what is allowed, before anything is touched."""

import re
import subprocess

import pytest

import targets
from ports import free_ports


@pytest.fixture
def target():
    """The broker's program, without a cluster of it."""
    return targets.from_environment()


GOOD = """\
[node]
name = "node1"
data_dir = "data"

[amqp]
listen = "127.0.0.1:{amqp}"

[http]
listen = "127.0.0.1:{http}"

[cluster]
name = "warren"
listen = "127.0.0.1:{quic}"
peers = [{{ name = "node1", address = "127.0.0.1:{quic}" }}]

[tls]
ca = "ca.pem"
certificate = "node1.pem"
key = "node1.key"

[log]
level = "info"
format = "text"
"""


def three_ports():
    """Ports for a configuration, that nothing listens on."""
    return dict(zip(("amqp", "http", "quic"), free_ports(3)))


@pytest.mark.parametrize(
    "old, new, line, words",
    [
        ('level = "info"', 'level = "loud"', 22, ["level", "loud", "error", "warn", "info", "debug", "trace"]),
        ('format = "text"', 'format = "xml"', 23, ["format", "xml", "text", "json"]),
        ('listen = "127.0.0.1:{amqp}"', 'listen = "nowhere"', 6, ["listen", "nowhere"]),
        ('listen = "127.0.0.1:{http}"', "listen = 5", 9, ["listen"]),
        ('name = "node1"\n', 'name = "node1"\ncolour = "red"\n', 3, ["colour", "name", "data_dir"]),
        ("[log]", "[logs]", 21, ["logs", "log"]),
        ('name = "warren"\n', 'name = "warren"\nshards = 0\n', 13, ["shards", "0", "4096"]),
        ("[node]", "[node", 1, []),
    ],
    ids=["level", "format", "address", "type", "unknown key", "unknown section", "out of range", "syntax"],
)
def test_wrong_configuration(target, tmp_path, old, new, line, words):
    """A wrong configuration ends the server with 78 and a message that names file, line, key and what is allowed."""
    target.skip_on("rabbitmq", "it has another configuration")
    assert old in GOOD
    file = tmp_path / "broken.toml"
    file.write_text(GOOD.replace(old, new, 1).format(**three_ports()))
    result = subprocess.run(
        [str(target.binary), "--config", str(file), "--data-dir", str(tmp_path / "data")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert result.returncode == 78, (result.returncode, result.stderr)
    assert str(file) in result.stderr, result.stderr
    assert re.search(rf"(:|line ){line}\b", result.stderr), f"line {line} is not named: {result.stderr}"
    for word in words:
        assert word in result.stderr, f"{word!r} is not named: {result.stderr}"


def test_missing_configuration_file(target, tmp_path):
    """A configuration file that is not there: not zero, and the message names it."""
    target.skip_on("rabbitmq", "it has another configuration")
    result = subprocess.run(
        [str(target.binary), "--config", str(tmp_path / "none.toml")], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20
    )
    assert result.returncode in (66, 78), (result.returncode, result.stderr)
    assert "none.toml" in result.stderr
