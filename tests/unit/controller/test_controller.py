import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import generate_latest

from tapestry.client.client import Client
from tapestry.controller.controller import Controller, Result, controller_key, ensure_owned, generation_changed
from tapestry.controller.errors import NotLeading, Terminal
from tapestry.controller.informer import Informer
from tapestry.controller.manager import Manager
from tapestry.controller.metrics import WAITING_KEYS
from tapestry.controller.testing.clock import START, VirtualClock
from tapestry.kube.crds import InvalidSpec
from tapestry.kube.errors import Conflict, NotFound, TransportError
from tapestry.kube.objects import Object, controller_of, labels_of, object_named, uid_of
from tapestry.kube.resources import CONFIGMAPS, NODES, PODS


@asynccontextmanager
async def running(controller: Controller) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        group.create_task(controller.run())
        yield
        controller.queue.close()


class RecordingReconciler:
    """A reconciler that records its calls and returns scripted results."""

    def __init__(self, clock: VirtualClock, *answers: Result | BaseException | None) -> None:
        self.clock = clock
        self.answers = list(answers)
        self.keys: list[str] = []
        self.times: list[float] = []

    async def __call__(self, key: str) -> Result | None:
        self.keys.append(key)
        self.times.append(round(self.clock.monotonic(), 3))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        return answer


# -- keys and workers


async def test_key_has_one_worker_at_a_time(virtual_time: VirtualClock) -> None:
    under_way, most, passes = 0, 0, 0

    async def reconcile(key: str) -> None:
        nonlocal under_way, most, passes
        under_way, passes = under_way + 1, passes + 1
        most = max(most, under_way)
        await asyncio.sleep(10)
        under_way -= 1

    controller = Controller("test", reconcile, workers=4)
    async with running(controller):
        for _ in range(5):
            controller.queue.add("a")
            await asyncio.sleep(1)
        await asyncio.sleep(60)
    assert (most, passes) == (1, 2)


async def test_keys_are_reconciled_in_parallel_by_workers(virtual_time: VirtualClock) -> None:
    started: dict[str, float] = {}

    async def reconcile(key: str) -> None:
        started[key] = virtual_time.monotonic()
        await asyncio.sleep(10)

    controller = Controller("test", reconcile, workers=3)
    async with running(controller):
        for key in "abcde":
            controller.queue.add(key)
        await asyncio.sleep(60)
    assert started == {"a": 0, "b": 0, "c": 0, "d": 10, "e": 10}


async def test_idle_controller_has_no_workers(virtual_time: VirtualClock) -> None:
    async def reconcile(key: str) -> None:
        await asyncio.sleep(10)

    def worker_count() -> int:
        return sum(task.get_name() == "test" for task in asyncio.all_tasks())

    controller = Controller("test", reconcile, workers=4)
    async with running(controller):
        await asyncio.sleep(1)
        counts = [worker_count()]
        for key in "ab":
            controller.queue.add(key)
        await asyncio.sleep(1)
        counts.append(worker_count())
        await asyncio.sleep(60)
        counts.append(worker_count())
    assert counts == [0, 2, 0]


async def test_reconciles_without_await_do_not_block_the_loop(virtual_time: VirtualClock) -> None:
    passes = 0
    others_ran_at: list[int] = []

    async def reconcile(key: str) -> Result | None:
        nonlocal passes
        passes += 1
        return Result(requeue_after=0) if not others_ran_at and passes < 1000 else None

    async def other_task() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        others_ran_at.append(passes)

    controller = Controller("test", reconcile, workers=1)
    async with running(controller):
        controller.queue.add("a")
        await other_task()
    assert 0 < others_ran_at[0] < 1000


async def test_closed_queue_finishes_reconciles_in_flight(virtual_time: VirtualClock) -> None:
    finished = []

    async def reconcile(key: str) -> None:
        await asyncio.sleep(10)
        finished.append(key)

    controller = Controller("test", reconcile, workers=1)
    async with running(controller):
        controller.queue.add("a")
        controller.queue.add("b")
        await asyncio.sleep(1)
    assert finished == ["a"]
    assert virtual_time.monotonic() == 10


async def test_cancelled_reconcile_is_queued_again(virtual_time: VirtualClock) -> None:
    passes: list[float] = []

    async def reconcile(key: str) -> None:
        passes.append(virtual_time.monotonic())
        await asyncio.sleep(10)

    controller = Controller("test", reconcile)
    controller.queue.add("a")
    first = asyncio.create_task(controller.run())
    await asyncio.sleep(1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert len(controller.queue) == 1
    async with running(controller):
        await asyncio.sleep(1)
    assert passes == [0, 1]


# -- results


async def test_no_result_waits_for_a_change(virtual_time: VirtualClock) -> None:
    passes = RecordingReconciler(virtual_time)
    controller = Controller("test", passes)
    async with running(controller):
        controller.queue.add("a")
        await asyncio.sleep(86400)
        controller.queue.add("a")
        await asyncio.sleep(1)
    assert passes.times == [0, 86400]


async def test_requeue_after_seconds(virtual_time: VirtualClock) -> None:
    passes = RecordingReconciler(virtual_time, Result(requeue_after=30), Result(requeue_after=5))
    controller = Controller("test", passes)
    async with running(controller):
        controller.queue.add("a")
        await asyncio.sleep(3600)
    assert passes.times == [0, 30, 35]


async def test_requeue_at_wall_clock_time(virtual_time: VirtualClock) -> None:
    passes = RecordingReconciler(virtual_time, Result(requeue_at=START + timedelta(minutes=10)))
    controller = Controller("test", passes, now=virtual_time.now)
    async with running(controller):
        await asyncio.sleep(100)
        controller.queue.add("a")
        await asyncio.sleep(3600)
    assert passes.times == [100, 600]


async def test_earlier_requeue_time_counts(virtual_time: VirtualClock) -> None:
    at = START + timedelta(seconds=50)
    passes = RecordingReconciler(
        virtual_time, Result(requeue_after=20, requeue_at=at), Result(requeue_after=100, requeue_at=at)
    )
    controller = Controller("test", passes, now=virtual_time.now)
    async with running(controller):
        controller.queue.add("a")
        await asyncio.sleep(3600)
    assert passes.times == [0, 20, 50]


async def test_requeue_time_in_the_past_is_immediate(virtual_time: VirtualClock) -> None:
    passes = RecordingReconciler(virtual_time, Result(requeue_at=START - timedelta(days=1)))
    controller = Controller("test", passes, now=virtual_time.now)
    async with running(controller):
        controller.queue.add("a")
        await asyncio.sleep(1)
    assert passes.times == [0, 0]


# -- errors


async def test_failed_reconcile_is_retried_with_backoff(virtual_time: VirtualClock) -> None:
    passes = RecordingReconciler(virtual_time, *[RuntimeError("no luck")] * 4, None, RuntimeError("again"))
    controller = Controller("test", passes)
    async with running(controller):
        controller.queue.add("a")
        await asyncio.sleep(100)
        assert passes.times == [0, 0.01, 0.03, 0.07, 0.15]
        controller.queue.add("a")
        await asyncio.sleep(100)
    assert passes.times[5:] == [100, 100.01]  # a success resets the backoff


@pytest.mark.parametrize("error", [Terminal("Taken", "the name is taken"), InvalidSpec("spec.size: -1 is below 0")])
async def test_terminal_error_waits_for_a_change(error: Exception, virtual_time: VirtualClock) -> None:
    passes = RecordingReconciler(virtual_time, RuntimeError("first"), error)
    controller = Controller("test", passes)
    async with running(controller):
        controller.queue.add("a")
        await asyncio.sleep(86400)
        assert passes.times == [0, 0.01]
        assert controller.queue.failures("a") == 0
        controller.queue.add("a")
        await asyncio.sleep(1)
    assert passes.times[2:] == [86400]


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        TimeoutError(),
        RecursionError(),
        StopAsyncIteration(),
        ExceptionGroup("several", [ValueError("one")]),
        Conflict(409, "Conflict", "moved on"),
        TransportError("no answer", maybe_sent=True),
        asyncio.CancelledError(),  # of something that the reconciler awaited, not of the worker
    ],
    ids=lambda error: type(error).__name__,
)
async def test_worker_survives_any_error(
    error: BaseException, virtual_time: VirtualClock, growth: Callable[..., float]
) -> None:
    reason = {"controller": "survivor", "reason": type(error).__name__}
    growth("tapestry_reconcile_errors_total", **reason)
    growth("tapestry_reconcile_retries_total", **reason)
    passes = RecordingReconciler(virtual_time, error)
    controller = Controller("survivor", passes, workers=1)
    async with running(controller):
        controller.queue.add("a")
        await asyncio.sleep(1)
        controller.queue.add("b")
        await asyncio.sleep(1)
    assert passes.keys == ["a", "a", "b"]
    assert growth("tapestry_reconcile_errors_total", **reason) == 1
    assert growth("tapestry_reconcile_retries_total", **reason) == 1


async def test_lost_leadership_is_retried_and_not_counted(
    virtual_time: VirtualClock, growth: Callable[..., float]
) -> None:
    reason = {"controller": "deposed", "reason": "NotLeading"}
    growth("tapestry_reconcile_errors_total", **reason)
    passes = RecordingReconciler(virtual_time, NotLeading("first does not lead"))
    controller = Controller("deposed", passes)
    async with running(controller):
        controller.queue.add("a")
        await asyncio.sleep(1)
    assert passes.times == [0, 0.01]
    assert growth("tapestry_reconcile_errors_total", **reason) == 0


# -- metrics


async def test_reconciles_are_counted_by_outcome_and_reason(
    virtual_time: VirtualClock, growth: Callable[..., float]
) -> None:
    def counts() -> dict[str, float]:
        outcomes = ("ok", "requeued", "terminal", "error")
        found = {
            each: growth("tapestry_reconcile_seconds_count", controller="counted", outcome=each) for each in outcomes
        }
        for reason in ("Taken", "InvalidSpec", "NotFound"):
            found[reason] = growth("tapestry_reconcile_errors_total", controller="counted", reason=reason)
        return found

    counts()
    answers = (
        None,
        Result(requeue_after=1),
        Terminal("Taken", "by another"),
        InvalidSpec("spec: is required"),
        NotFound(404, "NotFound", "gone"),
        NotFound(404, "NotFound", "gone"),
        None,
    )
    passes = RecordingReconciler(virtual_time, *answers)
    controller = Controller("counted", passes, workers=1)
    async with running(controller):
        for key in "abcd":
            controller.queue.add(key)
        await asyncio.sleep(60)
    assert counts() == {"ok": 2, "requeued": 1, "terminal": 2, "error": 2, "Taken": 1, "InvalidSpec": 1, "NotFound": 2}


async def test_queue_metrics_are_readable_from_a_thread(virtual_time: VirtualClock) -> None:
    async def reconcile(key: str) -> None:
        await asyncio.sleep(60)

    def scrape() -> None:
        pages.append(generate_latest().decode())

    pages: list[str] = []
    controller = Controller("measured", reconcile, workers=1)
    async with running(controller):
        for key in "abc":
            controller.queue.add(key)
        await asyncio.sleep(10)
        thread = threading.Thread(target=scrape)
        thread.start()
        thread.join()
    assert 'tapestry_queue_depth{controller="measured"} 2.0' in pages[0]
    assert 'tapestry_queue_age_seconds{controller="measured"} 10.0' in pages[0]


async def test_queue_metrics_combine_running_controllers_of_one_name(virtual_time: VirtualClock) -> None:
    async def reconcile(key: str) -> None:
        await asyncio.sleep(60)

    one, other = (Controller("twice", reconcile, workers=1) for _ in range(2))
    async with running(one):
        async with running(other):
            for key in "abc":
                one.queue.add(key)
            await asyncio.sleep(10)
            for key in "ab":
                other.queue.add(key)
            await asyncio.sleep(10)
            page = generate_latest().decode()
            assert 'tapestry_queue_depth{controller="twice"} 3.0' in page
            assert 'tapestry_queue_age_seconds{controller="twice"} 20.0' in page
        assert [each.queue for each in WAITING_KEYS.queues if each.controller == "twice"] == [one.queue]
    assert "twice" not in [each.controller for each in WAITING_KEYS.queues]


# -- triggers


@asynccontextmanager
async def watching(world: Any, configure: Callable[[Manager, Controller], None]) -> AsyncIterator[list[str]]:
    """Run a controller set up by `configure`.  Yield the keys that are reconciled from then on."""
    keys: list[str] = []

    async def reconcile(key: str) -> None:
        keys.append(key)

    def setup(manager: Manager) -> None:
        configure(manager, manager.controller("watching", reconcile))

    async with world.running(world.manager(setup, workers=1)):
        keys.clear()
        yield keys


async def test_change_enqueues_the_key_of_the_object(world: Any) -> None:
    async with watching(world, lambda manager, controller: controller.watch(manager.informer(CONFIGMAPS))) as keys:
        await world.add(CONFIGMAPS, "c")
        await asyncio.sleep(1)
        await world.client.delete(CONFIGMAPS, object_named("c", "default"))
        await asyncio.sleep(1)
        assert keys == ["default/c", "default/c"]


async def test_existing_objects_are_reconciled_once(world: Any) -> None:
    keys: list[str] = []

    async def reconcile(key: str) -> None:
        keys.append(key)

    await world.add(world.widgets, "a")
    await world.add(world.widgets, "b")
    async with world.running(world.widget_manager(reconcile)):
        assert sorted(keys) == ["default/a", "default/b"]


async def test_moved_object_enqueues_old_and_new_keys(world: Any) -> None:
    def node(pod: Object) -> list[str]:
        return [labels_of(pod)["node"]]

    pod = await world.add(PODS, "p", labels={"node": "n1"})
    async with watching(world, lambda manager, controller: controller.watch(manager.informer(PODS), node)) as keys:
        await world.client.patch(PODS, pod, {"metadata": {"labels": {"node": "n2"}}})
        await asyncio.sleep(1)
        assert keys == ["n1", "n2"]


async def test_when_predicate_gets_old_and_new(world: Any) -> None:
    calls: list[tuple[bool, bool]] = []

    def only_news(old: Object | None, new: Object | None) -> bool:
        calls.append((old is not None, new is not None))
        return old is None

    async with watching(
        world, lambda manager, controller: controller.watch(manager.informer(CONFIGMAPS), when=only_news)
    ) as keys:
        created = await world.add(CONFIGMAPS, "c")
        await asyncio.sleep(1)
        await world.client.patch(CONFIGMAPS, created, {"data": {"v": "2"}})
        await asyncio.sleep(1)
        await world.client.delete(CONFIGMAPS, object_named("c", "default"))
        await asyncio.sleep(1)
        assert calls == [(False, True), (True, True), (True, False)]
        assert keys == ["default/c"]


async def test_status_update_does_not_change_generation(world: Any) -> None:
    widget = await world.add(world.widgets, "w", spec={"size": 1}, finalizers=["example.com/hold"])
    async with watching(
        world, lambda manager, controller: controller.watch(manager.informer(world.widgets), when=generation_changed)
    ) as keys:
        await world.set_status(world.widgets, "w", phase="Ready")
        await world.client.patch(world.widgets, object_named("w", "default"), {"metadata": {"labels": {"a": "b"}}})
        await asyncio.sleep(1)
        assert keys == []
        await world.client.patch(world.widgets, object_named("w", "default"), {"spec": {"size": 2}})
        await asyncio.sleep(1)
        assert keys == ["default/w"]
        await world.client.delete(world.widgets, object_named("w", "default"))
        await asyncio.sleep(1)
        assert len(keys) == 2
    assert generation_changed(None, widget)
    assert generation_changed(widget, None)


def owned_by(**reference: Any) -> Object:
    owner = {"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": "1", "controller": True}
    return {"metadata": {"name": "p", "namespace": "default", "ownerReferences": [{**owner, **reference}]}}


@pytest.mark.parametrize(
    ("obj", "keys"),
    [
        (owned_by(), ["default/w"]),
        (owned_by(controller=False), []),
        (owned_by(kind="Gadget"), []),
        (owned_by(apiVersion="example.com/v2"), []),
        ({"metadata": {"name": "p", "namespace": "default"}}, []),
    ],
)
def test_controller_key_ignores_other_owners(obj: Object, keys: list[str], widgets: Any) -> None:
    assert list(controller_key(widgets)(obj)) == keys


def test_cluster_scoped_owner_key_has_no_namespace() -> None:
    assert list(controller_key(NODES)(owned_by(apiVersion="v1", kind="Node", name="n1"))) == ["n1"]


# -- resync


async def test_resync_enqueues_everything_after_fresh_keys(world: Any) -> None:
    keys: list[str] = []
    controller: Controller

    async def reconcile(key: str) -> None:
        keys.append(key)

    def setup(manager: Manager) -> None:
        nonlocal controller
        controller = manager.controller("resynced", reconcile, workers=1)
        controller.watch(manager.informer(CONFIGMAPS))
        controller.watch(manager.informer(NODES))

    for name in "abc":
        await world.add(CONFIGMAPS, name)
    await world.add(NODES, "n")
    async with world.running(world.manager(setup)):
        keys.clear()
        controller.resync()
        controller.queue.add("default/c")
        controller.queue.add("fresh")
        await asyncio.sleep(1)
        assert keys == ["default/c", "fresh", "default/a", "default/b"]


async def test_resync_maps_objects_to_keys(world: Any) -> None:
    controllers: list[Controller] = []

    def configure(manager: Manager, controller: Controller) -> None:
        controllers.append(controller)
        controller.watch(manager.informer(PODS), lambda pod: [labels_of(pod)["node"]])

    for number in range(3):
        await world.add(PODS, f"p{number}", labels={"node": "n1"})
    async with watching(world, configure) as keys:
        controllers[0].resync()
        await asyncio.sleep(1)
        assert keys == ["n1"]


def test_controller_without_watches_has_nothing_to_resync() -> None:
    async def reconcile(key: str) -> None: ...

    controller = Controller("idle", reconcile)
    controller.resync()
    assert len(controller.queue) == 0


async def test_sync_time_is_measured_from_the_change(world: Any, growth: Any) -> None:
    async def reconcile(_: str) -> None:
        await asyncio.sleep(2)

    # One worker: the second key waits for the first.
    manager = world.widget_manager(reconcile, workers=1)
    await world.add(world.widgets, "one")
    await world.add(world.widgets, "two")
    growth("tapestry_sync_seconds_sum", controller="widgets")
    async with world.running(manager):
        await asyncio.sleep(10)
    assert growth("tapestry_sync_seconds_sum", controller="widgets") == pytest.approx(2 + 4, abs=0.1)


CONTENT = {"spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}


@pytest.fixture
async def pods(world: Any) -> AsyncIterator[Informer]:
    informer = Informer(Client(world.api.connect()), PODS)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(informer.run())
        await informer.synced.wait()
        yield informer
        task.cancel()


async def test_owned_object_is_created_once(world: Any, pods: Informer) -> None:
    owner = await world.add(world.widgets, "w")
    made = await ensure_owned(world.client, pods, owner, CONTENT)
    await asyncio.sleep(1)
    assert await ensure_owned(world.client, pods, owner, {"spec": {"other": "content"}}) is pods.store.get("default/w")
    assert await world.client.list(PODS) == [made]
    assert controller_of(made) == {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "name": "w",
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


async def test_owned_object_may_have_another_name(world: Any, pods: Informer) -> None:
    owner = await world.add(world.widgets, "w")
    for name in ("w-0", "w-1"):
        await ensure_owned(world.client, pods, owner, CONTENT, name=name)
    await asyncio.sleep(1)
    assert sorted(pods.store) == ["default/w-0", "default/w-1"]


async def test_stale_cache_makes_second_create_a_conflict(world: Any, pods: Informer) -> None:
    owner = await world.add(world.widgets, "w")
    world.api.freeze()
    await ensure_owned(world.client, pods, owner, CONTENT)
    with pytest.raises(Conflict):
        await ensure_owned(world.client, pods, owner, CONTENT)
    assert len(await world.client.list(PODS)) == 1


async def test_object_of_another_owner_is_not_changed(world: Any, pods: Informer) -> None:
    owner = await world.add(world.widgets, "w")
    foreign = await world.add(PODS, "w")
    await asyncio.sleep(1)
    with pytest.raises(Terminal, match="Pod default/w has another owner; rename or delete Widget default/w") as caught:
        await ensure_owned(world.client, pods, owner, CONTENT)
    assert caught.value.reason == "NameTaken"
    assert await world.client.list(PODS) == [foreign]


async def test_object_of_deleted_owner_is_not_ours(world: Any, pods: Informer) -> None:
    first = await world.add(world.widgets, "w")
    await ensure_owned(world.client, pods, first, CONTENT)
    await world.client.delete(world.widgets, object_named("w", "default"))
    second = await world.add(world.widgets, "w")
    await asyncio.sleep(1)
    with pytest.raises(Terminal, match="NameTaken"):
        await ensure_owned(world.client, pods, second, CONTENT)


async def test_cluster_scoped_object_has_no_namespace(world: Any, virtual_time: VirtualClock) -> None:
    owner = await world.add(world.widgets, "w")
    made = await ensure_owned(world.client, Informer(world.client, NODES), owner, {})
    assert "namespace" not in made["metadata"]
