"""`tapestry demo` plays its story to the end, and leaves nothing."""

import os
import subprocess
import sys
from pathlib import Path

TAPESTRY = Path(sys.executable).with_name("tapestry")


def test_the_story_is_played_to_its_end(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "KUBECONFIG": str(tmp_path / "of-somebody")}
    command = [TAPESTRY, "demo", "--pace", "0"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20:00-08:00 Mon,Tue,Wed,Thu,Fri" in done.stdout
    assert "job.batch/work created" in done.stdout
    assert "the owner's kill switch is on: tapestry.io/reclaim=now on the mount namespace" in done.stdout
    assert list(tmp_path.iterdir()) == []
    found = subprocess.run(["pgrep", "-a", "-f", str(tmp_path)], capture_output=True, text=True, check=False)
    assert found.stdout == ""
