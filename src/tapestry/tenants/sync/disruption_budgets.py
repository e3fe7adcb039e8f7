"""Twins of the PodDisruptionBudgets of a tenant: evictions in the host cluster respect them.

Twins of pods have no owners, so the host cluster cannot compute percentages and `maxUnavailable`. The plane does: the
twin requires the number of healthy pods that the status of the virtual budget names. Pods that are not healthy never
stop an eviction in the host cluster; otherwise, a pod that never starts would stop the drain of a node forever.
"""

from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import physical_name
from tapestry.controller import Controller
from tapestry.kube.objects import Object, name_of, namespace_of, value_at
from tapestry.kube.resources import DISRUPTION_BUDGETS
from tapestry.syncer.components import Syncer
from tapestry.syncer.translate.metadata import source_metadata
from tapestry.syncer.translate.sanitize import is_int32
from tapestry.tenants.sync.pod_selectors import own_selector, with_exact_selector
from tapestry.tenants.sync.twin_objects import NoTwin, TwinKind, wire_twin_kind


def desired_budget(budget: Object, binding: Binding) -> Object:
    """Return the desired twin of a budget. Raises NoTwin."""
    selector, minimum = value_at(budget, "spec", "selector"), min_available(budget)
    if not binding.spec.sync.disruption_budgets or selector is None or minimum is None:
        raise NoTwin
    return {
        "apiVersion": DISRUPTION_BUDGETS.api_version,
        "kind": DISRUPTION_BUDGETS.kind,
        "metadata": {
            "name": physical_name(binding.virtual_cluster, binding.uid, namespace_of(budget) or "", name_of(budget)),
            "namespace": binding.spec.mount_namespace,
            **source_metadata(budget, binding),
        },
        "spec": {
            "selector": own_selector(selector, budget, binding),
            "minAvailable": minimum,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def min_available(budget: Object) -> int | None:
    """Return the number of pods that must be healthy; None until the plane has computed it."""
    number = value_at(budget, "spec", "minAvailable")
    if not is_int32(number):
        status = budget.get("status") or {}
        number = status.get("desiredHealthy") if status.get("observedGeneration") else None
    return number if is_int32(number) and number >= 0 else None


def wire_disruption_budgets(syncer: Syncer, *, is_synced: bool) -> Controller:
    """Add the controller of disruption budgets to the syncer of a tenant."""
    kind = TwinKind(DISRUPTION_BUDGETS, desired_budget, with_allocated=with_exact_selector("selector"))
    return wire_twin_kind(syncer, "disruption-budgets", kind, is_synced=is_synced)
