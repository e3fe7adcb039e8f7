"""Durability of many planes when their process is killed repeatedly under load.

Each plane has a writer with its own keys, and some have a watcher.  The process gets SIGKILL while all planes are
written to, or while they open, and meanwhile further planes are created and deleted.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from tapestry.apis.planes import PLANES, plane_id
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.errors import KubeError

from .plane_clients import (
    OPEN_SECONDS,
    client_of,
    created_plane,
    created_planes,
    plane_kubeconfig,
    token_of,
    wait_for_phase,
)
from .servers import PlanesProcess
from .storms import RETRY, Storm, check_final_state, kill, session_of

NUMBER = 50
WATCHED = 10
"""Number of planes with a watcher."""
REST = 1.0
"""Seconds for which clients continue after the last kill."""


class Churn:
    """A client of the management API that creates planes, copies and deletes them, whatever fails."""

    def __init__(self, management: Client) -> None:
        self.management, self.over, self.count = management, False, 0

    async def run(self) -> None:
        while not self.over:
            with suppress(KubeError, TimeoutError):
                for name, spec in (("source", {}), ("copy", {"copyOf": "source"})):
                    if await self.management.find(PLANES, name) is None:
                        await created_plane(self.management, name, **spec)
                        self.count += 1
                await self.delete_all()
            await asyncio.sleep(RETRY)
        await self.delete_all()

    async def delete_all(self) -> None:
        for name in ("copy", "source"):
            if (plane := await self.management.find(PLANES, name)) is not None:
                await self.management.delete(PLANES, plane)
            await wait_for(self.management, PLANES, name, until=lambda found: found is None, timeout=OPEN_SECONDS)


async def storm(process: PlanesProcess, kills: int) -> tuple[list[Storm], Churn]:
    async with AsyncExitStack() as stack:
        management = await stack.enter_async_context(client_of(process.kubeconfig))
        names = [f"plane-{number}" for number in range(NUMBER)]
        ids = [plane_id(each) for each in await created_planes(management, names)]
        storms = []
        for number, name in enumerate(names):
            file = await plane_kubeconfig(management, name, process.folder / f"{name}.yaml", byPath=True)
            session = await stack.enter_async_context(session_of(process.folder / "pki" / "ca.crt", token_of(file)))
            url = f"{process.url}/planes/{ids[number]}"
            storms.append(Storm(url, session, writers=1, watchers=int(number < WATCHED)))
        churn = Churn(management)

        async def all_written() -> None:
            """Wait until each plane has acknowledged a write since the start of the process, and for a moment more."""
            before = [each.ledger.count for each in storms]
            async with asyncio.timeout(OPEN_SECONDS):
                for each, count in zip(storms, before, strict=True):
                    await each.wait_for_write(count)
            await asyncio.sleep(random.uniform(0, 1))

        async with asyncio.TaskGroup() as group:
            churning = group.create_task(churn.run())
            for each in storms:
                each.start(group)
            while_opening = kills // 3
            await kill(process, kills - while_opening, all_written, 0)
            await kill(process, while_opening, lambda: asyncio.sleep(random.uniform(0, 2)), REST)
            await all_written()
            for each in storms:
                each.over = True
            churn.over = True
            await churning
        for name, each in zip(names, storms, strict=True):
            await wait_for_phase(management, name)
            await check_final_state(each)
        assert {each.name for each in (process.folder / "planes").iterdir()} == set(ids)
        assert not [each.name for each in process.folder.rglob(".*") if each.is_dir()], "folders of unfinished work"
        return storms, churn


def figure_of(storms: list[Storm], churn: Churn, kills: int) -> str:
    writes = sum(each.ledger.count for each in storms)
    events = sum(watcher.events for each in storms for watcher in each.watchers)
    return (
        f"durability of planes: {kills} kills of a process with {NUMBER} planes: {writes:,} writes, {events:,} events, "
        f"{churn.count} planes created and deleted meanwhile; 0 lost, 0 torn, nothing left over"
    )


@pytest.mark.timeout(300)
def test_kills_lose_no_write_of_any_plane(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    with PlanesProcess(tmp_path / "data") as process:
        storms, churn = asyncio.run(storm(process, 3))
    record_property("figure", figure_of(storms, churn, 3))
    assert all(each.ledger.count for each in storms)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_thirty_kills_lose_no_write_of_any_plane(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with PlanesProcess(tmp_path / "data") as process:
        storms, churn = asyncio.run(storm(process, 30))
    record_property("figure", figure_of(storms, churn, 30))
    assert all(each.ledger.count >= 30 for each in storms)
    assert churn.count
