"""Safeguards in mount namespaces, as `tapestry doctor` checks them.

A syncer's account can read only the labels and annotations of its mount namespace.  The label shows the enforced level,
and the annotation that `tapestry join` writes last lists what it has set up.
"""

import asyncio
from collections.abc import Iterator

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.mount_labels import enforced_level, safeguards_of, virtual_cluster_of
from tapestry.client.client import Client
from tapestry.inspect.findings import Finding
from tapestry.inspect.snapshots import ClusterUnreadable, physical_client
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.resources import NAMESPACES
from tapestry.manager.connectivity import Connect
from tapestry.manager.safeguards import NETWORK_POLICY, NO_NETWORK_POLICY, QUOTA, VOLUME_POLICIES


async def safeguard_findings(virtual: Client, connect: Connect) -> list[Finding]:
    """Check the mount namespace of each binding; skip unreadable clusters."""
    bindings = await virtual.list(CLUSTER_BINDINGS)
    async with asyncio.TaskGroup() as group:
        tasks = [(each, group.create_task(read_mount_namespace(virtual, each, connect))) for each in bindings]
    return [safeguard_finding(binding, task.result()) for binding, task in tasks if task.result() is not None]


async def read_mount_namespace(virtual: Client, binding: Object, connect: Connect) -> Object | None:
    """Return the mount namespace of a binding; None if it is missing or unreadable."""
    name = value_at(binding, "spec", "mountNamespace", default="")
    try:
        async with physical_client(virtual, binding, connect) as client:
            found = await client.list(NAMESPACES, fields=f"metadata.name={name}")
    except ClusterUnreadable:
        return None
    return found[0] if found else None


def safeguard_finding(binding: Object, namespace: Object | None) -> Finding:
    name, mount = name_of(binding), value_at(binding, "spec", "mountNamespace", default="")
    about = f"safeguards of {name}"
    if missing := list(missing_safeguards(binding, namespace)):
        advice = f"`tapestry join {name} --cluster-kubeconfig FILE` sets them up; running pods stay"
        return Finding(about, "warning", f"namespace {mount} lacks {', '.join(missing)}", advice)
    quota = "a quota" if QUOTA in safeguards_of(namespace) else "no quota"
    return Finding(about, "ok", f"namespace {mount} is marked, enforces {enforced_level(namespace)}, and has {quota}")


def missing_safeguards(binding: Object, namespace: Object | None) -> Iterator[str]:
    """Yield the parts that `tapestry join` would set up."""
    set_up = safeguards_of(namespace)
    if not virtual_cluster_of(namespace):
        yield "the mark of its virtual cluster"
    if enforced_level(namespace) is None:
        yield "a Pod Security level"
    if not set_up & {NETWORK_POLICY, NO_NETWORK_POLICY}:
        yield "a network policy"
    if not set_up:
        yield "a quota (only if you give --max-cpu, --max-memory or --max-pods)"
    if value_at(binding, "spec", "allowedVolumes", "drivers") and VOLUME_POLICIES not in set_up:
        yield "admission policies for volumes"
    permitted = find_condition(value_at(binding, "status", "conditions"), "Permitted") or {}
    if permitted.get("reason") == keys.PRIORITY_CLASS_MISSING:
        yield "the priority class"
