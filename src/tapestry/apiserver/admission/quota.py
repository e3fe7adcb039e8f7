"""ResourceQuota admission: rejects writes that exceed the quotas of a namespace.

A write is charged to the status of the quotas before it is stored, each time based on their newest version, so
concurrent writes see each other's charges. A write that fails afterwards stays charged until the controller recounts
(`tapestry.controlplane.quota`). Therefore this is the last step before the object is stored.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import msgspec

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import WriteRequest, admission_forbidden
from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.core.storage_codec import encode_for_storage
from tapestry.apiserver.core.store import Key, ObjectVersion, Store, VersionConflict
from tapestry.kube.objects import Object, name_of, value_at, with_value
from tapestry.kube.quantity import ResourceList
from tapestry.kube.quota_usage import (
    UNCOUNTED_RESOURCES,
    container_resources,
    is_terminating,
    matches_scopes,
    matching_quota_names,
    object_usage,
    pod_quota_usage,
)

QUOTAS = "resourcequotas"
REQUIRED_RESOURCES = frozenset(
    {"cpu", "memory", *(f"{kind}.{each}" for kind in ("requests", "limits") for each in ("cpu", "memory"))}
)
"""Resources that every container must specify if a quota limits them."""
MAX_CHARGE_ATTEMPTS = 100
"""Maximum attempts of a charge. If the store cannot serialize the writes to a quota, only one writer wins each time."""


@dataclass(frozen=True)
class ResourceQuotaAdmission:
    """An admission step that charges what a write adds, or rejects it."""

    store: Store
    quota_resource: ResourceInfo
    """The resource info of ResourceQuotas."""
    now: Callable[[], datetime]

    async def __call__(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        if request.target.namespace and self.store.count(QUOTAS) and self.can_change_usage(request, old, new):
            await self.charge(request, old, new)
        return new

    def can_change_usage(self, request: WriteRequest, old: Object | None, new: Object) -> bool:
        """Return whether this kind of write can change the usage."""
        target = request.target
        resource = target.info.storage
        if request.verb == "create":
            existing = self.store.head(resource, target.namespace, name_of(new))
            return not target.subresource and resource not in UNCOUNTED_RESOURCES and existing is None
        if old is None:
            return False
        match resource, target.subresource:
            case "pods", "":
                return is_terminating(old) != is_terminating(new)
            case ("pods", "resize") | ("services", "") | ("persistentvolumeclaims", "" | "status"):
                return True
        return False

    async def charge(self, request: WriteRequest, old: Object | None, new: Object) -> None:
        def charged_head(head: ObjectVersion | None) -> Object | None:
            return self.charged_quota(request, msgspec.json.decode(head.raw), old, new) if head is not None else None

        keys = [version.key for version in self.store.list_objects(QUOTAS, request.target.namespace)]
        affected = [key for key in keys if charged_head(self.store.head(*key)) is not None]  # check all quotas first
        for key in affected if not request.is_dry_run else ():
            await self.store_charged(key, charged_head)

    async def store_charged(self, key: Key, charge_head: Callable[[ObjectVersion | None], Object | None]) -> None:
        """Store the charged quota. Compute it again, because the quota may have changed meanwhile."""
        for _ in range(MAX_CHARGE_ATTEMPTS):
            head = self.store.head(*key)
            quota = charge_head(head)
            if quota is None:
                return
            with suppress(VersionConflict):
                await self.store.put(key, head, encode_for_storage(self.quota_resource, quota))
                return
        raise api_errors.conflict(self.quota_resource.resource, key.name, api_errors.OBJECT_MODIFIED)

    def charged_quota(self, request: WriteRequest, quota: Object, old: Object | None, new: Object) -> Object | None:
        """The quota with the usage that the write adds, or None if it adds nothing. Raises Forbidden."""
        resource = request.target.info.storage
        hard, used = (ResourceList.parse(value_at(quota, "status", field)) for field in ("hard", "used"))
        limited = matching_quota_names(resource, hard)
        if not limited or not matches_scopes(resource, quota, new):
            return None
        if resource == "pods" and (missing := missing_resources(new, REQUIRED_RESOURCES.intersection(limited))):
            raise admission_forbidden(request, f"failed quota: {name_of(quota)}: must specify {missing}")
        if not used.keys() >= set(limited):
            names = ",".join(sorted(limited))
            raise admission_forbidden(request, f"status unknown for quota: {name_of(quota)}, resources: {names}")
        added = self.added_usage(resource, quota, old, new, limited)
        if not added:
            return None
        exceeded = sorted(name for name in added if used[name] + added[name] > hard[name])
        if exceeded and request.target.subresource != "status":
            requested, used_text, limited_text = (amounts_text(amounts, exceeded) for amounts in (added, used, hard))
            reason = (
                f"exceeded quota: {name_of(quota)}, requested: {requested}, used: {used_text}, limited: {limited_text}"
            )
            raise admission_forbidden(request, reason)
        return with_value(quota, ("status", "used"), (used + added).texts())

    def added_usage(
        self, resource: str, quota: Object, old: Object | None, new: Object, names: list[str]
    ) -> ResourceList:
        """The usage that the write adds for these names; for an update, the increase."""
        after = object_usage(resource, new, self.now())
        before = ResourceList()
        if old is not None and matches_scopes(resource, quota, old):
            before = object_usage(resource, old, self.now())
        increase = (after - before).at_least_zero()
        return ResourceList({name: increase[name] for name in names if increase[name]})


def missing_resources(pod: Object, names: frozenset[str]) -> str:
    """Missing resources per container, as in `limits.cpu for: c,d; requests.memory for: c`."""
    spec = pod["spec"]
    if value_at(spec, "resources", "requests") or value_at(spec, "resources", "limits"):
        return ""
    missing: dict[str, set[str]] = {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        for name in (
            names
            - pod_quota_usage(
                container_resources(container, "requests"), container_resources(container, "limits")
            ).keys()
        ):
            missing.setdefault(name, set()).add(container["name"])
    return "; ".join(f"{name} for: {','.join(sorted(missing[name]))}" for name in sorted(missing))


def amounts_text(amounts: ResourceList, names: list[str]) -> str:
    return ",".join(f"{name}={amounts[name]}" for name in names)
