"""`tapestry unjoin`: delete a ClusterBinding and the objects that join created in both clusters.

The manager and the syncer clean up the binding, and unjoin waits for them.  With force, unjoin also works if neither
runs.  In the physical cluster, objects of this binding are deleted by their labels.  Shared objects are deleted with
the last binding, and the mount namespace only if it is empty.  Leftovers of earlier forced unjoins are deleted first.
Until that is done, the Secret with the kubeconfig stays for the manager.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, UNBIND_GRACE_SECONDS
from tapestry.apis.mount_labels import virtual_cluster_of
from tapestry.apis.names import virtual_cluster_label
from tapestry.apis.ownership import MAX_GRACE_SECONDS
from tapestry.apis.policies import POLICIES
from tapestry.apis.priorities import PRIORITY_CLASSES
from tapestry.client.watch import wait_for
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import Conflict, NotFound, TransportError
from tapestry.kube.objects import Object, key_of, labels_of, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIGMAPS,
    CRDS,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_QUOTAS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Resource,
)
from tapestry.manager.join_steps import Cluster, JoinError, Step, StepResult, has_owner_labels, list_or_empty
from tapestry.manager.joining import account_name, owner_labels, policy_name, selector
from tapestry.manager.leftovers import (
    Leftover,
    leftover_message,
    leftovers_in,
    record_leftover,
    remove_leftovers,
    remove_virtual_nodes,
)
from tapestry.manager.location import manager_namespace
from tapestry.manager.mount_namespaces import release_mount_namespace

BINDING_RESOURCES = (
    *(CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS, POLICIES),
    *(RESOURCE_QUOTAS, NETWORK_POLICIES, ADMISSION_POLICY_BINDINGS, ADMISSION_POLICIES),
)
"""Resources that join creates for one binding.  Permissions are deleted before the policies that restrict them."""
CONTENTS = (PODS, SERVICES, SECRETS, CONFIGMAPS, PERSISTENT_VOLUME_CLAIMS)
"""Resources that must be absent before a namespace is deleted."""
ROOT_CERTIFICATES = "kube-root-ca.crt"
"""Name of the ConfigMap that Kubernetes creates in every namespace."""
MANAGED_SELECTOR = f"{keys.MANAGED_BY}={keys.TAPESTRY}"
FORCE_TIMEOUT = 30.0
"""Seconds that the manager gets for a forced deletion, before unjoin does it."""
PROGRESS_INTERVAL = 5.0
STUCK_SECONDS = 30.0
"""Seconds after the grace period at which --force is suggested."""
FORCE_ATTEMPTS, RETRY_INTERVAL = 10, 1.0
"""Number of attempts of a forced deletion, and the seconds between them."""
ENDING_SECONDS = 2 * MAX_GRACE_SECONDS
"""Seconds for leftover pods to terminate."""


async def unjoin(
    name: str, virtual: Cluster, physical: Cluster | None, *, force: bool = False, timeout: float = 300.0
) -> None:
    """Delete the binding, wait until it is deleted, and delete the objects that join created.

    Raise JoinError if the deletion does not finish, if no such binding exists and, without force, if the physical
    cluster is unreachable.
    """
    uid = await virtual.identity()
    binding = await virtual.find(CLUSTER_BINDINGS, object_named(name))
    if binding is not None:
        await delete_binding(binding, virtual, force=force, timeout=timeout)
    place = value_at(binding, "spec", "secretRef", "namespace") or await manager_namespace(virtual.client)
    secret = await virtual.find(SECRETS, object_named(name, place))
    if secret is not None and not has_owner_labels(secret, {"metadata": {"labels": owner_labels(uid, name)}}):
        secret = None  # not created by join
    if binding is None and secret is None and physical is None:
        raise JoinError(f"ClusterBinding {name} does not exist; `tapestry status` lists all bindings")
    leftovers = leftovers_in(secret)
    if physical is None:
        report_leftovers(virtual, uid, name, binding, "run unjoin again with --cluster-kubeconfig to delete it")
    else:
        try:
            leftovers = await wait_for_leftovers(physical, leftovers)
            await remove_join_objects(physical, uid, name, value_at(binding, "spec", "mountNamespace"))
        except TransportError as error:
            report_leftovers(virtual, uid, name, binding, "the cluster is unreachable; run unjoin again later")
            if not force:
                raise JoinError(f"the physical cluster is unreachable: {error}") from error
    if secret is not None:
        await release_secret(virtual, secret, leftovers)


# -- virtual cluster


async def release_secret(virtual: Cluster, secret: Object, leftovers: list[Leftover]) -> None:
    """Delete the Secret, unless the manager needs it to clean up the physical cluster."""
    if not leftovers:
        await virtual.remove(SECRETS, secret)
        return
    note = "; ".join(f"kept until the manager has deleted {each}" for each in leftovers)
    virtual.report(Step(StepResult.LEFT, virtual.role, f"{SECRETS.kind} {key_of(secret)}", note))


async def delete_binding(binding: Object, virtual: Cluster, *, force: bool, timeout: float) -> None:
    name, client = name_of(binding), virtual.client
    pods = await pods_on_nodes_of(binding, virtual) if force else []
    if force:
        patch = {"metadata": {"annotations": {keys.FORCE_UNBIND: "true"}}}
        await client.patch(CLUSTER_BINDINGS, object_named(name), patch)
    with suppress(NotFound):
        await client.delete(CLUSTER_BINDINGS, {"metadata": {"name": name, "uid": uid_of(binding)}})
    try:
        await wait_for_deletion(binding, virtual, min(timeout, FORCE_TIMEOUT) if force else timeout, force=force)
    except TimeoutError:
        if not force:
            hint = f"does its syncer run? `tapestry unjoin {name} --force` deletes it without the syncer"
            raise JoinError(f"ClusterBinding {name} still exists after {timeout:g} s; {hint}") from None
        await force_delete_binding(binding, virtual)
    virtual.report(Step(StepResult.DELETED, virtual.role, f"{CLUSTER_BINDINGS.kind} {name}"))
    if force:
        virtual.report(Step(StepResult.LEFT, "physical", leftover_message(binding, pods)))


async def pods_on_nodes_of(binding: Object, virtual: Cluster) -> list[Object]:
    nodes = await virtual.client.list(NODES, labels=f"{keys.CLUSTER_BINDING_UID}={uid_of(binding)}")
    return [pod for node in nodes for pod in await virtual.client.list(PODS, fields=f"spec.nodeName={name_of(node)}")]


async def wait_for_deletion(binding: Object, virtual: Cluster, timeout: float, *, force: bool) -> None:
    """Wait for the deletion, reporting what the binding waits for and the seconds left for its pods."""
    loop = asyncio.get_running_loop()
    started, reported, last = loop.time(), "", binding
    grace = float(value_at(binding, "spec", "unbindGraceSeconds", default=UNBIND_GRACE_SECONDS))

    def report(message: str) -> None:
        virtual.report(Step(StepResult.WAITING, virtual.role, f"{CLUSTER_BINDINGS.kind} {name_of(binding)}", message))

    def is_deleted(obj: Object | None) -> bool:
        nonlocal reported, last
        if obj is None or uid_of(obj) != uid_of(binding):
            return True
        last = obj
        if (message := progress(obj)) != reported:
            reported = message
            report(message)
        return False

    while True:
        remaining = timeout - (loop.time() - started)
        interval = min(remaining, PROGRESS_INTERVAL)
        try:
            await wait_for(virtual.client, CLUSTER_BINDINGS, name_of(binding), until=is_deleted, timeout=interval)
        except TimeoutError:
            if remaining <= PROGRESS_INTERVAL:
                raise
            report(countdown(last, loop.time() - started, grace, force=force))
        else:
            return


def countdown(binding: Object, elapsed: float, grace: float, *, force: bool) -> str:
    """Describe the progress after `elapsed` seconds.  If it takes too long, suggest what to do."""
    pending = progress(binding)
    if elapsed < grace and not force:
        message = f"pods have {grace - elapsed:.0f} s left to terminate"
    elif force or elapsed < grace + STUCK_SECONDS:
        message = f"{elapsed:.0f} s so far"
    else:
        hint = f"if its syncer does not run, use `tapestry unjoin {name_of(binding)} --force`"
        message = f"{elapsed:.0f} s so far; {hint}"
    return "; ".join(filter(None, (pending, message)))


def progress(binding: Object) -> str:
    """Describe what a deleted binding still waits for."""
    ready = find_condition(value_at(binding, "status", "conditions"), "Ready") or {}
    nodes = value_at(binding, "status", "nodes", default=0)
    pending = [f"{nodes} virtual nodes"] if nodes else []
    if keys.SYNCER_FINALIZER in binding["metadata"].get("finalizers", []):
        pending.append("its syncer")
    if value_at(binding, "status", "phase") == "Deleting":
        pending.append(ready.get("message", ""))
    return "; ".join(filter(None, pending))


async def force_delete_binding(binding: Object, virtual: Cluster) -> None:
    """Do what the manager would do for a forced deletion.  After some attempts, give up on remaining nodes."""
    ours = (keys.MANAGER_FINALIZER, keys.SYNCER_FINALIZER)
    for attempt in range(1, FORCE_ATTEMPTS + 1):
        try:
            done = await remove_virtual_nodes(virtual.client, binding, lambda _: None)
            if done or attempt == FORCE_ATTEMPTS:
                current = await virtual.client.get(CLUSTER_BINDINGS, name_of(binding))
                finalizers = [each for each in current["metadata"].get("finalizers", []) if each not in ours]
                if uid_of(current) == uid_of(binding):
                    await record_leftover(virtual.client, await secret_of(binding, virtual), current)
                    await virtual.client.patch(CLUSTER_BINDINGS, current, {"metadata": {"finalizers": finalizers}})
                return
        except NotFound:
            return
        except Conflict:  # the manager is running after all
            pass
        await asyncio.sleep(RETRY_INTERVAL)


async def secret_of(binding: Object, virtual: Cluster) -> Object | None:
    reference = value_at(binding, "spec", "secretRef", default={})
    return await virtual.find(SECRETS, object_named(reference["name"], reference["namespace"]))


# -- physical cluster


async def wait_for_leftovers(physical: Cluster, leftovers: list[Leftover]) -> list[Leftover]:
    """Delete the leftovers of forced unjoins in this cluster.  Return those of other clusters.

    Raise JoinError if the deletion does not finish: the account that is still there is needed to finish it.
    """
    for attempt in range(ENDING_SECONDS):
        leftovers, objects = await remove_leftovers(physical.client, leftovers) if leftovers else ([], [])
        if not objects:
            return leftovers
        if attempt == 0:
            physical.report(Step(StepResult.WAITING, physical.role, f"{len(objects)} objects that were left behind"))
        await asyncio.sleep(RETRY_INTERVAL)
    raise JoinError(f"still being deleted in the physical cluster: {', '.join(objects[:5])}; check their finalizers")


async def remove_join_objects(physical: Cluster, uid: str, name: str, mount: str | None) -> None:
    """Delete the objects that join created: first permissions, last shared objects that are unused."""
    for resource in BINDING_RESOURCES:
        for obj in await list_or_empty(physical, resource, selector(owner_labels(uid, name))):
            mount = mount or obj["metadata"].get("namespace")
            await physical.remove(resource, obj)
    others = await list_or_empty(physical, SERVICE_ACCOUNTS, MANAGED_SELECTOR)
    for resource in (PRIORITY_CLASSES, CRDS) if not others else ():
        for obj in await list_or_empty(physical, resource, MANAGED_SELECTOR):
            await remove_if_unused(physical, resource, obj)
    for obj in await find_mount_namespaces(physical, uid, mount):
        if labels_of(obj).get(keys.MANAGED_BY) == keys.TAPESTRY:
            await remove_if_unused(physical, NAMESPACES, obj)
        else:
            await release_mount_namespace(obj, physical)


async def find_mount_namespaces(physical: Cluster, uid: str, mount: str | None) -> list[Object]:
    """Return the namespaces with our label, and the binding's namespace if it has no label."""
    label = virtual_cluster_label(uid)
    labelled = await physical.client.list(NAMESPACES, labels=f"{keys.VIRTUAL_CLUSTER}={label}")
    unlabelled = await physical.client.find(NAMESPACES, mount) if mount else None
    return [*labelled, *([unlabelled] if unlabelled is not None and not virtual_cluster_of(unlabelled) else [])]


async def remove_if_unused(physical: Cluster, resource: Resource, obj: Object) -> None:
    if contents := await remaining_contents(physical, resource, obj):
        subject = f"{resource.kind} {name_of(obj)}"
        physical.report(Step(StepResult.LEFT, physical.role, subject, f"it contains {', '.join(contents[:5])}"))
    else:
        await physical.remove(resource, obj)


async def remaining_contents(physical: Cluster, resource: Resource, obj: Object) -> list[str]:
    """Return the contents of a shared object that are not ours and would be deleted with it."""
    if resource is CRDS:
        return [f"{POLICIES.kind} {name_of(each)}" for each in await list_or_empty(physical, POLICIES, "")]
    if resource is not NAMESPACES:
        return []
    contents = [(kind, each) for kind in CONTENTS for each in await physical.client.list(kind, name_of(obj))]
    accounts = await physical.client.list(SERVICE_ACCOUNTS, name_of(obj), labels=MANAGED_SELECTOR)
    contents += [(SERVICE_ACCOUNTS, each) for each in accounts]
    return [f"{kind.kind} {name_of(each)}" for kind, each in contents if name_of(each) != ROOT_CERTIFICATES]


def report_leftovers(virtual: Cluster, uid: str, name: str, binding: Object | None, why: str) -> None:
    for subject in join_object_names(uid, name, value_at(binding, "spec", "mountNamespace")):
        virtual.report(Step(StepResult.LEFT, "physical", subject, why))


def join_object_names(uid: str, name: str, mount: str | None) -> Iterator[str]:
    """Yield the names of the objects that join creates in the physical cluster for one binding."""
    account = account_name(uid, name)
    for resource in BINDING_RESOURCES:
        place = f"{mount or 'the mount namespace'}/" if resource.namespaced else ""
        if resource in (POLICIES, RESOURCE_QUOTAS, NETWORK_POLICIES):
            yield f"{resource.kind} {place}{policy_name(uid, name)}"
        elif resource.group == ADMISSION_POLICIES.group:
            yield f"{resource.kind} {account}-*"
        else:
            yield f"{resource.kind} {place}{account}"
