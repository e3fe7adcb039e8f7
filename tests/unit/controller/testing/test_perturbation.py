"""The perturbation driver must find reconcilers whose final state depends on a disturbance."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.transport import Request, Transport
from tapestry.client.watch import wait_for
from tapestry.controller import Informer, Manager, Result
from tapestry.controller.testing import Disturbance, Scenario, perturb, running_clock
from tapestry.controller.testing.perturbation import ONE_SIDED, Endless
from tapestry.kube.errors import ApiError, Forbidden
from tapestry.kube.objects import Object, is_deleting, value_at
from tapestry.kube.resources import CONFIGMAPS, SECRETS

SOURCE = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "source", "namespace": "default"},
    "data": {"a": "b"},
}


def copier(metadata: Object) -> Scenario:
    """Copy a ConfigMap into a Secret with `metadata` once, and mark the ConfigMap as copied."""

    def setup(manager: Manager) -> None:
        sources = manager.informer(CONFIGMAPS)

        async def reconcile(key: str) -> Result | None:
            source = sources.store.get(key)
            if source is None or is_deleting(source) or value_at(source, "data", "copied"):
                return None
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "default", **metadata}}
            if "name" not in metadata or not await exists(manager.client, metadata["name"]):
                await manager.client.create(SECRETS, secret)
            await manager.client.patch(CONFIGMAPS, source, {"data": {"copied": "yes"}})
            return None

        manager.controller("copier", reconcile).watch(sources)

    async def world(client: Client) -> None:
        await client.create(CONFIGMAPS, SOURCE)
        await wait_for(
            client,
            CONFIGMAPS,
            "source",
            "default",
            until=lambda obj: bool(value_at(obj, "data", "copied")),
            timeout=3600,
        )
        await asyncio.sleep(60)

    return Scenario("copier", [CONFIGMAPS, SECRETS], setup, world)


async def exists(client: Client, name: str) -> bool:
    return bool(await client.list(SECRETS, "default", fields=f"metadata.name={name}"))


def poller(seconds: float) -> Scenario:
    """Reconcile a ConfigMap forever, in a world that waits for something that never happens."""

    def setup(manager: Manager) -> None:
        async def reconcile(key: str) -> Result | None:
            await manager.client.find(CONFIGMAPS, "source", "default")
            return Result(requeue_after=seconds)

        manager.controller("poller", reconcile).watch(manager.informer(CONFIGMAPS))

    async def world(client: Client) -> None:
        await client.create(CONFIGMAPS, SOURCE)
        await asyncio.Event().wait()

    return Scenario("poller", [CONFIGMAPS], setup, world)


def test_polling_controller_is_named_within_ten_seconds() -> None:
    start = time.monotonic()
    with pytest.raises(Endless, match="controller 'poller' reconciled 'default/source' 5,000 times") as raised:
        perturb(poller(0.1))
    assert "its calls: GET /api/v1/namespaces/default/configmaps/source (5,000 times); wait" in str(raised.value)
    assert time.monotonic() - start < 10


def test_reconcile_that_polls_without_calls_is_named() -> None:
    def setup(manager: Manager) -> None:
        async def reconcile(key: str) -> Result | None:
            while True:  # noqa: ASYNC110  it is about polling
                await asyncio.sleep(0)

        manager.controller("spinner", reconcile).watch(manager.informer(CONFIGMAPS))

    with pytest.raises(Endless, match="controller 'spinner' reconciled 'default/source' 1 time and did not finish"):
        perturb(replace(poller(1), setup=setup))


def test_polling_world_is_named() -> None:
    async def world(client: Client) -> None:
        while True:
            await client.find(SECRETS, "missing", "default")
            await asyncio.sleep(0.01)

    with pytest.raises(Endless, match=r"the world function made 20,000 calls; its calls: GET /api/v1/.*missing"):
        perturb(replace(poller(3600), resources=[CONFIGMAPS, SECRETS], world=world))


def test_replay_that_polls_is_the_last_one() -> None:
    """The reconciler polls for a mark that it believes to have set before its first write."""

    def setup(manager: Manager) -> None:
        sources = manager.informer(CONFIGMAPS)
        attempted: set[str] = set()

        async def reconcile(key: str) -> Result | None:
            source = sources.store.get(key)
            if source is None or value_at(source, "data", "copied"):
                return None
            if key in attempted:
                return Result(requeue_after=0.1)
            attempted.add(key)
            await manager.client.patch(CONFIGMAPS, source, {"data": {"copied": "yes"}})
            return None

        manager.controller("forgetful", reconcile).watch(sources)

    report = perturb(replace(copier({}), setup=setup))
    (failure,) = report.failures
    assert "controller 'forgetful' reconciled 'default/source' 10,000 times; its calls: PATCH" in failure.what


def test_endless_world_error_describes_last_calls() -> None:
    with pytest.raises(Endless, match="did not return within 24 hours of virtual time: controller 'poller'"):
        perturb(poller(600))


def test_failed_check_lists_every_failure() -> None:
    report = perturb(copier({"generateName": "copy-"}))
    with pytest.raises(AssertionError) as raised:
        report.check()
    assert str(raised.value).count("\n") == len(report.failures) > 1


def test_reconciler_with_deterministic_names_passes() -> None:
    report = perturb(copier({"name": "copy"}))
    assert report.failures == []


def test_disturbances_that_cannot_differ_are_replayed_once() -> None:
    report = perturb(copier({"name": "copy"}))
    watch, get, create, patch = 2, 3, 6, 6
    assert (report.calls, report.cases) == (4, watch + get + create + patch)


def test_reconciler_with_random_names_fails_after_create() -> None:
    report = perturb(copier({"generateName": "copy-"}))
    found = {failure.disturbance for failure in report.failures}
    assert {Disturbance.DIES_AFTER, Disturbance.LOSES_RESPONSE} <= found
    assert "Secret default/copy-" in str(report)


def test_reconciler_that_trusts_stale_cache_fails() -> None:
    def setup(manager: Manager) -> None:
        sources = manager.informer(CONFIGMAPS)

        async def reconcile(key: str) -> Result | None:
            source = sources.store.get(key)
            if source is not None and not value_at(source, "data", "copied"):
                unconditional = {"metadata": {"name": "source", "namespace": "default"}}
                latest = await manager.client.get(CONFIGMAPS, "source", "default")
                count = int(value_at(latest, "data", "count", default="0")) + 1
                patch = {"data": {"count": str(count), "copied": "yes"}}
                await manager.client.patch(CONFIGMAPS, unconditional, patch)
            return None

        manager.controller("counter", reconcile).watch(sources)

    report = perturb(Scenario("counter", [CONFIGMAPS], setup, copier({"name": "copy"}).world))
    assert Disturbance.FALLS_BEHIND in {failure.disturbance for failure in report.failures}


def far_copier(name: str, **options: Any) -> Scenario:
    """Copy ConfigMaps to another cluster, under names that start with `name`."""

    async def setup(manager: Manager, transport: Transport) -> None:
        elsewhere = Client(transport)
        sources, copies = manager.informer(CONFIGMAPS), manager.add_optional_informer(Informer(elsewhere, SECRETS))

        async def reconcile(key: str) -> Result | None:
            if not copies.synced.is_set():
                return Result(requeue_after=1)
            if not len(copies.store):
                try:
                    await elsewhere.create(SECRETS, {"metadata": {"namespace": "default", "generateName": name}})
                except Forbidden:
                    return Result(requeue_after=10)
            return None

        manager.register("copier", lambda _: manager.controller("copier", reconcile).watch(sources))

    async def world(here: Client, there: Client) -> None:
        await here.create(CONFIGMAPS, SOURCE)
        await asyncio.sleep(120)
        assert await there.list(SECRETS, "default")

    return Scenario("far copier", [CONFIGMAPS], setup, world, others=[[SECRETS]], **options)


def test_caches_of_each_cluster_fall_behind_alone() -> None:
    report = perturb(far_copier("copy-"))
    watch, create = 2, len(Disturbance)
    assert (report.calls, report.cases) == (3, 2 * watch + create)
    behind = {failure.disturbance for failure in report.failures} & {Disturbance.FALLS_BEHIND, *ONE_SIDED}
    assert behind == {Disturbance.FALLS_BEHIND, Disturbance.FALLS_BEHIND_THERE}


def test_rejected_call_is_disturbed_like_others() -> None:
    def refusal(cluster: int, request: Request) -> ApiError | None:
        early = running_clock().monotonic() < 5
        return Forbidden(403, "Forbidden", "not yet") if early and cluster and request.method == "POST" else None

    counts = lambda call: call.startswith("POST")  # noqa: E731
    report = perturb(far_copier("copy-", rejection=refusal, counts=counts))
    assert report.calls == 2


def test_reconciler_that_never_retries_fails() -> None:
    def setup(manager: Manager) -> None:
        sources = manager.informer(CONFIGMAPS)
        tried: set[str] = set()

        async def reconcile(key: str) -> Result | None:
            source = sources.store.get(key)
            if source is not None and key not in tried and not value_at(source, "data", "copied"):
                tried.add(key)  # edge-triggered: a failure is never retried
                await manager.client.patch(CONFIGMAPS, source, {"data": {"copied": "yes"}})
            return None

        manager.controller("edge", reconcile).watch(sources)

    report = perturb(Scenario("edge", [CONFIGMAPS], setup, copier({"name": "copy"}).world))
    assert Disturbance.LOSES_REQUEST in {failure.disturbance for failure in report.failures}
    assert "TimeoutError" in str(report)
