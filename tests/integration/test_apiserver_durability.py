"""Durability of our API server when it is killed repeatedly under load.

Writers, readers and watchers connect over TLS.  Each writer has its own keys, and some watchers are slow.  The server
gets SIGKILL at random times and is restarted on its data.  The answers that clients received are compared with the
stored objects.
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from .servers import OwnServer
from .storms import Storm, check_final_state, kill, session_of

WRITERS = 12
READERS = 2
SLOW = 2
REST = 1.0
"""Seconds for which clients continue after the last kill."""


async def storm(server: OwnServer, kills: int, watchers: int, between: tuple[float, float]) -> tuple[Storm, float]:
    """Return the clients, and the seconds in which the server served them."""
    async with session_of(server.ca, server.token) as session:
        found = Storm(server.url, session, writers=WRITERS, watchers=watchers)
        async with asyncio.TaskGroup() as group:
            found.start(group, readers=READERS, slow_watchers=SLOW)
            serving_seconds = await kill(server, kills, lambda: asyncio.sleep(random.uniform(*between)), REST)
            found.over = True
        await check_final_state(found)
        return found, serving_seconds


def summary(found: Storm, kills: int, serving_seconds: float) -> str:
    events = sum(each.events for each in found.watchers)
    rate = found.ledger.count / serving_seconds
    bookmarks, lists = (sum(getattr(each, what) for each in found.watchers) for what in ("bookmarks", "lists"))
    return (
        f"durability: {kills} kills under {rate:,.0f} acknowledged writes a second: {found.ledger.count:,} writes, "
        f"{events:,} events, {bookmarks} bookmarks and {lists} lists; 0 lost, 0 revisions twice, 0 torn"
    )


def test_kills_lose_no_acknowledged_write_and_no_event(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with OwnServer(tmp_path / "data", "--controllers", "none") as server:
        found, serving_seconds = asyncio.run(storm(server, 10, 8, (0.2, 0.8)))
    record_property("figure", summary(found, 10, serving_seconds))
    assert found.ledger.count > 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_hundred_kills_lose_nothing(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    with OwnServer(tmp_path / "data", "--controllers", "none") as server:
        found, serving_seconds = asyncio.run(storm(server, 100, 12, (0.5, 1.5)))
    record_property("figure", summary(found, 100, serving_seconds))
    assert found.ledger.count / serving_seconds >= 300
    assert sum(each.events for each in found.watchers) >= 200_000
