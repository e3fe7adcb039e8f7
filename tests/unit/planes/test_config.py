"""Configuration of processes with planes, and of their API servers."""

from typing import Any

import pytest

from tapestry.apis.planes import PlaneLimits, PlaneSpec
from tapestry.apiserver.core.config import Egress
from tapestry.planes.config import PlanesConfig, management_server_config, plane_server_config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"address": ""}, "address"),
        ({"domain": "Not_a_domain"}, "domain"),
        ({"name": "Not a name"}, "name"),
        ({"egress_denied_cidrs": ["10.0.0.1/8"]}, "egressDeniedCidrs"),
    ],
)
def test_invalid_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlanesConfig(**settings)


def test_planes_share_no_folder_or_prefix_with_management() -> None:
    config = PlanesConfig(data="d", backend="etcd")
    servers = [management_server_config(config), *(plane_server_config(config, each, PlaneSpec()) for each in "ab")]
    assert len({each.file_rootpath for each in servers}) == 3
    assert len({each.etcd.prefix for each in servers}) == 3
    assert not any(a.etcd.prefix.startswith(b.etcd.prefix) for a in servers for b in servers if a is not b)


def test_management_api_rejects_anonymous_requests() -> None:
    assert not management_server_config(PlanesConfig()).anonymous_auth


def test_limits_of_the_spec_reach_the_server() -> None:
    limits = PlaneLimits(objects=800, bytes="2M", watches=9, requests_in_flight=7)
    spec = PlaneSpec(limits=limits, controllers=("namespaces",))
    server = plane_server_config(PlanesConfig(), "a", spec)
    assert (server.max_requests_inflight, server.max_mutating_requests_inflight) == (5, 2)
    assert (server.max_objects, server.max_bytes, server.max_watches) == (800, 2_000_000, 9)
    assert server.strict_limits
    assert server.controllers == ["namespaces"]


def test_egress_of_planes_is_strict() -> None:
    config = PlanesConfig(egress_allowed_cidrs=["10.1.0.0/16"], egress_denied_cidrs=["10.96.0.1/32"])
    egress = plane_server_config(config, "a", PlaneSpec()).egress
    assert egress == Egress(strict=True, allowed_cidrs=["10.1.0.0/16"], denied_cidrs=["10.96.0.1/32"])
    assert not management_server_config(config).egress.strict
