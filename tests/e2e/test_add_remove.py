"""`tapestry add` and `tapestry remove`: add clusters to a running world and remove them."""

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .worlds import TAPESTRY, TIMEOUT_SECONDS, running_world

pytestmark = pytest.mark.timeout(300)  # worlds start and end within it, on a shared machine
SMALL = ("--clusters", "1", "--nodes", "1")


def tapestry(*words: str | Path, code: int = 0) -> str:
    done = subprocess.run([TAPESTRY, *words], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_added_cluster_starts_and_stops_with_world(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    nodes = ("k", "get", "nodes", "-o", "name", "--kubeconfig", folder / "third" / "kubeconfig")
    assert "`tapestry up` starts one" in tapestry("add", "third", "--data", folder, code=1)
    with running_world(folder, *SMALL):
        assert "tapestry join third --cluster-kubeconfig" in tapestry("add", "third", "--nodes", "2", "--data", folder)
        assert tapestry(*nodes).splitlines() == ["node/third-1", "node/third-2"]
        assert "third answers, with 1 new node;" in tapestry("add", "third", "--nodes", "3", "--data", folder)
        output = tapestry("add", "cluster-1", "--nodes", "1", "--data", folder)
        assert "cluster-1 answers, with 0 new nodes; it has already joined" in output
        assert "5000" in tapestry("add", "third", "--nodes", "100000", "--data", folder, code=2)
        assert "choose another name" in tapestry("add", "virtual", "--data", folder, code=1)
        assert "'Third' is not allowed" in tapestry("add", "Third", "--data", folder, code=1)
    with running_world(folder):
        assert tapestry(*nodes).splitlines() == ["node/third-1", "node/third-2", "node/third-3"]
        assert "it is part of the world" in tapestry("remove", "cluster-1", "--data", folder, code=1)
        assert "there is no cluster fourth" in tapestry("remove", "fourth", "--data", folder, code=1)
        assert "third removed" in tapestry("remove", "third", "--data", folder)
        assert not (folder / "third").exists()
        interrupted = subprocess.Popen(
            [TAPESTRY, "add", "many", "--nodes", "5000", "--data", folder], stdout=subprocess.DEVNULL
        )
        wait_until((folder / "many" / "kubeconfig").exists)
        interrupted.send_signal(signal.SIGINT)
        assert interrupted.wait(TIMEOUT_SECONDS) == 130
        assert not (folder / "many").exists()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.1)
