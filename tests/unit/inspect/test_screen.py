"""Live view on terminals of several sizes."""

import io
import subprocess
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tapestry.inspect.pods import PodStatus
from tapestry.inspect.screen import Footer, local_time_text, row_shares, screen, wrapped_lines
from tapestry.inspect.status import BindingStatus, NodeStatus
from tapestry.inspect.world_state import WorldState, world_state_of
from tapestry.kube.objects import Object

NOW = datetime(2026, 3, 2, 18, 30, tzinfo=UTC)  # a Monday
LINES = ("export KUBECONFIG=/home/somebody/.tapestry/virtual/kubeconfig", "kubectl get nodes")


def new_binding(
    name: str, leasing: str = "Leasing", change: timedelta | None = None, troubles: int = 0
) -> BindingStatus:
    return BindingStatus(
        name=name,
        cluster_id=name,
        phase="Ready",
        leasing=leasing,
        nodes=5,
        pods=12,
        leased={"cpu": "20", "memory": "64Gi"},
        used={"cpu": "2500m", "memory": "3Gi"},
        next_change=NOW + change if change else None,
        last_seen_exact=False,
        last_seen=NOW,
        created=NOW,
        mount_namespace="tapestry-leased",
        identity="",
        credentials_expire=None,
        troubles=[f"Ready=False: it is broken in {number} ways" for number in range(troubles)],
    )


def new_node(name: str, state: str = "Open", ready: bool = True) -> NodeStatus:
    return NodeStatus(
        name=name,
        binding="cluster-1",
        physical_node=name,
        state=state,
        ready=ready,
        cordoned=False,
        leased={"cpu": "4", "memory": "16Gi"},
        used={"cpu": "500m"},
        pods=2,
        policies=[],
        lease_ends=None,
        created=NOW,
    )


def new_waiting_pod(name: str) -> PodStatus:
    return PodStatus(
        namespace="default",
        name=name,
        phase="Pending",
        node="",
        physical_node="",
        binding="",
        twin="",
        state="Waiting",
        reason="Unscheduled",
        why="0/10 nodes are available: 10 Insufficient cpu.",
        created=NOW - timedelta(seconds=95),
    )


def new_state(bindings: int = 2, nodes: int = 4, waiting: int = 1) -> WorldState:
    return WorldState(
        [new_binding(f"cluster-{number}", change=timedelta(hours=3, minutes=30)) for number in range(1, bindings + 1)],
        [new_node(f"vnode-cluster-1-n{number}") for number in range(1, nodes + 1)],
        {"Running": 24, "Pending": waiting},
        [new_waiting_pod(f"web-{number}") for number in range(waiting)],
        NOW,
    )


def rows(seen: WorldState, width: int = 120, height: int = 40, prompt: Footer = Footer(LINES)) -> list[str]:  # noqa: B008
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False, color_system=None)
    with console.capture() as captured:
        console.print(screen(seen, prompt, width, height))
    return captured.get().splitlines()


def row_of(seen: list[str], word: str) -> str:
    return next(line for line in seen if word in line)


def test_clusters_show_leases_and_next_change() -> None:
    seen = rows(new_state())
    assert row_of(seen, "cluster-1 ").split() == [
        *("cluster-1", "Leasing", "5", "12", "2500m/20", "3Gi/64Gi"),
        *("changes", "22:00", "(in", "3h30m)"),
    ]


@pytest.mark.parametrize("width", [80, 100])
def test_memory_is_displayed_if_it_fits(width: int) -> None:
    seen = rows(new_state(), width=width)
    assert "3Gi/64Gi" in row_of(seen, "cluster-1 ")
    assert "0/16Gi" in row_of(seen, "vnode-cluster-1-n1")


def test_narrow_screen_drops_memory_before_cpu() -> None:
    line = row_of(rows(new_state(), width=66), "cluster-1 ")
    assert "2500m/20" in line
    assert "3Gi/64Gi" not in line


def test_closed_cluster_shows_opening() -> None:
    closed = new_binding("night", "OutOfTimeWindows", timedelta(hours=1, minutes=30))
    assert "opens 20:00 (in 1h30m)" in row_of(rows(WorldState([closed], [], {}, [], NOW)), "night")


@pytest.mark.parametrize(
    ("ahead", "text"),
    [
        (timedelta(minutes=5), "18:35 (in 5m0s)"),
        (timedelta(hours=11, minutes=30), "tomorrow 06:00 (in 11h30m)"),
        (timedelta(days=3), "Thu 18:30 (in 3d)"),
        (timedelta(days=20), "22 Mar 18:30 (in 20d)"),
        (timedelta(seconds=-1), "18:29 (now)"),
    ],
)
def test_time_is_displayed_relative_to_today(ahead: timedelta, text: str) -> None:
    assert local_time_text(NOW + ahead, NOW) == text


def test_time_is_displayed_in_viewer_zone() -> None:
    local = NOW.astimezone(timezone(timedelta(hours=8)))  # Tuesday, 02:30 there
    assert local_time_text(NOW + timedelta(hours=3), local) == "05:30 (in 3h)"


def test_pods_are_counted_and_waiting_ones_show_reason() -> None:
    seen = rows(new_state())
    assert row_of(seen, "24 Running") == "PODS  1 Pending, 24 Running"
    assert row_of(seen, "web-0").strip() == (
        "default/web-0 waits for 1m35s: Unscheduled: 0/10 nodes are available: 10 Insufficient cpu."
    )


def test_abnormal_nodes_are_first() -> None:
    nodes = [new_node("a"), new_node("b"), new_node("closed", "Closed"), new_node("lost", ready=False)]
    seen = [line.split()[0] for line in rows(WorldState([], nodes, {}, [], NOW)) if "/16Gi" in line]
    assert seen == ["closed", "lost", "a", "b"]


def test_problems_and_events_are_displayed() -> None:
    seen = rows(
        WorldState([new_binding("east", troubles=1)], [], {}, [], NOW),
        prompt=Footer(LINES, ["18:29:01 cluster-1 was killed by SIGKILL; restarting"]),
    )
    assert "it is broken in 0 ways" in "\n".join(seen)
    assert "! 18:29:01 cluster-1 was killed by SIGKILL" in "\n".join(seen)


def test_hidden_rows_are_counted() -> None:
    seen = rows(new_state(nodes=1000, waiting=50), height=30)
    visible = sum("/16Gi" in line for line in seen)
    assert f"and {1000 - visible} nodes more" in row_of(seen, "nodes more")
    waits = sum("waits for" in line for line in seen)
    assert f"and {50 - waits} pods more" in row_of(seen, "pods more")


@given(st.integers(30, 200), st.integers(24, 80), st.integers(0, 8), st.integers(0, 60), st.integers(0, 60))
def test_screen_fits_terminal_and_has_all_commands(
    width: int, height: int, bindings: int, nodes: int, waiting: int
) -> None:
    seen = rows(new_state(bindings, nodes, waiting), width, height)
    assert len(seen) <= max(height, 22)
    assert max(map(cell_len, seen)) <= width
    text = "\n".join(line.rstrip() for line in seen).replace("\\\n", "")
    assert all(line in text for line in LINES)


@given(st.text("abcdefgh -=/.", min_size=1), st.integers(2, 40))
def test_wrapped_line_fits_and_joins_again(line: str, width: int) -> None:
    pieces = list(wrapped_lines(line, width))
    assert all(len(piece) <= width for piece in pieces)
    assert "\n".join(pieces).replace("\\\n", "") == line


def test_shell_joins_wrapped_line() -> None:
    line = "echo export KUBECONFIG=/a/very/long/path/to/a/kubeconfig"
    done = subprocess.run(["sh", "-c", "\n".join(wrapped_lines(line, 17))], capture_output=True, text=True, check=True)
    assert done.stdout == line.removeprefix("echo ") + "\n"


@given(st.integers(0, 60), st.lists(st.integers(0, 30), min_size=3, max_size=3))
def test_rows_are_distributed_without_waste(max_rows: int, requested: list[int]) -> None:
    given_rows = row_shares(max_rows, requested)
    assert all(got <= want for got, want in zip(given_rows, requested, strict=True))
    assert all(got >= min(want, 3) for got, want in zip(given_rows, requested, strict=True))
    if max_rows >= sum(requested):
        assert given_rows == requested
    else:
        assert sum(given_rows) <= max(max_rows, 9)


def new_object(name: str, **parts: Object) -> Object:
    created = {"name": name, "uid": name, "creationTimestamp": "2026-03-02T18:00:00Z"}
    return {**parts, "metadata": {**created, **parts.get("metadata", {})}}


def test_state_has_pods_of_virtual_nodes_and_unscheduled() -> None:
    secret = {"name": "east", "namespace": "tapestry-system"}
    spec = {"clusterID": "east", "mountNamespace": "leased", "secretRef": secret}
    binding = new_object("east", spec=spec, status={"nodes": 1})
    labels = {"tapestry.io/cluster-binding-uid": "east"}
    node = new_object("vnode", metadata={"labels": labels}, spec={}, status={"allocatable": {"cpu": "4"}})

    def new_pod(name: str, phase: str, node: str = "") -> Object:
        spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}], "nodeName": node}
        return new_object(name, metadata={"namespace": "default"}, spec=spec, status={"phase": phase})

    pods = [
        new_pod("runs", "Running", "vnode"),
        new_pod("ours", "Running", "this-machine"),
        new_pod("waits", "Pending"),
        new_pod("starts", "Pending", "vnode"),
    ]
    seen = world_state_of([binding], [node], pods, NOW)
    assert seen.phases == {"Running": 1, "Pending": 2}
    assert [each.name for each in seen.waiting] == ["starts", "waits"]
    assert (seen.nodes[0].pods, seen.nodes[0].used["cpu"]) == (2, "2")
