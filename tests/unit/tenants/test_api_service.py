"""The Service `kubernetes` of a tenant, and its pods as clients of their plane."""

import asyncio
import base64
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.kube.resources import CONFIGMAPS, ENDPOINT_SLICES, PODS, SECRETS, SERVICES
from tapestry.local.kubernetes import free_ports
from tapestry.tenants.api_service import api_condition, certificate_names

from .running_tenants import HostWorld, host_world, run_pod

ADDRESS = "192.0.2.10"
OF_TENANTS, OF_SETUP = "tapestry.io/managed-by=tapestry", "tapestry.io/tenant-setup=true"


@pytest.mark.parametrize(
    ("host_address", "port", "service_address", "reason", "remedy"),
    [
        (ADDRESS, 7000, "10.96.0.1", "Available", "10.96.0.1"),
        (ADDRESS, None, "", "PlaneHasNoPort", "--port-range"),
        ("", 7000, "", "HostHasNoApiAddress", "`tapestry host add east --api-address`"),
        ("", None, "", "NotConfigured", "--port-range"),
        (ADDRESS, 7000, "", "NoClusterIP", "Service kubernetes"),
    ],
)
def test_condition_says_what_is_missing(
    host_address: str, port: int | None, service_address: str, reason: str, remedy: str
) -> None:
    condition = api_condition("east", host_address, port, "0.0.0.0", service_address)
    assert condition["type"] == "ApiAvailable"
    assert (condition["status"], condition["reason"]) == (str(reason == "Available"), reason)
    assert remedy in condition["message"]


@pytest.mark.parametrize("listener", ["127.0.0.1", "::1", "localhost"])
def test_listener_that_pods_hardly_reach_is_reported(listener: str) -> None:
    condition = api_condition("east", ADDRESS, 7000, listener, "10.96.0.1")
    assert (condition["status"], condition["reason"]) == ("Unknown", "ListensOnLoopback")
    assert "--bind-address" in condition["message"]
    assert api_condition("east", ADDRESS, 7000, "", "10.96.0.1")["status"] == "True"


def test_certificate_has_all_names_of_the_service() -> None:
    assert certificate_names("10.96.0.1") == (
        *("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"),
        "10.96.0.1",
    )
    assert certificate_names("") == ()


async def test_pod_verifies_and_calls_the_api_of_its_plane(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    async with host_world(tmp_path, port_range=f"{port}-{port}") as world:
        id = await world.add_tenant("blue")
        await wait_for_reason(world, "HostHasNoApiAddress")
        await world.management.patch(HOST_CLUSTERS, object_named("east"), {"spec": {"apiAddress": ADDRESS}})
        await wait_for_reason(world, "ListensOnLoopback")
        await run_pod(world.tenant_client(id))
        [twin] = await world.host.client.list(PODS, labels=OF_TENANTS)
        [service] = await world.host.client.list(SERVICES, labels=OF_SETUP)
        address, env = service["spec"]["clusterIP"], environment_of(twin)
        assert (env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"]) == (address, "443")
        [aliases] = twin["spec"]["hostAliases"]
        assert aliases == {"ip": address, "hostnames": list(certificate_names(address)[:-1])}
        [slice] = await world.host.client.list(ENDPOINT_SLICES, labels=OF_SETUP)
        assert (slice["endpoints"][0]["addresses"], slice["ports"][0]["port"]) == ([ADDRESS], port)
        token, authority = await mounted_credentials(world, twin)
        for name in certificate_names(address):
            assert b" 201 " in await first_line(port, name, token, authority), name


async def test_plane_without_port_is_reported(tmp_path: Path) -> None:
    async with host_world(tmp_path) as world:
        await world.management.patch(HOST_CLUSTERS, object_named("east"), {"spec": {"apiAddress": ADDRESS}})
        await world.add_tenant("blue")
        await wait_for_reason(world, "PlaneHasNoPort")
        assert await world.host.client.list(SERVICES, labels=OF_SETUP) == []


async def wait_for_reason(world: HostWorld, reason: str) -> None:
    """Wait until the condition of the tenant has a reason."""

    def is_reached(binding: Object | None) -> bool:
        condition = find_condition(value_at(binding, "status", "conditions"), "ApiAvailable") or {}
        return condition.get("reason") == reason

    await world.wait_for_binding("blue", is_reached)


def environment_of(twin: Object) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in twin["spec"]["containers"][0]["env"]}


async def mounted_credentials(world: HostWorld, twin: Object) -> tuple[str, str]:
    """Return the token and the CA in the volume of a twin with the credentials of its ServiceAccount."""
    [sources] = [each["projected"]["sources"] for each in twin["spec"]["volumes"] if "projected" in each]
    [secret] = [each["secret"]["name"] for each in sources if "secret" in each]
    [config_map] = [each["configMap"]["name"] for each in sources if "configMap" in each]
    namespace = twin["metadata"]["namespace"]
    tokens = (await world.host.client.get(SECRETS, secret, namespace))["data"]
    data = (await world.host.client.get(CONFIGMAPS, config_map, namespace))["data"]
    [token] = tokens.values()
    return base64.b64decode(token).decode(), data["ca.crt"]


async def first_line(port: int, name: str, token: str, authority: str) -> bytes:
    """Return the first line of the response to a request, after the verification of the server as `name`."""
    context = ssl.create_default_context(cadata=authority)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    head = f"POST {path} HTTP/1.1\r\nHost: {name}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
    body = b'{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}'
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    response = await reader.read()
    writer.close()
    with suppress(OSError):  # the server has closed the connection, too
        await writer.wait_closed()
    return response.splitlines()[0] if b"system:serviceaccount:default:default" in response else response
