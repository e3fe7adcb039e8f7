"""Pod Security of twins: Kubernetes' own cases of the standards, and our allow-list.

The pods under `tests/golden/pod_security` are Kubernetes' own; `tools/pod_security_cases.py` fetches them.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tapestry.kube.objects import Object
from tapestry.kube.pod_security import CHECKS_BY_LEVEL, MAX_VALUE_LENGTH, violations
from tapestry.syncer.translate.security import OWN_RULES, security_violations

GOLDEN = Path(__file__).parents[3] / "golden" / "pod_security"
LEVELS = ("baseline", "restricted")


def fixtures(outcome: str) -> list[Any]:
    return [
        pytest.param(level, name, pod, id=f"{level}-{name}")
        for level in LEVELS
        for name, pod in yaml.safe_load((GOLDEN / f"{level}-{outcome}.yaml").read_text()).items()
    ]


PASSING, FAILING = fixtures("pass"), fixtures("fail")


def new_pod(*containers: Object, annotations: Object | None = None, **spec: Any) -> Object:
    """Return a pod that is allowed at every level, apart from the given fields."""
    strict = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "metadata": {"name": "p", "annotations": annotations or {}},
        "spec": {"securityContext": strict, "containers": list(containers or (new_container(),)), **spec},
    }


def new_container(**context: Any) -> Object:
    strict = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {"name": "c", "image": "i", "securityContext": {**strict, **context}}


def new_volume(source: str, value: Any = None) -> Object:
    return new_pod(volumes=[{"name": "v", source: {} if value is None else value}])


def paths(pod: Object, level: str = "baseline") -> list[str]:
    return [violation.path for violation in security_violations(pod, level)]


# -- the standards


@pytest.mark.parametrize(("level", "name", "pod"), PASSING)
def test_pods_allowed_by_kubernetes_are_allowed(level: str, name: str, pod: Object) -> None:
    assert security_violations(pod, level) == [], name


@pytest.mark.parametrize(("level", "name", "pod"), FAILING)
def test_pods_rejected_by_kubernetes_are_rejected(level: str, name: str, pod: Object) -> None:
    assert security_violations(pod, level) != [], name
    assert security_violations(pod, "privileged") == [], name


def test_unknown_level_rejects_everything() -> None:
    with pytest.raises(KeyError):
        security_violations(new_pod(), "basline")


@pytest.mark.parametrize("field", ["initContainers", "containers", "ephemeralContainers"])
def test_safety_rule_6_all_container_kinds_are_checked(field: str) -> None:
    pod = new_pod(**{field: [new_container(), new_container(privileged=True)]})
    assert [found.path for found in violations(pod, "baseline")] == [f"spec.{field}[1].securityContext.privileged"]


@pytest.mark.parametrize(
    ("container", "path"),
    [
        ({"livenessProbe": {"httpGet": {"host": "h"}}}, "livenessProbe.httpGet.host"),
        ({"startupProbe": {"tcpSocket": {"host": "h"}}}, "startupProbe.tcpSocket.host"),
        ({"lifecycle": {"preStop": {"httpGet": {"host": "h"}}}}, "lifecycle.preStop.httpGet.host"),
        ({"lifecycle": {"postStart": {"tcpSocket": {"host": "h"}}}}, "lifecycle.postStart.tcpSocket.host"),
    ],
)
def test_probe_of_another_host_is_rejected(container: Object, path: str) -> None:
    assert paths(new_pod({**new_container(), **container})) == [f"spec.containers[0].{path}"]


@pytest.mark.parametrize(
    ("value", "passes"), [("runtime/default", True), ("localhost/x", True), ("", True), ("unconfined", False)]
)
def test_app_armor_annotation_cannot_disable_it(value: str, passes: bool) -> None:
    key = "container.apparmor.security.beta.kubernetes.io/c"
    assert paths(new_pod(annotations={key: value})) == ([] if passes else [f"metadata.annotations[{key}]"])


def test_seccomp_annotations_are_ignored() -> None:
    pod = new_pod(annotations={"seccomp.security.alpha.kubernetes.io/pod": "unconfined"})
    assert security_violations(pod, "restricted") == []


@pytest.mark.parametrize("profile", [{}, {"type": ""}, {"type": None}])
def test_profile_needs_a_type(profile: Object) -> None:
    pod = new_pod(new_container(seccompProfile=profile, appArmorProfile=profile))
    assert {found.rule for found in violations(pod, "baseline")} == {"appArmorProfile", "seccompProfile_baseline"}


def test_container_must_set_what_pod_does_not() -> None:
    pod = new_pod({"name": "c"}, securityContext=None)
    assert security_violations(pod, "baseline") == []
    assert paths(pod, "restricted") == [
        f"spec.containers[0].securityContext.{field}"
        for field in ("allowPrivilegeEscalation", "capabilities.drop", "runAsNonRoot", "seccompProfile.type")
    ]


def test_container_may_only_be_stricter_than_pod() -> None:
    strict = new_container(runAsNonRoot=True, seccompProfile={"type": "Localhost"})
    assert security_violations(new_pod(strict, securityContext={}), "restricted") == []
    lax = new_container(runAsNonRoot=False, seccompProfile={"type": "Unconfined"}, runAsUser=0)
    assert {found.rule for found in violations(new_pod(lax), "restricted")} == {
        "runAsNonRoot",
        "runAsUser",
        "seccompProfile_restricted",
    }


def test_pod_allowing_root_is_rejected() -> None:
    pod = new_pod(
        new_container(runAsNonRoot=True, seccompProfile={"type": "Localhost"}), securityContext={"runAsNonRoot": False}
    )
    assert paths(pod, "restricted") == ["spec.securityContext.runAsNonRoot"]


@pytest.mark.parametrize(
    ("capability", "levels"), [("NET_BIND_SERVICE", LEVELS), ("CHOWN", ("baseline",)), ("NET_RAW", ()), ("chown", ())]
)
def test_level_limits_added_capabilities(capability: str, levels: tuple[str, ...]) -> None:
    pod = new_pod(new_container(capabilities={"drop": ["ALL"], "add": [capability]}))
    assert [level for level in LEVELS if not violations(pod, level)] == list(levels)


@pytest.mark.parametrize("kind", ["container_t", "container_init_t", "container_kvm_t", "container_engine_t"])
def test_selinux_container_types_are_allowed(kind: str) -> None:
    assert (
        security_violations(new_pod(new_container(seLinuxOptions={"type": kind, "level": "s0:c1"})), "restricted") == []
    )


@pytest.mark.parametrize("source", ["csi", "image"])
def test_standard_allows_volumes_that_we_reject(source: str) -> None:
    assert violations(new_volume(source), "restricted") == []


def test_windows_pod_need_not_set_linux_fields() -> None:
    windows = {"os": {"name": "windows"}, "securityContext": {"runAsNonRoot": True}}
    assert security_violations(new_pod({"name": "c"}, **windows), "restricted") == []
    linux = new_container(allowPrivilegeEscalation=True, capabilities={"add": ["KILL"]})
    assert paths(new_pod(linux, **windows), "restricted") == [
        "spec.containers[0].securityContext.allowPrivilegeEscalation",
        "spec.containers[0].securityContext.capabilities.add[0]",
    ]


def test_user_namespace_gets_no_exception() -> None:
    pod = new_pod(new_container(runAsUser=0, procMount="Unmasked", runAsNonRoot=False), hostUsers=False)
    assert {found.rule for found in violations(pod, "restricted")} == {"procMount", "runAsNonRoot", "runAsUser"}


@pytest.mark.parametrize(
    "spec", [{"hostUsers": True}, {"hostUsers": False}, {"shareProcessNamespace": True}, {"runtimeClassName": "kata"}]
)
def test_unchecked_fields_are_allowed(spec: Object) -> None:
    assert security_violations(new_pod(**spec), "restricted") == []


def test_null_counts_as_unset() -> None:
    context = dict.fromkeys(("privileged", "procMount", "seLinuxOptions", "seccompProfile", "runAsUser", "mystery"))
    nulls = {
        "volumes": [{"name": "v", "hostPath": None}],
        "hostNetwork": None,
        "os": None,
        "initContainers": None,
        "resourceClaims": None,
    }
    assert (
        security_violations(
            new_pod({**new_container(**context), "ports": None, "lifecycle": None}, **nulls), "restricted"
        )
        == []
    )
    assert security_violations({"metadata": None, "spec": None}, "restricted") == []


# -- our allow-list

SOURCES = (
    *("awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "csi", "fc", "flexVolume"),
    *("flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "hostPath", "image", "iscsi", "nfs"),
    *("photonPersistentDisk", "portworxVolume", "quobyte", "rbd", "scaleIO", "storageos", "vsphereVolume"),
    "somethingNew",
)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("source", SOURCES)
def test_unlisted_volume_kind_is_rejected(source: str, level: str) -> None:
    assert paths(new_volume(source), level) == [f"spec.volumes[0].{source}"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "source", ["configMap", "secret", "emptyDir", "projected", "downwardAPI", "persistentVolumeClaim"]
)
def test_listed_volume_is_allowed(source: str, level: str) -> None:
    assert security_violations(new_volume(source), level) == []


def test_volume_without_source_is_empty() -> None:
    assert security_violations(new_pod(volumes=[{"name": "v"}]), "restricted") == []


def test_second_volume_source_is_checked() -> None:
    pod = new_pod(volumes=[{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}])
    assert paths(pod, "baseline") == paths(pod, "restricted") == ["spec.volumes[0].hostPath"]


@pytest.mark.parametrize(
    ("source", "passes"),
    [
        *((source, True) for source in ("configMap", "secret", "downwardAPI", "serviceAccountToken")),
        *((source, False) for source in ("clusterTrustBundle", "podCertificate", "somethingNew")),
    ],
)
def test_projection_sources_must_be_listed(source: str, passes: bool) -> None:
    expected = [] if passes else [f"spec.volumes[0].projected.sources[1].{source}"]
    assert paths(new_volume("projected", {"sources": [{"secret": {"name": "s"}}, {source: {}}]})) == expected


@pytest.mark.parametrize(
    ("context", "path"),
    [
        ({"mystery": True}, "mystery"),
        ({"mystery": False}, "mystery"),
        ({"fsGroup": 1}, "fsGroup"),
        ({"capabilities": {"drop": ["ALL"], "ambient": ["KILL"]}}, "capabilities.ambient"),
        ({"seccompProfile": {"type": "RuntimeDefault", "notify": True}}, "seccompProfile.notify"),
        ({"windowsOptions": {"gmsaCredentialSpecName": "g"}}, "windowsOptions.gmsaCredentialSpecName"),
    ],
)
def test_context_fields_must_be_listed(context: Object, path: str) -> None:
    assert paths(new_pod(new_container(**context))) == [f"spec.containers[0].securityContext.{path}"]


def test_pod_context_has_its_own_fields() -> None:
    known = {
        "fsGroup": 1,
        "fsGroupChangePolicy": "Always",
        "supplementalGroups": [1],
        "seLinuxChangePolicy": "MountOption",
    }
    assert security_violations(new_pod(securityContext=known), "baseline") == []
    assert paths(new_pod(securityContext={"procMount": "Default"})) == ["spec.securityContext.procMount"]


def test_unknown_fields_elsewhere_are_allowed() -> None:
    container = {**new_container(), "mystery": {"hostPath": "/"}, "livenessProbe": {"mystery": {"host": "h"}}}
    pod = new_pod(container, mystery=1, volumes=[{"name": "v", "secret": {"mystery": 1}}])
    assert security_violations({**pod, "mystery": 1}, "restricted") == []


def test_device_claims_are_rejected() -> None:
    pod = new_pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "somebodys"}])
    assert violations(pod, "baseline") == []
    assert paths(pod) == ["spec.resourceClaims[0]"]
    assert security_violations(pod, "privileged") == []


def test_own_rules_are_not_in_the_standard() -> None:
    assert {rule.name for rule in OWN_RULES}.isdisjoint(
        rule.name for level in LEVELS for rule in CHECKS_BY_LEVEL[level]
    )


# -- messages


def test_violation_names_path_value_and_remedy() -> None:
    (violation,) = security_violations(new_pod(new_container(privileged=True)), "baseline")
    assert str(violation) == (
        "spec.containers[0].securityContext.privileged: true is not allowed at level baseline; leave it out"
    )
    (missing,) = security_violations(new_pod(new_container(allowPrivilegeEscalation=None)), "restricted")
    assert str(missing) == f"{missing.path}: unset is not allowed at level restricted; set false"


def test_each_field_is_reported_once() -> None:
    assert [(found.path, found.rule) for found in security_violations(new_volume("hostPath"), "baseline")] == [
        ("spec.volumes[0].hostPath", "hostPathVolumes")
    ]


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        ("SYS_ADMIN", "SYS_ADMIN"),
        ("", "''"),
        ("a\nb", r"'a\nb'"),
        ("x" * 100, "x" * MAX_VALUE_LENGTH + "..."),
        (7, "7"),
        (False, "false"),
        (None, "unset"),
        (["SYS_ADMIN"], "a list"),
        ({"token": "secret"}, "an object"),
    ],
)
def test_message_quotes_a_limited_value(value: Any, quoted: str) -> None:
    (violation,) = security_violations(new_pod(new_container(capabilities={"add": [value]})), "baseline")
    assert violation.found == quoted
