"""The table of fields and engines, and the checks of specs and updates."""

from collections.abc import Iterator
from typing import Any

import pytest

from tapestry.apis.vclusters import VCLUSTER, VClusterSpec
from tapestry.kube.crds import crd
from tapestry.kube.objects import Object, with_value
from tapestry.kube.schemas import schema_of
from tapestry.vclusters.errors import ServiceError
from tapestry.vclusters.validation import (
    ENGINES,
    NATIVE,
    ONLY_QUOTA,
    Honored,
    Mapped,
    Provided,
    Rejected,
    check_spec,
    check_update,
    immutable_changes,
    mapped_message,
    treat_spec,
    with_valid_spec,
)

PROVIDED = Provided("1.34.3")
COMPATIBLE = Provided("1.34.3", is_compatible=True)
EXAMPLES: dict[str, Any] = {"kubernetesVersion": "1.34", "distro": "k8s", "replicas": 1, "resources.cpuRequest": "1"}
DEMO: Object = {
    "kubernetesVersion": "1.28.0",
    "distro": "k3s",
    "replicas": 1,
    "resources": {"cpuRequest": "100m", "cpuLimit": "1", "memoryRequest": "256Mi", "memoryLimit": "1Gi"},
    "network": {"podCidr": "10.244.0.0/16", "serviceCidr": "10.96.0.0/12"},
    "storage": {"enablePersistence": True, "persistenceSize": "5Gi"},
    "sync": {"syncNodes": True, "syncPersistentVolumes": True, "syncStorageClasses": True, "syncIngresses": True},
}
"""What the client of the published contract sends."""


def leaves(schema: Object, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, field in schema["properties"].items():
        if "properties" in field and name != "operation":
            yield from leaves(field, (*path, name))
        else:
            yield ".".join((*path, name))


@pytest.mark.parametrize("engine", ENGINES)
def test_table_has_every_field(engine: str) -> None:
    assert sorted(ENGINES[engine]) == sorted(leaves(schema_of(VClusterSpec)))


def test_every_engine_of_the_kind_has_a_table() -> None:
    [version] = crd(VCLUSTER)["spec"]["versions"]
    engine = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["engine"]
    assert sorted(engine["enum"]) == sorted(ENGINES)


@pytest.mark.parametrize("path", NATIVE)
def test_every_treatment_is_reported_by_name(path: str) -> None:
    spec = with_value({}, tuple(path.split(".")), EXAMPLES.get(path, "anything"))
    if path == "engine":
        spec = {"engine": "native"}
    treatment = NATIVE[path](EXAMPLES.get(path, "anything"), PROVIDED)
    report = treat_spec(spec, PROVIDED)
    assert [each.subject for each in report.rejected] == ([f"spec.{path}"] if isinstance(treatment, Rejected) else [])
    assert [each.subject for each in report.mapped] == ([f"spec.{path}"] if isinstance(treatment, Mapped) else [])


REJECTED = [
    ("spec.kubernetesVersion", {"kubernetesVersion": "1.28.0"}),
    ("spec.distro", {"distro": "k3s"}),
    ("spec.replicas", {"replicas": 3}),
    ("spec.enableHa", {"enableHa": True}),
    ("spec.network.dnsServiceIp", {"network": {"dnsServiceIp": "dns.example"}}),
    ("spec.network.dns.nameservers", {"network": {"dns": {"nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3"]}}}),
    ("spec.plugins", {"plugins": [{"name": "p"}]}),
    ("spec.helmValues", {"helmValues": "a: 1"}),
    ("spec.ingress.tls.secretName", {"ingress": {"tls": {"enabled": True, "secretName": "certificate"}}}),
    ("spec.serviceAccount.annotations", {"serviceAccount": {"name": "sa", "annotations": {"role": "admin"}}}),
    ("spec.serviceAccount.automountToken", {"serviceAccount": {"automountToken": True}}),
    ("spec.sync.customResources", {"sync": {"customResources": ["widgets"]}}),
]


@pytest.mark.parametrize(("field", "spec"), REJECTED, ids=[field for field, _ in REJECTED])
def test_rejection_names_the_field(field: str, spec: Object) -> None:
    with pytest.raises(ServiceError) as caught:
        check_spec(spec, PROVIDED)
    assert (caught.value.code.name, caught.value.reason) == ("FAILED_PRECONDITION", "FIELD_UNSUPPORTED")
    assert caught.value.metadata == {"fields": field}
    assert field in str(caught.value)


def test_what_is_not_set_requests_nothing() -> None:
    empty: Object = {"replicas": 1, "enableHa": False, "plugins": [], "helmValues": "", "network": {}, "sync": None}
    assert treat_spec(empty, PROVIDED) == ((), ())
    check_spec({}, PROVIDED)


@pytest.mark.parametrize("text", ["1.34", "1.34.0", "v1.34.3", "1.34.99"])
def test_patch_version_is_not_significant(text: str) -> None:
    assert NATIVE["kubernetesVersion"](text, PROVIDED) == Honored()


def test_compatible_service_maps_what_the_demo_requests() -> None:
    check_spec(DEMO, COMPATIBLE)
    report = treat_spec(DEMO, COMPATIBLE)
    paths = [each.subject.removeprefix("spec.") for each in report.mapped]
    sizes = ["resources.cpuRequest", "resources.memoryRequest", "resources.memoryLimit"]
    assert paths == ["kubernetesVersion", "distro", *sizes, "network.podCidr", "network.serviceCidr"]
    assert "kubernetesVersion: Kubernetes 1.34.3 is provided instead of 1.28.0" in mapped_message(report.mapped)
    with pytest.raises(ServiceError, match=r"spec\.kubernetesVersion.*spec\.distro"):
        check_spec(DEMO, PROVIDED)


INVALID = [
    ("spec.resources.cpuRequest", {"resources": {"cpuRequest": "2", "cpuLimit": "1500m"}}),
    ("spec.resources.memoryRequest", {"resources": {"memoryRequest": "2Gi", "memoryLimit": "1Gi"}}),
    ("spec.ingress.hostname", {"ingress": {"enabled": True}}),
    ("spec.engine", {"engine": "shop"}),
    ("spec.resources.cpuLimit", {"resources": {"cpuLimit": "1e9999", "cpuRequest": "1"}}),
    ("spec.resources.cpuLimit", {"resources": {"cpuLimit": "x", "cpuRequest": "1"}}),
    ("spec.storage", {"storage": ["5Gi"]}),
]


@pytest.mark.parametrize(("field", "spec"), INVALID)
def test_invalid_field_is_named(field: str, spec: Object) -> None:
    with pytest.raises(ServiceError, match=field) as caught:
        check_spec(with_valid_spec(VCLUSTER, {"spec": spec})["spec"], PROVIDED)
    assert caught.value.reason == "FIELD_INVALID"


def test_immutable_fields_are_named() -> None:
    old = {"project": "a", "owner": "jane", "hostCluster": "h", "storage": {"enablePersistence": True}}
    new = {"project": "b", "owner": "jane", "hostCluster": "i", "storage": {"enablePersistence": False}}
    assert immutable_changes(old, new) == ["project", "hostCluster", "storage.enablePersistence"]
    with pytest.raises(ServiceError, match=r"spec\.project: cannot change"):
        check_update(old, new)


def test_defaults_change_nothing_immutable() -> None:
    assert immutable_changes({}, {"engine": "native", "storage": {"enablePersistence": True}}) == []
    check_update({"replicas": 1}, {"replicas": 2})


@pytest.mark.parametrize(
    ("requested", "has_own_processes", "mapped"),
    [
        ("999m", True, ONLY_QUOTA),
        ("1", True, ""),
        ("1500m", True, ""),
        ("1", False, f"{ONLY_QUOTA}; a process of its own needs etcd"),
        ("100m", False, ONLY_QUOTA),
    ],
)
def test_whole_cpu_requests_a_process(requested: str, mapped: str, *, has_own_processes: bool) -> None:
    provided = Provided("1.34.3", has_own_processes=has_own_processes)
    report = treat_spec({"resources": {"cpuRequest": requested}}, provided)
    assert [each.description for each in report.mapped] == ([mapped] if mapped else [])
