"""Roles: a ClusterRole with an aggregation rule has the rules of all others that its selectors choose."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tapestry.client.client import Client
from tapestry.controller import Manager
from tapestry.controller.store import Store
from tapestry.kube.errors import Conflict, NotFound
from tapestry.kube.objects import Object, labels_of, name_of
from tapestry.kube.resources import CLUSTER_ROLES
from tapestry.kube.selectors import label_selector


def aggregated_rules(role: Object, roles: Iterable[Object]) -> list[Any]:
    """The rules that `role` should have: those of others, by its selectors and then by their names, each once."""
    others = sorted((each for each in roles if name_of(each) != name_of(role)), key=name_of)
    found: list[Any] = []
    for selector in (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ():
        matches = label_selector(selector).matches
        for other in others:
            if matches(labels_of(other)):
                found += [rule for rule in other.get("rules") or () if rule not in found]
    return found


@dataclass(frozen=True)
class RoleAggregationReconciler:
    """Keeps the rules of aggregated roles."""

    roles: Store
    client: Client

    async def reconcile(self, name: str) -> None:
        role = self.roles.get(name)
        if role is None or "aggregationRule" not in role:
            return
        rules = aggregated_rules(role, self.roles.list())
        if rules == (role.get("rules") or []):
            return
        try:
            await self.client.patch(CLUSTER_ROLES, role, {"rules": rules})
        except (Conflict, NotFound):
            return  # it has changed or gone, and what did so brings us back

    def aggregated_role_names(self, _: Object) -> list[str]:
        """Any role may be in any aggregated one; there are few of those."""
        return [name_of(each) for each in self.roles.list() if "aggregationRule" in each]


def install(manager: Manager) -> None:
    informer = manager.informer(CLUSTER_ROLES)
    reconciler = RoleAggregationReconciler(informer.store, manager.client)
    manager.controller("roles", reconciler.reconcile, workers=1).watch(informer, reconciler.aggregated_role_names)
