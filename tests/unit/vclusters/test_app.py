"""The orchestrator and the admission plugin together: what `kubectl apply` of a minimal VCluster does."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from tapestry.apis.operations import OPERATIONS
from tapestry.apis.planes import PLANES
from tapestry.apis.vclusters import VCLUSTERS, Phase
from tapestry.apiserver.core.requests import MASTERS_GROUP, User
from tapestry.cli.planes import mounted_routes
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.planes.app import run_planes
from tapestry.planes.config import PlanesConfig
from tapestry.tenants.app import run_tenants
from tapestry.vclusters.admission import vcluster_plugin
from tapestry.vclusters.app import run_vclusters
from tapestry.vclusters.validation import Provided

TIMEOUT = 30.0
NAMED = object_named("v", "default")


@pytest.fixture
async def jane(tmp_path: Path) -> AsyncIterator[Client]:
    config = PlanesConfig(data=str(tmp_path), name="here", address="127.0.0.1:0")
    plugin = partial(vcluster_plugin, provided=Provided("1.34.3"))
    async with (
        run_planes(config, mounted_routes, extension=run_tenants, admission=plugin) as process,
        run_vclusters(process),
    ):
        yield Client(InProcessTransport(process.management.request_handler, User("jane", (MASTERS_GROUP,))))


async def reach(client: Client, phase: Phase) -> Object:
    def is_there(obj: Object | None) -> bool:
        return value_at(obj, "status", "phase") == phase and not value_at(obj, "status", "journal")

    found = await wait_for(client, VCLUSTERS, "v", "default", until=is_there, timeout=TIMEOUT)
    assert found is not None
    return found


async def test_applied_cluster_follows_its_desired_state(jane: Client) -> None:
    await jane.create(VCLUSTERS, {**NAMED, "spec": {"project": "shop"}})
    assert (await reach(jane, Phase.RUNNING))["spec"]["owner"] == "jane"
    for is_suspended, phase in ((True, Phase.SUSPENDED), (False, Phase.RUNNING)):
        await jane.patch(VCLUSTERS, NAMED, {"spec": {"suspended": is_suspended}})
        await reach(jane, phase)
    await jane.delete(VCLUSTERS, NAMED)
    await wait_for(jane, VCLUSTERS, "v", "default", until=lambda obj: obj is None, timeout=TIMEOUT)
    assert await jane.list(PLANES) == []
    verbs = sorted((each["spec"]["verb"], each["status"]["result"]) for each in await jane.list(OPERATIONS))
    assert verbs == [(verb, "Succeeded") for verb in ("Create", "Delete", "Resume", "Suspend")]
