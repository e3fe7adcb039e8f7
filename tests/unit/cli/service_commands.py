"""Commands of the lifecycle service against a service in memory behind a real listener."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tapestry.cli.main import main

from ..vclusters.gateway_world import GatewayWorld
from ..vclusters.memory_service import MemoryService, served


@dataclass
class Commands:
    service: MemoryService
    gateway: GatewayWorld
    home: Path
    url: str

    async def run(self, *words: str, input: str | None = None) -> Result:
        """Run `tapestry` with these words in a thread, as the service runs in this loop."""
        return await asyncio.to_thread(CliRunner().invoke, main, words, input=input)

    async def output(self, *words: str, input: str | None = None) -> str:
        result = await self.run(*words, input=input)
        assert result.exit_code == 0, result.output
        return result.stdout

    async def error(self, *words: str) -> str:
        """Return the last line of a command that fails."""
        result = await self.run(*words)
        assert result.exit_code in (1, 2), result.output
        assert isinstance(result.exception, SystemExit), result.exception
        return result.output.splitlines()[-1]


@pytest.fixture
async def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Commands]:
    """Run a service, and name it in the environment. The caller is a platform admin, in the namespace shop."""
    async with served(tmp_path / "audit") as (gateway, service, url):
        home = tmp_path / "home"
        home.mkdir()
        monkeypatch.delenv("KUBECONFIG", raising=False)
        for name, value in {"HOME": str(home), "TAPESTRY_SERVER": url, "TAPESTRY_NAMESPACE": "shop"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("TAPESTRY_KEY", gateway.keys["root"])
        yield Commands(service, gateway, home, url)
