"""What an operator deploys with, cluster-config/: the files are well-formed, and nodes that are started as they say form a cluster.

Containers, systemd and Kubernetes are not run: their command lines, configurations and probes are taken out of their files and run as processes, with
addresses and folders of this machine.
"""

from __future__ import annotations

import base64
import http.client
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from ports import free_ports

CONFIGURATION = Path(__file__).resolve().parents[3] / "cluster-config"
WARREN = Path(os.environ.get("WARREN_BIN", CONFIGURATION.parent / "target/release/warren"))


class Deployed:
    """Processes started with the configurations of a deployment: `configurations` by the node's name, `hosts` as the peers call each other."""

    def __init__(self, folder: Path, configurations: dict[str, str], mounted: dict[str, Path]) -> None:
        self.folder, self.processes = folder, {}
        self.ports = dict(zip(configurations, zip(*[iter(free_ports(3 * len(configurations)))] * 3)))
        self.files = {}
        for name, text in configurations.items():
            amqp, http, links = self.ports[name]
            text = text.replace('"0.0.0.0:5672"', f'"127.0.0.1:{amqp}"').replace('"0.0.0.0:15672"', f'"127.0.0.1:{http}"').replace('"0.0.0.0:7671"', f'"127.0.0.1:{links}"')
            for other, (_, _, port) in self.ports.items():
                text = re.sub(rf'name = "{other}", address = "[^"]+:7671"', f'name = "{other}", address = "localhost:{port}"', text)
            for path, here in mounted.items():
                text = text.replace(path, str(here))
            text = text.replace("/var/lib/warren", str(folder / name))
            meant = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
            assert not re.search(r'"0\.0\.0\.0|"/var/|"/etc/', meant), meant
            self.files[name] = folder / f"{name}.toml"
            self.files[name].write_text(text)

    def start(self, name: str, arguments: list[str]) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        self.processes[name] = subprocess.Popen([str(WARREN), *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder)

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for name, process in self.processes.items():
            assert process.wait(30) == 0, f"{name} did not stop in order: {(self.folder / name).with_suffix('.log').read_text()[-2000:]}"


@pytest.fixture
def certificates(tmp_path):
    """The folder that make-certificates fills for these nodes."""
    def made(*nodes):
        for _ in range(2):
            subprocess.run([str(CONFIGURATION / "make-certificates"), str(tmp_path / "made"), *nodes], check=True, capture_output=True, timeout=60)
        assert {"ca.key", "ca.pem"} | {f"{n}.{kind}" for n in nodes for kind in ("pem", "key")} <= {f.name for f in (tmp_path / "made").iterdir()}
        return tmp_path / "made"

    return made


def status(port: int, path: str) -> int:
    """The status of a GET without a login, as a probe sees it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def make_the_first_user(text: str, port: int) -> None:
    """Runs the command that a file's head has for it, as it stands there, and logs in as that user."""
    ((command, name, password),) = re.findall(r"(warrenctl user declare (\S+) .*--new-password (\S+))$", text, re.M)
    program = os.environ.get("WARRENCTL", str(CONFIGURATION.parent / "target/release/warrenctl"))
    environment = {**os.environ, "WARREN_URL": f"http://127.0.0.1:{port}"}
    made = subprocess.run([program, *shlex.split(command)[1:]], env=environment, capture_output=True, text=True, timeout=30)
    assert made.returncode == 0, made.stderr
    login = {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/api/users", headers=login)
    assert connection.getresponse().status == 200
    connection.close()


def unit() -> dict[str, list[str]]:
    """The settings of the systemd unit's section [Service]."""
    settings: dict[str, list[str]] = {}
    section = (CONFIGURATION / "systemd/warren.service").read_text().split("[Service]")[1].split("\n[")[0]
    for line in section.splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            settings.setdefault(key, []).append(value)
    return settings


def test_systemd_unit_is_sound(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not there")
    text = (CONFIGURATION / "systemd/warren.service").read_text()
    assert "ExecStart=/usr/bin/warren --config /etc/warren/warren.toml\n" in text
    (tmp_path / "warren.service").write_text(text.replace("ExecStart=/usr/bin/warren", f"ExecStart={WARREN}"))
    verified = subprocess.run(["systemd-analyze", "verify", str(tmp_path / "warren.service")], capture_output=True, text=True, timeout=30)
    assert (verified.returncode, verified.stderr) == (0, ""), verified.stderr
    # Tenths, 0 is locked up and 100 is wide open.
    hardened = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(tmp_path / "warren.service")], capture_output=True, text=True, timeout=30)
    assert hardened.returncode == 0, hardened.stdout[-500:]


def test_systemd_units_command_line_runs(tmp_path, certificates, eventually):
    settings = unit()
    (command,) = settings["ExecStart"]
    program, *arguments = shlex.split(command)
    assert program == "/usr/bin/warren" and settings["StateDirectory"] == ["warren"]
    text = (CONFIGURATION / "systemd/warren.toml").read_text()
    names = [peer["name"] for peer in tomllib.loads(text)["cluster"]["peers"]]
    made = certificates(*names)
    texts = {name: text.replace('name = "node1"\ndata', f'name = "{name}"\ndata').replace("node1.pem", f"{name}.pem").replace("node1.key", f"{name}.key") for name in names}
    deployed = Deployed(tmp_path, texts, {"/etc/warren/certificates": made, "/var/log/warren/audit.json": tmp_path / "audit.json"})
    try:
        for name in names:
            deployed.start(name, [argument.replace("/etc/warren/warren.toml", str(deployed.files[name])) for argument in arguments])
        for name in names:
            eventually(lambda: status(deployed.ports[name][1], "/api/health") == 200, f"{name} serves", 60)
        (reload,) = settings["ExecReload"]
        assert reload == "/bin/kill -HUP $MAINPID"
        for process in deployed.processes.values():
            subprocess.run(["kill", "-HUP", str(process.pid)], check=True)
        # A signal that ended a process would have done so before it could end in order: `stop` sees how it ended.
    finally:
        deployed.stop()
    assert settings["RestartPreventExitStatus"] == ["78"]
    (tmp_path / "bad.toml").write_text("[node]\nnam = 1\n")
    refused = subprocess.run([str(WARREN), "--config", str(tmp_path / "bad.toml")], capture_output=True, timeout=30)
    assert refused.returncode == 78


def test_compose_file_and_image(tmp_path, certificates, eventually):
    folder = CONFIGURATION / "container"
    compose = yaml.safe_load((folder / "compose.yaml").read_text())
    image = (folder / "Dockerfile").read_text()
    assert re.findall(r"^USER (.*)$", image, re.M) == ["10001:10001"] and 'ENTRYPOINT ["/usr/bin/warren"]' in image
    (arguments,) = re.findall(r"^CMD (.*)$", image, re.M)
    # What is copied and built is there.
    assert all(f"-p {crate}" in image for crate in ("warren", "warrenctl")) and (CONFIGURATION.parent / "Cargo.lock").is_file()
    texts = {}
    for name, service in compose["services"].items():
        assert service["image"] == "warren" and service["hostname"] == name and service["read_only"] and service["cap_drop"] == ["ALL"]
        volumes = [volume.split(":") for volume in service["volumes"]]
        (own,) = [source for source, target, *_ in volumes if target == "/etc/warren/warren.toml"]
        assert ["./certificates", "/etc/warren/certificates", "ro"] in volumes and [name, "/var/lib/warren"] in volumes and name in compose["volumes"]
        texts[name] = (folder / own).read_text()
        parsed = tomllib.loads(texts[name])
        assert parsed["node"]["name"] == name
        assert [peer["address"] for peer in parsed["cluster"]["peers"]] == [f"{peer}:7671" for peer in compose["services"]], "services are found by their names"
    assert len(texts) == 3
    deployed = Deployed(tmp_path, texts, {"/etc/warren/certificates": certificates(*texts)})
    try:
        for name in texts:
            deployed.start(name, [argument.replace("/etc/warren/warren.toml", str(deployed.files[name])) for argument in yaml.safe_load(arguments)])
        for name, service in compose["services"].items():
            assert service["healthcheck"]["test"][0] == "CMD"
            check = [word.replace("15672", str(deployed.ports[name][1])) for word in service["healthcheck"]["test"][1:]]
            eventually(lambda: subprocess.run(check, capture_output=True, timeout=10).returncode == 0, f"{name} is healthy", 60)
        make_the_first_user((folder / "compose.yaml").read_text(), deployed.ports["node1"][1])
    finally:
        deployed.stop()
    assert subprocess.run(check, capture_output=True, timeout=10).returncode != 0, "a node that is not there is not healthy"


def test_kubernetes_manifests(tmp_path, certificates, eventually):
    manifests = list(yaml.safe_load_all((CONFIGURATION / "kubernetes/warren.yaml").read_text()))
    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.31", strict=True)
    by_kind = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests}
    stateful = by_kind["StatefulSet", "warren"]["spec"]
    headless = by_kind["Service", stateful["serviceName"]]["spec"]
    labels = stateful["template"]["metadata"]["labels"].items()
    assert headless["clusterIP"] == "None" and headless["publishNotReadyAddresses"] is True, "nodes have to find each other before they are ready"
    for selector in (headless["selector"], by_kind["Service", "warren"]["spec"]["selector"], stateful["selector"]["matchLabels"],
                     by_kind["PodDisruptionBudget", "warren"]["spec"]["selector"]["matchLabels"]):
        assert selector and selector.items() <= labels
    assert by_kind["PodDisruptionBudget", "warren"]["spec"]["maxUnavailable"] == 1 and stateful["podManagementPolicy"] == "Parallel"
    (container,) = stateful["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for port in by_kind["Service", "warren"]["spec"]["ports"]:
        assert port["targetPort"] in ports
    texts = {key.removesuffix(".toml"): text for key, text in by_kind["ConfigMap", "warren"]["data"].items()}
    pods = [f"warren-{number}" for number in range(stateful["replicas"])]
    assert list(texts) == pods
    for pod in pods:
        parsed = tomllib.loads(texts[pod])
        assert parsed["node"]["name"] == pod and {"amqp": parsed["amqp"]["listen"], "http": parsed["http"]["listen"], "links": parsed["cluster"]["listen"]} == {
            name: f"0.0.0.0:{port}" for name, port in ports.items()}
        assert parsed["cluster"]["peers"] == [{"name": peer, "address": f"{peer}.{stateful['serviceName']}:7671"} for peer in pods]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in stateful["template"]["spec"]["volumes"]} | {claim["metadata"]["name"] for claim in stateful["volumeClaimTemplates"]}
    assert set(mounts) == volumes
    deployed = Deployed(tmp_path, texts, {mounts["certificates"]: certificates(*pods)})
    try:
        for pod in pods:
            arguments = [argument.replace("$(POD_NAME)", pod) for argument in container["args"]]
            assert arguments == ["--config", f"{mounts['configuration']}/{pod}.toml"]
            deployed.start(pod, ["--config", str(deployed.files[pod])])
        alive, ready, started = (container[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe", "startupProbe"))
        assert {probe["port"] for probe in (alive, ready, started)} == {"http"}
        for pod in pods:
            eventually(lambda: status(deployed.ports[pod][1], ready["path"]) == 200, f"{pod} is ready", 60)
        make_the_first_user((CONFIGURATION / "kubernetes/warren.yaml").read_text(), deployed.ports[pods[0]][1])
        for pod in pods[1:]:
            deployed.processes[pod].kill()
            deployed.processes.pop(pod).wait(20)
        port = deployed.ports[pods[0]][1]
        eventually(lambda: status(port, ready["path"]) == 503, "a node without the others is not ready", 20)
        assert status(port, alive["path"]) == status(port, started["path"]) == 200, "and yet must not be killed"
    finally:
        deployed.stop()
