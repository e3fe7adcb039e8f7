"""Bindings of tenants as their syncers read them."""

from dataclasses import replace
from typing import Any

from msgspec import structs

from tapestry.apis.clusterbindings import Binding, ClusterBindingSpec
from tapestry.apis.field_types import SecretReference
from tapestry.apis.hostclusters import HostClusterSpec
from tapestry.apis.names import virtual_cluster_label
from tapestry.tenants.tenant_binding import TenantAddresses, tenant_binding

PLANE = "plane-one-4711"
HOST = HostClusterSpec(
    secret_ref=SecretReference("host", "tapestry-system"), ingress_class="public", ingress_domain="apps.example.com"
)
SPEC = ClusterBindingSpec(cluster_id="one", virtual_cluster=PLANE, host_cluster="host")
ADDRESSES = TenantAddresses("10.96.0.11", "10.96.0.12")


def tenant(
    plane: str = PLANE, *, uid: str = "uid-1", namespace: str = "tenant-one", host: HostClusterSpec = HOST, **spec: Any
) -> Binding:
    """Return the binding of a tenant as its syncer reads it."""
    changed = structs.replace(SPEC, virtual_cluster=plane, **spec)
    binding = Binding(f"tenant-{plane}", uid, virtual_cluster_label(plane), changed, manager_namespace="")
    return tenant_binding(replace(binding, host=host), host, namespace, ADDRESSES)
