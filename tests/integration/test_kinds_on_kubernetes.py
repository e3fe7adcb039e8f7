"""Validation of our kinds by a real kube-apiserver."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tapestry.apis.clusterbindings import CLUSTER_BINDING, CLUSTER_BINDINGS
from tapestry.apis.policies import POLICIES, POLICY
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.crds import decode_spec
from tapestry.kube.errors import Invalid
from tapestry.kube.objects import Object, name_of, object_named, with_type_meta
from tapestry.kube.resources import Resource

GOLDEN = Path(__file__).parents[1] / "golden" / "crds"

KUBEOCEAN_BINDING = """
apiVersion: cloud.tencent.com/v1beta1
kind: ClusterBinding
metadata:
  name: {name}
spec:
  clusterID: {name}
  secretRef:
    name: kubeconfig
    namespace: kubeocean-system
  mountNamespace: kubeocean-worker
  serviceNamespaces:
  - default
  - kubeocean-system
  nodeSelector:
    nodeSelectorTerms:
    - matchExpressions:
      - key: node-role.kubernetes.io/worker
        operator: Exists
      - key: kubernetes.io/arch
        operator: In
        values: [amd64, arm64]
"""

KUBEOCEAN_POLICY = """
apiVersion: cloud.tencent.com/v1beta1
kind: ResourceLeasingPolicy
metadata:
  name: {name}
spec:
  cluster: {name}
  timeWindows:
  - start: "22:00"
    end: "08:00"
    days: [Monday, Tuesday, Wednesday, Thursday, Friday]
  - start: "00:00"
    end: "23:59"
    days: [saturday, SUNDAY]
  resourceLimits:
  - resource: cpu
    quantity: "4"
    percent: 50
  - resource: memory
    quantity: 8Gi
  - resource: nvidia.com/gpu
    quantity: 1
  forceReclaim: true
  gracefulReclaimPeriodSeconds: 3600
"""


@pytest.fixture
async def server(client: Client, kubectl: Callable[..., str]) -> Client:
    """Client of a server that has our kinds."""
    for resource in (CLUSTER_BINDINGS, POLICIES):
        kubectl("apply", "-f", str(GOLDEN / f"{resource.plural}.yaml"))
        await wait_for(client, resource, "nobody", until=lambda obj: obj is None)
    return client


def new_name() -> str:
    return f"k{secrets.token_hex(5)}"


def new_binding(**spec: Any) -> Object:
    given = {"clusterID": "east", "secretRef": {"name": "east", "namespace": "tapestry-system"}, **spec}
    return with_type_meta(CLUSTER_BINDINGS, {**object_named(new_name()), "spec": given})


def new_policy(**spec: Any) -> Object:
    return with_type_meta(POLICIES, {**object_named(new_name()), "spec": {"cluster": "east", **spec}})


def new_window(**fields: Any) -> Object:
    return new_policy(timeWindows=[{"start": "08:00", "end": "18:00"}, {"start": "08:00", "end": "18:00", **fields}])


def new_limit(**fields: Any) -> Object:
    return new_policy(resourceLimits=[{"resource": "memory"}, {"resource": "cpu", **fields}])


WINDOW, LIMIT = "spec.timeWindows[1]", "spec.resourceLimits[1]"


@pytest.mark.parametrize(
    ("resource", "obj", "path"),
    [
        (POLICIES, new_limit(percent=101), f"{LIMIT}.percent"),
        (POLICIES, new_limit(percent=-1), f"{LIMIT}.percent"),
        (POLICIES, new_limit(quantity="4 GB"), f"{LIMIT}.quantity"),
        (POLICIES, new_limit(quantity="-1"), f"{LIMIT}.quantity"),
        (POLICIES, new_limit(quantity=-1), f"{LIMIT}.quantity"),
        (POLICIES, new_limit(quantity=1.5), f"{LIMIT}.quantity"),
        (POLICIES, new_limit(resource=""), f"{LIMIT}.resource"),
        (POLICIES, new_limit(resource="memory"), LIMIT),
        (POLICIES, new_window(start="8:00"), f"{WINDOW}.start"),
        (POLICIES, new_window(end="8:00"), f"{WINDOW}.end"),
        (POLICIES, new_window(start="25:00"), f"{WINDOW}.start"),
        (POLICIES, new_window(end="25:00"), f"{WINDOW}.end"),
        (POLICIES, new_window(start="24:00"), f"{WINDOW}.start"),
        (POLICIES, new_window(days=["Mon", "Funday"]), f"{WINDOW}.days[1]"),
        (POLICIES, new_policy(cluster=""), "spec.cluster"),
        (POLICIES, new_policy(gracefulReclaimPeriodSeconds=-1), "spec.gracefulReclaimPeriodSeconds"),
        (CLUSTER_BINDINGS, new_binding(clusterID=""), "spec.clusterID"),
        (CLUSTER_BINDINGS, new_binding(clusterID="East"), "spec.clusterID"),
        (CLUSTER_BINDINGS, new_binding(clusterID="-east"), "spec.clusterID"),
        (CLUSTER_BINDINGS, new_binding(clusterID="e" * 25), "spec.clusterID"),
        (CLUSTER_BINDINGS, new_binding(secretRef={"name": "", "namespace": "a"}), "spec.secretRef.name"),
        (CLUSTER_BINDINGS, new_binding(secretRef={"name": "a", "namespace": ""}), "spec.secretRef.namespace"),
        (CLUSTER_BINDINGS, new_binding(secretRef={"name": "a"}), "spec.secretRef.namespace"),
        (CLUSTER_BINDINGS, new_binding(mountNamespace=""), "spec.mountNamespace"),
        (CLUSTER_BINDINGS, new_binding(serviceNamespaces=["a", ""]), "spec.serviceNamespaces[1]"),
    ],
)
async def test_invalid_values_are_refused_with_their_path(
    resource: Resource, obj: Object, path: str, server: Client
) -> None:
    with pytest.raises(Invalid) as caught:
        await server.create(resource, obj, dry_run=True)
    assert path in [cause["field"] for cause in caught.value.details["causes"]]


@pytest.mark.parametrize(
    "obj", [new_window(end="24:00"), new_limit(percent=0), new_limit(quantity=0), new_limit(percent=100)]
)
async def test_boundary_values_are_accepted(obj: Object, server: Client) -> None:
    assert decode_spec(POLICY, await server.create(POLICIES, obj, dry_run=True)) == decode_spec(POLICY, obj)


async def test_cluster_id_is_immutable(server: Client) -> None:
    made = await server.create(CLUSTER_BINDINGS, new_binding())
    with pytest.raises(Invalid, match=r"spec\.clusterID: .* may not change once it is set"):
        await server.patch(CLUSTER_BINDINGS, made, {"spec": {"clusterID": "west"}})


@pytest.mark.parametrize("later", ["another", None])
async def test_mount_namespace_is_immutable_once_set(later: str | None, server: Client) -> None:
    made = await server.create(CLUSTER_BINDINGS, new_binding())
    made = await server.patch(CLUSTER_BINDINGS, made, {"spec": {"mountNamespace": "leased"}})
    made = await server.patch(CLUSTER_BINDINGS, made, {"spec": {"podSecurity": "restricted"}})
    with pytest.raises(Invalid, match=r"spec\.mountNamespace: .* may not change once it is set"):
        await server.patch(CLUSTER_BINDINGS, made, {"spec": {"mountNamespace": later}})


@pytest.mark.parametrize(
    ("resource", "manifest"), [(CLUSTER_BINDINGS, KUBEOCEAN_BINDING), (POLICIES, KUBEOCEAN_POLICY)]
)
async def test_kubeocean_manifest_applies_unchanged(
    resource: Resource, manifest: str, server: Client, kubectl: Callable[..., str]
) -> None:
    text = manifest.format(name=new_name())
    kubectl("apply", "--validate=strict", "-f", "-", stdin=text)
    written = yaml.safe_load(text)
    found = await server.get(resource, name_of(written))
    assert contains(found["spec"], written["spec"])
    kind = CLUSTER_BINDING if resource is CLUSTER_BINDINGS else POLICY
    assert decode_spec(kind, found) == decode_spec(kind, written)


def contains(found: Any, written: Any) -> bool:
    """Report whether `found` has everything in `written`.  Defaults may be added."""
    if isinstance(written, dict):
        return all(key in found and contains(found[key], value) for key, value in written.items())
    if isinstance(written, list):
        return len(found) == len(written) and all(map(contains, found, written))
    return bool(found == written)


def new_condition(type: str, reason: str, status: str = "True") -> Object:
    at = "2026-03-01T21:00:00Z"
    return {"type": type, "status": status, "reason": reason, "message": "", "lastTransitionTime": at}


async def test_kubectl_prints_the_status_of_a_policy(server: Client, kubectl: Callable[..., str]) -> None:
    made = await server.create(POLICIES, new_policy())
    status: Object = {"active": True, "nextChange": "2026-03-01T22:00:00Z", "nodes": 3, "leased": {"cpu": "12"}}
    status["conditions"] = [new_condition("Active", "InTimeWindow"), new_condition("Valid", "Valid")]
    await server.patch(POLICIES, made, {"status": status}, subresource="status")
    header, line = kubectl("get", "rlp", name_of(made)).splitlines()
    assert header.split() == ["NAME", "CLUSTER", "VALID", "ACTIVE", "NEXT-CHANGE", "NODES", "LEASED-CPU", "AGE"]
    assert line.split()[1:7] == ["east", "True", "true", "2026-03-01T22:00:00Z", "3", "12"]


async def test_kubectl_prints_the_status_of_a_binding(server: Client, kubectl: Callable[..., str]) -> None:
    made = await server.create(CLUSTER_BINDINGS, new_binding())
    status: Object = {"phase": "Ready", "nodes": 3, "pods": 7, "leased": {"cpu": "12"}, "used": {"cpu": "5"}}
    status["conditions"] = [new_condition("Ready", "Ready"), new_condition("Leasing", "Reclaimed", "False")]
    await server.patch(CLUSTER_BINDINGS, made, {"status": status}, subresource="status")
    header, line = kubectl("get", "cb", name_of(made)).splitlines()
    assert header.split() == [
        *("NAME", "CLUSTER-ID", "PHASE", "LEASING", "NODES", "LEASED-CPU", "USED-CPU", "PODS", "AGE")
    ]
    assert line.split()[1:8] == ["east", "Ready", "Reclaimed", "3", "12", "5", "7"]
