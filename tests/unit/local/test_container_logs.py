"""Container logs: partial reads, following, rotation and limits."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tapestry.local.container_logs import ContainerLog, read_log
from tapestry.local.runtime import LogQuery

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> Callable[[], datetime]:
    """Clock that advances by a second at each call."""

    def moments() -> Iterator[datetime]:
        moment = BEGIN
        while True:
            yield moment
            moment += timedelta(seconds=1)

    following = moments()
    return lambda: next(following)


async def text_of(chunks: AsyncIterator[bytes]) -> str:
    return b"".join([chunk async for chunk in chunks]).decode()


async def test_log_is_read_completely_or_in_part(tmp_path: Path, clock: Callable[[], datetime]) -> None:
    log = ContainerLog(tmp_path / "0.log", clock)
    for line in (b"one\ntw", b"o\nthree\n", b"fo", b"ur"):
        log.write(line)
    log.close()

    async def read(query: LogQuery) -> str:
        return await text_of(read_log(log.path, query, log))

    assert await read(LogQuery()) == "one\ntwo\nthree\nfour\n"
    assert await read(LogQuery(follow=True)) == "one\ntwo\nthree\nfour\n"
    assert await read(LogQuery(tail=2)) == "three\nfour\n"
    assert await read(LogQuery(tail=0)) == ""
    assert await read(LogQuery(limit=6)) == "one\ntw"
    assert await read(LogQuery(since=BEGIN + timedelta(seconds=1))) == "two\nthree\nfour\n"
    assert (await read(LogQuery(tail=1, timestamps=True))) == "2026-01-01T00:00:02.000000Z four\n"


async def test_log_is_followed_across_rotation(tmp_path: Path, clock: Callable[[], datetime]) -> None:
    log = ContainerLog(tmp_path / "0.log", clock, max_bytes=200)
    log.write(b"before\n")
    found: list[str] = []

    async def follow() -> None:
        found.extend([line.decode() async for line in read_log(log.path, LogQuery(follow=True, tail=1), log)])

    async with asyncio.TaskGroup() as group:
        group.create_task(follow())
        for number in range(50):
            await asyncio.sleep(0)
            log.write(f"line {number}\n".encode())
            await asyncio.sleep(0)
        log.close()
    assert found == ["before\n", *(f"line {number}\n" for number in range(50))]
    assert log.rotations > 5


def test_log_stays_small(tmp_path: Path, clock: Callable[[], datetime]) -> None:
    log = ContainerLog(tmp_path / "0.log", clock, max_bytes=10_000)
    for _ in range(1000):
        log.write(b"x" * 99 + b"\n")
    log.close()
    assert len(list(tmp_path.iterdir())) <= 2
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 21_000


async def test_endless_line_is_cut(tmp_path: Path, clock: Callable[[], datetime]) -> None:
    log = ContainerLog(tmp_path / "0.log", clock)
    for _ in range(100):
        log.write(b"y" * 1000)
    log.close()
    text = await text_of(read_log(log.path, LogQuery(), None))
    assert text.replace("\n", "") == "y" * 100_000
    assert max(map(len, text.splitlines())) < 20_000


async def test_missing_log_has_no_lines(tmp_path: Path) -> None:
    assert await text_of(read_log(tmp_path / "0.log", LogQuery(), None)) == ""
