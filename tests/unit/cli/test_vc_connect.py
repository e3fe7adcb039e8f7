"""`tapestry vc connect|disconnect|kubeconfig`."""

import sys
from pathlib import Path

import pytest
import yaml

from .service_commands import Commands, commands

__all__ = ["commands"]

OWN = """
# the user's own file
apiVersion: v1
kind: Config
current-context: home
clusters: [{name: home, cluster: {server: "https://192.0.2.1"}}]
users: [{name: me, user: {token: mine, unknown: kept}}]
contexts: [{name: home, context: {cluster: home, user: me}}]
"""
PRINT_ENVIRONMENT = "import os; print(open(os.environ['KUBECONFIG']).read()); raise SystemExit(3)"


def kubeconfig_file(commands: Commands) -> Path:
    file = commands.home / ".kube" / "config"
    file.parent.mkdir(exist_ok=True)
    file.write_text(OWN)
    return file


async def test_disconnect_returns_to_the_context_before(commands: Commands) -> None:
    file = kubeconfig_file(commands)
    for name in ("blue", "green"):
        await commands.output("vc", "create", name)
        await commands.output("vc", "connect", name)
    found = yaml.safe_load(file.read_text())
    assert found["current-context"] == "tapestry:shop/green"
    assert found["users"][0] == {"name": "me", "user": {"token": "mine", "unknown": "kept"}}
    assert file.stat().st_mode & 0o777 == 0o600
    await commands.output("vc", "connect", "green")  # with new credentials
    for expected in ("tapestry:shop/blue", "home"):
        assert f"context {expected} is current" in await commands.output("vc", "disconnect")
    assert "is not that of a virtual cluster" in await commands.error("vc", "disconnect")


async def test_delete_removes_the_context(commands: Commands) -> None:
    file = kubeconfig_file(commands)
    await commands.output("vc", "create", "blue", "--connect")
    assert "tapestry:shop/blue" in file.read_text()
    await commands.output("vc", "delete", "blue")
    assert yaml.safe_load(file.read_text()) == yaml.safe_load(OWN)


async def test_connect_creates_a_missing_kubeconfig(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    file = commands.home / "new" / "config"
    monkeypatch.setenv("KUBECONFIG", str(file))
    await commands.output("vc", "create", "blue", "--connect")
    assert yaml.safe_load(file.read_text())["current-context"] == "tapestry:shop/blue"
    assert "context (none) is current" in await commands.output("vc", "disconnect")


async def test_connect_respects_the_lock_of_kubectl(commands: Commands) -> None:
    file = kubeconfig_file(commands)
    await commands.output("vc", "create", "blue")
    lock = file.with_name("config.lock")
    lock.touch()
    assert "is being changed by another program" in await commands.error("vc", "connect", "blue")
    assert file.read_text() == OWN


async def test_program_gets_a_kubeconfig_of_its_own(commands: Commands, capfd: pytest.CaptureFixture[str]) -> None:
    file = kubeconfig_file(commands)
    await commands.output("vc", "create", "blue")
    result = await commands.run("vc", "connect", "blue", "--", sys.executable, "-c", PRINT_ENVIRONMENT)
    assert result.exit_code == 3
    assert "short-lived" in capfd.readouterr().out
    assert file.read_text() == OWN
    assert "cannot be run" in await commands.error("vc", "connect", "blue", "--", "/no/such/program")


async def test_context_has_no_credential_unless_it_expires(commands: Commands) -> None:
    file = kubeconfig_file(commands)
    await commands.output("vc", "create", "blue")
    for words, expected in (((), {"exec"}), (("--validity-hours", "2"), {"token"})):
        await commands.output("vc", "connect", "blue", *words)
        (user,) = [each["user"] for each in yaml.safe_load(file.read_text())["users"] if each["name"] != "me"]
        assert user.keys() == expected


async def test_kubeconfig_is_printed(commands: Commands) -> None:
    await commands.output("vc", "create", "blue")
    printed = yaml.safe_load(await commands.output("vc", "kubeconfig", "blue", "--validity-hours", "8"))
    assert printed["current-context"] == "plane"
    assert commands.service.calls[-1].request.validity_hours == 8
