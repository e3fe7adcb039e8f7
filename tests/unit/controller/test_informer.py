import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.controller.informer import Informer
from tapestry.controller.testing.clock import START
from tapestry.kube.objects import Object, key_of, labels_of, name_of, object_named, uid_of, version_of
from tapestry.kube.resources import CONFIGMAPS, NODES

Change = tuple[Object | None, Object | None]


@pytest.fixture
def informer_of(world: Any) -> Callable[..., Informer]:
    def made(resource: Any = CONFIGMAPS, **options: Any) -> Informer:
        return Informer(Client(world.api.connect()), resource, **options)

    return made


@asynccontextmanager
async def running(informer: Informer) -> AsyncIterator[list[Change]]:
    """Run an informer.  From the first sync on, yield the changes that it reports."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(informer.run())
        await informer.synced.wait()
        changes: list[Change] = []
        informer.on_change(lambda old, new: changes.append((old, new)))
        changes.clear()
        yield changes
        task.cancel()


async def quiet() -> None:
    """Let pending work finish, and a broken watch restart."""
    await asyncio.sleep(60)


def brief(changes: list[Change]) -> list[tuple[str | None, str | None]]:
    return [(old and name_of(old), new and name_of(new)) for old, new in changes]


async def test_store_equals_server_state(world: Any, informer_of: Callable[..., Informer]) -> None:
    informer = informer_of()
    for number in range(5):
        await world.add(CONFIGMAPS, f"early-{number}", data={"n": str(number)})
    async with running(informer):
        await world.add(CONFIGMAPS, "late", data={})
        await world.client.patch(CONFIGMAPS, object_named("early-1", "default"), {"data": {"n": "changed"}})
        await world.client.delete(CONFIGMAPS, object_named("early-2", "default"))
        await quiet()
        assert {key: informer.store.get(key) for key in informer.store} == {
            key_of(obj): obj for obj in world.api.dump()
        }
        assert len(informer.store) == 5


async def test_handlers_get_old_and_new_state(world: Any, informer_of: Callable[..., Informer]) -> None:
    async with running(informer_of()) as changes:
        created = await world.add(CONFIGMAPS, "c", data={"v": "1"})
        patched = await world.client.patch(CONFIGMAPS, created, {"data": {"v": "2"}})
        await world.client.delete(CONFIGMAPS, patched)
        await quiet()
        assert changes == [(None, created), (created, patched), (patched, None)]


async def test_deletion_during_watch_gap_is_reported(world: Any, informer_of: Callable[..., Informer]) -> None:
    for name in ("stays", "goes", "changes"):
        await world.add(CONFIGMAPS, name)
    async with running(informer_of()) as changes:
        world.api.freeze()
        await world.client.delete(CONFIGMAPS, object_named("goes", "default"))
        await world.client.patch(CONFIGMAPS, object_named("changes", "default"), {"data": {"v": "2"}})
        await world.add(CONFIGMAPS, "comes")
        world.api.compact()
        world.api.thaw()
        await quiet()
        assert sorted(brief(changes), key=str) == [("changes", "changes"), ("goes", None), (None, "comes")]


async def test_on_deletion_needs_a_reported_deletion(world: Any, informer_of: Callable[..., Informer]) -> None:
    for name in ("reported", "missing"):
        await world.add(CONFIGMAPS, name)
    informer, deleted = informer_of(), []
    informer.on_deletion(lambda obj: deleted.append(name_of(obj)))
    async with running(informer) as changes:
        await world.client.delete(CONFIGMAPS, object_named("reported", "default"))
        await quiet()
        world.api.freeze()
        await world.client.delete(CONFIGMAPS, object_named("missing", "default"))
        world.api.compact()
        world.api.thaw()
        await quiet()
        assert brief(changes) == [("reported", None), ("missing", None)]
        assert deleted == ["reported"]


async def test_unchanged_object_in_relist_is_not_reported(world: Any, informer_of: Callable[..., Informer]) -> None:
    before = await world.add(CONFIGMAPS, "same")
    informer = informer_of()
    async with running(informer) as changes:
        await world.add(NODES, "elsewhere")  # history to compact
        world.api.compact()
        world.api.disconnect()
        await quiet()
        assert changes == []
        assert informer.store.get("default/same") == before


async def test_recreated_object_is_reported_as_deleted_and_new(
    world: Any, informer_of: Callable[..., Informer]
) -> None:
    first = await world.add(CONFIGMAPS, "c")
    async with running(informer_of()) as changes:
        world.api.freeze()
        await world.client.delete(CONFIGMAPS, first)
        second = await world.add(CONFIGMAPS, "c")
        world.api.compact()
        world.api.thaw()
        await quiet()
        assert uid_of(first) != uid_of(second)
        assert changes == [(first, None), (None, second)]


async def test_late_handler_gets_existing_objects(world: Any, informer_of: Callable[..., Informer]) -> None:
    there = await world.add(CONFIGMAPS, "there")
    informer = informer_of()
    async with running(informer):
        reported: list[Change] = []
        informer.on_change(lambda old, new: reported.append((old, new)))
        assert reported == [(None, there)]
        comes = await world.add(CONFIGMAPS, "comes")
        await quiet()
        assert reported == [(None, there), (None, comes)]


async def test_after_sync_is_called_once_with_full_store(world: Any, informer_of: Callable[..., Informer]) -> None:
    for number in range(3):
        await world.add(CONFIGMAPS, f"c{number}")
    informer = informer_of()
    sizes: list[int] = []
    informer.after_sync(lambda: sizes.append(len(informer.store)))
    async with running(informer):
        assert sizes == [3]
        world.api.freeze()
        await world.add(CONFIGMAPS, "more")
        world.api.compact()  # forces a new list
        world.api.thaw()
        await quiet()
        assert len(informer.store) == 4
        assert sizes == [3]


async def test_after_sync_is_called_at_once_if_synced(informer_of: Callable[..., Informer]) -> None:
    informer = informer_of()
    async with running(informer):
        called: list[str] = []
        informer.after_sync(lambda: called.append("at once"))
        assert called == ["at once"]


async def test_object_that_stops_matching_is_removed(world: Any, informer_of: Callable[..., Informer]) -> None:
    informer = informer_of(keep=lambda obj: labels_of(obj).get("ours") == "yes")
    await world.add(CONFIGMAPS, "theirs")
    ours = await world.add(CONFIGMAPS, "ours", labels={"ours": "yes"})
    async with running(informer) as changes:
        assert list(informer.store) == ["default/ours"]
        given_away = await world.client.patch(CONFIGMAPS, ours, {"metadata": {"labels": {"ours": "no"}}})
        await quiet()
        assert changes == [(ours, None)]
        assert len(informer.store) == 0
        taken_back = await world.client.patch(CONFIGMAPS, given_away, {"metadata": {"labels": {"ours": "yes"}}})
        await quiet()
        assert changes[1:] == [(None, taken_back)]


async def test_object_not_matching_after_gap_is_removed(world: Any, informer_of: Callable[..., Informer]) -> None:
    informer = informer_of(keep=lambda obj: labels_of(obj).get("ours") == "yes")
    ours = await world.add(CONFIGMAPS, "ours", labels={"ours": "yes"})
    async with running(informer) as changes:
        world.api.freeze()
        await world.client.patch(CONFIGMAPS, ours, {"metadata": {"labels": {"ours": "no"}}})
        world.api.compact()
        world.api.thaw()
        await quiet()
        assert changes == [(ours, None)]


async def test_selectors_are_applied_by_the_server(world: Any, informer_of: Callable[..., Informer]) -> None:
    for name, namespace, tier in (("a", "east", "web"), ("b", "east", "db"), ("c", "west", "web")):
        await world.add(CONFIGMAPS, name, namespace, labels={"tier": tier})
    for options, expected in (
        ({"namespace": "east"}, ["east/a", "east/b"]),
        ({"labels": "tier=web"}, ["east/a", "west/c"]),
        ({"namespace": "east", "labels": "tier=web"}, ["east/a"]),
        ({"fields": "metadata.name=c"}, ["west/c"]),
    ):
        informer = informer_of(**options)
        async with running(informer):
            assert list(informer.store) == expected


async def test_transform_determines_the_stored_object(world: Any, informer_of: Callable[..., Informer]) -> None:
    def projection(obj: Object) -> Object:
        return {"metadata": obj["metadata"], "size": len(obj["data"])}

    informer = informer_of(transform=projection)
    await world.add(CONFIGMAPS, "c", data={"a": "", "b": ""})
    async with running(informer) as changes:
        assert informer.store.get("default/c")["size"] == 2
        await world.client.patch(CONFIGMAPS, object_named("c", "default"), {"data": {"c": ""}})
        await quiet()
        assert [(old["size"], new["size"]) for old, new in changes] == [(2, 3)]


async def test_object_with_failing_transform_is_skipped(world: Any, informer_of: Callable[..., Informer]) -> None:
    def readable(obj: Object) -> Object:
        if obj["data"]["n"] == "bad":
            raise ValueError("not a number")
        return obj

    for name, value in (("a", "1"), ("b", "bad"), ("c", "3")):
        await world.add(CONFIGMAPS, name, data={"n": value})
    async with running(informer_of(transform=readable)) as changes:
        await world.add(CONFIGMAPS, "d", data={"n": "bad"})
        await world.client.patch(CONFIGMAPS, object_named("c", "default"), {"data": {"n": "bad"}})
        await world.client.patch(CONFIGMAPS, object_named("b", "default"), {"data": {"n": "2"}})
        await quiet()
        assert brief(changes) == [("c", None), (None, "b")]


async def test_default_transform_is_slim(world: Any, informer_of: Callable[..., Informer]) -> None:
    last_applied = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    await world.add(CONFIGMAPS, "c", annotations=last_applied)
    informer = informer_of()
    async with running(informer):
        assert not informer.store.get("default/c")["metadata"]["annotations"]


async def test_index_follows_the_server(world: Any, informer_of: Callable[..., Informer]) -> None:
    informer = informer_of(indexers={"tier": lambda obj: [labels_of(obj).get("tier", "none")]})
    web = await world.add(CONFIGMAPS, "c", labels={"tier": "web"})
    async with running(informer):
        assert [name_of(obj) for obj in informer.store.by("tier", "web")] == ["c"]
        await world.client.patch(CONFIGMAPS, web, {"metadata": {"labels": {"tier": "db"}}})
        await quiet()
        assert informer.store.by("tier", "web") == []
        assert [name_of(obj) for obj in informer.store.by("tier", "db")] == ["c"]


async def test_idle_day_reports_and_misses_nothing(world: Any, informer_of: Callable[..., Informer]) -> None:
    await world.add(NODES, "n")
    async with running(informer_of(NODES)) as changes:
        await asyncio.sleep(86400)
        assert world.clock.now() == START + timedelta(days=1)
        assert changes == []
        patched = await world.client.patch(NODES, object_named("n"), {"metadata": {"labels": {"a": "b"}}})
        await asyncio.sleep(1)
        assert [version_of(new) for _, new in changes] == [version_of(patched)]
