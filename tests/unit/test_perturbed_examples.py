"""Both examples with a fault injected at each of their API calls."""

import asyncio
from collections.abc import Awaitable, Callable

from at import controller as at
from redismigration import controller as redismigration
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller.testing import Scenario, perturb
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import JOBS, PODS, Resource

AN_HOUR = 3600.0
SOON, LATER = "2024-01-01T00:00:00Z", "2024-01-01T00:01:00Z"  # virtual time begins at SOON


async def create(client: Client, resource: Resource, spec: Object, name: str = "one") -> None:
    metadata = {"name": name, "namespace": "default"}
    await client.create(
        resource, {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}
    )


async def appears(client: Client, resource: Resource, name: str = "one") -> Object:
    found = await wait_for(client, resource, name, "default", until=lambda obj: obj is not None, timeout=AN_HOUR)
    assert found is not None
    return found


async def reaches(client: Client, resource: Resource, *phases: str, name: str = "one") -> None:
    for phase in phases:
        there = lambda obj, phase=phase: value_at(obj, "status", "phase") == phase  # noqa: E731
        await wait_for(client, resource, name, "default", until=there, timeout=2 * AN_HOUR)


def new_at(schedule: str, *phases: str) -> Callable[[Client], Awaitable[None]]:
    """World with an At and a kubelet that moves its pod through phases."""

    async def world(client: Client) -> None:
        await create(client, at.ATS, {"schedule": schedule, "command": "true"})
        pod = await appears(client, PODS)
        for phase in phases:
            pod = await client.patch(PODS, pod, {"status": {"phase": phase}}, subresource="status")
            await asyncio.sleep(1)
        await reaches(client, at.ATS, phases[-1])

    return world


async def two_ats(client: Client) -> None:
    await create(client, at.ATS, {"schedule": SOON, "command": "true"}, "one")
    await create(client, at.ATS, {"schedule": LATER, "command": "false"}, "two")
    for name, phase in (("one", "Succeeded"), ("two", "Failed")):
        pod = await appears(client, PODS, name)
        await client.patch(PODS, pod, {"status": {"phase": phase}}, subresource="status")
        await reaches(client, at.ATS, phase, name=name)


def new_migration(*conditions: str) -> Callable[[Client], Awaitable[None]]:
    """World with a migration and a job controller that sets conditions of its Job."""

    async def world(client: Client) -> None:
        await create(client, redismigration.MIGRATIONS, {"source": "ali-123", "dest": "tx-123"})
        job = await appears(client, JOBS)
        for condition in conditions:
            status = {"conditions": [{"type": condition, "status": "True"}]}
            job = await client.patch(JOBS, job, {"status": status}, subresource="status")
        end = {"Complete": "Succeeded"}.get(conditions[-1], "Failed") if conditions else "Failed"
        await reaches(client, redismigration.MIGRATIONS, end)

    return world


async def new_migration_onto_itself(client: Client) -> None:
    await create(client, redismigration.MIGRATIONS, {"source": "tx-123", "dest": "tx-123"})
    await reaches(client, redismigration.MIGRATIONS, "PreFailed")


SCENARIOS = [
    Scenario("an At that succeeds", [at.ATS, PODS], at.setup, new_at(LATER, "Running", "Succeeded")),
    Scenario("an At that fails at once", [at.ATS, PODS], at.setup, new_at(SOON, "Failed")),
    Scenario("two Ats", [at.ATS, PODS], at.setup, two_ats),
    *(
        Scenario(name, [redismigration.MIGRATIONS, JOBS], redismigration.setup, world)
        for name, world in {
            "a migration that succeeds": new_migration("Complete"),
            "a migration whose Job fails": new_migration("Failed"),
            "a migration that takes too long": new_migration(),
            "a migration onto itself": new_migration_onto_itself,
        }.items()
    ),
]


def test_examples_reach_the_same_end_under_any_disturbance(record_property: Callable[[str, object], None]) -> None:
    reports = [perturb(scenario) for scenario in SCENARIOS]
    cases = sum(report.cases for report in reports)
    record_property("figure", f"perturbed examples: {cases} replays of {len(reports)} scenarios")
    failed = [str(report) for report in reports if report.failures]
    assert not failed, "\n".join(failed)
    assert cases >= 200
