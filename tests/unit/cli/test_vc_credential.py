"""`tapestry vc credential`: the exec plugin of kubeconfigs."""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tapestry.cli.service_access import ServiceConfig
from tapestry.cli.vc_credential import EXEC_INFO, CallingCluster, Issued, cache_file, cached, calling_cluster

from .service_commands import Commands, commands

__all__ = ["commands"]

SERVER = "https://127.0.0.1:1"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def exec_info(server: str) -> str:
    return json.dumps({"apiVersion": "v1", "spec": {"interactive": False, "cluster": {"server": server, "x": 1}}})


def cache(commands: Commands) -> Path:
    (file,) = (commands.home / ".cache" / "tapestry" / "credentials").iterdir()
    return file


async def printed(commands: Commands) -> Any:
    return json.loads(await commands.output("vc", "credential", "blue"))


async def test_credential_is_reused_until_it_expires_soon(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXEC_INFO, exec_info(SERVER))
    await commands.output("vc", "create", "blue")
    found = await printed(commands)
    assert (found["kind"], found["apiVersion"]) == ("ExecCredential", "client.authentication.k8s.io/v1")
    assert found["status"]["token"] == "short-lived"
    lifetime = datetime.fromisoformat(found["status"]["expirationTimestamp"]) - datetime.now(UTC)
    assert timedelta(minutes=50) < lifetime < timedelta(minutes=56)
    file, calls = cache(commands), len(commands.service.calls)
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert await printed(commands) == found
    assert len(commands.service.calls) == calls
    file.write_bytes(msgspec.json.encode(Issued("old", datetime.now(UTC) + timedelta(minutes=9))))
    assert (await printed(commands))["status"]["token"] == "short-lived"
    assert [each.request.validity_hours for each in commands.service.calls[calls:]] == [1]


async def test_credential_of_another_cluster_is_not_printed(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EXEC_INFO, exec_info("https://127.0.0.1:2"))
    await commands.output("vc", "create", "blue")
    assert "shop/blue has moved or is another cluster" in await commands.error("vc", "credential", "blue")
    monkeypatch.setenv(EXEC_INFO, "{")
    assert "is not an ExecCredential" in await commands.error("vc", "credential", "blue")


async def test_kubeconfig_has_settings_but_no_key(commands: Commands, tmp_path: Path) -> None:
    await commands.output("vc", "create", "blue")
    config = tmp_path / "service.yaml"
    config.touch(mode=0o600)
    text = await commands.output("vc", "kubeconfig", "blue", "--exec", "--config", str(config))
    (user,) = yaml.safe_load(text)["users"]
    plugin = user["user"]["exec"]
    assert plugin["command"] == str(Path(sys.executable).with_name("tapestry"))
    assert plugin["args"] == ["vc", "credential", "blue", "--namespace", "shop", "--config", str(config)]
    assert plugin["env"] == [{"name": "TAPESTRY_SERVER", "value": commands.url}]
    assert commands.gateway.keys["root"] not in text
    assert "exclude" in await commands.error("vc", "kubeconfig", "blue", "--exec", "--validity-hours", "1")


def test_each_caller_and_cluster_has_its_own_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cluster = CallingCluster(SERVER, "a.planes")
    files = {
        cache_file(ServiceConfig(server="s", key="k"), cluster, "shop", "blue"),
        cache_file(ServiceConfig(server="s", key="k2"), cluster, "shop", "blue"),
        cache_file(ServiceConfig(server="s2", key="k"), cluster, "shop", "blue"),
        cache_file(ServiceConfig(server="s", key="k"), cluster, "shop", "green"),
        cache_file(ServiceConfig(server="s", key="k"), CallingCluster(SERVER, "b.planes"), "shop", "blue"),
        cache_file(ServiceConfig(server="s", key="k"), None, "shop", "blue"),
    }
    assert len(files) == 6
    assert calling_cluster(exec_info(SERVER)) == CallingCluster(SERVER)
    assert calling_cluster("") is None


@pytest.mark.parametrize("content", [b"", b"{}", b'{"token":"t","expires":"2026-03-01T12:09:00Z"}'])
def test_unusable_files_are_no_credential(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    assert cached(file, NOW) is None
    file.write_bytes(content)
    assert cached(file, NOW) is None


def test_file_is_used_until_ten_minutes_before_its_expiry(tmp_path: Path) -> None:
    file, issued = tmp_path / "file", Issued("t", NOW)
    file.write_bytes(msgspec.json.encode(issued))
    assert cached(file, NOW - timedelta(minutes=10)) is None
    assert cached(file, NOW - timedelta(minutes=11)) == issued
