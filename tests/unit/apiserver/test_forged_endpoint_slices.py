"""EndpointSlices that a tenant forges to receive the server's calls to Services of webhooks and to `services/proxy`."""

from pathlib import Path
from random import Random

import pytest

from tapestry.apiserver.core.egress import EgressPolicy
from tapestry.apiserver.core.outgoing_http import ServiceResolver
from tapestry.apiserver.core.requests import Target
from tapestry.apiserver.subresources.proxy_locations import ProxyLocations
from tapestry.kube.errors import BadRequest, Unavailable
from tapestry.kube.objects import Object
from tapestry.kube.resources import SERVICES

from . import hooks
from .conftest import ServerClient
from .kubelets import pod_body

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
MAPS = "/api/v1/namespaces/default/configmaps"
MERGE = "application/merge-patch+json"


def forged_slice(service: str, address: str, kind: str = "IPv4", *, port: int = 443, pod: str = "") -> Object:
    reference = {"targetRef": {"kind": "Pod", "name": pod}} if pod else {}
    return {
        "metadata": {"name": f"{service}-forged", "labels": {"kubernetes.io/service-name": service}},
        "addressType": kind,
        "ports": [{"name": "https", "port": port}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}, **reference}],
    }


def slices(namespace: str) -> str:
    return f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"


async def add_service(call: ServerClient, name: str) -> None:
    spec = {"clusterIP": "None", "ports": [{"name": "https", "port": 443}]}
    await call.made("/api/v1/namespaces/default/services", {"metadata": {"name": name}, "spec": spec})


async def add_pod(call: ServerClient, namespace: str, name: str, address: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    await call.made(path, pod_body(name))
    status = {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
    assert (await call("PATCH", f"{path}/{name}/status", status, kind=MERGE))[0] == 200


async def add_namespace(call: ServerClient, name: str) -> None:
    await call.made("/api/v1/namespaces", {"metadata": {"name": name}})


async def webhook_failure(call: ServerClient, bundle: str = "") -> str:
    """The error of a write for which the webhook behind the Service `guard` is called."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["*"]}
    client = {"service": {"name": "guard", "namespace": "default"}, "caBundle": bundle}
    webhook = {"name": "guard.example.com", "rules": [rule], "clientConfig": client}
    webhook |= {"admissionReviewVersions": ["v1"], "sideEffects": "None"}
    await call.made(WEBHOOKS, {"metadata": {"name": "guard"}, "webhooks": [webhook]})
    status, response = await call("POST", MAPS, {"metadata": {"name": "m"}})
    assert status == 500, response
    return str(response["message"])


def locations(call: ServerClient) -> ProxyLocations:
    return ProxyLocations(call.server.verbs.store, Random(0), EgressPolicy().check_pod)


def proxy_target(call: ServerClient, service: str) -> Target:
    return Target(call.server.registry.info_for(SERVICES), "default", f"https:{service}:443", "proxy")


# -- behind webhooks


async def test_forged_webhook_endpoint_without_its_certificate_gets_no_review(
    call: ServerClient, tmp_path: Path
) -> None:
    (tmp_path / "forger").mkdir()
    (tmp_path / "owner").mkdir()
    async with (
        hooks.listening(tmp_path / "forger", hooks.allowing, "guard.default.svc") as forger,
        hooks.listening(tmp_path / "owner", hooks.allowing, "guard.default.svc") as owner,
    ):
        await add_service(call, "guard")
        await call.made(slices("default"), forged_slice("guard", "localhost", "FQDN", port=forger.port))
        assert "certificate signed by unknown authority" in await webhook_failure(call, owner.bundle)
    assert (forger.requests, owner.requests) == ([], [])


async def test_webhook_endpoint_of_another_namespace_is_ignored(call: ServerClient) -> None:
    await add_service(call, "guard")
    await add_namespace(call, "tenant")
    await call.made(slices("tenant"), forged_slice("guard", "203.0.113.9"))
    assert 'no endpoints available for service "guard"' in await webhook_failure(call)


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "224.0.0.1", "0.0.0.0"])
async def test_endpoint_at_special_address_is_rejected(call: ServerClient, address: str) -> None:
    status, response = await call("POST", slices("default"), forged_slice("guard", address))
    assert (status, response["reason"]) == (422, "Invalid")


async def test_webhook_endpoint_at_metadata_service_is_not_called(call: ServerClient) -> None:
    await add_service(call, "guard")
    await call.made(slices("default"), forged_slice("guard", "100.100.100.200"))
    assert "address not allowed" in await webhook_failure(call)


# -- behind services/proxy


@pytest.mark.parametrize("pod", ["", "mine", "missing"])
async def test_proxy_calls_only_addresses_of_referenced_pods(call: ServerClient, pod: str) -> None:
    await add_service(call, "shop")
    await add_pod(call, "default", "mine", "203.0.113.2")
    await call.made(slices("default"), forged_slice("shop", "203.0.113.9", pod=pod))
    with pytest.raises(Unavailable, match="no endpoints available"):
        locations(call).service(proxy_target(call, "shop"))


async def test_proxy_does_not_call_pods_of_another_namespace(call: ServerClient) -> None:
    await add_service(call, "shop")
    await add_namespace(call, "victim")
    await add_pod(call, "victim", "db", "203.0.113.7")
    await call.made(slices("default"), forged_slice("shop", "203.0.113.7", pod="db"))
    with pytest.raises(Unavailable, match="no endpoints available"):
        locations(call).service(proxy_target(call, "shop"))


async def test_proxy_ignores_slices_of_another_namespace(call: ServerClient) -> None:
    await add_service(call, "shop")
    await add_namespace(call, "tenant")
    await add_pod(call, "default", "db", "203.0.113.7")
    await call.made(slices("tenant"), forged_slice("shop", "203.0.113.7", pod="db"))
    with pytest.raises(Unavailable, match="no endpoints available"):
        locations(call).service(proxy_target(call, "shop"))


async def test_proxy_does_not_call_nodes(call: ServerClient) -> None:
    await add_service(call, "shop")
    addresses = [{"type": "InternalIP", "address": "203.0.113.3"}]
    await call.made("/api/v1/nodes", {"metadata": {"name": "n1"}, "status": {"addresses": addresses}})
    await add_pod(call, "default", "mine", "203.0.113.3")
    await call.made(slices("default"), forged_slice("shop", "203.0.113.3", pod="mine"))
    with pytest.raises(BadRequest, match="address not allowed"):
        locations(call).service(proxy_target(call, "shop"))


# -- of the Service `kubernetes`


async def test_proxy_does_not_lead_to_forged_kubernetes_endpoint(call: ServerClient) -> None:
    await add_service_named_kubernetes(call)
    await call.made(slices("default"), forged_slice("kubernetes", "203.0.113.9"))
    with pytest.raises(Unavailable, match="no endpoints available"):
        locations(call).service(proxy_target(call, "kubernetes"))


async def test_kubernetes_slice_of_another_namespace_is_ignored(call: ServerClient) -> None:
    await add_service_named_kubernetes(call)
    await add_namespace(call, "tenant")
    await call.made(slices("tenant"), forged_slice("kubernetes", "203.0.113.9"))
    resolver = ServiceResolver(call.server.verbs.store, Random(0))
    found = {endpoint.address for endpoint in resolver.ready_endpoints("default", "kubernetes", "https")}
    assert "203.0.113.9" not in found


async def add_service_named_kubernetes(call: ServerClient) -> None:
    if (await call("GET", "/api/v1/namespaces/default/services/kubernetes"))[0] == 404:
        await add_service(call, "kubernetes")
