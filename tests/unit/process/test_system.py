"""The stop event, with real signals, and memory of large blocks after they were freed."""

import asyncio
import os
import platform
import signal
import subprocess
import sys

import pytest

from tapestry.process.system import stop_event

PROGRAM = """
import threading
from pathlib import Path
from tapestry.process.system import return_large_blocks_to_system

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def work():
    blocks = [bytearray(200_000) for _ in range(400)]  # 80 MB
    small = [bytes(600) for _ in range(2_000)]  # allocated above the blocks
    kept.append(small)

kept = []
if {is_set}:
    assert return_large_blocks_to_system()
for size in (30_000_000, 20_000_000):
    bytearray(size)  # glibc raises its thresholds when these are freed
before = resident_bytes()
for _ in range(3):
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(resident_bytes() - before)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
async def test_signal_sets_the_stop_event(number: signal.Signals) -> None:
    stopping = stop_event()
    assert not stopping.is_set()
    os.kill(os.getpid(), number)
    async with asyncio.timeout(10):
        await stopping.wait()


def growth(*, is_set: bool) -> int:
    program = PROGRAM.replace("{is_set}", str(is_set))
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are those of glibc")
def test_freed_large_blocks_return_to_the_system() -> None:
    assert growth(is_set=True) < 20_000_000 < growth(is_set=False)
