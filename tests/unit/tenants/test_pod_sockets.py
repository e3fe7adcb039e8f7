"""Pods of tenants that their planes call: webhooks, conversions, and servers behind proxy subresources."""

import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from tapestry.apis import keys
from tapestry.apis.field_types import SecretReference
from tapestry.apis.hostclusters import HostClusterSpec
from tapestry.apiserver.core.egress import EgressPolicy, parse_networks
from tapestry.client.transport import Request
from tapestry.kube.errors import ServerError
from tapestry.kube.objects import Object, name_of, object_named
from tapestry.kube.resources import CONFIGMAPS, CRDS, ENDPOINT_SLICES, NAMESPACES, NODES, Resource
from tapestry.syncer.cache_transforms import twin_view, virtual_pod
from tapestry.tenants.pod_sockets import PAUSE_SECONDS, PodTunnels, TenantPods

from ..apiserver.hooks import Hook, allowing, denying
from .called_pods import CalledPods, called_pods

HOOKS = Resource(
    "admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False
)
WIDGETS = {version: Resource("shop.example.com", version, "Widget", "widgets") for version in ("v1", "v2")}


@pytest.fixture
async def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CalledPods]:
    async with called_pods(tmp_path, monkeypatch) as found:
        yield found


def reference(name: str = "guard", namespace: str = "default", path: str = "/hook") -> Object:
    return {"name": name, "namespace": namespace, "path": path, "port": 443}


async def add_webhook(pods: CalledPods, client: Object, kind: str = "configmaps") -> None:
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": [kind], "operations": ["CREATE"]}
    hook = {
        "name": "guard.example.com",
        "rules": [rule],
        "clientConfig": client,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 10,
    }
    await pods.client.create(HOOKS, {**object_named("guard"), "webhooks": [hook]})


async def failure(pods: CalledPods) -> str:
    """Return the error of a write that a webhook must admit."""
    with pytest.raises(ServerError) as raised:
        await pods.client.create(CONFIGMAPS, object_named("settings", "default"))
    return raised.value.message


def widget_definition(hook: Hook) -> Object:
    versions = [
        {
            "name": version,
            "served": True,
            "storage": version == "v1",
            "schema": {
                "openAPIV3Schema": {
                    "type": "object",
                    "properties": {"size": {"type": "integer"}, "length": {"type": "integer"}},
                }
            },
        }
        for version in WIDGETS
    ]
    client = {"service": reference(path="/convert"), "caBundle": hook.bundle}
    conversion = {
        "strategy": "Webhook",
        "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]},
    }
    spec = {
        "group": "shop.example.com",
        "scope": "Namespaced",
        "names": {"kind": "Widget", "plural": "widgets"},
        "versions": versions,
        "conversion": conversion,
    }
    return {**object_named("widgets.shop.example.com"), "spec": spec}


def operator(request: Object) -> Object:
    """Convert widgets, and deny those that are too large."""
    if "desiredAPIVersion" in request:
        version = request["desiredAPIVersion"]
        before, after = ("size", "length") if version.endswith("v2") else ("length", "size")
        converted = [
            {"apiVersion": version, "kind": "Widget", "metadata": each["metadata"], after: each[before]}
            for each in request["objects"]
        ]
        return {"result": {"status": "Success"}, "convertedObjects": converted}
    return denying("too large")(request) if request["object"]["size"] > 10 else {"allowed": True}


async def test_operator_with_webhook_and_conversion_works(pods: CalledPods) -> None:
    async with pods.serving(operator) as hook:
        await pods.add_pod()
        await pods.add_service()
        await pods.client.create(CRDS, widget_definition(hook))
        await add_webhook(pods, {"service": reference(), "caBundle": hook.bundle}, "widgets")
        await pods.client.create(WIDGETS["v1"], {**object_named("small", "default"), "size": 3})
        found = await pods.client.get(WIDGETS["v2"], "small", "default")
        assert found["length"] == 3


async def test_only_ports_of_the_service_are_dialed(pods: CalledPods) -> None:
    async with pods.serving(allowing) as hook:
        await pods.add_pod()
        await pods.add_service()
        await add_webhook(pods, {"service": reference(), "caBundle": hook.bundle})
        await pods.client.create(CONFIGMAPS, object_named("settings", "default"))
        assert len(hook.requests) == 1
    assert pods.ports.dialed == [("default/guard", 9443)]


async def test_certificate_of_pod_is_verified(pods: CalledPods) -> None:
    async with pods.serving(allowing) as hook, pods.serving(allowing, "default/other") as other:
        await pods.add_pod()
        await pods.add_service()
        await add_webhook(pods, {"service": reference(), "caBundle": other.bundle})
        assert "certificate signed by unknown authority" in await failure(pods)
        assert hook.requests == []


# -- attempts to call something else


@pytest.mark.parametrize(
    "forged", [("FQDN", "localhost"), ("FQDN", "kubernetes.default.svc"), ("IPv4", "100.100.100.200"), ("IPv4", "host")]
)
async def test_forged_endpoints_are_ignored(pods: CalledPods, forged: tuple[str, str]) -> None:
    kind, address = forged
    async with pods.serving(allowing) as hook:
        await pods.add_service()
        node = (await pods.world.host.client.list(NODES))[0]
        address = "10.96.0.1" if address == "host" else address
        forgery = {
            "metadata": {"name": "forged", "namespace": "default", "labels": {"kubernetes.io/service-name": "guard"}},
            "addressType": kind,
            "ports": [{"name": "https", "port": hook.port}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}, "nodeName": name_of(node)}],
        }
        await pods.client.create(ENDPOINT_SLICES, forgery)
        await add_webhook(pods, {"service": reference(), "caBundle": hook.bundle})
        assert 'no endpoints available for service "guard"' in await failure(pods)
        assert (hook.requests, pods.ports.dialed) == ([], [])


async def test_pods_of_others_are_not_called(pods: CalledPods) -> None:
    other = pods.world.tenant_client(await pods.world.add_tenant("red"))
    async with pods.serving(allowing) as hook:
        for each in (replace(pods, client=other), pods):
            await each.client.create(NAMESPACES, object_named("team-b"))
        await replace(pods, client=other).add_pod()
        await pods.add_pod(namespace="team-b")
        await pods.add_service()
        await add_webhook(pods, {"service": reference(), "caBundle": hook.bundle})
        assert 'no endpoints available for service "guard"' in await failure(pods)
        assert (hook.requests, pods.ports.dialed) == ([], [])


async def test_reference_to_service_elsewhere_finds_none(pods: CalledPods) -> None:
    other = replace(pods, client=pods.world.tenant_client(await pods.world.add_tenant("red")))
    async with pods.serving(allowing):
        await other.add_pod()
        await other.add_service()
        await add_webhook(pods, {"service": reference()})
        assert 'service "guard" not found' in await failure(pods)
    assert pods.ports.dialed == []


async def test_closed_port_is_an_error(pods: CalledPods) -> None:
    await pods.add_pod()
    await pods.add_service()
    await add_webhook(pods, {"service": reference()})
    assert (await failure(pods)).endswith(": EOF")
    assert pods.ports.dialed == [("default/guard", 9443)]


async def test_proxied_pod_answers(pods: CalledPods) -> None:
    def page(_: Object) -> web.Response:
        return web.Response(text="hello")

    async with pods.serving(page):
        await pods.add_pod()
        await pods.add_service()
        for path in ("pods/https:guard:9443", "services/https:guard:443"):
            request = Request("POST", f"/api/v1/namespaces/default/{path}/proxy/x", body=b'{"request": {}}')
            assert (await pods.client.transport.send(request)).body == b"hello"


# -- addresses of pods


@dataclass
class Network:
    """A network in which only some addresses answer."""

    error: OSError | None = None
    called: list[tuple[str, int]] = field(default_factory=list)

    async def connect(self, address: str, port: int) -> socket.socket:
        self.called.append((address, port))
        if self.error is not None:
            raise self.error
        return socket.socket()


class Tunnels(PodTunnels):
    """Tunnels that lead nowhere."""

    opened = 0

    async def open(self, pod: Object, port: int) -> socket.socket:
        self.opened += 1
        return socket.socket()


def tenant_pods(network: Network, policy: EgressPolicy, now: Callable[[], float] = lambda: 0.0, **spec: Any) -> Any:
    """Return the connections of a tenant with one pod, whose address is 10.1.0.7."""
    metadata = {"name": "guard", "namespace": "default", "uid": "u1", "labels": {"app": "guard"}}
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "c"}], "nodeName": "n"}}
    status = {"phase": "Running", "podIP": "10.1.0.7", "conditions": [{"type": "Ready", "status": "True"}]}
    annotations = {keys.VIRTUAL_POD_UID: "u1"}
    twin = twin_view(
        {"metadata": {"name": "t", "annotations": annotations}, "spec": {"containers": []}, "status": status}
    )
    caches: Any = SimpleNamespace(
        virtual_pods=SimpleNamespace(store=SimpleNamespace(list=lambda: [virtual_pod({**pod, "status": {}})])),
        pod_on_our_nodes=lambda _: pod,
        twin_of=lambda _: twin,
    )
    reference = SecretReference(name="n", namespace="s")
    host, no_streams = HostClusterSpec(secret_ref=reference, **spec), SimpleNamespace()
    return TenantPods(caches, lambda: host, Tunnels(no_streams), policy.check_pod_of_host, network.connect, now)


STRICT = EgressPolicy(is_strict=True)
GUARD = {
    "metadata": {"name": "guard", "namespace": "default"},
    "spec": {"selector": {"app": "guard"}, "ports": [{"port": 443, "targetPort": 9443}]},
}


async def test_address_in_a_listed_range_is_called() -> None:
    network = Network()
    pods = tenant_pods(network, STRICT, pod_ranges=("10.1.0.0/16",))
    (await pods.connect_service(GUARD, 443)).close()
    (await pods.connect_pod("default", "guard", 80)).close()
    assert (network.called, pods.tunnels.opened) == ([("10.1.0.7", 9443), ("10.1.0.7", 80)], 0)


@pytest.mark.parametrize("ranges", [(), ("10.2.0.0/16",), ("fd00::/8",)])
async def test_address_outside_listed_ranges_is_not_called(ranges: tuple[str, ...]) -> None:
    network = Network()
    pods = tenant_pods(network, STRICT, pod_ranges=ranges)
    (await pods.connect_service(GUARD, 443)).close()
    assert (network.called, pods.tunnels.opened) == ([], 1)


async def test_denied_address_of_pod_is_not_called() -> None:
    network = Network()
    policy = EgressPolicy(is_strict=True, denied=parse_networks(["10.1.0.7"], "denied"))
    pods = tenant_pods(network, policy, pod_ranges=("0.0.0.0/0",))
    (await pods.connect_service(GUARD, 443)).close()
    assert (network.called, pods.tunnels.opened) == ([], 1)


async def test_address_without_route_is_tried_again_later() -> None:
    network, times = Network(TimeoutError()), [0.0]
    pods = tenant_pods(network, STRICT, lambda: times[0], pod_ranges=("10.0.0.0/8",))
    for time in (0.0, 1.0, PAUSE_SECONDS + 1):
        times[0] = time
        (await pods.connect_service(GUARD, 443)).close()
    assert (len(network.called), pods.tunnels.opened) == (2, 3)


async def test_refused_connection_is_final() -> None:
    network = Network(ConnectionRefusedError())
    pods = tenant_pods(network, STRICT, pod_ranges=("10.0.0.0/8",))
    with pytest.raises(ConnectionRefusedError):
        await pods.connect_pod("default", "guard", 80)
    assert pods.tunnels.opened == 0
