"""Kubeconfigs of virtual clusters: short-lived, named after the caller, and with no more rights than its role."""

import base64
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import yaml

from tapestry.apis.planes import PLANES, plane_id
from tapestry.apis.vclusters import VCLUSTERS
from tapestry.apiserver.core.requests import APISERVER_USER, MASTERS_GROUP, User
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.objects import Object, name_of, namespace_of, object_named, value_at
from tapestry.kube.resources import CLUSTER_ROLE_BINDINGS
from tapestry.planes.endpoints import Endpoints
from tapestry.planes.forwarding import ForwardTarget
from tapestry.planes.kubeconfigs import PlaneEndpoint, plane_kubeconfig
from tapestry.planes.open_plane import OpenPlane
from tapestry.planes.plane_holders import PlaneHolders
from tapestry.planes.plane_keys import PlaneKeys, held_plane
from tapestry.planes.plane_listener import woken
from tapestry.planes.plane_set import PlaneSet
from tapestry.vclusters.access.roles import KUBECONFIG_ROLES, Caller
from tapestry.vclusters.errors import permission_denied, precondition_failed
from tapestry.vclusters.placement import ingress_url
from tapestry.vclusters.stored_objects import StoredObjects

RBAC = "rbac.authorization.k8s.io"
CLUSTER_ADMIN = "cluster-admin"
GROUP_PREFIX = "tapestry:vcluster:"
"""Group of the users of kubeconfigs whose ClusterRole follows."""
EXEC_API_VERSION = "client.authentication.k8s.io/v1"
USER_PREFIX = "tapestry:user:"
"""Before the name of a caller that Kubernetes could take for one of its own users."""


@dataclass(frozen=True)
class Kubeconfig:
    text: str
    server: str
    expires: datetime | None
    """Expiry of its credential; None if it has none."""

    @property
    def in_base64(self) -> str:
        return base64.b64encode(self.text.encode()).decode()


@dataclass(frozen=True)
class Access:
    """Rights of a caller in a virtual cluster."""

    plane: Object
    role: str
    """ClusterRole of the user's group."""
    user: User

    @property
    def plane_id(self) -> str:
        return plane_id(self.plane)


@dataclass(frozen=True)
class VClusterKubeconfigs:
    """Issuer of kubeconfigs for virtual clusters. The token is issued by the process that holds the plane."""

    objects: StoredObjects
    planes: PlaneSet
    endpoints: Endpoints
    keys: PlaneKeys
    holders: PlaneHolders

    async def issue(self, vcluster: Object, caller: Caller, lifetime: timedelta) -> Kubeconfig:
        """Issue a kubeconfig. Raises ServiceError, and Unavailable if no process holds the plane."""
        access = self._access_of(vcluster, caller)
        await self._bind(access)
        user = access.user
        if self.planes.has(access.plane_id):
            token, text = await self.keys.issue_token(access.plane_id, user.name, user.groups, lifetime)
            endpoint, expires = self.endpoints.endpoint(access.plane_id), token.expires
        else:
            expires = self.keys.now() + lifetime
            target = await self.holders.new_target(access.plane, user.name, user.groups, lifetime)
            endpoint, text = endpoint_of(target), target.token
        return kubeconfig(vcluster, endpoint, {"token": text}, expires)

    async def with_plugin(self, vcluster: Object, caller: Caller) -> Kubeconfig:
        """Return a kubeconfig without a credential, whose user runs `tapestry vc credential`. Raises like `issue`."""
        access = self._access_of(vcluster, caller)
        if self.planes.has(access.plane_id):
            endpoint = self.endpoints.endpoint(access.plane_id)
        else:
            user = access.user
            endpoint = endpoint_of(await self.holders.target(access.plane, user.name, user.groups, self.keys.now()))
        return kubeconfig(vcluster, endpoint, {"exec": plugin_of(vcluster)}, None)

    def with_id(self, id: str) -> Object | None:
        return self.objects.with_uid(VCLUSTERS, id)

    async def elsewhere(self, vcluster: Object, caller: Caller) -> ForwardTarget | None:
        """Return the plane of another process, as the user of a kubeconfig for the caller; None if this one holds it.

        Raises like `issue`.
        """
        access = self._access_of(vcluster, caller)
        if self.planes.has(access.plane_id):
            return None
        await self._bind(access)
        return await self.holders.target(access.plane, access.user.name, access.user.groups, self.keys.now())

    async def open_as(self, vcluster: Object, caller: Caller) -> tuple[OpenPlane, User]:
        """Return the plane, opened if it is asleep, and the user of a kubeconfig for the caller. Raises like `issue`.

        Raises Unavailable with the reason if the plane is suspended or does not open, too.
        """
        access = self._access_of(vcluster, caller)
        await self._bind(access)
        return await woken(self.planes, held_plane(self.planes, access.plane_id)), access.user

    def _access_of(self, vcluster: Object, caller: Caller) -> Access:
        role = KUBECONFIG_ROLES.get(caller.role_in(value_at(vcluster, "spec", "project", default="")))
        if role is None:
            raise permission_denied("GetVClusterKubeconfig", f"VCluster {name_of(vcluster)}")
        plane = self.objects.get(PLANES, "", value_at(vcluster, "status", "plane", default=""))
        if plane is None:
            raise precondition_failed(
                "NOT_INSTALLED", name_of(vcluster), "the virtual cluster has no control plane yet"
            )
        group = MASTERS_GROUP if role == CLUSTER_ADMIN else GROUP_PREFIX + role
        return Access(plane, role, User(user_name(caller.user), (group,)))

    async def _bind(self, access: Access) -> None:
        """Give the role to its group in the plane, unless that was done before."""
        if access.role == CLUSTER_ADMIN:
            return
        if self.planes.has(access.plane_id):
            plane = await woken(self.planes, held_plane(self.planes, access.plane_id))
            await bind_role(Client(InProcessTransport(plane.opened.request_handler, APISERVER_USER)), access.role)
            return
        target = await self.holders.target(access.plane, APISERVER_USER.name, (MASTERS_GROUP,), self.keys.now())
        async with Client(HttpTransport(target.access())) as client:
            await bind_role(client, access.role)


def endpoint_of(target: ForwardTarget) -> PlaneEndpoint:
    return PlaneEndpoint(target.url, target.ca_pem, target.server_name)


def kubeconfig(
    vcluster: Object, endpoint: PlaneEndpoint, user: Mapping[str, object], expires: datetime | None
) -> Kubeconfig:
    """Return a kubeconfig with this user. The address is that of the Ingress, if the virtual cluster has one."""
    if url := ingress_url(vcluster["spec"]):
        endpoint = replace(endpoint, server=url, tls_server_name="")
    document = plane_kubeconfig(name_of(vcluster), endpoint, user)
    return Kubeconfig(yaml.safe_dump(document, sort_keys=False), endpoint.server, expires)


async def bind_role(client: Client, role: str) -> None:
    """Give a ClusterRole to its group in a plane, unless that was done before."""
    name = GROUP_PREFIX + role
    if await client.find(CLUSTER_ROLE_BINDINGS, name) is not None:  # without the webhooks that a create calls
        return
    group = {"apiGroup": RBAC, "kind": "Group", "name": name}
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": role}
    with suppress(AlreadyExists):
        await client.create(CLUSTER_ROLE_BINDINGS, {**object_named(name), "roleRef": reference, "subjects": [group]})


def plugin_of(vcluster: Object) -> Object:
    """Return the program from which clients of a kubeconfig get credentials, by the protocol of client-go."""
    return {
        "apiVersion": EXEC_API_VERSION,
        "command": "tapestry",
        "args": ["vc", "credential", name_of(vcluster), "--namespace", namespace_of(vcluster)],
        "interactiveMode": "Never",
        "provideClusterInfo": True,
        "installHint": "install the command with: pip install 'kube-tapestry[service]'",
    }


def user_name(caller: str) -> str:
    """Return the name of a caller in virtual clusters, which is never that of a component of Kubernetes."""
    return USER_PREFIX + caller if ":" in caller else caller
