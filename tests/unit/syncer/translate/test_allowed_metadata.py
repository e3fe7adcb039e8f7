"""Labels and annotations that are copied to twins, and access to the others."""

from typing import Any

import pytest

from tapestry.apis.clusterbindings import CLUSTER_BINDING, Binding, binding_of
from tapestry.kube.crds import InvalidSpec, decode_spec
from tapestry.kube.objects import Object
from tapestry.syncer.translate.allowed_metadata import (
    copied_annotations,
    copied_labels,
    uncopied_keys,
    uncopied_message,
)
from tapestry.syncer.translate.copies import desired_copy
from tapestry.syncer.translate.metadata import source_metadata
from tapestry.syncer.translate.pods import desired_twin, ephemeral_patch, new_twin, twin_patch, untranslatable_fields


def new_binding(*allowed: str) -> Binding:
    return binding_of({"metadata": {"name": "east", "uid": "5e1f"}, "spec": new_spec(*allowed)}, "a-virtual-cluster")


def new_spec(*allowed: str) -> Object:
    secret = {"name": "s", "namespace": "t"}
    return {"clusterID": "east", "mountNamespace": "m", "secretRef": secret, "allowedMetadata": list(allowed)}


def new_pod(labels: Object | None = None, annotations: Object | None = None, **spec: Any) -> Object:
    metadata = {"name": "web", "namespace": "ns", "uid": "u", "labels": labels or {}, "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"nodeName": "v", "containers": [{"name": "app", "image": "i"}], **spec}}


def reading(path: str) -> Object:
    return {"name": "e", "image": "i", "env": [{"name": "V", "valueFrom": {"fieldRef": {"fieldPath": path}}}]}


@pytest.mark.parametrize(
    ("key", "label", "annotation"),
    [
        ("app", True, True),
        ("app.kubernetes.io/name", True, False),
        ("apps.kubernetes.io/pod-index", True, False),
        ("statefulset.kubernetes.io/pod-name", True, False),
        ("batch.kubernetes.io/job-name", True, True),
        ("kubectl.kubernetes.io/default-container", False, True),
        ("kubectl.kubernetes.io/last-applied-configuration", False, False),
        ("kubernetes.io/config.mirror", False, False),
        ("kueue.x-k8s.io/queue-name", False, False),
        ("prometheus.io/scrape", False, False),
        ("simulated.tapestry.io/ends-after", False, False),
        ("tapestry.io/managed-by", False, False),
    ],
)
def test_only_listed_keys_are_copied(key: str, label: bool, annotation: bool) -> None:
    pod, binding = new_pod({key: "v"}, {key: "v"}), new_binding()
    assert (key in copied_labels(pod, binding), key in copied_annotations(pod, binding)) == (label, annotation)


def test_binding_allows_a_key_or_a_prefix() -> None:
    pairs = {"a.io/x": "1", "a.io/y": "1", "b.io/x": "1", "b.io/y": "1", "c.b.io/x": "1", "tapestry.io/x": "1"}
    binding = new_binding("a.io/x", "b.io/*", "tapestry.io/*", "tapestry.io/x")
    assert sorted(copied_labels(new_pod(pairs), binding)) == ["a.io/x", "b.io/x", "b.io/y"]
    assert sorted(copied_annotations(new_pod({}, pairs), binding)) == ["a.io/x", "b.io/x", "b.io/y"]


@pytest.mark.parametrize("entry", ["", "*", "*/*", "/x", "a.io/", "a.io/x*", "a.io/x/y", "A.io/x", "app"])
def test_invalid_entry_is_rejected(entry: str) -> None:
    with pytest.raises(InvalidSpec, match="allowedMetadata"):
        decode_spec(CLUSTER_BINDING, {"spec": new_spec(entry)})


def test_uncopied_keys_are_named_up_to_a_limit() -> None:
    ours = {"tapestry.io/physical-pod-name": "x", "kubectl.kubernetes.io/last-applied-configuration": "{}"}
    pod = new_pod({"b.io/x": "1", "app": "w"}, {"b.io/x": "1", "a.io/x": "1", **ours})
    assert uncopied_keys(pod, new_binding()) == ["a.io/x", "b.io/x"]
    assert uncopied_message([f"a.io/{number}" for number in range(5000)]).endswith("a.io/9 and 4990 more")


@pytest.mark.parametrize(
    ("volume", "place"),
    [
        ({"downwardAPI": {"items": [{}, {}]}}, "spec.volumes[0].downwardAPI.items[1]"),
        (
            {"projected": {"sources": [{"secret": {"name": "s"}}, {"downwardAPI": {"items": [{}, {}]}}]}},
            "spec.volumes[0].projected.sources[1].downwardAPI.items[1]",
        ),
    ],
)
@pytest.mark.parametrize("field", ["label", "annotation"])
def test_volume_with_uncopied_key_is_rejected(volume: Object, place: str, field: str) -> None:
    path = f"metadata.{field}s['a.io/x']"
    sources = [
        volume.get("downwardAPI"),
        *(each.get("downwardAPI") for each in volume.get("projected", {}).get("sources", ())),
    ]
    for source in filter(None, sources):
        source["items"] = [
            {"path": "all", "fieldRef": {"fieldPath": f"metadata.{field}s"}},
            {"path": "one", "fieldRef": {"fieldPath": path}},
        ]
    pod = new_pod(volumes=[{"name": "v", **volume}])
    [error] = untranslatable_fields(pod, new_binding())
    assert error.startswith(f"{place}: {field} a.io/x is not copied")
    assert untranslatable_fields(pod, new_binding("a.io/x")) == []


def test_ephemeral_container_reads_uncopied_keys() -> None:
    pod = new_pod({"a.io/x": "$(A)"}, ephemeralContainers=[reading("metadata.labels['a.io/x']")])
    patch = ephemeral_patch({"spec": {}}, pod, new_binding())
    assert patch is not None
    assert patch["spec"]["ephemeralContainers"][0]["env"] == [{"name": "V", "value": "$$(A)"}]


def test_too_large_literal_values_are_rejected() -> None:
    path = "metadata.annotations['a.io/x']"
    pod = new_pod({}, {"a.io/x": "x" * 60_000}, containers=[reading(path), reading(path), reading(path)])
    [error] = untranslatable_fields(pod, new_binding())
    assert error.startswith("spec.containers[2].env[0]: values of labels and annotations")
    assert untranslatable_fields(pod, new_binding("a.io/*")) == []


def test_other_kinds_copy_no_metadata() -> None:
    pairs = {"app": "web", "a.io/x": "1", "tapestry.io/managed-by": "me"}
    source = {"kind": "ConfigMap", "metadata": {"name": "c", "namespace": "ns", "labels": pairs, "annotations": pairs}}
    for metadata in (
        source_metadata(source, new_binding("a.io/*")),
        desired_copy(source, new_binding("a.io/*"))["metadata"],
    ):
        assert {
            key for field in ("labels", "annotations") for key in metadata[field] if "tapestry.io/" not in key
        } == set()
        assert metadata["labels"]["tapestry.io/managed-by"] == "tapestry"


def test_disallowed_key_is_removed_from_twin() -> None:
    pod = new_pod({"a.io/x": "1"})
    before, after = new_twin(pod, new_binding("a.io/*"), "n1"), desired_twin(pod, new_binding(), "n1")
    patch = twin_patch(before, after)
    assert patch is not None
    assert patch["metadata"]["labels"]["a.io/x"] is None


def test_files_over_two_hops_describe_first_pod() -> None:
    fields = ("metadata.namespace", "metadata.name", "metadata.uid", "spec.nodeName")
    items = [{"path": each, "fieldRef": {"fieldPath": each}} for each in fields]
    sources = {"projected": {"sources": [{"downwardAPI": {"items": items}}]}}
    pod = new_pod(volumes=[{"name": "one", "downwardAPI": {"items": items}}, {"name": "other", **sources}])
    between = new_twin(pod, new_binding(), "n1")
    between["metadata"] |= {"namespace": "m", "uid": "twin"}
    between["spec"]["nodeName"] = "n1"
    assert untranslatable_fields(between, new_binding()) == []
    twin = new_twin(between, new_binding(), "n2")
    one, other = twin["spec"]["volumes"]
    for source in (one["downwardAPI"], other["projected"]["sources"][0]["downwardAPI"]):
        paths = [each["fieldRef"]["fieldPath"] for each in source["items"]]
        keys = [path.removeprefix("metadata.annotations['").removesuffix("']") for path in paths]
        assert [twin["metadata"]["annotations"][key] for key in keys] == ["ns", "web", "u", "v"]
    assert twin["metadata"]["annotations"]["tapestry.io/virtual-pod-name"] == between["metadata"]["name"]
