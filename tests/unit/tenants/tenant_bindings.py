"""Bindings of tenants for unit tests."""

from typing import Any

from tapestry.apis.clusterbindings import Binding, binding_of
from tapestry.apis.field_types import SecretReference
from tapestry.apis.hostclusters import HostClusterSpec

PLANE = "blue"


def tenant_binding(
    uid: str = "11111111-2222-4333-8444-555555555555", plane: str = PLANE, address: str = "192.0.2.10", **spec: Any
) -> Binding:
    """Return the binding of a tenant, whose host cluster reaches the process at an address."""
    host = HostClusterSpec(SecretReference("east", "tapestry-hosts"), api_address=address)
    content = {"clusterID": plane, "virtualCluster": plane, "hostCluster": "east", **spec}
    return binding_of(
        {"metadata": {"name": plane, "uid": uid}, "spec": content}, plane, manager_namespace="", host=host
    )
