"""`tapestry demo` runs to its end and cleans up."""

import os
import subprocess
from pathlib import Path

import pytest

from .worlds import TAPESTRY, leftover_processes


@pytest.mark.timeout(300)
def test_demo_runs_to_the_end_and_cleans_up(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "KUBECONFIG": str(tmp_path / "other-kubeconfig")}
    command = [TAPESTRY, "demo", "--pace", "0"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20:00-08:00 Mon,Tue,Wed,Thu,Fri" in done.stdout
    assert "job.batch/work created" in done.stdout
    assert "the owner's kill switch is on: tapestry.io/reclaim=now on the mount namespace" in done.stdout
    assert list(tmp_path.iterdir()) == []
    assert leftover_processes(tmp_path) == []
