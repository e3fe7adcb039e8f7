"""The binding of a tenant as its syncer reads it: with what its host cluster offers, and the rules for all tenants."""

from dataclasses import dataclass, field, replace

from msgspec import structs

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding, VirtualEndpoints
from tapestry.apis.field_types import intersection
from tapestry.apis.hostclusters import HOST_CLUSTER, HostClusterSpec
from tapestry.apis.mount_labels import stricter_level
from tapestry.controller import ObjectCache
from tapestry.kube.crds import decode_spec
from tapestry.kube.objects import Object, annotations_of
from tapestry.syncer.current_binding import CurrentBinding, IdentityMemo

ISOLATION_LEVELS = {"full": "restricted", "lite": "baseline"}
"""Least Pod Security level of each isolation mode."""
KUBERNETES_PORT = 443
"""Port of the Service `kubernetes` in the host namespace of a tenant."""


@dataclass(frozen=True)
class TenantAddresses:
    """Addresses of the Services in the host namespace of a tenant. Empty: the tenant has no such Service."""

    api: str = ""
    dns: str = ""


@dataclass(frozen=True)
class TenantBinding(CurrentBinding):
    """The cached binding of a tenant. It does not change unless the binding, its HostCluster or its namespace does."""

    host_name: str = ""
    hosts: ObjectCache = field(kw_only=True)
    shared_namespace: ObjectCache = field(kw_only=True)
    """The namespace of the host cluster with the kill switch for all tenants."""
    addresses: TenantAddresses = field(kw_only=True)
    namespace_memo: IdentityMemo[Object | None] = field(default_factory=IdentityMemo)

    def get(self) -> Binding | None:
        obj, mount, host = self.object(), self.mount_namespace(), self.hosts.store.get(self.host_name)
        if obj is None or host is None:
            return None
        return self.memo.get((obj, mount, host), lambda: self._binding(obj, mount, host))

    def _binding(self, obj: Object, mount: Object | None, host: Object) -> Binding:
        binding = self.effective_binding(obj, mount)
        return tenant_binding(binding, decode_spec(HOST_CLUSTER, host), self.identity.mount_namespace, self.addresses)

    def mount_namespace(self) -> Object | None:
        """Return the namespace of the tenant. If the owner reclaims nodes from all tenants, it says so, too."""
        own = super().mount_namespace()
        shared = next(iter(self.shared_namespace.store.list()), None)
        return self.namespace_memo.get((own, shared), lambda: with_kill_switch(own, shared))


def with_kill_switch(own: Object | None, shared: Object | None) -> Object | None:
    if own is None or shared is None or annotations_of(shared).get(keys.RECLAIM) != keys.RECLAIM_NOW:
        return own
    annotations = {**annotations_of(own), keys.RECLAIM: keys.RECLAIM_NOW}
    return {**own, "metadata": {**own["metadata"], "annotations": annotations}}


def tenant_binding(binding: Binding, host: HostClusterSpec, namespace: str, addresses: TenantAddresses) -> Binding:
    """Return the binding with the values that tenants have in place of defaults for leased clusters."""
    spec = binding.spec
    level = stricter_level(spec.pod_security, ISOLATION_LEVELS[spec.isolation.mode])
    endpoints = VirtualEndpoints(
        api=f"{bracketed(addresses.api)}:{KUBERNETES_PORT}" if addresses.api else None,
        dns=addresses.dns or None,
    )
    return replace(
        binding,
        host=host,
        spec=structs.replace(
            spec,
            mount_namespace=namespace,
            node_selector=intersection(spec.node_selector, spec.sync.node_selector, host.node_selector),
            disable_node_default_taint=True,
            running_daemonset_by_default=True,
            pod_security=level,
            pod_priority_class_name=spec.pod_priority_class_name or host.priority_class_name,
            virtual_endpoints=endpoints,
        ),
    )


def ingress_suffix(binding: Binding) -> str:
    """Return the end of the host names that a tenant may have in its Ingresses; empty if it may have none."""
    host = binding.host
    if host is None or not binding.spec.sync.ingresses or not host.ingress_class or not host.ingress_domain:
        return ""
    return f".{binding.spec.virtual_cluster}.{host.ingress_domain}"


def bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
