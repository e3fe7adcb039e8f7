"""Safeguards of the owners, as `tapestry doctor` sees them: which parts of an installation are missing below.

A syncer's account can read the labels and annotations of its mount namespace, and nothing else of what `tapestry join`
sets up.  So the label says what is enforced, and the annotation that join writes last says what it has set up.
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
    """What is missing in the mount namespace of each binding; nothing of those that cannot be looked into."""
    bindings = await virtual.list(CLUSTER_BINDINGS)
    async with asyncio.TaskGroup() as group:
        asked = [(each, group.create_task(read_mount_namespace(virtual, each, connect))) for each in bindings]
    return [safeguard_finding(binding, task.result()) for binding, task in asked if task.result() is not None]


async def read_mount_namespace(virtual: Client, binding: Object, connect: Connect) -> Object | None:
    """The mount namespace of a binding; None where it is not there or cannot be seen."""
    name = value_at(binding, "spec", "mountNamespace", default="")
    try:
        async with physical_client(virtual, binding, connect) as client:
            found = await client.list(NAMESPACES, fields=f"metadata.name={name}")
    except ClusterUnreadable:
        return None
    return found[0] if found else None


def safeguard_finding(binding: Object, namespace: Object | None) -> Finding:
    name, place = name_of(binding), value_at(binding, "spec", "mountNamespace", default="")
    about = f"safeguards of {name}"
    if lacks := list(missing_safeguards(binding, namespace)):
        advice = f"`tapestry join {name} --cluster-kubeconfig FILE` sets them up; pods that run there stay"
        return Finding(about, "warning", f"namespace {place} lacks {', '.join(lacks)}", advice)
    quota = "a quota" if QUOTA in safeguards_of(namespace) else "no quota"
    return Finding(about, "ok", f"namespace {place} is marked, enforces {enforced_level(namespace)}, and has {quota}")


def missing_safeguards(binding: Object, namespace: Object | None) -> Iterator[str]:
    """The parts that `tapestry join` would set up."""
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
