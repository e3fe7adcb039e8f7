"""Tables and texts of the commands."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from tapestry.inspect.explain import NodeExplanation, PolicyEffect, PolicyExplanation, ResourceExplanation
from tapestry.inspect.pods import PodStatus
from tapestry.inspect.status import BindingStatus, NodeStatus, PolicyStatus
from tapestry.inspect.tables import (
    WIDTH,
    amount_text,
    bindings_table,
    duration_text,
    node_policies_table,
    node_text,
    nodes_table,
    pods_table,
    policies_table,
    policy_text,
    table,
    time_text,
)

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_columns_are_aligned_and_empty_cells_are_dashes() -> None:
    assert table(["NAME", "N"], [["a", 0], ["longer", ""]]) == "NAME     N\na        0\nlonger   -"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (45, "45s"),
        (90, "1m30s"),
        (3600, "1h"),
        (11520, "3h12m"),
        (86400, "1d"),
        (97200, "1d3h"),
        (10**6, "11d"),
    ],
)
def test_duration_has_two_largest_units(seconds: int, text: str) -> None:
    assert duration_text(timedelta(seconds=seconds)) == text


def test_time_shows_distance() -> None:
    assert time_text(NOW + HOUR, NOW) == "2026-03-02T13:00:00Z (in 1h)"
    assert time_text(NOW - HOUR, NOW) == "2026-03-02T11:00:00Z (1h ago)"
    assert time_text(None, NOW) == ""


@pytest.mark.parametrize(
    ("resource", "text", "expected"),
    [
        ("memory", "16393244Ki", "15.6Gi"),
        ("memory", "8Gi", "8Gi"),
        ("memory", "512", "512"),
        ("hugepages-2Mi", "0", "0"),
        ("cpu", "1500m", "1500m"),
        ("memory", "", ""),
    ],
)
def test_bytes_are_in_largest_unit(resource: str, text: str, expected: str) -> None:
    assert amount_text(resource, text) == expected


def new_binding(**fields: object) -> BindingStatus:
    defaults = dict.fromkeys(BindingStatus.__struct_fields__)
    return BindingStatus(
        **{
            **defaults,
            **dict.fromkeys(("phase", "leasing", "mount_namespace", "identity"), ""),
            "name": "east",
            "cluster_id": "e1",
            "nodes": 2,
            "pods": 0,
            "leased": {"cpu": "4"},
            "used": {},
            "created": NOW - HOUR,
            "troubles": [],
            **fields,
        }
    )


def test_bindings_table_ends_with_problems() -> None:
    text = bindings_table([new_binding(troubles=["Leasing=False: NoPolicy"], last_seen=NOW - HOUR)], NOW)
    header, line, _, trouble = text.splitlines()
    assert header.split() == ["NAME", "LEASING", "NODES", "PODS", "CPU", "MEMORY", "NEXT-CHANGE", "LAST-SEEN"]
    assert line.split() == ["east", "-", "2", "0", "0/4", "-", "-", "1h", "ago"]
    assert trouble == "east: Leasing=False: NoPolicy"


def test_wide_table_has_more_columns() -> None:
    narrow, wide = (
        bindings_table([new_binding(identity="x")], NOW, wide=wide).splitlines()[0] for wide in (False, True)
    )
    assert wide.split()[: len(narrow.split())] == narrow.split()
    assert {"CLUSTER-ID", "PHASE", "AGE", "IDENTITY"} <= set(wide.split())


def test_empty_table_is_a_sentence() -> None:
    assert "tapestry join" in bindings_table([], NOW)
    assert "tapestry status" in nodes_table([], NOW)
    assert policies_table([], NOW) == "there is no policy, so nothing is lent"


def new_listed_policy(**fields: object) -> PolicyStatus:
    defaults: dict[str, object] = dict.fromkeys(PolicyStatus.__struct_fields__)
    named = {"side": "owner", "name": "nights", "cluster": "east", "nodes": 0, "created": NOW - HOUR}
    return PolicyStatus(**{**defaults, **named, "windows": [], "limits": {}, "leased": {}, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(("complaint", "expected"), [("", ["Open", "always"]), ("no time zone", ["Invalid", "-"])])
def test_invalid_policy_is_not_always_open(complaint: str, expected: list[str]) -> None:
    line = (
        policies_table([new_listed_policy(state=expected[0], open=True, complaint=complaint)], NOW)
        .splitlines()[1]
        .split()
    )
    assert [line[2], line[-1]] == expected
    (answered,) = node_policies_table([msgspec.structs.replace(POLICY, complaint=complaint)], NOW).splitlines()[1:]
    assert ("always" in answered) == (not complaint)


def new_explanation(**fields: object) -> NodeExplanation:
    defaults = {"node": "vnode-e1-n1", "physical_node": "n1", "binding": "east", "state": "Open", "reason": "Leased"}
    return NodeExplanation(**{**defaults, "why": "because", **fields})  # type: ignore[arg-type]


ROW = ResourceExplanation("gpu", "1", "0", "3", "0", "3", "owner/half", "50% of idle", "500m")
POLICY = PolicyEffect("owner/half", True, True, True, [], "pods finish", NOW + HOUR, "")


def test_node_text_shows_arithmetic_policies_and_end() -> None:
    explanation = new_explanation(
        resources=(ROW,), policies=(POLICY,), ends=NOW + HOUR, next_change=NOW + HOUR, deadline=NOW + 2 * HOUR
    )
    assert node_text(explanation, NOW).splitlines() == [
        "Node vnode-e1-n1: Open (Leased)",
        "  because",
        "  physical node n1 of ClusterBinding east",
        "  closes at 2026-03-02T13:00:00Z (in 1h); then remaining pods are reclaimed at 2026-03-02T14:00:00Z (in 2h)",
        "",
        "RESOURCE   ALLOCATABLE   FOREIGN   IDLE   LEASED   USED   DECIDED-BY",
        "gpu        3             0         3      1        0      owner/half: 50% of idle; 500m floored",
        "",
        "POLICY       STATE   ROLE      NEXT-CHANGE                           WINDOWS   TERMS",
        "owner/half   Open    decides   closes 2026-03-02T13:00:00Z (in 1h)   always    pods finish",
    ]


def test_node_text_without_physical_cluster_has_no_arithmetic() -> None:
    text = node_text(new_explanation(resources=(ResourceExplanation("cpu", "2", "1"),), unseen="no answer"), NOW)
    assert "the physical cluster was not read: no answer" in text
    assert "RESOURCE   LEASED   USED" in text
    assert "no end is scheduled" not in text


def test_node_text_without_virtual_node_names_physical() -> None:
    text = node_text(new_explanation(node="", state="Withdrawn", reason="NoPolicy"), NOW)
    assert text.startswith("Node n1 (no virtual node): Withdrawn (NoPolicy)")


def test_node_text_mentions_outdated_amounts() -> None:
    assert "other amounts of cpu; is its syncer running?" in node_text(new_explanation(behind=("cpu",)), NOW)


def new_policy(**fields: object) -> PolicyExplanation:
    defaults = dict.fromkeys(PolicyExplanation.__struct_fields__, "")
    lists = {"windows": [], "limits": {}, "nodes": [], "leased": {}, "since": None, "next_change": None, "others": 0}
    return PolicyExplanation(**{**defaults, **lists, "policy": "owner/half", "open": True, **fields})  # type: ignore[arg-type]


def test_policy_without_binding_names_the_cluster() -> None:
    text = policy_text(new_policy(cluster="est", terms="pods finish"), NOW)
    assert "no ClusterBinding has the name or clusterID est" in text
    assert "lends nothing now" in text


def test_invalid_policy_shows_effective_spec() -> None:
    held = policy_text(new_policy(complaint="bad", uses_last_good=True), NOW)
    assert "bad; its last good spec stays in effect" in held
    assert "of each node: all that is idle" in held
    never_good = policy_text(new_policy(complaint="bad", uses_last_good=False), NOW)
    assert "bad; it has no effect" in never_good
    assert "of each node:" not in never_good


# -- tables of 80 columns


def new_node(**fields: object) -> NodeStatus:
    defaults: dict[str, object] = dict.fromkeys(NodeStatus.__struct_fields__)
    expected = {"name": "vnode-north-worker-1", "binding": "north", "state": "Open", "ready": True, "cordoned": True}
    amounts = {"leased": {"cpu": "1500m", "memory": "15.6Gi"}, "used": {"cpu": "750m", "memory": "512Mi"}, "pods": 12}
    later = {"lease_ends": NOW + HOUR, "created": NOW - HOUR, "policies": ["owner/north-4yfifvdstqcuyrem"]}
    return NodeStatus(**{**defaults, **expected, **amounts, **later, "physical_node": "n", **fields})  # type: ignore[arg-type]


def new_waiting_pod(**fields: object) -> PodStatus:
    defaults: dict[str, object] = dict.fromkeys(PodStatus.__struct_fields__, "")
    expected = {
        "namespace": "default",
        "name": "web-7d4b9c6f5d-x2x7k",
        "phase": "Pending",
        "node": "vnode-north-worker-1",
    }
    why = {"reason": "UnschedulableBelow", "why": "0/5 nodes are available: 5 Insufficient cpu. " * 4}
    return PodStatus(**{**defaults, **expected, **why, "created": NOW, **fields})  # type: ignore[arg-type]


WINDOW = "22:00-06:00 Mon,Tue,Wed,Thu,Fri Asia/Shanghai"
TABLES = {
    "status": bindings_table(
        [
            new_binding(
                leased={"cpu": "200", "memory": "800Gi"}, used={"cpu": "20", "memory": "80Gi"}, leasing="Leasing"
            ),
            new_binding(leasing="PhysicalClusterUnreachable", next_change=NOW + 99 * HOUR, last_seen=NOW - HOUR),
        ],
        NOW,
    ),
    "nodes": nodes_table([new_node()], NOW),
    "nodes with long names": nodes_table([new_node(name=f"vnode-{'c' * 24}-ip-10-0-12-34.ec2.internal")], NOW),
    "pods": pods_table([new_waiting_pod(), new_waiting_pod(namespace="kube-public")], NOW),
    "policies": policies_table(
        [new_listed_policy(name="cluster-1-4yfifvdstqcuyrem", state="Reclaimed", complaint="", windows=[WINDOW] * 2)],
        NOW,
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_table_fits_into_80_columns(name: str) -> None:
    assert max(map(len, TABLES[name].splitlines())) <= WIDTH == 80


def test_names_are_never_cut() -> None:
    long = f"vnode-{'c' * 24}-ip-10-0-12-34.ec2.internal"
    assert nodes_table([new_node(name=long)], NOW).splitlines()[1].split()[0] == long


def test_last_seen_is_exact_or_a_bound() -> None:
    exact = bindings_table([new_binding(last_seen=NOW - timedelta(seconds=8), last_seen_exact=True)], NOW)
    assert exact.endswith("8s ago")
    vague = bindings_table([new_binding(last_seen=NOW - timedelta(minutes=4), last_seen_exact=False)], NOW)
    assert vague.endswith("<6m ago")


def test_pods_of_closed_node_finish_or_are_reclaimed() -> None:
    closed = {"state": "Closed", "reason": "OutOfTimeWindows", "resources": (ROW,)}
    forced = node_text(new_explanation(**closed, deadline=NOW - timedelta(seconds=3), terms_by="owner/half"), NOW)
    assert "remaining pods are being reclaimed, by owner/half" in forced
    assert forced.count("reclaimed") == 1
    assert "stays" not in forced
    kind = node_text(new_explanation(**closed), NOW)
    assert "running pods may finish" in kind
