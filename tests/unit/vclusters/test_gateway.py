"""The order of the checks of a request, and what the audit log says about it."""

import asyncio
from pathlib import Path

import pytest

from tapestry.vclusters.access.keys import new_key
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.audit import chained_log
from tapestry.vclusters.audit.queries import newest_first
from tapestry.vclusters.errors import ServiceError, not_found
from tapestry.vclusters.gateway import IncomingCall, network_of, resource_of

from .gateway_world import gateway_world


async def test_allowed_request_is_recorded_before_its_effect(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await world.call("CreateVCluster", name="blue", namespace="shop", request_id="r1")
        received, completed = await world.records()
        assert (received.stage, received.principal, received.project) == ("received", "alice", "shop")
        assert (received.name, received.request_id, len(received.digest)) == ("blue", "r1", 64)
        assert (completed.stage, completed.code, completed.operation) == ("completed", "OK", "op-1")
        assert completed.id == received.id
        assert world.service.audited == [received.sequence]  # was on disk when the service got the request


@pytest.mark.parametrize(
    ("user", "method", "namespace", "reason"),
    [
        ("", "GetVCluster", "shop", "UNAUTHENTICATED"),
        ("vera", "CreateVCluster", "shop", "PERMISSION_DENIED"),
        ("vera", "GetVCluster", "other", "RESOURCE_NOT_FOUND"),
        ("alice", "DeleteVCluster", "shop", "PERMISSION_DENIED"),
        ("alice", "GetVCluster", "nowhere", "RESOURCE_NOT_FOUND"),
        ("root", "GetVCluster", "nowhere", "RESOURCE_NOT_FOUND"),
        ("alice", "GetVCluster", "shop", ""),
        ("root", "GetVCluster", "other", ""),
    ],
)
async def test_rejected_request_does_not_reach_the_service(
    tmp_path: Path, user: str, method: str, namespace: str, reason: str
) -> None:
    async with gateway_world(tmp_path) as world:
        assert await world.reason(method, user, name="blue", namespace=namespace) == reason
        assert len(world.service.calls) == (not reason)
        records = await world.records()
        assert [each.reason for each in records][-1] == reason
        assert [each.stage for each in records] == (["completed"] if reason else ["received", "completed"])


async def test_reader_of_audit_log_finds_all_records(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await world.call("GetVCluster", name="blue", namespace="shop")
        await world.call("ListAuditRecords", "root")
        assert [each.stage for each in newest_first(tmp_path, matches=lambda each: each.method == "GetVCluster")] == [
            "completed",
            "received",
        ]


async def test_hidden_and_missing_resources_look_the_same(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        found = []
        for namespace in ("other", "nowhere"):
            with pytest.raises(ServiceError) as caught:
                await world.call("GetVCluster", "vera", name="blue", namespace=namespace)
            found.append(caught.value.body())
        assert found[0] == found[1]


async def test_methods_without_project_need_a_platform_admin(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        assert await world.reason("ListHostClusters", "alice") == "PERMISSION_DENIED"
        assert await world.reason("ListHostClusters", "root") == ""
        assert await world.reason("ListVClusters", "vera") == ""


@pytest.mark.parametrize("change", ["wrong secret", "unknown id", "no key", "other scheme"])
async def test_wrong_keys_get_the_same_error(tmp_path: Path, change: str) -> None:
    async with gateway_world(tmp_path) as world:
        if change == "wrong secret":
            world.stored.update(dict.fromkeys(world.stored, next(iter(world.stored.values()))))
            user = "vera"
        else:
            user = "alice"
            if change == "unknown id":
                world.stored.clear()
            else:
                world.keys["alice"] = "x" if change == "no key" else world.keys["alice"].replace("tap_", "tip_")
        with pytest.raises(ServiceError, match="the access key is not valid, or has expired"):
            await world.call("GetVCluster", user, name="blue", namespace="shop")


async def test_only_valid_keys_count_as_used(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        world.keys["mallory"] = new_key().text
        for user in ("alice", "mallory"):
            await world.reason("GetVCluster", user, name="blue", namespace="shop")
        (used,) = world.used
        assert used in world.keys["alice"]


async def test_expired_key_is_not_valid(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        assert await world.reason("ListVClusters", "late") == ""
        world.clock.advance(3600)
        assert await world.reason("ListVClusters", "late") == "UNAUTHENTICATED"


async def test_identity_has_a_limit_for_each_class(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        create = {"name": "blue", "namespace": "shop"}
        assert [await world.reason("CreateVCluster", **create) for _ in range(6)] == [""] * 5 + ["RATE_LIMITED"]
        assert await world.reason("GetVCluster", **create) == ""
        world.clock.advance(1)
        assert await world.reason("CreateVCluster", **create) == ""


async def test_address_is_limited_before_its_credentials_count(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        reasons = [await world.reason("ListVClusters", "") for _ in range(300)]
        assert reasons == ["UNAUTHENTICATED"] * 200 + ["RATE_LIMITED"] * 100
        assert await world.reason("ListVClusters", "alice") == "RATE_LIMITED"
        assert await world.reason("ListVClusters", "alice", "192.0.2.2") == ""
        limited = [each for each in await world.records() if each.reason == "RATE_LIMITED"]
        assert len(limited) == 1  # a flood of requests does not fill the audit log


async def test_unexpected_error_has_no_details(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        world.service.error = RuntimeError("the secret is 42")
        with pytest.raises(ServiceError) as caught:
            await world.call("GetVCluster", name="blue", namespace="shop")
        assert caught.value.reason == "INTERNAL"
        assert "42" not in str(caught.value.body())
        assert (await world.records())[-1].reason == "INTERNAL"


async def test_cancelled_request_is_recorded(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        world.service.is_blocked = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await world.call("CreateVCluster", name="blue", namespace="shop")
        assert (await world.records())[-1].code == "CANCELLED"


async def test_request_without_audit_log_has_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway_world(tmp_path) as world:
        monkeypatch.setattr(chained_log, "MAX_UNWRITTEN_BYTES", -1)
        assert await world.reason("CreateVCluster", name="blue", namespace="shop") == "UNAVAILABLE"
        assert world.service.calls == []
        monkeypatch.undo()


async def test_stream_is_recorded_from_start_to_end(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        world.service.error = not_found("VCluster", "blue")
        call = IncomingCall("WatchVCluster", api.WatchVClusterRequest(), world.credentials("vera"), "192.0.2.1")
        messages = world.gateway.stream(call)
        assert [(await anext(messages)).vcluster.name for _ in range(2)] == ["one", "two"]
        with pytest.raises(ServiceError):
            await anext(messages)
        assert [(each.stage, each.code) for each in await world.records()] == [
            ("received", ""),
            ("completed", "NOT_FOUND"),
        ]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("unix", "unix"),
    ],
)
def test_address_counts_by_network(address: str, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.parametrize(
    ("method", "resource"),
    [("ScaleVCluster", "VCluster"), ("GetVClusterKubeconfig", "VCluster"), ("ListSnapshots", "Snapshots")],
)
def test_method_names_its_resource(method: str, resource: str) -> None:
    assert resource_of(method) == resource
