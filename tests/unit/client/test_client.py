"""The verbs: what they send, when they refuse to send it at all, and what they make of the answers."""

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.client.client import Client, UnconditionalWrite
from tapestry.client.options import PatchType, Propagation
from tapestry.client.responses import gc_paused
from tapestry.client.transport import JSON, Response
from tapestry.controller.testing import InProcessApi, in_virtual_time, specimen
from tapestry.controller.testing.clock import START, run
from tapestry.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Gone,
    NotFound,
    ServerError,
    TooManyRequests,
    TransportError,
)
from tapestry.kube.objects import Object, name_of, object_named, uid_of, version_of, with_value
from tapestry.kube.resources import CONFIGMAPS, NODES, PODS, SECRETS, SERVICE_ACCOUNTS, TOKEN_REVIEWS, Resource
from tapestry.process.audit import AuditLog

from .script import (
    A_POD,
    BINDINGS,
    BUSY,
    GOOD,
    POD,
    UNSEEN,
    WRITES,
    NotLeading,
    Script,
    Verb,
    answer,
    fence_of,
    lost,
    refusal,
)

PRECONDITIONS = {"uid": "u1", "resourceVersion": "7"}


# -- what a verb sends


DELETE_OPTIONS = {"apiVersion": "v1", "kind": "DeleteOptions"}
REQUESTS: list[tuple[Verb, str, Any]] = [
    (lambda c: c.get(PODS, "web", "default"), f"GET {POD}", None),
    (lambda c: c.get(PODS, "web", "default", subresource="status"), f"GET {POD}/status", None),
    (lambda c: c.get(NODES, "n1"), "GET /api/v1/nodes/n1", None),
    (lambda c: c.server_version(), "GET /version", None),
    (
        lambda c: c.create(BINDINGS, object_named("east"), dry_run=True),
        "POST /apis/cloud.tencent.com/v1beta1/clusterbindings?dryRun=All",
        object_named("east"),
    ),
    (lambda c: c.create(PODS, UNSEEN, subresource="binding"), f"POST {POD}/binding", UNSEEN),
    (lambda c: c.replace(PODS, A_POD), f"PUT {POD}", A_POD),
    (lambda c: c.replace(PODS, A_POD, subresource="status", dry_run=True), f"PUT {POD}/status?dryRun=All", A_POD),
    (lambda c: c.delete(PODS, UNSEEN), f"DELETE {POD}", DELETE_OPTIONS),
    (
        lambda c: c.delete(PODS, A_POD, grace_seconds=0, propagation=Propagation.FOREGROUND, dry_run=True),
        f"DELETE {POD}",
        {
            **DELETE_OPTIONS,
            "preconditions": PRECONDITIONS,
            "gracePeriodSeconds": 0,
            "propagationPolicy": "Foreground",
            "dryRun": ["All"],
        },
    ),
    (
        lambda c: c.delete_if_exists(PODS, A_POD, grace_seconds=5, propagation=Propagation.ORPHAN),
        f"DELETE {POD}",
        {
            **DELETE_OPTIONS,
            "preconditions": PRECONDITIONS,
            "gracePeriodSeconds": 5,
            "propagationPolicy": "Orphan",
        },
    ),
    (
        lambda c: c.delete_collection(PODS, "default", labels="app", fields="spec.nodeName=n1"),
        "DELETE /api/v1/namespaces/default/pods?labelSelector=app&fieldSelector=spec.nodeName%3Dn1",
        None,
    ),
    (
        lambda c: c.evict(A_POD, grace_seconds=5),
        f"POST {POD}/eviction",
        {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": "web", "namespace": "default"},
            "deleteOptions": {**DELETE_OPTIONS, "preconditions": PRECONDITIONS, "gracePeriodSeconds": 5},
        },
    ),
    (
        lambda c: c.request_token("robot", "default", audiences=["vault"], seconds=600, bound_to=A_POD),
        "POST /api/v1/namespaces/default/serviceaccounts/robot/token",
        {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "expirationSeconds": 600,
                "audiences": ["vault"],
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u1"},
            },
        },
    ),
    (
        lambda c: c.review(TOKEN_REVIEWS, {"token": "t"}),
        "POST /apis/authentication.k8s.io/v1/tokenreviews",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "t"}},
    ),
]


@pytest.mark.parametrize(("verb", "line", "body"), REQUESTS, ids=[line for _, line, _ in REQUESTS])
async def test_a_verb_is_one_request(verb: Verb, line: str, body: Any) -> None:
    script = Script(GOOD)
    await verb(Client(script))
    [sent] = script.asked
    assert f"{sent}?{urlencode(sent.query)}".removesuffix("?") == line
    assert (json.loads(sent.body) if sent.body else None) == body
    assert sent.content_type == JSON


async def test_what_is_applied_says_what_it_is_and_who_wants_it() -> None:
    script = Script(GOOD)
    await Client(script).apply(PODS, UNSEEN, manager="me", force=True)
    [sent] = script.asked
    assert (str(sent), sent.content_type) == (f"PATCH {POD}", "application/apply-patch+yaml")
    assert sent.query == {"fieldManager": "me", "force": "true"}
    assert json.loads(sent.body or b"") == {"apiVersion": "v1", "kind": "Pod", **UNSEEN}


@pytest.mark.parametrize(
    ("type", "patch", "sent"),
    [
        (
            PatchType.MERGE,
            {"metadata": {"labels": {"a": "b"}}, "spec": None},
            {"metadata": {"labels": {"a": "b"}, "resourceVersion": "7"}, "spec": None},
        ),
        (PatchType.STRATEGIC, {"spec": {}}, {"spec": {}, "metadata": {"resourceVersion": "7"}}),
        (
            PatchType.JSON,
            [{"op": "remove", "path": "/spec"}],
            [
                {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
                {"op": "remove", "path": "/spec"},
            ],
        ),
    ],
)
async def test_a_patch_carries_the_version_it_was_made_for(type: PatchType, patch: Any, sent: Any) -> None:
    script = Script(GOOD)
    before = json.dumps(patch)
    await Client(script).patch(PODS, A_POD, patch, type=type, subresource="status", dry_run=True)
    [request] = script.asked
    assert json.loads(request.body or b"") == sent
    assert (request.path, request.query, request.content_type) == (f"{POD}/status", {"dryRun": "All"}, type)
    assert json.dumps(patch) == before


async def test_a_patch_of_a_name_is_sent_as_it_is() -> None:
    script = Script(GOOD)
    await Client(script).patch(PODS, UNSEEN, {"spec": {}})
    assert script.asked[0].body == b'{"spec":{}}'


@pytest.mark.parametrize(
    "verb",
    [
        lambda c: c.get(PODS, "../secrets/x", "default"),
        lambda c: c.delete(PODS, object_named("", "default")),
        lambda c: c.get(PODS, "web"),
    ],
)
async def test_a_name_that_would_change_the_path_is_not_sent(verb: Verb) -> None:
    script = Script(GOOD)
    with pytest.raises(ValueError):
        await verb(Client(script))
    assert not script.asked


# -- leaders


@pytest.mark.parametrize(
    "verb",
    [
        pytest.param(lambda c: c.create(PODS, {"metadata": {"generateName": "web-"}}), id="a generated name"),
        pytest.param(lambda c: c.replace(PODS, UNSEEN), id="replace"),
        pytest.param(lambda c: c.patch(PODS, UNSEEN, {}), id="patch"),
        pytest.param(lambda c: c.apply(PODS, UNSEEN), id="apply"),
        pytest.param(lambda c: c.delete(PODS, UNSEEN), id="delete by name"),
        pytest.param(lambda c: c.delete(PODS, with_value(UNSEEN, ("metadata", "uid"), "u1")), id="delete by UID only"),
        pytest.param(
            lambda c: c.delete(PODS, with_value(UNSEEN, ("metadata", "resourceVersion"), "7")),
            id="delete by version only",
        ),
        pytest.param(lambda c: c.delete_collection(PODS, "default"), id="delete collection"),
        pytest.param(lambda c: c.evict(UNSEEN), id="evict"),
    ],
)
async def test_safety_rule_4_a_leader_refuses_a_write_that_could_do_harm_late(verb: Verb) -> None:
    script = Script(GOOD)
    with pytest.raises(UnconditionalWrite, match="must have"):
        await verb(Client(script, fence=lambda: None))
    assert not script.asked
    await verb(Client(script))
    assert len(script.asked) == 1  # nobody else is held to it


@pytest.mark.parametrize("verb", WRITES.values(), ids=WRITES.keys())
async def test_safety_rule_4_a_write_is_sent_only_while_we_lead(verb: Verb) -> None:
    script = Script(GOOD)
    client = Client(script, fence=fence_of(True, False))
    await verb(client)
    with pytest.raises(NotLeading):
        await verb(client)
    assert len(script.asked) == 1


async def test_reading_and_asking_need_no_leadership() -> None:
    script = Script(GOOD)
    client = Client(script, fence=fence_of(False))
    await client.get(PODS, "web", "default")
    await client.request_token("robot", "default")
    await client.review(TOKEN_REVIEWS, {"token": "t"})
    assert len(script.asked) == 3


# -- errors


async def test_an_error_names_the_request_and_what_the_server_said() -> None:
    with pytest.raises(NotFound) as caught:
        await Client(Script(refusal(NotFound(404, "NotFound", 'pods "web" not found')))).get(PODS, "web", "default")
    assert str(caught.value) == f'GET {POD}: 404 NotFound: pods "web" not found'


async def test_a_proxys_page_is_an_error_of_its_code() -> None:
    with pytest.raises(ServerError, match=r"POST /api/v1/namespaces/default/pods: 502 .*Bad gateway"):
        await Client(Script(Response(502, {}, b"<h1>Bad gateway</h1>"))).create(PODS, UNSEEN)


async def test_a_redirect_is_an_error() -> None:
    with pytest.raises(ApiError, match=f"GET {POD}: 302"):
        await Client(Script(answer(status=302, location="https://elsewhere.test"))).get(PODS, "web", "default")


@pytest.mark.parametrize("body", [b"<h1>Welcome</h1>", b"", b"[]", b'{"a": "\xff"}', b'{"a":' + b"[" * 100_000])
@pytest.mark.parametrize(
    "verb", [lambda c: c.get(PODS, "web", "default"), lambda c: c.list(PODS), lambda c: c.patch(PODS, A_POD, {})]
)
async def test_a_good_answer_of_somebody_else_tells_nothing_about_the_object(verb: Verb, body: bytes) -> None:
    with pytest.raises(TransportError) as caught:
        await verb(Client(Script(Response(200, {}, body))))
    assert "/api/v1/namespaces/default/pods/web" in str(caught.value) or "list pods" in str(caught.value)
    assert caught.value.maybe_sent


# -- converge


def an_api(*resources: Resource) -> tuple[InProcessApi, Client]:
    api = InProcessApi(resources or (PODS, CONFIGMAPS, BINDINGS), now=lambda: START)
    return api, Client(api)


async def test_what_is_so_already_is_not_written() -> None:
    api, client = an_api()
    cached = await client.create(BINDINGS, {**object_named("east"), "spec": {"clusterID": "c"}})
    found = await client.converge(BINDINGS, cached, {**object_named("east"), "spec": {"clusterID": "c", "gone": None}})
    assert found is cached
    assert api.dump() == [cached]


async def test_all_that_differs_goes_into_one_patch_and_the_rest_is_left_alone() -> None:
    api, client = an_api()
    cached = await client.create(BINDINGS, {**object_named("east"), "spec": {"mine": 1, "old": 2, "theirs": 3}})
    wanted = {"metadata": {"name": "east", "labels": {"a": "b"}}, "spec": {"mine": 4, "old": None}}
    found = await client.converge(BINDINGS, cached, wanted)
    assert found["spec"] == {"mine": 4, "theirs": 3}
    assert found["metadata"]["labels"] == {"a": "b"}
    assert int(version_of(found)) == int(version_of(cached)) + 1
    assert api.dump() == [found]


async def test_status_is_written_apart_and_only_if_it_differs() -> None:
    api, client = an_api()
    cached = await client.create(BINDINGS, {**object_named("east"), "spec": {"a": 1}})
    wanted = {**object_named("east"), "spec": {"a": 2}, "status": {"phase": "Ready"}}
    found = await client.converge(BINDINGS, cached, wanted)
    assert (found["spec"], found["status"]) == ({"a": 2}, {"phase": "Ready"})
    assert int(version_of(found)) == int(version_of(cached)) + 2
    assert await client.converge(BINDINGS, found, wanted) is found
    only_status = await client.converge(BINDINGS, found, {**wanted, "status": {"phase": "Failed"}})
    assert int(version_of(only_status)) == int(version_of(found)) + 1
    assert api.dump() == [only_status]


async def test_status_is_never_sent_along_with_the_rest() -> None:
    script = Script(answer({**A_POD, "spec": {"nodeName": "n2"}}))
    await Client(script).converge(PODS, A_POD, {**UNSEEN, "status": {"phase": "Running"}})
    assert [str(request) for request in script.asked] == [f"PATCH {POD}/status"]
    script.asked.clear()
    await Client(script).converge(PODS, A_POD, {**UNSEEN, "spec": {"nodeName": "n2"}, "status": {"phase": "Running"}})
    assert [(str(request), sorted(json.loads(request.body or b""))) for request in script.asked] == [
        (f"PATCH {POD}", ["metadata", "spec"]),
        (f"PATCH {POD}/status", ["metadata", "status"]),
    ]


async def test_what_is_not_there_is_created_without_what_is_to_be_absent() -> None:
    script = Script(answer({**A_POD, "status": {"phase": "Pending"}}))
    wanted = {**UNSEEN, "spec": {"nodeName": "n1", "priority": None, "os": {"name": None}}}
    await Client(script).converge(PODS, None, wanted)
    [request] = script.asked
    assert json.loads(request.body or b"") == {**UNSEEN, "spec": {"nodeName": "n1", "os": {}}}


async def test_what_is_created_gets_its_status_too() -> None:
    _, client = an_api()
    found = await client.converge(BINDINGS, None, {**object_named("east"), "status": {"phase": "Ready"}})
    assert found["status"] == {"phase": "Ready"}


async def test_a_namesake_that_the_cache_did_not_know_is_not_overwritten() -> None:
    api, client = an_api()
    there = await client.create(BINDINGS, {**object_named("east"), "spec": {"owner": "somebody"}})
    with pytest.raises(AlreadyExists):
        await client.converge(BINDINGS, None, {**object_named("east"), "spec": {"owner": "us"}})
    assert api.dump() == [there]


async def test_a_stale_cache_makes_a_conflict() -> None:
    _, client = an_api()
    stale = await client.create(BINDINGS, {**object_named("east"), "spec": {"a": 1}})
    await client.patch(BINDINGS, stale, {"spec": {"a": 2}})
    with pytest.raises(Conflict):
        await client.converge(BINDINGS, stale, {**object_named("east"), "spec": {"a": 3}})


KEYS = st.sampled_from("abc")
VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2),
    lambda inside: st.dictionaries(KEYS, inside, max_size=3),
    max_leaves=8,
)
FIELDS = st.dictionaries(KEYS, VALUES, max_size=3)


def holds(found: Any, wanted: Any) -> bool:
    """Whether `found` is what `wanted` says of it."""
    if isinstance(wanted, dict):
        return all(holds((found or {}).get(key), value) for key, value in wanted.items())
    return bool(found == wanted)


@given(FIELDS, FIELDS, FIELDS)
def test_what_was_converged_is_as_wanted_and_stays_unwritten(before: Object, spec: Object, status: Object) -> None:
    async def story() -> None:
        _, client = an_api(BINDINGS)
        cached = await client.converge(BINDINGS, None, {**object_named("east"), "spec": before})
        wanted = {**object_named("east"), "spec": spec, "status": status}
        found = await client.converge(BINDINGS, cached, wanted)
        assert holds(found, wanted)
        assert await client.converge(BINDINGS, found, wanted) is found

    run(story())


# -- lists


async def test_a_list_is_all_pages_of_one_moment() -> None:
    _, client = an_api()
    for number in range(5):
        await client.create(PODS, specimen(PODS, f"p{number}", "default"))
    names, versions = [], set()
    async for part in client.pages(PODS, "default", page_size=2):
        names += [name_of(item) for item in part.items or ()]
        versions.add(part.metadata.resource_version)
        await client.delete_collection(PODS, "default", fields="metadata.name=p4")
    assert names == ["p0", "p1", "p2", "p3", "p4"]
    assert len(versions) == 1
    assert [name_of(item) for item in await client.list(PODS, "default", page_size=2)] == ["p0", "p1", "p2", "p3"]


async def test_items_of_a_list_say_what_they_are() -> None:
    items = [{"metadata": {"name": "east"}}]
    script = Script(answer({"metadata": {}, "items": items}), answer({"metadata": {}, "items": None}))
    client = Client(script)
    assert await client.list(BINDINGS) == [
        {"apiVersion": "cloud.tencent.com/v1beta1", "kind": "ClusterBinding", "metadata": {"name": "east"}}
    ]
    assert await client.list(BINDINGS) == []


async def test_selectors_choose_and_go_with_every_page() -> None:
    pages = [answer({"metadata": {"continue": "more"}, "items": []}), answer({"metadata": {}, "items": []})]
    script = Script(*pages)
    await Client(script).list(PODS, "default", labels="app in (a,b)", fields="spec.nodeName=n1", page_size=1)
    query = {"labelSelector": "app in (a,b)", "fieldSelector": "spec.nodeName=n1", "limit": "1"}
    assert [dict(request.query) for request in script.asked] == [query, {**query, "continue": "more"}]


async def test_a_list_whose_pages_are_forgotten_meanwhile_is_gone() -> None:
    api, client = an_api()
    for number in range(3):
        await client.create(PODS, specimen(PODS, f"p{number}", "default"))
    pages = client.pages(PODS, "default", page_size=2)
    await anext(pages)
    await client.create(PODS, specimen(PODS, "late", "default"))
    api.compact()
    with pytest.raises(Gone):
        await anext(pages)


def test_the_collector_is_back_after_a_page() -> None:
    assert gc.isenabled()
    with gc_paused():
        with pytest.raises(ZeroDivisionError), gc_paused():
            raise ZeroDivisionError
        assert not gc.isenabled()
    assert gc.isenabled()


# -- against an API


async def test_a_life_of_an_object() -> None:
    api, client = an_api()
    made = await client.create(CONFIGMAPS, {**object_named("c", "default"), "data": {"a": "1"}})
    patched = await client.patch(CONFIGMAPS, made, {"data": {"b": "2"}})
    assert patched["data"] == {"a": "1", "b": "2"}
    with pytest.raises(Conflict):
        await client.patch(CONFIGMAPS, made, [{"op": "remove", "path": "/data/b"}], type=PatchType.JSON)
    with pytest.raises(Conflict):
        await client.replace(CONFIGMAPS, made)
    with pytest.raises(Conflict):
        await client.delete(CONFIGMAPS, made)
    assert await client.get(CONFIGMAPS, "c", "default") == patched
    replaced = await client.replace(CONFIGMAPS, {**patched, "data": {}})
    await client.delete(CONFIGMAPS, replaced)
    with pytest.raises(NotFound):
        await client.get(CONFIGMAPS, "c", "default")
    assert api.dump() == []


async def test_what_is_not_there_is_not_found_and_what_is_gone_already_is_removed() -> None:
    _, client = an_api()
    made = await client.create(CONFIGMAPS, object_named("c", "default"))
    assert await client.find(CONFIGMAPS, "c", "default") == made
    for _ in range(2):
        await client.delete_if_exists(CONFIGMAPS, made)
        assert await client.find(CONFIGMAPS, "c", "default") is None


@pytest.mark.parametrize("verb", [lambda c: c.find(PODS, "web", "default"), lambda c: c.remove(PODS, A_POD)])
@in_virtual_time
async def test_only_the_servers_word_that_there_is_no_such_object_means_so(verb: Verb) -> None:
    for trouble, error in ((lost(maybe_sent=True), TransportError), (refusal(BUSY), TooManyRequests)):
        with pytest.raises(error):
            await verb(Client(Script(trouble)))


async def test_a_namesake_that_came_later_is_not_deleted() -> None:
    _, client = an_api()
    first = await client.create(PODS, specimen(PODS, "p", "default"))
    await client.delete(PODS, first)
    second = await client.create(PODS, specimen(PODS, "p", "default"))
    assert uid_of(first) != uid_of(second)
    for verb in (client.delete(PODS, first), client.evict(first)):
        with pytest.raises(Conflict):
            await verb
    assert await client.get(PODS, "p", "default") == second


async def test_a_generated_name_a_dry_run_a_token_and_the_version() -> None:
    _, client = an_api(SECRETS, SERVICE_ACCOUNTS)
    made = await client.create(SECRETS, {"metadata": {"generateName": "web-", "namespace": "default"}})
    assert name_of(made).startswith("web-")
    await client.create(SECRETS, object_named("never", "default"), dry_run=True)
    assert [name_of(each) for each in await client.list(SECRETS)] == [name_of(made)]
    await client.create(SERVICE_ACCOUNTS, object_named("robot", "default"))
    assert (await client.request_token("robot", "default"))["token"]
    assert (await client.server_version())["major"] == "1"


async def aborted(client: Client) -> None:
    client.abort()


@pytest.mark.parametrize("end", [aborted, Client.close])
async def test_to_abort_or_close_fails_what_is_under_way(end: Callable[[Client], Awaitable[None]]) -> None:
    api, _ = an_api()
    client = Client(api.connect())

    async def write() -> None:
        with pytest.raises(TransportError):
            await client.create(PODS, specimen(PODS, "p", "default"))

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it is done now, and its answer on the way
        await end(client)
    assert [name_of(pod) for pod in api.dump()] == ["p"]


async def test_as_a_context_it_is_closed_in_the_end() -> None:
    script = Script(GOOD)
    async with Client(script) as client:
        await client.server_version()
        assert not script.is_closed
    assert script.is_closed


# -- records


async def test_each_write_is_one_line_of_the_audit_with_its_result(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with AuditLog(str(path)) as audit:

        async def written(verb: Verb, *answers: Response | TransportError) -> None:
            client = Client(Script(*answers), audit=audit, identity="syncer/east")
            await verb(client)

        await written(WRITES["create"], answer(A_POD, 201, audit_id="r1"))
        await written(lambda c: c.get(PODS, "web", "default"), answer(A_POD))  # no write, no line
        with pytest.raises(Conflict):
            await written(
                lambda c: c.patch(PODS, A_POD, {}, subresource="status"), refusal(Conflict(409, "Conflict", "no"))
            )
        with pytest.raises(TransportError):
            await written(WRITES["delete"], lost(maybe_sent=True))
        await written(lambda c: c.delete_collection(BINDINGS), GOOD)
        with pytest.raises(NotLeading):
            await Client(Script(GOOD), audit=audit, fence=fence_of(False)).replace(PODS, A_POD)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await Client(InProcessApi([PODS], now=lambda: START), audit=audit).create(PODS, UNSEEN)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(line.pop("seconds") >= 0 and line.pop("time") for line in lines)
    web = {"resource": "pods", "name": "web", "namespace": "default"}
    assert lines == [
        {"who": "syncer/east", "verb": "create", **web, "code": 201, "requestId": "r1"},
        {"who": "syncer/east", "verb": "patch", **web, "subresource": "status", "code": 409},
        {"who": "syncer/east", "verb": "delete", **web, "error": "TransportError"},
        {
            "who": "syncer/east",
            "verb": "deletecollection",
            "resource": "clusterbindings.cloud.tencent.com",
            "name": "*",
            "code": 200,
        },
        {"who": "tapestry", "verb": "replace", **web, "error": "NotLeading"},
        {"who": "tapestry", "verb": "create", **web, "error": "Cancelled"},
    ]
