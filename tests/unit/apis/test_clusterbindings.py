"""ClusterBinding: decoding and ownership.  Its definition is a golden file.

`REWRITE_GOLDEN=1 pytest ...` writes the file again.  The integration tests apply it to a real kube-apiserver.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDING, Binding, ClusterBindingSpec, binding_of
from tapestry.apis.field_types import node_selector_object
from tapestry.kube.crds import InvalidSpec, crd, decode_spec
from tapestry.kube.objects import Object
from tapestry.kube.selectors import node_selector

GOLDEN = Path(__file__).parents[2] / "golden" / "crds" / "clusterbindings.yaml"

SPEC = {"clusterID": "east", "secretRef": {"name": "east", "namespace": "tapestry-system"}}


def new_binding(name: str = "east", uid: str = "uid-1", **spec: Any) -> Object:
    return {"metadata": {"name": name, "uid": uid}, "spec": {**SPEC, **spec}}


def new_object(**labels: str) -> Object:
    return {"metadata": {"name": "x", "labels": labels}}


def test_definition_equals_golden_file() -> None:
    found = yaml.safe_dump(crd(CLUSTER_BINDING), sort_keys=False, width=120, allow_unicode=True)
    if os.environ.get("REWRITE_GOLDEN"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


def test_defaults_are_the_most_restrictive() -> None:
    spec = decode_spec(CLUSTER_BINDING, new_binding())
    assert (spec.pod_security, spec.on_partition, spec.unbind_grace_seconds) == ("baseline", "Hold", 30)
    assert not spec.allowed_volumes.drivers
    assert not spec.allowed_volumes.storage_classes
    assert not spec.disable_node_default_taint


def test_kubeocean_manifest_decodes_completely() -> None:
    spec = decode_spec(
        CLUSTER_BINDING,
        new_binding(
            mountNamespace="leased",
            serviceNamespaces=["default", "web"],
            disableNodeDefaultTaint=True,
            podPriorityClassName="low",
            runningDaemonsetByDefault=True,
            directScheduling=True,
            nodeSelector={"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]},
        ),
    )
    assert (spec.cluster_id, spec.secret_ref.name, spec.secret_ref.namespace) == ("east", "east", "tapestry-system")
    assert (spec.mount_namespace, spec.service_namespaces) == ("leased", ("default", "web"))
    assert spec.disable_node_default_taint
    assert spec.pod_priority_class_name == "low"
    assert spec.running_daemonset_by_default
    assert spec.direct_scheduling
    assert node_selector(node_selector_object(spec.node_selector)).matches(new_object(gpu="a100"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"clusterID": "East"}, "spec.clusterID: "),
        ({"clusterID": "e" * 25}, "spec.clusterID: "),
        ({"clusterID": ""}, "spec.clusterID: "),
        ({"clusterID": 'e"; drop'}, "spec.clusterID: "),
        ({"secretRef": {"name": "", "namespace": "a"}}, "spec.secretRef.name: "),
        ({"secretRef": {"name": "a", "namespace": ""}}, "spec.secretRef.namespace: "),
        ({"secretRef": {"name": "a"}}, "spec.secretRef.namespace: is required"),
        ({"mountNamespace": ""}, "spec.mountNamespace: "),
        ({"serviceNamespaces": ["a", ""]}, "spec.serviceNamespaces[1]: "),
        ({"podSecurity": "none"}, "spec.podSecurity: "),
        ({"onPartition": "Panic"}, "spec.onPartition: "),
        ({"unbindGraceSeconds": -1}, "spec.unbindGraceSeconds: "),
        ({"nodeSelector": {"nodeSelectorTerms": []}}, "spec.nodeSelector.nodeSelectorTerms: "),
        ({"allowedVolumes": {"drivers": [""]}}, "spec.allowedVolumes.drivers[0]: "),
    ],
)
def test_invalid_spec_is_rejected_with_path(spec: Object, message: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        decode_spec(CLUSTER_BINDING, new_binding(**spec))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "selector",
    [
        None,
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}]},
        {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}, {}]},
    ],
)
def test_selector_round_trips_to_the_manifest(selector: Object | None) -> None:
    spec = decode_spec(CLUSTER_BINDING, new_binding(nodeSelector=selector) if selector else new_binding())
    assert node_selector(node_selector_object(spec.node_selector)) == node_selector(selector)


def test_binding_owns_objects_with_both_labels() -> None:
    binding = binding_of(new_binding(), "virtual-uid")
    assert binding.owns(new_object(**binding.owner_labels()))


@pytest.mark.parametrize("missing", [keys.VIRTUAL_CLUSTER, keys.CLUSTER_BINDING_UID])
def test_one_of_two_labels_is_not_ownership(missing: str) -> None:
    binding = binding_of(new_binding(), "virtual-uid")
    labels = {key: value for key, value in binding.owner_labels().items() if key != missing}
    assert not binding.owns(new_object(**labels))
    assert not binding.owns(new_object(**{**labels, missing: "another"}))


def test_managed_by_label_alone_is_foreign() -> None:
    binding = binding_of(new_binding(), "virtual-uid")
    assert not binding.owns(new_object(**{keys.MANAGED_BY: keys.TAPESTRY, keys.CLUSTER_BINDING: "east"}))
    assert not binding.owns({"metadata": {"name": "x"}})


def test_bindings_of_two_virtual_clusters_share_nothing() -> None:
    one, other = binding_of(new_binding(), "virtual-uid"), binding_of(new_binding(), "another-virtual-uid")
    assert not one.owns(new_object(**other.owner_labels()))
    again = binding_of(new_binding(uid="uid-2"), "virtual-uid")
    assert not one.owns(new_object(**again.owner_labels()))


def test_binding_has_name_and_uid_of_object() -> None:
    binding = binding_of(new_binding("b", "u"), "virtual-uid")
    assert isinstance(binding, Binding)
    assert (binding.name, binding.uid) == ("b", "u")
    assert isinstance(binding.spec, ClusterBindingSpec)


def test_unknown_field_is_ignored() -> None:
    assert decode_spec(CLUSTER_BINDING, new_binding(fromTheFuture=1)) == decode_spec(CLUSTER_BINDING, new_binding())
