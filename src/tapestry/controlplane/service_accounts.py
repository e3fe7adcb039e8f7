"""Controller that creates the default ServiceAccount and the root CA ConfigMap in each namespace."""

from dataclasses import dataclass

from tapestry.apiserver.ca_publisher import CaBundle
from tapestry.client.client import Client
from tapestry.controller import Manager
from tapestry.controller.controller import own_namespace
from tapestry.controller.store import Store
from tapestry.kube.errors import AlreadyExists, NotFound
from tapestry.kube.objects import Object, is_deleting
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES, SERVICE_ACCOUNTS, Resource

DEFAULT_ACCOUNT = "default"
ROOT_CA_CONFIGMAP = "kube-root-ca.crt"
DESCRIPTION_ANNOTATION = "kubernetes.io/description"
DESCRIPTION = "CA certificates of the API server of this cluster; pods find them beside their tokens."


@dataclass(frozen=True)
class ServiceAccountReconciler:
    """Ensure the default ServiceAccount and the root CA ConfigMap of each namespace."""

    namespaces: Store
    accounts: Store
    ca_configmaps: Store
    client: Client
    ca_bundle: CaBundle
    """CAs of the server. If empty, no ConfigMap is created."""

    async def reconcile(self, name: str) -> None:
        namespace = self.namespaces.get(name)
        if namespace is None or is_deleting(namespace):
            return
        await self.ensure(SERVICE_ACCOUNTS, self.accounts, {"metadata": {"name": DEFAULT_ACCOUNT, "namespace": name}})
        if self.ca_bundle.pem:
            metadata = {
                "name": ROOT_CA_CONFIGMAP,
                "namespace": name,
                "annotations": {DESCRIPTION_ANNOTATION: DESCRIPTION},
            }
            await self.ensure(
                CONFIGMAPS, self.ca_configmaps, {"metadata": metadata, "data": {"ca.crt": self.ca_bundle.pem}}
            )

    async def ensure(self, resource: Resource, store: Store, desired: Object) -> None:
        metadata = desired["metadata"]
        current = store.get(f"{metadata['namespace']}/{metadata['name']}")
        if current is not None and is_deleting(current):
            return  # its deletion triggers another reconcile
        try:
            await self.client.converge(resource, current, desired)
        except (AlreadyExists, NotFound):
            return  # the cache lags: the event triggers another reconcile


def install(manager: Manager, ca_bundle: CaBundle) -> None:
    namespaces = manager.informer(NAMESPACES)
    accounts = manager.informer(SERVICE_ACCOUNTS, fields=f"metadata.name={DEFAULT_ACCOUNT}")
    configmaps = manager.informer(CONFIGMAPS, fields=f"metadata.name={ROOT_CA_CONFIGMAP}")
    reconciler = ServiceAccountReconciler(namespaces.store, accounts.store, configmaps.store, manager.client, ca_bundle)
    controller = manager.controller("accounts", reconciler.reconcile)
    controller.watch(namespaces)
    for informer in (accounts, configmaps):
        controller.watch(informer, own_namespace)
    ca_bundle.on_change(controller.resync)
