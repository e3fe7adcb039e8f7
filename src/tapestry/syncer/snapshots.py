"""Snapshots of both clusters for `repair`: from a syncer's caches or from live lists.

The physical cluster is read first: a pod that is created meanwhile then lacks a twin at worst, and no twin appears
without its pod.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import virtual_node_name
from tapestry.apis.ownership import OWNED_RESOURCES, owner_selector, selected_objects
from tapestry.client.client import Client
from tapestry.controller import ObjectCache
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
from tapestry.syncer.cache_transforms import digest_only, is_placeholder, virtual_pod
from tapestry.syncer.caches import Caches
from tapestry.syncer.repair import Snapshot, secrets_of_volumes
from tapestry.syncer.topdown.namespace_informers import NamespaceInformers
from tapestry.syncer.translate.copies import copy_rejection
from tapestry.syncer.translate.metadata import source_key
from tapestry.syncer.views import Twin

VOLUME_RESOURCES = (PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES)


@dataclass(frozen=True)
class SnapshotCaches:
    """Caches of dependencies of pods, by kind."""

    virtual_caches: Mapping[Resource, NamespaceInformers]
    physical_caches: Mapping[Resource, ObjectCache | NamespaceInformers]


async def cached_snapshot(
    caches: Caches, dependencies: SnapshotCaches, virtual_client: Client, binding: Binding, now: datetime
) -> Snapshot | None:
    """Return a snapshot of the caches; None until all of them are filled. Only node leases are read live."""
    virtual = {resource: informers.objects() for resource, informers in dependencies.virtual_caches.items()}
    physical = {resource: synced_objects(source) for resource, source in dependencies.physical_caches.items()}
    if not caches.is_physical_synced or None in (*virtual.values(), *physical.values()):
        return None
    twins = [pod.object for pod in caches.physical_pods.store.list() if isinstance(pod, Twin)]
    nodes = by_name(caches.virtual_nodes.store.list())
    return Snapshot(
        binding=binding,
        now=now,
        nodes=nodes,
        other_nodes=(),
        pods=by_key(pod.object for pod in caches.virtual_pods.store.list()),
        leases=by_name(await leases_with_our_prefix(virtual_client, binding)),
        virtual_objects={resource: by_key(objects or ()) for resource, objects in virtual.items()},
        physical_objects={PODS: twins, **{resource: list(objects or ()) for resource, objects in physical.items()}},
    )


def synced_objects(source: ObjectCache | NamespaceInformers) -> Iterable[Object] | None:
    if isinstance(source, NamespaceInformers):
        return source.objects()
    return source.store.list() if source.synced.is_set() else None


async def live_snapshot(virtual: Client, physical: Client, binding: Binding, now: datetime) -> Snapshot:
    """Return a snapshot of live lists. The clients need no more permissions than a syncer has."""
    physical_objects = {resource: await owned_objects(physical, resource, binding) for resource in OWNED_RESOURCES}
    nodes = await virtual.list(NODES)
    own_nodes = [node for node in nodes if labels_of(node).get(keys.CLUSTER_BINDING_UID) == binding.uid]
    without_sources = Snapshot(
        binding=binding,
        now=now,
        nodes=by_name(own_nodes),
        other_nodes={name_of(node) for node in nodes} - {name_of(node) for node in own_nodes},
        pods=by_key([pod async for pod in pods_with_our_prefix(virtual, binding)]),
        leases=by_name(await leases_with_our_prefix(virtual, binding)),
        virtual_objects={},
        physical_objects=physical_objects,
    )
    return replace(without_sources, virtual_objects=await source_objects(virtual, without_sources))


async def owned_objects(physical: Client, resource: Resource, binding: Binding) -> list[Object]:
    """Return the objects of a kind that are provably the binding's, in their cached form."""
    namespace = binding.spec.mount_namespace if resource.namespaced else None
    labels = owner_selector(binding.virtual_cluster, binding.uid)
    if resource in VOLUME_RESOURCES:  # a syncer may only read these if its binding allows volumes
        return await selected_objects(physical, resource, namespace, labels)
    transform = TRANSFORMS.get(resource, slim)
    pages = physical.pages(resource, namespace, labels=labels, without_managed_fields=True)
    return [transform(obj) async for page in pages for obj in page.items]


def twin_outline(pod: Object) -> Object:
    """Return the part of a twin that is needed to check and delete it."""
    fields = ("terminationGracePeriodSeconds",)
    return {"metadata": pod["metadata"], "spec": {each: pod["spec"][each] for each in fields if each in pod["spec"]}}


TRANSFORMS: dict[Resource, Transform] = {PODS: twin_outline, CONFIGMAPS: digest_only, SECRETS: digest_only}


async def pods_with_our_prefix(virtual: Client, binding: Binding) -> AsyncIterator[Object]:
    prefix = virtual_node_name(binding.spec.cluster_id, "")
    async for page in virtual.pages(PODS, fields="spec.nodeName!=", without_managed_fields=True):
        for pod in page.items:
            if pod["spec"]["nodeName"].startswith(prefix) and not is_placeholder(pod):
                yield virtual_pod(pod).object


async def leases_with_our_prefix(virtual: Client, binding: Binding) -> list[Object]:
    prefix = virtual_node_name(binding.spec.cluster_id, "")
    return [lease for lease in await virtual.list(LEASES, NODE_LEASE_NAMESPACE) if name_of(lease).startswith(prefix)]


async def source_objects(virtual: Client, snapshot: Snapshot) -> dict[Resource, dict[str, Object]]:
    """Return the virtual objects that may be synced and that the snapshot refers to."""
    namespaces = {dependency.split("/")[1] for dependency in snapshot.dependencies}
    secrets = [await find_object(virtual, SECRETS, key) for key in needed_secrets(snapshot)]
    sources: dict[Resource, dict[str, Object]] = {
        CONFIGMAPS: by_key([obj async for obj in digests(virtual, CONFIGMAPS, namespaces)]),
        SECRETS: by_key([digest_only(each) for each in secrets if each is not None and copy_rejection(each) is None]),
    }
    for resource in (SERVICES, ENDPOINT_SLICES):
        service_namespaces = snapshot.binding.spec.service_namespaces
        sources[resource] = by_key([obj for each in service_namespaces for obj in await virtual.list(resource, each)])
    return sources | await bound_claims(virtual, snapshot)


def needed_secrets(snapshot: Snapshot) -> set[str]:
    """Return the keys of the Secrets that pods and twin volumes need. A syncer may read no others."""
    mounted = secrets_of_volumes(snapshot)
    copies = (copy for copy in snapshot.physical_objects[SECRETS] if name_of(copy) in mounted)
    needed = {key.partition("/")[2] for key in snapshot.dependencies_of_kind(SECRETS.plural)}
    return needed | {key for copy in copies for key in source_key(copy)}


async def bound_claims(virtual: Client, snapshot: Snapshot) -> dict[Resource, dict[str, Object]]:
    """Return the claims that pods mount, and their volumes."""
    claims = [await find_object(virtual, PERSISTENT_VOLUME_CLAIMS, key) for key in snapshot.mounted_claims]
    names = {value_at(claim, "spec", "volumeName") for claim in claims} - {None}
    volumes = [await find_object(virtual, PERSISTENT_VOLUMES, name) for name in names]
    return {
        PERSISTENT_VOLUME_CLAIMS: by_key(filter(None, claims)),
        PERSISTENT_VOLUMES: by_key(filter(None, volumes)),
    }


async def digests(virtual: Client, resource: Resource, namespaces: Iterable[str]) -> AsyncIterator[Object]:
    """Yield the digests of the objects that can be copied."""
    for namespace in namespaces:
        async for page in virtual.pages(resource, namespace, without_managed_fields=True):
            for obj in page.items:
                if copy_rejection(obj) is None:
                    yield digest_only(obj)


async def find_object(client: Client, resource: Resource, key: str) -> Object | None:
    namespace, name = split_key(key)
    if dns_subdomain_error(name):  # a pod may refer to an impossible name
        return None
    return await client.find(resource, name, namespace)


def by_name(objects: Iterable[Object]) -> dict[str, Object]:
    return {name_of(obj): obj for obj in objects}


def by_key(objects: Iterable[Object]) -> dict[str, Object]:
    return {key_of(obj): obj for obj in objects}
