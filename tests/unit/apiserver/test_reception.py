"""Around every answer: its time, its counts, and the pages on which a server speaks of itself."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from tapestry.apiserver.app import build_inflight_limiter, build_request_handler
from tapestry.apiserver.config import ApiServerConfig
from tapestry.apiserver.requests import Call, Target, User
from tapestry.apiserver.server import ApiResponse
from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter
from tapestry.apiserver.serving.health import HealthHandlers, ping
from tapestry.apiserver.serving.request_handler import RequestHandler, timeout_of
from tapestry.apiserver.storage.local_store import LocalStore
from tapestry.apiserver.storage.log import Entry, StorageError
from tapestry.apiserver.storage.memory_log import MemoryLog
from tapestry.kube.errors import BadRequest
from tapestry.kube.objects import Object

from .conftest import ADMIN, Hand

MAPS = "/api/v1/namespaces/default/configmaps"
ACCOUNT = User(
    "system:serviceaccount:a:b", ("system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated")
)
NOBODY = User("system:anonymous", ("system:unauthenticated",))


@dataclass(frozen=True)
class Desk:
    """A reception, and a hand to call it with."""

    reception: RequestHandler

    async def __call__(self, method: str, uri: str, body: Object | None = None, user: User = ADMIN) -> ApiResponse:
        path, _, query = uri.partition("?")
        pairs = dict(each.partition("=")[::2] for each in query.split("&") if each)
        raw = msgspec.json.encode(body) if body is not None else b""
        headers = {"content-type": "application/json"}
        answer = await self.reception.handle(Call(method, path, pairs, headers, raw, user, uri=uri))
        assert isinstance(answer, ApiResponse)
        return answer


@pytest.fixture
def desk(call: Hand) -> Desk:
    config = ApiServerConfig(backend="memory")
    return Desk(
        build_request_handler(config, call.server, call.accounts, build_inflight_limiter(config), ConnectionLimiter())
    )


def text(answer: ApiResponse) -> tuple[int, str]:
    return answer.status, answer.body.decode()


# -- time


@pytest.mark.parametrize(
    ("asked", "seconds"), [("", 60), ("5s", 5), ("100ms", 0.1), ("2h", 60), ("0s", 60), ("-1s", 60)]
)
def test_a_call_may_ask_for_less_time_and_not_for_more(asked: str, seconds: float) -> None:
    assert timeout_of(Call("GET", "/", {"timeout": asked} if asked else {}, {}, b"", ADMIN), 60) == seconds


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(BadRequest, match="invalid timeout specified in the request URL"):
        timeout_of(Call("GET", "/", {"timeout": "soon"}, {}, b"", ADMIN), 60)


async def test_an_answer_that_takes_too_long_is_a_timeout_in_kubernetes_words(call: Hand, desk: Desk) -> None:
    async def never(_: Call, __: Target) -> ApiResponse:
        await asyncio.Event().wait()
        raise AssertionError

    server = replace(call.server, special={("configmaps", ""): never})
    answer = await Desk(replace(desk.reception, server=server, seconds=0.01))("GET", MAPS)
    found = msgspec.json.decode(answer.body)
    assert (answer.status, found["reason"]) == (504, "Timeout")
    assert found["message"] == "Timeout: request did not complete within the allotted timeout"


class SlowDisk(MemoryLog):
    """A log that takes its time."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def append(self, entries: Sequence[Entry]) -> None:
        self.done.wait()
        super().append(entries)


async def test_a_write_that_was_begun_is_finished_though_nobody_waits_for_it(call: Hand, desk: Desk) -> None:
    store, disk = call.server.verbs.store, SlowDisk()
    assert isinstance(store, LocalStore)
    store._log = disk
    hasty = Desk(replace(desk.reception, seconds=0.01))
    coming = store.watch("configmaps", "default", "slow")
    assert (await hasty("POST", MAPS, {"metadata": {"name": "slow"}})).status == 504
    assert (await desk("GET", f"{MAPS}/slow")).status == 404
    disk.done.set()
    await coming.next_events()
    assert (await desk("GET", f"{MAPS}/slow")).status == 200


# -- health


async def test_health_is_said_in_a_word_or_check_by_check(desk: Desk) -> None:
    assert text(await desk("GET", "/readyz")) == (200, "ok")
    assert text(await desk("GET", "/livez?verbose")) == (
        200,
        "[+]ping ok\n[+]storage ok\n[+]poststarthook/rbac/bootstrap-roles ok\nlivez check passed\n",
    )
    assert text(await desk("GET", "/readyz?verbose&exclude=ping&exclude=nothing")) == (
        200,
        "[+]ping excluded: ok\n[+]storage ok\n[+]poststarthook/rbac/bootstrap-roles ok\n"
        'warn: some health checks cannot be excluded: no matches for "nothing"\nreadyz check passed\n',
    )
    assert text(await desk("GET", "/healthz/poststarthook/rbac/bootstrap-roles")) == (200, "ok")
    assert (await desk("GET", "/healthz/nothing")).status == 404
    assert (await desk("GET", "/readyz", user=NOBODY)).status == 200
    assert (await desk("POST", "/readyz")).status == 405


async def test_a_check_that_fails_withholds_its_reason_from_strangers() -> None:
    async def wrong() -> str:
        return "the cat sat on it"

    async def asked(path: str) -> ApiResponse:
        return await HealthHandlers({"ping": ping, "cat": wrong}).handle(
            Call("GET", path, {}, {}, b"", ADMIN, uri=path)
        )

    assert text(await asked("/healthz")) == (
        500,
        "[+]ping ok\n[-]cat failed: reason withheld\nhealthz check failed\n",
    )
    assert text(await asked("/healthz/cat")) == (500, "internal server error: the cat sat on it\n")


class FullDisk(MemoryLog):
    """A log that takes nothing for a while."""

    is_full = False

    def append(self, entries: Sequence[Entry]) -> None:
        if self.is_full:
            raise StorageError("log: nothing was written: disk is full")
        super().append(entries)


async def test_a_server_whose_disk_is_full_is_unwell_until_there_is_room_again(call: Hand, desk: Desk) -> None:
    store = call.server.verbs.store
    assert isinstance(store, LocalStore)
    disk = FullDisk()
    store._log = disk
    disk.is_full = True
    answer = await desk("POST", MAPS, {"metadata": {"name": "a"}})
    assert (answer.status, b"disk is full" in answer.body) == (500, True)
    assert (await desk("GET", f"{MAPS}/a")).status == 404
    assert text(await desk("GET", "/readyz")) == (
        500,
        "[+]ping ok\n[-]storage failed: reason withheld\n[+]poststarthook/rbac/bootstrap-roles ok\n"
        "readyz check failed\n",
    )
    disk.is_full = False
    assert text(await desk("GET", "/readyz")) == (200, "ok")
    assert (await desk("POST", MAPS, {"metadata": {"name": "a"}})).status == 201


# -- metrics


async def test_requests_and_objects_are_counted_under_kubernetes_names(desk: Desk) -> None:
    await desk("POST", MAPS, {"metadata": {"name": "counted"}})
    await desk("GET", f"{MAPS}/nowhere")
    answer = await desk("GET", "/metrics")
    lines = answer.body.decode().splitlines()
    labels = 'component="apiserver",dry_run="",group="",resource="configmaps",scope="resource",subresource=""'
    assert any(line.startswith(f'apiserver_request_total{{code="201",{labels},verb="POST"') for line in lines)
    assert any(line.startswith(f'apiserver_request_total{{code="404",{labels},verb="GET"') for line in lines)
    assert any(line.startswith(f"apiserver_request_duration_seconds_count{{{labels}") for line in lines)
    assert 'apiserver_storage_objects{resource="configmaps"} 1.0' in lines
    assert 'apiserver_current_inflight_requests{request_kind="mutating"} 0.0' in lines
    assert answer.content_type.startswith("text/plain")


async def test_metrics_are_for_those_who_may_read_them(desk: Desk) -> None:
    answer = await desk("GET", "/metrics", user=User("bob", ("system:authenticated",)))
    assert (answer.status, b'cannot get path \\"/metrics\\"' in answer.body) == (403, True)
    assert (await desk("GET", "/metrics", user=User("prometheus", ("system:monitoring",)))).status == 200


async def test_a_watch_counts_while_it_lasts(desk: Desk) -> None:
    async def watches() -> Any:
        lines = (await desk("GET", "/metrics")).body.decode().splitlines()
        name = 'apiserver_longrunning_requests{component="apiserver",group="",resource="podtemplates"'
        return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)]

    found = await desk.reception.handle(Call("GET", "/api/v1/podtemplates", {"watch": "1"}, {}, b"", ADMIN))
    assert not isinstance(found, ApiResponse)
    assert await watches() == [1.0]
    found.end()
    assert await watches() == [0.0]


# -- tokens for others


async def test_the_issuer_and_its_keys_are_published_for_accounts(desk: Desk) -> None:
    answer = await desk("GET", "/.well-known/openid-configuration", user=ACCOUNT)
    assert msgspec.json.decode(answer.body) == {
        "issuer": "https://here",
        "jwks_uri": "https://here/openid/v1/jwks",
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    }
    answer = await desk("GET", "/openid/v1/jwks", user=ACCOUNT)
    [key] = msgspec.json.decode(answer.body)["keys"]
    assert (answer.content_type, key["kty"], key["use"]) == ("application/jwk-set+json", "EC", "sig")
    assert (await desk("GET", "/openid/v1/jwks", user=NOBODY)).status == 403
    assert (await desk("GET", "/openid/v2")).status == 404
