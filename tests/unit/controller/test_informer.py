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
    """Runs an informer, from a full store on, and notes what it reports from then on."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(informer.run())
        await informer.synced.wait()
        changes: list[Change] = []
        informer.on_change(lambda old, new: changes.append((old, new)))
        changes.clear()
        yield changes
        task.cancel()


async def quiet() -> None:
    """Let happen what needs no time, and a broken watch come back."""
    await asyncio.sleep(60)


def brief(changes: list[Change]) -> list[tuple[str | None, str | None]]:
    return [(old and name_of(old), new and name_of(new)) for old, new in changes]


async def test_the_store_is_equal_to_what_the_server_has(world: Any, informer_of: Callable[..., Informer]) -> None:
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


async def test_handlers_are_told_what_was_and_what_is(world: Any, informer_of: Callable[..., Informer]) -> None:
    async with running(informer_of()) as changes:
        created = await world.add(CONFIGMAPS, "c", data={"v": "1"})
        patched = await world.client.patch(CONFIGMAPS, created, {"data": {"v": "2"}})
        await world.client.delete(CONFIGMAPS, patched)
        await quiet()
        assert changes == [(None, created), (created, patched), (patched, None)]


async def test_what_went_during_a_gap_in_the_watch_is_reported_as_gone(
    world: Any, informer_of: Callable[..., Informer]
) -> None:
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


async def test_only_deletions_that_the_server_reported_are_called_deletions(
    world: Any, informer_of: Callable[..., Informer]
) -> None:
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


async def test_an_unchanged_object_in_a_second_list_is_no_news(
    world: Any, informer_of: Callable[..., Informer]
) -> None:
    before = await world.add(CONFIGMAPS, "same")
    informer = informer_of()
    async with running(informer) as changes:
        await world.add(NODES, "elsewhere")  # so that there is a history to lose
        world.api.compact()
        world.api.disconnect()
        await quiet()
        assert changes == []
        assert informer.store.get("default/same") == before


async def test_a_namesake_that_came_unseen_is_reported_as_gone_and_new(
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


async def test_a_handler_that_comes_late_is_told_what_is_there(
    world: Any, informer_of: Callable[..., Informer]
) -> None:
    there = await world.add(CONFIGMAPS, "there")
    informer = informer_of()
    async with running(informer):
        told: list[Change] = []
        informer.on_change(lambda old, new: told.append((old, new)))
        assert told == [(None, there)]
        comes = await world.add(CONFIGMAPS, "comes")
        await quiet()
        assert told == [(None, there), (None, comes)]


async def test_after_sync_is_called_once_and_with_a_full_store(
    world: Any, informer_of: Callable[..., Informer]
) -> None:
    for number in range(3):
        await world.add(CONFIGMAPS, f"c{number}")
    informer = informer_of()
    sizes: list[int] = []
    informer.after_sync(lambda: sizes.append(len(informer.store)))
    async with running(informer):
        assert sizes == [3]
        world.api.freeze()
        await world.add(CONFIGMAPS, "more")
        world.api.compact()  # so that it lists again
        world.api.thaw()
        await quiet()
        assert len(informer.store) == 4
        assert sizes == [3]


async def test_after_sync_calls_at_once_where_the_store_is_full_already(informer_of: Callable[..., Informer]) -> None:
    informer = informer_of()
    async with running(informer):
        called: list[str] = []
        informer.after_sync(lambda: called.append("at once"))
        assert called == ["at once"]


async def test_an_object_that_stops_matching_the_rule_is_gone_and_may_come_again(
    world: Any, informer_of: Callable[..., Informer]
) -> None:
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


async def test_an_object_that_stopped_matching_during_a_gap_is_gone_too(
    world: Any, informer_of: Callable[..., Informer]
) -> None:
    informer = informer_of(keep=lambda obj: labels_of(obj).get("ours") == "yes")
    ours = await world.add(CONFIGMAPS, "ours", labels={"ours": "yes"})
    async with running(informer) as changes:
        world.api.freeze()
        await world.client.patch(CONFIGMAPS, ours, {"metadata": {"labels": {"ours": "no"}}})
        world.api.compact()
        world.api.thaw()
        await quiet()
        assert changes == [(ours, None)]


async def test_selectors_are_for_the_server_to_apply(world: Any, informer_of: Callable[..., Informer]) -> None:
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


async def test_the_transform_decides_what_is_kept(world: Any, informer_of: Callable[..., Informer]) -> None:
    def projection(obj: Object) -> Object:
        return {"metadata": obj["metadata"], "size": len(obj["data"])}

    informer = informer_of(transform=projection)
    await world.add(CONFIGMAPS, "c", data={"a": "", "b": ""})
    async with running(informer) as changes:
        assert informer.store.get("default/c")["size"] == 2
        await world.client.patch(CONFIGMAPS, object_named("c", "default"), {"data": {"c": ""}})
        await quiet()
        assert [(old["size"], new["size"]) for old, new in changes] == [(2, 3)]


async def test_an_object_that_cannot_be_read_is_left_out_and_the_others_are_read(
    world: Any, informer_of: Callable[..., Informer]
) -> None:
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


async def test_without_a_transform_objects_are_slim(world: Any, informer_of: Callable[..., Informer]) -> None:
    last_applied = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    await world.add(CONFIGMAPS, "c", annotations=last_applied)
    informer = informer_of()
    async with running(informer):
        assert not informer.store.get("default/c")["metadata"]["annotations"]


async def test_an_index_of_an_informer_follows_the_server(world: Any, informer_of: Callable[..., Informer]) -> None:
    informer = informer_of(indexers={"tier": lambda obj: [labels_of(obj).get("tier", "none")]})
    web = await world.add(CONFIGMAPS, "c", labels={"tier": "web"})
    async with running(informer):
        assert [name_of(obj) for obj in informer.store.by("tier", "web")] == ["c"]
        await world.client.patch(CONFIGMAPS, web, {"metadata": {"labels": {"tier": "db"}}})
        await quiet()
        assert informer.store.by("tier", "web") == []
        assert [name_of(obj) for obj in informer.store.by("tier", "db")] == ["c"]


async def test_a_day_of_idle_watching_tells_nothing_and_misses_nothing(
    world: Any, informer_of: Callable[..., Informer]
) -> None:
    await world.add(NODES, "n")
    async with running(informer_of(NODES)) as changes:
        await asyncio.sleep(86400)
        assert world.clock.now() == START + timedelta(days=1)
        assert changes == []
        patched = await world.client.patch(NODES, object_named("n"), {"metadata": {"labels": {"a": "b"}}})
        await asyncio.sleep(1)
        assert [version_of(new) for _, new in changes] == [version_of(patched)]
