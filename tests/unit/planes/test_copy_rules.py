"""Which objects a copy includes, and what changes in the plane that is created from it."""

import msgspec
import pytest

from tapestry.apiserver.core.store import Key
from tapestry.apiserver.storage.log import Entry
from tapestry.kube.objects import Object
from tapestry.planes.copy_rules import IdentityChange, is_included, new_plane_entry

CHANGE = IdentityChange("old-uid", "new-uid")


def entry(resource: str, name: str = "x", namespace: str = "default", **fields: object) -> Entry:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "7"}
    return Entry(7, Key(resource, namespace, name), msgspec.json.encode({"metadata": metadata, **fields}))


def decoded(result: Entry) -> Object:
    obj: Object = msgspec.json.decode(result.raw or b"")
    return obj


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (entry("secrets", type="Opaque"), True),
        (entry("secrets", type="kubernetes.io/tls"), True),
        (entry("secrets", type="kubernetes.io/service-account-token"), False),
        (entry("secrets", type="bootstrap.kubernetes.io/token"), False),
        (entry("configmaps", "settings"), True),
        (entry("configmaps", "kube-root-ca.crt"), False),
        (entry("configmaps", "extension-apiserver-authentication", "kube-system"), False),
        (entry("configmaps", "cluster-info", "kube-public"), False),
        (entry("configmaps", "cluster-info"), True),
        (entry("leases.coordination.k8s.io", spec={"holderIdentity": "a"}), False),
        (entry("leases.coordination.k8s.io", spec={"holderIdentity": ""}), True),
        (entry("certificatesigningrequests.certificates.k8s.io"), False),
        (entry("endpoints", "kubernetes"), False),
        (entry("endpoints", "kubernetes", "other"), True),
        (entry("endpointslices.discovery.k8s.io", "kubernetes"), False),
        (entry("pods"), True),
        (entry("widgets.example.com", type="kubernetes.io/service-account-token"), True),
    ],
    ids=lambda value: "/".join(value.key) if isinstance(value, Entry) else None,
)
def test_copy_excludes_identities(candidate: Entry, expected: bool) -> None:
    assert is_included(candidate) is expected


def test_new_plane_has_another_identity() -> None:
    namespace = Entry(7, Key("namespaces", "", "kube-system"), b'{"metadata":{"name":"kube-system","uid":"old-uid"}}')
    result = new_plane_entry(namespace, CHANGE)
    assert (result.revision, result.key, decoded(result)["metadata"]["uid"]) == (7, namespace.key, "new-uid")


def test_owner_follows_the_new_identity() -> None:
    owners = [{"kind": "Namespace", "uid": "old-uid"}, {"kind": "Node", "uid": "n"}]
    owned = entry("configmaps")
    obj = decoded(owned)
    obj["metadata"]["ownerReferences"] = owners
    result = decoded(new_plane_entry(owned._replace(raw=msgspec.json.encode(obj)), CHANGE))
    assert [each["uid"] for each in result["metadata"]["ownerReferences"]] == ["new-uid", "n"]


def test_other_objects_stay_the_same() -> None:
    for each in (entry("namespaces", "default", ""), entry("pods"), entry("configmaps", data={"uid": "old-uid"})):
        assert new_plane_entry(each, CHANGE) is each
    unknown = entry("pods")
    assert new_plane_entry(unknown, IdentityChange("", "new-uid")) is unknown
