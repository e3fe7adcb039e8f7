"""From `tapestry manifests` and `tapestry join` to virtual nodes, with nobody's rights but those that were granted.

The manager is a process under its own service account; the syncers are processes that the manager's Deployments ask
for, under theirs; what they may do below is what `tapestry join` granted.  A missing right shows as a failure here.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.policies import POLICIES
from tapestry.apis.rights import MANAGER, SYNCER_ABOVE, SYNCER_BELOW, SYNCER_HOME, SYNCER_KUBECONFIG, Right
from tapestry.client.client import Client
from tapestry.client.connection import HttpTransport
from tapestry.client.kubeconfig import load
from tapestry.client.waiting import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.kube.conditions import is_true
from tapestry.kube.objects import Object, is_deleting, named, of_resource, value_at
from tapestry.kube.resources import CSI_NODES, DEPLOYMENTS, NODES, PODS
from tapestry.local.kubernetes import ControlPlane

from .deployments import DeploymentRunner

TAPESTRY = Path(sys.executable).with_name("tapestry")
SYSTEM = "tapestry-system"


def run(*command: object, **environ: object) -> str:
    done = subprocess.run(
        [TAPESTRY, *map(str, command)],
        env={**os.environ, **{key: str(value) for key, value in environ.items()}},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def planes(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    """A virtual cluster with service accounts of its own, and a physical one."""
    folder = tmp_path_factory.mktemp("planes")
    with (
        ControlPlane(folder / "virtual", kube_assets, controller_manager=True, fsync=False, audit=True) as virtual,
        ControlPlane(folder / "physical", kube_assets, controller_manager=True, fsync=False, audit=True) as physical,
    ):
        yield virtual, physical


def client_of(plane: ControlPlane) -> Client:
    return Client(HttpTransport(load([plane.kubeconfig], environ={})))


def apply(manifests: str, plane: ControlPlane, assets: Path) -> None:
    subprocess.run(
        [assets / "kubectl", "apply", "-f", "-"],
        env={**os.environ, "KUBECONFIG": str(plane.kubeconfig)},
        input=manifests,
        stdout=subprocess.DEVNULL,
        text=True,
        check=True,
    )


def denials(folder: Path) -> list[str]:
    return [line for log in folder.glob("*.log") for line in log.read_text().splitlines() if "Forbidden" in line]


Used = set[tuple[str, str]]
"""Rights as (verb, what): `("patch", "pods/status")`."""


def used_by(account: str, plane: ControlPlane) -> tuple[Used, Used]:
    """The rights that a service account used in a cluster, and those it was denied, by the server's own audit."""
    used: Used = set()
    denied: Used = set()
    for line in plane.audit_log.read_text().splitlines():
        entry = json.loads(line)
        about = entry.get("objectRef") or {}
        if account in entry["user"]["username"] and "resource" in about:
            what = "/".join(filter(None, (about["resource"], about.get("subresource"))))
            refused = value_at(entry, "responseStatus", "code") == 403
            (denied if refused else used).add((entry["verb"], what))
    return used, denied


def granted(rights: Iterable[Right]) -> Used:
    return {(verb, right.kind) for right in rights for verb in right.verbs}


@asynccontextmanager
async def working(plane: ControlPlane, assets: Path, folder: Path) -> AsyncIterator[DeploymentRunner]:
    """`tapestry manifests` applied, and a runner for the Deployments that come of it: first of all the manager's."""
    await asyncio.to_thread(apply, run("manifests"), plane, assets)
    access = load([plane.kubeconfig], environ={})
    config = ManagerConfig(name="runner", metrics=Metrics(address=""), probes=Probes(address=""))
    host = Manager(config, lambda: HttpTransport(access), identity="runner")
    runner = DeploymentRunner(host, host.informer(DEPLOYMENTS, namespace=SYSTEM), plane.kubeconfig, folder)
    host.with_("runner", lambda _: None)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(host.run())
        try:
            yield runner
        finally:
            host.stop()
            await asyncio.wait([task])
            await runner.stop()


def a_node(name: str) -> Object:
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    return {"metadata": {"name": name}, "status": {"capacity": amounts, "allocatable": amounts}}


async def reclaimed(virtual: Client, physical: Client) -> None:
    """The owner's node has a driver and a port that is taken; then the owner wants it back, and a pod goes."""
    driver = {"name": "csi.example", "nodeID": "n1"}
    await physical.create(CSI_NODES, {"metadata": {"name": "n1"}, "spec": {"drivers": [driver]}})
    await reaches(virtual, CSI_NODES, "vnode-east-n1", lambda _: True)
    port = {"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 80}]}
    foreign = {"metadata": {"name": "web", "namespace": "default"}, "spec": {"nodeName": "n1", "containers": [port]}}
    await physical.create(PODS, foreign)
    work = {"metadata": {"name": "work", "namespace": "default"}, "spec": {"nodeName": "vnode-east-n1"}}
    work["spec"]["containers"] = [{"name": "c", "image": "i"}]  # type: ignore[assignment]
    await virtual.create(PODS, work)
    await virtual.create(POLICIES, of_resource(POLICIES, {"metadata": {"name": "ours"}, "spec": {"cluster": "east"}}))
    await reaches(virtual, POLICIES, "ours", lambda policy: value_at(policy, "status", "nodes") == 2)
    await physical.patch(NODES, named("n1"), {"metadata": {"annotations": {"tapestry.io/reclaim": "now"}}})
    await reaches(virtual, PODS, "work", is_deleting, "default")
    await virtual.delete(PODS, named("work", "default"), grace_seconds=0)


async def reaches(client: Client, resource, name: str, until: Callable[[Object], bool], namespace=None) -> Object:
    found = await wait_for(
        client, resource, name, namespace, until=lambda obj: obj is not None and until(obj), timeout=60
    )
    assert found is not None
    return found


SPARE = {
    # The list of a server that cannot stream one.
    *(("list", what) for what in ("clusterbindings", "resourceleasingpolicies", "csinodes", "secrets", "namespaces")),
    *(
        ("list", what)
        for what in ("nodes", "pods", "leases", "deployments", "serviceaccounts", "roles", "rolebindings")
    ),
    ("list", "clusterrolebindings"),
    # What happens seldom, and not in this story: names that are taken, caches that lag, sweeps, drift, force.
    *(("get", what) for what in ("nodes", "leases", "deployments", "serviceaccounts", "roles", "rolebindings")),
    *(("get", what) for what in ("clusterrolebindings", "secrets")),
    *(("patch", what) for what in ("deployments", "serviceaccounts", "roles", "rolebindings", "clusterrolebindings")),
    *(("patch", what) for what in ("pods", "events", "csinodes", "secrets")),
    *(("delete", what) for what in ("nodes", "pods")),  # the manager's, when it unbinds by force
    ("create", "pods/eviction"),
    ("create", "serviceaccounts/token"),  # at four fifths of thirty days
    # Only for listeners off loopback.
    ("create", "tokenreviews"),
    ("create", "subjectaccessreviews"),
    # Held in order to hand them on, or for this alone.
    ("create", "pods"),
    ("bind", "clusterroles"),
}
"""Rights that are granted and that this story does not use."""


def check_rights(above: ControlPlane, below: ControlPlane, tell: Callable[[str, object], None]) -> None:
    """Nothing was denied to anyone, and nothing was granted that has no use."""
    tables = {
        "the manager": (MANAGER, "tapestry-system:tapestry-manager", above),
        "a syncer above": (
            (*SYNCER_ABOVE, *SYNCER_HOME, *SYNCER_KUBECONFIG),
            "tapestry-system:tapestry-syncer-east",
            above,
        ),
        "a syncer below": (SYNCER_BELOW, "serviceaccount:tapestry-leased:", below),
    }
    for who, (rights, account, plane) in tables.items():
        used, denied = used_by(account, plane)
        assert used, f"{who} asked for nothing as {account}"
        assert denied == set(), who
        unused = granted(rights) - used
        tell("figure", f"rights of {who}: {len(granted(rights))} granted, {len(unused)} not used in this story")
        assert unused <= SPARE, f"{who}: granted and never used: {sorted(unused - SPARE)}"


@pytest.mark.timeout(300)
async def test_a_cluster_joins_lends_survives_kills_and_leaves(
    planes: tuple[ControlPlane, ControlPlane],
    kube_assets: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    above, below = planes
    virtual, physical = client_of(above), client_of(below)
    try:
        await physical.create(NODES, a_node("n1"))
        async with working(above, kube_assets, tmp_path) as runner:
            joined = await asyncio.to_thread(
                run,
                *("join", "east", "--kubeconfig", above.kubeconfig, "--cluster-kubeconfig", below.kubeconfig),
                *("--lease", "50%"),
            )
            assert "east" in joined
            await reaches(virtual, NODES, "vnode-east-n1", lambda node: node["status"]["allocatable"]["cpu"] == "2")
            await reaches(virtual, CLUSTER_BINDINGS, "east", lambda binding: is_true(binding, "SyncerReady"))

            [deployment] = [
                each
                for each in await virtual.list(DEPLOYMENTS, SYSTEM)
                if "syncer" in json.dumps(value_at(each, "spec", "template", "spec", "containers", 0, "args"))
            ]
            for process in runner.processes(deployment):
                process.kill()
            await physical.create(NODES, a_node("n2"))
            await reaches(virtual, NODES, "vnode-east-n2", lambda _: True)

            await reclaimed(virtual, physical)
            shown = await asyncio.to_thread(run, "status", "--kubeconfig", above.kubeconfig)
            assert "east" in shown
            await virtual.delete(CLUSTER_BINDINGS, named("east"))
            await wait_for(virtual, CLUSTER_BINDINGS, "east", until=lambda obj: obj is None, timeout=60)
            assert [node for node in await virtual.list(NODES) if node["metadata"]["name"].startswith("vnode-")] == []
    finally:
        await virtual.close()
        await physical.close()
    assert denials(tmp_path) == []
    check_rights(above, below, record_property)
