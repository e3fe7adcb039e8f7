"""The chain of the audit log: durability, crashes, verification and queries."""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tapestry.vclusters.audit import chained_log
from tapestry.vclusters.audit.chained_log import AuditLockedError, AuditUnavailableError, ChainedLog, open_log
from tapestry.vclusters.audit.queries import newest_first
from tapestry.vclusters.audit.records import AuditEvent, lines_of, segments
from tapestry.vclusters.audit.verification import verify

START = datetime(2031, 5, 1, tzinfo=UTC)


def event(name: str, time: datetime = START, **fields: str) -> AuditEvent:
    return AuditEvent(time=time, stage="received", name=name, **fields)


async def write(folder: Path, *names: str, segment_bytes: int = 1 << 20, time: datetime = START) -> tuple[int, str]:
    async with open_log(folder, folder.name, lambda: time, segment_bytes=segment_bytes) as log:
        for name in names:
            log.append(event(name, time))
            await log.wait_until_durable()
        return log.head


async def test_chain_continues_after_restart(tmp_path: Path) -> None:
    await write(tmp_path / "one", "a", "b")
    head = await write(tmp_path / "one", "c")
    verification = verify(tmp_path / "one", head)
    assert (verification.records, verification.last, verification.problems) == (5, 5, ())  # two starts, three events


async def test_chain_continues_in_new_segments(tmp_path: Path) -> None:
    names = [f"name-{number}" for number in range(30)]
    head = await write(tmp_path / "one", *names, segment_bytes=500)
    assert len(segments(tmp_path / "one")) > 5
    assert verify(tmp_path / "one", head).problems == ()
    assert (await write(tmp_path / "one", "last"))[0] == head[0] + 2
    assert verify(tmp_path / "one").problems == ()


async def test_incomplete_record_is_removed(tmp_path: Path) -> None:
    await write(tmp_path / "one", "a")
    with segments(tmp_path / "one")[-1].open("ab") as segment:
        segment.write(b'{"time":"2031')
    head = await write(tmp_path / "one", "b")
    assert verify(tmp_path / "one", head).problems == ()
    assert b"13 bytes of an incomplete record removed" in b"".join(lines_of(segments(tmp_path / "one")[-1]))


async def test_chain_continues_after_crash_between_segments(tmp_path: Path) -> None:
    await write(tmp_path / "one", "a", "b")
    (tmp_path / "one" / "00000000000000000004.jsonl").touch()
    await write(tmp_path / "one", "c")
    assert verify(tmp_path / "one").problems == ()


def changed(lines: list[bytes]) -> list[bytes]:
    return [line.replace(b'"b"', b'"x"') for line in lines]


def with_gap(lines: list[bytes]) -> list[bytes]:
    return lines[:2] + lines[3:]


def exchanged(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[2], lines[1], *lines[3:]]


def damaged(lines: list[bytes]) -> list[bytes]:
    return [lines[0], b"garbage", *lines[2:]]


def without_beginning(lines: list[bytes]) -> list[bytes]:
    return lines[2:]


def without_end(lines: list[bytes]) -> list[bytes]:
    return lines[:-1]


@pytest.mark.parametrize("change", [changed, with_gap, exchanged, damaged, without_beginning, without_end])
async def test_verification_finds_changes(tmp_path: Path, change) -> None:
    head = await write(tmp_path / "one", "a", "b", "c", "d")
    (segment,) = segments(tmp_path / "one")
    assert verify(tmp_path / "one", head).problems == ()
    segment.write_bytes(b"".join(line + b"\n" for line in change(lines_of(segment))))
    assert verify(tmp_path / "one", head).problems


async def test_records_wait_for_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_log(tmp_path / "one", "one", lambda: START) as log:
        synced = []
        monkeypatch.setattr(os, "fdatasync", synced.append)
        for number in range(50):
            log.append(event(str(number)))
        async with asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(log.wait_until_durable())
        assert len(synced) == 1  # all share one sync
        assert log.head[0] == 51


async def test_failed_write_is_reported_and_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chained_log, "RETRY_SECONDS", 0)
    async with open_log(tmp_path / "one", "one", lambda: START) as log:
        is_full = True
        pwrite = os.pwrite

        def write_part(file: int, content: bytes, offset: int) -> int:
            if is_full:
                pwrite(file, content[:10], offset)
                raise OSError(28, "No space left on device")
            return pwrite(file, content, offset)

        monkeypatch.setattr(os, "pwrite", write_part)
        log.append(event("a"))
        with pytest.raises(AuditUnavailableError, match="No space left"):
            await log.wait_until_durable()
        is_full = False
        await log.wait_until_durable()
        head = log.head
    assert verify(tmp_path / "one", head).problems == ()


async def test_full_buffer_rejects_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chained_log, "MAX_UNWRITTEN_BYTES", 1000)
    async with open_log(tmp_path / "one", "one", lambda: START) as log:
        with pytest.raises(AuditUnavailableError):
            fill(log)


def fill(log: ChainedLog) -> None:
    for number in range(100):
        log.append(event(str(number)))


async def test_second_writer_is_rejected(tmp_path: Path) -> None:
    async with open_log(tmp_path / "one", "one", lambda: START):
        with pytest.raises(AuditLockedError, match="another process"):
            await write(tmp_path / "one")


async def test_old_segments_are_removed_and_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    await write(folder, *"abcdef", segment_bytes=300)
    old = segments(folder)
    head = await write(folder, *"ghijkl", segment_bytes=300, time=START + timedelta(days=91))
    assert not any(path.exists() for path in old[:-1])
    verification = verify(folder, head)
    assert verification.problems == ()
    assert verification.first > 1
    segments(folder)[0].unlink()
    assert verify(folder, head).problems


async def test_query_merges_instances(tmp_path: Path) -> None:
    for instance, minutes in (("one", (1, 4, 6)), ("two", (2, 3, 5))):
        async with open_log(tmp_path / instance, instance, lambda: START) as log:
            for minute in minutes:
                log.append(event(str(minute), START + timedelta(minutes=minute), project=instance))
    found = [each.name for each in newest_first(tmp_path, matches=lambda record: record.stage == "received")]
    assert found == ["6", "5", "4", "3", "2", "1"]
    since, until = START + timedelta(minutes=2), START + timedelta(minutes=5)
    found = [each.name for each in newest_first(tmp_path, since=since, until=until, matches=lambda _: True)]
    assert found == ["4", "3", "2"]
    found = [each.name for each in newest_first(tmp_path, matches=lambda record: record.project == "two")]
    assert found == ["5", "3", "2"]


async def test_long_texts_are_cut(tmp_path: Path) -> None:
    async with open_log(tmp_path / "one", "one", lambda: START) as log:
        log.append(event("a", user_agent="x" * 1_000_000))
    (newest, *_) = newest_first(tmp_path, matches=lambda _: True)
    assert len(newest.user_agent) == 1024
