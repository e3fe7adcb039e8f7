"""Protection against webhooks and kubelets at forbidden addresses or with hostile responses."""

import asyncio
import gzip
import ipaddress
import logging
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from tapestry.apiserver.core import egress
from tapestry.apiserver.core.config import ApiServerConfig, Egress
from tapestry.apiserver.core.egress import (
    AddressNotAllowed,
    EgressPolicy,
    checked_session,
    egress_policy,
    embedded_address,
    is_routable,
)

from .. import hooks
from ..conftest import ServerClient

GROUP = "/apis/admissionregistration.k8s.io/v1"
MAPS, PODS = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/pods"
FORBIDDEN = [
    *("169.254.169.254", "169.254.0.1", "0.0.0.0", "224.0.0.1", "100.100.100.200", "168.63.129.16"),
    *("fe80::1", "::", "ff02::1", "fd00:ec2::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1"),
]


@pytest.mark.parametrize("address", FORBIDDEN)
def test_metadata_service_addresses_are_forbidden(address: str) -> None:
    assert not is_routable(embedded_address(ipaddress.ip_address(address)))
    with pytest.raises(AddressNotAllowed):
        EgressPolicy().check_webhook(f"[{address}]" if ":" in address else address)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.0.0.1", "192.168.1.1", "8.8.8.8", "2001:4860::8888"])
def test_other_addresses_are_allowed(address: str) -> None:
    EgressPolicy().check_webhook(address)
    EgressPolicy().check_kubelet(address)


class FixedResolver(AbstractResolver):
    """Resolve every name to one address."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [ResolveResult(hostname=host, host=self._address, port=port, family=family, proto=0, flags=0)]

    async def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("name", ["a.example.com", "169.254.169.254"])
async def test_address_is_checked_when_it_is_dialed(name: str) -> None:
    """A name that resolves to a forbidden address is refused like the address itself."""
    async with checked_session(EgressPolicy().check_webhook, FixedResolver("169.254.169.254")) as session:
        with pytest.raises(aiohttp.ClientConnectorError) as failure:
            await session.get(f"http://{name}:1/")
    assert isinstance(failure.value.os_error, AddressNotAllowed)


THIS_MACHINE = ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::7f00:1"]
STRICT = ApiServerConfig(
    egress=Egress(strict=True, allowed_cidrs=["10.1.0.0/16"], denied_cidrs=["10.96.0.1/32", "10.1.9.0/24"]),
    proxy_allowed_cidrs=["10.2.0.0/16"],
    aggregation_allow_host=False,
)


@pytest.mark.parametrize("address", [*THIS_MACHINE, *FORBIDDEN, "10.96.0.1", "::ffff:10.96.0.1", "10.1.9.9"])
@pytest.mark.parametrize("role", ["webhook", "api_server", "kubelet", "pod"])
def test_strict_rule_denies_machine_and_denied_ranges(role: str, address: str) -> None:
    with pytest.raises(AddressNotAllowed):
        getattr(egress_policy(STRICT), f"check_{role}")(address)


def test_strict_rule_denies_own_addresses_of_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "is_of_this_machine", lambda address: str(address) == "203.0.113.1")
    for check in (egress_policy(STRICT).check_webhook, egress_policy(STRICT).check_api_server):
        with pytest.raises(AddressNotAllowed):
            check("203.0.113.1")
        check("203.0.113.2")


def test_strict_rule_allows_kubelets_and_pods_only_in_ranges() -> None:
    policy = egress_policy(STRICT)
    for check in (policy.check_kubelet, policy.check_pod):
        check("10.1.0.5")
        with pytest.raises(AddressNotAllowed):
            check("203.0.113.2")
    policy.check_pod("10.2.0.5")
    with pytest.raises(AddressNotAllowed):
        policy.check_kubelet("10.2.0.5")


def test_ranges_can_be_allowed_in_strict_rule() -> None:
    local = egress_policy(ApiServerConfig(egress=Egress(strict=True, allowed_cidrs=["127.0.0.0/8"])))
    for check in (local.check_webhook, local.check_api_server, local.check_kubelet, local.check_pod):
        check("127.0.0.1")


def test_invalid_range_names_its_option() -> None:
    with pytest.raises(ValueError, match=r"egress\.deniedCidrs: .*10\.0\.0\.1/8"):
        egress_policy(ApiServerConfig(egress=Egress(denied_cidrs=["10.0.0.1/8"])))


def configuration(client: Any, **fields: Any) -> Any:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["*"]}
    webhook = {
        "name": "one.example.com",
        "rules": [rule],
        "clientConfig": client,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        **fields,
    }
    return {"metadata": {"name": "hooks"}, "webhooks": [webhook]}


async def failure_message(call: ServerClient, client: Any) -> str:
    """The error of a write that the webhook is called for."""
    await call.made(f"{GROUP}/validatingwebhookconfigurations", configuration(client))
    status, response = await call("POST", MAPS, {"metadata": {"name": "m"}})
    assert status == 500, response
    return str(response["message"])


@pytest.mark.parametrize(
    "host",
    [*(f"[{each}]" if ":" in each else each for each in FORBIDDEN), "2852039166", "0xa9fea9fe", "169.254.43518"],
)
async def test_webhook_at_forbidden_address_is_not_called(call: ServerClient, host: str) -> None:
    message = await failure_message(call, {"url": f"https://{host}/latest"})
    assert "address not allowed" in message or "is not a canonical IPv4 address" in message


async def test_service_at_forbidden_address_is_not_called(call: ServerClient) -> None:
    service = {"metadata": {"name": "s"}, "spec": {"type": "ExternalName", "externalName": "169.254.169.254"}}
    await call.made("/api/v1/namespaces/default/services", service)
    client = {"service": {"name": "s", "namespace": "default", "path": "/x"}}
    assert "address not allowed" in await failure_message(call, client)


async def test_kubelet_at_forbidden_address_is_not_called(call: ServerClient) -> None:
    await call.made("/api/v1/nodes", {"metadata": {"name": "n"}})
    addresses = {"status": {"addresses": [{"type": "InternalIP", "address": "169.254.169.254"}]}}
    assert (await call("PATCH", "/api/v1/nodes/n/status", addresses, kind="application/merge-patch+json"))[0] == 200
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}}
    await call.made(PODS, pod)
    status, response = await call("GET", f"{PODS}/p/log")
    assert (status, "address not allowed" in response["message"]) == (500, True)


DEEP = b'{"response":{"status":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}}"


def redirect(_: Any) -> web.Response:
    return web.Response(status=302, headers={"Location": "https://127.0.0.1:1/"})


def gzip_bomb(_: Any) -> web.Response:
    return web.Response(body=gzip.compress(b" " * (64 << 20)), headers={"Content-Encoding": "gzip"})


def long_response(_: Any) -> web.Response:
    return web.Response(body=b" " * (40 << 20))


def deep_json(_: Any) -> web.Response:
    return web.Response(body=DEEP)


def deep_json_error(_: Any) -> web.Response:
    return web.Response(status=500, body=DEEP)


@pytest.mark.parametrize(
    ("say", "error"),
    [
        (redirect, "status code 302"),
        (gzip_bomb, "json parse error"),
        (long_response, "is longer than"),
        (deep_json, "json parse error"),
        (deep_json_error, "an error on the server"),
    ],
)
async def test_hostile_webhook_response_is_short_error(
    call: ServerClient, tmp_path: Path, say: Any, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with hooks.listening(tmp_path, say) as hook:
        message = await failure_message(call, hook.client)
    assert error in message
    assert len(message) < 10_000
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
    assert len(hook.requests) == 1


async def test_session_stores_no_cookies() -> None:
    seen: list[Any] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        seen.append((dict(request.cookies), request.headers["Accept-Encoding"]))
        response = web.Response()
        response.set_cookie("a", "b")
        return response

    runner = web.ServerRunner(web.Server(handle, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with checked_session(EgressPolicy().check_webhook) as session:
            for _ in range(2):
                async with session.get(f"http://localhost:{runner.addresses[0][1]}/"):
                    pass
    finally:
        await runner.cleanup()
    assert seen == [({}, "identity")] * 2


async def test_sessions_resolve_names_in_threads_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of the event loop are shared by all servers of a process."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the event loop looked up a name")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fail)
    async with checked_session(EgressPolicy(is_strict=True).check_webhook) as session:
        with pytest.raises(aiohttp.ClientConnectorError) as failure:
            await session.get("http://localhost:1/")
    assert isinstance(failure.value.os_error, AddressNotAllowed)
