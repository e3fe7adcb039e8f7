"""Kinds of a tenant that its binding switches on or off: the controllers of their twins, and what they give to pods."""

from collections.abc import Callable

from tapestry.kube.objects import Object
from tapestry.syncer.components import Syncer
from tapestry.syncer.topdown.copies import CopyReconciler
from tapestry.syncer.translate.pods import TwinSettings
from tapestry.tenants.leased_nodes import LeasedNodes
from tapestry.tenants.sync.disruption_budgets import wire_disruption_budgets
from tapestry.tenants.sync.ingresses import wire_ingresses
from tapestry.tenants.sync.network_policies import PolicyLabels, wire_network_policies
from tapestry.tenants.sync.priorities import TwinPriorities
from tapestry.tenants.tenant_set import Tenant


class OtherKinds:
    """Ingresses, network policies, disruption budgets and priorities of a tenant. A syncer runs for fixed switches."""

    def __init__(self, tenant: Tenant, syncer: Syncer, leased_nodes: LeasedNodes) -> None:
        self._tenant, self._syncer, self._leased_nodes = tenant, syncer, leased_nodes
        self._labels = PolicyLabels(syncer, is_synced=tenant.sync.network_policies)
        self._priorities = TwinPriorities(syncer, tenant.priority_classes)
        self._resyncs: tuple[Callable[[], None], ...] = ()

    def twin_settings(self, pod: Object) -> TwinSettings:
        account = self._tenant.service_account
        return TwinSettings(self._labels.of_pod(pod), self._priorities.class_of(pod), account)

    def wire(self, copies: CopyReconciler, requeue_pod: Callable[[str], None]) -> None:
        """Add the controllers to the syncer."""
        tenant, syncer, leased_nodes, sync = self._tenant, self._syncer, self._leased_nodes, self._tenant.sync
        self._labels.requeue_pods(requeue_pod)
        policies = wire_network_policies(
            *(syncer, tenant.destinations, tenant.addresses, leased_nodes), is_synced=sync.network_policies
        )
        budgets = wire_disruption_budgets(syncer, is_synced=sync.disruption_budgets)
        ingresses = wire_ingresses(syncer, copies, leased_nodes, is_synced=sync.ingresses)
        self._resyncs = policies.resync, budgets.resync, ingresses

    def resync(self) -> None:
        """Compare all twins again."""
        for resync in self._resyncs:
            resync()
