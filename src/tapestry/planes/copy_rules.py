"""Rules of a copy: which objects it includes, and how they change in the plane that is created from it.

A copy has the objects of a plane, but nothing that proves an identity: no tokens and no certificates. The new plane is
another cluster, with its own UID of kube-system, which is the identity of a cluster. All functions are pure.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tapestry.apiserver.core.store import Key
from tapestry.apiserver.storage.log import Entry
from tapestry.controlplane.service_accounts import ROOT_CA_CONFIGMAP
from tapestry.kube.objects import Object, value_at, with_value

TOKEN_SECRET_TYPES = ("kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token")
CA_CONFIGMAPS = (("kube-system", "extension-apiserver-authentication"), ("kube-public", "cluster-info"))
"""Namespaces and names of the ConfigMaps with the CA of the cluster, beside the root CA ConfigMap of each namespace."""
SERVER_ENDPOINTS = ("default", "kubernetes")
"""Namespace and name of the objects with the address of the server, which it writes again."""
IDENTITY_NAMESPACE = Key("namespaces", "", "kube-system")


def is_token(_: Key, obj: Object) -> bool:
    return obj.get("type") in TOKEN_SECRET_TYPES


def is_ca_configmap(key: Key, _: Object) -> bool:
    return key.name == ROOT_CA_CONFIGMAP or (key.namespace, key.name) in CA_CONFIGMAPS


def is_server_endpoint(key: Key, _: Object) -> bool:
    return (key.namespace, key.name) == SERVER_ENDPOINTS


def is_held(_: Key, obj: Object) -> bool:
    return bool(value_at(obj, "spec", "holderIdentity"))


def is_any(_: Key, __: Object) -> bool:
    return True


EXCLUDED: dict[str, Callable[[Key, Object], bool]] = {
    "secrets": is_token,
    "configmaps": is_ca_configmap,
    "endpoints": is_server_endpoint,
    "endpointslices.discovery.k8s.io": is_server_endpoint,
    "leases.coordination.k8s.io": is_held,
    "certificatesigningrequests.certificates.k8s.io": is_any,  # an approved one would be signed by the new CA
}
"""By resource, whether a copy excludes an object."""


@dataclass(frozen=True)
class IdentityChange:
    """UIDs of kube-system in the copied plane and in the new one."""

    old_uid: str
    new_uid: str


def with_new_identity(key: Key, obj: Object, change: IdentityChange) -> Object:
    return with_value(obj, ("metadata", "uid"), change.new_uid) if key == IDENTITY_NAMESPACE else obj


CHANGES: dict[str, Callable[[Key, Object, IdentityChange], Object]] = {"namespaces": with_new_identity}
"""By resource, the object in the new plane."""


def is_included(entry: Entry) -> bool:
    """Return whether a copy includes an object."""
    is_excluded = EXCLUDED.get(entry.key.resource)
    return is_excluded is None or not is_excluded(entry.key, msgspec.json.decode(entry.raw or b"{}"))


def new_plane_entry(entry: Entry, identity: IdentityChange) -> Entry:
    """Return an object of a copy as it is in the new plane."""
    raw = entry.raw or b"{}"
    change, old_uid = CHANGES.get(entry.key.resource), identity.old_uid.encode()
    if change is None and (not old_uid or old_uid not in raw):
        return entry
    obj = msgspec.json.decode(raw)
    changed = with_new_owner(change(entry.key, obj, identity) if change is not None else obj, identity)
    return entry if changed == obj else entry._replace(raw=msgspec.json.encode(changed))


def with_new_owner(obj: Object, identity: IdentityChange) -> Object:
    """Return the object with kube-system of the new plane as the owner, if that of the copied plane is an owner."""
    owners = obj["metadata"].get("ownerReferences") or []
    changed = [{**each, "uid": identity.new_uid} if each.get("uid") == identity.old_uid else each for each in owners]
    return with_value(obj, ("metadata", "ownerReferences"), changed) if changed != owners else obj
