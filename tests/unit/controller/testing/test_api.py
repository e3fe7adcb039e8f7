"""The in-process API: its transport, its control by tests, and its deterministic values.

The server itself is tested in `tests/unit/apiserver`.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.client.transport import Request, Transport
from tapestry.controller.testing import InProcessApi, specimen
from tapestry.controller.testing.api import MINIMAL_CONTENT
from tapestry.controller.testing.clock import START, run, running_clock
from tapestry.kube.errors import TransportError
from tapestry.kube.objects import Object, key_of, uid_of, version_of
from tapestry.kube.resources import CONFIGMAPS, CRDS, NAMESPACES, PODS, SERVICE_ACCOUNTS, SERVICES, Resource

from ...api_requests import COLLECTION, MERGE, POD, answer, created, done, names, new_watch, rejection

WIDGETS = Resource("example.com", "v1", "Widget", "widgets")
RESOURCES = (PODS, NAMESPACES, CONFIGMAPS, SERVICES, SERVICE_ACCOUNTS, CRDS, WIDGETS)


def new_api(**options: Any) -> InProcessApi:
    return InProcessApi(RESOURCES, now=lambda: START, **options)


def new_pod(name: str = "p", **metadata: Any) -> Object:
    return specimen(PODS, name, "default", **metadata)


# -- served resources


async def test_unlisted_resource_is_not_served() -> None:
    assert (await rejection(new_api(), "GET", "/api/v1/secrets"))["code"] == 404
    assert (await done(new_api(), "GET", "/version"))["major"] == "1"
    listed = await done(new_api(), "GET", "/api/v1")
    assert {each["name"] for each in listed["resources"] if "/" not in each["name"]} == {
        *("pods", "namespaces", "configmaps", "services", "serviceaccounts")
    }


async def test_objects_are_defaulted_and_validated() -> None:
    api = new_api()
    pod = await created(api, {**new_pod(), "nonsense": True})
    assert "nonsense" not in pod
    assert (pod["spec"]["restartPolicy"], pod["status"]["phase"]) == ("Always", "Pending")
    nothing = await rejection(api, "POST", COLLECTION, {"metadata": {"name": "q"}, "spec": {"containers": []}})
    assert nothing["message"] == 'Pod "q" is invalid: spec.containers: Required value'


async def test_namespaces_and_accounts_need_not_exist() -> None:
    api = new_api()
    assert await names(api, NAMESPACES.path()) == []
    assert (await created(api, new_pod()))["metadata"]["namespace"] == "default"


async def test_custom_resource_keeps_any_field_and_has_status() -> None:
    api = new_api()
    path = WIDGETS.path("default", "w")
    await created(api, {"metadata": {"name": "w"}, "spec": {"any": {"field": 1}}, "status": {"no": 1}}, WIDGETS)
    found = await done(api, "PATCH", f"{path}/status", {"spec": {"any": 2}, "status": {"phase": "Ready"}}, MERGE)
    assert (found["spec"], found["status"]) == ({"any": {"field": 1}}, {"phase": "Ready"})
    assert found["metadata"]["generation"] == 1


async def test_created_definition_is_served() -> None:
    api = new_api()
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    kind = {"plural": "gadgets", "kind": "Gadget"}
    spec = {"group": "example.com", "scope": "Cluster", "names": kind, "versions": [version]}
    await created(api, {"metadata": {"name": "gadgets.example.com"}, "spec": spec}, CRDS)
    gadgets = Resource("example.com", "v1", "Gadget", "gadgets", namespaced=False)
    found = await created(api, {"metadata": {"name": "g"}, "spec": {"size": 1, "colour": "red"}}, gadgets)
    assert found["spec"] == {"size": 1}
    wrong = await rejection(api, "POST", gadgets.path(), {"metadata": {"name": "h"}, "spec": {"size": "large"}})
    assert wrong["reason"] == "Invalid"


async def test_insert_unvalidated_ignores_validation() -> None:
    api = new_api()
    await api.insert_unvalidated(PODS, {**new_pod(), "spec": {"containers": []}})
    found = await done(api, "GET", POD)
    assert found["spec"] == {"containers": []}
    assert found["metadata"]["uid"]


@pytest.mark.parametrize("resource", [*MINIMAL_CONTENT, CONFIGMAPS], ids=lambda each: each.plural)
async def test_specimen_is_accepted(resource: Resource) -> None:
    namespace = "default" if resource.namespaced else None
    found = await created(
        InProcessApi([resource], now=lambda: START), specimen(resource, "x", namespace, labels={"a": "b"}), resource
    )
    assert found["metadata"]["labels"] == {"a": "b"}


# -- deterministic values


async def test_uids_and_generated_names_follow_the_seed() -> None:
    async def dump(seed: int | None) -> list[Object]:
        api = new_api(seed=seed)
        await created(api, {"metadata": {"generateName": "x-"}}, CONFIGMAPS)
        return api.dump()

    assert await dump(1) == await dump(1)
    assert await dump(1) != await dump(2)
    assert await dump(None) != await dump(None)


async def test_values_depend_on_the_name_only() -> None:
    alone, crowded = new_api(seed=1), new_api(seed=1)
    service = specimen(SERVICES, "s", "default")
    await created(crowded, specimen(SERVICES, "first", "default"), SERVICES)
    one, other = await created(alone, service, SERVICES), await created(crowded, service, SERVICES)
    assert uid_of(one) == uid_of(other)
    assert one["spec"]["clusterIP"] == other["spec"]["clusterIP"] != "None"


async def test_recreated_object_gets_another_uid() -> None:
    api = new_api(seed=1)
    first = await created(api, new_pod())
    assert (await rejection(api, "POST", COLLECTION, new_pod()))["reason"] == "AlreadyExists"
    await done(api, "DELETE", POD)
    assert uid_of(await created(api, new_pod())) != uid_of(first)


async def test_existing_service_is_already_exists() -> None:
    api = new_api()
    await created(api, specimen(SERVICES, "s", "default"), SERVICES)
    again = await rejection(api, "POST", SERVICES.path("default"), specimen(SERVICES, "s", "default"))
    assert again["reason"] == "AlreadyExists"


async def test_tokens_differ_and_follow_the_seed() -> None:
    async def tokens() -> list[str]:
        api = new_api(seed=1)
        await created(api, {"metadata": {"name": "robot"}}, SERVICE_ACCOUNTS)
        path = f"{SERVICE_ACCOUNTS.path('default', 'robot')}/token"
        return [(await done(api, "POST", path, {"spec": {}}))["status"]["token"] for _ in range(2)]

    first = await tokens()
    assert len(set(first)) == 2
    assert await tokens() == first


# -- watches on virtual time


def test_bookmarks_arrive_each_minute_until_timeout() -> None:
    async def main() -> None:
        clock = running_clock()
        api = InProcessApi(RESOURCES, now=clock.now)
        version = version_of(await created(api, new_pod()))
        query = {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "150"}
        async with new_watch(api, **query) as events:
            config = await created(api, {"metadata": {"name": "c"}}, CONFIGMAPS)
            type, mark = await events.next()
            assert (type, clock.monotonic()) == ("BOOKMARK", 60)
            assert version_of(mark) == version_of(config)
            assert set(await events.rest()) == {"BOOKMARK"}
            assert clock.monotonic() == 150

    run(main())


def test_watch_without_timeout_ends_eventually() -> None:
    async def main() -> float:
        api = InProcessApi(RESOURCES, now=running_clock().now)
        response = await api.send(Request("GET", COLLECTION, {"watch": "true"}))
        assert (response.status, response.body) == (200, b"")
        return running_clock().monotonic()

    assert 1800 <= run(main()) <= 3600


def test_future_version_waits_then_fails() -> None:
    async def main() -> None:
        api = InProcessApi(RESOURCES, now=running_clock().now)
        response = await api.send(Request("GET", COLLECTION, {"resourceVersion": "1000"}))
        assert response.status == 504
        assert response.headers["retry-after"] == "1"
        assert b"Too large resource version: 1000" in response.body

    run(main())


# -- control by tests


async def test_stale_affects_reads_but_not_writes() -> None:
    api = new_api()
    await created(api, new_pod("a"))
    api.stale(1)
    async with new_watch(api) as events:
        await created(api, new_pod("b"))
        await created(api, new_pod("c"))
        assert await names(api) == ["a", "b"]
        assert (await rejection(api, "GET", f"{COLLECTION}/c"))["code"] == 404
        assert (await rejection(api, "POST", COLLECTION, new_pod("c")))["reason"] == "AlreadyExists"
        assert await events.brief() == ("ADDED", "a")
        assert await events.brief() == ("ADDED", "b")
        await done(api, "DELETE", f"{COLLECTION}/b")
        assert await names(api) == ["a", "b", "c"]
        assert await events.brief() == ("ADDED", "c")
        caught_up = asyncio.create_task(events.brief())
        await names(api)
        api.stale(None)
        assert await caught_up == ("DELETED", "b")
        assert await names(api) == ["a", "c"]


async def test_frozen_watches_resume_on_thaw() -> None:
    api = new_api()
    async with new_watch(api) as events, asyncio.TaskGroup() as tasks:
        api.freeze()
        await created(api, new_pod("a"))
        event = tasks.create_task(events.brief())
        assert await names(api) == ["a"]
        assert not event.done()
        api.thaw()
        assert await event == ("ADDED", "a")


def test_bookmark_of_frozen_watch_does_not_skip_events() -> None:
    async def main() -> None:
        api = InProcessApi(RESOURCES, now=running_clock().now)
        version = version_of(await created(api, new_pod("a")))
        query = {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "150"}
        async with new_watch(api, **query) as events:
            api.freeze()
            await created(api, new_pod("b"))
            assert await events.rest() == []
        api.thaw()
        async with new_watch(api, **query) as events:
            assert await events.brief() == ("ADDED", "b")

    run(main())


async def test_compaction_ends_frozen_watches() -> None:
    api = new_api()
    version = version_of(await created(api, new_pod("a")))
    async with new_watch(api, resourceVersion=version) as events:
        api.freeze()
        await created(api, new_pod("b"))
        api.compact()
        assert await events.rest() == []
    async with new_watch(api, resourceVersion=version) as events:
        type, status = await events.next()
        assert (type, status["reason"]) == ("ERROR", "Expired")


async def test_current_watch_survives_compaction() -> None:
    api = new_api()
    version = version_of(await created(api, new_pod("a")))
    async with new_watch(api, resourceVersion=version) as events:
        api.compact()
        await created(api, new_pod("b"))
        assert await events.brief() == ("ADDED", "b")


async def test_page_after_compaction_is_gone() -> None:
    api = new_api()
    for name in "abc":
        await created(api, new_pod(name))
    token = (await done(api, "GET", COLLECTION, limit="1"))["metadata"]["continue"]
    await created(api, new_pod("d"))
    api.compact()
    status = await rejection(api, "GET", COLLECTION, limit="1", **{"continue": token})
    assert (status["code"], status["reason"]) == (410, "Expired")


async def test_disconnected_watch_can_be_resumed() -> None:
    api = new_api()
    version = version_of(await created(api, new_pod("a")))
    async with new_watch(api, resourceVersion=version) as events, asyncio.TaskGroup() as tasks:
        rest = tasks.create_task(events.rest())
        await created(api, new_pod("b"))
        await asyncio.wait([rest], timeout=0)
        api.disconnect()
        assert await rest == ["ADDED"]
    async with new_watch(api, resourceVersion=version) as events:
        assert await events.brief() == ("ADDED", "b")


async def test_abort_breaks_only_own_watches() -> None:
    api = new_api()
    ours, theirs = api.connect(), api.connect()
    async with new_watch(ours) as cut, new_watch(theirs) as other:
        ours.abort()
        with pytest.raises(TransportError, match="the connection was cut"):
            await cut.next()
        await created(ours, new_pod("a"))
        assert await other.brief() == ("ADDED", "a")


@pytest.mark.parametrize(("turns", "arrived"), [(1, False), (2, True)])
def test_abort_fails_requests_in_flight(turns: int, arrived: bool) -> None:
    api = new_api()
    connection = api.connect()
    sent = connection.send(Request("POST", COLLECTION, {}, msgspec.json.encode(new_pod())))
    for _ in range(turns):
        sent.send(None)
    connection.abort()
    with pytest.raises(TransportError) as failure:
        sent.send(None)
    assert failure.value.maybe_sent is arrived
    assert bool(api.dump()) is arrived


async def test_closed_watch_is_removed() -> None:
    api = new_api()
    async with new_watch(api):
        assert len(api._watches) == len(api._store._watchers) == 1
    assert not api._watches
    assert not api._store._watchers


async def test_review_function_may_be_replaced() -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    api = new_api(review=lambda body: {"allowed": body["spec"]["resourceAttributes"]["verb"] == "get"})
    body = {"spec": {"resourceAttributes": {"verb": "list"}}}
    assert (await done(api, "POST", path, body))["status"] == {"allowed": False}
    api.review = lambda _: {"allowed": True}
    assert (await done(api, "POST", path, body))["status"] == {"allowed": True}


async def test_dump_is_the_latest_state_in_order() -> None:
    api = new_api()
    api.stale(3)
    await created(api, new_pod("b"))
    await created(api, new_pod("a"))
    await created(api, {"metadata": {"name": "z"}}, CONFIGMAPS)
    assert [(obj["kind"], key_of(obj)) for obj in api.dump()] == [
        ("ConfigMap", "default/z"),
        ("Pod", "default/a"),
        ("Pod", "default/b"),
    ]


# -- properties of any history


steps = st.lists(
    st.tuples(st.sampled_from(["put", "relabel", "delete"]), st.sampled_from("abc"), st.booleans()), max_size=25
)


async def taken(api: Transport, step: tuple[str, str, bool]) -> None:
    verb, name, on = step
    labels = {"on": "yes" if on else "no"}
    match verb:
        case "put":
            await answer(api, "POST", COLLECTION, new_pod(name, labels=labels))
        case "relabel":
            await answer(api, "PATCH", f"{COLLECTION}/{name}", {"metadata": {"labels": labels}}, MERGE)
        case "delete":
            await answer(api, "DELETE", f"{COLLECTION}/{name}")


def replayed(items: list[Object], events: list[tuple[str, Object]]) -> dict[str, Object]:
    found = {item["metadata"]["name"]: item["metadata"] for item in items}
    for type, obj in events:
        name = obj["metadata"]["name"]
        match type:
            case "ADDED":
                assert name not in found
                found[name] = obj["metadata"]
            case "MODIFIED":
                assert name in found
                found[name] = obj["metadata"]
            case "DELETED":
                del found[name]
    return found


def decoded(body: bytes) -> Iterator[tuple[str, Object]]:
    for line in body.splitlines():
        event = msgspec.json.decode(line)
        yield event["type"], event["object"]


@given(before=steps, after=steps, selector=st.sampled_from(["", "on=yes", "on!=yes"]))
def test_list_plus_watch_gives_the_present_state(before: list[Any], after: list[Any], selector: str) -> None:
    async def main() -> None:
        api = InProcessApi([PODS], now=running_clock().now)
        for step in before:
            await taken(api, step)
        listed = await done(api, "GET", COLLECTION, labelSelector=selector)
        for step in after:
            await taken(api, step)
        query = {"watch": "1", "timeoutSeconds": "1", "resourceVersion": version_of(listed), "labelSelector": selector}
        events = list(decoded((await api.send(Request("GET", COLLECTION, query))).body))
        versions = [int(version_of(obj)) for _, obj in events]
        assert versions == sorted(set(versions))
        present = await done(api, "GET", COLLECTION, labelSelector=selector)
        assert replayed(listed["items"], events) == replayed(present["items"], [])

    run(main())


@given(history=steps, lag=st.integers(min_value=0, max_value=30))
def test_stale_read_shows_an_exact_past_state(history: list[Any], lag: int) -> None:
    async def main() -> None:
        api, slow = (InProcessApi([PODS], now=running_clock().now, seed=1) for _ in range(2))
        slow.stale(lag)
        past = {1: []}
        for step in history:
            await taken(api, step)
            await taken(slow, step)
            present = await done(api, "GET", COLLECTION)
            past[int(version_of(present))] = present["items"]
        listed = await done(slow, "GET", COLLECTION)
        assert int(version_of(listed)) == max(1, max(past) - lag)
        assert listed["items"] == past[int(version_of(listed))]

    run(main())
