"""The tutorial's commands, in order, as somebody would type them from the root of the repository."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import smells

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_does_what_it_says(tutorial: Path, kube_assets: Path, kubeconfig: Path) -> None:
    blocks = [block.script for block in smells.command_blocks(tutorial.read_text())]
    assert blocks
    environ = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "PATH": f"{Path(sys.executable).parent}:{kube_assets}:{os.environ['PATH']}",
    }
    script = "\n".join(["set -euo pipefail", "trap 'kill $(jobs -p)' EXIT", *blocks])
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "pod/hello" in done.stdout
