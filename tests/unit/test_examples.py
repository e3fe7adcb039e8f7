"""The two example controllers on virtual time."""

import ast
import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

from at.controller import AT, ATS
from at.controller import setup as set_up_at
from redismigration.controller import MIGRATIONS, REDIS_MIGRATION
from redismigration.controller import setup as set_up_redis_migration
from tapestry.client.client import Client
from tapestry.controller.config import ManagerConfig
from tapestry.controller.manager import Manager, Setup
from tapestry.controller.testing.api import InProcessApi, specimen
from tapestry.controller.testing.clock import START, run, running_clock
from tapestry.controller.testing.perturbation import without_listeners
from tapestry.kube.crds import Kind, decode_spec
from tapestry.kube.objects import Object, controller_of, object_named, uid_of
from tapestry.kube.resources import EVENTS, JOBS, LEASES, PODS, Resource
from tapestry.kube.times import timestamp
from tapestry.process.config import load_config

EXAMPLES = Path(__file__).parents[2] / "examples"


def story(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test on virtual time."""

    @wraps(test)
    def run_story() -> None:
        run(test())

    return run_story


@asynccontextmanager
async def running(example: str, setup: Setup, *resources: Resource) -> AsyncIterator[Client]:
    """Run an example with its own configuration.  Yield a client."""
    clock = running_clock()
    api = InProcessApi([*resources, EVENTS, LEASES], now=clock.now)
    config = without_listeners(
        load_config(ManagerConfig, file=EXAMPLES / example / "config.yaml", environ={}, flags={})
    )
    manager = Manager(config, api.connect, identity="example", now=clock.now, monotonic=clock.monotonic)
    manager.register(example, setup)
    async with asyncio.TaskGroup() as group:
        group.create_task(manager.run())
        yield Client(api.connect())
        manager.stop()


async def created(client: Client, resource: Resource, **spec: Any) -> Object:
    return await client.create(resource, {**object_named("it", "default"), "spec": spec})


async def phase(client: Client, resource: Resource) -> str | None:
    """Return the phase of the object after all work that needs no time."""
    await asyncio.sleep(0.5)
    status: Object = (await client.get(resource, "it", "default")).get("status", {})
    return status.get("phase")


async def set_status(client: Client, resource: Resource, **status: Any) -> None:
    await client.patch(resource, object_named("it", "default"), {"status": status}, subresource="status")


# -- At


@story
async def test_at_waits_for_its_time_and_reports_its_pod() -> None:
    async with running("at", set_up_at, ATS, PODS) as client:
        at = await created(client, ATS, schedule=timestamp(START + timedelta(hours=1)), command="echo hello")
        assert await phase(client, ATS) == "Waiting"
        await asyncio.sleep(3598)
        assert await client.list(PODS) == []
        await asyncio.sleep(2)
        assert await phase(client, ATS) == "Pending"
        (pod,) = await client.list(PODS)
        owner = controller_of(pod)
        assert owner is not None
        assert owner["uid"] == uid_of(at)
        (container,) = pod["spec"]["containers"]
        assert (container["image"], container["command"]) == ("busybox", ["sh", "-c", "echo hello"])
        for reached in ("Running", "Succeeded"):
            await set_status(client, PODS, phase=reached)
            assert await phase(client, ATS) == reached
        await client.delete(PODS, object_named("it", "default"))
        assert await phase(client, ATS) == "Succeeded"
        assert await client.list(PODS) == []


@story
async def test_at_runs_immediately_when_its_time_has_passed() -> None:
    async with running("at", set_up_at, ATS, PODS) as client:
        await created(client, ATS, schedule=timestamp(START - timedelta(days=1)), command="echo late")
        assert await phase(client, ATS) == "Pending"


@story
async def test_at_follows_a_changed_schedule() -> None:
    async with running("at", set_up_at, ATS, PODS) as client:
        await created(client, ATS, schedule=timestamp(START + timedelta(days=365)), command="echo hello")
        assert await phase(client, ATS) == "Waiting"
        sooner = timestamp(START + timedelta(seconds=60))
        await client.patch(ATS, object_named("it", "default"), {"spec": {"schedule": sooner}})
        await asyncio.sleep(58)
        assert await phase(client, ATS) == "Waiting"
        await asyncio.sleep(2)
        assert await phase(client, ATS) == "Pending"


@story
async def test_at_leaves_a_foreign_pod_of_its_name_alone() -> None:
    async with running("at", set_up_at, ATS, PODS) as client:
        foreign = await client.create(PODS, specimen(PODS, "it", "default"))
        before = errors("at", "NameTaken")
        await created(client, ATS, schedule=timestamp(START), command="echo hello")
        assert await phase(client, ATS) is None
        await asyncio.sleep(3600)
        assert errors("at", "NameTaken") - before == 1
        assert await client.list(PODS) == [foreign]


@story
async def test_at_with_invalid_schedule_waits_for_a_valid_one() -> None:
    async with running("at", set_up_at, ATS, PODS) as client:
        before = errors("at", "InvalidSpec")
        await created(client, ATS, schedule="tomorrow", command="echo hello")
        assert await phase(client, ATS) is None
        assert errors("at", "InvalidSpec") - before == 1
        await client.patch(ATS, object_named("it", "default"), {"spec": {"schedule": timestamp(START)}})
        assert await phase(client, ATS) == "Pending"


def errors(controller: str, reason: str) -> float:
    labels = {"controller": controller, "reason": reason}
    return REGISTRY.get_sample_value("tapestry_reconcile_errors_total", labels) or 0.0


# -- RedisMigration


@asynccontextmanager
async def new_migration(source: str = "ali-123", dest: str = "tx-123") -> AsyncIterator[Client]:
    async with running("redismigration", set_up_redis_migration, MIGRATIONS, JOBS) as client:
        await created(client, MIGRATIONS, source=source, dest=dest)
        yield client


async def reason(client: Client, phase: str) -> str:
    """Return the reason that the history gives for entering `phase`."""
    status = (await client.get(MIGRATIONS, "it", "default"))["status"]
    (message,) = [each["message"] for each in status["conditions"] if each["type"] == phase]
    return str(message)


def condition(type: str) -> Object:
    return {"type": type, "status": "True"}


@story
async def test_redis_migration_succeeds_with_its_job() -> None:
    async with new_migration() as client:
        assert await phase(client, MIGRATIONS) == "Migrate"
        (job,) = await client.list(JOBS)
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["args"] == ["--from", "ali-123", "--to", "tx-123"]
        await set_status(client, JOBS, active=1)
        assert await phase(client, MIGRATIONS) == "Migrate"
        await set_status(client, JOBS, conditions=[condition("Complete")])
        assert await phase(client, MIGRATIONS) == "Succeeded"
        status = (await client.get(MIGRATIONS, "it", "default"))["status"]
        assert [(each["type"], each["status"]) for each in status["conditions"]] == [
            ("Pending", "False"),
            ("Precheck", "False"),
            ("Migrate", "False"),
            ("Succeeded", "True"),
        ]
        assert {event["reason"] for event in await client.list(EVENTS)} == {
            "PhasePrecheck",
            "PhaseMigrate",
            "PhaseSucceeded",
        }


@story
async def test_redis_migration_fails_with_its_job() -> None:
    async with new_migration() as client:
        assert await phase(client, MIGRATIONS) == "Migrate"
        await set_status(client, JOBS, conditions=[condition("Failed")])
        assert await phase(client, MIGRATIONS) == "Failed"
        assert await reason(client, "Failed") == "Job default/it failed"


@story
async def test_redis_migration_onto_itself_is_refused() -> None:
    async with new_migration(source="ali-123", dest="ali-123") as client:
        assert await phase(client, MIGRATIONS) == "PreFailed"
        assert await reason(client, "PreFailed") == "spec.dest: ali-123 is the source too"
        assert await client.list(JOBS) == []


@story
async def test_redis_migration_between_invalid_instances_is_refused() -> None:
    async with new_migration(dest="nowhere") as client:
        assert await phase(client, MIGRATIONS) == "PreFailed"
        assert (await reason(client, "PreFailed")).startswith("spec.dest: ")


@story
async def test_redis_migration_fails_after_an_hour() -> None:
    async with new_migration() as client:
        await asyncio.sleep(3598)
        assert await phase(client, MIGRATIONS) == "Migrate"
        await asyncio.sleep(2)
        assert await phase(client, MIGRATIONS) == "Failed"
        assert await reason(client, "Failed") == "not done within 3600 s"
        await set_status(client, JOBS, conditions=[condition("Complete")])
        assert await phase(client, MIGRATIONS) == "Failed"


# -- both


@pytest.mark.parametrize(("example", "kind"), [("at", AT), ("redismigration", REDIS_MIGRATION)])
def test_an_example_ships_a_configuration_and_a_sample(example: str, kind: Kind[Any]) -> None:
    config = load_config(ManagerConfig, file=EXAMPLES / example / "config.yaml", environ={}, flags={})
    assert config.name == example
    assert config.leader_election.enabled
    sample = yaml.safe_load((EXAMPLES / example / "sample.yaml").read_text())
    assert (sample["apiVersion"], sample["kind"]) == (kind.resource.api_version, kind.resource.kind)
    assert isinstance(decode_spec(kind, sample), kind.spec)


@pytest.mark.parametrize("example", ["at", "redismigration"])
def test_an_example_is_at_most_forty_lines_of_code(example: str) -> None:
    source = (EXAMPLES / example / "controller.py").read_text()
    assert len(lines_of_code(source)) <= 40


def lines_of_code(source: str) -> list[str]:
    """Count the lines without blanks, comments, imports and docstrings."""
    lines = dict(enumerate(source.splitlines(), start=1))
    for node in ast.walk(ast.parse(source)):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if text or isinstance(node, ast.Import | ast.ImportFrom):
            for number in range(node.lineno, node.end_lineno + 1):
                lines.pop(number)
    return [line for line in lines.values() if line.strip() and not line.strip().startswith("#")]


def test_line_count_ignores_imports_docstrings_comments_and_blanks() -> None:
    source = """
'A story.'
import os
from sys import (
    path,
)

# why
def f():
    '''A docstring
    of two lines.'''
    return 1
"""
    assert lines_of_code(source) == ["def f():", "    return 1"]
