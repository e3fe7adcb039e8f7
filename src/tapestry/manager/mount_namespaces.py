"""The mount namespace during join and unjoin: selection, owner label and release.

A physical cluster has one mount namespace for each virtual cluster, with the label of that virtual cluster.  Namespaces
with objects of another virtual cluster are not used.
"""

from tapestry.apis import keys
from tapestry.apis.mount_labels import DEFAULT_MOUNT_NAMESPACE, is_taken, taken_message, virtual_cluster_of
from tapestry.apis.names import virtual_cluster_label
from tapestry.kube.objects import Object, labels_of, name_of, object_named, value_at
from tapestry.kube.resources import NAMESPACES, PODS, SECRETS, SERVICE_ACCOUNTS
from tapestry.manager.join_steps import Cluster, JoinError, Step, StepResult
from tapestry.manager.safeguards import Safeguards, level_for

NAME_SUFFIX_LENGTH = 12
"""Characters of the virtual cluster's label value in the name of a namespace."""


async def select_mount_namespace(requested: str, binding: Object | None, uid: str, physical: Cluster) -> str:
    """Return the name of the mount namespace: as requested, the binding's, one with our label, or a free one.

    Raise JoinError if it belongs to another virtual cluster.
    """
    label = virtual_cluster_label(uid)
    bound = value_at(binding, "spec", "mountNamespace", default="")
    if name := requested or bound:
        namespace = await physical.client.find(NAMESPACES, name)
        if is_taken(namespace, label):
            raise JoinError(taken_message(name, label))
        if not bound and await other_virtual_cluster(name, label, physical):
            problem = f"namespace {name} in the physical cluster contains objects of another virtual cluster"
            raise JoinError(f"{problem}; give another --mount-namespace")
        return name
    labelled = await physical.client.list(NAMESPACES, labels=f"{keys.VIRTUAL_CLUSTER}={label}")
    if labelled:
        return min(map(name_of, labelled))
    taken = is_taken(await physical.client.find(NAMESPACES, DEFAULT_MOUNT_NAMESPACE), label)
    if not taken and not await other_virtual_cluster(DEFAULT_MOUNT_NAMESPACE, label, physical):
        return DEFAULT_MOUNT_NAMESPACE
    name = f"{DEFAULT_MOUNT_NAMESPACE}-{label[:NAME_SUFFIX_LENGTH]}"
    note = f"it belongs to another virtual cluster; namespace {name} is used instead"
    physical.report(Step(StepResult.LEFT, physical.role, f"{NAMESPACES.kind} {DEFAULT_MOUNT_NAMESPACE}", note))
    return name


async def other_virtual_cluster(name: str, own_label: str, physical: Cluster) -> str:
    """Return the label of another virtual cluster with objects in the namespace, or "".

    This detects namespaces that were joined by versions without the namespace label.
    """
    for resource in (SERVICE_ACCOUNTS, PODS, SECRETS):
        labels = f"{keys.VIRTUAL_CLUSTER},{keys.VIRTUAL_CLUSTER}!={own_label}"
        for obj in await physical.client.list(resource, name, labels=labels):
            return virtual_cluster_of(obj)
    return ""


async def apply_mount_namespace(name: str, uid: str, safeguards: Safeguards, physical: Cluster) -> Object:
    """Apply the namespace with our label and a Pod Security level, and return it.

    An existing namespace keeps its other labels, and `unjoin` does not delete it.  It gets no label while another
    virtual cluster has objects there, because that one would stop working.
    """
    label = virtual_cluster_label(uid)
    current = await physical.wait_for_stable(NAMESPACES, object_named(name))
    level = level_for(current, safeguards.pod_security)
    labels = mount_namespace_labels(label, level)
    if current is not None:
        del labels[keys.MANAGED_BY]
    note = f"Pod Security level {level}"
    if safeguards.pod_security not in (None, level):
        note += f", which is stricter than {safeguards.pod_security} and stays; to relax it, change the label"
    if not virtual_cluster_of(current) and await other_virtual_cluster(name, label, physical):
        del labels[keys.VIRTUAL_CLUSTER]
        note += "; not labelled, because another virtual cluster has objects there: see the guide on upgrading"
    return await physical.apply(NAMESPACES, {"metadata": {"name": name, "labels": labels}}, adopt=True, note=note)


def mount_namespace_labels(virtual_cluster: str, level: str) -> dict[str, str]:
    """Return the labels of a new mount namespace, with a Pod Security level."""
    return {
        keys.OWNER_POLICY: keys.OWNER_POLICY_REQUIRED,
        keys.POD_SECURITY_ENFORCE: level,
        keys.VIRTUAL_CLUSTER: virtual_cluster,
        keys.MANAGED_BY: keys.TAPESTRY,
    }


async def record_safeguards(namespace: Object, names: list[str], physical: Cluster) -> None:
    """Record the installed safeguards.  Call it last, so that an interrupted join does not claim them."""
    current = await physical.client.get(NAMESPACES, name_of(namespace))
    desired = {"metadata": {"annotations": {keys.SAFEGUARDS: ",".join(sorted(names))}}}
    await physical.client.converge(NAMESPACES, current, desired)


async def release_mount_namespace(namespace: Object, physical: Cluster) -> None:
    """Remove our label and annotation from a namespace that join did not create."""
    removed = {"labels": {keys.VIRTUAL_CLUSTER: None}, "annotations": {keys.SAFEGUARDS: None}}
    updated = await physical.client.converge(NAMESPACES, namespace, {"metadata": removed})
    if updated is not namespace:
        level = labels_of(updated).get(keys.POD_SECURITY_ENFORCE, "")
        note = f"our label removed; Pod Security level {level} stays" if level else "our label removed"
        physical.report(Step(StepResult.UPDATED, physical.role, f"{NAMESPACES.kind} {name_of(namespace)}", note))
