"""Accounts: every namespace has an account that its pods can run as, and the CA that they know the server by."""

from dataclasses import dataclass

from tapestry.client.client import Client
from tapestry.controller import Manager
from tapestry.controller.controller import own_namespace
from tapestry.controller.store import Store
from tapestry.kube.errors import AlreadyExists, NotFound
from tapestry.kube.objects import Object, is_deleting
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES, SERVICE_ACCOUNTS, Resource

DEFAULT = "default"
ROOT = "kube-root-ca.crt"
ABOUT = "kubernetes.io/description"
DESCRIPTION = "Certificates to know the API server of this cluster by; pods find them beside their tokens."


@dataclass(frozen=True)
class Accounts:
    """Keeps in each namespace what every namespace has."""

    namespaces: Store
    accounts: Store
    roots: Store
    client: Client
    authority: str
    """Certificates in PEM; without any, there is nothing to know the server by."""

    async def reconcile(self, name: str) -> None:
        namespace = self.namespaces.get(name)
        if namespace is None or is_deleting(namespace):
            return
        await self.have(SERVICE_ACCOUNTS, self.accounts, {"metadata": {"name": DEFAULT, "namespace": name}})
        if self.authority:
            metadata = {"name": ROOT, "namespace": name, "annotations": {ABOUT: DESCRIPTION}}
            await self.have(CONFIGMAPS, self.roots, {"metadata": metadata, "data": {"ca.crt": self.authority}})

    async def have(self, resource: Resource, known: Store, wanted: Object) -> None:
        metadata = wanted["metadata"]
        current = known.get(f"{metadata['namespace']}/{metadata['name']}")
        if current is not None and is_deleting(current):
            return  # its end brings us back
        try:
            await self.client.converge(resource, current, wanted)
        except (AlreadyExists, NotFound):
            return  # the cache is about to tell of it, or of the end of the namespace


def install(manager: Manager, authority: str) -> None:
    namespaces = manager.informer(NAMESPACES)
    accounts = manager.informer(SERVICE_ACCOUNTS, fields=f"metadata.name={DEFAULT}")
    roots = manager.informer(CONFIGMAPS, fields=f"metadata.name={ROOT}")
    reconciler = Accounts(namespaces.store, accounts.store, roots.store, manager.client, authority)
    controller = manager.controller("accounts", reconciler.reconcile)
    controller.watch(namespaces)
    for informer in (accounts, roots):
        controller.watch(informer, own_namespace)
