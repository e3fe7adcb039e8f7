"""The site: one binding, its two clusters, and what is known of them.  Every reconciler of a syncer works from it."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, binding_of
from tapestry.apis.names import virtual_node_name
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.controller import Informer, Manager
from tapestry.controller.transforms import slim
from tapestry.kube.objects import Object, annotations_of, is_deleting, labels_of, value_at
from tapestry.kube.resources import CSI_NODES, NAMESPACES, NODES, PODS, SECRETS, Resource
from tapestry.kube.times import timestamp
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.leasing import Rules, Side
from tapestry.syncer.physical import Door
from tapestry.syncer.policies import CHANGED_AT, changed_at, readings, rules_of
from tapestry.syncer.requests import Hold, hold_of, holds_its_node


@dataclass(slots=True)
class Partition:
    """Whether the physical cluster is out of reach."""

    since: datetime | None = None


@dataclass(slots=True)
class Behind:
    """Who is behind the kubeconfig, as far as anybody has looked: the UID of kube-system there."""

    identity: str | None = None


@dataclass(frozen=True)
class Site:
    """One binding at work.  Virtual caches are filled before any work begins; physical ones when they can be."""

    config: SyncerConfig
    manager: Manager
    binding_name: str
    binding_uid: str
    node_prefix: str
    """What the names of our virtual nodes begin with."""
    virtual_cluster_uid: str
    physical: Client
    """Fenced as the manager's own client is."""
    physical_reads: Client
    reads: Door
    writes: Door
    bindings: Informer
    secrets: Informer
    operator_policies: Informer
    virtual_nodes: Informer
    virtual_pods: Informer
    virtual_csi_nodes: Informer
    placeholders: Informer
    owner_policies: Informer
    physical_nodes: Informer
    physical_pods: Informer
    csi_nodes: Informer
    mount_namespaces: Informer
    ground: Object
    """What the informers were made for."""
    partition: Partition = field(default_factory=Partition)
    behind: Behind = field(default_factory=Behind)
    outdated: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the binding leads elsewhere: another site has to take the place of this one."""

    @property
    def virtual(self) -> Client:
        return self.manager.client

    def now(self) -> datetime:
        return self.manager.now()

    def binding_object(self) -> Object | None:
        obj = self.bindings.store.get(self.binding_name)
        return obj if obj is not None and obj["metadata"]["uid"] == self.binding_uid else None

    def binding(self) -> Binding | None:
        """The binding as it is now; None once it is gone or replaced by a namesake.  Raises InvalidSpec."""
        obj = self.binding_object()
        return binding_of(obj, self.virtual_cluster_uid) if obj is not None else None

    @property
    def is_unbinding(self) -> bool:
        obj = self.binding_object()
        return obj is None or is_deleting(obj)

    @property
    def is_known(self) -> bool:
        """Whether the physical caches have been filled: before that, nothing that is missing is missing."""
        return all(informer.synced.is_set() for informer in self.decisive)

    @property
    def decisive(self) -> tuple[Informer, ...]:
        """The physical caches that leases are decided by."""
        return self.physical_nodes, self.physical_pods, self.mount_namespaces, self.owner_policies

    def rules(self, binding: Binding) -> Rules:
        """What decides about every node of the site."""
        zone = self.config.time_zone
        operator = readings(self.operator_policies.store.list(), Side.OPERATOR, binding, zone)
        owner = readings(self.owner_policies.store.list(), Side.OWNER, binding, zone)
        mount = self.mount_namespaces.store.get(binding.spec.mount_namespace or "")
        return rules_of(binding, operator, owner, mount, timedelta(seconds=self.config.warning_seconds))

    def foreign(self, node: str, binding: Binding) -> list[Hold]:
        """What pods that are not ours hold of a physical node."""
        return [pod["hold"] for pod in self.physical_pods.store.by("node", node) if not binding.owns(pod)]

    def virtual_node_of(self, node: str) -> Object | None:
        found = self.virtual_nodes.store.by("physical", node)
        return found[0] if found else None

    def pods_on(self, virtual_node: str) -> list[Object]:
        return list(self.virtual_pods.store.by("node", virtual_node))


def open_site(
    config: SyncerConfig, manager: Manager, binding: Object, virtual_cluster_uid: str, doors: tuple[Door, Door]
) -> Site:
    """A site for a binding as it was read live; informers are made here, and run when the manager runs."""
    reads, writes = doors
    below = Client(reads, identity=manager.identity)
    name, uid = binding["metadata"]["name"], binding["metadata"]["uid"]
    prefix = virtual_node_name(binding["spec"]["clusterID"], "")
    secret, mount = binding["spec"]["secretRef"], value_at(binding, "spec", "mountNamespace", default="")

    def physical(resource: Resource, **options: object) -> Informer:
        return manager.follow(Informer(below, resource, **options))  # type: ignore[arg-type]

    owner_policies = physical(POLICIES, transform=with_changed_at).where_it_exists()
    return Site(
        config=config,
        manager=manager,
        binding_name=name,
        binding_uid=uid,
        node_prefix=prefix,
        virtual_cluster_uid=virtual_cluster_uid,
        physical=Client(
            writes,
            fence=manager.elector.fence if manager.elector else None,
            audit=manager.audit,
            identity=manager.identity,
        ),
        physical_reads=below,
        reads=reads,
        writes=writes,
        bindings=manager.informer(CLUSTER_BINDINGS, fields=f"metadata.name={name}"),
        secrets=manager.informer(SECRETS, namespace=secret["namespace"], fields=f"metadata.name={secret['name']}"),
        operator_policies=manager.informer(POLICIES, transform=with_changed_at).reading_managed_fields(),
        virtual_nodes=manager.informer(
            NODES, labels=f"{keys.CLUSTER_BINDING_UID}={uid}", indexers={"physical": physical_node_of}
        ),
        virtual_pods=manager.informer(
            PODS,
            fields="spec.nodeName!=",
            keep=lambda pod: pod["spec"]["nodeName"].startswith(prefix) and not is_placeholder(pod),
            transform=without_status,
            indexers={"node": virtual_node_of},
        ),
        virtual_csi_nodes=manager.informer(CSI_NODES, labels=f"{keys.CLUSTER_BINDING_UID}={uid}"),
        placeholders=manager.informer(
            PODS, namespace=keys.SYSTEM_NAMESPACE, labels=keys.HOST_PORTS, indexers={"node": virtual_node_of}
        ),
        owner_policies=owner_policies.reading_managed_fields(),
        physical_nodes=physical(NODES, transform=without_images),
        physical_pods=physical(PODS, transform=claim_of, indexers={"node": claimed_node}),
        csi_nodes=physical(CSI_NODES),
        mount_namespaces=physical(NAMESPACES, fields=f"metadata.name={mount}"),
        ground=ground_of(binding),
    )


def ground_of(binding: Object) -> Object:
    """What a site is built on and cannot change under it."""
    return {field: binding["spec"].get(field) for field in ("secretRef", "mountNamespace")}


def without_images(node: Object) -> Object:
    """A physical node as we need it: the images that its kubelet lists are the largest part of it."""
    (node.get("status") or {}).pop("images", None)
    return slim(node)


def physical_node_of(virtual_node: Object) -> list[str]:
    name = annotations_of(virtual_node).get(keys.PHYSICAL_NODE_NAME)
    return [name] if name else []


def virtual_node_of(pod: Object) -> list[str]:
    return [pod["spec"]["nodeName"]]


def with_changed_at(policy: Object) -> Object:
    """A transform: `slim`, but what managedFields say of the last change is kept."""
    policy["metadata"][CHANGED_AT] = timestamp(changed_at(policy))
    return slim(policy)


def is_placeholder(pod: Object) -> bool:
    """Whether the pod only shows host ports that are taken below; see `bottomup.hostports`."""
    return pod["metadata"]["namespace"] == keys.SYSTEM_NAMESPACE and keys.HOST_PORTS in labels_of(pod)


def without_status(pod: Object) -> Object:
    """A virtual pod as we need it: its status is ours to write, but for the phase."""
    pod["metadata"].pop("managedFields", None)
    pod["status"] = {"phase": value_at(pod, "status", "phase", default="Pending")}
    return pod


def claim_of(pod: Object) -> Object:
    """What arithmetic needs of a pod below: who it is, where, whose, what it holds and which host ports it has."""
    metadata = pod["metadata"]
    labels = labels_of(pod)
    spec = pod["spec"]
    kept = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion")}
    ours = {key: labels[key] for key in (keys.VIRTUAL_CLUSTER, keys.CLUSTER_BINDING_UID) if key in labels}
    claim: Object = {
        "metadata": {**kept, "labels": ours} if ours else kept,
        "node": spec.get("nodeName", "") if holds_its_node(pod) else "",
        "hold": hold_of(pod),
    }
    if ports := host_ports_of(spec):
        claim["ports"] = ports
    return claim


def host_ports_of(spec: Object) -> tuple[tuple[str, int, str], ...]:
    """The host ports of a pod as (address, port, protocol)."""
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return tuple(
        sorted(
            {
                (port.get("hostIP") or "0.0.0.0", port["hostPort"], port.get("protocol") or "TCP")
                for container in containers
                for port in container.get("ports") or ()
                if port.get("hostPort")
            }
        )
    )


def claimed_node(claim: Object) -> list[str]:
    return [claim["node"]] if claim["node"] else []
