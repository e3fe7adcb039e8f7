"""Kubeconfigs of virtual clusters: short-lived, named after the caller, and with no more rights than its role."""

import base64
from dataclasses import dataclass
from datetime import datetime, timedelta

import yaml

from tapestry.apis.planes import PLANES, plane_id
from tapestry.apiserver.core.requests import APISERVER_USER, MASTERS_GROUP
from tapestry.client.client import Client
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.objects import Object, name_of, object_named, value_at
from tapestry.kube.resources import CLUSTER_ROLE_BINDINGS
from tapestry.planes.endpoints import Endpoints
from tapestry.planes.kubeconfigs import plane_kubeconfig
from tapestry.planes.plane_keys import PlaneKeys, held_plane, unavailable
from tapestry.planes.plane_set import PlaneSet
from tapestry.vclusters.access.roles import KUBECONFIG_ROLES, Caller
from tapestry.vclusters.errors import permission_denied, precondition_failed
from tapestry.vclusters.stored_objects import StoredObjects

RBAC = "rbac.authorization.k8s.io"
CLUSTER_ADMIN = "cluster-admin"
GROUP_PREFIX = "tapestry:vcluster:"
"""Group of the users of kubeconfigs whose ClusterRole follows."""
USER_PREFIX = "tapestry:user:"
"""Before the name of a caller that Kubernetes could take for one of its own users."""


@dataclass(frozen=True)
class Kubeconfig:
    text: str
    server: str
    expires: datetime

    @property
    def in_base64(self) -> str:
        return base64.b64encode(self.text.encode()).decode()


@dataclass(frozen=True)
class VClusterKubeconfigs:
    """Issuer of kubeconfigs for virtual clusters whose planes this process holds."""

    objects: StoredObjects
    planes: PlaneSet
    endpoints: Endpoints
    keys: PlaneKeys

    async def issue(self, vcluster: Object, caller: Caller, lifetime: timedelta) -> Kubeconfig:
        """Issue a kubeconfig. Raises ServiceError, and Unavailable if this process does not hold the plane."""
        project = value_at(vcluster, "spec", "project", default="")
        role = KUBECONFIG_ROLES.get(caller.role_in(project))
        if role is None:
            raise permission_denied("GetVClusterKubeconfig", f"VCluster {name_of(vcluster)}")
        plane = self.objects.get(PLANES, "", value_at(vcluster, "status", "plane", default=""))
        if plane is None:
            raise precondition_failed(
                "NOT_INSTALLED", name_of(vcluster), "the virtual cluster has no control plane yet"
            )
        id = plane_id(plane)
        group = MASTERS_GROUP if role == CLUSTER_ADMIN else GROUP_PREFIX + role
        if role != CLUSTER_ADMIN:
            await self._bind(id, role)
        token, text = await self.keys.issue_token(id, user_name(caller.user), (group,), lifetime)
        endpoint = self.endpoints.endpoint(id)
        document = plane_kubeconfig(name_of(vcluster), endpoint, {"token": text})
        return Kubeconfig(yaml.safe_dump(document, sort_keys=False), endpoint.server, token.expires)

    async def _bind(self, id: str, role: str) -> None:
        """Give the role to its group in the plane, unless that was done before."""
        opened = await self.planes.wake(held_plane(self.planes, id))
        if opened is None:
            raise unavailable("the control plane is not open; try again later")
        client = Client(InProcessTransport(opened.opened.request_handler, APISERVER_USER))
        group = {"apiGroup": RBAC, "kind": "Group", "name": GROUP_PREFIX + role}
        reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": role}
        try:
            binding = object_named(GROUP_PREFIX + role)
            await client.create(CLUSTER_ROLE_BINDINGS, {**binding, "roleRef": reference, "subjects": [group]})
        except AlreadyExists:
            return


def user_name(caller: str) -> str:
    """Return the name of a caller in virtual clusters, which is never that of a component of Kubernetes."""
    return USER_PREFIX + caller if ":" in caller else caller
