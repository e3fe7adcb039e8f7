"""Controller that copies rules into ClusterRoles that have an aggregation rule."""

from dataclasses import dataclass

from tapestry.apiserver.access.role_aggregation import aggregated_rules
from tapestry.client.client import Client
from tapestry.controller import Manager
from tapestry.controller.store import Store
from tapestry.kube.errors import Conflict, NotFound
from tapestry.kube.objects import Object, name_of
from tapestry.kube.resources import CLUSTER_ROLES


@dataclass(frozen=True)
class RoleAggregationReconciler:
    """Update the rules of aggregated ClusterRoles."""

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
            return  # changed or deleted: that event triggers another reconcile

    def aggregated_role_names(self, _: Object) -> list[str]:
        """Return all aggregated roles, because any change may affect any of them. There are few."""
        return [name_of(each) for each in self.roles.list() if "aggregationRule" in each]


def install(manager: Manager) -> None:
    informer = manager.informer(CLUSTER_ROLES)
    reconciler = RoleAggregationReconciler(informer.store, manager.client)
    manager.controller("roles", reconciler.reconcile, workers=1).watch(informer, reconciler.aggregated_role_names)
