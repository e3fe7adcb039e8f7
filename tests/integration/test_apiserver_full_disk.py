"""Our API server on a full disk: it acknowledges only durable writes and recovers."""

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from .servers import OwnServer

PATH = "/api/v1/namespaces/default/configmaps"
MOST = 400


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 9 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=9m,mode=0700", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


class ServerClient:
    def __init__(self, server: OwnServer, session: aiohttp.ClientSession) -> None:
        self.server, self.session = server, session

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, object]]:
        data = msgspec.json.encode(body) if body is not None else None
        async with self.session.request(method, self.server.url + path, data=data) as response:
            return response.status, msgspec.json.decode(await response.read() or b"{}")

    async def create(self, name: str, size: int = 50_000) -> tuple[int, dict[str, object]]:
        return await self.ask("POST", PATH, {"metadata": {"name": name}, "data": {"k": "v" * size}})

    async def names(self) -> set[str]:
        status, found = await self.ask("GET", PATH)
        assert status == 200
        return {each["metadata"]["name"] for each in found["items"]} - {"kube-root-ca.crt"}  # type: ignore[attr-defined]


def session_for(server: OwnServer) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=server.ca))
    return aiohttp.ClientSession(headers=headers, connector=connector)


async def test_full_disk_loses_no_acknowledged_write_and_writes_resume(
    small_disk: Path,
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(4_500_000))
    with OwnServer(small_disk / "data", "--controllers", "none") as server:
        async with session_for(server) as session:
            api = ServerClient(server, session)
            acknowledged = set()
            for number in range(MOST):
                status, found = await api.create(f"c{number}")
                if status != 201:
                    break
                acknowledged.add(f"c{number}")
            assert status >= 500, "the disk never filled"
            assert "nothing was written" in str(found["message"])
            assert await api.names() == acknowledged
            assert (await api.ask("PUT", f"{PATH}/c0", {"metadata": {"name": "c0"}, "data": {"k": "w" * 60_000}}))[
                0
            ] >= 500
            ballast.unlink()
            assert (await api.create("after", 10))[0] == 201
            assert await api.names() == {*acknowledged, "after"}
        server.kill()
        server.start()
        async with session_for(server) as session:
            assert await ServerClient(server, session).names() == {*acknowledged, "after"}
