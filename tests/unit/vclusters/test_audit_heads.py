"""Heads of audit chains in the management API: records that are cut off the end are noticed, also after a restart."""

import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tapestry.apis.keys import SYSTEM_NAMESPACE
from tapestry.client.client import Client
from tapestry.kube.errors import ServerError
from tapestry.kube.objects import object_named
from tapestry.kube.resources import CONFIGMAPS
from tapestry.vclusters.audit.chained_log import ChainedLog, open_log
from tapestry.vclusters.audit.heads import HEADS_CONFIG_MAP, HeadWriter, heads_in, heads_stored
from tapestry.vclusters.audit.records import AuditEvent, lines_of, segments
from tapestry.vclusters.audit.verification import Verification, verify

from .management_world import management_world

START = datetime(2031, 5, 1, tzinfo=UTC)


@dataclass
class Audited:
    client: Client
    folder: Path
    segment_bytes: int = 1 << 20

    async def run(self, *names: str, is_killed: bool = False) -> None:
        """Run an instance that writes records. One that is killed stores no head at its end."""
        now = lambda: START  # noqa: E731
        async with open_log(self.folder, self.folder.name, now, segment_bytes=self.segment_bytes) as log:
            if is_killed:
                await HeadWriter(self.client, log).start()
                await self.append(log, *names)
                return
            async with heads_stored(self.client, log):
                await self.append(log, *names)

    async def append(self, log: ChainedLog, *names: str) -> None:
        for name in names:
            log.append(AuditEvent(time=START, stage="received", name=name))
            await log.wait_until_durable()

    async def verify(self) -> Verification:
        found = heads_in(await self.client.find(CONFIGMAPS, HEADS_CONFIG_MAP, SYSTEM_NAMESPACE))[self.folder.name]
        return verify(self.folder, found.head, found.lost)

    def last_segment(self) -> Path:
        """Return the last file with records. One after it is removed."""
        *_, last = [each for each in segments(self.folder) if lines_of(each)]
        for each in segments(self.folder):
            if each > last:
                each.unlink()
        return last

    def cut(self, count: int) -> None:
        """Cut records off the end."""
        segment = self.last_segment()
        segment.write_bytes(b"".join(line + b"\n" for line in lines_of(segment)[:-count]))


@pytest.fixture
async def audited(tmp_path: Path) -> AsyncIterator[Audited]:
    async with management_world(tmp_path / "planes") as world:
        yield Audited(world.orchestrator, tmp_path / "audit" / "one")


async def test_complete_chain_has_no_problems(audited: Audited) -> None:
    await audited.run("a", "b")
    await audited.run("c", is_killed=True)
    await audited.run()
    verification = await audited.verify()
    assert (verification.records, verification.problems) == (6, ())


async def test_cut_end_is_found(audited: Audited) -> None:
    await audited.run("a", "b", "c")
    audited.cut(1)
    assert (await audited.verify()).problems == ("record 4 is missing or was changed; the last record is 3",)


def cut_one(audited: Audited) -> None:
    audited.cut(1)


def remove_all(audited: Audited) -> None:
    shutil.rmtree(audited.folder)


def remove_last_segment(audited: Audited) -> None:
    audited.last_segment().unlink()


@pytest.mark.parametrize("change", [cut_one, remove_all, remove_last_segment])
async def test_cut_end_is_found_after_restarts(audited: Audited, change: Callable[[Audited], None]) -> None:
    """The chain itself is complete then: a restart has continued it from the record before."""
    audited.segment_bytes = 500
    await audited.run(*"abcdef")
    sequence = (await audited.verify()).last
    change(audited)
    for _ in range(3):
        await audited.run("more")
    assert verify(audited.folder).problems == ()
    expected = f"record {sequence} was missing or had been changed when the instance started again"
    assert (await audited.verify()).problems == (expected,)


async def test_records_after_the_stored_head_are_not_missed(audited: Audited) -> None:
    """This is the limit that the guide states."""
    await audited.run("a", "b", is_killed=True)
    audited.cut(2)
    await audited.run()
    assert (await audited.verify()).problems == ()


async def test_unreadable_head_is_a_problem(audited: Audited) -> None:
    await audited.run("a")
    named = object_named(HEADS_CONFIG_MAP, SYSTEM_NAMESPACE)
    await audited.client.patch(CONFIGMAPS, named, {"data": {"one": "{}"}})
    assert (await audited.verify()).problems
    await audited.run()
    assert (await audited.verify()).problems


async def test_instances_store_their_heads_side_by_side(audited: Audited) -> None:
    other = Audited(audited.client, audited.folder.with_name("other"))
    async with open_log(other.folder, "other", lambda: START) as log, heads_stored(other.client, log):
        await audited.run("a")
        await other.append(log, "x")
    assert (await audited.verify()).problems == (await other.verify()).problems == ()


async def test_head_is_stored_regularly_and_again_after_an_error(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise ServerError(500, "InternalError", "the disk is full")

    async with open_log(audited.folder, "one", lambda: START) as log:
        writer = HeadWriter(audited.client, log)
        await writer.start()
        await audited.append(log, "a")
        with monkeypatch.context() as patched:
            patched.setattr(audited.client, "patch", fail)
            await writer.write()
        await writer.write()
        audited.cut(1)
        assert (await audited.verify()).problems
