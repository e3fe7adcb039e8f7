"""Request handling around the server: timeouts, metrics, health checks and OpenID documents."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from tapestry.apiserver.assembly import build_limiters, build_request_handler
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import Call, Target, User
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.core.store import StorageError
from tapestry.apiserver.serving.health import HealthHandlers, ping
from tapestry.apiserver.serving.request_handler import RequestHandler, timeout_of
from tapestry.apiserver.storage.local_store import LocalStore
from tapestry.apiserver.storage.log import Entry, MemoryLog
from tapestry.kube.errors import BadRequest
from tapestry.kube.objects import Object

from ..conftest import ADMIN, ServerClient

MAPS = "/api/v1/namespaces/default/configmaps"
ACCOUNT = User(
    "system:serviceaccount:a:b", ("system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated")
)
ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


@dataclass(frozen=True)
class HandlerClient:
    """A client of a request handler."""

    handler: RequestHandler

    async def __call__(self, method: str, uri: str, body: Object | None = None, user: User = ADMIN) -> ApiResponse:
        path, _, query = uri.partition("?")
        pairs = dict(each.partition("=")[::2] for each in query.split("&") if each)
        raw = msgspec.json.encode(body) if body is not None else b""
        headers = {"content-type": "application/json"}
        response = await self.handler.handle(Call(method, path, pairs, headers, raw, user, uri=uri))
        assert isinstance(response, ApiResponse)
        return response


@pytest.fixture
def client(call: ServerClient) -> HandlerClient:
    config = ApiServerConfig(backend="memory")
    return HandlerClient(build_request_handler(config, call.server, call.accounts, build_limiters(config)))


def text(response: ApiResponse) -> tuple[int, str]:
    return response.status, response.body.decode()


# -- timeouts


@pytest.mark.parametrize(
    ("requested", "seconds"), [("", 60), ("5s", 5), ("100ms", 0.1), ("2h", 60), ("0s", 60), ("-1s", 60)]
)
def test_timeout_parameter_can_only_shorten(requested: str, seconds: float) -> None:
    assert timeout_of(Call("GET", "/", {"timeout": requested} if requested else {}, {}, b"", ADMIN), 60) == seconds


def test_invalid_timeout_is_rejected() -> None:
    with pytest.raises(BadRequest, match="invalid timeout specified in the request URL"):
        timeout_of(Call("GET", "/", {"timeout": "soon"}, {}, b"", ADMIN), 60)


async def test_slow_response_times_out_as_in_kubernetes(call: ServerClient, client: HandlerClient) -> None:
    async def never(_: Call, __: Target) -> ApiResponse:
        await asyncio.Event().wait()
        raise AssertionError

    server = replace(call.server, special_handlers={("configmaps", ""): never})
    response = await HandlerClient(replace(client.handler, server=server, timeout=0.01))("GET", MAPS)
    found = msgspec.json.decode(response.body)
    assert (response.status, found["reason"]) == (504, "Timeout")
    assert found["message"] == "Timeout: request did not complete within the allotted timeout"


class SlowDisk(MemoryLog):
    """A log whose writes block until `done` is set."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def append(self, entries: Sequence[Entry]) -> None:
        self.done.wait()
        super().append(entries)


async def test_started_write_completes_after_timeout(call: ServerClient, client: HandlerClient) -> None:
    store, log = call.server.verbs.store, SlowDisk()
    assert isinstance(store, LocalStore)
    store._log = log
    impatient = HandlerClient(replace(client.handler, timeout=0.01))
    watch = store.watch("configmaps", "default", "slow")
    assert (await impatient("POST", MAPS, {"metadata": {"name": "slow"}})).status == 504
    assert (await client("GET", f"{MAPS}/slow")).status == 404
    log.done.set()
    await watch.next_events()
    assert (await client("GET", f"{MAPS}/slow")).status == 200


# -- health


async def test_health_is_reported_briefly_or_verbosely(client: HandlerClient) -> None:
    assert text(await client("GET", "/readyz")) == (200, "ok")
    assert text(await client("GET", "/livez?verbose")) == (
        200,
        "[+]ping ok\n[+]storage ok\n[+]poststarthook/rbac/bootstrap-roles ok\nlivez check passed\n",
    )
    assert text(await client("GET", "/readyz?verbose&exclude=ping&exclude=nothing")) == (
        200,
        "[+]ping excluded: ok\n[+]storage ok\n[+]poststarthook/rbac/bootstrap-roles ok\n"
        'warn: some health checks cannot be excluded: no matches for "nothing"\nreadyz check passed\n',
    )
    assert text(await client("GET", "/healthz/poststarthook/rbac/bootstrap-roles")) == (200, "ok")
    assert (await client("GET", "/healthz/nothing")).status == 404
    assert (await client("GET", "/readyz", user=ANONYMOUS)).status == 200
    assert (await client("POST", "/readyz")).status == 405


async def test_failed_check_withholds_its_reason() -> None:
    async def wrong() -> str:
        return "the cat sat on it"

    async def get(path: str) -> ApiResponse:
        return await HealthHandlers({"ping": ping, "cat": wrong}).handle(
            Call("GET", path, {}, {}, b"", ADMIN, uri=path)
        )

    assert text(await get("/healthz")) == (
        500,
        "[+]ping ok\n[-]cat failed: reason withheld\nhealthz check failed\n",
    )
    assert text(await get("/healthz/cat")) == (500, "internal server error: the cat sat on it\n")


class FullDisk(MemoryLog):
    """A log whose writes fail while `is_full` is set."""

    is_full = False

    def append(self, entries: Sequence[Entry]) -> None:
        if self.is_full:
            raise StorageError("log: nothing was written: log is full")
        super().append(entries)


async def test_full_disk_is_unhealthy_until_writes_succeed(call: ServerClient, client: HandlerClient) -> None:
    store = call.server.verbs.store
    assert isinstance(store, LocalStore)
    log = FullDisk()
    store._log = log
    log.is_full = True
    response = await client("POST", MAPS, {"metadata": {"name": "a"}})
    assert (response.status, b"log is full" in response.body) == (500, True)
    assert (await client("GET", f"{MAPS}/a")).status == 404
    assert text(await client("GET", "/readyz")) == (
        500,
        "[+]ping ok\n[-]storage failed: reason withheld\n[+]poststarthook/rbac/bootstrap-roles ok\n"
        "readyz check failed\n",
    )
    log.is_full = False
    assert text(await client("GET", "/readyz")) == (200, "ok")
    assert (await client("POST", MAPS, {"metadata": {"name": "a"}})).status == 201


# -- metrics


async def test_metrics_have_kubernetes_names(client: HandlerClient) -> None:
    await client("POST", MAPS, {"metadata": {"name": "counted"}})
    await client("GET", f"{MAPS}/nowhere")
    response = await client("GET", "/metrics")
    lines = response.body.decode().splitlines()
    labels = 'component="apiserver",dry_run="",group="",resource="configmaps",scope="resource",subresource=""'
    assert any(line.startswith(f'apiserver_request_total{{code="201",{labels},verb="POST"') for line in lines)
    assert any(line.startswith(f'apiserver_request_total{{code="404",{labels},verb="GET"') for line in lines)
    assert any(line.startswith(f"apiserver_request_duration_seconds_count{{{labels}") for line in lines)
    assert 'apiserver_storage_objects{resource="configmaps"} 1.0' in lines
    assert 'apiserver_current_inflight_requests{request_kind="mutating"} 0.0' in lines
    assert response.content_type.startswith("text/plain")


async def test_metrics_require_authorization(client: HandlerClient) -> None:
    response = await client("GET", "/metrics", user=User("bob", ("system:authenticated",)))
    assert (response.status, b'cannot get path \\"/metrics\\"' in response.body) == (403, True)
    assert (await client("GET", "/metrics", user=User("prometheus", ("system:monitoring",)))).status == 200


async def test_watch_is_counted_while_it_lasts(client: HandlerClient) -> None:
    async def watches() -> Any:
        lines = (await client("GET", "/metrics")).body.decode().splitlines()
        name = 'apiserver_longrunning_requests{component="apiserver",group="",resource="podtemplates"'
        return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)]

    watch = await client.handler.handle(Call("GET", "/api/v1/podtemplates", {"watch": "1"}, {}, b"", ADMIN))
    assert not isinstance(watch, ApiResponse)
    assert await watches() == [1.0]
    watch.end()
    assert await watches() == [0.0]


# -- OpenID discovery


async def test_issuer_and_keys_are_published_for_accounts(client: HandlerClient) -> None:
    response = await client("GET", "/.well-known/openid-configuration", user=ACCOUNT)
    assert msgspec.json.decode(response.body) == {
        "issuer": "https://here",
        "jwks_uri": "https://here/openid/v1/jwks",
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    }
    response = await client("GET", "/openid/v1/jwks", user=ACCOUNT)
    [key] = msgspec.json.decode(response.body)["keys"]
    assert (response.content_type, key["kty"], key["use"]) == ("application/jwk-set+json", "EC", "sig")
    assert (await client("GET", "/openid/v1/jwks", user=ANONYMOUS)).status == 403
    assert (await client("GET", "/openid/v2")).status == 404
