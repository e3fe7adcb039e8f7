"""Addresses of twins, and the tenants that they belong to."""

import pytest

from tapestry.apis import keys
from tapestry.kube.objects import Object
from tapestry.syncer.cache_transforms import twin_view
from tapestry.tenants.host_connection import HostConnection
from tapestry.tenants.twin_addresses import addresses_of


def pod(name: str, tenant: str, *addresses: str, host: str = "192.0.2.1") -> Object:
    labels = {keys.MANAGED_BY: keys.TAPESTRY, keys.CLUSTER_BINDING_UID: tenant}
    metadata = {"name": name, "namespace": tenant, "uid": name, "resourceVersion": "1", "labels": labels}
    status = {"phase": "Running", "podIPs": [{"ip": each} for each in addresses], "hostIPs": [{"ip": host}]}
    return {"metadata": metadata, "spec": {"containers": [], "nodeName": "n1"}, "status": status}


@pytest.mark.parametrize(
    ("addresses", "expected"), [(["10.1.0.2", "fd00::2"], {"10.1.0.2", "fd00::2"}), (["192.0.2.1"], set()), ([], set())]
)
def test_address_of_the_node_is_left_out(addresses: list[str], expected: set[str]) -> None:
    assert set(addresses_of(twin_view(pod("a", "blue", *addresses)))) == expected


async def test_address_belongs_to_the_tenants_of_its_pods() -> None:
    connection = HostConnection("east")
    for each in (pod("a", "blue", "10.1.0.2"), pod("b", "green", "10.1.0.3")):
        twin = twin_view(each)
        connection.twins.source.store.put(twin.key, twin)
    assert [connection.tenants_at(each) for each in ("10.1.0.2", "10.1.0.3", "192.0.2.1")] == [
        {"blue"},
        {"green"},
        set(),
    ]
