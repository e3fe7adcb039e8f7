"""Deletion of planes: a plane stays until its tenant is gone.

Otherwise, nobody would know any more which pods of the plane run in the host cluster, and they would go on. The check
reads the bindings after the deletion has begun, and a binding that is created later is rejected.
"""

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, is_tenant
from tapestry.client.client import Client
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, name_of, value_at


async def obstacle_to_deletion(client: Client, plane_id: str) -> str:
    """Return why the data of a plane must not be deleted yet; empty if the plane has no tenant."""
    try:
        bindings = await client.list(CLUSTER_BINDINGS)
    except NotFound:  # no process of this management API has ever run tenants
        return ""
    for each in bindings:
        if is_tenant(each) and each["spec"]["virtualCluster"] == plane_id:
            if is_deleting(each):
                return f"its tenant {name_of(each)} is being deleted first"
            host = each["spec"]["hostCluster"]
            return f"its pods run in HostCluster {host}; `tapestry tenant delete {name_of(each)}` removes them first"
    return ""


def is_too_late(binding: Object, plane: Object) -> bool:
    """Return whether a binding was created after the deletion of its plane has begun."""
    deleted = value_at(plane, "metadata", "deletionTimestamp", default="")
    return is_deleting(plane) and value_at(binding, "metadata", "creationTimestamp", default="") > deleted
