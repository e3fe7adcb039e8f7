"""Text output about pods and repairs."""

from datetime import UTC, datetime, timedelta

from tapestry.inspect.placement import Obstacle
from tapestry.inspect.pods import PodExplanation, PodStatus
from tapestry.inspect.repair import RepairResult
from tapestry.inspect.tables import WIDTH, pod_text, pods_table, repairs_table

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def new_pod(**fields: object) -> PodStatus:
    defaults = {"namespace": "shop", "name": "web", "phase": "Running", "node": "vnode-e1-n1", "physical_node": "n1"}
    defaults |= {"binding": "east", "twin": "leased/web-1", "state": "Running", "reason": "", "why": ""}
    return PodStatus(**{**defaults, "created": NOW - timedelta(hours=1), **fields})  # type: ignore[arg-type]


def new_explanation(pod: PodStatus, **fields: object) -> PodExplanation:
    defaults = {"todo": "", "twin_phase": "", "twin_node": "", "deadline": None, "nodes": 0, "free_nodes": 0}
    return PodExplanation(**{"pod": pod, **defaults, "obstacles": (), "unseen": "", **fields})  # type: ignore[arg-type]


def test_each_row_ends_with_reason() -> None:
    waits = new_pod(name="db", phase="Pending", twin="", reason="SecretMissing", why="shop/p does not exist")
    header, running, waiting = pods_table([new_pod(), waits], NOW).splitlines()
    assert header.split() == ["NAMESPACE", "POD", "PHASE", "NODE", "WHY"]
    assert running.split() == ["shop", "web", "Running", "vnode-e1-n1", "-"]
    assert waiting.split()[4:] == ["SecretMissing:", "shop/p", "does", "not", "exist"]
    assert "leased/web-1" in pods_table([new_pod()], NOW, wide=True)


def test_long_reason_is_cut_unless_wide() -> None:
    waits = new_pod(reason="RefusedBelow", why="because\n" * 50)
    assert pods_table([waits], NOW).endswith("...")
    assert "RefusedBelow" in pods_table([waits], NOW)
    assert len(pods_table([waits], NOW).splitlines()[1]) == WIDTH
    assert pods_table([waits], NOW, wide=True).endswith("because")
    assert "no pod" in pods_table([], NOW)


def test_explanation_shows_place_reason_and_advice() -> None:
    pod = new_pod(state="Waiting", reason="UnschedulableBelow", why="Insufficient cpu")
    text = pod_text(
        new_explanation(
            pod, todo="wait", twin_phase="Pending", deadline=NOW + timedelta(minutes=4), unseen="no answer"
        ),
        NOW,
    )
    assert text.splitlines() == [
        "Pod shop/web: Waiting (UnschedulableBelow)",
        "  Insufficient cpu",
        "  if this persists it fails at 2026-03-02T12:04:00Z (in 4m0s), with the default syncer settings",
        "  node vnode-e1-n1, which is n1 of ClusterBinding east",
        "  twin leased/web-1: Pending",
        "  advice: wait",
        "  the physical cluster was not read: no answer",
    ]


def test_obstacles_are_a_table_with_advice() -> None:
    pod = new_pod(state="Waiting", reason="Unscheduled", why="0/2", binding="", twin="")
    obstacles = (Obstacle("taint tapestry.io/vnode:NoSchedule", 2, "add it"),)
    lines = pod_text(new_explanation(pod, obstacles=obstacles, nodes=2, todo="see"), NOW).splitlines()
    assert lines[-1].split("   ") == ["taint tapestry.io/vnode:NoSchedule", "2 of 2", "add it"]
    assert "what to do" not in "".join(lines)
    free = pod_text(new_explanation(pod, nodes=2, free_nodes=1), NOW)
    assert "admit it to 1 of 2 virtual nodes: its scheduler has not chosen one yet" in free


def new_finding(**fields: object) -> RepairResult:
    defaults = {
        "binding": "east",
        "invariant": "Orphans",
        "side": "physical",
        "resource": "pods",
        "key": "leased/web-1",
    }
    return RepairResult(**{**defaults, "message": "it has no owner", "fixed": True, "remedy": "", **fields})  # type: ignore[arg-type]


def test_findings_show_outcome_and_each_remedy_once() -> None:
    left = new_finding(fixed=False, remedy="the syncer of the binding, which is running as me")
    _, fixed, _, _, _, remedy = repairs_table([new_finding(), left, left]).splitlines()
    cells = [cell.strip() for cell in fixed.split("   ") if cell.strip()]
    assert cells == ["east", "Orphans", "physical", "pods leased/web-1", "yes", "it has no owner"]
    assert remedy == "east: fixed by the syncer of the binding, which is running as me"
    assert repairs_table([left], wide=True).endswith("as me")
    assert repairs_table([]) == "no inconsistencies were found"
