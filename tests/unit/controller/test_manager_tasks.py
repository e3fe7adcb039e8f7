"""What a manager runs beside its controllers: duties, and informers of other clusters."""

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


async def test_work_does_not_wait_for_an_informer_of_another_cluster(world: Any) -> None:
    elsewhere = InProcessApi([PODS], now=world.clock.now)
    seen: list[str] = []

    async def reconcile(key: str) -> None:
        seen.append(key)

    def setup(manager: Manager) -> None:
        widgets = manager.informer(world.widgets)
        manager.controller("widgets", reconcile).watch(widgets)
        # CONFIGMAPS are not served there: this cache is never filled
        manager.add_optional_informer(Informer(type(manager.reads)(elsewhere.connect()), CONFIGMAPS))

    await world.add(world.widgets, "one")
    async with world.running(world.manager(setup)):
        await asyncio.sleep(5)
    assert seen == ["default/one"]


async def test_a_resource_that_need_not_exist_counts_as_empty_where_it_does_not(world: Any) -> None:
    elsewhere = InProcessApi([PODS], now=world.clock.now)
    informer = Informer(type(world.client)(elsewhere.connect()), CONFIGMAPS).allow_missing()
    told: list[str] = []
    informer.after_sync(lambda: told.append("synced"))
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(60)
    task.cancel()
    assert told == ["synced"]
    assert len(informer.store) == 0


class Elsewhere:
    """Something that is no API server, and finds nothing."""

    def __init__(self, answers: dict[str, Object]) -> None:
        self.answers = answers

    async def send(self, request: Request) -> Response:
        found = self.answers.get(request.path)
        return Response(200, {}, ENCODER.encode(found)) if found else Response(404, {}, b"404 page not found")

    @asynccontextmanager
    async def stream(self, _: Request) -> AsyncIterator[Any]:
        yield NotThere()


class NotThere:
    status = 404

    async def chunks(self) -> AsyncIterator[bytes]:
        yield b"404 page not found"


@pytest.mark.parametrize(
    ("answers", "is_absent"),
    [
        ({}, False),
        ({"/apis": {"kind": "Pancakes"}}, False),
        ({"/apis": {"kind": "APIGroupList", "groups": []}}, True),
        ({"/apis": {"kind": "APIGroupList", "groups": [{"versions": [{"groupVersion": "apps/v1"}]}]}}, False),
    ],
)
async def test_only_a_server_that_says_what_it_has_can_be_without_a_resource(
    world: Any, answers: dict[str, Object], is_absent: bool
) -> None:
    informer = Informer(type(world.client)(Elsewhere(answers)), DEPLOYMENTS).allow_missing()
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(600)
    task.cancel()
    assert informer.synced.is_set() == is_absent


async def test_a_resource_that_is_missing_among_others_of_its_group_counts_as_empty(world: Any) -> None:
    elsewhere = InProcessApi([PODS, DEPLOYMENTS], now=world.clock.now)
    sets = Resource("apps", "v1", "StatefulSet", "statefulsets")
    informer = Informer(type(world.client)(elsewhere.connect()), sets).allow_missing()
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(10)
    task.cancel()
    assert informer.synced.is_set()


async def test_a_duty_runs_while_the_manager_works_and_begins_again_after_an_error_of_a_server(world: Any) -> None:
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


async def test_a_standby_prepares_itself_but_does_no_duty(world: Any) -> None:
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
