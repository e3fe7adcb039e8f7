"""The orchestrator in a process of planes, asked as the service asks it."""

from dataclasses import dataclass
from typing import Any

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.planes import PLANES, plane_id
from tapestry.apis.vclusters import VCLUSTERS, Phase, Verb
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.objects import Object, name_of, object_named, value_at
from tapestry.vclusters.engines.native import native_name
from tapestry.vclusters.operations import operation_id

from ...tenants.running_tenants import TIMEOUT, HostWorld

NAMED = object_named("v", "default")


@dataclass
class Service:
    world: HostWorld
    requests: int = 0

    def operation(self, verb: Verb, **arguments: Any) -> Object:
        self.requests += 1
        id = operation_id("jane", verb, str(self.requests))
        return {"id": id, "verb": verb.value, "principal": "jane", "arguments": arguments}

    async def create(self, **spec: Any) -> Object:
        content = {"project": "shop", "owner": "jane", **spec, "operation": self.operation(Verb.CREATE)}
        await self.world.management.create(VCLUSTERS, {**NAMED, "spec": content})
        return await self.reach(Phase.RUNNING)

    async def create_from(self, snapshot: str, name: str, phase: Phase = Phase.RUNNING, **spec: Any) -> Object:
        """Restore a snapshot as a new virtual cluster."""
        operation = self.operation(Verb.RESTORE, snapshotId=snapshot)
        content = {"project": "shop", "owner": "jane", **spec, "operation": operation}
        await self.world.management.create(VCLUSTERS, {**object_named(name, "default"), "spec": content})
        return await self.reach(phase, name)

    async def request(self, verb: Verb, phase: Phase, **arguments: Any) -> Object:
        for operation in (None, self.operation(verb, **arguments)):  # a merge would keep the arguments of the last one
            await self.world.management.patch(VCLUSTERS, NAMED, {"spec": {"operation": operation}})
        return await self.reach(phase)

    async def reach(self, phase: Phase, name: str = "v") -> Object:
        def is_done(obj: Object | None) -> bool:
            status = (obj or {}).get("status") or {}
            is_idle = status.get("lastOperation") == value_at(obj, "spec", "operation", "id")
            return is_idle and status.get("phase") == phase

        found = await wait_for(self.world.management, VCLUSTERS, name, "default", until=is_done, timeout=TIMEOUT)
        assert found is not None
        return found

    async def plane(self, name: str = "v") -> Object:
        vcluster = await self.world.management.get(VCLUSTERS, name, "default")
        return await self.world.management.get(PLANES, native_name(vcluster))

    async def client(self, name: str = "v") -> Client:
        """Return a client of the plane of a virtual cluster."""
        return self.world.tenant_client(plane_id(await self.plane(name)))

    async def delete(self) -> None:
        await self.world.management.delete(VCLUSTERS, NAMED)
        gone = lambda obj: obj is None  # noqa: E731
        await wait_for(self.world.management, VCLUSTERS, "v", "default", until=gone, timeout=TIMEOUT)

    async def leftovers(self) -> list[str]:
        return [name_of(each) for kind in (PLANES, CLUSTER_BINDINGS) for each in await self.world.management.list(kind)]
