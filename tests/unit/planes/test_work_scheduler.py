"""The work of planes is measured step by step, and shared fairly when the event loop is saturated."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from tapestry.planes.work_scheduler import CONTENTION_NS, LONG_SLICE_NS, SLICE_NS, PlaneWork, WorkScheduler
from tapestry.process.work_meter import CURRENT_METER

MS = 1_000_000
Scenario = Callable[["World"], Coroutine[Any, Any, None]]


class World:
    """Planes on an event loop whose steps take a simulated time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now = 1
        self.scheduler = WorkScheduler(loop, lambda: self.now)
        self.scheduler.install()
        self.log: list[str] = []

    def plane(self, name: str = "a") -> PlaneWork:
        return PlaneWork(self.scheduler, name)

    async def steps(self, number: int, milliseconds: float = 1.0, name: str = "") -> str:
        """Do a number of steps of the same length."""
        for _ in range(number):
            self.now += int(milliseconds * MS)
            self.log.append(name)
            await asyncio.sleep(0)
        return "done"

    async def pass_time(self, milliseconds: float) -> None:
        """Let others work for this time."""
        end = self.now + milliseconds * MS
        for _ in iter(lambda: self.now < end, False):
            await asyncio.sleep(0)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    def run_scenario(scenario: Scenario) -> None:
        async def main() -> None:
            await scenario(World(asyncio.get_running_loop()))

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return run_scenario


# -- measuring


def test_time_of_steps_is_summed_without_waits(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: World) -> None:
        plane, event = world.plane(), asyncio.Event()

        async def work() -> str:
            await world.steps(2, 3)
            await event.wait()
            return await world.steps(1, 1)

        async with asyncio.TaskGroup() as group:
            task = group.create_task(plane.run(work()))
            for _ in range(10):
                await asyncio.sleep(0)
            world.now += 1000 * MS
            event.set()
        assert task.result() == "done"
        assert plane.loop_ns == 7 * MS
        assert plane.steps == 5
        assert CURRENT_METER.get() is None

    run(scenario)


def test_only_tasks_of_a_plane_are_measured(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: World) -> None:
        plane = world.plane("a")

        async def work() -> None:
            assert CURRENT_METER.get() is plane
            async with asyncio.TaskGroup() as group:
                group.create_task(world.steps(2))
                group.create_task(plane.run(world.steps(1)))  # it is not measured twice

        async with asyncio.TaskGroup() as group:
            group.create_task(work(), context=plane.context())
            group.create_task(world.steps(5))
        assert plane.loop_ns == 3 * MS
        await plane.run(work())
        assert plane.loop_ns == 6 * MS
        assert CURRENT_METER.get() is None

    run(scenario)


def test_errors_and_cancellation_reach_the_coroutine(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: World) -> None:
        plane, seen = world.plane(), list[str]()

        async def failing() -> None:
            await asyncio.sleep(0)
            raise LookupError

        async def waiting() -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
            return ""

        async def patient() -> str:
            try:
                async with asyncio.timeout(0.001):
                    await asyncio.Event().wait()
            except TimeoutError:
                return "timeout"
            return ""

        with pytest.raises(LookupError):
            await plane.run(failing())
        assert await plane.run(patient()) == "timeout"
        async with asyncio.TaskGroup() as group:
            task = group.create_task(plane.run(waiting()))
            await asyncio.sleep(0)
            task.cancel()
        assert seen == ["cancelled"]

    run(scenario)


def test_coroutine_that_is_closed_ends() -> None:
    async def scenario() -> None:
        plane, seen = World(asyncio.get_running_loop()).plane(), list[str]()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("end")

        async def task() -> None:
            await plane.run(work())

        running = task()
        running.send(None)
        running.close()
        assert seen == ["end"]

    asyncio.run(scenario())


# -- scheduling


async def start(group: asyncio.TaskGroup, *work: Awaitable[Any]) -> None:
    for each in work:
        group.create_task(each)  # type: ignore[arg-type]


def test_nothing_waits_while_iterations_are_short(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: World) -> None:
        planes = [world.plane(str(number)) for number in range(4)]
        async with asyncio.TaskGroup() as group:
            await start(group, *(plane.run(world.steps(50, 0.4)) for plane in planes))
        assert [plane.waits for plane in planes] == [0, 0, 0, 0]

    run(scenario)


def test_burst_on_idle_loop_waits_after_two_slices(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: World) -> None:
        planes = world.plane("a"), world.plane("b")
        for plane in planes:
            await plane.run(world.steps(1, 0.1))
        world.now += 1000 * MS  # both planes are idle
        world.log.clear()
        async with asyncio.TaskGroup() as group:
            for plane in planes * 50:
                group.create_task(plane.run(world.steps(1, 0.5)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(world.log) <= 4 * SLICE_NS / (0.5 * MS)  # in these two iterations
        assert sum(plane.waits for plane in planes) > 50

    run(scenario)


def test_event_loop_with_little_work_may_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world, loop = World(asyncio.get_running_loop()), asyncio.get_running_loop()
        plane, callbacks = world.plane(), list[object]()
        call_soon = loop.call_soon

        def counted(callback: Any, *arguments: Any, **options: Any) -> asyncio.Handle:
            callbacks.append(callback)
            return call_soon(callback, *arguments, **options)

        monkeypatch.setattr(loop, "call_soon", counted)
        for _ in range(100):
            world.now += 10 * MS
            await plane.run(asyncio.sleep(0, "done"))
        assert len([each for each in callbacks if getattr(each, "__self__", None) is world.scheduler]) == 0

    asyncio.run(scenario())


def test_light_plane_does_not_wait_for_a_busy_one(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: World) -> None:
        busy, light = world.plane("busy"), world.plane("light")
        await light.run(world.steps(1, 0.1, "light"))
        async with asyncio.TaskGroup() as group:
            await start(group, *(busy.run(world.steps(3, 1, "busy")) for _ in range(200)))
            await asyncio.sleep(0)
            for _ in range(5):
                world.log.clear()
                await light.run(world.steps(1, 0.1, "light"))
                assert len(world.log) <= 4 * SLICE_NS // MS  # in place of two hundred
        assert busy.waits
        assert busy.loop_ns == 600 * MS

    run(scenario)


def test_busy_planes_get_equal_time(run: Callable[[Scenario], None]) -> None:
    """One with few long steps, and one with many short ones."""

    async def scenario(world: World) -> None:
        long, short = world.plane("long"), world.plane("short")
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(long.run(world.steps(1, 20, "long"))) for _ in range(100)]
            tasks += [group.create_task(short.run(world.steps(1, 0.5, "short"))) for _ in range(4000)]
            await world.pass_time(2000)
            assert abs(long.loop_ns - short.loop_ns) <= 120 * MS
            for task in tasks:
                task.cancel()

    run(scenario)


def test_management_api_comes_first(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: World) -> None:
        busy, management = world.plane(), PlaneWork(world.scheduler, "", comes_first=True)
        async with asyncio.TaskGroup() as group:
            await start(group, *(busy.run(world.steps(2, 1, "busy")) for _ in range(200)))
            await start(group, *(management.run(world.steps(10, 1, "management")) for _ in range(10)))
        assert (management.waits, management.loop_ns) == (0, 100 * MS)
        last = max(index for index, name in enumerate(world.log) if name == "management")
        assert world.log[last:].count("busy") > 100

    run(scenario)


def test_plane_that_is_alone_has_a_longer_slice(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: World) -> None:
        plane, other, tasks = world.plane("a"), world.plane("b"), LONG_SLICE_NS // MS - 2
        assert tasks * MS > SLICE_NS

        async def work() -> int:
            plane.waits = 0
            async with asyncio.TaskGroup() as group:
                await start(group, *(plane.run(world.steps(1)) for _ in range(tasks)))
            return plane.waits

        assert await work() == 0
        await other.run(world.steps(1))
        assert await work() > 0
        world.now += CONTENTION_NS  # the other one has no more work
        assert await work() == 0

    run(scenario)


def test_step_that_waits_for_its_turn_can_be_cancelled(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: World) -> None:
        plane = world.plane()
        await world.plane("other").run(world.steps(1))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(plane.run(world.steps(2, 10))) for _ in range(10)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert plane.waiting
            for task in tasks[5:]:
                task.cancel()
        assert [task.cancelled() for task in tasks] == [False] * 5 + [True] * 5
        assert await plane.run(world.steps(1)) == "done"

    run(scenario)


# -- shares


@asynccontextmanager
async def flooded(world: World, busy: PlaneWork) -> AsyncIterator[asyncio.TaskGroup]:
    """Let a plane use most of the time while another one has a little work, until it has used more than its share."""
    small = world.plane("small")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(endless(busy, world.steps(100_000, 0.2, "busy"))) for _ in range(200)]
        while busy.may_start() or world.now < 1000 * MS:
            await small.run(world.steps(2, 0.2, "small"))
            await asyncio.sleep(0)
        yield group
        for task in tasks:
            task.cancel()


async def endless(plane: PlaneWork, work: Coroutine[Any, Any, Any]) -> None:
    await plane.run(work)


def test_step_of_small_plane_waits_for_few_busy_steps(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: World) -> None:
        busy, light = world.plane("busy"), world.plane("light")
        async with flooded(world, busy):
            world.log.clear()
            for _ in range(50):
                await light.run(world.steps(1, 0.1, "light"))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert world.log.count("busy") <= 50 * 4  # ten and more in each slice without shares
            assert world.log.count("busy") >= 50  # time that nobody else needs is not lost

    run(scenario)


def test_plane_over_its_share_starts_requests_after_a_while(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: World) -> None:
        busy, management = world.plane("busy"), PlaneWork(world.scheduler, "", comes_first=True)
        await management.run(world.steps(100, 10))
        assert busy.may_start()
        async with flooded(world, busy):
            assert not busy.may_start()
            assert management.may_start()
        world.now += 2000 * MS
        assert busy.may_start()

    run(scenario)


def test_interrupted_process_rejects_no_requests(run: Callable[[Scenario], None]) -> None:
    """It seems to have worked for a plane meanwhile."""

    async def scenario(world: World) -> None:
        plane, others = world.plane(), [world.plane(str(number)) for number in range(10)]
        for number in range(1000):
            await others[number % 10].run(world.steps(1, 1))
        await plane.run(world.steps(1, 800))
        assert plane.may_start()
        await plane.run(world.steps(100, 8))
        assert not plane.may_start()

    run(scenario)


def test_plane_that_comes_last_does_not_starve(run: Callable[[Scenario], None]) -> None:
    """Other planes have always work: each less than a quarter."""

    async def scenario(world: World) -> None:
        busy = world.plane("busy")
        async with flooded(world, busy) as group:
            others = [world.plane(str(number)) for number in range(8)] * 20
            tasks = [group.create_task(endless(each, world.steps(100_000, 0.2))) for each in others]
            used = busy.loop_ns
            await world.pass_time(4000)
            assert busy.loop_ns - used > 4000 * MS / 9 / 3
            for task in tasks:
                task.cancel()

    run(scenario)


def test_plane_that_is_alone_does_not_come_last(run: Callable[[Scenario], None]) -> None:
    async def scenario(world: World) -> None:
        busy = world.plane("busy")
        async with flooded(world, busy):
            world.now += CONTENTION_NS
            world.log.clear()
            for _ in range(400):  # iterations, until those that waited have run
                await asyncio.sleep(0)
            world.log.clear()
            await asyncio.sleep(0)
            assert len(world.log) >= SLICE_NS / (0.2 * MS)

    run(scenario)
