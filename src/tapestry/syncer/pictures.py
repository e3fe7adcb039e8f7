"""Pictures of both clusters, for `repair`: from a syncer's caches, or from lists of what there is now.

What is below is looked at first: a pod that comes meanwhile is then at worst without its twin, and never a twin without
its pod.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.belongings import RESOURCES, selector, shown
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import virtual_node_name
from tapestry.client.client import Client
from tapestry.controller import Informer
from tapestry.controller.transforms import Transform, slim
from tapestry.kube.names import dns_subdomain_complaint
from tapestry.kube.objects import Object, key_of, labels_of, name_of, split_key, value_at
from tapestry.kube.resources import (
    CONFIGMAPS,
    ENDPOINT_SLICES,
    LEASES,
    NODE_LEASES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)
from tapestry.syncer.projections import digested, is_placeholder, with_reduced_status
from tapestry.syncer.repair import Picture
from tapestry.syncer.site import Site
from tapestry.syncer.topdown.following import Following
from tapestry.syncer.translate.copies import refusal

VOLUMES = (PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES)


@dataclass(frozen=True)
class Caches:
    """What a syncer knows beside what its site knows."""

    above: Mapping[Resource, Following]
    below: Mapping[Resource, Informer | Following]


async def cached_picture(site: Site, caches: Caches, binding: Binding) -> Picture | None:
    """What the caches show; None as long as they do not show everything.  Only node leases are not cached."""
    above = {resource: following.objects() for resource, following in caches.above.items()}
    below = {resource: known(source) for resource, source in caches.below.items()}
    if not site.is_known or None in (*above.values(), *below.values()):
        return None
    twins = [pod for pod in site.physical_pods.store.list() if "twin" in pod]
    nodes = by_name(site.virtual_nodes.store.list())
    return Picture(
        binding=binding,
        now=site.now(),
        nodes=nodes,
        other_nodes=(),
        pods=by_key(site.virtual_pods.store.list()),
        leases=by_name(await leases_like_ours(site.manager.reads, binding)),
        above={resource: by_key(objects or ()) for resource, objects in above.items()},
        below={PODS: twins, **{resource: list(objects or ()) for resource, objects in below.items()}},
    )


def known(source: Informer | Following) -> Iterable[Object] | None:
    if isinstance(source, Following):
        return source.objects()
    return source.store.list() if source.synced.is_set() else None


async def live_picture(virtual: Client, physical: Client, binding: Binding, now: datetime) -> Picture:
    """What there is now; whoever asks needs no more rights than a syncer has."""
    below = {resource: await ours(physical, resource, binding) for resource in RESOURCES}
    nodes = await virtual.list(NODES)
    mine = [node for node in nodes if labels_of(node).get(keys.CLUSTER_BINDING_UID) == binding.uid]
    bare = Picture(
        binding=binding,
        now=now,
        nodes=by_name(mine),
        other_nodes={name_of(node) for node in nodes} - {name_of(node) for node in mine},
        pods=by_key([pod async for pod in pods_like_ours(virtual, binding)]),
        leases=by_name(await leases_like_ours(virtual, binding)),
        above={},
        below=below,
    )
    return replace(bare, above=await sources(virtual, bare))


async def ours(physical: Client, resource: Resource, binding: Binding) -> list[Object]:
    """What is provably the binding's of a kind, as caches have it."""
    namespace = binding.spec.mount_namespace if resource.namespaced else None
    labels = selector(binding.virtual_cluster, binding.uid)
    if resource in VOLUMES:  # of which a syncer sees something only where its binding lets any cross
        return await shown(physical, resource, namespace, labels)
    kept = KEPT.get(resource, slim)
    pages = physical.pages(resource, namespace, labels=labels, lean=True)
    return [kept(obj) async for page in pages for obj in page.items]


def outline(pod: Object) -> Object:
    """A twin, as far as it takes to judge and to remove it."""
    fields = ("terminationGracePeriodSeconds",)
    return {"metadata": pod["metadata"], "spec": {each: pod["spec"][each] for each in fields if each in pod["spec"]}}


KEPT: dict[Resource, Transform] = {PODS: outline, CONFIGMAPS: digested, SECRETS: digested}


async def pods_like_ours(virtual: Client, binding: Binding) -> AsyncIterator[Object]:
    prefix = virtual_node_name(binding.spec.cluster_id, "")
    async for page in virtual.pages(PODS, fields="spec.nodeName!=", lean=True):
        for pod in page.items:
            if pod["spec"]["nodeName"].startswith(prefix) and not is_placeholder(pod):
                yield with_reduced_status(pod)


async def leases_like_ours(virtual: Client, binding: Binding) -> list[Object]:
    prefix = virtual_node_name(binding.spec.cluster_id, "")
    return [lease for lease in await virtual.list(LEASES, NODE_LEASES) if name_of(lease).startswith(prefix)]


async def sources(virtual: Client, picture: Picture) -> dict[Resource, dict[str, Object]]:
    """What may cross of the virtual cluster, as far as it is of any interest here."""
    namespaces = {need.split("/")[1] for need in picture.needs}
    for copy in (*picture.below[CONFIGMAPS], *picture.below[SECRETS]):
        namespaces |= {labels_of(copy).get(keys.VIRTUAL_NAMESPACE, "")} - {""}
    found: dict[Resource, dict[str, Object]] = {}
    for resource in (CONFIGMAPS, SECRETS):
        found[resource] = by_key([obj async for obj in digests(virtual, resource, namespaces)])
    for resource in (SERVICES, ENDPOINT_SLICES):
        told = picture.binding.spec.service_namespaces
        found[resource] = by_key([obj for each in told for obj in await virtual.list(resource, each)])
    return found | await bound(virtual, picture)


async def bound(virtual: Client, picture: Picture) -> dict[Resource, dict[str, Object]]:
    """The claims that pods mount, and their volumes."""
    claims = [await existing(virtual, PERSISTENT_VOLUME_CLAIMS, key) for key in picture.mounted]
    names = {value_at(claim, "spec", "volumeName") for claim in claims} - {None}
    volumes = [await existing(virtual, PERSISTENT_VOLUMES, name) for name in names]
    return {
        PERSISTENT_VOLUME_CLAIMS: by_key(filter(None, claims)),
        PERSISTENT_VOLUMES: by_key(filter(None, volumes)),
    }


async def digests(virtual: Client, resource: Resource, namespaces: Iterable[str]) -> AsyncIterator[Object]:
    """What can be copied, without its data."""
    for namespace in namespaces:
        async for page in virtual.pages(resource, namespace, lean=True):
            for obj in page.items:
                if refusal(obj) is None:
                    yield digested(obj)


async def existing(client: Client, resource: Resource, key: str) -> Object | None:
    namespace, name = split_key(key)
    if dns_subdomain_complaint(name):  # a pod may refer to what could never exist
        return None
    return await client.find(resource, name, namespace)


def by_name(objects: Iterable[Object]) -> dict[str, Object]:
    return {name_of(obj): obj for obj in objects}


def by_key(objects: Iterable[Object]) -> dict[str, Object]:
    return {key_of(obj): obj for obj in objects}
