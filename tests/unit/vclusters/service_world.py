"""The service of virtual clusters on a management API, with the orchestrator, for tests."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from tapestry.apis.projects import PROJECTS
from tapestry.client.client import Client
from tapestry.kube.objects import object_named
from tapestry.planes.app import PlaneProcess, client_of, run_planes
from tapestry.planes.config import PlanesConfig
from tapestry.tenants.app import run_tenants
from tapestry.vclusters.access.authentication import Credentials
from tapestry.vclusters.access.roles import Caller, Role
from tapestry.vclusters.app import provided, run_vclusters
from tapestry.vclusters.contract import Contract
from tapestry.vclusters.errors import ServiceError
from tapestry.vclusters.gateway import AdmittedCall, IncomingCall
from tapestry.vclusters.page_tokens import PageTokens
from tapestry.vclusters.policy import service_admission
from tapestry.vclusters.rest_routes import RPCS
from tapestry.vclusters.serving import create_default_project, new_contract

ALICE = Caller("alice", "key:a", roles={"shop": Role.ADMIN})
VERA = Caller("vera", "key:v", roles={"shop": Role.VIEWER})
EVE = Caller("eve", "key:e", roles={"other": Role.ADMIN})
ROOT = Caller("root", "key:r", is_platform_admin=True)


@dataclass
class ServiceWorld:
    process: PlaneProcess
    contract: Contract
    client: Client

    def admitted(self, method: str, caller: Caller, **fields: Any) -> AdmittedCall:
        """Return a call that the gateway has admitted. Whether it admits it is tested there."""
        timeout = fields.pop("timeout", None)
        request = GetMessageClass(RPCS[method].input_type)(**fields)
        project = self.contract.project_of(method, request)
        incoming = IncomingCall(method, request, Credentials(), "192.0.2.1", timeout=timeout)
        return AdmittedCall(incoming, caller, project or "", "id")

    async def call(self, method: str, caller: Caller = ALICE, **fields: Any) -> Any:
        return await self.contract.call(self.admitted(method, caller, **fields))

    async def reason(self, method: str, caller: Caller = ALICE, **fields: Any) -> str:
        """Return the reason of an error, or nothing."""
        try:
            await self.call(method, caller, **fields)
        except ServiceError as error:
            return error.reason
        return ""

    async def watched(self, count: int, caller: Caller = ALICE, **fields: Any) -> list[Any]:
        """Return the first events of a watch."""
        found = []
        async with aclosing(self.contract.stream(self.admitted("WatchVCluster", caller, **fields))) as events:
            async for each in events:
                found.append(each)
                if len(found) == count:
                    break
        return found

    async def create(self, name: str = "blue", caller: Caller = ALICE, **fields: Any) -> Any:
        fields = {"namespace": "shop", "project": "shop", "spec": {"storage": {}}, **fields}
        return await self.call("CreateVCluster", caller, name=name, **fields)

    async def done(self, operation: str) -> Any:
        return await self.call("WaitOperation", id=operation, timeout_seconds=60)


@asynccontextmanager
async def service_world(folder: Path) -> AsyncIterator[ServiceWorld]:
    config = PlanesConfig(data=str(folder), name="here", address="127.0.0.1:0")
    admission = service_admission(provided(config, is_compatible=False))
    async with (
        run_planes(config, lambda _: {}, extension=run_tenants, admission=admission) as process,
        run_vclusters(process),
    ):
        client = client_of(process.management)
        await create_default_project(client)
        for name in ("shop", "other"):
            await client.create(PROJECTS, {**object_named(name), "spec": {}})
        contract = new_contract(process, PageTokens(b"key"), folder / "audit", is_compatible=False)
        yield ServiceWorld(process, contract, client)
