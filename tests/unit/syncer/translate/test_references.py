"""References of a pod: those listed are exactly those renamed."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.objects import Object
from tapestry.kube.pod_references import ProjectedToken, Reference, ReferenceKind, projected_tokens, references
from tapestry.syncer.translate.references import renamed_container, renamed_volume, unknown_sources

GOLDEN = Path(__file__).parents[3] / "golden" / "pods"
PODS = {path.name: yaml.safe_load(path.read_text())["pod"] for path in sorted(GOLDEN.glob("*.input.yaml"))}
MAP, SECRET, CLAIM = ReferenceKind.CONFIG_MAP, ReferenceKind.SECRET, ReferenceKind.CLAIM


def new_spec(*env: Object, env_from: tuple[Object, ...] = (), volumes: tuple[Object, ...] = (), **spec: Any) -> Object:
    container = {"name": "app", "env": list(env), "envFrom": list(env_from)}
    return {"containers": [container], "volumes": [{"name": "v", **each} for each in volumes], **spec}


def pod_of(spec: Object) -> Object:
    return {"metadata": {"name": "work"}, "spec": spec}


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (new_spec({"name": "A", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "k"}}}), Reference(MAP, "x")),
        (
            new_spec({"name": "A", "valueFrom": {"secretKeyRef": {"name": "x", "key": "k", "optional": True}}}),
            Reference(SECRET, "x", optional=True),
        ),
        (new_spec(env_from=({"configMapRef": {"name": "x", "optional": True}},)), Reference(MAP, "x", optional=True)),
        (new_spec(env_from=({"prefix": "P_", "secretRef": {"name": "x"}},)), Reference(SECRET, "x")),
        (new_spec(volumes=({"configMap": {"name": "x", "optional": False}},)), Reference(MAP, "x")),
        (new_spec(volumes=({"secret": {"secretName": "x", "optional": True}},)), Reference(SECRET, "x", optional=True)),
        (new_spec(volumes=({"persistentVolumeClaim": {"claimName": "x"}},)), Reference(CLAIM, "x")),
        (new_spec(volumes=({"ephemeral": {"volumeClaimTemplate": {}}},)), Reference(CLAIM, "work-v")),
        (new_spec(volumes=({"projected": {"sources": [{"configMap": {"name": "x"}}]}},)), Reference(MAP, "x")),
        (new_spec(volumes=({"projected": {"sources": [{"secret": {"name": "x"}}]}},)), Reference(SECRET, "x")),
        (new_spec(volumes=({"csi": {"driver": "d", "nodePublishSecretRef": {"name": "x"}}},)), Reference(SECRET, "x")),
        (new_spec(volumes=({"azureFile": {"secretName": "x"}},)), Reference(SECRET, "x")),
        (new_spec(volumes=({"rbd": {"secretRef": {"name": "x"}}},)), Reference(SECRET, "x")),
        (new_spec(imagePullSecrets=[{"name": "x"}]), Reference(SECRET, "x", optional=True)),
        (new_spec(initContainers=[{"name": "i", "envFrom": [{"secretRef": {"name": "x"}}]}]), Reference(SECRET, "x")),
        (
            new_spec(ephemeralContainers=[{"name": "e", "envFrom": [{"secretRef": {"name": "x"}}]}]),
            Reference(SECRET, "x"),
        ),
    ],
)
def test_every_reference_is_found(spec: Object, named: Reference) -> None:
    assert list(references(pod_of(spec))) == [named]


@pytest.mark.parametrize(
    "spec",
    [
        new_spec({"name": "A", "value": "b"}),
        new_spec({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
        new_spec({"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}}}),
        new_spec(volumes=({"emptyDir": {}},)),
        new_spec(volumes=({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},)),
        new_spec(volumes=({"downwardAPI": {"items": []}},)),
        new_spec(imagePullSecrets=[{}]),
        new_spec(volumes=({"configMap": None, "secret": None, "projected": None},)),
        {"containers": None, "volumes": None},
    ],
)
def test_empty_references_need_nothing(spec: Object) -> None:
    assert list(references(pod_of(spec))) == []
    assert list(unknown_sources(spec)) == []


@pytest.mark.parametrize("name", PODS)
def test_listed_references_are_renamed(name: str) -> None:
    spec, requested = PODS[name]["spec"], []

    def rename(text: str) -> str:
        requested.append(text)
        return f"renamed-{text}"

    for volume in spec.get("volumes", ()):
        renamed_volume(volume, pod_of(spec), rename, "tokens")
    for field in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(field, ()):
            renamed_container(container, rename, {})
    pulled = [each["name"] for each in spec.get("imagePullSecrets", ()) if each]
    assert sorted([*requested, *pulled]) == sorted(each.name for each in references(pod_of(spec)))


def test_every_token_has_key_and_lifetime() -> None:
    sources = [
        {"serviceAccountToken": {"path": "a"}},
        {"configMap": {"name": "ca"}},
        {"serviceAccountToken": {"path": "b", "audience": "vault", "expirationSeconds": 600}},
    ]
    spec = {
        "volumes": [
            {"name": "one", "projected": {"sources": sources}},
            {"name": "two", "projected": {"sources": [{"serviceAccountToken": {"path": "c"}}]}},
        ]
    }
    assert projected_tokens(spec) == [
        ProjectedToken("one.0", "", 3600),
        ProjectedToken("one.2", "vault", 600),
        ProjectedToken("two.0", "", 3600),
    ]
    first, second = (renamed_volume(volume, pod_of({}), str.upper, "secret") for volume in spec["volumes"])
    items = [
        each["secret"]["items"][0]
        for each in (*first["projected"]["sources"], *second["projected"]["sources"])
        if "secret" in each
    ]
    assert items == [{"key": "one.0", "path": "a"}, {"key": "one.2", "path": "b"}, {"key": "two.0", "path": "c"}]


def test_volume_with_two_sources_keeps_no_name() -> None:
    volume = {
        "name": "v",
        "configMap": {"name": "a"},
        "secret": {"secretName": "b"},
        "csi": {"nodePublishSecretRef": {"name": "c"}},
    }
    renamed = renamed_volume(volume, pod_of({}), str.upper, "tokens")
    assert (renamed["configMap"]["name"], renamed["secret"]["secretName"]) == ("A", "B")
    assert renamed["csi"]["nodePublishSecretRef"]["name"] == "C"


def test_ephemeral_volume_becomes_its_claim() -> None:
    volume = {"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}
    expected = {"name": "v", "persistentVolumeClaim": {"claimName": "WORK-V"}}
    assert renamed_volume(volume, pod_of({}), str.upper, "tokens") == expected
    both = {**volume, "persistentVolumeClaim": {"claimName": "other"}}
    assert renamed_volume(both, pod_of({}), str.upper, "tokens") == expected


def test_projection_with_two_sources_keeps_no_name() -> None:
    source = {"configMap": {"name": "a"}, "secret": {"name": "b"}, "clusterTrustBundle": {"name": "c"}}
    renamed = renamed_volume({"name": "v", "projected": {"sources": [source]}}, pod_of({}), str.upper, "tokens")
    assert renamed["projected"]["sources"] == [{"configMap": {"name": "A"}, "secret": {"name": "B"}}]


def test_variable_with_two_sources_keeps_no_name() -> None:
    source = {"configMapKeyRef": {"name": "a", "key": "k"}, "secretKeyRef": {"name": "b", "key": "k"}}
    renamed = renamed_container({"name": "c", "env": [{"name": "A", "valueFrom": source}]}, str.upper, {})
    found = renamed["env"][0]["valueFrom"]
    assert (found["configMapKeyRef"]["name"], found["secretKeyRef"]["name"]) == ("A", "B")


def test_input_is_not_modified() -> None:
    given = {"name": "v", "projected": {"sources": [{"secret": {"name": "a"}}]}}
    renamed_volume(given, pod_of({}), str.upper, "tokens")
    assert given == {"name": "v", "projected": {"sources": [{"secret": {"name": "a"}}]}}


FIELDS = (
    *("configMap", "secret", "projected", "sources", "name", "secretName", "persistentVolumeClaim", "claimName", "csi"),
    *("ephemeral", "env", "envFrom", "valueFrom", "secretKeyRef", "configMapRef", "serviceAccountToken", "optional"),
)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["volumes", "containers", "initContainers", "imagePullSecrets"]), ANYTHING))
def test_spec_of_any_shape_is_read(spec: Object) -> None:
    """An invalid spec must not stop the informer that reads all pods."""
    assert all(isinstance(each, Reference) for each in references(pod_of(spec)))
    assert all(path.startswith("spec.") for path in unknown_sources(spec))
