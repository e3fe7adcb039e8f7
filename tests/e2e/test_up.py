"""`tapestry up` as a person meets it: start it, type the lines that it prints, press Ctrl-C, and start it again."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TAPESTRY = Path(sys.executable).with_name("tapestry")


def read_until(process: subprocess.Popen[str], pattern: str) -> str:
    """What the process prints up to the line that matches; a watchdog ends a silent one."""
    assert process.stdout is not None
    watchdog = threading.Timer(90, process.kill)
    watchdog.start()
    text = ""
    for line in process.stdout:
        text += line
        if re.search(pattern, line):
            watchdog.cancel()
            return text
    watchdog.cancel()
    pytest.fail(f"it ended without saying {pattern!r}:\n{text}")


@contextmanager
def up(folder: Path, *flags: str) -> Iterator[str]:
    """A world that has started; what it said.  It is ended by Ctrl-C, and leaves nothing running."""
    command = [TAPESTRY, "up", "--data", folder, "--nodes", "2", *flags]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield read_until(process, "Ctrl-C stops everything")
    finally:
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert "stopping" in rest
    assert process.returncode == 0
    assert processes_in(folder) == []


def processes_in(folder: Path) -> list[str]:
    """What runs for a world, by its command line."""
    found = subprocess.run(["pgrep", "-a", "-f", str(folder)], capture_output=True, text=True, check=False)
    return found.stdout.splitlines()


def shell(lines: str, kube_assets: Path, **variables: str) -> str:
    """What a person's shell shows who types these lines."""
    path = f"{kube_assets}:{TAPESTRY.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", lines],
        cwd=ROOT,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_lines_that_up_prints_work_and_everything_is_there_again_the_next_time(
    kube_assets: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "world"
    waiting = "kubectl rollout status deployment web --timeout 30s\n"
    with up(folder) as said:
        lines = "\n".join(line.strip() for line in said.splitlines() if line.startswith("  ") and "s  " not in line)
        shown = shell(lines.replace("kubectl get pods", waiting + "kubectl get pods"), kube_assets)
        assert shown.count("vnode-cluster-") >= 4
        assert shown.count("Running") >= 20
        assert "cluster-2" in shown
    with up(folder):
        kubeconfig = {"KUBECONFIG": str(folder / "virtual" / "kubeconfig")}
        shell(waiting, kube_assets, **kubeconfig)
        assert len(shell("kubectl get pods -o name", kube_assets, **kubeconfig).splitlines()) == 20


def test_a_killed_world_leaves_nothing_running_and_a_second_one_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    command = [TAPESTRY, "up", "--data", folder, "--clusters", "1", "--nodes", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    read_until(process, "Ctrl-C stops everything")
    second = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 1
    assert "tapestry down" in second.stderr
    assert int((folder / "pid").read_text()) == process.pid
    process.kill()
    process.communicate(timeout=30)
    for _ in range(100):
        if not processes_in(folder):
            break
        threading.Event().wait(0.1)
    assert processes_in(folder) == []


def test_down_stops_a_world_and_forgets_it(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    command = [TAPESTRY, "up", "--data", folder, "--clusters", "1", "--nodes", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    read_until(process, "Ctrl-C stops everything")
    done = subprocess.run(
        [TAPESTRY, "down", "--data", folder, "--purge"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert not folder.exists()
