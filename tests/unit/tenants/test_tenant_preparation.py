"""Addresses and certificate names of prepared tenants."""

import asyncio

import pytest

from tapestry.apis.priorities import PRIORITY_CLASSES
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.controller.testing import InProcessApi, in_virtual_time, running_clock
from tapestry.kube.objects import Object
from tapestry.kube.resources import NAMESPACES, SERVICES
from tapestry.tenants.api_service import is_address
from tapestry.tenants.host_clusters import Host
from tapestry.tenants.host_connection import HostConnection
from tapestry.tenants.host_objects import API_SERVICE, SETUP_KINDS, host_namespace
from tapestry.tenants.tenant_preparation import Preparation, service_address

from .tenant_bindings import tenant_binding

OTHER_UID = "99999999-2222-4333-8444-555555555555"


def host_cluster() -> tuple[InProcessApi, Client]:
    api = InProcessApi([NAMESPACES, PRIORITY_CLASSES, *SETUP_KINDS], now=running_clock().now)
    return api, Client(api.connect())


@pytest.mark.parametrize("text", ["", "None", "evil.example", "10.96.0.1:443", "::1%eth0 evil"])
def test_other_texts_are_not_addresses(text: str) -> None:
    assert not is_address(text)


@pytest.mark.parametrize(
    ("is_own", "cluster_ip", "address"),
    [(True, "10.96.0.1", "10.96.0.1"), (True, "None", ""), (False, "10.96.0.1", "")],
)
@in_virtual_time
async def test_only_an_address_of_an_own_service_counts(is_own: bool, cluster_ip: str, address: str) -> None:
    _, client = host_cluster()
    binding = tenant_binding()
    namespace = host_namespace(binding)
    await client.create(NAMESPACES, {"metadata": {"name": namespace}})
    labels = binding.owner_labels() if is_own else {}
    metadata: Object = {"name": API_SERVICE, "namespace": namespace, "labels": labels}
    await client.create(SERVICES, {"metadata": metadata, "spec": {"clusterIP": cluster_ip, "ports": [{"port": 443}]}})
    assert await service_address(client, binding, API_SERVICE) == address


@in_virtual_time
async def test_another_binding_of_the_plane_keeps_certificate_names() -> None:
    api, _ = host_cluster()
    names: dict[str, tuple[str, ...]] = {}
    preparation = Preparation(lambda _: None, "", lambda _: None, names.__setitem__, running_clock().monotonic)
    host = await connected_host(api)
    await preparation.prepare(tenant_binding(), host)
    assert names == {"blue": ()}
    names.clear()
    preparation.forget("blue", OTHER_UID)
    assert names == {}
    preparation.forget("blue", tenant_binding().uid)
    assert names == {"blue": ()}


async def connected_host(api: InProcessApi) -> Host:
    connection = HostConnection("east", lambda _: api.connect(), running_clock().monotonic)
    await connection.switch_to(Access("https://192.0.2.1"), "host")
    return Host(connection, "host", "v1.34.0", "east/1", asyncio.create_task(asyncio.sleep(0)))
