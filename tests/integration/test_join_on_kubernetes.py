"""Commands with which a cluster joins, lends and leaves, run on two clusters."""

import base64
import json
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.permissions import SYNCER_IN_PHYSICAL, SYNCER_STREAMS
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.kube.resources import CLUSTER_ROLES, CRDS, NAMESPACES, NODES, PODS, SECRETS, SERVICE_ACCOUNTS
from tapestry.manager.joining import PRIORITY_CLASSES

from .bound_clusters import new_pod, wait_until, wait_until_gone
from .forked import ForkedTapestry, completed
from .planes import Plane, Start, also_mixed

READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": "2026-01-01T00:00:00Z"}
OURS = f"{keys.MANAGED_BY}={keys.TAPESTRY}"


@pytest.fixture(scope="module")
def bare_plane(start: Start) -> Iterator[Plane]:
    """A physical cluster without our kinds."""
    with start("bare") as plane:
        yield plane


@dataclass(frozen=True)
class Owner:
    """Administrator of a virtual and a physical cluster, who runs commands."""

    name: str
    virtual: Client
    physical: Client
    virtual_plane: Plane
    physical_plane: Plane

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return completed(arguments, {**os.environ, "KUBECONFIG": str(self.virtual_plane.kubeconfig)})

    def says(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def join(self, *options: str) -> list[str]:
        return self.says("join", self.name, *self.below, *options).splitlines()

    @property
    def below(self) -> tuple[str, str]:
        return "--cluster-kubeconfig", str(self.physical_plane.kubeconfig)

    def json(self, *arguments: str) -> Any:
        return json.loads(self.says(*arguments, "-o", "json"))

    async def marked_below(self) -> list[Object]:
        resources = (SERVICE_ACCOUNTS, CLUSTER_ROLES, NAMESPACES, PRIORITY_CLASSES, CRDS)
        return [each for resource in resources for each in await self.physical.list(resource, labels=OURS)]


@pytest.fixture
async def owner(virtual_plane: Plane, bare_plane: Plane) -> AsyncIterator[Owner]:
    virtual, physical = (
        Client(HttpTransport(load_access([plane.kubeconfig], environ=os.environ)))
        for plane in (virtual_plane, bare_plane)
    )
    owner = Owner(f"j{secrets.token_hex(4)}", virtual, physical, virtual_plane, bare_plane)
    yield owner
    owner.run("unjoin", owner.name, "--force", "--timeout", "1", *owner.below)  # a cluster joins once
    await virtual.close()
    await physical.close()


@pytest.fixture
async def node(owner: Owner) -> AsyncIterator[str]:
    """A ready physical node, deleted at the end of the test."""
    name = f"n-{owner.name}"
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110", "example.com/gpu": "3"}
    await owner.physical.create(NODES, {"apiVersion": "v1", "kind": "Node", **object_named(name)})
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [READY]}
    await owner.physical.patch(NODES, object_named(name), {"status": status}, subresource="status")
    yield name
    await owner.physical.delete(NODES, object_named(name))


@pytest.fixture
def syncer(owner: Owner, tmp_path: Path) -> Iterator[Callable[[], ForkedTapestry]]:
    """Function that starts the syncer of the binding."""
    started = []

    def start() -> ForkedTapestry:
        command = ["syncer", "--binding", owner.name, "--kubeconfig", owner.virtual_plane.kubeconfig]
        command += ["--allow-loopback", "--leader-elect=false"]
        command += ["--metrics-bind-address", "", "--health-probe-bind-address", ""]
        started.append(ForkedTapestry(command, os.environ, tmp_path / "syncer.log"))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def marks(lines: list[str]) -> set[str]:
    """Marks at the start of each line except the summary in the last line."""
    return {line.split()[0] for line in lines[:-1]}


@also_mixed
async def test_cluster_joins_lends_and_leaves_without_a_trace(
    owner: Owner, node: str, syncer: Callable[[], ForkedTapestry]
) -> None:
    first = owner.join("--lease", "50%", "--window", "00:00-24:00", "--force-reclaim", "--grace", "60")
    assert marks(first) >= {"created", "granted"}
    assert "missing" not in marks(first)
    assert marks(owner.join()) == {"unchanged", "granted", "warning"}  # the cluster is on this machine

    process = syncer()
    virtual = f"vnode-{owner.name}-{node}"
    await wait_until(owner.virtual, NODES, virtual, lambda obj: value_at(obj, "status", "allocatable", "cpu") == "2")
    await owner.physical.create(PODS, new_pod(owner.name, node, requests={"cpu": "1"}))
    await wait_until(
        owner.virtual, NODES, virtual, lambda obj: value_at(obj, "status", "allocatable", "cpu") == "1500m"
    )
    leasing = lambda obj: value_at(obj, "status", "leased", "cpu") == "1500m"  # noqa: E731
    await wait_until(owner.virtual, CLUSTER_BINDINGS, owner.name, leasing)

    (binding,) = (each for each in owner.json("status") if each["name"] == owner.name)
    assert (binding["leasing"], binding["nodes"], binding["leased"]["cpu"]) == ("Leasing", 1, "1500m")
    (listed,) = (each for each in owner.json("nodes") if each["binding"] == owner.name)
    assert (listed["name"], listed["state"], listed["ready"]) == (virtual, "Open", True)
    (policy,) = (each for each in owner.json("policies") if each["cluster"] == owner.name)
    assert (policy["side"], policy["open"], policy["terms"]) == ("owner", True, "reclaimed 60 s after the end")

    (answer,) = owner.json("explain", "node", node)
    rows = {each["resource"]: each for each in answer["resources"]}
    assert (answer["node"], answer["state"], answer["behind"]) == (virtual, "Open", [])
    cpu, gpu = rows["cpu"], rows["example.com/gpu"]
    assert [cpu[part] for part in ("allocatable", "foreign", "idle", "leased")] == ["4", "1", "3", "1500m"]
    assert (cpu["decidedBy"], cpu["rule"]) == (f"owner/{policy['name']}", "50% of idle")
    assert (gpu["leased"], gpu["floored"]) == ("1", "500m")
    text = owner.says("explain", "node", virtual)
    assert f"Node {virtual}: Open (Leased)" in text
    assert f"Policy owner/{policy['name']}: Open" in owner.says("explain", "policy", policy["name"])

    left = owner.says("unjoin", owner.name, *owner.below).splitlines()
    assert f"deleted    virtual    ClusterBinding {owner.name}" in left
    assert process.wait(30) == 0
    await wait_until_gone(owner.virtual, NODES, virtual)
    with pytest.raises(NotFound):
        await owner.virtual.get(SECRETS, owner.name, keys.SYSTEM_NAMESPACE)
    remaining = [each for each in await owner.marked_below() if each["metadata"].get("deletionTimestamp") is None]
    assert remaining == []
    await owner.physical.delete(PODS, object_named(owner.name, "default"), grace_seconds=0)


async def test_join_kubeconfig_has_only_the_rights_of_the_syncer(
    owner: Owner, tmp_path: Path, kubectl: Callable[..., str]
) -> None:
    owner.join("--mount-namespace", owner.name)
    secret = await owner.virtual.get(SECRETS, owner.name, keys.SYSTEM_NAMESPACE)
    file = tmp_path / "kubeconfig"
    file.write_bytes(base64.b64decode(secret["data"]["kubeconfig"]))
    who = kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}", kubeconfig=file)
    assert who.startswith(f"system:serviceaccount:{owner.name}:tapestry-syncer-{owner.name}-")
    listed = kubectl("auth", "can-i", "--list", "--namespace", owner.name, kubeconfig=file).splitlines()[1:]
    allowed = {line.split()[0] for line in listed if not line.startswith((" ", "selfsubject"))}
    rights = (*SYNCER_IN_PHYSICAL, *SYNCER_STREAMS)
    assert allowed == {"/".join(filter(None, (right.resource.name, right.subresource))) for right in rights}
    assert "pods/exec" not in kubectl("auth", "can-i", "--list", "--namespace", "default", kubeconfig=file)


async def test_token_is_replaced_when_the_account_is_recreated(owner: Owner) -> None:
    owner.join("--mount-namespace", owner.name)
    (account,) = await owner.physical.list(SERVICE_ACCOUNTS, owner.name, labels=OURS)
    await owner.physical.delete(SERVICE_ACCOUNTS, account)
    again = owner.join("--mount-namespace", owner.name)
    assert {line.split()[2] for line in again if line.startswith(("created", "updated"))} == {
        "ServiceAccount",
        "Secret",
    }
    assert "missing" not in marks(again)


async def test_forced_leave_works_without_syncer_and_cluster(owner: Owner, tmp_path: Path) -> None:
    owner.join("--mount-namespace", owner.name)
    finalizers = {"metadata": {"finalizers": [keys.MANAGER_FINALIZER, keys.SYNCER_FINALIZER]}}
    await owner.virtual.patch(CLUSTER_BINDINGS, object_named(owner.name), finalizers)
    nowhere = tmp_path / "kubeconfig"
    nowhere.write_text(
        owner.physical_plane.kubeconfig.read_text().replace(owner.physical_plane.url, "https://127.0.0.1:1")
    )
    gone_by_force = owner.says("unjoin", owner.name, "--force", "--timeout", "1", "--cluster-kubeconfig", str(nowhere))
    assert f"left       physical   ClusterRole tapestry-syncer-{owner.name}-" in gone_by_force
    await wait_until_gone(owner.virtual, CLUSTER_BINDINGS, owner.name)
    owner.says("unjoin", owner.name, *owner.below)  # the cluster is back
    assert await owner.physical.list(CLUSTER_ROLES, labels=OURS) == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("explain", "node", "nobody"), "Error: no cluster that has joined has a node nobody"),
        (("unjoin", "nobody"), "Error: ClusterBinding nobody does not exist; `tapestry status`"),
        (("status", "--context", "none"), "Error: context: 'none' does not exist"),
    ],
)
def test_errors_are_one_line(virtual_plane: Plane, arguments: tuple[str, ...], line: str) -> None:
    done = completed(arguments, {**os.environ, "KUBECONFIG": str(virtual_plane.kubeconfig)})
    (error,) = done.stderr.splitlines()
    assert (done.returncode, error[: len(line)]) == (1, line)
