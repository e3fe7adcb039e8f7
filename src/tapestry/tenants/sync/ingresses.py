"""Controller of the Ingresses of a tenant, and the copies of the certificates that they name."""

from collections.abc import Callable
from dataclasses import dataclass

from tapestry.apis.clusterbindings import Binding
from tapestry.controller import ObjectCache
from tapestry.kube.objects import Object
from tapestry.kube.resources import INGRESSES, SECRETS
from tapestry.syncer.components import Syncer
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.topdown.copies import CopyReconciler
from tapestry.tenants.leased_nodes import HOST_HAS_LEASED_NODES, MESSAGE, LeasedNodes
from tapestry.tenants.sync.ingress_translation import desired_ingress, named_certificates, reported_status
from tapestry.tenants.sync.twin_objects import NotSynced, NoTwin, TwinKind, wire_twin_kind

CERTIFICATE_INDEX = "certificate"


@dataclass(frozen=True)
class Certificates:
    """Copies of the Secrets that the Ingresses of a tenant name."""

    current_binding: CurrentBinding
    ingresses: ObjectCache
    """Ingresses of the plane, with an index of the Secrets that they name."""
    copies: CopyReconciler

    def needs(self, key: str) -> bool:
        """Return whether the twin of an Ingress names the copy of a Secret, as in `secrets/team-a/certificate`."""
        binding = self.current_binding.get()
        if binding is None or self.current_binding.is_unbinding:
            return False
        return any(has_twin(each, binding) for each in self.ingresses.store.iter_by(CERTIFICATE_INDEX, key))

    def on_change(self, old: Object | None, new: Object | None) -> None:
        """Handle a change of an Ingress."""
        for key in {key for each in (old, new) if each is not None for key in named_certificates(each)}:
            self.requeue(key)

    def requeue_all(self) -> None:
        for key in self.ingresses.store.index_values(CERTIFICATE_INDEX):
            self.requeue(key)

    def requeue(self, key: str) -> None:
        """Watch a Secret and copy it if it is needed, and otherwise delete its copy."""
        sources = self.copies.source_cache
        sources.requeue(key)
        if sources.is_synced(key):
            sources.after_sync(key)
        self.copies.schedule_sweep(key.split("/")[1])


def has_twin(ingress: Object, binding: Binding) -> bool:
    try:
        desired_ingress(ingress, binding)
    except NoTwin:
        return False
    return True


def wire_ingresses(
    syncer: Syncer, copies: CopyReconciler, leased_nodes: LeasedNodes, *, is_synced: bool
) -> Callable[[], None]:
    """Add the controller of Ingresses to the syncer of a tenant. Return a function that requeues all of them."""

    def desired(ingress: Object, binding: Binding) -> Object:
        twin = desired_ingress(ingress, binding)
        if leased_nodes:
            raise NotSynced(HOST_HAS_LEASED_NODES, MESSAGE)
        return twin

    def reported(ingress: Object, twin: Object | None) -> Object | None:
        binding = syncer.current_binding.get()
        return reported_status(ingress, twin, binding) if binding is not None else None

    controller = wire_twin_kind(syncer, "ingresses", TwinKind(INGRESSES, desired, reported), is_synced=is_synced)
    leased_nodes.on_change(controller.resync)
    if not is_synced:
        return controller.resync
    ingresses = syncer.manager.informer(INGRESSES)
    ingresses.store.add_index(CERTIFICATE_INDEX, named_certificates)
    certificates = Certificates(syncer.current_binding, ingresses, copies)
    copies.other_users.append(certificates.needs)
    ingresses.on_change(certificates.on_change)
    copies.copy_informers[SECRETS.plural].after_sync(certificates.requeue_all)

    def requeue_all() -> None:
        controller.resync()
        certificates.requeue_all()

    return requeue_all
