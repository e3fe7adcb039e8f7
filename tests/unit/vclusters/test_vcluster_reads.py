"""Lists, watches and kubeconfigs of virtual clusters."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import object_named
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES
from tapestry.vclusters.access.roles import Caller, Role
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.errors import ServiceError

from .service_world import ALICE, EVE, ROOT, VERA, ServiceWorld, service_world

OPERATOR = Caller("olga", "key:o", roles={"shop": Role.OPERATOR})
NAMED = {"name": "blue", "namespace": "shop"}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServiceWorld]:
    async with service_world(tmp_path) as each:
        yield each


async def test_pages_are_of_one_revision(world: ServiceWorld) -> None:
    for number in range(5):
        await world.create(f"vc{number}")
    first = await world.call("ListVClusters", project="shop", page_size=2, order_by="-name")
    await world.create("vc9")
    names, token = [each.name for each in first.vclusters], first.next_page_token
    while token:
        page = await world.call("ListVClusters", project="shop", page_size=2, order_by="-name", page_token=token)
        names, token = [*names, *(each.name for each in page.vclusters)], page.next_page_token
        assert page.total_count == 5
    assert names == ["vc4", "vc3", "vc2", "vc1", "vc0"]
    assert await world.reason("ListVClusters", page_token=first.next_page_token) == "FIELD_INVALID"
    assert await world.reason("ListVClusters", order_by="size") == "FIELD_INVALID"
    assert (await world.call("ListVClusters", VERA)).total_count == 6
    assert (await world.call("ListVClusters", EVE)).total_count == 0


async def test_filters_of_a_list(world: ServiceWorld) -> None:
    await world.create("a", labels={"team": "a"}, wait_for_ready=True)
    await world.create("b", ROOT)
    for filters, names in (
        ({"label_selector": "team=a"}, ["a"]),
        ({"phases": [api.PHASE_RUNNING], "owner": "alice"}, ["a"]),
        ({"owner": "root"}, ["b"]),
        ({"namespace": "none"}, []),
    ):
        found = await world.call("ListVClusters", **filters)
        assert [each.name for each in found.vclusters] == names, filters
    assert await world.reason("ListVClusters", label_selector="a in (") == "FIELD_INVALID"


async def test_watch_resumes(world: ServiceWorld) -> None:
    created = await world.create(wait_for_ready=True)
    events = await world.watched(1)
    assert (events[0].type, events[0].vcluster.name) == (1, "blue")
    version = events[0].vcluster.resource_version
    deleted = await world.call("DeleteVCluster", **NAMED)
    await world.done(deleted.operation_id)
    types = []
    while 3 not in types:
        (event,) = await world.watched(1, resource_version=version)
        types.append(event.type)
        assert int(event.vcluster.resource_version) > int(version)
        version = event.vcluster.resource_version
    assert (set(types), event.vcluster.id) == ({2, 3}, created.vcluster.id)
    with pytest.raises(ServiceError, match="resourceVersion"):
        await world.watched(1, resource_version="99999999")


async def test_kubeconfigs_have_the_role_of_the_caller(world: ServiceWorld, tmp_path: Path) -> None:
    await world.create(wait_for_ready=True)
    for caller in (ALICE, OPERATOR):
        response = await world.call("GetVClusterKubeconfig", caller, **NAMED)
        text = base64.b64decode(response.kubeconfig).decode()
        file = tmp_path / f"{caller.user}.yaml"
        file.write_text(text)
        assert yaml.safe_load(text)["kind"] == "Config"
        async with Client(HttpTransport(load_access([file], environ={}))) as plane:
            content = {**object_named("c", "default"), "data": {}}
            if caller is ALICE:
                assert await plane.list(NAMESPACES)
                await plane.create(CONFIGMAPS, content)
            else:
                assert await plane.get(CONFIGMAPS, "c", "default")
                with pytest.raises(Forbidden, match="olga"):
                    await plane.create(CONFIGMAPS, content)
    assert await world.reason("GetVClusterKubeconfig", VERA, **NAMED) == "PERMISSION_DENIED"
    assert await world.reason("GetVClusterKubeconfig", **NAMED, validity_hours=-1) == "FIELD_INVALID"
    response = await world.call("GetVClusterKubeconfig", **NAMED, format="exec")
    (user,) = yaml.safe_load(base64.b64decode(response.kubeconfig))["users"]
    assert user["user"].keys() == {"exec"}
    assert user["user"]["exec"]["args"] == ["vc", "credential", NAMED["name"], "--namespace", NAMED["namespace"]]
    assert not response.HasField("expires_at")
    assert await world.reason("GetVClusterKubeconfig", VERA, **NAMED, format="exec") == "PERMISSION_DENIED"
    found = await world.call("GetVCluster", **NAMED, include_kubeconfig=True)
    assert found.vcluster.status.kubeconfig
    assert not (await world.call("GetVCluster", **NAMED)).vcluster.status.kubeconfig
