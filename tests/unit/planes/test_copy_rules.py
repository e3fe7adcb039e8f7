"""Which objects a copy includes, and what changes in the plane that is created from it."""

import msgspec
import pytest

from tapestry.apis import keys
from tapestry.apiserver.core.store import Key
from tapestry.apiserver.storage.log import Entry
from tapestry.kube.objects import Object
from tapestry.planes.copy_rules import (
    Elsewhere,
    IdentityChange,
    elsewhere,
    is_included,
    is_left_behind,
    new_plane_entry,
)

CHANGE = IdentityChange("old-uid", "new-uid")
NOWHERE = Elsewhere()


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
    result = new_plane_entry(namespace, CHANGE, NOWHERE)
    assert (result.revision, result.key, decoded(result)["metadata"]["uid"]) == (7, namespace.key, "new-uid")


def test_owner_follows_the_new_identity() -> None:
    owners = [{"kind": "Namespace", "uid": "old-uid"}, {"kind": "Node", "uid": "n"}]
    owned = entry("configmaps")
    obj = decoded(owned)
    obj["metadata"]["ownerReferences"] = owners
    result = decoded(new_plane_entry(owned._replace(raw=msgspec.json.encode(obj)), CHANGE, NOWHERE))
    assert [each["uid"] for each in result["metadata"]["ownerReferences"]] == ["new-uid", "n"]


def test_other_objects_stay_the_same() -> None:
    for each in (entry("namespaces", "default", ""), entry("pods"), entry("configmaps", data={"uid": "old-uid"})):
        assert new_plane_entry(each, CHANGE, NOWHERE) is each
    unknown = entry("pods")
    assert new_plane_entry(unknown, IdentityChange("", "new-uid"), NOWHERE) is unknown


# -- what the copied plane has in other clusters


HERE = Elsewhere(frozenset({"n1"}), frozenset({"pvc-1"}), has_host=True)
VIRTUAL = {keys.NODE_TYPE: keys.NODE_TYPE_VIRTUAL, keys.CLUSTER_BINDING_UID: "b"}
DRIVER = {"csi": {"driver": keys.HOST_VOLUME_DRIVER}}


def labelled(resource: str, labels: dict[str, str], name: str = "x", namespace: str = "default") -> Entry:
    return Entry(7, Key(resource, namespace, name), msgspec.json.encode({"metadata": {"name": name, "labels": labels}}))


def in_new_plane(candidate: Entry, has: Elsewhere = HERE) -> Object:
    return decoded(new_plane_entry(candidate, CHANGE, has))


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (labelled("nodes", VIRTUAL, "n1", ""), HERE.nodes),
        (labelled("nodes", {keys.NODE_TYPE: keys.NODE_TYPE_VIRTUAL}, "n1", ""), frozenset()),
        (entry("nodes", "n1", ""), frozenset()),
    ],
    ids=["virtual", "marked by a user", "real"],
)
def test_nodes_of_bindings_are_virtual(candidate: Entry, expected: frozenset[str]) -> None:
    assert elsewhere([candidate]).nodes == expected


def test_volumes_and_classes_tell_of_a_host() -> None:
    volumes = [entry("persistentvolumes", "pvc-1", "", spec=DRIVER), entry("persistentvolumes", "nfs", "", spec={})]
    assert elsewhere(volumes) == Elsewhere(volumes=HERE.volumes, has_host=True)
    classes = [entry("storageclasses.storage.k8s.io", provisioner=keys.HOST_VOLUME_DRIVER)]
    assert elsewhere(classes) == Elsewhere(has_host=True)
    assert elsewhere([entry("storageclasses.storage.k8s.io", provisioner="other")]) == NOWHERE


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (entry("nodes", "n1", ""), True),
        (entry("nodes", "n2", ""), False),
        (entry("csinodes.storage.k8s.io", "n1", ""), True),
        (entry("csinodes.storage.k8s.io", "n2", ""), False),
        (entry("leases.coordination.k8s.io", "n1", "kube-node-lease"), True),
        (entry("leases.coordination.k8s.io", "n1"), False),
        (entry("persistentvolumes", "pvc-1", ""), True),
        (entry("persistentvolumes", "nfs", ""), False),
        (entry("volumeattachments.storage.k8s.io", "a", "", spec={"nodeName": "n1"}), True),
        (entry("volumeattachments.storage.k8s.io", "a", "", spec={"nodeName": "n2"}), False),
        (labelled("pods", {keys.HOST_PORTS: "n1"}, namespace=keys.HOST_PORTS_NAMESPACE), True),
        (entry("pods", namespace=keys.HOST_PORTS_NAMESPACE), False),
        (entry("pods"), False),
    ],
    ids=lambda value: "/".join(value.key) if isinstance(value, Entry) else None,
)
def test_virtual_nodes_and_their_objects_are_left_behind(candidate: Entry, expected: bool) -> None:
    assert is_left_behind(candidate, HERE) is expected


def pod(node: str = "n1", annotations: dict[str, str] | None = None, **status: object) -> Entry:
    metadata = {"name": "p", "namespace": "default", "uid": "u", "annotations": annotations or {}}
    content = {"metadata": metadata, "spec": {"nodeName": node, "containers": []}, "status": status}
    return Entry(7, Key("pods", "default", "p"), msgspec.json.encode(content))


def test_pod_on_virtual_node_starts_again() -> None:
    own = {keys.PHYSICAL_POD_UID: "t", keys.LAST_SYNC_TIME: "now"}
    users = {keys.RUNNING_DAEMONSET: "true", "example.com/a": "b"}
    conditions = [{"type": "Ready", "status": "True"}, {"type": keys.MAPPED_CONDITION, "status": "True"}]
    running = pod(
        annotations={**own, **users}, phase="Running", podIP="10.0.0.1", qosClass="Burstable", conditions=conditions
    )
    result = in_new_plane(running)
    assert result["metadata"]["annotations"] == users
    assert result["metadata"]["uid"] == "u"
    assert result["spec"] == {"containers": []}
    assert result["status"] == {"phase": "Pending", "qosClass": "Burstable"}


@pytest.mark.parametrize("type", [keys.MAPPED_CONDITION, keys.ACCEPTED_CONDITION])
def test_marked_pod_starts_again_without_a_node(type: str) -> None:
    waiting = pod("", phase="Pending", conditions=[{"type": type, "status": "False", "reason": "Suspended"}])
    assert in_new_plane(waiting, NOWHERE)["status"] == {"phase": "Pending"}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_ended_pod_does_not_start_again(phase: str) -> None:
    statuses = [{"name": "c", "state": {"terminated": {"exitCode": 0}}}]
    result = in_new_plane(pod(phase=phase, podIP="10.0.0.1", containerStatuses=statuses))
    assert result["status"] == {"phase": phase, "containerStatuses": statuses}
    assert "nodeName" not in result["spec"]


def test_pod_on_real_node_stays_the_same() -> None:
    each = pod("n2", phase="Running", podIP="10.0.0.1")
    assert new_plane_entry(each, CHANGE, HERE) is each


def test_claim_of_host_volume_gets_another_volume() -> None:
    annotations = {"pv.kubernetes.io/bind-completed": "yes", "volume.kubernetes.io/selected-node": "n1", "a": "b"}
    metadata = {"name": "c", "namespace": "default", "uid": "u", "annotations": annotations}
    content = {"metadata": metadata, "spec": {"volumeName": "pvc-1", "accessModes": []}, "status": {"phase": "Bound"}}
    claim = Entry(7, Key("persistentvolumeclaims", "default", "c"), msgspec.json.encode(content))
    result = in_new_plane(claim)
    assert result["metadata"]["annotations"] == {"a": "b"}
    assert result["spec"] == {"accessModes": []}
    assert result["status"] == {"phase": "Pending"}
    assert new_plane_entry(claim, CHANGE, NOWHERE) is claim


def test_service_loses_what_the_host_gave_it() -> None:
    spec = {"clusterIP": "10.1.2.3", "clusterIPs": ["10.1.2.3"], "ports": [{"port": 80, "nodePort": 30000}]}
    service = entry("services", spec=spec, status={"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}})
    result = in_new_plane(service)
    assert result["spec"] == {"ports": [{"port": 80}]}
    assert result["status"] == {"loadBalancer": {}}
    assert in_new_plane(entry("services", spec={"clusterIP": "None"}))["spec"] == {"clusterIP": "None"}
    assert new_plane_entry(service, CHANGE, NOWHERE) is service


def test_ingress_loses_its_addresses() -> None:
    ingress = entry("ingresses.networking.k8s.io", status={"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}})
    assert in_new_plane(ingress)["status"] == {"loadBalancer": {}}
    assert new_plane_entry(ingress, CHANGE, NOWHERE) is ingress
