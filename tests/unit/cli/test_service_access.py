"""Address and credentials of the lifecycle service: options, environment and configuration file."""

import asyncio
from pathlib import Path

import pytest
import yaml

from tapestry.cli.completion import ShellComplete
from tapestry.cli.main import main
from tapestry.local.world_folder import WorldFolder, WorldRecord

from .service_commands import Commands, commands

__all__ = ["commands"]


def write_config(commands: Commands, mode: int = 0o600, **settings: str) -> Path:
    file = commands.home / ".config" / "tapestry" / "service.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(settings))
    file.chmod(mode)
    return file


async def test_configuration_file_names_the_service(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVER", "KEY", "NAMESPACE"):
        monkeypatch.delenv(f"TAPESTRY_{name}")
    assert "no lifecycle service: give --server" in await commands.error("vc", "list")
    file = write_config(commands, server=commands.url, key=commands.gateway.keys["alice"], namespace="shop")
    assert "there are no virtual clusters" in await commands.output("vc", "list")
    assert commands.service.calls[-1].caller.user == "alice"
    monkeypatch.setenv("TAPESTRY_KEY", commands.gateway.keys["root"])
    await commands.output("vc", "list", "--config", str(file))
    assert commands.service.calls[-1].caller.user == "root"


async def test_world_in_the_folder_has_a_service(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVER", "KEY"):
        monkeypatch.delenv(f"TAPESTRY_{name}")
    write_config(commands, server="http://127.0.0.1:1", key="tap_x")
    monkeypatch.chdir(commands.home)
    world = WorldFolder(commands.home / ".tapestry")
    with world.claim(WorldRecord(1, 1)):
        assert "cannot be reached" in await commands.error("vc", "list")  # a world without the service
        file = world.service_config
        file.parent.mkdir()
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump({"server": commands.url, "key": commands.gateway.keys["root"]}))
        assert "there are no virtual clusters" in await commands.output("vc", "list")
        await commands.output("vc", "create", "blue")
        plugin = yaml.safe_load(await commands.output("vc", "kubeconfig", "blue", "--exec"))["users"][0]["user"]["exec"]
        assert plugin["args"][-2:] == ["--config", str(file)]  # it has the key, and kubectl may run in any folder
        error = await commands.error("host", "list")
        assert f"start the planes with `tapestry planes run --data {world.planes_folder}`" in error
    assert "is not running; `tapestry up` starts it" in await commands.error("vc", "list")
    assert "cannot be reached" in await commands.error("vc", "list", "--server", "http://127.0.0.1:1")


async def test_file_that_others_read_is_rejected(commands: Commands) -> None:
    write_config(commands, 0o644, key="tap_x")
    assert "other users may read it; run `chmod 600" in await commands.error("vc", "list")


async def test_errors_are_one_line(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPESTRY_KEY", "tap_wrong")
    assert "UNAUTHENTICATED" in await commands.error("vc", "list")
    assert "cannot be reached" in await commands.error("vc", "list", "--server", "http://127.0.0.1:1")
    assert "must begin with https://" in await commands.error("vc", "list", "--server", "ftp://127.0.0.1:1")


async def test_names_are_completed(commands: Commands) -> None:
    await commands.output("vc", "create", "blue")
    await commands.output("vc", "create", "black")

    def completed(*words: str) -> list[str]:
        return [each.value for each in ShellComplete(main, {}, "tapestry", "").get_completions(list(words), "bl")]

    assert await asyncio.to_thread(completed, "vc", "get") == ["black", "blue"]
    assert await asyncio.to_thread(completed, "vc", "get", "--server", "http://127.0.0.1:1") == []
