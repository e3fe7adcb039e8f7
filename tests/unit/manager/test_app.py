"""The whole manager under perturbation: it must reach the same final state after any single fault."""

import base64
import json
from collections.abc import Callable
from datetime import datetime
from functools import cache

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, binding_of
from tapestry.apis.ownership import OWNED_RESOURCES as BELONGINGS
from tapestry.apis.policies import POLICIES
from tapestry.apis.serving_certificates import service_names, signing_request
from tapestry.client.client import Client
from tapestry.client.transport import Transport
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import LeaderElection
from tapestry.controller.testing import Scenario, perturb, specimen
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.errors import Conflict
from tapestry.kube.objects import Object, annotations_of, name_of, object_named, uid_of, value_at, with_value
from tapestry.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    NAMESPACES,
    NODES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    SIGNING_REQUESTS,
)
from tapestry.manager.app import install
from tapestry.manager.config import BindingsConfig

VIRTUAL = [
    *(CLUSTER_BINDINGS, POLICIES, NAMESPACES, SECRETS, NODES, PODS),
    *(ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS),
    *(SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, DISRUPTION_BUDGETS),
    *(SERVICES, DEPLOYMENTS, SIGNING_REQUESTS),
]
CONFIG = BindingsConfig(leader_election=LeaderElection(enabled=False))
SYSTEM = keys.SYSTEM_NAMESPACE
A_DAY = 24 * 3600.0


def new_authority() -> str:
    """Return our own CA certificate.  Loading it is much faster than loading the system's."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "east")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(datetime(2024, 1, 1)).not_valid_after(datetime(2044, 1, 1))  # noqa: DTZ001
    return base64.b64encode(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)).decode()


CLUSTER = {"server": "https://east.example:6443", "certificate-authority-data": new_authority()}
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "clusters": [{"name": "c", "cluster": CLUSTER}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
}


async def setup(manager: Manager, physical: Transport) -> None:
    manager.register("bindings", lambda each: install(CONFIG, each, connect=lambda _: physical))


async def reaches(client: Client, phase: str) -> Object:
    in_phase = lambda obj: value_at(obj, "status", "phase") == phase  # noqa: E731
    found = await wait_for(client, CLUSTER_BINDINGS, "east", until=in_phase, timeout=A_DAY)
    assert found is not None
    return found


async def bound(virtual: Client, physical: Client) -> Object:
    """Bind a cluster, and act as the Deployment controller."""
    for client in (virtual, physical):
        await client.create(NAMESPACES, object_named("kube-system"))
    data = {"kubeconfig": base64.b64encode(json.dumps(KUBECONFIG).encode()).decode()}
    await virtual.create(SECRETS, {**object_named("east", SYSTEM), "data": data})
    reference = {"name": "east", "namespace": SYSTEM}
    spec = {"clusterID": "east", "secretRef": reference, "mountNamespace": "leased"}
    await virtual.create(CLUSTER_BINDINGS, {**object_named("east"), "spec": spec})
    await reaches(virtual, "Ready")
    deployment = await wait_for(virtual, DEPLOYMENTS, "tapestry-syncer-east", SYSTEM, until=bool, timeout=A_DAY)
    counts = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas"), 1)
    status = {"status": {**counts, "observedGeneration": 1}}
    assert deployment is not None
    await virtual.patch(DEPLOYMENTS, object_named("tapestry-syncer-east", SYSTEM), status, subresource="status")
    ready = lambda obj: obj is not None and is_condition_true(obj, "SyncerReady") and is_condition_true(obj, "Ready")  # noqa: E731
    found = await wait_for(virtual, CLUSTER_BINDINGS, "east", until=ready, timeout=A_DAY)
    assert found is not None
    return found


async def bind_and_unbind(virtual: Client, physical: Client) -> None:
    """Delete the Deployment in between, and act as the syncer during the cleanup."""
    await bound(virtual, physical)
    await virtual.delete(DEPLOYMENTS, object_named("tapestry-syncer-east", SYSTEM))
    await wait_for(virtual, DEPLOYMENTS, "tapestry-syncer-east", SYSTEM, until=bool, timeout=A_DAY)
    away = lambda obj: obj is not None and not is_condition_true(obj, "SyncerReady") and is_condition_true(obj, "Ready")  # noqa: E731
    await wait_for(virtual, CLUSTER_BINDINGS, "east", until=away, timeout=A_DAY)
    await finalizers(virtual, lambda each: [*each, keys.SYNCER_FINALIZER])
    await virtual.delete(CLUSTER_BINDINGS, object_named("east"))
    await reaches(virtual, "Deleting")
    await finalizers(virtual, lambda each: [name for name in each if name != keys.SYNCER_FINALIZER])
    await wait_for(virtual, CLUSTER_BINDINGS, "east", until=lambda obj: obj is None, timeout=A_DAY)


async def grant_and_revoke(virtual: Client, physical: Client) -> None:
    """A node and a pod appear, the pod gets a second reference, and both disappear."""
    binding = await bound(virtual, physical)
    labels = {keys.CLUSTER_BINDING_UID: uid_of(binding), keys.NODE_TYPE: keys.NODE_TYPE_VIRTUAL}
    await virtual.create(NODES, {"metadata": {"name": "vnode-east-a", "labels": labels}})
    pod = specimen(PODS, "web", "shop")
    volumes = [{"name": "v", "secret": {"secretName": "password"}}]
    await virtual.create(PODS, {**pod, "spec": {**pod["spec"], "nodeName": "vnode-east-a", "volumes": volumes}})
    for resource, name, namespace, word in (
        (CLUSTER_ROLES, "tapestry-syncer-east:nodes", None, "vnode-east-a"),
        (ROLES, "tapestry-syncer-east:pods", "shop", "password"),
    ):
        granted = lambda role, word=word: word in str(role)  # noqa: E731
        await wait_for(virtual, resource, name, namespace, until=granted, timeout=A_DAY)
    bindings = ROLE_BINDINGS, "tapestry-syncer-east:pods", "shop"
    await wait_for(virtual, *bindings, until=bool, timeout=A_DAY)
    await virtual.delete(PODS, object_named("web", "shop"), grace_seconds=0)
    await wait_for(virtual, *bindings, until=lambda obj: obj is None, timeout=A_DAY)
    await virtual.delete(NODES, object_named("vnode-east-a"))
    revoked = lambda role: "vnode-east-a" not in str(role)  # noqa: E731
    await wait_for(virtual, CLUSTER_ROLES, "tapestry-syncer-east:nodes", until=revoked, timeout=A_DAY)


@cache
def known_request(names: frozenset[str]) -> Object:
    """Return the same request in every replay, although signatures are random."""
    return signing_request("r", "tapestry-syncer-east", names, ec.generate_private_key(ec.SECP256R1()))


async def bind_and_certify(virtual: Client, physical: Client) -> None:
    """Request a serving certificate as the syncer, and wait for the approval."""
    await bound(virtual, physical)
    service = await wait_for(virtual, SERVICES, "tapestry-syncer-east", SYSTEM, until=bool, timeout=A_DAY)
    assert service is not None
    request = known_request(service_names(service))
    account = f"system:serviceaccount:{SYSTEM}:tapestry-syncer-east"
    await virtual.create(SIGNING_REQUESTS, {**request, "spec": {**request["spec"], "username": account}})
    approved = lambda obj: value_at(obj, "status", "conditions", 0, "type") == "Approved"  # noqa: E731
    assert await wait_for(virtual, SIGNING_REQUESTS, "r", until=approved, timeout=A_DAY)


async def force_unbind_and_clean_up(virtual: Client, physical: Client) -> None:
    """Rule 8: all objects of the binding are deleted, and nothing else."""
    binding = await bound(virtual, physical)
    system = await virtual.get(NAMESPACES, "kube-system")
    ours = binding_of(binding, uid_of(system)).owner_labels()
    for resource in BELONGINGS:
        for name, labels in (("ours", ours), ("foreign", {**ours, keys.VIRTUAL_CLUSTER: "another"})):
            place = "leased" if resource.namespaced else None
            await physical.create(resource, specimen(resource, name, place, labels=labels))
    node = {"name": "vnode-east-a", "labels": {keys.CLUSTER_BINDING_UID: uid_of(binding)}}
    await virtual.create(NODES, {"metadata": node})
    await virtual.create(PODS, with_value(specimen(PODS, "web", "shop"), ("spec", "nodeName"), "vnode-east-a"))
    await finalizers(virtual, lambda each: [*each, keys.SYNCER_FINALIZER])
    await virtual.patch(
        CLUSTER_BINDINGS, object_named("east"), {"metadata": {"annotations": {keys.FORCE_UNBIND: "true"}}}
    )
    await virtual.delete(CLUSTER_BINDINGS, object_named("east"))
    await wait_for(virtual, CLUSTER_BINDINGS, "east", until=lambda obj: obj is None, timeout=A_DAY)
    swept = lambda secret: keys.LEFT_BEHIND not in annotations_of(secret)  # noqa: E731
    await wait_for(virtual, SECRETS, "east", SYSTEM, until=swept, timeout=A_DAY)
    assert {name_of(obj) for resource in BELONGINGS for obj in await physical.list(resource)} == {"foreign"}


async def finalizers(client: Client, change: Callable[[list[str]], list[str]]) -> None:
    """Change the finalizers of the binding, as its syncer would."""
    while True:
        binding = await client.get(CLUSTER_BINDINGS, "east")
        wanted = change(binding["metadata"].get("finalizers", []))
        try:
            await client.patch(CLUSTER_BINDINGS, binding, {"metadata": {"finalizers": wanted}})
            return
        except Conflict:
            continue


def is_create(call: str) -> bool:
    """Exclude the checks before, which are the same in every scenario."""
    return call.startswith(("POST", "PATCH")) and "accessreviews" not in call and "events" not in call


def is_grant(call: str) -> bool:
    return "roles" in call or "rolebindings" in call


def is_delete(call: str) -> bool:
    return call.startswith(("DELETE", "PATCH")) or "/nodes" in call or "/pods" in call


SCENARIOS = [
    Scenario(name, VIRTUAL, setup, world, CONFIG, others=[[NAMESPACES, *BELONGINGS]], counts=counts)
    for name, world, counts in (
        ("a binding comes and goes", bind_and_unbind, lambda _: True),
        ("a binding stays and gets a certificate", bind_and_certify, is_create),
        ("rights are granted and revoked", grant_and_revoke, is_grant),
        ("a cluster is left by force and swept", force_unbind_and_clean_up, is_delete),
    )
]


@pytest.mark.timeout(600)  # hundreds of replays
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_manager_reaches_the_same_state_despite_faults(
    scenario: Scenario, record_property: Callable[[str, object], None]
) -> None:
    report = perturb(scenario)
    record_property("figure", f"perturbed manager: {report.cases} replays: {scenario.name}")
    report.check()
    assert report.cases >= 40
