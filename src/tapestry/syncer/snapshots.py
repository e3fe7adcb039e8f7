"""Pictures of both clusters, for `repair`: from a syncer's caches, or from lists of what there is now.

What is below is looked at first: a pod that comes meanwhile is then at worst without its twin, and never a twin without
its pod.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import virtual_node_name
from tapestry.apis.ownership import OWNED_RESOURCES, owner_selector, selected_objects
from tapestry.client.client import Client
from tapestry.controller import Informer
from tapestry.controller.transforms import Transform, slim
from tapestry.kube.names import dns_subdomain_error
from tapestry.kube.objects import Object, key_of, labels_of, name_of, split_key, value_at
from tapestry.kube.resources import (
    CONFIGMAPS,
    ENDPOINT_SLICES,
    LEASES,
    NODE_LEASE_NAMESPACE,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)
from tapestry.syncer.cache_transforms import digest_only, is_placeholder, with_reduced_status
from tapestry.syncer.context import SyncContext
from tapestry.syncer.repair import Snapshot
from tapestry.syncer.topdown.namespace_informers import NamespaceInformers
from tapestry.syncer.translate.copies import copy_rejection

VOLUME_RESOURCES = (PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES)


@dataclass(frozen=True)
class SnapshotCaches:
    """What a syncer knows beside what its site knows."""

    virtual_caches: Mapping[Resource, NamespaceInformers]
    physical_caches: Mapping[Resource, Informer | NamespaceInformers]


async def cached_snapshot(context: SyncContext, caches: SnapshotCaches, binding: Binding) -> Snapshot | None:
    """What the caches show; None as long as they do not show everything.  Only node leases are not cached."""
    above = {resource: following.objects() for resource, following in caches.virtual_caches.items()}
    below = {resource: synced_objects(source) for resource, source in caches.physical_caches.items()}
    if not context.is_physical_synced or None in (*above.values(), *below.values()):
        return None
    twins = [pod for pod in context.physical_pods.store.list() if "twin" in pod]
    nodes = by_name(context.virtual_nodes.store.list())
    return Snapshot(
        binding=binding,
        now=context.now(),
        nodes=nodes,
        other_nodes=(),
        pods=by_key(context.virtual_pods.store.list()),
        leases=by_name(await leases_with_our_prefix(context.manager.reads, binding)),
        virtual_objects={resource: by_key(objects or ()) for resource, objects in above.items()},
        physical_objects={PODS: twins, **{resource: list(objects or ()) for resource, objects in below.items()}},
    )


def synced_objects(source: Informer | NamespaceInformers) -> Iterable[Object] | None:
    if isinstance(source, NamespaceInformers):
        return source.objects()
    return source.store.list() if source.synced.is_set() else None


async def live_snapshot(virtual: Client, physical: Client, binding: Binding, now: datetime) -> Snapshot:
    """What there is now; whoever asks needs no more rights than a syncer has."""
    below = {resource: await owned_objects(physical, resource, binding) for resource in OWNED_RESOURCES}
    nodes = await virtual.list(NODES)
    mine = [node for node in nodes if labels_of(node).get(keys.CLUSTER_BINDING_UID) == binding.uid]
    bare = Snapshot(
        binding=binding,
        now=now,
        nodes=by_name(mine),
        other_nodes={name_of(node) for node in nodes} - {name_of(node) for node in mine},
        pods=by_key([pod async for pod in pods_with_our_prefix(virtual, binding)]),
        leases=by_name(await leases_with_our_prefix(virtual, binding)),
        virtual_objects={},
        physical_objects=below,
    )
    return replace(bare, virtual_objects=await source_objects(virtual, bare))


async def owned_objects(physical: Client, resource: Resource, binding: Binding) -> list[Object]:
    """What is provably the binding's of a kind, as caches have it."""
    namespace = binding.spec.mount_namespace if resource.namespaced else None
    labels = owner_selector(binding.virtual_cluster, binding.uid)
    if resource in VOLUME_RESOURCES:  # of which a syncer sees something only where its binding lets any cross
        return await selected_objects(physical, resource, namespace, labels)
    kept = TRANSFORMS.get(resource, slim)
    pages = physical.pages(resource, namespace, labels=labels, without_managed_fields=True)
    return [kept(obj) async for page in pages for obj in page.items]


def twin_outline(pod: Object) -> Object:
    """A twin, as far as it takes to judge and to remove it."""
    fields = ("terminationGracePeriodSeconds",)
    return {"metadata": pod["metadata"], "spec": {each: pod["spec"][each] for each in fields if each in pod["spec"]}}


TRANSFORMS: dict[Resource, Transform] = {PODS: twin_outline, CONFIGMAPS: digest_only, SECRETS: digest_only}


async def pods_with_our_prefix(virtual: Client, binding: Binding) -> AsyncIterator[Object]:
    prefix = virtual_node_name(binding.spec.cluster_id, "")
    async for page in virtual.pages(PODS, fields="spec.nodeName!=", without_managed_fields=True):
        for pod in page.items:
            if pod["spec"]["nodeName"].startswith(prefix) and not is_placeholder(pod):
                yield with_reduced_status(pod)


async def leases_with_our_prefix(virtual: Client, binding: Binding) -> list[Object]:
    prefix = virtual_node_name(binding.spec.cluster_id, "")
    return [lease for lease in await virtual.list(LEASES, NODE_LEASE_NAMESPACE) if name_of(lease).startswith(prefix)]


async def source_objects(virtual: Client, snapshot: Snapshot) -> dict[Resource, dict[str, Object]]:
    """What may cross of the virtual cluster, as far as it is of any interest here."""
    namespaces = {need.split("/")[1] for need in snapshot.dependencies}
    for copy in (*snapshot.physical_objects[CONFIGMAPS], *snapshot.physical_objects[SECRETS]):
        namespaces |= {labels_of(copy).get(keys.VIRTUAL_NAMESPACE, "")} - {""}
    found: dict[Resource, dict[str, Object]] = {}
    for resource in (CONFIGMAPS, SECRETS):
        found[resource] = by_key([obj async for obj in digests(virtual, resource, namespaces)])
    for resource in (SERVICES, ENDPOINT_SLICES):
        told = snapshot.binding.spec.service_namespaces
        found[resource] = by_key([obj for each in told for obj in await virtual.list(resource, each)])
    return found | await bound_claims(virtual, snapshot)


async def bound_claims(virtual: Client, snapshot: Snapshot) -> dict[Resource, dict[str, Object]]:
    """The claims that pods mount, and their volumes."""
    claims = [await find_object(virtual, PERSISTENT_VOLUME_CLAIMS, key) for key in snapshot.mounted_claims]
    names = {value_at(claim, "spec", "volumeName") for claim in claims} - {None}
    volumes = [await find_object(virtual, PERSISTENT_VOLUMES, name) for name in names]
    return {
        PERSISTENT_VOLUME_CLAIMS: by_key(filter(None, claims)),
        PERSISTENT_VOLUMES: by_key(filter(None, volumes)),
    }


async def digests(virtual: Client, resource: Resource, namespaces: Iterable[str]) -> AsyncIterator[Object]:
    """What can be copied, without its data."""
    for namespace in namespaces:
        async for page in virtual.pages(resource, namespace, without_managed_fields=True):
            for obj in page.items:
                if copy_rejection(obj) is None:
                    yield digest_only(obj)


async def find_object(client: Client, resource: Resource, key: str) -> Object | None:
    namespace, name = split_key(key)
    if dns_subdomain_error(name):  # a pod may refer to what could never exist
        return None
    return await client.find(resource, name, namespace)


def by_name(objects: Iterable[Object]) -> dict[str, Object]:
    return {name_of(obj): obj for obj in objects}


def by_key(objects: Iterable[Object]) -> dict[str, Object]:
    return {key_of(obj): obj for obj in objects}
