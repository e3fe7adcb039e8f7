"""Tenants whose pods run in a host cluster with simulated kubelets."""

from pathlib import Path

from tapestry.kube.objects import value_at
from tapestry.kube.resources import NODES, PODS

from .running_tenants import host_world, run_pod


async def test_pod_of_plane_runs_in_host_cluster(tmp_path: Path) -> None:
    async with host_world(tmp_path) as world:
        client = world.tenant_client(await world.add_tenant("blue"))
        pod = await run_pod(client)
        node = pod["spec"]["nodeName"]
        assert [each["metadata"]["name"] for each in await client.list(NODES)] == [node]
        twins = await world.host.client.list(PODS, labels="tapestry.io/managed-by=tapestry")
        assert [value_at(each, "spec", "nodeName") for each in twins] == [node]
