"""Addresses of the operator's own services, which planes cannot reach."""

from pathlib import Path

import pytest

from tapestry.apiserver.core.config import Etcd
from tapestry.apiserver.core.egress import AddressNotAllowed, egress_policy
from tapestry.planes.config import PlanesConfig
from tapestry.planes.host_addresses import with_denied_host_addresses

from .plane_processes import create_plane, running_planes, wait_until_open

CONFIG = PlanesConfig(
    address="192.0.2.4:6444",
    server_names=["192.0.2.5"],
    etcd=Etcd(servers=["https://192.0.2.1:2379", "http://[2001:db8::1]:2379", "http://127.0.0.1:2379"]),
    egress_denied_cidrs=["10.0.0.0/8"],
)


async def test_own_services_are_denied() -> None:
    denied = (await with_denied_host_addresses(CONFIG, {"KUBERNETES_SERVICE_HOST": "10.96.0.1"})).egress_denied_cidrs
    expected = [f"{each}/32" for each in ("192.0.2.1", "192.0.2.4", "192.0.2.5", "10.96.0.1")]
    assert denied == ["10.0.0.0/8", expected[0], "2001:db8::1/128", *expected[1:]]


async def test_only_an_address_that_is_named_itself_is_allowed() -> None:
    allowed = PlanesConfig(etcd=CONFIG.etcd, egress_allowed_cidrs=["192.0.0.0/8", "2001:db8::1/128"])
    assert (await with_denied_host_addresses(allowed, {})).egress_denied_cidrs == ["192.0.2.1/32"]


async def test_name_that_cannot_be_resolved_is_skipped() -> None:
    config = PlanesConfig(server_names=["no-such-host.invalid", "192.0.2.5"])
    assert (await with_denied_host_addresses(config, {})).egress_denied_cidrs == ["192.0.2.5/32"]


async def test_planes_in_a_pod_cannot_reach_its_api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "192.0.2.9")
    async with running_planes(tmp_path / "data", egress_allowed_cidrs=["192.0.2.0/24"]) as (process, management):
        entry = await wait_until_open(process, await create_plane(management, "one", controllers=["none"]))
        policy = egress_policy(entry.config)
        policy.check_webhook("192.0.2.8")
        for check in (policy.check_webhook, policy.check_api_server, policy.check_kubelet, policy.check_pod):
            with pytest.raises(AddressNotAllowed):
                check("192.0.2.9")
