"""Assembly of the manager: informers, watches, controllers and metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec import structs
from prometheus_client import Gauge

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.transport import Transport
from tapestry.controller import App, Informer, Manager, generation_changed
from tapestry.controller.app import manager_for
from tapestry.controller.store import Indexer, Store
from tapestry.kube.objects import Object, annotations_of, labels_of, value_at
from tapestry.kube.resources import SECRETS, SERVICES, Resource
from tapestry.manager.bindings import INDEXERS, BindingReconciler, is_relevant_change, secret_keys_of
from tapestry.manager.config import BindingsConfig
from tapestry.manager.connectivity import KUBECONFIG_KEY, Connect, ConnectivityChecker
from tapestry.manager.leftovers import LeftoverReconciler, leftovers_in
from tapestry.manager.manifests import Scope
from tapestry.manager.serving_certificates import install_approver
from tapestry.manager.syncers import (
    BY_BINDING,
    SyncerDeployer,
    binding_uid_of,
    load_templates,
    packaged_templates,
    scopes,
)

MANAGED = f"{keys.MANAGED_BY}={keys.TAPESTRY}"
PHASES = ("Pending", "Ready", "Failed", "Deleting")
BINDINGS = Gauge("tapestry_bindings", "ClusterBindings by phase.", ["phase"])
LEFTOVERS = Gauge("tapestry_leftovers", "Bindings removed by force whose objects still exist in the physical cluster.")


@dataclass(frozen=True)
class SyncerCluster:
    """A separate cluster that syncers run in, with one transport for reads and one for writes."""

    read_transport: Transport
    write_transport: Transport


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
    syncers = build_deployer(config, manager, syncer_cluster)
    reconciler = BindingReconciler(
        config, manager, bindings, secrets, policies, ConnectivityChecker(connect, config.allow_loopback), syncers
    )
    controller = manager.controller("bindings", reconciler.reconcile)
    controller.watch(bindings, reconciler.affected_bindings, when=is_relevant_change)
    controller.watch(policies, reconciler.bindings_of_policy, when=generation_changed)
    for informer in secrets:
        controller.watch(informer, reconciler.bindings_of_secret)
    for informer in syncers.caches.values():
        controller.watch(informer, reconciler.bindings_of_object)
    install_leftovers(config, manager, bindings, secrets, connect)
    install_approver(manager, bindings, syncers.caches.get((SERVICES, config.namespace)), config.namespace)
    for phase in PHASES:
        BINDINGS.labels(phase).set_function(partial(count, bindings.store, phase))


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


def build_deployer(config: BindingsConfig, manager: Manager, syncer_cluster: SyncerCluster | None) -> SyncerDeployer:
    """Return the deployer of syncers, for the cluster of the bindings or for a separate one."""
    folder = Path(config.template_dir) if config.template_dir else packaged_templates("syncer")
    indexers: dict[str, Indexer] = {BY_BINDING: binding_uid_of}
    caches: dict[Scope, Informer] = {}
    if syncer_cluster is None:
        client = manager.client
        for resource, namespace in scopes(config):
            caches[resource, namespace] = manager.informer(
                resource, namespace=namespace, labels=MANAGED, indexers=indexers
            )
    else:
        client, reads = (
            fenced_client(manager, syncer_cluster.write_transport),
            Client(syncer_cluster.read_transport, identity=manager.identity),
        )
        for resource, namespace in scopes(config):
            informer = Informer(reads, resource, namespace=namespace, labels=MANAGED, indexers=indexers)
            caches[resource, namespace] = manager.add_optional_informer(informer)
    clients: dict[Resource, Client] = dict.fromkeys((resource for resource, _ in caches), client)
    return SyncerDeployer(config, partial(load_templates, folder), clients, caches, syncer_cluster is not None)


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
        syncer_cluster = SyncerCluster(HttpTransport(access), HttpTransport(access))
    manager.register("bindings", lambda target: install(config, target, syncer_cluster=syncer_cluster))
    try:
        await App(manager).run()
    finally:
        if syncer_cluster is not None:
            await syncer_cluster.read_transport.close()
            await syncer_cluster.write_transport.close()
