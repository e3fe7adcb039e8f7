"""Large work is done where nobody waits for it, and ends when its request does."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Iterator
from typing import Any

import msgspec
import pytest

from tapestry.apiserver.app import build_connection_limiter, build_inflight_limiter, build_request_handler
from tapestry.apiserver.config import ApiServerConfig
from tapestry.apiserver.requests import Call, User
from tapestry.apiserver.server import ApiResponse
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.apiserver.watches import WatchResponse
from tapestry.apiserver.workers import (
    LARGE_BYTES,
    MEMORY_CAPACITY_BYTES,
    MEMORY_WAIT_BYTES,
    RequestBudget,
    Worker,
    reserve_memory,
    run_if_large,
)
from tapestry.kube.budget import CURRENT_BUDGET, SLICE_UNITS, DeadlineExceeded, charge, checkpoint
from tapestry.kube.objects import Object

from .conftest import ADMIN, Hand

HERE = "/api/v1/namespaces/default"
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TENANT = User("mallory", ("system:authenticated",))
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
JSON, JSON_PATCH = "application/json", "application/json-patch+json"


@pytest.fixture
def worker() -> Iterator[Worker]:
    found = Worker()
    yield found
    found.close()


@pytest.fixture
def desk(call: Hand, worker: Worker) -> "Desk":
    config = ApiServerConfig(backend="memory")
    reception = build_request_handler(
        config, call.server, call.accounts, build_inflight_limiter(config), build_connection_limiter(config)
    )
    return Desk(RequestHandler(reception.server, reception.timeout, worker=worker))


class Desk:
    """A server with a worker, as its clients find it."""

    def __init__(self, reception: RequestHandler) -> None:
        self.reception = reception

    async def __call__(
        self, method: str, path: str, body: Any = None, *, kind: str = JSON, user: User = ADMIN, **query: str
    ) -> ApiResponse:
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body) if body is not None else b""
        headers = {"content-type": kind, "accept": query.pop("accept", JSON)}
        answer = await self.reception.handle(Call(method, path, query, headers, raw, user))
        assert not isinstance(answer, WatchResponse)
        return answer


async def longest_pause(work: Awaitable[ApiResponse]) -> tuple[ApiResponse, float]:
    """The result of some work, and the longest time for which the event loop did nothing else."""
    loop = asyncio.get_running_loop()
    longest, last = 0.0, time.perf_counter()

    def tick() -> None:
        nonlocal longest, last, ticking
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
        ticking = loop.call_later(0.001, tick)

    ticking = loop.call_soon(tick)
    try:
        found = await work
    finally:
        ticking.cancel()
    return found, max(longest, time.perf_counter() - last)


# -- the thread


async def test_small_work_is_done_at_once(worker: Worker) -> None:
    CURRENT_BUDGET.set(RequestBudget(worker, "a"))
    assert await run_if_large(LARGE_BYTES - 1, threading.get_ident) == threading.get_ident()
    assert await run_if_large(LARGE_BYTES, threading.get_ident) != threading.get_ident()


async def test_work_that_turns_out_large_begins_again_in_the_thread(worker: Worker) -> None:
    places = []

    def work() -> str:
        places.append(threading.get_ident())
        charge(SLICE_UNITS + 1)
        return "done"

    CURRENT_BUDGET.set(RequestBudget(worker, "a"))
    assert await run_if_large(0, work) == "done"
    assert places[0] == threading.get_ident() != places[1]
    assert len(places) == 2


async def test_work_of_a_request_that_has_ended_stops(worker: Worker) -> None:
    began, ended = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        try:
            while True:
                checkpoint()
        except DeadlineExceeded:
            ended.set()
            raise

    async def request() -> None:
        asked = RequestBudget(worker, "a")
        asked.set_timeout(3600)
        CURRENT_BUDGET.set(asked)
        try:
            await run_if_large(LARGE_BYTES, work)
        finally:
            await asked.end()

    async with asyncio.TaskGroup() as group:
        asked = group.create_task(request())
        await asyncio.to_thread(began.wait, 10)
        asked.cancel()
    assert await asyncio.to_thread(ended.wait, 10)


async def test_room_is_held_until_the_request_ends(worker: Worker) -> None:
    first, second = RequestBudget(worker, "a"), RequestBudget(worker, "b")
    CURRENT_BUDGET.set(first)
    await reserve_memory(MEMORY_WAIT_BYTES - 1)
    await reserve_memory(MEMORY_CAPACITY_BYTES)
    await reserve_memory(MEMORY_CAPACITY_BYTES)  # it has room already
    CURRENT_BUDGET.set(second)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(reserve_memory(MEMORY_CAPACITY_BYTES))
        await asyncio.sleep(0)
        assert not waiting.done()
        await first.end()
    await second.end()


# -- requests


def pod(name: str, **container: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i", **container}]}}


async def test_a_pod_with_many_ports_blocks_nobody(desk: Desk) -> None:
    ports = [{"containerPort": 80} for _ in range(20_000)]
    answer, pause = await longest_pause(desk("POST", f"{HERE}/pods", pod("p", ports=ports)))
    assert answer.status == 201
    assert pause < 1


async def test_a_role_of_a_million_rights_is_refused_at_once(call: Hand, desk: Desk) -> None:
    reference = {"kind": "ClusterRole", "name": "admin", "apiGroup": "rbac.authorization.k8s.io"}
    subjects = [{"kind": "User", "name": TENANT.name, "apiGroup": "rbac.authorization.k8s.io"}]
    binding = {"metadata": {"name": "tenant"}, "roleRef": reference, "subjects": subjects}
    await call.made(ROLES.replace("roles", "rolebindings"), binding)
    many = {name: [f"{name}{n}" for n in range(60)] for name in ("apiGroups", "resources", "verbs")}
    role = {"metadata": {"name": "r"}, "rules": [{**many, "resourceNames": list("abcde")}]}
    answer, pause = await longest_pause(desk("POST", ROLES, role, user=TENANT))
    assert answer.status == 403
    assert answer.body.count(b"APIGroups") <= 1_000
    assert pause < 1


async def test_a_json_patch_costs_what_it_has_and_not_what_the_object_has(desk: Desk) -> None:
    data = {f"k{n}": "v" for n in range(30_000)}
    await desk("POST", f"{HERE}/configmaps", {"metadata": {"name": "m"}, "data": data})
    patch = [{"op": "add", "path": f"/data/n{n}", "value": "v" * 200} for n in range(8_000)]
    answer, pause = await longest_pause(desk("PATCH", f"{HERE}/configmaps/m", patch, kind=JSON_PATCH))
    assert answer.status == 422  # it is longer than a ConfigMap may be
    assert pause < 1


def definition(**properties: Object) -> Object:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "widgets", "kind": "Widget"}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": "widgets.example.com"}, "spec": spec}


WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"


def widget(**spec: Any) -> Object:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec}


async def test_patterns_of_one_object_share_a_budget(desk: Desk) -> None:
    text = {"type": "string", "pattern": "^(a?){60}a{60}$"}
    await desk("POST", CRDS, definition(texts={"type": "array", "items": text}))
    answer, pause = await longest_pause(desk("POST", WIDGETS, widget(texts=["a" * 90] * 3_000)))
    assert answer.status == 422
    assert b"running out of cost budget" in answer.body
    assert pause < 1


async def test_defaults_do_not_multiply_an_object(desk: Desk) -> None:
    item = {"type": "object", "properties": {"a": {"type": "string", "default": "d" * 100_000}}}
    await desk("POST", CRDS, definition(items={"type": "array", "items": item}))
    answer = await desk("POST", WIDGETS, widget(items=[{}] * 1_000))
    assert (answer.status, msgspec.json.decode(answer.body)["reason"]) == (413, "RequestEntityTooLarge")


async def test_a_small_object_with_an_expensive_rule_blocks_nobody(desk: Desk) -> None:
    rule = {"rule": "self.all(a, self.all(b, a + b >= 0))"}
    numbers = {"type": "array", "maxItems": 500, "items": {"type": "integer"}, "x-kubernetes-validations": [rule]}
    made = await desk("POST", CRDS, definition(numbers=numbers))
    assert made.status == 201, made.body
    answer, pause = await longest_pause(desk("POST", WIDGETS, widget(numbers=list(range(500)))))
    assert answer.status in (201, 422)
    assert pause < 1


async def test_a_request_past_its_time_is_answered_and_its_work_stops(desk: Desk) -> None:
    rule = {"rule": "self.all(a, self.all(b, a + b >= 0))"}
    numbers = {"type": "array", "maxItems": 500, "items": {"type": "integer"}, "x-kubernetes-validations": [rule]}
    await desk("POST", CRDS, definition(numbers=numbers))
    body = msgspec.json.encode(widget(numbers=list(range(500))))
    answer = await desk("POST", WIDGETS, body, timeout="1ms")
    assert (answer.status, msgspec.json.decode(answer.body)["reason"]) == (504, "Timeout")
    began = time.perf_counter()
    assert (
        await desk("POST", f"{HERE}/pods", pod("next", ports=[{"containerPort": n} for n in range(1, 1_000)]))
    ).status == 201
    assert time.perf_counter() - began < 5  # the thread is free again


async def test_long_lists_go_out_in_pieces(desk: Desk) -> None:
    for number in range(10):
        body = {"metadata": {"name": f"m{number}"}, "data": {"a": "x" * 1_000_000}}
        assert (await desk("POST", f"{HERE}/configmaps", body)).status == 201
    answer = await desk("GET", f"{HERE}/configmaps")
    assert answer.stream is not None
    text = b"".join([chunk async for chunk in answer.stream.chunks()])
    found = msgspec.json.decode(text)
    assert [each["metadata"]["name"] for each in found["items"] if "data" in each] == [f"m{n}" for n in range(10)]
    assert found["kind"] == "ConfigMapList"
    assert all("kind" not in each for each in found["items"])
    table = await desk("GET", f"{HERE}/configmaps", accept=TABLE, includeObject="Object")
    assert table.stream is not None
    rows = msgspec.json.decode(b"".join([chunk async for chunk in table.stream.chunks()]))["rows"]
    assert len(rows) == len(found["items"])


async def test_a_collection_is_deleted_a_few_at_a_time(desk: Desk) -> None:
    for number in range(300):
        await desk("POST", f"{HERE}/configmaps", {"metadata": {"name": f"m{number}"}})
    answer, pause = await longest_pause(desk("DELETE", f"{HERE}/configmaps"))
    assert answer.status == 200
    assert pause < 1
    left = msgspec.json.decode((await desk("GET", f"{HERE}/configmaps")).body)["items"]
    assert not [each for each in left if each["metadata"]["name"].startswith("m")]


async def test_a_large_body_that_names_a_field_twice_is_answered(desk: Desk) -> None:
    text = b'{"metadata":{"name":"%s"},"data":{"a":"1","a":"2","long":"' + b"x" * LARGE_BYTES + b'"}}'
    warned = await desk("POST", f"{HERE}/configmaps", text.replace(b"%s", b"warned"))
    assert warned.status == 201
    assert 'duplicate field "data.a"' in warned.headers["Warning"].replace("\\", "")
    strict = await desk("POST", f"{HERE}/configmaps", text.replace(b"%s", b"strict"), fieldValidation="Strict")
    assert strict.status == 400
