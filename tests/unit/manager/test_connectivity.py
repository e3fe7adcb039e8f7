import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tapestry.apis.clusterbindings import ClusterBindingSpec
from tapestry.apis.field_types import SecretReference
from tapestry.apis.permissions import SYNCER_IN_PHYSICAL, Placeholder
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.strict_kubeconfig import strict_access
from tapestry.client.transport import Request, Response
from tapestry.controller.testing import InProcessApi, run, running_clock
from tapestry.kube.errors import Forbidden, Unauthorized
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.kube.resources import NAMESPACES
from tapestry.manager.connectivity import (
    MAX_CONCURRENT_REVIEWS,
    PROBE_CACHE_SECONDS,
    PROBE_TIMEOUT,
    ConnectivityChecker,
    ProbeResult,
    account_in,
    claims_of,
    expiry_in,
    probe_cluster,
)
from tapestry.manager.validation import BindingError, RetryPolicy

EAST = "https://east.example"
SPEC = ClusterBindingSpec(cluster_id="east", secret_ref=SecretReference(name="s", namespace="n"), mount_namespace="m")
EXPIRY = 1_735_689_600

AKubeconfig = Callable[..., bytes]
AToken = Callable[..., str]


class FixedResponseTransport:
    """A transport with one response to everything, after some time."""

    def __init__(self, status: int = 200, body: Object | None = None, *, seconds: float = 0) -> None:
        self.status, self.body, self.seconds = status, msgspec.json.encode(body), seconds
        self.is_closed = False

    async def send(self, request: Request) -> Response:
        await asyncio.sleep(self.seconds)
        return Response(self.status, {}, self.body)

    async def close(self) -> None:
        self.is_closed = True


def error_of(transport: Any, kubeconfig: bytes) -> BindingError:
    with pytest.raises(BindingError) as caught:
        run(probe_cluster(strict_access(kubeconfig), "leased", SYNCER_IN_PHYSICAL, lambda _: transport))
    assert caught.value.reason == "ConnectivityFailed"
    assert caught.value.condition == "Connected"
    assert caught.value.retry is RetryPolicy.BACKOFF
    return caught.value


def test_silent_cluster_times_out_after_half_a_minute(new_kubeconfig: AKubeconfig) -> None:
    transport = FixedResponseTransport(seconds=3600)

    async def examination() -> float:
        with pytest.raises(BindingError, match=f"{EAST} did not respond within 30 s"):
            await probe_cluster(strict_access(new_kubeconfig(EAST)), "leased", SYNCER_IN_PHYSICAL, lambda _: transport)
        return running_clock().monotonic()

    assert run(examination()) == PROBE_TIMEOUT
    assert transport.is_closed


def test_rejected_credentials_ask_for_a_new_kubeconfig(new_kubeconfig: AKubeconfig) -> None:
    refusal = Unauthorized(401, "Unauthorized", "the token has expired")
    message = error_of(FixedResponseTransport(401, refusal.status()), new_kubeconfig(EAST)).message
    assert message == f"{EAST} rejects the credentials: the token has expired; put a new kubeconfig into the Secret"


def test_page_of_another_server_is_an_error(new_kubeconfig: AKubeconfig) -> None:
    assert "not from an API server" in error_of(FixedResponseTransport(200), new_kubeconfig(EAST)).message


def test_probe_limits_the_response_size(new_kubeconfig: AKubeconfig) -> None:
    sent = 0

    async def version(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(request)
        with suppress(ConnectionError):
            while sent < 200 << 20:
                await answer.write(b"x" * (1 << 20))
                sent += 1 << 20
        return answer

    async def examination() -> BindingError:
        app = web.Application()
        app.router.add_get("/version", version)
        async with TestServer(app) as server:
            access = strict_access(new_kubeconfig(str(server.make_url("/"))), allow_insecure=True, allow_loopback=True)
            with pytest.raises(BindingError) as caught:
                await probe_cluster(access, "leased", SYNCER_IN_PHYSICAL, HttpTransport)
        return caught.value

    assert "/version: the response is over 1048576 bytes" in asyncio.run(examination()).message
    assert sent < 20 << 20


class ReviewCountingTransport:
    """A cluster that grants some permissions and counts concurrent reviews."""

    def __init__(self, allowed: Callable[[Object], bool], *, shows_itself: bool = True) -> None:
        self.allowed = allowed
        self.shows_itself = shows_itself
        self.under_way = self.most = 0
        self.reviews: list[Object] = []

    async def send(self, request: Request) -> Response:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(1)
        self.under_way -= 1
        if request.method == "GET":
            return self.seen(request.path)
        attributes = msgspec.json.decode(request.body or b"")["spec"]["resourceAttributes"]
        self.reviews.append(attributes)
        return Response(201, {}, msgspec.json.encode({"status": {"allowed": self.allowed(attributes)}}))

    def seen(self, path: str) -> Response:
        if path.endswith("kube-system") and not self.shows_itself:
            return Response(403, {}, msgspec.json.encode(Forbidden(403, "Forbidden", "no").status()))
        body = {"gitVersion": "v1.34.3", "metadata": {"name": "kube-system", "uid": "one"}, "items": []}
        return Response(200, {}, msgspec.json.encode(body))

    async def close(self) -> None:
        return


def probe_of(cluster: Any, kubeconfig: bytes) -> ProbeResult:
    return run(probe_cluster(strict_access(kubeconfig), "leased", SYNCER_IN_PHYSICAL, lambda _: cluster))


def test_permissions_are_reviewed_with_limited_concurrency(new_kubeconfig: AKubeconfig) -> None:
    cluster = ReviewCountingTransport(lambda _: True)
    assert probe_of(cluster, new_kubeconfig(EAST)) == ProbeResult("v1.34.3", "one", (), None)
    assert cluster.most == MAX_CONCURRENT_REVIEWS
    assert {"verb": "list", "version": "v1", "resource": "nodes"} in cluster.reviews
    assert {"verb": "watch", "version": "v1", "resource": "namespaces", "name": "leased"} in cluster.reviews
    assert not any(review["resource"] == "serviceaccounts" for review in cluster.reviews)


def test_missing_permissions_keep_table_order(new_kubeconfig: AKubeconfig) -> None:
    found = probe_of(ReviewCountingTransport(lambda review: review["resource"] != "nodes"), new_kubeconfig(EAST))
    assert [str(right) for right in found.missing] == ["get nodes", "list nodes", "watch nodes"]


def test_hidden_identity_counts_as_missing_permission(new_kubeconfig: AKubeconfig) -> None:
    found = probe_of(
        ReviewCountingTransport(lambda review: review.get("name") != "kube-system", shows_itself=False),
        new_kubeconfig(EAST),
    )
    assert found.identity is None
    assert [str(right) for right in found.missing] == ["get namespaces kube-system"]


def test_contradictory_cluster_is_retried(new_kubeconfig: AKubeconfig) -> None:
    assert (
        "kube-system"
        in error_of(ReviewCountingTransport(lambda _: True, shows_itself=False), new_kubeconfig(EAST)).message
    )


def test_token_renewal_is_reviewed_only_for_expiring_tokens(new_kubeconfig: AKubeconfig, new_token: AToken) -> None:
    account = "system:serviceaccount:leased:syncer"
    for claims, is_reviewed in (({"sub": account, "exp": EXPIRY}, True), ({"sub": account}, False)):
        cluster = ReviewCountingTransport(lambda _: True)
        found = probe_of(cluster, new_kubeconfig(EAST, new_token(**claims)))
        assert any(review.get("subresource") == "token" for review in cluster.reviews) is is_reviewed
        assert found.expires == (datetime.fromtimestamp(EXPIRY, UTC) if is_reviewed else None)


@pytest.mark.parametrize(
    "token", ["", "opaque", "a.b.c", "a.bnVsbA.c", "a.eyJ.c", "a.\u00fc.c", ".eyJleHAiOjF9.x", "a." + "A" * 9999 + ".c"]
)
def test_opaque_token_is_accepted(token: str) -> None:
    assert claims_of([("Authorization", f"Bearer {token}")]) == {}


def test_invalid_claims_are_ignored() -> None:
    assert claims_of([]) == {}
    for exp in ("soon", None, 1e300, -1e300, float("nan"), [1]):
        assert expiry_in({"exp": exp}) is None
    for sub in ("alice", 7, None):
        assert account_in({"sub": sub, "exp": EXPIRY}) == {}
    account = {"sub": "system:serviceaccount:ns:name", "exp": EXPIRY}
    assert account_in(account) == {Placeholder.SYNCER_ACCOUNT_NAMESPACE: "ns", Placeholder.SYNCER_ACCOUNT: "name"}


def test_good_result_is_cached_until_secret_changes(new_kubeconfig: AKubeconfig) -> None:
    async def count_reviews() -> list[int]:
        api = InProcessApi([NAMESPACES], now=running_clock().now)
        await Client(api.connect()).create(NAMESPACES, object_named("kube-system"))
        connections = []
        examiner = ConnectivityChecker(lambda access: connections.append(access) or api.connect())  # type: ignore[func-returns-value]
        counts = []
        for version, wait in (("1", 0), ("1", PROBE_CACHE_SECONDS - 1), ("2", 0), ("2", PROBE_CACHE_SECONDS)):
            await asyncio.sleep(wait)
            await examiner.check("east", new_secret(new_kubeconfig(EAST), version), SPEC)
            counts.append(len(connections))
        return counts

    assert run(count_reviews()) == [1, 1, 2, 3]


def test_missing_permissions_are_not_cached(new_kubeconfig: AKubeconfig) -> None:
    async def check_twice() -> list[bool]:
        cluster = ReviewCountingTransport(lambda _: value_at(granted, "now", default=False))
        granted: Object = {}
        examiner = ConnectivityChecker(lambda _: cluster)  # type: ignore[arg-type,return-value]
        secret = new_secret(new_kubeconfig(EAST), "1")
        first = await examiner.check("east", secret, SPEC)
        granted["now"] = True
        return [bool(first.missing), bool((await examiner.check("east", secret, SPEC)).missing)]

    assert run(check_twice()) == [True, False]


def new_secret(kubeconfig: bytes, version: str) -> Object:
    encoded = msgspec.json.decode(msgspec.json.encode(kubeconfig))  # base64, as in JSON
    return {"metadata": {"name": "s", "uid": "u", "resourceVersion": version}, "data": {"kubeconfig": encoded}}
