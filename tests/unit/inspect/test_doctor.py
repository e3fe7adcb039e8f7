"""Findings of the doctor and their advice."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.client import Client
from tapestry.client.transport import Request, Response
from tapestry.controller.testing import InProcessApi
from tapestry.inspect import findings
from tapestry.inspect.anykind.kubectl_lite import KubectlLite
from tapestry.inspect.doctor import Doctor
from tapestry.inspect.findings import Finding, findings_text, safeguard_finding
from tapestry.inspect.queries import Queries
from tapestry.inspect.status import BindingStatus, NodeStatus, PolicyStatus
from tapestry.kube.errors import TransportError
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import LEASES, NAMESPACES
from tapestry.kube.times import micro_timestamp
from tapestry.manager.installation import installation_objects
from tapestry.manager.leftovers import Leftover, leftovers_patch

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


def levels(found: Iterable[Finding]) -> list[str]:
    return [each.level for each in found]


def any_value(kind: Any, **fields: Any) -> Any:
    return kind(**{**dict.fromkeys(kind.__struct_fields__), **fields})


def new_binding(**fields: Any) -> BindingStatus:
    defaults = {"name": "east", "cluster_id": "e1", "phase": "Ready", "nodes": 2, "pods": 3, "troubles": []}
    found: BindingStatus = any_value(BindingStatus, **{**defaults, **fields})
    return found


def new_lease(age: timedelta, holder: str = "somebody") -> Object:
    return {"spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": micro_timestamp(NOW - age)}}


@pytest.mark.parametrize(
    ("seconds", "level"), [(0, ["ok"]), (1.5, ["ok"]), (-10, ["warning"]), (10, ["warning"]), (-3600, ["wrong"])]
)
def test_clock_difference_is_reported(seconds: float, level: list[str]) -> None:
    assert levels(findings.clock_findings(NOW + timedelta(seconds=seconds), NOW)) == level


def test_missing_server_time_is_ignored() -> None:
    assert levels(findings.clock_findings(None, NOW)) == []


@pytest.mark.parametrize(
    ("lease", "level", "found"),
    [
        (None, "wrong", "has never had a leader"),
        ({"spec": {}}, "wrong", "has no leader now"),
        (new_lease(MINUTE, holder=""), "wrong", "has no leader now"),
        (new_lease(MINUTE), "wrong", "leader somebody was last seen 1m0s ago"),
        (new_lease(MINUTE / 10), "ok", "leader is somebody"),
    ],
)
def test_leader_must_have_renewed_recently(lease: Object | None, level: str, found: str) -> None:
    finding = findings.leader_finding("manager", lease, NOW, "look there")
    assert (finding.level, finding.found) == (level, found)
    assert finding.advice == ("look there" if level == "wrong" else "")


@pytest.mark.parametrize(
    ("binding", "level"),
    [
        (new_binding(last_seen=NOW - MINUTE), ["ok"]),
        (new_binding(), ["ok"]),
        (new_binding(last_seen=NOW - 30 * MINUTE), ["wrong"]),
        (new_binding(troubles=["Connected=False: Unreachable", "Leasing=False: NoPolicy"]), ["wrong", "wrong"]),
        (new_binding(credentials_expire=NOW + 8 * DAY), ["ok"]),
        (new_binding(credentials_expire=NOW + DAY), ["ok", "warning"]),
        (new_binding(credentials_expire=NOW - DAY), ["ok", "wrong"]),
    ],
)
def test_binding_is_judged_by_conditions_contact_and_token(binding: BindingStatus, level: list[str]) -> None:
    assert levels(findings.binding_findings([binding], (), NOW)) == level


def test_unreachable_cluster_is_wrong_at_once() -> None:
    binding = new_binding(last_seen=NOW - timedelta(seconds=7), last_seen_exact=True)
    finding = list(findings.binding_findings([binding], {binding.name}, NOW))
    assert [(each.level, each.found) for each in finding] == [
        ("wrong", "its cluster does not answer; it last answered 7s ago")
    ]


def test_exact_contact_over_a_minute_ago_is_wrong() -> None:
    binding = new_binding(last_seen=NOW - timedelta(seconds=70), last_seen_exact=True)
    assert levels(findings.binding_findings([binding], (), NOW)) == ["wrong"]
    vague = new_binding(last_seen=NOW - timedelta(minutes=5), last_seen_exact=False)
    assert levels(findings.binding_findings([vague], (), NOW)) == ["ok"]


def test_healthy_binding_reports_leasing_reason() -> None:
    (finding,) = findings.binding_findings([new_binding(leasing="Reclaimed", pods=1)], (), NOW)
    assert finding.found == "Ready, Reclaimed, 2 nodes, 1 pod"


def test_missing_bindings_are_a_warning_with_hint() -> None:
    (finding,) = findings.binding_findings([], (), NOW)
    assert (finding.level, finding.advice) == ("warning", "`tapestry join --help` shows how")


def test_unready_nodes_are_named() -> None:
    found = [any_value(NodeStatus, name=f"n{number}", ready=number > 4) for number in range(6)]
    (finding,) = findings.node_findings(found)
    assert finding.found == "5 of 6 virtual nodes are not ready: n0, n1, n2 ..."
    assert levels(findings.node_findings(found[5:])) == ["ok"]
    assert levels(findings.node_findings([])) == []


def test_invalid_policy_is_wrong_unreadable_is_warning() -> None:
    bad = any_value(PolicyStatus, name="half", side="owner", seen_by="east", complaint="spec.cluster: is missing")
    good = any_value(PolicyStatus, name="all", side="operator", seen_by="", complaint="")
    unreadable, wrong = findings.policy_findings([good, bad], ["those of west are not shown: no answer"])
    assert (unreadable.level, wrong.level) == ("warning", "wrong")
    assert wrong.about == "policy half in the cluster of east"
    assert "tapestry explain policy owner/half" in wrong.advice
    assert levels(findings.policy_findings([good], [])) == ["ok"]


def test_leftovers_of_forced_unjoin_are_reported() -> None:
    left = Leftover("east", "u1", "v1", "leased", "i1")
    secret = {"metadata": {"name": "east", "namespace": "s", **leftovers_patch([left])["metadata"]}}
    (finding,) = findings.leftover_findings([secret, object_named("other", "s")])
    assert (finding.about, finding.level) == ("Secret s/east", "warning")
    assert "ClusterBinding east" in finding.found


@pytest.mark.parametrize(
    ("is_running", "free", "unreachable", "level"),
    [
        (True, 9 << 30, [], ["ok", "ok"]),
        (True, 9 << 30, ["cluster-1"], ["ok", "wrong", "ok"]),
        (False, 500 << 20, [], ["warning", "warning"]),
        (True, 1 << 20, [], ["ok", "wrong"]),
    ],
)
def test_local_world_is_judged_by_processes_and_disk(
    is_running: bool, free: int, unreachable: list[str], level: list[str]
) -> None:
    found = findings.local_world_findings(Path("w"), is_running=is_running, free=free, unreachable=unreachable)
    assert levels(found) == level


def test_text_ends_with_advice_and_summary() -> None:
    well = Finding("disk", "ok", "9 GiB are free")
    assert findings_text([well]).splitlines()[-1] == "no problems"
    text = findings_text([well, Finding("manager", "wrong", "has no leader now", "look there")])
    assert text.splitlines()[-4:] == ["Advice:", "manager: look there", "", "1 wrong, 0 warnings"]


# -- on a server


def doctor(client: Client) -> Doctor:
    doctor_queries = Queries(client, lambda _: InProcessApi([NAMESPACES]).connect(), datetime.now(UTC))
    return Doctor(doctor_queries, lambda: datetime.now(UTC))


async def test_missing_kinds_come_with_install_hint(kubectl: KubectlLite) -> None:
    server, kinds = await doctor(kubectl.client).findings()
    assert (server.level, kinds.level) == ("ok", "wrong")
    assert "tapestry manifests --image" in kinds.advice


async def test_missing_manager_is_reported_after_installation(kubectl: KubectlLite) -> None:
    for obj in installation_objects():
        await kubectl.apply(obj)
    found = {(each.about, each.level) for each in await doctor(kubectl.client).findings()}
    assert {("kinds", "ok"), ("manager", "wrong"), ("bindings", "warning"), ("policies", "ok")} <= found
    renewed = {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": micro_timestamp(datetime.now(UTC))}
    await kubectl.client.create(LEASES, {**object_named("tapestry-manager", keys.SYSTEM_NAMESPACE), "spec": renewed})
    assert Finding("manager", "ok", "leader is me") in await doctor(kubectl.client).findings()


async def test_manager_is_found_in_its_namespace(kubectl: KubectlLite) -> None:
    for obj in installation_objects(namespace="grid"):
        await kubectl.apply(obj)
    [leader] = [each for each in await doctor(kubectl.client).findings() if each.found == "has never had a leader"]
    assert leader.advice == "`tapestry k get pods -n grid` shows whether it runs"
    renewed = {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": micro_timestamp(datetime.now(UTC))}
    await kubectl.client.create(LEASES, {**object_named("tapestry-manager", "grid"), "spec": renewed})
    reference = {"name": "east", "namespace": "grid"}
    spec = {"clusterID": "e1", "secretRef": reference, "mountNamespace": "leased"}
    await kubectl.client.create(CLUSTER_BINDINGS, {**object_named("east"), "spec": spec})
    found = await doctor(kubectl.client).findings()
    assert Finding("manager", "ok", "leader is me") in found
    [syncer] = [each for each in found if each.about == "syncer of east"]
    assert syncer.advice == "`tapestry k logs -n grid deployment/tapestry-syncer-e1` says why"
    await kubectl.client.create(LEASES, {**object_named("tapestry-syncer-east", "grid"), "spec": renewed})
    assert Finding("syncer of east", "ok", "leader is me") in await doctor(kubectl.client).findings()


class UnreachableTransport:
    """Transport without a server."""

    async def send(self, request: Request) -> Response:
        raise TransportError(f"{request}: connection refused", maybe_sent=False)


async def test_unreachable_server_is_the_only_finding() -> None:
    (finding,) = await doctor(Client(UnreachableTransport())).findings()  # type: ignore[arg-type]  nothing else of it is used
    assert (finding.about, finding.level) == ("API server", "wrong")
    assert "connection refused" in finding.found


# -- safeguards of the owners

ALLOWING = {"metadata": {"name": "east"}, "spec": {"mountNamespace": "m", "allowedVolumes": {"drivers": ["d"]}}}


def new_namespace(safeguards: str = "", **labels: str) -> Object:
    named_keys = {"mark": keys.VIRTUAL_CLUSTER, "enforce": keys.POD_SECURITY_ENFORCE}
    return {
        "metadata": {
            "name": "m",
            "labels": {named_keys[name]: value for name, value in labels.items()},
            "annotations": {keys.SAFEGUARDS: safeguards} if safeguards else {},
        }
    }


def test_old_installation_lacks_every_safeguard() -> None:
    not_permitted = {"type": "Permitted", "status": "False", "reason": keys.PRIORITY_CLASS_MISSING}
    finding = safeguard_finding({**ALLOWING, "status": {"conditions": [not_permitted]}}, new_namespace())
    assert finding.level == "warning"
    for part in ("mark", "Pod Security level", "network policy", "quota", "admission policies", "priority class"):
        assert part in finding.found
    assert "tapestry join east --cluster-kubeconfig" in finding.advice


@pytest.mark.parametrize(
    ("namespace", "level"),
    [
        (new_namespace("network-policy,volume-policies", mark="v", enforce="baseline"), "ok"),
        (new_namespace("no-network-policy,quota,volume-policies", mark="v", enforce="baseline"), "ok"),
        (new_namespace("network-policy", mark="v", enforce="baseline"), "warning"),
        (new_namespace("network-policy,volume-policies", enforce="baseline"), "warning"),
        (new_namespace("network-policy,volume-policies", mark="v"), "warning"),
        (new_namespace("quota,volume-policies", mark="v", enforce="baseline"), "warning"),
    ],
)
def test_each_missing_safeguard_is_a_warning(namespace: Object, level: str) -> None:
    assert safeguard_finding(ALLOWING, namespace).level == level
