"""`tapestry add`: one more cluster in a world that is up."""

import subprocess
from pathlib import Path

import pytest

from .worlds import LONGEST, TAPESTRY, up

pytestmark = pytest.mark.timeout(300)  # worlds start and end in here, on a machine that others use, too
SMALL = ("--clusters", "1", "--nodes", "1")


def tapestry(*words: str | Path, code: int = 0) -> str:
    done = subprocess.run([TAPESTRY, *words], capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_cluster_is_added_to_a_world_and_starts_and_ends_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    nodes = ("k", "get", "nodes", "-o", "name", "--kubeconfig", folder / "third" / "kubeconfig")
    assert "`tapestry up` starts one" in tapestry("add", "third", "--data", folder, code=1)
    with up(folder, *SMALL):
        assert "tapestry join third --cluster-kubeconfig" in tapestry("add", "third", "--nodes", "2", "--data", folder)
        assert tapestry(*nodes).splitlines() == ["node/third-1", "node/third-2"]
        assert "cluster-1 answers; it has joined already" in tapestry("add", "cluster-1", "--data", folder)
        assert "choose another name" in tapestry("add", "virtual", "--data", folder, code=1)
        assert "'Third' is not allowed" in tapestry("add", "Third", "--data", folder, code=1)
    with up(folder):
        assert tapestry(*nodes).splitlines() == ["node/third-1", "node/third-2"]
