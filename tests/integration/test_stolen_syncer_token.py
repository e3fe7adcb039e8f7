"""Rights of a syncer's account, as the manifests and the manager grant them: enough for its work, and no more.

Manager and syncer run with the tokens of their own accounts. `attacks.py` lists what a stolen token must not allow.
"""

import asyncio
import base64
import os
import ssl
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.names import physical_name, virtual_cluster_label
from tapestry.apis.policies import POLICIES
from tapestry.apis.serving_certificates import service_names, signing_request
from tapestry.client.discovery import is_served
from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.objects import Object, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    CONFIGMAPS,
    CSI_NODES,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODE_LEASE_NAMESPACE,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    SIGNING_REQUESTS,
)
from tapestry.local.control_planes import kubelet_flags
from tapestry.local.kubernetes import ControlPlane
from tapestry.local.world import install_manager
from tapestry.manager.pod_needs import REVOCATION_DELAY

from ..conftest import kubectl_of
from .attacks import MERGE, Attack, attacks, core, get, manager_attacks, patch, post
from .attacks import SIGNING_REQUESTS as REQUESTS
from .bound_clusters import (
    BoundClusters,
    bound_clusters,
    client_of,
    give,
    install_kinds,
    new_object,
    new_pod,
    wait_until,
)
from .forked import ForkedTapestry, completed
from .planes import Plane, Start, kubeconfig_with
from .servers import OwnServer

SYSTEM = keys.SYSTEM_NAMESPACE
NODE = "vnode-east-n1"
REVOCATION_SECONDS = REVOCATION_DELAY.total_seconds() + 45
"""Time limit for the manager to revoke the rights for a namespace after its last pod."""
POLL = 0.5


@dataclass(frozen=True)
class Stolen:
    """A running installation, and the token of the account of its syncer."""

    clusters: BoundClusters
    plane: Plane
    token: str
    manager_token: str

    async def status(self, attack: Attack, session: aiohttp.ClientSession) -> int:
        kind = MERGE if attack.method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        body = msgspec.json.encode(attack.body) if attack.body is not None else None
        async with session.request(attack.method, self.plane.url + attack.path, data=body, headers=headers) as answer:
            await answer.content.read(1024)
            return answer.status

    async def statuses(self, requests: list[Attack]) -> list[tuple[int, str]]:
        """Return the status code of each request."""
        tls = ssl.create_default_context(cafile=str(certificate_authority(self.plane)))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session:
            return [(await self.status(each, session), str(each)) for each in requests]


def certificate_authority(plane: Plane) -> Path:
    config = msgspec.json.decode(plane.kubeconfig.read_bytes())
    file = plane.kubeconfig.with_name("stolen-ca.pem")
    file.write_bytes(base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]))
    return file


@contextmanager
def running(log: Path, *command: object) -> Iterator[None]:
    """Run a component that reports no missing right."""
    settings = {"TAPESTRY_LEADER_ELECTION_NAMESPACE": SYSTEM}
    flags = ["--allow-loopback", "--metrics-bind-address=", "--health-probe-bind-address="]
    process = ForkedTapestry([*command, *flags], {**os.environ, **settings}, log)
    try:
        yield
        process.terminate()
        assert process.wait(30) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert "orbidden" not in log.read_text(), log.read_text()


async def account_kubeconfig(clusters: BoundClusters, plane: Plane, account: str) -> tuple[str, Path]:
    await wait_until(clusters.virtual, SERVICE_ACCOUNTS, account, bool, SYSTEM)
    token = (await clusters.virtual.request_token(account, SYSTEM, seconds=3600))["token"]
    return token, kubeconfig_with(plane, token, clusters.folder / f"{account}.kubeconfig")


@asynccontextmanager
async def installation(plane: Plane, physical: Plane, folder: Path) -> AsyncIterator[Stolen]:
    async with bound_clusters(plane, physical, folder, name="east") as clusters:
        manager_token, manager = await account_kubeconfig(clusters, plane, "tapestry-manager")
        with running(folder / "manager.log", "manager", "--kubeconfig", manager):
            token, syncer = await account_kubeconfig(clusters, plane, "tapestry-syncer-east")
            command = ["syncer", "--binding", "east", "--kubeconfig", syncer, "--leader-elect=true"]
            with running(folder / "syncer.log", *command):
                yield Stolen(clusters, plane, token, manager_token)


@pytest.fixture(scope="module")
def plane(start: Start) -> Iterator[Plane]:
    with start("stolen") as plane:
        yield plane


@pytest.fixture
async def stolen(plane: Plane, physical_plane: Plane, tmp_path: Path) -> AsyncIterator[Stolen]:
    await install_kinds(plane)
    async with client_of(plane) as client:
        await install_manager(client)
    async with installation(plane, physical_plane, tmp_path) as made:
        yield made


async def add_targets(clusters: BoundClusters) -> str:
    """Create what attacks aim at. Return the UID of the binding west."""
    virtual = clusters.virtual
    for namespace in ("team-a", "team-b"):
        await virtual.create(NAMESPACES, object_named(namespace))
        await virtual.create(CONFIGMAPS, {**object_named("settings", namespace), "data": {"mode": "a"}})
        for account in ("robot", "admin"):
            await give(virtual, SERVICE_ACCOUNTS, object_named(account, namespace))
    for name, namespace in (
        *(("used", "team-a"), ("unused", "team-a"), ("secret", "team-b")),
        *(("system", "kube-system"), ("west", SYSTEM)),
    ):
        await virtual.create(SECRETS, {**object_named(name, namespace), "stringData": {"password": "p"}})
    for account, namespace in (("admin", "kube-system"), ("tapestry-syncer-west", SYSTEM)):
        await virtual.create(SERVICE_ACCOUNTS, object_named(account, namespace))
    reference = {"name": "west", "namespace": SYSTEM}
    spec = {"clusterID": "west", "secretRef": reference, "mountNamespace": "m"}
    west = await virtual.create(
        CLUSTER_BINDINGS, new_object(CLUSTER_BINDINGS.kind, {"name": "west"}, CLUSTER_BINDINGS.api_version, spec=spec)
    )
    policy = new_object(POLICIES.kind, {"name": "west"}, POLICIES.api_version, spec={"cluster": "west"})
    await virtual.create(POLICIES, policy)
    await virtual.create(POLICIES, {**policy, "metadata": {"name": "east"}, "spec": {"cluster": "east"}})
    labels = {keys.CLUSTER_BINDING_UID: uid_of(west), keys.NODE_TYPE: keys.NODE_TYPE_VIRTUAL}
    for name, own in (("vnode-west-n1", labels), ("worker", {})):
        await virtual.create(NODES, {"metadata": {"name": name, "labels": own}})
        await virtual.create(CSI_NODES, {"metadata": {"name": name, "labels": own}, "spec": {"drivers": []}})
        await virtual.create(LEASES, object_named(name, NODE_LEASE_NAMESPACE))
    for name, namespace, node in (
        *(("west-pod", "team-a", "vnode-west-n1"), ("unbound", "team-a", "")),
        *(("other", "team-b", "worker"), ("system", "kube-system", "worker")),
    ):
        pod = new_pod(name, node)
        await virtual.create(PODS, {**pod, "metadata": {"name": name, "namespace": namespace}})
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await virtual.create(PERSISTENT_VOLUME_CLAIMS, {**object_named("data", "team-b"), "spec": claim})
    about = {"kind": "Pod", "namespace": "team-b", "name": "other"}
    await virtual.create(EVENTS, {**object_named("theirs", "team-b"), "involvedObject": about, "reason": "Pulled"})
    await virtual.create(SIGNING_REQUESTS, new_signing_request("theirs", "worker", {"10.0.0.1"}))
    return uid_of(west)


def new_signing_request(name: str, syncer: str, names: Collection[str]) -> Object:
    request = signing_request(name, syncer, names, ec.generate_private_key(ec.SECP256R1()))
    return {"apiVersion": SIGNING_REQUESTS.api_version, "kind": SIGNING_REQUESTS.kind, **request}


def new_working_pod() -> Object:
    sources = [{"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "settings"}}]
    volumes = [
        {"name": "secret", "secret": {"secretName": "used"}},
        {"name": "projected", "projected": {"sources": sources}},
    ]
    spec = {"serviceAccountName": "robot", "automountServiceAccountToken": False, "volumes": volumes}
    return {**new_pod("work", NODE, **spec), "metadata": {"name": "work", "namespace": "team-a"}}


async def mapped_pod(clusters: BoundClusters) -> Object:
    """Create a pod of east that uses a Secret, a ConfigMap and a token, and wait until it has a twin."""
    pod = await clusters.virtual.create(PODS, new_working_pod())
    binding = await clusters.virtual.get(CLUSTER_BINDINGS, "east")
    cluster = virtual_cluster_label(uid_of(await clusters.virtual.get(NAMESPACES, "kube-system")))
    await wait_until(
        clusters.physical, PODS, physical_name(cluster, uid_of(binding), "team-a", "work"), bool, clusters.mount
    )
    return await wait_until(
        clusters.virtual, PODS, name_of(pod), lambda obj: is_condition_true(obj, keys.MAPPED_CONDITION), "team-a"
    )


async def test_stolen_token_gives_no_access_beyond_its_binding(stolen: Stolen) -> None:
    clusters = stolen.clusters
    west_uid = await add_targets(clusters)
    await clusters.add_node("n1")
    await clusters.wait_for_virtual_node("n1")
    pod = await mapped_pod(clusters)
    east = await clusters.wait_for_binding(lambda obj: is_condition_true(obj, "Restricted"))
    await wait_until(clusters.virtual, LEASES, NODE, bool, NODE_LEASE_NAMESPACE)
    requests = attacks(uid_of(east), west_uid, NODE, uid_of(pod))
    statuses = await stolen.statuses(requests)
    assert [each for each in statuses if each[0] != 403] == []
    assert len(statuses) >= 60
    by_manager = await replace(stolen, token=stolen.manager_token).statuses(manager_attacks())
    assert [each for each in by_manager if each[0] != 403] == []
    for_pods = [
        get(core("secrets", "used", "team-a")),
        get(f"{core('secrets', '', 'team-a')}?fieldSelector=metadata.name%3Dused"),
        get(core("configmaps", "settings", "team-a")),
        post(
            core("serviceaccounts", "robot", "team-a", "token"),
            {"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "work", "uid": uid_of(pod)}}},
        ),
    ]
    allowed = [*for_pods, patch(core("nodes", NODE)), patch(core("pods", "work", "team-a"))]
    assert {status for status, _ in await stolen.statuses(allowed)} <= {200, 201}
    assert await approved_requests(stolen) == ["own"]
    await clusters.virtual.delete(PODS, object_named("work", "team-a"), grace_seconds=0)
    await wait_until_refused(stolen, for_pods)


async def test_server_without_admission_policies_restricts_by_name(kube_assets: Path, tmp_path: Path) -> None:
    """As on Kubernetes before 1.30: the manager and the syncer work, and the condition says what is weaker."""
    kinds = (ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS)
    disabled = ",".join(f"{each.api_version}/{each.plural}=false" for each in kinds)
    flags = {
        "runtime-config": disabled,
        "disable-admission-plugins": "ServiceAccount,ValidatingAdmissionPolicy",
        **kubelet_flags(tmp_path / "old"),
    }
    with (
        ControlPlane(tmp_path / "old", kube_assets, fsync=False, flags=flags) as plane,
        OwnServer(tmp_path / "physical", pod_accounts="false") as below,
    ):
        manifests = completed(["manifests", "--image", "mine:1", "--no-admission-policies"], os.environ).stdout
        kubectl_of(kube_assets, plane.kubeconfig)("apply", "-f", "-", stdin=manifests)
        for each in (plane, below):
            await install_kinds(each)
        async with installation(plane, below, tmp_path) as stolen:
            async with client_of(plane) as client:
                assert not await is_served(client, ADMISSION_POLICIES)
            await add_targets(stolen.clusters)
            await stolen.clusters.add_node("n1")
            await stolen.clusters.wait_for_virtual_node("n1")
            await mapped_pod(stolen.clusters)
            binding = await stolen.clusters.wait_for_binding(lambda obj: is_condition_true(obj, "Ready"))
            condition = find_condition(binding["status"]["conditions"], "Restricted") or {}
            assert (condition["status"], condition["reason"]) == ("False", "AdmissionPoliciesMissing")
            assert "all pods, nodes of other bindings" in condition["message"]
            others = [get(core("secrets", name, "team-a")) for name in ("used", "unused")]
            assert [status for status, _ in await stolen.statuses(others)] == [200, 403]


async def wait_until_refused(stolen: Stolen, requests: list[Attack]) -> None:
    """Wait until the roles are gone from the server and from the cache of its authorizer, which has no watch."""
    async with asyncio.timeout(REVOCATION_SECONDS):
        left = requests
        while left:
            statuses = await stolen.statuses(left)
            left = [each for each, (status, _) in zip(left, statuses, strict=True) if status != 403]
            await asyncio.sleep(POLL)


async def approved_requests(stolen: Stolen) -> list[str]:
    """Request certificates for names of others, then for the syncer's own. Return the requests that are approved.

    The manager sees the requests in the order of their creation, so the approval of the last one ends the wait.
    """
    virtual, east, west = stolen.clusters.virtual, "tapestry-syncer-east", "tapestry-syncer-west"
    service = await wait_until(virtual, SERVICES, east, bool, SYSTEM)
    own = service_names(service)
    requests = {
        "west": new_signing_request("west", west, own),
        "west-name": new_signing_request("west-name", east, {f"{west}.{SYSTEM}.svc"}),
        "api": new_signing_request("api", east, {*own, "kubernetes.default.svc"}),
        "worker": new_signing_request("worker", "worker", {"worker"}),
        "own": new_signing_request("own", east, own),
    }
    statuses = await stolen.statuses([post(REQUESTS, each) for each in requests.values()])
    assert {status for status, _ in statuses} == {201}
    await wait_until(virtual, SIGNING_REQUESTS, "own", lambda obj: value_at(obj, "status", "conditions"))
    found = [await virtual.get(SIGNING_REQUESTS, name) for name in requests]
    return [name_of(each) for each in found if value_at(each, "status", "conditions")]
