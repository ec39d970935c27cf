"""The files in deploy/: what can be checked of them without Docker, a service manager or a network."""

import configparser
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml
from status_sample import sample

from pfeddsh.cli import app
from pfeddsh.live.coordinator.metrics import exposition
from pfeddsh.live.demo import SITES
from pfeddsh.live.security import proxy

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")


def accept(words: list[str]) -> None:
    """Have our command line parse this, without running it."""
    command: click.Command = typer.main.get_command(app)
    context: click.Context | None = None
    while isinstance(command, click.Group):
        context = click.Context(command, context, info_name=words[0])
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
    command.make_context("pfeddsh", list(words), context)


def test_a_wrong_command_would_be_found() -> None:
    accept(["nodes", "add", "fed", "north", "north.pub"])
    for wrong in (["serve", "fed", "--pages", "1"], ["jion", "x"], ["nodes", "add", "fed"]):
        with pytest.raises(click.UsageError):
            accept(wrong)


def test_every_service_of_the_compose_file_runs_a_command_we_have() -> None:
    services = COMPOSE["services"]
    ours = {
        name: s for name, s in services.items() if s.get("image", "").startswith("pfeddsh/") and "entrypoint" not in s
    }
    assert set(ours) == {"coordinator", *SITES}
    for service in ours.values():
        accept(service["command"])
    assert services["prepare"]["command"][1:] == list(SITES)
    for name, service in services.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / "docker" / source).exists(), volume
    late = {name for name, service in services.items() if service.get("profiles") == ["late"]}
    assert late == set(list(SITES)[3:])


def test_coordinator_and_proxy_share_a_network_that_outlives_both() -> None:
    """So the SuperLink stays on the loopback, and a proxy does not lose its network when the coordinator restarts."""
    services = COMPOSE["services"]
    holder = services["network"]
    for name in ("coordinator", "proxy"):
        assert services[name]["network_mode"] == "service:network" and "ports" not in services[name]
    assert holder["entrypoint"] == ["sleep", "infinity"] and holder["restart"] == "unless-stopped"
    assert holder["networks"]["default"]["aliases"] == ["coordinator"]  # what sites call, and the certificate names
    assert not any("9092" in port or "9443" in port for port in holder["ports"])
    assert services["coordinator"]["restart"] == "on-failure", "it ends when the demonstration is over"


def test_every_volume_is_mounted_on_a_folder_that_the_image_gives_to_its_user() -> None:
    """Else Docker makes the folder, for root, and a container without capabilities cannot write to it."""
    made = re.search(r"install --directory --owner=10001 --group=10001 --mode=0700 ([^&\n]*)", DOCKERFILE)
    assert made
    for name, service in COMPOSE["services"].items():
        mounts = [volume.split(":") for volume in service.get("volumes", []) if name != "prometheus"]
        for source, place, *_ in mounts:
            assert source.startswith(".") or place in made[1].split(), (name, place)


def test_the_script_that_prepares_the_demonstration_uses_commands_we_have() -> None:
    script = DEPLOY / "docker" / "prepare.sh"
    assert subprocess.run(["sh", "-n", script]).returncode == 0
    lines = [line.strip() for line in script.read_text().splitlines() if line.strip().startswith("pfeddsh ")]
    assert len(lines) == 4
    for line in lines:
        accept(shlex.split(line)[1:])


def test_the_images_are_pinned_run_without_root_and_hold_what_they_copy() -> None:
    stages = re.findall(r"^FROM (\S+) AS (\w+)$", DOCKERFILE, re.MULTILINE)
    assert [name for _, name in stages] == ["build", "base", "site", "coordinator"]
    assert re.search(r"^ARG BASE=python:\d+\.\d+\.\d+-slim-\w+$", DOCKERFILE, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    torch = re.search(r"torch==([\d.]+)", (ROOT / "Makefile").read_text())
    assert torch and f"torch=={torch[1]} " in DOCKERFILE
    for name in ("site", "coordinator"):
        stage = DOCKERFILE.split(f" AS {name}\n")[1].split("\nFROM ")[0]
        assert re.findall(r"^USER (\S+)$", stage, re.MULTILINE)[-1] == "10001:10001"
        accept(yaml.safe_load(re.search(r"^CMD (\[.*\])$", stage, re.MULTILINE)[1]))
        check = yaml.safe_load(re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", stage, re.MULTILINE)[1])
        compile(check[2], name, "exec")
    ignored = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        for source in line.split():
            assert (ROOT / source).exists() and f"!{source}" in ignored, source
    pinned = dict(line.split("==") for line in (DEPLOY / "docker" / "constraints.txt").read_text().splitlines()[1:])
    assert '".[flower,privacy]"' in DOCKERFILE  # a site may have a budget
    wanted = [*project["dependencies"], *(line for name in ("flower", "privacy") for line in extras[name])]
    names = {re.split(r"[=<>]", line)[0] for line in wanted} - {"torch"}
    assert names <= set(pinned)
    assert pinned["flwr"] == "1.41.0"


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=")
    parser.optionxform = str
    parser.read(path)
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_hardened_and_starts_what_we_have(path: Path) -> None:
    service = unit(path)["Service"]
    program, *words = shlex.split(service["ExecStart"])
    if program.endswith("pfeddsh"):
        accept(words)
    else:
        assert program == "/usr/sbin/nginx" and words == [
            "-p",
            "/var/lib/pfeddsh/fed",
            "-c",
            "nginx.conf",
            "-e",
            proxy.ERRORS,
        ]
    assert service["User"] == "pfeddsh" and service["Restart"] == "always"
    begins = unit(path)["Unit"]
    assert "@" in path.name or "ConditionPathExists" not in begins, (
        "a condition that does not hold yet is never tried again"
    )
    for key in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "RestrictSUIDSGID"):
        assert service[key] == "yes", key
    assert service["ProtectSystem"] == "strict" and service["CapabilityBoundingSet"] == ""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    """With programs in the place of ours, which are not installed where it looks."""
    copies = []
    for path in UNITS:
        copies.append(tmp_path / path.name.replace("@.", "@north."))
        copies[-1].write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", path.read_text()))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *copies], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "pfeddsh" in line]
    assert complaints == []
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", *copies], capture_output=True, text=True
    )
    assert rated.returncode == 0, rated.stdout + rated.stderr  # tenths of its scale, to 10


@pytest.mark.skipif(shutil.which("logrotate") is None, reason="needs logrotate")
def test_logrotate_understands_its_file(tmp_path: Path) -> None:
    text = (DEPLOY / "logrotate" / "pfeddsh").read_text().replace("/var/lib/pfeddsh", str(tmp_path))
    text = re.sub(r"pfeddsh pfeddsh", "root root", text)  # a user that every machine has
    (tmp_path / "rules").write_text(text)
    (tmp_path / "rules").chmod(0o644)
    done = subprocess.run(
        ["logrotate", "--debug", "--state", tmp_path / "state", tmp_path / "rules"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "error: " not in done.stderr, done.stderr


def test_the_firewall_bounds_the_connections_of_an_address_to_the_port_of_the_proxy() -> None:
    path = DEPLOY / "nftables" / "pfeddsh.nft"
    rules = [line for line in path.read_text().splitlines() if "ct count over" in line]
    listen = inspect.signature(proxy.write).parameters["listen"].default
    assert len(rules) == 2 and all(f"tcp dport {listen.rpartition(':')[2]} " in rule for rule in rules)
    most = int(re.search(r"over (\d+)", rules[0])[1])
    assert proxy.CONNECTIONS <= most < proxy.WAITING // 4
    if shutil.which("nft") and os.geteuid() == 0:
        done = subprocess.run(["nft", "--check", "--file", path], capture_output=True, text=True)
        assert done.returncode == 0 or "not permitted" in done.stderr, done.stderr


def test_alerts_ask_for_metrics_that_there_are(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps(sample()))
    told = exposition(tmp_path, 30).decode()
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    asked = {name for rule in rules for name in re.findall(r"pfeddsh_\w+", rule["expr"])}
    assert len(asked) >= 5 and all(f"# TYPE {name} " in told for name in asked)
    assert "alerts.yml" in yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["rule_files"]
