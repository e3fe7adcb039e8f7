"""Limits of a plane in the configuration of its API server."""

import pytest

from tapestry.apis.planes import PlaneLimits
from tapestry.apiserver.core.config import ApiServerConfig, Egress
from tapestry.planes.plane_limits import limited_config


def test_limits_of_a_plane_are_strict() -> None:
    own = ApiServerConfig(egress=Egress(denied_cidrs=["10.96.0.1/32"]), file_rootpath="x")
    config = limited_config(own, PlaneLimits(objects=300, bytes="1Mi", watches=5, requests_in_flight=30))
    assert (config.max_objects, config.max_bytes, config.max_watches) == (300, 1 << 20, 5)
    assert (config.max_requests_inflight, config.max_mutating_requests_inflight) == (20, 10)
    assert config.strict_limits
    assert config.egress == Egress(strict=True, denied_cidrs=["10.96.0.1/32"])
    assert config.file_rootpath == "x"
    assert config.audit_log_maxsize * (config.audit_log_maxbackup + 1) == 50


def test_smallest_number_of_requests_allows_reads_and_writes() -> None:
    config = limited_config(ApiServerConfig(), PlaneLimits(requests_in_flight=1))
    assert (config.max_requests_inflight, config.max_mutating_requests_inflight) == (1, 1)


def test_negative_size_is_not_unlimited() -> None:
    with pytest.raises(ValueError, match=r"limits\.bytes: -1Mi is negative"):
        limited_config(ApiServerConfig(), PlaneLimits(bytes="-1Mi"))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (PlaneLimits(objects=199), r"limits\.objects: 199 is under 200"),
        (PlaneLimits(bytes="1023Ki"), r"limits\.bytes: 1023Ki is under 1Mi"),
    ],
)
def test_limits_that_a_new_plane_exceeds_are_rejected(limits: PlaneLimits, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        limited_config(ApiServerConfig(), limits)
