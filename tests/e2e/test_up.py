"""`tapestry up` as a person meets it: start it, type the lines that it prints, press Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
import threading
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


def test_the_lines_that_up_prints_work_and_ctrl_c_leaves_nothing_running(kube_assets: Path, tmp_path: Path) -> None:
    command = [TAPESTRY, "up", "--data", tmp_path / "data"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said = read_until(process, "describe redismigration")
        lines = [line.strip() for line in said.split("Try:")[1].splitlines() if line.strip()]
        lines.insert(2, lines[1].split()[0] + " wait --for=jsonpath={.status.phase}=Migrate redismigration/rmtest")
        shown = subprocess.run(
            ["bash", "-euc", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        assert shown.returncode == 0, shown.stderr
        assert "PhaseMigrate" in shown.stdout
        assert "pod/hello" in shown.stdout
    finally:
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
    assert "stopping" in rest
    assert process.returncode == 0
    left = subprocess.run(["pgrep", "-f", str(tmp_path / "data")], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def test_up_without_kubernetes_says_how_to_get_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [TAPESTRY, "up", "--data", tmp_path],
        env={**os.environ, "KUBEBUILDER_ASSETS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "run make kube-assets" in done.stderr
    assert len(done.stderr.splitlines()) == 1
