"""Caches of a tenant's syncer: informers of its plane, and views of the caches of its host cluster."""

import asyncio
from typing import Any

from tapestry.apis import keys
from tapestry.controller import Manager, ObjectCache
from tapestry.controller.store import Store
from tapestry.kube.objects import Object
from tapestry.kube.resources import CSI_NODES, NODES, PODS, SECRETS, Resource
from tapestry.syncer.cache_transforms import (
    dependency_namespace,
    physical_node_of,
    reference_keys,
    virtual_pod,
)
from tapestry.syncer.caches import Caches
from tapestry.syncer.identity import Identity
from tapestry.tenants.host_connection import TenantViews


def empty_cache(resource: Resource, name: str) -> ObjectCache[Any]:
    """Return a synced cache of a kind of which tenants have no objects."""
    synced = asyncio.Event()
    synced.set()
    return ObjectCache(resource, Store(), synced, name)


def tenant_caches(
    manager: Manager, identity: Identity, views: TenantViews, bindings: ObjectCache, operator_policies: ObjectCache
) -> Caches:
    """Build the caches of a tenant. `manager` is one of its plane; the policies are those of the management API."""
    own = f"{keys.CLUSTER_BINDING_UID}={identity.binding_uid}"
    schedules_on_host = identity.schedules_on_host
    return Caches(
        identity=identity,
        bindings=bindings,
        secrets=empty_cache(SECRETS, "secrets"),
        operator_policies=operator_policies,
        virtual_nodes=manager.informer(NODES, labels=own, indexers={"physical": physical_node_of}),
        virtual_pods=manager.informer(
            PODS,
            fields="" if schedules_on_host else "spec.nodeName!=",
            keep=is_ready_to_schedule,
            transform=virtual_pod,
            indexers={
                "node": lambda pod: [pod.node],
                "refers": lambda pod: reference_keys(pod.object),
                "namespace": lambda pod: dependency_namespace(pod.object, identity.manager_namespace),
            },
        ),
        virtual_csi_nodes=empty_cache(CSI_NODES, "virtual_csi_nodes"),
        placeholders=empty_cache(PODS, "placeholders"),
        owner_policies=views.owner_policies,
        physical_nodes=views.nodes,
        physical_pods=views.twins,
        mount_namespaces=views.namespace,
        csi_nodes=empty_cache(CSI_NODES, "csi_nodes"),
        foreign_pods_on=views.connection.foreign_pods_for(identity.binding_uid) if not schedules_on_host else no_pods,
    )


def is_ready_to_schedule(pod: Object) -> bool:
    """Return whether nothing prevents the scheduling of a pod, or it is scheduled."""
    return not pod["spec"].get("schedulingGates")


def no_pods(_: str) -> Any:
    """Return no foreign pods: the scheduler of the host cluster knows them."""
    return iter(())
