"""Assembly of the manager: informers, watches, controllers and metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from msgspec import structs
from prometheus_client import Gauge

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.policies import POLICIES
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.transport import Transport
from tapestry.controller import App, Informer, Manager, generation_changed
from tapestry.controller.app import configured_access, manager_for
from tapestry.controller.store import Indexer, Store
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of, value_at
from tapestry.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    NODES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Resource,
)
from tapestry.manager.bindings import INDEXERS, BindingReconciler, is_relevant_change, secret_keys_of
from tapestry.manager.config import BindingsConfig
from tapestry.manager.connectivity import KUBECONFIG_KEY, Connect, ConnectivityChecker
from tapestry.manager.grants import GRANT_KINDS, SyncerGrants, is_on_virtual_node
from tapestry.manager.leftovers import LeftoverReconciler, leftovers_in
from tapestry.manager.manifests import Scope
from tapestry.manager.pod_needs import PodNeeds, pod_needs
from tapestry.manager.serving_certificates import install_approver
from tapestry.manager.syncer_credentials import SyncerCredentials
from tapestry.manager.syncers import (
    BY_BINDING,
    DEPLOYED_RESOURCES,
    SyncerDeployer,
    binding_uid_of,
    load_templates,
    packaged_templates,
    scopes,
)

MANAGED = f"{keys.MANAGED_BY}={keys.TAPESTRY},!{keys.GRANT}"
GRANTS = f"{keys.MANAGED_BY}={keys.TAPESTRY},{keys.GRANT}"
VIRTUAL_NODES = f"{keys.NODE_TYPE}={keys.NODE_TYPE_VIRTUAL},{keys.CLUSTER_BINDING_UID}"
PHASES = ("Pending", "Ready", "Failed", "Deleting")
BINDINGS = Gauge("tapestry_bindings", "ClusterBindings by phase.", ["phase"])
LEFTOVERS = Gauge("tapestry_leftovers", "Bindings removed by force whose objects still exist in the physical cluster.")


@dataclass(frozen=True)
class SyncerCluster:
    """A separate cluster that syncers run in, with one transport for reads and one for writes."""

    read_transport: Transport
    write_transport: Transport
    virtual_access: Access
    """Access to the virtual cluster, of which syncers get the address."""


def install(
    config: BindingsConfig,
    manager: Manager,
    *,
    connect: Connect = HttpTransport,
    syncer_cluster: SyncerCluster | None = None,
) -> None:
    """Install the controllers of ClusterBindings.  `connect` opens transports to physical clusters."""
    bindings = manager.informer(CLUSTER_BINDINGS, indexers=INDEXERS)
    policies = manager.informer(POLICIES)
    secrets = [
        manager.informer(SECRETS, namespace=namespace, transform=kubeconfig_only)
        for namespace in sorted(config.secret_namespaces)
    ]
    syncers, credentials = build_deployer(config, manager, syncer_cluster)
    grants = install_grants(config, manager, bindings)
    restrictions = [
        manager.informer(kind, labels=f"app.kubernetes.io/part-of={keys.TAPESTRY}", filtered=False).allow_missing()
        for kind in (ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS)
    ]
    checker = ConnectivityChecker(connect, config.allow_loopback)
    reconciler = BindingReconciler(
        config, manager, bindings, secrets, policies, checker, syncers, credentials, grants, restrictions
    )
    controller = manager.controller("bindings", reconciler.reconcile)
    controller.watch(bindings, reconciler.affected_bindings, when=is_relevant_change)
    controller.watch(policies, reconciler.bindings_of_policy, when=generation_changed)
    for informer in secrets:
        controller.watch(informer, reconciler.bindings_of_secret)
    for informer in syncers.caches.values():
        controller.watch(informer, reconciler.bindings_of_object)
    for informer in restrictions:
        controller.watch(informer, lambda _: list(bindings.store), when=generation_changed)
    install_leftovers(config, manager, bindings, secrets, connect)
    install_approver(manager, bindings, syncers.caches.get((SERVICES, config.namespace)), config.namespace)
    for phase in PHASES:
        BINDINGS.labels(phase).set_function(partial(count, bindings.store, phase))


def install_grants(config: BindingsConfig, manager: Manager, bindings: Informer) -> SyncerGrants:
    """Install the controllers of the rights of syncers."""
    by_uid: dict[str, Indexer] = {"binding": binding_uid_of}
    nodes = manager.informer(NODES, labels=VIRTUAL_NODES, indexers=by_uid).with_metadata_only()
    pods = manager.informer(PODS, fields="spec.nodeName!=", keep=is_on_virtual_node, transform=pod_needs)
    accounts = manager.informer(SERVICE_ACCOUNTS, namespace=config.namespace, labels=MANAGED)
    caches = {kind: manager.informer(kind, labels=GRANTS, indexers=by_uid) for kind in GRANT_KINDS}
    excluded = config.secret_namespaces | {keys.HOST_PORTS_NAMESPACE}
    grants = SyncerGrants(manager.client, manager.now, config.namespace, excluded, bindings, accounts, nodes, caches)
    of_nodes = manager.controller("node-grants", grants.reconcile_nodes)
    of_pods = manager.controller("pod-grants", grants.reconcile_pods)

    def on_node_change(old: Object | None, new: Object | None) -> None:
        names, pod_keys = grants.on_node_change(old, new)
        for name in names:
            of_nodes.queue.add(name)
        for key in pod_keys:
            of_pods.queue.add(key)

    def on_pod_change(old: PodNeeds | None, new: PodNeeds | None) -> None:
        for key in grants.on_pod_change(old, new):
            of_pods.queue.add(key)

    nodes.on_change(on_node_change)
    pods.on_change(on_pod_change)
    of_nodes.watch(bindings, when=is_relevant_change)
    of_pods.watch(bindings, grants.all_pod_keys, when=is_relevant_change)
    of_nodes.watch(accounts, lambda account: map(name_of, grants.bindings_of(account)))
    of_pods.watch(
        accounts, lambda account: (key for each in grants.bindings_of(account) for key in grants.all_pod_keys(each))
    )
    for kind in GRANT_KINDS:
        (of_pods if kind.namespaced else of_nodes).watch(caches[kind], grants.keys_of_role)
    return grants


def install_leftovers(
    config: BindingsConfig, manager: Manager, bindings: Informer, secrets: Sequence[Informer], connect: Connect
) -> None:
    """Install the controller of forced unjoins.  It has its own workers: their clusters may be unreachable for long."""
    leftovers = LeftoverReconciler(manager, secrets, connect, config.allow_loopback)
    controller = manager.controller("leftovers", leftovers.reconcile, workers=2)
    for informer in secrets:
        controller.watch(informer)
    controller.watch(bindings, secret_keys_of, when=lambda _old, new: new is None)
    LEFTOVERS.set_function(lambda: sum(len(leftovers_in(each)) for cache in secrets for each in cache.store.list()))


def build_deployer(
    config: BindingsConfig, manager: Manager, syncer_cluster: SyncerCluster | None
) -> tuple[SyncerDeployer, SyncerCredentials | None]:
    """Return the deployer of syncers, and for a separate cluster the issuer of their credentials."""
    folder = Path(config.template_dir) if config.template_dir else packaged_templates("syncer")
    indexers: dict[str, Indexer] = {BY_BINDING: binding_uid_of}
    caches: dict[Scope, Informer] = {}
    clients: dict[Resource, Client] = {}
    credentials = None
    if syncer_cluster is not None:
        reads = Client(syncer_cluster.read_transport, identity=manager.identity)
        management = fenced_client(manager, syncer_cluster.write_transport)
        credentials = SyncerCredentials(
            manager.client, management, syncer_cluster.virtual_access, config.namespace, manager.now
        )
    for resource, namespace in scopes(config):
        if credentials is not None and resource in DEPLOYED_RESOURCES:
            informer = Informer(reads, resource, namespace=namespace, labels=MANAGED, indexers=indexers)
            caches[resource, namespace] = manager.add_optional_informer(informer)
            clients[resource] = credentials.management
        else:
            caches[resource, namespace] = manager.informer(
                resource, namespace=namespace, labels=MANAGED, indexers=indexers
            )
            clients[resource] = manager.client
    templates = partial(load_templates, folder)
    return SyncerDeployer(config, templates, clients, caches, syncer_cluster is not None), credentials


def fenced_client(manager: Manager, transport: Transport) -> Client:
    """Return a client that writes only while the manager leads.  Losing leadership cuts its connections."""
    elector = manager.elector
    if elector is None:
        return Client(transport, audit=manager.audit, identity=manager.identity)
    previous = elector.on_loss

    def on_loss() -> None:
        previous()
        transport.abort()

    elector.on_loss = on_loss
    return Client(transport, fence=elector.fence, audit=manager.audit, identity=manager.identity)


def kubeconfig_only(secret: Object) -> Object:
    """Keep only the kubeconfig and the leftover annotation of a Secret.  Nothing else stays in memory."""
    metadata = {key: secret["metadata"].get(key) for key in ("name", "namespace", "uid", "resourceVersion")}
    annotations = {key: value for key, value in annotations_of(secret).items() if key == keys.LEFT_BEHIND}
    kubeconfig = value_at(secret, "data", KUBECONFIG_KEY)
    return {
        "metadata": {**metadata, "labels": labels_of(secret), "annotations": annotations},
        "data": {} if kubeconfig is None else {KUBECONFIG_KEY: kubeconfig},
    }


def count(bindings: Store, phase: str) -> float:
    return float(sum(value_at(binding, "status", "phase", default="Pending") == phase for binding in bindings.list()))


def with_election_namespace(config: BindingsConfig) -> BindingsConfig:
    """Return the configuration with the Lease in the manager's namespace, unless another one is set."""
    election = config.leader_election
    namespace = election.namespace or config.namespace
    return structs.replace(config, leader_election=structs.replace(election, namespace=namespace))


async def run_manager(config: BindingsConfig, environ: Mapping[str, str], home: Path) -> None:
    config = with_election_namespace(config)
    manager = manager_for(config, environ, home)
    syncer_cluster = None
    if config.deploy_kubeconfig:
        access = load_access([Path(config.deploy_kubeconfig)], environ=environ)
        virtual = configured_access(config, environ, home)
        virtual = replace(virtual, server=config.syncer.virtual_server or virtual.server)
        syncer_cluster = SyncerCluster(HttpTransport(access), HttpTransport(access), virtual)
    manager.register("bindings", lambda target: install(config, target, syncer_cluster=syncer_cluster))
    try:
        await App(manager).run()
    finally:
        if syncer_cluster is not None:
            await syncer_cluster.read_transport.close()
            await syncer_cluster.write_transport.close()
