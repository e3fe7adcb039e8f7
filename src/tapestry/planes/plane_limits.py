"""Configuration of an API server whose users are not trusted with its process."""

from msgspec import structs

from tapestry.apis.planes import PlaneLimits
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.kube.quantity import parse_quantity

AUDIT_LOG_MEBIBYTES, AUDIT_LOG_BACKUPS = 10, 4
MIN_OBJECTS, MIN_BYTES = 200, 1 << 20
"""Smallest limits of objects: a plane creates about 150 objects itself, such as roles."""


def limited_config(config: ApiServerConfig, limits: PlaneLimits) -> ApiServerConfig:
    """Return a configuration with the limits of a plane, which hold for all of its users, and strict egress.

    A third of the requests in flight can be writes. Audit logs are limited, because a disk that is full concerns all
    planes. Raises ValueError if a limit is negative, or too small for the objects that a plane creates itself.
    """
    size, writes = parse_quantity(limits.bytes, "limits.bytes").value(), max(limits.requests_in_flight // 3, 1)
    if size < 0:
        raise ValueError(f"limits.bytes: {limits.bytes} is negative; use 0 for no limit")
    if 0 < size < MIN_BYTES:
        raise ValueError(f"limits.bytes: {limits.bytes} is under 1Mi, so the plane could not open; use 0 for no limit")
    if 0 < limits.objects < MIN_OBJECTS:
        raise ValueError(
            f"limits.objects: {limits.objects} is under {MIN_OBJECTS}, so the plane could not open; use 0 for no limit"
        )
    return structs.replace(
        config,
        max_objects=limits.objects,
        max_bytes=size,
        max_watches=limits.watches,
        max_requests_inflight=max(limits.requests_in_flight - writes, 1),
        max_mutating_requests_inflight=writes,
        strict_limits=True,
        audit_log_maxsize=AUDIT_LOG_MEBIBYTES,
        audit_log_maxbackup=AUDIT_LOG_BACKUPS,
        egress=structs.replace(config.egress, strict=True),
    )
