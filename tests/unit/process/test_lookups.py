"""Tests of lookups of host names."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tapestry.process.lookups import MAX_LOOKUPS, Lookups

ADDRESS = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 443))]
lookup = socket.getaddrinfo


class SilentNameServer:
    """Answers nothing for names that start with `silent` until it ends."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.end = threading.Event()

    def getaddrinfo(self, host: str, *arguments: object, flags: int = 0) -> object:
        if flags & socket.AI_NUMERICHOST:
            return lookup(host, *arguments, flags=flags)  # type: ignore[call-overload]
        self.names.append(host)
        if host.startswith("silent"):
            self.end.wait(30)
        if host.startswith("unknown"):
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return ADDRESS


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentNameServer]:
    server = SilentNameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server.getaddrinfo)
    yield server
    server.end.set()


async def test_silent_names_do_not_block_other_parts(name_server: SilentNameServer) -> None:
    silent, other = Lookups(), Lookups()
    async with asyncio.timeout(20):
        tasks = [asyncio.create_task(silent.addresses(f"silent-{number}", 443)) for number in range(100)]
        assert await other.addresses("sound", 443) == ADDRESS
    assert len(name_server.names) <= MAX_LOOKUPS + 1
    assert threading.active_count() < 50
    for each in tasks:
        each.cancel()


async def test_cancelled_lookup_counts_until_it_ends(name_server: SilentNameServer) -> None:
    lookups = Lookups()
    for number in range(MAX_LOOKUPS):
        task = asyncio.create_task(lookups.addresses(f"silent-{number}", 443))
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    waiting = asyncio.create_task(lookups.addresses("sound", 443))
    await asyncio.sleep(0)
    assert "sound" not in name_server.names
    name_server.end.set()
    assert await waiting == ADDRESS


@pytest.mark.usefixtures("name_server")
async def test_failed_lookup_raises_oserror() -> None:
    with pytest.raises(socket.gaierror, match="unknown"):
        await Lookups().addresses("unknown", 443)


async def test_address_needs_no_thread(name_server: SilentNameServer) -> None:
    found = await Lookups().addresses("127.0.0.1", 80)
    assert [each[4] for each in found] == [("127.0.0.1", 80)]
    assert name_server.names == []


@pytest.mark.parametrize("host", ["a" * 64, "a..b"])
async def test_invalid_name_raises_oserror(host: str) -> None:
    with pytest.raises(socket.gaierror):
        await Lookups().addresses(host, 80)
