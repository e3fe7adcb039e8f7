"""Unjoining: the end of a binding, as whoever asks for it sees it, and of what join made in both clusters.

The manager and the syncer see to the binding itself, and this only watches them.  By force it also ends where neither
is at work any more.  Below, what is for this binding alone goes by its marks; what bindings share goes with the last of
them, and the mount namespace only when nothing is left in it.  What a binding left there that was ended by force goes
first; as long as that is not done, the Secret with the kubeconfig stays, for the manager to do it by.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.mount_labels import virtual_cluster_of
from tapestry.apis.names import virtual_cluster_label
from tapestry.apis.ownership import MAX_GRACE_SECONDS
from tapestry.apis.policies import POLICIES
from tapestry.apis.priorities import PRIORITY_CLASSES
from tapestry.client.waiting import wait_for
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
from tapestry.manager.cleanup import leftover_message, remove_virtual_nodes
from tapestry.manager.join_steps import Cluster, JoinError, Step, StepResult, has_owner_labels, list_or_empty
from tapestry.manager.joining import account_name, manager_namespace, owner_labels, policy_name, selector
from tapestry.manager.leftovers import Leftover, leftovers_in, record_leftover, remove_leftovers
from tapestry.manager.mount_namespaces import release_mount_namespace

OF_ONE_BINDING = (
    *(CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS, POLICIES),
    *(RESOURCE_QUOTAS, NETWORK_POLICIES, ADMISSION_POLICY_BINDINGS, ADMISSION_POLICIES),
)
"""What join creates for one binding; the rights go before what limits them."""
CONTENTS = (PODS, SERVICES, SECRETS, CONFIGMAPS, PERSISTENT_VOLUME_CLAIMS)
"""What keeps a namespace from being empty."""
ROOT_CERTIFICATES = "kube-root-ca.crt"
"""The ConfigMap that Kubernetes puts into every namespace."""
MANAGED_SELECTOR = f"{keys.MANAGED_BY}={keys.TAPESTRY}"
FORCE_SECONDS = 30.0
"""How long a binding that is left by force is given to the manager, before we end it ourselves."""
PROGRESS_INTERVAL = 5.0
"""How often the time that is left is told."""
STUCK_SECONDS = 30.0
"""How long after its grace a binding may take to go before force is suggested."""
FORCE_ATTEMPTS, RETRY_INTERVAL = 10, 1.0
"""How often we try that, and the seconds between."""
ENDING_SECONDS = 2 * MAX_GRACE_SECONDS
"""How long pods that were left behind may take to end."""


async def unjoin(
    name: str, virtual: Cluster, physical: Cluster | None, *, force: bool = False, timeout: float = 300.0
) -> None:
    """Delete the binding, wait until it is gone, and remove what join made.

    Raises JoinError where it does not go, where there is nothing of that name, and, unless by force, where the physical
    cluster does not answer.
    """
    uid = await virtual.identity()
    binding = await virtual.find(CLUSTER_BINDINGS, object_named(name))
    if binding is not None:
        await delete_binding(binding, virtual, force=force, timeout=timeout)
    place = value_at(binding, "spec", "secretRef", "namespace") or await manager_namespace(virtual)
    secret = await virtual.find(SECRETS, object_named(name, place))
    if secret is not None and not has_owner_labels(secret, {"metadata": {"labels": owner_labels(uid, name)}}):
        secret = None  # not ours
    if binding is None and secret is None and physical is None:
        raise JoinError(f"there is no ClusterBinding {name}; `tapestry status` lists those there are")
    leftovers = leftovers_in(secret)
    if physical is None:
        report_leftovers(virtual, uid, name, binding, "run it again with --cluster-kubeconfig to remove it")
    else:
        try:
            leftovers = await wait_for_leftovers(physical, leftovers)
            await remove_join_objects(physical, uid, name, value_at(binding, "spec", "mountNamespace"))
        except TransportError as error:
            report_leftovers(virtual, uid, name, binding, "the cluster does not answer; run it again when it does")
            if not force:
                raise JoinError(f"the physical cluster does not answer: {error}") from error
    if secret is not None:
        await release_secret(virtual, secret, leftovers)


# -- above


async def release_secret(virtual: Cluster, secret: Object, leftovers: list[Leftover]) -> None:
    """Remove the Secret, unless the manager needs it to remove what is left below."""
    if not leftovers:
        await virtual.remove(SECRETS, secret)
        return
    note = "; ".join(f"kept until {each} is gone" for each in leftovers)
    virtual.report(Step(StepResult.LEFT, virtual.role, f"{SECRETS.kind} {key_of(secret)}", note))


async def delete_binding(binding: Object, virtual: Cluster, *, force: bool, timeout: float) -> None:
    """Delete the binding and see it go."""
    name, client = name_of(binding), virtual.client
    pods = await pods_on_nodes_of(binding, virtual) if force else []
    if force:
        mark = {"metadata": {"annotations": {keys.FORCE_UNBIND: "true"}}}
        await client.patch(CLUSTER_BINDINGS, object_named(name), mark)
    with suppress(NotFound):
        await client.delete(CLUSTER_BINDINGS, {"metadata": {"name": name, "uid": uid_of(binding)}})
    try:
        await wait_for_deletion(binding, virtual, min(timeout, FORCE_SECONDS) if force else timeout, force=force)
    except TimeoutError:
        if not force:
            hint = f"is its syncer at work? `tapestry unjoin {name} --force` ends it without"
            raise JoinError(f"ClusterBinding {name} is still there after {timeout:g} s; {hint}") from None
        await force_delete_binding(binding, virtual)
    virtual.report(Step(StepResult.DELETED, virtual.role, f"{CLUSTER_BINDINGS.kind} {name}"))
    if force:
        virtual.report(Step(StepResult.LEFT, "physical", leftover_message(binding, pods)))


async def pods_on_nodes_of(binding: Object, virtual: Cluster) -> list[Object]:
    nodes = await virtual.client.list(NODES, labels=f"{keys.CLUSTER_BINDING_UID}={uid_of(binding)}")
    return [pod for node in nodes for pod in await virtual.client.list(PODS, fields=f"spec.nodeName={name_of(node)}")]


async def wait_for_deletion(binding: Object, virtual: Cluster, timeout: float, *, force: bool) -> None:
    """Wait, tell what the binding waits for, and count down the seconds that its pods have to end."""
    loop = asyncio.get_running_loop()
    started, told, last = loop.time(), "", binding
    grace = float(value_at(binding, "spec", "unbindGraceSeconds", default=MAX_GRACE_SECONDS))

    def tell(news: str) -> None:
        virtual.report(Step(StepResult.WAITING, virtual.role, f"{CLUSTER_BINDINGS.kind} {name_of(binding)}", news))

    def is_gone(obj: Object | None) -> bool:
        nonlocal told, last
        if obj is None or uid_of(obj) != uid_of(binding):
            return True
        last = obj
        if (news := progress(obj)) != told:
            told = news
            tell(news)
        return False

    while True:
        left = timeout - (loop.time() - started)
        try:
            await wait_for(
                virtual.client, CLUSTER_BINDINGS, name_of(binding), until=is_gone, timeout=min(left, PROGRESS_INTERVAL)
            )
        except TimeoutError:
            if left <= PROGRESS_INTERVAL:
                raise
            tell(countdown(last, loop.time() - started, grace, force=force))
        else:
            return


def countdown(binding: Object, elapsed: float, grace: float, *, force: bool) -> str:
    """How long the pods still have, after so many seconds; and what to do, once it takes far longer than that."""
    waits = progress(binding)
    if elapsed < grace and not force:
        news = f"pods have {grace - elapsed:.0f} s left to end"
    elif force or elapsed < grace + STUCK_SECONDS:
        news = f"{elapsed:.0f} s so far"
    else:
        hint = f"if its syncer does not run, `tapestry unjoin {name_of(binding)} --force` ends it without"
        news = f"{elapsed:.0f} s so far; {hint}"
    return "; ".join(filter(None, (waits, news)))


def progress(binding: Object) -> str:
    """What a binding that goes still waits for."""
    ready = find_condition(value_at(binding, "status", "conditions"), "Ready") or {}
    nodes = value_at(binding, "status", "nodes", default=0)
    waits = [f"{nodes} virtual nodes"] if nodes else []
    if keys.SYNCER_FINALIZER in binding["metadata"].get("finalizers", []):
        waits.append("its syncer")
    if value_at(binding, "status", "phase") == "Deleting":
        waits.append(ready.get("message", ""))
    return "; ".join(filter(None, waits))


async def force_delete_binding(binding: Object, virtual: Cluster) -> None:
    """Do what the manager would do by force: nobody else did.  What cannot be removed is given up after a while."""
    ours = (keys.MANAGER_FINALIZER, keys.SYNCER_FINALIZER)
    for attempt in range(1, FORCE_ATTEMPTS + 1):
        try:
            gone = await remove_virtual_nodes(virtual.client, binding, lambda _: None)
            if gone or attempt == FORCE_ATTEMPTS:
                current = await virtual.client.get(CLUSTER_BINDINGS, name_of(binding))
                kept = [each for each in current["metadata"].get("finalizers", []) if each not in ours]
                if uid_of(current) == uid_of(binding):
                    await record_leftover(virtual.client, await secret_of(binding, virtual), current)
                    await virtual.client.patch(CLUSTER_BINDINGS, current, {"metadata": {"finalizers": kept}})
                return
        except NotFound:
            return
        except Conflict:  # somebody is at work after all
            pass
        await asyncio.sleep(RETRY_INTERVAL)


async def secret_of(binding: Object, virtual: Cluster) -> Object | None:
    reference = value_at(binding, "spec", "secretRef", default={})
    return await virtual.find(SECRETS, object_named(reference["name"], reference["namespace"]))


# -- below


async def wait_for_leftovers(physical: Cluster, leftovers: list[Leftover]) -> list[Leftover]:
    """Remove what bindings left here that were ended by force; returns those that left it elsewhere.

    JoinError where it does not go: whoever removes it then needs the account that is still there.
    """
    for attempt in range(ENDING_SECONDS):
        leftovers, objects = await remove_leftovers(physical.client, leftovers) if leftovers else ([], [])
        if not objects:
            return leftovers
        if attempt == 0:
            physical.report(Step(StepResult.WAITING, physical.role, f"{len(objects)} objects that were left behind"))
        await asyncio.sleep(RETRY_INTERVAL)
    raise JoinError(f"still being deleted in the physical cluster: {', '.join(objects[:5])}; see what holds it")


async def remove_join_objects(physical: Cluster, uid: str, name: str, mount: str | None) -> None:
    """Remove what join made below: first the rights, last what is shared, if nobody else needs it."""
    for resource in OF_ONE_BINDING:
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
    """The namespaces with our mark, and that of the binding if it has none."""
    mark = virtual_cluster_label(uid)
    found = await physical.client.list(NAMESPACES, labels=f"{keys.VIRTUAL_CLUSTER}={mark}")
    unmarked = await physical.client.find(NAMESPACES, mount) if mount else None
    return [*found, *([unmarked] if unmarked is not None and not virtual_cluster_of(unmarked) else [])]


async def remove_if_unused(physical: Cluster, resource: Resource, obj: Object) -> None:
    if held := await remaining_contents(physical, resource, obj):
        what = f"{resource.kind} {name_of(obj)}"
        physical.report(Step(StepResult.LEFT, physical.role, what, f"it holds {', '.join(held[:5])}"))
    else:
        await physical.remove(resource, obj)


async def remaining_contents(physical: Cluster, resource: Resource, obj: Object) -> list[str]:
    """What would go with a shared object, and is not ours to remove."""
    if resource is CRDS:
        return [f"{POLICIES.kind} {name_of(each)}" for each in await list_or_empty(physical, POLICIES, "")]
    if resource is not NAMESPACES:
        return []
    contents = [(kind, each) for kind in CONTENTS for each in await physical.client.list(kind, name_of(obj))]
    accounts = await physical.client.list(SERVICE_ACCOUNTS, name_of(obj), labels=MANAGED_SELECTOR)
    contents += [(SERVICE_ACCOUNTS, each) for each in accounts]
    return [f"{kind.kind} {name_of(each)}" for kind, each in contents if name_of(each) != ROOT_CERTIFICATES]


def report_leftovers(virtual: Cluster, uid: str, name: str, binding: Object | None, why: str) -> None:
    for what in join_object_names(uid, name, value_at(binding, "spec", "mountNamespace")):
        virtual.report(Step(StepResult.LEFT, "physical", what, why))


def join_object_names(uid: str, name: str, mount: str | None) -> Iterator[str]:
    """What join makes below for one binding, by name."""
    account = account_name(uid, name)
    for resource in OF_ONE_BINDING:
        place = f"{mount or 'the mount namespace'}/" if resource.namespaced else ""
        if resource in (POLICIES, RESOURCE_QUOTAS, NETWORK_POLICIES):
            yield f"{resource.kind} {place}{policy_name(uid, name)}"
        elif resource.group == ADMISSION_POLICIES.group:
            yield f"{resource.kind} {account}-*"
        else:
            yield f"{resource.kind} {place}{account}"
