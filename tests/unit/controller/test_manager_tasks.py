"""Tasks and informers of other clusters that a manager runs in addition to its controllers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tapestry.client.responses import ENCODER
from tapestry.client.transport import Request, Response
from tapestry.controller import Informer, Manager
from tapestry.controller.config import LeaderElection
from tapestry.controller.testing import InProcessApi
from tapestry.kube.errors import Unavailable
from tapestry.kube.objects import Object
from tapestry.kube.resources import CONFIGMAPS, DEPLOYMENTS, PODS, Resource


async def nothing(_: str) -> None:
    return


async def test_work_does_not_wait_for_optional_informer(world: Any) -> None:
    other = InProcessApi([PODS], now=world.clock.now)
    seen: list[str] = []

    async def reconcile(key: str) -> None:
        seen.append(key)

    def setup(manager: Manager) -> None:
        widgets = manager.informer(world.widgets)
        manager.controller("widgets", reconcile).watch(widgets)
        # CONFIGMAPS are not served there: this cache never syncs
        manager.add_optional_informer(Informer(type(manager.reads)(other.connect()), CONFIGMAPS))

    await world.add(world.widgets, "one")
    async with world.running(world.manager(setup)):
        await asyncio.sleep(5)
    assert seen == ["default/one"]


async def test_missing_resource_counts_as_empty_if_allowed(world: Any) -> None:
    other = InProcessApi([PODS], now=world.clock.now)
    informer = Informer(type(world.client)(other.connect()), CONFIGMAPS).allow_missing()
    calls: list[str] = []
    informer.after_sync(lambda: calls.append("synced"))
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(60)
    task.cancel()
    assert calls == ["synced"]
    assert len(informer.store) == 0


class NotAnApiServer:
    """An HTTP server that is not an API server and responds with 404."""

    def __init__(self, responses: dict[str, Object]) -> None:
        self.responses = responses

    async def send(self, request: Request) -> Response:
        found = self.responses.get(request.path)
        return Response(200, {}, ENCODER.encode(found)) if found else Response(404, {}, b"404 page not found")

    @asynccontextmanager
    async def stream(self, _: Request) -> AsyncIterator[Any]:
        yield NotFoundStream()


class NotFoundStream:
    status = 404

    async def chunks(self) -> AsyncIterator[bytes]:
        yield b"404 page not found"


@pytest.mark.parametrize(
    ("responses", "is_absent"),
    [
        ({}, False),
        ({"/apis": {"kind": "Pancakes"}}, False),
        ({"/apis": {"kind": "APIGroupList", "groups": []}}, True),
        ({"/apis": {"kind": "APIGroupList", "groups": [{"versions": [{"groupVersion": "apps/v1"}]}]}}, False),
    ],
)
async def test_resource_is_missing_only_with_discovery(
    world: Any, responses: dict[str, Object], is_absent: bool
) -> None:
    informer = Informer(type(world.client)(NotAnApiServer(responses)), DEPLOYMENTS).allow_missing()
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(600)
    task.cancel()
    assert informer.synced.is_set() == is_absent


async def test_resource_missing_in_its_group_counts_as_empty(world: Any) -> None:
    other = InProcessApi([PODS, DEPLOYMENTS], now=world.clock.now)
    sets = Resource("apps", "v1", "StatefulSet", "statefulsets")
    informer = Informer(type(world.client)(other.connect()), sets).allow_missing()
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(10)
    task.cancel()
    assert informer.synced.is_set()


async def test_leader_task_is_restarted_after_server_error(world: Any) -> None:
    began: list[float] = []

    async def duty() -> None:
        began.append(world.clock.monotonic())
        if len(began) == 1:
            raise Unavailable(503, "ServiceUnavailable", "not now")
        await asyncio.Event().wait()

    def setup(manager: Manager) -> None:
        manager.controller("widgets", nothing).watch(manager.informer(world.widgets))
        manager.run_while_leading("duty", duty)

    async with world.running(world.manager(setup)):
        await asyncio.sleep(10)
    assert len(began) == 2
    assert began[1] - began[0] == 1


async def test_standby_runs_startup_tasks_but_no_leader_tasks(world: Any) -> None:
    done: list[str] = []

    def setup_of(name: str) -> Any:
        async def prepare() -> None:
            done.append(f"{name} prepares")

        async def work() -> None:
            done.append(f"{name} works")

        def setup(manager: Manager) -> None:
            manager.controller("widgets", nothing).watch(manager.informer(world.widgets))
            manager.run_always("prepare", prepare)
            manager.run_while_leading("work", work)

        return setup

    election = LeaderElection(enabled=True)
    leader = world.manager(setup_of("leader"), leader_election=election)
    standby = world.manager(setup_of("standby"), identity="second", leader_election=election)
    async with world.running(leader):
        await asyncio.sleep(5)
        async with world.running(standby):
            await asyncio.sleep(30)
    assert done == ["leader prepares", "leader works", "standby prepares"]
