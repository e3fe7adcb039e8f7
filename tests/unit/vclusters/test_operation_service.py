"""Operations as the service shows them."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from tapestry.apis.operations import OPERATIONS
from tapestry.apis.vclusters import VCLUSTERS, OperationRequest, Phase, Verb
from tapestry.kube.schemas import to_unstructured
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.operations import new_journal, operation_object
from tapestry.vclusters.page_tokens import PageTokens
from tapestry.vclusters.serving import new_contract

from .management_world import management_world
from .service_world import ServiceWorld


async def test_operation_in_a_journal_has_not_ended(tmp_path: Path) -> None:
    async with management_world(tmp_path) as management:
        contract = new_contract(management.process, PageTokens(b"key"), tmp_path / "audit", is_compatible=False)
        world = ServiceWorld(management.process, contract, management.orchestrator)
        id = (await world.create()).operation_id
        vcluster = await world.client.get(VCLUSTERS, "blue", "shop")
        request = OperationRequest(id, Verb.CREATE, "alice")
        journal = new_journal(request, Phase.PENDING, ["Place"], datetime.now(UTC))
        vcluster = await management.set_status(vcluster, Phase.CREATING, journal=to_unstructured(journal))
        record = operation_object(vcluster, journal, Phase.RUNNING, None, datetime.now(UTC))
        created = await world.client.create(OPERATIONS, {**record, "status": {}})
        await world.client.patch(OPERATIONS, created, {"status": record["status"]}, subresource="status")
        waiting = asyncio.create_task(world.done(id))
        assert not (await world.call("GetOperation", id=id)).done
        assert [each.done for each in (await world.call("ListOperations")).operations] == [False]
        assert await world.reason("DeleteOperation", id=id) == "OPERATION_RUNNING"
        assert not waiting.done()
        await management.set_status(vcluster, Phase.RUNNING, journal=None, lastOperation=id)
        assert (await waiting).done
        assert (
            await world.call("GetVCluster", name="blue", namespace="shop")
        ).vcluster.status.phase == api.PHASE_RUNNING
        assert [each.done for each in (await world.call("ListOperations")).operations] == [True]
