"""The mount namespace, as `tapestry join` and `tapestry unjoin` see it: chosen, marked, and given back.

A physical cluster has one mount namespace for each virtual cluster.  It carries the mark of that virtual cluster, and
nobody else's objects are taken over.
"""

from tapestry.apis import keys
from tapestry.apis.mount_labels import DEFAULT_MOUNT_NAMESPACE, is_taken, taken_message, virtual_cluster_of
from tapestry.apis.names import virtual_cluster_label
from tapestry.kube.objects import Object, labels_of, name_of, object_named, value_at
from tapestry.kube.resources import NAMESPACES, PODS, SECRETS, SERVICE_ACCOUNTS
from tapestry.manager.join_steps import Cluster, JoinError, Step, StepResult
from tapestry.manager.safeguards import Safeguards, level_for

NAME_SUFFIX_LENGTH = 12
"""Characters of the mark in the name of a namespace."""


async def select_mount_namespace(requested: str, binding: Object | None, uid: str, physical: Cluster) -> str:
    """The name of the mount namespace: the one asked for, the binding's, the one with our mark, or a free one.

    Raises JoinError where it belongs to another virtual cluster.
    """
    mark = virtual_cluster_label(uid)
    bound = value_at(binding, "spec", "mountNamespace", default="")
    if name := requested or bound:
        namespace = await physical.client.find(NAMESPACES, name)
        if is_taken(namespace, mark):
            raise JoinError(taken_message(name, mark))
        if not bound and await other_virtual_cluster(name, mark, physical):
            held = f"namespace {name} in the physical cluster holds objects of another virtual cluster"
            raise JoinError(f"{held}; give another --mount-namespace")
        return name
    marked = await physical.client.list(NAMESPACES, labels=f"{keys.VIRTUAL_CLUSTER}={mark}")
    if marked:
        return min(map(name_of, marked))
    taken = is_taken(await physical.client.find(NAMESPACES, DEFAULT_MOUNT_NAMESPACE), mark)
    if not taken and not await other_virtual_cluster(DEFAULT_MOUNT_NAMESPACE, mark, physical):
        return DEFAULT_MOUNT_NAMESPACE
    chosen = f"{DEFAULT_MOUNT_NAMESPACE}-{mark[:NAME_SUFFIX_LENGTH]}"
    note = f"it belongs to another virtual cluster; namespace {chosen} is used instead"
    physical.report(Step(StepResult.LEFT, physical.role, f"{NAMESPACES.kind} {DEFAULT_MOUNT_NAMESPACE}", note))
    return chosen


async def other_virtual_cluster(name: str, mark: str, physical: Cluster) -> str:
    """The mark of another virtual cluster that has objects in the namespace; empty where none has.

    A namespace that was joined before there were marks is recognized by this.
    """
    for resource in (SERVICE_ACCOUNTS, PODS, SECRETS):
        labels = f"{keys.VIRTUAL_CLUSTER},{keys.VIRTUAL_CLUSTER}!={mark}"
        for obj in await physical.client.list(resource, name, labels=labels):
            return virtual_cluster_of(obj)
    return ""


async def apply_mount_namespace(name: str, uid: str, safeguards: Safeguards, physical: Cluster) -> Object:
    """Have the namespace with our mark and a Pod Security level; returns it.

    One that was there before keeps its own labels, and is not deleted by `unjoin`.  It stays without a mark while
    another virtual cluster has objects there, for that one would stop working.
    """
    mark = virtual_cluster_label(uid)
    current = await physical.wait_for_stable(NAMESPACES, object_named(name))
    level = level_for(current, safeguards.pod_security)
    labels = {
        keys.OWNER_POLICY: keys.OWNER_POLICY_REQUIRED,
        keys.POD_SECURITY_ENFORCE: level,
        keys.VIRTUAL_CLUSTER: mark,
    }
    if current is None:
        labels[keys.MANAGED_BY] = keys.TAPESTRY
    note = f"Pod Security level {level}"
    if safeguards.pod_security not in (None, level):
        note += f", which is stricter than {safeguards.pod_security} and stays; to loosen it, change the label yourself"
    if not virtual_cluster_of(current) and await other_virtual_cluster(name, mark, physical):
        del labels[keys.VIRTUAL_CLUSTER]
        note += "; not marked, for another virtual cluster has objects there: see the guide on upgrading"
    return await physical.apply(NAMESPACES, {"metadata": {"name": name, "labels": labels}}, adopt=True, note=note)


async def record_safeguards(namespace: Object, names: list[str], physical: Cluster) -> None:
    """Write down what was set up; last, so that a run that was interrupted does not claim it."""
    current = await physical.client.get(NAMESPACES, name_of(namespace))
    wanted = {"metadata": {"annotations": {keys.SAFEGUARDS: ",".join(sorted(names))}}}
    await physical.client.converge(NAMESPACES, current, wanted)


async def release_mount_namespace(namespace: Object, physical: Cluster) -> None:
    """Take our mark off a namespace that join did not create; everything else on it stays."""
    marks = {"labels": {keys.VIRTUAL_CLUSTER: None}, "annotations": {keys.SAFEGUARDS: None}}
    updated = await physical.client.converge(NAMESPACES, namespace, {"metadata": marks})
    if updated is not namespace:
        level = labels_of(updated).get(keys.POD_SECURITY_ENFORCE, "")
        note = f"without our mark; Pod Security level {level} stays" if level else "without our mark"
        physical.report(Step(StepResult.UPDATED, physical.role, f"{NAMESPACES.kind} {name_of(namespace)}", note))
