"""Large work runs in the worker thread, does not block other requests, and ends with its request."""

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tapestry.apiserver.assembly import build_limiters, build_request_handler
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import Call, User
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.core.workers import (
    LARGE_BYTES,
    MEMORY_CAPACITY_BYTES,
    MEMORY_WAIT_BYTES,
    RequestBudget,
    Worker,
    reserve_memory,
    run_if_large,
)
from tapestry.apiserver.handlers import selections, verbs, views, watches
from tapestry.apiserver.handlers.watches import WatchResponse
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.kube.budget import CURRENT_BUDGET, MAX_UNITS, SLICE_UNITS, DeadlineExceeded, charge, checkpoint
from tapestry.kube.objects import Object
from tapestry.process.work_meter import CURRENT_METER, WorkMeter

from ..conftest import ADMIN, ServerClient

HERE = "/api/v1/namespaces/default"
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TENANT = User("mallory", ("system:authenticated",))
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
JSON, JSON_PATCH = "application/json", "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"


@pytest.fixture
def worker() -> Iterator[Worker]:
    result = Worker()
    yield result
    result.close()


@pytest.fixture
def client(call: ServerClient, worker: Worker) -> "HandlerClient":
    config = ApiServerConfig(backend="memory")
    handler = build_request_handler(config, call.server, call.accounts, build_limiters(config))
    return HandlerClient(RequestHandler(handler.server, handler.timeout, worker=worker))


class HandlerClient:
    """A client of a request handler with a worker."""

    def __init__(self, handler: RequestHandler) -> None:
        self.handler = handler

    async def __call__(
        self, method: str, path: str, body: Any = None, *, kind: str = JSON, user: User = ADMIN, **query: str
    ) -> ApiResponse:
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body) if body is not None else b""
        headers = {"content-type": kind, "accept": query.pop("accept", JSON)}
        response = await self.handler.handle(Call(method, path, query, headers, raw, user))
        assert not isinstance(response, WatchResponse)
        return response


async def longest_pause(work: Awaitable[ApiResponse]) -> tuple[ApiResponse, float]:
    """Return the result, and the longest time in seconds for which the event loop was blocked."""
    loop = asyncio.get_running_loop()
    longest, last = 0.0, time.perf_counter()

    def tick() -> None:
        nonlocal longest, last, ticking
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
        ticking = loop.call_later(0.001, tick)

    ticking = loop.call_soon(tick)
    try:
        result = await work
    finally:
        ticking.cancel()
    return result, max(longest, time.perf_counter() - last)


# -- worker thread


async def test_small_work_runs_on_the_event_loop(worker: Worker) -> None:
    CURRENT_BUDGET.set(RequestBudget(worker, "a"))
    assert await run_if_large(LARGE_BYTES - 1, threading.get_ident) == threading.get_ident()
    assert await run_if_large(LARGE_BYTES, threading.get_ident) != threading.get_ident()


async def test_unexpectedly_large_work_restarts_in_the_thread(worker: Worker) -> None:
    threads = []

    def work() -> str:
        threads.append(threading.get_ident())
        charge(SLICE_UNITS + 1)
        return "done"

    CURRENT_BUDGET.set(RequestBudget(worker, "a"))
    assert await run_if_large(0, work) == "done"
    assert threads[0] == threading.get_ident() != threads[1]
    assert len(threads) == 2


async def test_work_of_ended_request_stops(worker: Worker) -> None:
    started, ended = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        try:
            while True:
                checkpoint()
        except DeadlineExceeded:
            ended.set()
            raise

    async def request() -> None:
        budget = RequestBudget(worker, "a")
        budget.set_timeout(3600)
        CURRENT_BUDGET.set(budget)
        try:
            await run_if_large(LARGE_BYTES, work)
        finally:
            await budget.end()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(request())
        await asyncio.to_thread(started.wait, 10)
        task.cancel()
    assert await asyncio.to_thread(ended.wait, 10)


async def test_memory_is_reserved_until_request_ends(worker: Worker) -> None:
    first, second = RequestBudget(worker, "a"), RequestBudget(worker, "b")
    CURRENT_BUDGET.set(first)
    await reserve_memory(MEMORY_WAIT_BYTES - 1)
    await reserve_memory(MEMORY_CAPACITY_BYTES)
    await reserve_memory(MEMORY_CAPACITY_BYTES)  # it has a reservation already
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


async def test_pod_with_many_ports_does_not_block(client: HandlerClient) -> None:
    ports = [{"containerPort": 80} for _ in range(20_000)]
    response, pause = await longest_pause(client("POST", f"{HERE}/pods", pod("p", ports=ports)))
    assert response.status == 201
    assert pause < 1


async def test_huge_role_is_rejected_quickly(call: ServerClient, client: HandlerClient) -> None:
    reference = {"kind": "ClusterRole", "name": "admin", "apiGroup": "rbac.authorization.k8s.io"}
    subjects = [{"kind": "User", "name": TENANT.name, "apiGroup": "rbac.authorization.k8s.io"}]
    binding = {"metadata": {"name": "tenant"}, "roleRef": reference, "subjects": subjects}
    await call.made(ROLES.replace("roles", "rolebindings"), binding)
    many = {name: [f"{name}{n}" for n in range(60)] for name in ("apiGroups", "resources", "verbs")}
    role = {"metadata": {"name": "r"}, "rules": [{**many, "resourceNames": list("abcde")}]}
    response, pause = await longest_pause(client("POST", ROLES, role, user=TENANT))
    assert response.status == 403
    assert response.body.count(b"APIGroups") <= 1_000
    assert pause < 1


async def test_json_patch_cost_is_independent_of_object(client: HandlerClient) -> None:
    data = {f"k{n}": "v" for n in range(30_000)}
    await client("POST", f"{HERE}/configmaps", {"metadata": {"name": "m"}, "data": data})
    patch = [{"op": "add", "path": f"/data/n{n}", "value": "v" * 200} for n in range(8_000)]
    response, pause = await longest_pause(client("PATCH", f"{HERE}/configmaps/m", patch, kind=JSON_PATCH))
    assert response.status == 422  # over the size limit of a ConfigMap
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


async def test_patterns_of_one_object_share_a_budget(client: HandlerClient) -> None:
    text = {"type": "string", "pattern": "^(a?){60}a{60}$"}
    await client("POST", CRDS, definition(texts={"type": "array", "items": text}))
    response, pause = await longest_pause(client("POST", WIDGETS, widget(texts=["a" * 90] * 3_000)))
    assert response.status == 422
    assert b"running out of cost budget" in response.body
    assert pause < 1


async def test_defaults_cannot_multiply_an_object(client: HandlerClient) -> None:
    item = {"type": "object", "properties": {"a": {"type": "string", "default": "d" * 100_000}}}
    await client("POST", CRDS, definition(items={"type": "array", "items": item}))
    response = await client("POST", WIDGETS, widget(items=[{}] * 1_000))
    assert (response.status, msgspec.json.decode(response.body)["reason"]) == (413, "RequestEntityTooLarge")


async def test_expensive_rule_does_not_block(client: HandlerClient) -> None:
    rule = {"rule": "self.all(a, self.all(b, a + b >= 0))"}
    numbers = {"type": "array", "maxItems": 500, "items": {"type": "integer"}, "x-kubernetes-validations": [rule]}
    created = await client("POST", CRDS, definition(numbers=numbers))
    assert created.status == 201, created.body
    response, pause = await longest_pause(client("POST", WIDGETS, widget(numbers=list(range(500)))))
    assert response.status in (201, 422)
    assert pause < 1


async def test_timed_out_request_stops_its_work(client: HandlerClient) -> None:
    rule = {"rule": "self.all(a, self.all(b, a + b >= 0))"}
    numbers = {"type": "array", "maxItems": 500, "items": {"type": "integer"}, "x-kubernetes-validations": [rule]}
    await client("POST", CRDS, definition(numbers=numbers))
    body = msgspec.json.encode(widget(numbers=list(range(500))))
    response = await client("POST", WIDGETS, body, timeout="1ms")
    assert (response.status, msgspec.json.decode(response.body)["reason"]) == (504, "Timeout")
    started = time.perf_counter()
    assert (
        await client("POST", f"{HERE}/pods", pod("next", ports=[{"containerPort": n} for n in range(1, 1_000)]))
    ).status == 201
    assert time.perf_counter() - started < 5  # the thread is free again


async def test_long_lists_are_sent_in_chunks(client: HandlerClient) -> None:
    for number in range(10):
        body = {"metadata": {"name": f"m{number}"}, "data": {"a": "x" * 1_000_000}}
        assert (await client("POST", f"{HERE}/configmaps", body)).status == 201
    response = await client("GET", f"{HERE}/configmaps")
    assert response.stream is not None
    text = b"".join([chunk async for chunk in response.stream.chunks()])
    result = msgspec.json.decode(text)
    assert [each["metadata"]["name"] for each in result["items"] if "data" in each] == [f"m{n}" for n in range(10)]
    assert result["kind"] == "ConfigMapList"
    assert all("kind" not in each for each in result["items"])
    table = await client("GET", f"{HERE}/configmaps", accept=TABLE, includeObject="Object")
    assert table.stream is not None
    rows = msgspec.json.decode(b"".join([chunk async for chunk in table.stream.chunks()]))["rows"]
    assert len(rows) == len(result["items"])


async def test_collection_is_deleted_concurrently_without_blocking(client: HandlerClient) -> None:
    for number in range(300):
        await client("POST", f"{HERE}/configmaps", {"metadata": {"name": f"m{number}"}})
    response, pause = await longest_pause(client("DELETE", f"{HERE}/configmaps"))
    assert response.status == 200
    assert pause < 1
    left = msgspec.json.decode((await client("GET", f"{HERE}/configmaps")).body)["items"]
    assert not [each for each in left if each["metadata"]["name"].startswith("m")]


async def test_large_body_with_duplicate_field_is_answered(client: HandlerClient) -> None:
    text = b'{"metadata":{"name":"%s"},"data":{"a":"1","a":"2","long":"' + b"x" * LARGE_BYTES + b'"}}'
    warned = await client("POST", f"{HERE}/configmaps", text.replace(b"%s", b"warned"))
    assert warned.status == 201
    assert 'duplicate field "data.a"' in warned.headers["Warning"].replace("\\", "")
    strict = await client("POST", f"{HERE}/configmaps", text.replace(b"%s", b"strict"), fieldValidation="Strict")
    assert strict.status == 400


# -- large stored objects


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    """Threads that have called the functions that decode stored objects, for the object called large."""
    result: dict[str, set[int]] = {}

    def record(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*arguments: Any) -> Any:
            if "'large'" in repr(arguments) or '"large"' in repr(arguments):
                result.setdefault(name, set()).add(threading.get_ident())
            return function(*arguments)

        return recorded

    monkeypatch.setattr(verbs, "DECODER", SimpleNamespace(decode=record("verbs", verbs.DECODER.decode)))
    for module, name in ((selections, "field_text"), (views, "encode_object"), (watches, "last_matching_object")):
        monkeypatch.setattr(module, name, record(name, getattr(module, name)))
    return result


async def test_large_object_is_decoded_in_the_thread(client: HandlerClient, threads: dict[str, set[int]]) -> None:
    large = {"metadata": {"name": "large", "labels": {"a": "b"}}, "data": {"a": "x" * 1_000_000}}
    assert (await client("POST", f"{HERE}/configmaps", large)).status == 201
    responses = []
    for query in ({"accept": TABLE}, {"labelSelector": "a=b"}, {"fieldSelector": "metadata.name!=x"}):
        headers = {"accept": query.pop("accept", JSON)}
        call = Call("GET", f"{HERE}/configmaps", {"watch": "1", "resourceVersion": "", **query}, headers, b"", ADMIN)
        response = await client.handler.handle(call)
        assert isinstance(response, WatchResponse)
        responses.append(response)
    streams = [each.chunks() for each in responses]
    for stream in streams:
        while b"large" not in await anext(stream):
            pass
    assert (await client("POST", f"{HERE}/configmaps", large)).status == 409
    assert await found_names(client, fieldSelector="metadata.namespace!=x") == ["large"]
    assert await found_names(client, fieldSelector="metadata.namespace=x") == []
    patch = {"metadata": {"labels": {"a": "c"}}}
    assert (await client("PATCH", f"{HERE}/configmaps/large", patch, kind=MERGE_PATCH)).status == 200
    for stream in streams:
        assert b"large" in await anext(stream)
        await stream.aclose()
    assert (await client("DELETE", f"{HERE}/configmaps/large")).status == 200
    assert set(threads) == {"verbs", "field_text", "encode_object", "last_matching_object"}
    assert not [name for name, found in threads.items() if threading.get_ident() in found]


async def found_names(client: HandlerClient, **query: str) -> list[str]:
    found = msgspec.json.decode((await client("GET", f"{HERE}/configmaps", **query)).body)
    return [each["metadata"]["name"] for each in found["items"]]


# -- servers that share threads


async def test_long_work_of_one_server_does_not_block_another() -> None:
    worker, release = Worker(2), threading.Event()
    first, second, interval = worker.share("a"), worker.share("b"), sys.getswitchinterval()
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(first.run("root", release.wait))
        await asyncio.sleep(0)
        assert await second.run("root", lambda: 7) == 7
        release.set()
    worker.close()
    assert sys.getswitchinterval() == interval


async def test_request_has_less_work_if_servers_share_threads(worker: Worker) -> None:
    assert RequestBudget(worker, "a").remaining == MAX_UNITS
    assert 0 < RequestBudget(worker.share("a"), "a").remaining < MAX_UNITS


async def test_time_in_thread_is_measured(worker: Worker) -> None:
    meter = WorkMeter()
    token = CURRENT_METER.set(meter)
    await worker.run("a", lambda: sum(range(100_000)))
    CURRENT_METER.reset(token)
    assert meter.thread_ns > 0
