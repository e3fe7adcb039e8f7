"""Processes of clusters: start timeouts and exit messages."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.names import dns_label_error
from tapestry.local.cluster import ClusterPlan
from tapestry.local.cluster_processes import ClusterProcess, StallDetector, exit_text


class Clock:
    time = 0.0

    def __call__(self) -> float:
        return self.time


def test_slow_progress_does_not_stall() -> None:
    clock = Clock()
    progress = StallDetector(10, 1000, clock)
    for step in range(50):
        clock.time += 9
        assert not progress.has_stalled(step)
    clock.time += 11
    assert progress.has_stalled(49)


def test_progress_stalls_after_total_timeout() -> None:
    clock = Clock()
    progress = StallDetector(10, 100, clock)
    clock.time = 99
    assert not progress.has_stalled("busy")
    clock.time = 101
    assert progress.has_stalled("busier")


@pytest.mark.parametrize(
    ("code", "log", "text"),
    [
        (137, "a\nb\n", "was killed by SIGKILL"),
        (1, "a\nError: the port is taken\n", "exited with 1: Error: the port is taken"),
        (0, "", "exited with 0"),
    ],
)
def test_exit_text_names_signal_or_last_log_line(code: int, log: str, text: str) -> None:
    assert exit_text(code, log) == text


def test_full_disk_replaces_log_in_exit_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = ClusterProcess(tmp_path, ())
    process.log.write_text("all is well\n")
    assert exit_text(1, process.log_tail()) == "exited with 1: all is well"
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    assert exit_text(1, process.log_tail()) == f"exited with 1: no space is left on the disk of {tmp_path}; free some"


@given(st.text(min_size=1, max_size=80).filter(lambda name: "/" not in name and "\0" not in name))
def test_any_folder_gives_valid_cluster_name(name: str) -> None:
    assert dns_label_error(f"{ClusterPlan(Path('/data') / name).name}-500") is None


@pytest.mark.parametrize(
    ("folder", "name"), [("a_b", "a-b"), ("East.1", "east-1"), ("_", "cluster"), ("cluster-1", "cluster-1")]
)
def test_cluster_name_is_close_to_folder_name(folder: str, name: str) -> None:
    assert ClusterPlan(Path("/data") / folder).name == name
