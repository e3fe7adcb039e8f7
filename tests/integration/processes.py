"""Run processes and read their CPU time and memory from the kernel."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def running(command: Sequence[object], log: Path) -> Iterator[int]:
    """Run a process in the root of the repository and terminate it afterwards.  Yield its id.

    Errors in the context or at the end of the process include the last lines of its log.
    """
    with log.open("ab") as stderr:
        process = subprocess.Popen([str(word) for word in command], cwd=ROOT, stderr=stderr)
    try:
        yield process.pid
        process.terminate()
        if process.wait(30) not in (0, -signal.SIGTERM):
            raise RuntimeError(f"{command} ended with {process.returncode}")
    except BaseException as error:
        error.add_note(f"the end of {log}:\n{log.read_text()[-2000:]}")
        raise
    finally:
        process.kill()
        process.wait()


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of the process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1000
