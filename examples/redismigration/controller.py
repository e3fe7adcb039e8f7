"""Example controller that moves data from one Redis instance to another, as a PhaseMachine."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from tapestry.controller import (
    Informer,
    Manager,
    Next,
    Phase,
    PhaseMachine,
    PhaseStatus,
    Registry,
    controller_key,
    ensure_owned,
)
from tapestry.kube.api_types import ApiStruct
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.crds import AGE, Column, Kind, decode_spec
from tapestry.kube.objects import Object, key_of
from tapestry.kube.resources import JOBS, Resource

Instance = Annotated[str, Meta(pattern="^[a-z]+-[0-9]+$", description="Name of a Redis instance in its cloud.")]


class RedisMigrationSpec(ApiStruct):
    """Source and destination of a migration."""

    source: Instance
    dest: Instance


MIGRATIONS = Resource("database.cloud.tencent.com", "v1", "RedisMigration", "redismigrations")
COLUMNS = (Column("Source", ".spec.source"), Column("Dest", ".spec.dest"), Column("Phase", ".status.phase"), AGE)
REDIS_MIGRATION = Kind(MIGRATIONS, RedisMigrationSpec, PhaseStatus, columns=COLUMNS)


@dataclass(frozen=True)
class Migrations:
    """Actions of each phase."""

    jobs: Informer
    manager: Manager

    async def pending(self, migration: Object) -> Next:
        return Next("Precheck", "{source} -> {dest}".format_map(migration["spec"]))

    async def precheck(self, migration: Object) -> Next:
        spec = decode_spec(REDIS_MIGRATION, migration)
        if spec.source == spec.dest:
            return Next("PreFailed", f"spec.dest: {spec.dest} is the source too")
        return Next("Migrate")

    async def migrate(self, migration: Object) -> Next | None:
        spec = decode_spec(REDIS_MIGRATION, migration)
        container = {"name": "migrate", "image": "redis-migrate", "args": ["--from", spec.source, "--to", spec.dest]}
        content = {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}}
        job = await ensure_owned(self.manager.client, self.jobs, migration, content)
        if is_condition_true(job, "Complete"):
            return Next("Succeeded")
        return Next("Failed", f"Job {key_of(job)} failed") if is_condition_true(job, "Failed") else None

    def phases(self) -> dict[str, Phase]:
        return {
            "Pending": Phase(self.pending, to=("Precheck",)),
            "Precheck": Phase(self.precheck, to=("Migrate", "PreFailed"), timeout=60, on_failure="PreFailed"),
            "Migrate": Phase(self.migrate, to=("Succeeded", "Failed"), timeout=3600, on_failure="Failed"),
            **dict.fromkeys(("PreFailed", "Failed", "Succeeded"), Phase()),
        }


def setup(manager: Manager) -> None:
    jobs = manager.informer(JOBS, filtered=False)
    machine = PhaseMachine(MIGRATIONS, "Pending", Migrations(jobs, manager).phases())
    machine.controller(manager, "redismigration").watch(jobs, controller_key(MIGRATIONS))


def register(registry: Registry) -> None:
    registry.register("redismigration", setup, kinds=(REDIS_MIGRATION,))
