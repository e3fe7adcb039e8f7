"""Old records of operations are deleted, by their age and their number."""

from datetime import UTC, datetime, timedelta

from tapestry.apis.operations import OPERATIONS
from tapestry.client.client import Client
from tapestry.controller.testing import InProcessApi
from tapestry.kube.objects import Object, name_of
from tapestry.kube.times import timestamp
from tapestry.vclusters.operation_sweeper import SWEEP_SECONDS, OperationSweeper

NOON = datetime(2026, 1, 10, 12, tzinfo=UTC)


class Cache:
    def __init__(self, objects: list[Object]) -> None:
        self.objects = objects

    @property
    def store(self) -> "Cache":
        return self

    def list(self) -> list[Object]:
        return self.objects


async def add_record(client: Client, name: str, ended: datetime, namespace: str = "default") -> None:
    spec = {"verb": "Scale", "vcluster": "v", "vclusterUid": "u", "project": "shop", "principal": "jane"}
    created = await client.create(
        OPERATIONS, {"metadata": {"name": name, "namespace": namespace}, "spec": spec, "status": {}}
    )
    await client.patch(OPERATIONS, created, {"status": {"endTime": timestamp(ended)}}, subresource="status")


async def test_only_old_records_of_the_namespace_are_deleted() -> None:
    client = Client(InProcessApi([OPERATIONS], now=lambda: NOON).connect())
    for days in (0, 6, 8):
        await add_record(client, f"op-{days}", NOON - timedelta(days=days))
    await add_record(client, "op-elsewhere", NOON - timedelta(days=30), "kube-system")
    sweeper = OperationSweeper(Cache(await client.list(OPERATIONS)), client, lambda: NOON)  # type: ignore[arg-type]
    result = await sweeper.reconcile("default")
    assert result is not None
    assert result.requeue_after == SWEEP_SECONDS
    assert sorted(map(name_of, await client.list(OPERATIONS))) == ["op-0", "op-6", "op-elsewhere"]
    assert await sweeper.reconcile("empty") is None
