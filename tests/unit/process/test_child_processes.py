"""Child processes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from tapestry.process.child_processes import GUARD_COMMAND, ChildProcess, child, input_guard, process_stat, uptime

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


async def run_script(tmp_path: Path, script: str) -> tuple[int, bytes]:
    output: list[bytes] = []
    async with child(["sh", "-c", script], ENVIRON, tmp_path, output.append) as running:
        code = await running.wait()
    return code, b"".join(output)


def test_guard_kills_its_group_at_the_end_of_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in an image without a shell."""
    monkeypatch.setenv("PATH", "/nonexistent")
    without_shell = input_guard("", "import os; os.read(0, 1); os.killpg(0, 9)")
    assert without_shell[0] == sys.executable
    for command in (GUARD_COMMAND, without_shell):
        with subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0, env=ENVIRON) as guard:
            assert guard.poll() is None
            guard.communicate()
        assert guard.returncode == -signal.SIGKILL


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
from tapestry.process.child_processes import child

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


def test_process_has_start_time_cpu_and_memory() -> None:
    before = process_stat(os.getpid())
    assert 0 < before.start_seconds <= uptime()
    assert 1 << 20 < before.memory < 1 << 40
    while process_stat(os.getpid()).cpu_seconds == before.cpu_seconds:
        sum(range(10_000))


def test_process_name_may_contain_anything() -> None:
    rename = "open('/proc/self/comm', 'w').write(') 1 2 (')"
    wait = "print(flush=True); input()"
    command = [sys.executable, "-c", f"{rename}; {wait}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 0 < process_stat(process.pid).start_seconds <= uptime()
        process.communicate(b"\n")


def test_ended_process_is_an_error() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(OSError):
        process_stat(ended.pid)
