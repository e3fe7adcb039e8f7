"""`tapestry host` and `tapestry tenant`: each command against a process of planes and a host cluster."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.unit.planes.plane_processes import create_plane
from tests.unit.tenants.running_tenants import TIMEOUT, HostWorld, bare_world, run_pod, wait_for_pod

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.planes import PLANES, plane_id
from tapestry.apis.policies import POLICIES
from tapestry.cli.main import main
from tapestry.client.watch import wait_for
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import object_named, value_at
from tapestry.kube.resources import CLUSTER_ROLE_BINDINGS, NAMESPACES, PODS, SECRETS
from tapestry.tenants.host_clusters import HOSTS_NAMESPACE
from tapestry.tenants.host_rights import HOST_ACCOUNT

TENANTS_OF_HOST = "tapestry.io/managed-by=tapestry,tapestry.io/cluster-binding-uid"


@dataclass(frozen=True)
class Commands:
    """Commands in a thread, because the process of planes is in this one."""

    folder: Path

    async def invoke(self, *words: str) -> Result:
        arguments = [*words, "--data", str(self.folder / "planes")]
        return await asyncio.to_thread(CliRunner().invoke, main, arguments)

    async def output(self, *words: str) -> str:
        """Return the output of a command that succeeds."""
        result = await self.invoke(*words)
        assert result.exit_code == 0, result.output
        return result.stdout

    async def error(self, *words: str) -> str:
        result = await self.invoke(*words)
        assert result.exit_code != 0, result.output
        return result.stderr

    async def add_host(self, *options: str, name: str = "east") -> str:
        file = str(self.folder / "host" / "kubeconfig")
        return await self.output("host", "add", name, "--cluster-kubeconfig", file, "--allow-loopback", *options)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[HostWorld]:
    async with bare_world(tmp_path) as world:
        yield world


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(tmp_path)


async def test_tenant_runs_drains_and_leaves_nothing(world: HostWorld, commands: Commands) -> None:
    assert (await commands.add_host()).splitlines()[-1].startswith("host east added; `tapestry tenant create PLANE")
    id = plane_id(await create_plane(world.management, "blue", backend="memory"))
    assert "tenant blue is ready" in await commands.output("tenant", "create", "blue", "--host", "east")
    client = world.tenant_client(id)
    await run_pod(client)
    header, row = (await commands.output("tenant", "list", "-o", "wide")).splitlines()
    assert header.split()[:4] == ["NAME", "PHASE", "HOST", "WORKLOADS"]
    assert row.split()[:4] == ["blue", "Ready", "east", "Run"]

    assert (await commands.output("tenant", "drain", "blue", "--grace", "0")).splitlines()[-1] == "tenant blue drained"
    assert (await client.get(PODS, "work", "default"))["status"]["phase"] == "Pending"
    assert await world.host.client.list(PODS, labels=TENANTS_OF_HOST) == []
    assert await commands.output("tenant", "run", "blue") == "tenant blue runs its pods\n"
    await wait_for_pod(client, "work", lambda each: value_at(each, "status", "phase") == "Running")

    assert "east has the tenants blue" in await commands.error("host", "remove", "east")
    assert (await commands.output("tenant", "delete", "blue")).splitlines()[-1] == "tenant blue deleted"
    assert await world.host.client.list(NAMESPACES, labels=TENANTS_OF_HOST) == []
    assert "host east removed" in await commands.output("host", "remove", "east")
    assert await world.management.list(HOST_CLUSTERS) == []
    assert await world.management.list(POLICIES) == []
    assert await world.management.find(SECRETS, "east", HOSTS_NAMESPACE) is None


async def test_forced_deletion_lists_what_is_left(world: HostWorld, commands: Commands) -> None:
    await commands.add_host()
    await create_plane(world.management, "blue", backend="memory")
    output = await commands.output("tenant", "create", "blue", "--host", "east")
    assert "note: pods have no address of the API of their plane" in output
    error = await commands.error("planes", "delete", "blue")
    assert "plane blue cannot be deleted: its pods run in HostCluster east; `tapestry tenant delete blue`" in error
    role_binding = await world.host.client.get(CLUSTER_ROLE_BINDINGS, HOST_ACCOUNT)
    await world.host.client.delete(CLUSTER_ROLE_BINDINGS, role_binding)  # the owner of the host cluster withdraws it
    assert "403" in await commands.error("tenant", "delete", "blue", "--timeout", "1s")
    [namespace] = await world.host.client.list(NAMESPACES, labels=TENANTS_OF_HOST)
    left = f"namespace {namespace['metadata']['name']} with 0 pods in HostCluster east"
    assert f"left: {left}; it is removed when" in await commands.output("tenant", "delete", "blue", "--force")
    assert f"left: {left}; nothing removes it without" in await commands.output("host", "remove", "east")


async def test_leftovers_are_removed_when_the_host_is_added_again(world: HostWorld, commands: Commands) -> None:
    await commands.add_host()
    await create_plane(world.management, "blue", backend="memory")
    await commands.output("tenant", "create", "blue", "--host", "east")
    [namespace] = await world.host.client.list(NAMESPACES, labels=TENANTS_OF_HOST)
    role_binding = await world.host.client.get(CLUSTER_ROLE_BINDINGS, HOST_ACCOUNT)
    await world.host.client.delete(CLUSTER_ROLE_BINDINGS, role_binding)
    await commands.output("tenant", "delete", "blue", "--force")
    await commands.add_host()
    name = namespace["metadata"]["name"]
    await wait_for(world.host.client, NAMESPACES, name, until=lambda found: found is None, timeout=TIMEOUT)


async def test_options_reach_the_binding(world: HostWorld, commands: Commands) -> None:
    id = plane_id(await create_plane(world.management, "blue", backend="memory"))
    options = ("--placement", "virtual", "--sync-nodes", "--isolation", "lite", "--quota", "pods=5", "--no-wait")
    output = await commands.output("tenant", "create", "blue", "--host", "west", *options)
    assert output.startswith("tenant blue created\n")
    spec = (await world.management.get(CLUSTER_BINDINGS, "blue"))["spec"]
    assert (spec["virtualCluster"], spec["hostCluster"], spec["placement"]) == (id, "west", "virtual")
    assert (spec["sync"]["nodes"], spec["isolation"]["mode"], spec["quota"]) == (True, "lite", {"pods": "5"})
    error = await commands.error("tenant", "create", "blue", "--host", "west", "--quota", "pods")
    assert "'pods' is not NAME=AMOUNT" in error


async def test_plane_gets_controllers_of_workloads(world: HostWorld, commands: Commands) -> None:
    for name, controllers in (("blue", ["*"]), ("red", ["namespaces"])):
        await create_plane(world.management, name, backend="memory", controllers=controllers)
        await commands.output("tenant", "create", name, "--host", "west", "--no-wait")
    assert "deployments" in (await world.management.get(PLANES, "blue"))["spec"]["controllers"]
    assert (await world.management.get(PLANES, "red"))["spec"]["controllers"] == ["namespaces"]


async def test_create_tells_what_is_missing(world: HostWorld, commands: Commands) -> None:
    assert "not found" in await commands.error("tenant", "create", "blue", "--host", "east")
    await create_plane(world.management, "blue", backend="memory")
    error = await commands.error("tenant", "create", "blue", "--host", "east", "--timeout", "1s")
    assert "there is no HostCluster east; `tapestry host add east`" in error


async def test_unknown_tenants_are_named(world: HostWorld, commands: Commands) -> None:
    assert "plane blue does not exist" in await commands.error("tenant", "drain", "blue")
    await create_plane(world.management, "blue", backend="memory")
    assert "plane blue has no host cluster" in await commands.error("tenant", "delete", "blue")


async def test_binding_with_another_name_is_found_by_its_plane(world: HostWorld, commands: Commands) -> None:
    id = plane_id(await create_plane(world.management, "blue", backend="memory"))
    spec = {"clusterID": "other", "virtualCluster": id, "hostCluster": "east"}
    await world.management.create(CLUSTER_BINDINGS, {**object_named("other"), "spec": spec})
    assert "tenant blue is being drained" in await commands.output("tenant", "drain", "blue", "--no-wait")
    [found] = json.loads(await commands.output("tenant", "list", "-o", "json"))
    assert found["spec"]["workloads"] == "Drained"
    assert "tenant blue is being deleted" in await commands.output("tenant", "delete", "blue", "--force", "--no-wait")


async def test_host_is_added_without_a_policy(world: HostWorld, commands: Commands) -> None:
    assert await commands.output("host", "list") == "there are no host clusters; `tapestry host add NAME` adds one\n"
    await commands.add_host("--no-policy")
    assert await world.management.list(POLICIES) == []
    assert is_condition_true(await world.management.get(HOST_CLUSTERS, "east"), "Reachable")
    row = (await commands.output("host", "list")).splitlines()[1]
    assert row.split()[:2] == ["east", "True"]
    error = await commands.error("host", "add", "east", "--cluster-kubeconfig", "x", "--no-policy", "--grace", "5")
    assert "--no-policy excludes --grace" in error
