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
from tapestry.apis.belongings import LONGEST_GRACE
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.mounts import mark_of
from tapestry.apis.names import virtual_cluster_label
from tapestry.apis.policies import POLICIES
from tapestry.apis.priorities import PRIORITY_CLASSES
from tapestry.client.waiting import wait_for
from tapestry.kube.conditions import find
from tapestry.kube.errors import Conflict, NotFound, TransportError
from tapestry.kube.objects import Object, key_of, labels_of, name_of, named, uid_of, value_at
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
from tapestry.manager.cleanup import left_behind, nodes_are_gone
from tapestry.manager.joining import account_name, manager_namespace, marks, policy_name, selector
from tapestry.manager.leftovers import Leftover, leftovers_in, remember, swept
from tapestry.manager.mount_namespaces import release
from tapestry.manager.steps import Cluster, JoinError, Mark, Step, is_marked, listed

OF_ONE_BINDING = (
    *(CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS, POLICIES),
    *(RESOURCE_QUOTAS, NETWORK_POLICIES, ADMISSION_POLICY_BINDINGS, ADMISSION_POLICIES),
)
"""What join creates for one binding; the rights go before what limits them."""
CONTENTS = (PODS, SERVICES, SECRETS, CONFIGMAPS, PERSISTENT_VOLUME_CLAIMS)
"""What keeps a namespace from being empty."""
ROOT_CERTIFICATES = "kube-root-ca.crt"
"""The ConfigMap that Kubernetes puts into every namespace."""
OURS = f"{keys.MANAGED_BY}={keys.TAPESTRY}"
FORCE_SECONDS = 30.0
"""How long a binding that is left by force is given to the manager, before we end it ourselves."""
COUNT_SECONDS = 5.0
"""How often the time that is left is told."""
STUCK_SECONDS = 30.0
"""How long after its grace a binding may take to go before force is suggested."""
ATTEMPTS, PAUSE = 10, 1.0
"""How often we try that, and the seconds between."""
ENDING_SECONDS = 2 * LONGEST_GRACE
"""How long pods that were left behind may take to end."""


async def unjoin(
    name: str, virtual: Cluster, physical: Cluster | None, *, force: bool = False, timeout: float = 300.0
) -> None:
    """Delete the binding, wait until it is gone, and remove what join made.

    Raises JoinError where it does not go, where there is nothing of that name, and, unless by force, where the physical
    cluster does not answer.
    """
    uid = await virtual.identity()
    binding = await virtual.find(CLUSTER_BINDINGS, named(name))
    if binding is not None:
        await part(binding, virtual, force=force, timeout=timeout)
    place = value_at(binding, "spec", "secretRef", "namespace") or await manager_namespace(virtual)
    secret = await virtual.find(SECRETS, named(name, place))
    if secret is not None and not is_marked(secret, {"metadata": {"labels": marks(uid, name)}}):
        secret = None  # not ours
    if binding is None and secret is None and physical is None:
        raise JoinError(f"there is no ClusterBinding {name}; `tapestry status` lists those there are")
    leftovers = leftovers_in(secret)
    if physical is None:
        tell_left(virtual, uid, name, binding, "run it again with --cluster-kubeconfig to remove it")
    else:
        try:
            leftovers = await clear(physical, leftovers)
            await sweep(physical, uid, name, value_at(binding, "spec", "mountNamespace"))
        except TransportError as error:
            tell_left(virtual, uid, name, binding, "the cluster does not answer; run it again when it does")
            if not force:
                raise JoinError(f"the physical cluster does not answer: {error}") from error
    if secret is not None:
        await let_go(virtual, secret, leftovers)


# -- above


async def let_go(virtual: Cluster, secret: Object, leftovers: list[Leftover]) -> None:
    """Remove the Secret, unless the manager needs it to remove what is left below."""
    if not leftovers:
        await virtual.remove(SECRETS, secret)
        return
    note = "; ".join(f"kept until {each} is gone" for each in leftovers)
    virtual.tell(Step(Mark.LEFT, virtual.word, f"{SECRETS.kind} {key_of(secret)}", note))


async def part(binding: Object, virtual: Cluster, *, force: bool, timeout: float) -> None:
    """Delete the binding and see it go."""
    name, client = name_of(binding), virtual.client
    pods = await pods_on_nodes_of(binding, virtual) if force else []
    if force:
        mark = {"metadata": {"annotations": {keys.FORCE_UNBIND: "true"}}}
        await client.patch(CLUSTER_BINDINGS, named(name), mark)
    with suppress(NotFound):
        await client.delete(CLUSTER_BINDINGS, {"metadata": {"name": name, "uid": uid_of(binding)}})
    try:
        await wait_until_gone(binding, virtual, min(timeout, FORCE_SECONDS) if force else timeout, force=force)
    except TimeoutError:
        if not force:
            hint = f"is its syncer at work? `tapestry unjoin {name} --force` ends it without"
            raise JoinError(f"ClusterBinding {name} is still there after {timeout:g} s; {hint}") from None
        await end(binding, virtual)
    virtual.tell(Step(Mark.DELETED, virtual.word, f"{CLUSTER_BINDINGS.kind} {name}"))
    if force:
        virtual.tell(Step(Mark.LEFT, "physical", left_behind(binding, pods)))


async def pods_on_nodes_of(binding: Object, virtual: Cluster) -> list[Object]:
    nodes = await virtual.client.list(NODES, labels=f"{keys.CLUSTER_BINDING_UID}={uid_of(binding)}")
    return [pod for node in nodes for pod in await virtual.client.list(PODS, fields=f"spec.nodeName={name_of(node)}")]


async def wait_until_gone(binding: Object, virtual: Cluster, timeout: float, *, force: bool) -> None:
    """Wait, tell what the binding waits for, and count down the seconds that its pods have to end."""
    loop = asyncio.get_running_loop()
    started, told, last = loop.time(), "", binding
    grace = float(value_at(binding, "spec", "unbindGraceSeconds", default=LONGEST_GRACE))

    def tell(news: str) -> None:
        virtual.tell(Step(Mark.WAITING, virtual.word, f"{CLUSTER_BINDINGS.kind} {name_of(binding)}", news))

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
                virtual.client, CLUSTER_BINDINGS, name_of(binding), until=is_gone, timeout=min(left, COUNT_SECONDS)
            )
        except TimeoutError:
            if left <= COUNT_SECONDS:
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
    ready = find(value_at(binding, "status", "conditions"), "Ready") or {}
    nodes = value_at(binding, "status", "nodes", default=0)
    waits = [f"{nodes} virtual nodes"] if nodes else []
    if keys.SYNCER_FINALIZER in binding["metadata"].get("finalizers", []):
        waits.append("its syncer")
    if value_at(binding, "status", "phase") == "Deleting":
        waits.append(ready.get("message", ""))
    return "; ".join(filter(None, waits))


async def end(binding: Object, virtual: Cluster) -> None:
    """Do what the manager would do by force: nobody else did.  What cannot be removed is given up after a while."""
    ours = (keys.MANAGER_FINALIZER, keys.SYNCER_FINALIZER)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            gone = await nodes_are_gone(virtual.client, binding, lambda _: None)
            if gone or attempt == ATTEMPTS:
                current = await virtual.client.get(CLUSTER_BINDINGS, name_of(binding))
                kept = [each for each in current["metadata"].get("finalizers", []) if each not in ours]
                if uid_of(current) == uid_of(binding):
                    await remember(virtual.client, await secret_of(binding, virtual), current)
                    await virtual.client.patch(CLUSTER_BINDINGS, current, {"metadata": {"finalizers": kept}})
                return
        except NotFound:
            return
        except Conflict:  # somebody is at work after all
            pass
        await asyncio.sleep(PAUSE)


async def secret_of(binding: Object, virtual: Cluster) -> Object | None:
    reference = value_at(binding, "spec", "secretRef", default={})
    return await virtual.find(SECRETS, named(reference["name"], reference["namespace"]))


# -- below


async def clear(physical: Cluster, leftovers: list[Leftover]) -> list[Leftover]:
    """Remove what bindings left here that were ended by force; returns those that left it elsewhere.

    JoinError where it does not go: whoever removes it then needs the account that is still there.
    """
    for attempt in range(ENDING_SECONDS):
        leftovers, objects = await swept(physical.client, leftovers) if leftovers else ([], [])
        if not objects:
            return leftovers
        if attempt == 0:
            physical.tell(Step(Mark.WAITING, physical.word, f"{len(objects)} objects that were left behind"))
        await asyncio.sleep(PAUSE)
    raise JoinError(f"still being deleted in the physical cluster: {', '.join(objects[:5])}; see what holds it")


async def sweep(physical: Cluster, uid: str, name: str, mount: str | None) -> None:
    """Remove what join made below: first the rights, last what is shared, if nobody else needs it."""
    for resource in OF_ONE_BINDING:
        for obj in await listed(physical, resource, selector(marks(uid, name))):
            mount = mount or obj["metadata"].get("namespace")
            await physical.remove(resource, obj)
    others = await listed(physical, SERVICE_ACCOUNTS, OURS)
    for resource in (PRIORITY_CLASSES, CRDS) if not others else ():
        for obj in await listed(physical, resource, OURS):
            await remove_unless_held(physical, resource, obj)
    for obj in await mount_namespaces(physical, uid, mount):
        if labels_of(obj).get(keys.MANAGED_BY) == keys.TAPESTRY:
            await remove_unless_held(physical, NAMESPACES, obj)
        else:
            await release(obj, physical)


async def mount_namespaces(physical: Cluster, uid: str, mount: str | None) -> list[Object]:
    """The namespaces with our mark, and that of the binding if it has none."""
    mark = virtual_cluster_label(uid)
    found = await physical.client.list(NAMESPACES, labels=f"{keys.VIRTUAL_CLUSTER}={mark}")
    unmarked = await physical.client.find(NAMESPACES, mount) if mount else None
    return [*found, *([unmarked] if unmarked is not None and not mark_of(unmarked) else [])]


async def remove_unless_held(physical: Cluster, resource: Resource, obj: Object) -> None:
    if held := await holders(physical, resource, obj):
        what = f"{resource.kind} {name_of(obj)}"
        physical.tell(Step(Mark.LEFT, physical.word, what, f"it holds {', '.join(held[:5])}"))
    else:
        await physical.remove(resource, obj)


async def holders(physical: Cluster, resource: Resource, obj: Object) -> list[str]:
    """What would go with a shared object, and is not ours to remove."""
    if resource is CRDS:
        return [f"{POLICIES.kind} {name_of(each)}" for each in await listed(physical, POLICIES, "")]
    if resource is not NAMESPACES:
        return []
    contents = [(kind, each) for kind in CONTENTS for each in await physical.client.list(kind, name_of(obj))]
    accounts = await physical.client.list(SERVICE_ACCOUNTS, name_of(obj), labels=OURS)
    contents += [(SERVICE_ACCOUNTS, each) for each in accounts]
    return [f"{kind.kind} {name_of(each)}" for kind, each in contents if name_of(each) != ROOT_CERTIFICATES]


def tell_left(virtual: Cluster, uid: str, name: str, binding: Object | None, why: str) -> None:
    for what in made_below(uid, name, value_at(binding, "spec", "mountNamespace")):
        virtual.tell(Step(Mark.LEFT, "physical", what, why))


def made_below(uid: str, name: str, mount: str | None) -> Iterator[str]:
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
