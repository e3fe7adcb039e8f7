"""The manager as installed: a process whose account has the rights from the manifests.

A second cluster is the physical one.  No controller runs Deployments here: tests write their status.
"""

import asyncio
import base64
import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, binding_of
from tapestry.apis.permissions import (
    SYNCER_IN_PHYSICAL,
    Placeholder,
    policy_rules,
    with_names,
)
from tapestry.apis.policies import POLICIES
from tapestry.apis.priorities import PRIORITY_CLASSES, priority_class
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.watch import wait_for
from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.errors import Conflict, Invalid
from tapestry.kube.objects import Object, annotations_of, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIGMAPS,
    DEPLOYMENTS,
    NAMESPACES,
    NODES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    TOKEN_REVIEWS,
    Resource,
)
from tapestry.local.kubernetes import free_ports
from tapestry.manager.installation import METRICS_READER_ROLE, TOKENS_ROLE, installation_objects, management_objects

from ..conftest import Kubectl
from .bound_clusters import allocatable_is, new_pod, ready, wait_until, wait_until_gone
from .forked import ForkedTapestry
from .planes import Plane, Start

TAPESTRY = Path(sys.executable).with_name("tapestry")
SYSTEM = keys.SYSTEM_NAMESPACE
MOUNT, ACCOUNT = "leased", "syncer"
RESOURCES = {each.kind: each for each in (NAMESPACES, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS)}
POLL = 0.5
OF_SYNCERS = (SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS, DEPLOYMENTS)


@pytest.fixture(scope="module")
def physical_plane(start: Start) -> Iterator[Plane]:
    with start("physical") as plane:
        yield plane


@pytest.fixture(scope="module", autouse=True)
def installed(kubectl: Kubectl) -> None:
    """`tapestry manifests --image IMAGE | kubectl apply -f -`"""
    command = [TAPESTRY, "manifests", "--image", "mine:1", "--kubeconfig-namespace", "tenant"]
    manifests = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    tenant = json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant"}})
    kubectl("apply", "-f", "-", stdin=f"{tenant}\n---\n{manifests}")  # again if another flavour ran in between
    kubectl("wait", "--for=condition=Established", "crd/clusterbindings.cloud.tencent.com")


@dataclass(frozen=True)
class World:
    """Both clusters, their clients and the manager."""

    virtual: Client
    physical: Client
    plane: Plane
    """The physical cluster."""
    manager_kubeconfig: Path
    folder: Path

    async def account(self, name: str = ACCOUNT, *left_out: str) -> bytes:
        """Kubeconfig of an account in the physical cluster with the rights of a syncer, except some."""
        places = {
            Placeholder.MOUNT_NAMESPACE: MOUNT,
            Placeholder.SYNCER_ACCOUNT_NAMESPACE: MOUNT,
            Placeholder.SYNCER_ACCOUNT: name,
        }
        rights = [right for right in with_names(SYNCER_IN_PHYSICAL, places) if str(right) not in left_out]
        subject = {"kind": "ServiceAccount", "name": name, "namespace": MOUNT}
        await self.ensure(self.physical, NAMESPACES, object_named(MOUNT))
        await self.ensure(self.physical, SERVICE_ACCOUNTS, object_named(name, MOUNT))
        for role, binding, namespace in (
            (CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, None),
            (ROLES, ROLE_BINDINGS, MOUNT),
        ):
            granted = [right for right in rights if (right.namespace or None) == namespace]
            reference = {"apiGroup": role.group, "kind": role.kind, "name": name}
            await self.ensure(self.physical, role, {**object_named(name, namespace), "rules": policy_rules(granted)})
            bound = {**object_named(name, namespace), "roleRef": reference, "subjects": [subject]}
            await self.ensure(self.physical, binding, bound)
        token = await self.physical.request_token(name, MOUNT, seconds=30 * 86400)
        return kubeconfig(self.plane, token["token"])

    async def ensure(self, client: Client, resource: Resource, obj: Object) -> None:
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        try:
            await client.create(resource, whole)
        except Conflict:
            await client.patch(resource, obj, obj)

    async def add_secret(self, name: str, data: dict[str, bytes], namespace: str = SYSTEM) -> None:
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        await self.ensure(self.virtual, SECRETS, {**object_named(name, namespace), "data": encoded})

    async def add_binding(self, name: str, **spec: Any) -> Object:
        reference = {"name": name, "namespace": SYSTEM}
        whole = {"apiVersion": CLUSTER_BINDINGS.api_version, "kind": CLUSTER_BINDINGS.kind, **object_named(name)}
        given = {"clusterID": name, "secretRef": reference, "mountNamespace": MOUNT, **spec}
        return await self.virtual.create(CLUSTER_BINDINGS, {**whole, "spec": given})

    async def reaches(self, name: str, phase: str, reason: str = "") -> Object:
        def is_there(obj: Object | None) -> bool:
            found = condition(obj, "Ready")
            return value_at(obj, "status", "phase") == phase and reason in ("", found.get("reason"))

        binding = await wait_for(self.virtual, CLUSTER_BINDINGS, name, until=is_there)
        assert binding is not None
        return binding

    async def unbind(self, name: str) -> None:
        """Delete a binding and wait until it is gone."""
        await self.virtual.delete(CLUSTER_BINDINGS, object_named(name))
        await wait_for(self.virtual, CLUSTER_BINDINGS, name, until=lambda obj: obj is None)

    async def of_syncers(self, binding: Object) -> list[str]:
        selector = f"{keys.CLUSTER_BINDING_UID}={uid_of(binding)},!{keys.GRANT}"
        return [
            f"{resource.kind} {obj['metadata']['name']}"
            for resource in OF_SYNCERS
            for obj in await self.virtual.list(resource, labels=selector)
        ]

    @contextmanager
    def manager(self, *flags: str, **environ: str) -> Iterator[Path]:
        """Run `tapestry manager` with its own account.  Yield the path of its audit log.

        It must exit cleanly on SIGTERM, and no request of it may have been denied.
        """
        audit, log = self.folder / "audit.jsonl", self.folder / "manager.log"
        command = ["manager", "--kubeconfig", self.manager_kubeconfig, "--audit", audit, *flags]
        if "--metrics-bind-address" not in flags:
            command += ["--metrics-bind-address="]
        command += ["--allow-loopback", "--health-probe-bind-address="]
        process = ForkedTapestry(command, {**os.environ, **environ}, log)
        try:
            yield audit
            process.terminate()
            assert process.wait(30) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()
        assert "orbidden" not in log.read_text(), log.read_text()
        assert '"code":403' not in audit.read_text() if audit.exists() else True


def condition(binding: Object | None, type: str) -> Object:
    return find_condition(value_at(binding, "status", "conditions"), type) or {}


def kubeconfig(plane: Plane, token: str) -> bytes:
    """Kubeconfig for a control plane with `token` as its credentials."""
    found = json.loads(plane.kubeconfig.read_text())
    found["users"][0]["user"] = {"token": token}
    return json.dumps(found).encode()


@pytest.fixture
async def world(client: Client, shared_plane: Plane, physical_plane: Plane, tmp_path: Path) -> AsyncIterator[World]:
    token = await client.request_token("tapestry-manager", SYSTEM, seconds=3600)
    file = tmp_path / "manager.kubeconfig"
    file.write_bytes(kubeconfig(shared_plane, token["token"]))
    physical = Client(HttpTransport(load_access([physical_plane.kubeconfig], environ=os.environ)))
    yield World(client, physical, physical_plane, file, tmp_path)
    await physical.close()


async def test_m1_m3_binding_becomes_ready_and_syncer_is_installed(world: World, kubectl: Kubectl) -> None:
    await world.add_secret("m3", {"kubeconfig": await world.account()})
    with world.manager():
        await world.add_binding("m3")
        binding = await world.reaches("m3", "Ready")
        message = condition(binding, "Connected")["message"]
        assert re.fullmatch(r"Kubernetes v1\.34\.3(\+tapestry)? is reachable", message)
        below = await world.physical.get(NAMESPACES, "kube-system")
        assert binding["status"]["identity"] == uid_of(below)
        assert binding["status"]["credentialsExpire"]
        satisfied = [each["type"] for each in binding["status"]["conditions"] if each["status"] == "True"]
        assert sorted(satisfied) == ["Connected", "Permitted", "Ready"]
        assert condition(binding, "Restricted")["reason"] == "AdmissionPoliciesMissing"  # they allow another namespace
        assert await world.of_syncers(binding) == [
            "ServiceAccount tapestry-syncer-m3",
            "Role tapestry-syncer-m3",
            "Role tapestry-syncer-m3-kubeconfig",
            "RoleBinding tapestry-syncer-m3",
            "RoleBinding tapestry-syncer-m3-kubeconfig",
            "ClusterRoleBinding tapestry-syncer-m3",
            "Deployment tapestry-syncer-m3",
        ]
        deployment = await world.virtual.get(DEPLOYMENTS, "tapestry-syncer-m3", SYSTEM)
        assert deployment["metadata"]["ownerReferences"][0]["name"] == "m3"
        status = {"replicas": 1, "readyReplicas": 1, "availableReplicas": 1, "observedGeneration": 1}
        await world.virtual.patch(DEPLOYMENTS, deployment, {"status": status}, subresource="status")
        is_up = lambda obj: condition(obj, "SyncerReady").get("status") == "True"  # noqa: E731
        await wait_for(world.virtual, CLUSTER_BINDINGS, "m3", until=is_up)
        table = kubectl("get", "clusterbindings", "m3")
        assert re.split(r" {2,}", table.splitlines()[1])[:3] == ["m3", "m3", "Ready"]
        reasons = kubectl("get", "events", "-n", "default", "-o", "jsonpath={.items[*].reason}").split()
        assert {"Initializing", "Ready"} <= set(reasons)
        await world.unbind("m3")


async def test_manager_accepts_defaults_and_reverts_manual_changes(world: World) -> None:
    await world.add_secret("drift", {"kubeconfig": await world.account()})
    with world.manager():
        await world.add_binding("drift")
        await world.reaches("drift", "Ready")
    (world.folder / "audit.jsonl").unlink()
    with world.manager() as audit:
        deployment = await world.virtual.get(DEPLOYMENTS, "tapestry-syncer-drift", SYSTEM)
        patch = {"spec": {"template": {"spec": {"securityContext": {"runAsUser": 7}}}}}
        changed = await world.virtual.patch(DEPLOYMENTS, deployment, patch)
        user = ("spec", "template", "spec", "securityContext", "runAsUser")
        again = lambda obj: value_at(obj, *user) == value_at(deployment, *user)  # noqa: E731
        mended = await wait_for(world.virtual, DEPLOYMENTS, "tapestry-syncer-drift", SYSTEM, until=again)
        assert mended is not None
        assert mended["metadata"]["generation"] == changed["metadata"]["generation"] + 1
        assert mended["spec"] == deployment["spec"]
        await world.virtual.delete(DEPLOYMENTS, mended)
        anew = lambda obj: obj is not None and uid_of(obj) != uid_of(mended)  # noqa: E731
        await wait_for(world.virtual, DEPLOYMENTS, "tapestry-syncer-drift", SYSTEM, until=anew)
        await world.unbind("drift")
    writes = [each for each in map(json.loads, audit.read_text().splitlines()) if each.get("code", 500) < 300]
    kinds = ("deployments.apps", "roles.rbac.authorization.k8s.io", "serviceaccounts")
    verbs = [(each["verb"], each["resource"]) for each in writes if each["resource"] in kinds]
    assert verbs[:2] == [("patch", "deployments.apps"), ("create", "deployments.apps")]
    assert {verb for verb, _ in verbs[2:]} == {"delete"}


async def test_m2_missing_template_folder_fails_the_syncer(world: World) -> None:
    await world.add_secret("m2", {"kubeconfig": await world.account()})
    with world.manager("--template-dir", str(world.folder / "nowhere")):
        await world.add_binding("m2")
        binding = await world.reaches("m2", "Failed", "SyncerFailed")
        assert keys.MANAGER_FINALIZER in binding["metadata"]["finalizers"]
        assert condition(binding, "Permitted")["status"] == "True"
        await world.unbind("m2")


async def test_m4_binding_waits_for_a_kubeconfig_in_its_secret(world: World) -> None:
    await world.add_secret("m4", {"config": b"x"})
    with world.manager():
        await world.add_binding("m4")
        binding = await world.reaches("m4", "Failed", "ConnectivityFailed")
        assert keys.MANAGER_FINALIZER in binding["metadata"]["finalizers"]
        await world.add_secret("m4", {"kubeconfig": b"garbage: ["})
        until = lambda obj: "not YAML" in condition(obj, "Connected").get("message", "")  # noqa: E731
        await wait_for(world.virtual, CLUSTER_BINDINGS, "m4", until=until)
        await world.add_secret("m4", {"kubeconfig": kubeconfig(world.plane, "expired")})
        until = lambda obj: "rejects the credentials" in condition(obj, "Connected").get("message", "")  # noqa: E731
        await wait_for(world.virtual, CLUSTER_BINDINGS, "m4", until=until)
        await world.add_secret("m4", {"kubeconfig": await world.account()})
        await world.reaches("m4", "Ready")
        await world.unbind("m4")


async def test_m5_m6_syncer_cleans_up_before_deletion(world: World) -> None:
    await world.add_secret("m6", {"kubeconfig": await world.account()})
    with world.manager():
        await world.add_binding("m6")
        binding = await world.reaches("m6", "Ready")
        finalizers = [*binding["metadata"]["finalizers"], keys.SYNCER_FINALIZER]
        await world.virtual.patch(CLUSTER_BINDINGS, object_named("m6"), {"metadata": {"finalizers": finalizers}})
        await world.virtual.delete(CLUSTER_BINDINGS, object_named("m6"))
        await world.reaches("m6", "Deleting", "WaitingSyncerCleanup")
        assert len(await world.of_syncers(binding)) == 7
        without_syncer = {"metadata": {"finalizers": [keys.MANAGER_FINALIZER]}}
        await world.virtual.patch(CLUSTER_BINDINGS, object_named("m6"), without_syncer)
        await wait_for(world.virtual, CLUSTER_BINDINGS, "m6", until=lambda obj: obj is None)
        assert await world.of_syncers(binding) == []
    assert await world.virtual.get(CLUSTER_ROLES, "tapestry-syncer")


async def test_missing_rights_in_the_physical_cluster_are_listed(world: World) -> None:
    left_out = ("get,list,watch nodes", f"create serviceaccounts/token lacking in {MOUNT}")
    await world.add_secret("rights", {"kubeconfig": await world.account("lacking", *left_out)})
    with world.manager():
        await world.add_binding("rights")
        binding = await world.reaches("rights", "Failed", "PermissionsMissing")
        missing = f"get nodes, list nodes, watch nodes, create serviceaccounts/token lacking in {MOUNT}"
        assert condition(binding, "Permitted")["message"] == f"the kubeconfig does not grant: {missing}"
        await world.unbind("rights")


async def test_bindings_share_neither_cluster_nor_cluster_id(world: World) -> None:
    for name in ("first", "second"):
        await world.add_secret(name, {"kubeconfig": await world.account()})
    with world.manager():
        await world.add_binding("first")
        await world.reaches("first", "Ready")
        await world.add_binding("second", clusterID="first")
        await world.reaches("second", "Failed", "DuplicateClusterID")
        with pytest.raises(Invalid, match="may not change"):
            await world.virtual.patch(CLUSTER_BINDINGS, object_named("second"), {"spec": {"clusterID": "second"}})
        await world.unbind("second")
        await world.add_binding("second")
        await world.reaches("second", "Failed", "DuplicateCluster")
    with world.manager():
        await world.unbind("first")
        await world.reaches("second", "Ready")
        await world.unbind("second")


async def test_secrets_are_read_from_allowed_namespaces_only(world: World) -> None:
    await world.add_secret("tenant", {"kubeconfig": await world.account()}, "tenant")
    with world.manager():
        await world.add_binding("tenant", secretRef={"name": "tenant", "namespace": "tenant"})
        await world.reaches("tenant", "Failed", "SecretNamespaceNotAllowed")
    with world.manager("--kubeconfig-namespace", "tenant"):
        binding = await world.reaches("tenant", "Ready")
        roles = await world.virtual.list(ROLES, "tenant", labels=f"{keys.CLUSTER_BINDING_UID}={uid_of(binding)}")
        assert [role["metadata"]["name"] for role in roles] == ["tapestry-syncer-tenant-kubeconfig"]
        await world.unbind("tenant")


async def test_forced_unbinding_works_when_the_cluster_is_gone(world: World, kubectl: Kubectl) -> None:
    await world.add_secret("gone", {"kubeconfig": await world.account()})
    with world.manager():
        await world.add_binding("gone")
        binding = await world.reaches("gone", "Ready")
        labels = {keys.CLUSTER_BINDING_UID: uid_of(binding)}
        await world.virtual.create(NODES, {"metadata": {"name": "vnode-gone-a", "labels": labels}})
        spec = {"nodeName": "vnode-gone-a", "containers": [{"name": "web", "image": "web"}]}
        await world.virtual.create(PODS, {**object_named("web", "default"), "spec": spec})
        metadata = {
            "finalizers": [keys.MANAGER_FINALIZER, keys.SYNCER_FINALIZER],
            "annotations": {keys.FORCE_UNBIND: "true"},
        }
        await world.virtual.patch(CLUSTER_BINDINGS, object_named("gone"), {"metadata": metadata})
        await world.unbind("gone")
        assert await world.virtual.list(NODES, labels=f"{keys.CLUSTER_BINDING_UID}={uid_of(binding)}") == []
        assert await world.virtual.list(PODS, fields="spec.nodeName=vnode-gone-a") == []
    events = kubectl("get", "events", "-n", "default", "--field-selector=reason=LeftBehind", "-o", "yaml")
    assert "twins of the pods default/web" in " ".join(events.split())  # YAML folds long lines


async def test_safety_rule_8_leftovers_are_deleted_when_the_cluster_returns(world: World) -> None:
    await world.add_secret("back", {"kubeconfig": await world.account()})
    system = await world.virtual.get(NAMESPACES, "kube-system")
    with world.manager():
        await world.add_binding("back")
        binding = await world.reaches("back", "Ready")
        ours = binding_of(binding, uid_of(system)).owner_labels()
        theirs = {**ours, keys.CLUSTER_BINDING_UID: "another"}
        spec = {"containers": [{"name": "web", "image": "web"}]}
        for name, labels in (("ours", ours), ("theirs", theirs)):
            metadata = {"name": name, "namespace": MOUNT, "labels": labels}
            await world.physical.create(PODS, {"metadata": metadata, "spec": spec})
            for resource in (CONFIGMAPS, SECRETS):
                await world.physical.create(resource, {"metadata": metadata})
        world.plane.pause()
        try:
            by_force = {"metadata": {"annotations": {keys.FORCE_UNBIND: "true"}}}
            await world.virtual.patch(CLUSTER_BINDINGS, object_named("back"), by_force)
            await world.unbind("back")
            marked = await world.virtual.get(SECRETS, "back", SYSTEM)
            assert uid_of(binding) in annotations_of(marked)[keys.LEFT_BEHIND]
        finally:
            world.plane.resume()
        swept = lambda secret: keys.LEFT_BEHIND not in annotations_of(secret)  # noqa: E731
        await wait_for(world.virtual, SECRETS, "back", SYSTEM, until=swept, timeout=60)
    for resource in (PODS, CONFIGMAPS, SECRETS):
        left = await world.physical.list(resource, MOUNT, labels=keys.CLUSTER_BINDING_UID)
        assert [name_of(each) for each in left] == ["theirs"]


@pytest.mark.long  # it fails if other tests use the same clusters
async def test_syncers_run_in_a_separate_cluster(world: World) -> None:
    await world.add_secret("apart", {"kubeconfig": await world.account()})
    await allow_tokens(world)
    deploy = ("--deploy-kubeconfig", str(await management_kubeconfig(world)))
    with world.manager(*deploy):
        await world.add_binding("apart")
        binding = await world.reaches("apart", "Ready")
        ours = f"{keys.CLUSTER_BINDING_UID}={uid_of(binding)}"
        deployment = await world.physical.get(DEPLOYMENTS, "tapestry-syncer-apart", SYSTEM)
        assert deployment["metadata"]["labels"][keys.CLUSTER_BINDING_UID] == uid_of(binding)
        assert "Deployment tapestry-syncer-apart" not in await world.of_syncers(binding)
        arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        secret = await mounted_secret(world, "tapestry-syncer-apart")
        with separate_syncer(world, arguments, secret):
            in_use = lambda obj: keys.SYNCER_FINALIZER in obj["metadata"]["finalizers"]  # noqa: E731
            await wait_for(world.virtual, CLUSTER_BINDINGS, "apart", until=in_use)
            await lease_node(world)
            await sync_pod(world, "first")
            await renew_token(world, secret)
            await sync_pod(world, "second")
            await world.unbind("apart")
        assert await world.physical.list(DEPLOYMENTS, labels=ours) == []
        assert await world.physical.list(SECRETS, SYSTEM, labels=ours) == []


async def allow_tokens(world: World) -> None:
    """Grant the manager what `tapestry manifests --issue-tokens` grants."""
    for obj in installation_objects(issues_tokens=True):
        if name_of(obj) == TOKENS_ROLE:
            await world.ensure(world.virtual, RESOURCES[obj["kind"]], obj)


async def management_kubeconfig(world: World) -> Path:
    """Apply `tapestry manifests --management`, and return a kubeconfig of its account."""
    for obj in management_objects(SYSTEM):
        await world.ensure(world.physical, RESOURCES[obj["kind"]], obj)
    token = await world.physical.request_token("tapestry-manager", SYSTEM, seconds=3600)
    file = world.folder / "management.kubeconfig"
    file.write_bytes(kubeconfig(world.plane, token["token"]))
    return file


async def renew_token(world: World, mounted: Path) -> None:
    """Invalidate the token of a running syncer, and mount the next one of the manager, as a kubelet does."""
    name = "tapestry-syncer-apart"
    old = await world.physical.get(SECRETS, name, SYSTEM)
    await world.virtual.delete(SERVICE_ACCOUNTS, object_named(name, SYSTEM))
    has_changed = lambda obj: value_at(obj, "data", "token") != old["data"]["token"]  # noqa: E731
    new = await wait_until(world.physical, SECRETS, name, has_changed, SYSTEM)
    is_valid = True
    async with asyncio.timeout(60):  # kube-apiserver caches the result for ten seconds
        while is_valid:
            is_valid = await is_accepted(world.virtual, base64.b64decode(old["data"]["token"]))
            await asyncio.sleep(POLL)
    (mounted / "token").write_bytes(base64.b64decode(new["data"]["token"]))


async def is_accepted(client: Client, token: bytes) -> bool:
    review = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": TOKEN_REVIEWS.kind, "metadata": {}}
    answer = await client.create(TOKEN_REVIEWS, {**review, "spec": {"token": token.decode()}})
    return bool(answer["status"].get("authenticated"))


async def lease_node(world: World) -> None:
    """Lease a node to the binding `apart`."""
    policy = {"apiVersion": POLICIES.api_version, "kind": POLICIES.kind, **object_named("apart")}
    await world.virtual.create(POLICIES, {**policy, "spec": {"cluster": "apart"}})
    await world.ensure(world.physical, PRIORITY_CLASSES, priority_class())
    await world.ensure(world.physical, NODES, object_named("n1"))
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready("True")]}
    await world.physical.patch(NODES, object_named("n1"), {"status": status}, subresource="status")
    await wait_until(world.virtual, NODES, "vnode-apart-n1", allocatable_is(cpu="4"))


async def sync_pod(world: World, name: str) -> None:
    """Run a pod on the leased node until it is deleted."""
    await world.virtual.create(PODS, new_pod(name, "vnode-apart-n1", automountServiceAccountToken=False))
    is_mapped = lambda obj: is_condition_true(obj, keys.MAPPED_CONDITION)  # noqa: E731
    await wait_until(world.virtual, PODS, name, is_mapped, "default")
    assert len(await world.physical.list(PODS, MOUNT)) == 1
    await world.virtual.delete(PODS, object_named(name, "default"))
    await wait_until_gone(world.virtual, PODS, name, "default")
    assert await world.physical.list(PODS, MOUNT) == []


async def mounted_secret(world: World, name: str) -> Path:
    """Write a Secret of the cluster that syncers run in to a folder, as a kubelet does."""
    secret = await wait_for(world.physical, SECRETS, name, SYSTEM, until=bool)
    assert secret is not None
    folder = world.folder / name
    folder.mkdir()
    for key, value in secret["data"].items():
        (folder / key).write_bytes(base64.b64decode(value))
    return folder


@contextmanager
def separate_syncer(world: World, arguments: list[str], secret: Path) -> Iterator[None]:
    """Run a syncer with the arguments of its Deployment and its mounted Secret."""
    command = [
        each.replace("/etc/tapestry/kubeconfig", str(secret)) for each in arguments if "-bind-address" not in each
    ]
    command += ["--metrics-bind-address=", "--health-probe-bind-address="]
    environ = {**os.environ, "TAPESTRY_LEADER_ELECTION_NAMESPACE": SYSTEM}
    log = world.folder / "syncer.log"
    process = ForkedTapestry(command, environ, log)
    try:
        yield
        assert process.wait(60) == 0, log.read_text()  # it ends with its binding
    finally:
        process.kill()
        process.wait()


async def test_metrics_require_the_right_to_read_them(world: World, shared_plane: Plane) -> None:
    (port,) = free_ports(1)
    reader = await metrics_reader(world)
    await world.add_binding("counted", mountNamespace=None)
    with world.manager("--metrics-bind-address", f"0.0.0.0:{port}"):
        await world.reaches("counted", "Failed", "ValidationFailed")
        page = ""
        async with asyncio.timeout(30):  # the manager receives its own write when the test does
            while not re.search(
                r'tapestry_bindings\{phase="Failed"\} [1-9]', page
            ):  # bindings of other tests count too
                status, page = await asyncio.to_thread(metrics, port, reader)
                assert status == 200
        assert 'tapestry_is_leader{election="tapestry-manager"} 1.0' in page
        assert (await asyncio.to_thread(metrics, port, shared_plane.token))[0] == 200
        own = json.loads(world.manager_kubeconfig.read_text())["users"][0]["user"]["token"]
        assert (await asyncio.to_thread(metrics, port, own))[0] == 403  # a right that the manager does not need
        await world.unbind("counted")


async def metrics_reader(world: World) -> str:
    """Return a token of an account with the role that the guide to monitoring binds to Prometheus."""
    reference = {"apiGroup": CLUSTER_ROLES.group, "kind": CLUSTER_ROLES.kind, "name": METRICS_READER_ROLE}
    subject = {"kind": "ServiceAccount", "name": "prometheus", "namespace": SYSTEM}
    await world.ensure(world.virtual, SERVICE_ACCOUNTS, object_named("prometheus", SYSTEM))
    bound = {**object_named("prometheus-tapestry"), "roleRef": reference, "subjects": [subject]}
    await world.ensure(world.virtual, CLUSTER_ROLE_BINDINGS, bound)
    issued = await world.virtual.request_token("prometheus", SYSTEM, seconds=3600)
    return str(issued["token"])


def metrics(port: int, token: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
