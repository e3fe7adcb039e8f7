"""Quota: the usage of a project is the sum over its virtual clusters and snapshots, and no write may exceed its limits.

Nothing is reserved. The caller checks a write against the objects that the store has when it is written, including
writes in flight, so concurrent writes never exceed a limit together.
"""

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from tapestry.apis.vclusters import Phase, Verb
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.quantity import ONE, ResourceList, parse_quantity
from tapestry.vclusters.errors import Violation
from tapestry.vclusters.operations import snapshot_id
from tapestry.vclusters.plans import makes_snapshot

AMOUNTS: Mapping[str, tuple[str, ...]] = {
    "cpuRequests": ("resources", "cpuRequest"),
    "cpuLimits": ("resources", "cpuLimit"),
    "memoryRequests": ("resources", "memoryRequest"),
    "memoryLimits": ("resources", "memoryLimit"),
    "storage": ("storage", "persistenceSize"),
}
"""Limits of amounts, and the field of the spec that each one sums up."""
LIMITS = (
    *("vclusters", "runningVclusters", *AMOUNTS),
    *("snapshots", "snapshotBytes", "concurrentOperations"),
)
"""Names of all limits."""
FREED_BY_SUSPEND = frozenset(AMOUNTS) - {"storage"}


class Charge(NamedTuple):
    """Usage of the quota of a project by one object."""

    project: str
    owner: str
    usage: ResourceList
    missing: frozenset[str] = frozenset()
    """Limits whose amount the object does not say."""


def vcluster_charge(vcluster: Object) -> Charge:
    spec = vcluster.get("spec") or {}
    is_running = may_run(vcluster)
    amounts = {name: value_at(spec, *path) for name, path in AMOUNTS.items()}
    counted = {name: text for name, text in amounts.items() if is_running or name not in FREED_BY_SUSPEND}
    usage = {name: parse_quantity(text, name) for name, text in counted.items() if text}
    usage["vclusters"] = ONE
    if is_running:
        usage["runningVclusters"] = ONE
    if has_operation(vcluster):
        usage["concurrentOperations"] = ONE
    missing = frozenset(name for name, text in counted.items() if not text)
    return Charge(spec.get("project") or "", spec.get("owner") or "", ResourceList(usage), missing)


def may_run(vcluster: Object) -> bool:
    """Return whether a virtual cluster uses what a suspend frees. It does until it is suspended, or if that fails."""
    status = vcluster.get("status") or {}
    phase = value_at(status, "journal", "phaseFrom") or status.get("phase")
    return phase != Phase.SUSPENDED or not value_at(vcluster, "spec", "suspended", default=False)


def has_operation(vcluster: Object) -> bool:
    """Return whether an operation runs or waits."""
    requested = value_at(vcluster, "spec", "operation", "id")
    status = vcluster.get("status") or {}
    if status.get("journal") is not None or status.get("phase") == Phase.DELETING:
        return True
    return requested is not None and requested != status.get("lastOperation")


def snapshot_charge(snapshot: Object) -> Charge:
    """Return what a snapshot uses. It counts for the owner of its virtual cluster. A failed one has no file."""
    spec, usage = snapshot["spec"], {}
    if value_at(snapshot, "status", "phase") != "Failed":
        usage["snapshots"] = ONE
        if size := value_at(snapshot, "status", "sizeBytes"):
            usage["snapshotBytes"] = parse_quantity(size)
    return Charge(spec["project"], spec.get("owner") or "", ResourceList(usage))


def pending_snapshots(vcluster: Object) -> frozenset[str]:
    """Return the names of the snapshots that the running and the waiting operation make, or have made."""
    status = vcluster.get("status") or {}
    operations = (status.get("journal"), value_at(vcluster, "spec", "operation"))
    return frozenset(
        snapshot_id(each["id"])
        for each in operations
        if each
        and each["id"] != status.get("lastOperation")
        and makes_snapshot(Verb(each["verb"]), each.get("arguments") or {})
    )


def with_pending(charge: Charge, names: Iterable[str], stored: Container[str]) -> Charge:
    """Return the charge of a virtual cluster with its pending snapshots, except those that are stored.

    Each of them has at least one byte, so that none begins when the limit of bytes is reached.
    """
    count = sum(each not in stored for each in names)
    if not count:
        return charge
    number = parse_quantity(str(count))
    return charge._replace(usage=charge.usage + ResourceList(snapshots=number, snapshotBytes=number))


def charges_of(vclusters: Iterable[Object], snapshots: Iterable[Object]) -> list[Charge]:
    """Return the charges of all objects of one kind and of the other."""
    stored = {name_of(each): snapshot_charge(each) for each in snapshots}
    own = [with_pending(vcluster_charge(each), pending_snapshots(each), stored) for each in vclusters]
    return [*own, *stored.values()]


def violations(quota: Object, others: Iterable[Charge], old: Charge | None, new: Charge) -> list[Violation]:
    """Return the limits of a Quota that a write exceeds. Only what the write adds can exceed a limit.

    `others` are all charges of the project except those of the written object.
    """
    spec = quota.get("spec") or {}
    charges = [each for each in others if each.project == new.project]
    own = [each for each in charges if each.owner == new.owner]
    return [
        *exceeded(spec.get("limits") or {}, charges, old, new, f"project {new.project}"),
        *exceeded(spec.get("userLimits") or {}, own, old, new, f"user {new.owner}"),
    ]


def exceeded(
    limits: Mapping[str, object], others: Iterable[Charge], old: Charge | None, new: Charge, subject: str
) -> list[Violation]:
    if not limits:
        return []
    used = ResourceList.total(each.usage for each in others)
    before = old.usage if old is not None else ResourceList()
    result = []
    for name in sorted(limits):
        limit = parse_quantity(str(limits[name]), name)
        total = used[name] + new.usage[name]
        if name in new.missing and (old is None or name not in old.missing):
            field = ".".join(AMOUNTS[name])
            result.append(Violation(subject, f"{name} is limited, so spec.{field} must be set"))
        elif new.usage[name] > before[name] and total > limit:
            requested = new.usage[name] - before[name]
            result.append(Violation(subject, f"{name}: requested {requested}, used {total - requested}, limit {limit}"))
    return result


def total_usage(charges: Iterable[Charge], project: str) -> ResourceList:
    return ResourceList.total(each.usage for each in charges if each.project == project)


def used_texts(usage: ResourceList) -> dict[str, str]:
    """Return the usage by each limit that there is."""
    return {name: str(usage[name]) for name in LIMITS}
