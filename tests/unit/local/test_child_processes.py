"""Child processes and container logs."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import uvloop

from tapestry.local.child_processes import ChildProcess, child
from tapestry.local.container_logs import ContainerLog, read_log
from tapestry.local.kubelet_api import LogQuery

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ENVIRON = {"PATH": os.environ["PATH"]}


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def wait_until_gone(pid: int) -> None:
    """Wait until a process that is not our child is gone, by its pidfd."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(30):
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


# -- children


async def run_script(tmp_path: Path, script: str) -> tuple[int, bytes]:
    output: list[bytes] = []
    async with child(["sh", "-c", script], ENVIRON, tmp_path, output.append) as running:
        code = await running.wait()
    return code, b"".join(output)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
async def test_exit_code_is_like_in_a_shell(tmp_path: Path, script: str, code: int) -> None:
    assert (await run_script(tmp_path, script))[0] == code


async def test_all_output_arrives(tmp_path: Path) -> None:
    code, output = await run_script(tmp_path, "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; pwd >&2")
    lines = output.decode().splitlines()
    assert (code, len(lines), lines[-1]) == (0, 20001, str(tmp_path))


async def test_no_descendant_survives(tmp_path: Path) -> None:
    _, output = await run_script(tmp_path, "sleep 1000 & echo $!")
    await wait_until_gone(int(output))
    assert not is_alive(int(output))


@asynccontextmanager
async def started_child(script: str, folder: Path, output: list[bytes]) -> AsyncIterator[ChildProcess]:
    """Start a process and wait for its first output."""
    spoke = asyncio.Event()

    def write(data: bytes) -> None:
        output.append(data)
        spoke.set()

    async with child(["sh", "-c", script], ENVIRON, folder, write) as running:
        await spoke.wait()
        yield running


async def test_stop_gives_time_to_end(tmp_path: Path) -> None:
    output: list[bytes] = []
    script = "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done"
    async with started_child(script, tmp_path, output) as running:
        await running.stop(10)
        assert await running.wait() == 7
    assert b"".join(output) == b"up\nbye\n"


async def test_process_is_killed_after_grace(tmp_path: Path) -> None:
    script = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    async with started_child(script, tmp_path, []) as running:
        await running.stop(0.1)
        assert is_alive(running.pid)
    assert not is_alive(running.pid)


async def test_missing_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        async with child(["no-such-program"], ENVIRON, tmp_path, print):
            raise AssertionError("unreachable")


def test_child_works_on_uvloop(tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run_script(tmp_path, "echo hello; exit 4")) == (4, b"hello\n")


PARENT = """
import asyncio, sys
from pathlib import Path
from tapestry.local.child_processes import child

def write(data):
    sys.stdout.buffer.write(data)
    sys.stdout.flush()

async def main():
    script = "sleep 1000 & echo $$ $!; wait"
    async with child(["sh", "-c", script], {"PATH": sys.argv[1]}, Path("."), write) as running:
        await running.wait()

asyncio.run(main())
"""


def test_nothing_is_left_after_we_are_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, os.environ["PATH"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as parent:
        assert parent.stdout is not None
        pids = [int(each) for each in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        parent.kill()
    for pid in pids:
        asyncio.run(wait_until_gone(pid))


async def test_child_dies_with_its_guard(tmp_path: Path) -> None:
    async with started_child("echo up; sleep 1000", tmp_path, []) as running:
        os.kill(running.group_id, signal.SIGKILL)
        assert await running.wait() == 137


# -- logs


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
