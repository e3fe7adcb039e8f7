"""The client's verbs: their requests, their preconditions, and their handling of responses."""

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
    ScriptedTransport,
    Verb,
    error_response,
    fence_of,
    response_of,
    transport_error,
)

PRECONDITIONS = {"uid": "u1", "resourceVersion": "7"}


# -- requests of verbs


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
async def test_verb_sends_one_request(verb: Verb, line: str, body: Any) -> None:
    transport = ScriptedTransport(GOOD)
    await verb(Client(transport))
    [sent] = transport.requests
    assert f"{sent}?{urlencode(sent.query)}".removesuffix("?") == line
    assert (json.loads(sent.body) if sent.body else None) == body
    assert sent.content_type == JSON


async def test_apply_sends_type_and_field_manager() -> None:
    transport = ScriptedTransport(GOOD)
    await Client(transport).apply(PODS, UNSEEN, manager="me", force=True)
    [sent] = transport.requests
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
async def test_patch_carries_the_version_of_its_target(type: PatchType, patch: Any, sent: Any) -> None:
    transport = ScriptedTransport(GOOD)
    before = json.dumps(patch)
    await Client(transport).patch(PODS, A_POD, patch, type=type, subresource="status", dry_run=True)
    [request] = transport.requests
    assert json.loads(request.body or b"") == sent
    assert (request.path, request.query, request.content_type) == (f"{POD}/status", {"dryRun": "All"}, type)
    assert json.dumps(patch) == before


async def test_patch_of_a_name_is_sent_unchanged() -> None:
    transport = ScriptedTransport(GOOD)
    await Client(transport).patch(PODS, UNSEEN, {"spec": {}})
    assert transport.requests[0].body == b'{"spec":{}}'


@pytest.mark.parametrize(
    "verb",
    [
        lambda c: c.get(PODS, "../secrets/x", "default"),
        lambda c: c.delete(PODS, object_named("", "default")),
        lambda c: c.get(PODS, "web"),
    ],
)
async def test_name_with_path_characters_is_rejected(verb: Verb) -> None:
    transport = ScriptedTransport(GOOD)
    with pytest.raises(ValueError):
        await verb(Client(transport))
    assert not transport.requests


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
async def test_safety_rule_4_fenced_client_rejects_unconditional_writes(verb: Verb) -> None:
    transport = ScriptedTransport(GOOD)
    with pytest.raises(UnconditionalWrite, match="must have"):
        await verb(Client(transport, fence=lambda: None))
    assert not transport.requests
    await verb(Client(transport))
    assert len(transport.requests) == 1  # a client without a fence may


@pytest.mark.parametrize("verb", WRITES.values(), ids=WRITES.keys())
async def test_safety_rule_4_write_is_sent_only_while_leading(verb: Verb) -> None:
    transport = ScriptedTransport(GOOD)
    client = Client(transport, fence=fence_of(True, False))
    await verb(client)
    with pytest.raises(NotLeading):
        await verb(client)
    assert len(transport.requests) == 1


async def test_reads_and_reviews_need_no_leadership() -> None:
    transport = ScriptedTransport(GOOD)
    client = Client(transport, fence=fence_of(False))
    await client.get(PODS, "web", "default")
    await client.request_token("robot", "default")
    await client.review(TOKEN_REVIEWS, {"token": "t"})
    assert len(transport.requests) == 3


# -- errors


async def test_error_names_request_and_server_message() -> None:
    with pytest.raises(NotFound) as caught:
        await Client(ScriptedTransport(error_response(NotFound(404, "NotFound", 'pods "web" not found')))).get(
            PODS, "web", "default"
        )
    assert str(caught.value) == f'GET {POD}: 404 NotFound: pods "web" not found'


async def test_proxy_page_becomes_error_of_its_code() -> None:
    with pytest.raises(ServerError, match=r"POST /api/v1/namespaces/default/pods: 502 .*Bad gateway"):
        await Client(ScriptedTransport(Response(502, {}, b"<h1>Bad gateway</h1>"))).create(PODS, UNSEEN)


async def test_redirect_is_an_error() -> None:
    with pytest.raises(ApiError, match=f"GET {POD}: 302"):
        await Client(ScriptedTransport(response_of(status=302, location="https://elsewhere.test"))).get(
            PODS, "web", "default"
        )


@pytest.mark.parametrize("body", [b"<h1>Welcome</h1>", b"", b"[]", b'{"a": "\xff"}', b'{"a":' + b"[" * 100_000])
@pytest.mark.parametrize(
    "verb", [lambda c: c.get(PODS, "web", "default"), lambda c: c.list(PODS), lambda c: c.patch(PODS, A_POD, {})]
)
async def test_response_of_non_api_server_is_transport_error(verb: Verb, body: bytes) -> None:
    with pytest.raises(TransportError) as caught:
        await verb(Client(ScriptedTransport(Response(200, {}, body))))
    assert "/api/v1/namespaces/default/pods/web" in str(caught.value) or "list pods" in str(caught.value)
    assert caught.value.maybe_sent


# -- converge


def new_api(*resources: Resource) -> tuple[InProcessApi, Client]:
    api = InProcessApi(resources or (PODS, CONFIGMAPS, BINDINGS), now=lambda: START)
    return api, Client(api)


async def test_converge_writes_nothing_when_equal() -> None:
    api, client = new_api()
    cached = await client.create(BINDINGS, {**object_named("east"), "spec": {"clusterID": "c"}})
    found = await client.converge(BINDINGS, cached, {**object_named("east"), "spec": {"clusterID": "c", "gone": None}})
    assert found is cached
    assert api.dump() == [cached]


async def test_converge_patches_only_the_differences() -> None:
    api, client = new_api()
    cached = await client.create(BINDINGS, {**object_named("east"), "spec": {"mine": 1, "old": 2, "theirs": 3}})
    wanted = {"metadata": {"name": "east", "labels": {"a": "b"}}, "spec": {"mine": 4, "old": None}}
    found = await client.converge(BINDINGS, cached, wanted)
    assert found["spec"] == {"mine": 4, "theirs": 3}
    assert found["metadata"]["labels"] == {"a": "b"}
    assert int(version_of(found)) == int(version_of(cached)) + 1
    assert api.dump() == [found]


async def test_converge_writes_status_separately() -> None:
    api, client = new_api()
    cached = await client.create(BINDINGS, {**object_named("east"), "spec": {"a": 1}})
    wanted = {**object_named("east"), "spec": {"a": 2}, "status": {"phase": "Ready"}}
    found = await client.converge(BINDINGS, cached, wanted)
    assert (found["spec"], found["status"]) == ({"a": 2}, {"phase": "Ready"})
    assert int(version_of(found)) == int(version_of(cached)) + 2
    assert await client.converge(BINDINGS, found, wanted) is found
    only_status = await client.converge(BINDINGS, found, {**wanted, "status": {"phase": "Failed"}})
    assert int(version_of(only_status)) == int(version_of(found)) + 1
    assert api.dump() == [only_status]


async def test_status_is_not_sent_with_the_rest() -> None:
    transport = ScriptedTransport(response_of({**A_POD, "spec": {"nodeName": "n2"}}))
    await Client(transport).converge(PODS, A_POD, {**UNSEEN, "status": {"phase": "Running"}})
    assert [str(request) for request in transport.requests] == [f"PATCH {POD}/status"]
    transport.requests.clear()
    await Client(transport).converge(
        PODS, A_POD, {**UNSEEN, "spec": {"nodeName": "n2"}, "status": {"phase": "Running"}}
    )
    assert [(str(request), sorted(json.loads(request.body or b""))) for request in transport.requests] == [
        (f"PATCH {POD}", ["metadata", "spec"]),
        (f"PATCH {POD}/status", ["metadata", "status"]),
    ]


async def test_converge_creates_without_absent_fields() -> None:
    transport = ScriptedTransport(response_of({**A_POD, "status": {"phase": "Pending"}}))
    wanted = {**UNSEEN, "spec": {"nodeName": "n1", "priority": None, "os": {"name": None}}}
    await Client(transport).converge(PODS, None, wanted)
    [request] = transport.requests
    assert json.loads(request.body or b"") == {**UNSEEN, "spec": {"nodeName": "n1", "os": {}}}


async def test_converge_writes_status_after_create() -> None:
    _, client = new_api()
    found = await client.converge(BINDINGS, None, {**object_named("east"), "status": {"phase": "Ready"}})
    assert found["status"] == {"phase": "Ready"}


async def test_converge_does_not_overwrite_an_uncached_object() -> None:
    api, client = new_api()
    there = await client.create(BINDINGS, {**object_named("east"), "spec": {"owner": "somebody"}})
    with pytest.raises(AlreadyExists):
        await client.converge(BINDINGS, None, {**object_named("east"), "spec": {"owner": "us"}})
    assert api.dump() == [there]


async def test_converge_with_stale_cache_is_a_conflict() -> None:
    _, client = new_api()
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


def contains(found: Any, wanted: Any) -> bool:
    """Return whether `found` has all fields of `wanted`."""
    if isinstance(wanted, dict):
        return all(contains((found or {}).get(key), value) for key, value in wanted.items())
    return bool(found == wanted)


@given(FIELDS, FIELDS, FIELDS)
def test_converge_is_complete_and_idempotent(before: Object, spec: Object, status: Object) -> None:
    async def scenario() -> None:
        _, client = new_api(BINDINGS)
        cached = await client.converge(BINDINGS, None, {**object_named("east"), "spec": before})
        wanted = {**object_named("east"), "spec": spec, "status": status}
        found = await client.converge(BINDINGS, cached, wanted)
        assert contains(found, wanted)
        assert await client.converge(BINDINGS, found, wanted) is found

    run(scenario())


# -- lists


async def test_list_returns_all_pages_of_one_snapshot() -> None:
    _, client = new_api()
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


async def test_list_items_have_kind_and_api_version() -> None:
    items = [{"metadata": {"name": "east"}}]
    transport = ScriptedTransport(
        response_of({"metadata": {}, "items": items}), response_of({"metadata": {}, "items": None})
    )
    client = Client(transport)
    assert await client.list(BINDINGS) == [
        {"apiVersion": "cloud.tencent.com/v1beta1", "kind": "ClusterBinding", "metadata": {"name": "east"}}
    ]
    assert await client.list(BINDINGS) == []


async def test_selectors_are_sent_with_every_page() -> None:
    pages = [response_of({"metadata": {"continue": "more"}, "items": []}), response_of({"metadata": {}, "items": []})]
    transport = ScriptedTransport(*pages)
    await Client(transport).list(PODS, "default", labels="app in (a,b)", fields="spec.nodeName=n1", page_size=1)
    query = {"labelSelector": "app in (a,b)", "fieldSelector": "spec.nodeName=n1", "limit": "1"}
    assert [dict(request.query) for request in transport.requests] == [query, {**query, "continue": "more"}]


async def test_list_with_expired_pages_raises_gone() -> None:
    api, client = new_api()
    for number in range(3):
        await client.create(PODS, specimen(PODS, f"p{number}", "default"))
    pages = client.pages(PODS, "default", page_size=2)
    await anext(pages)
    await client.create(PODS, specimen(PODS, "late", "default"))
    api.compact()
    with pytest.raises(Gone):
        await anext(pages)


def test_garbage_collector_is_enabled_after_a_page() -> None:
    assert gc.isenabled()
    with gc_paused():
        with pytest.raises(ZeroDivisionError), gc_paused():
            raise ZeroDivisionError
        assert not gc.isenabled()
    assert gc.isenabled()


# -- against an API


async def test_object_lifecycle() -> None:
    api, client = new_api()
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


async def test_missing_object_is_not_found() -> None:
    _, client = new_api()
    made = await client.create(CONFIGMAPS, object_named("c", "default"))
    assert await client.find(CONFIGMAPS, "c", "default") == made
    for _ in range(2):
        await client.delete_if_exists(CONFIGMAPS, made)
        assert await client.find(CONFIGMAPS, "c", "default") is None


@pytest.mark.parametrize("verb", [lambda c: c.find(PODS, "web", "default"), lambda c: c.delete_if_exists(PODS, A_POD)])
@in_virtual_time
async def test_only_not_found_counts_as_absent(verb: Verb) -> None:
    for failure, error in ((transport_error(maybe_sent=True), TransportError), (error_response(BUSY), TooManyRequests)):
        with pytest.raises(error):
            await verb(Client(ScriptedTransport(failure)))


async def test_delete_spares_an_object_recreated_later() -> None:
    _, client = new_api()
    first = await client.create(PODS, specimen(PODS, "p", "default"))
    await client.delete(PODS, first)
    second = await client.create(PODS, specimen(PODS, "p", "default"))
    assert uid_of(first) != uid_of(second)
    for verb in (client.delete(PODS, first), client.evict(first)):
        with pytest.raises(Conflict):
            await verb
    assert await client.get(PODS, "p", "default") == second


async def test_generate_name_dry_run_token_and_version() -> None:
    _, client = new_api(SECRETS, SERVICE_ACCOUNTS)
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
async def test_abort_and_close_fail_requests_in_flight(end: Callable[[Client], Awaitable[None]]) -> None:
    api, _ = new_api()
    client = Client(api.connect())

    async def write() -> None:
        with pytest.raises(TransportError):
            await client.create(PODS, specimen(PODS, "p", "default"))

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it is applied now, and its response is in flight
        await end(client)
    assert [name_of(pod) for pod in api.dump()] == ["p"]


async def test_context_manager_closes_the_transport() -> None:
    transport = ScriptedTransport(GOOD)
    async with Client(transport) as client:
        await client.server_version()
        assert not transport.is_closed
    assert transport.is_closed


# -- audit


async def test_each_write_is_one_audit_record(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with AuditLog(str(path)) as audit:

        async def written(verb: Verb, *responses: Response | TransportError) -> None:
            client = Client(ScriptedTransport(*responses), audit=audit, identity="syncer/east")
            await verb(client)

        await written(WRITES["create"], response_of(A_POD, 201, audit_id="r1"))
        await written(lambda c: c.get(PODS, "web", "default"), response_of(A_POD))  # not a write, no record
        with pytest.raises(Conflict):
            await written(
                lambda c: c.patch(PODS, A_POD, {}, subresource="status"),
                error_response(Conflict(409, "Conflict", "no")),
            )
        with pytest.raises(TransportError):
            await written(WRITES["delete"], transport_error(maybe_sent=True))
        await written(lambda c: c.delete_collection(BINDINGS), GOOD)
        with pytest.raises(NotLeading):
            await Client(ScriptedTransport(GOOD), audit=audit, fence=fence_of(False)).replace(PODS, A_POD)
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
