"""Pod Security on the way down: the standard as Kubernetes tests it, and what is ours on top.

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


def a_pod(*containers: Object, annotations: Object | None = None, **spec: Any) -> Object:
    """A pod that passes at every level, but for what is given."""
    strict = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "metadata": {"name": "p", "annotations": annotations or {}},
        "spec": {"securityContext": strict, "containers": list(containers or (a_container(),)), **spec},
    }


def a_container(**context: Any) -> Object:
    strict = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {"name": "c", "image": "i", "securityContext": {**strict, **context}}


def a_volume(source: str, value: Any = None) -> Object:
    return a_pod(volumes=[{"name": "v", source: {} if value is None else value}])


def paths(pod: Object, level: str = "baseline") -> list[str]:
    return [refusal.path for refusal in security_violations(pod, level)]


# -- the standard, which holds below as well


@pytest.mark.parametrize(("level", "name", "pod"), PASSING)
def test_what_kubernetes_lets_pass_crosses(level: str, name: str, pod: Object) -> None:
    assert security_violations(pod, level) == [], name


@pytest.mark.parametrize(("level", "name", "pod"), FAILING)
def test_what_kubernetes_refuses_does_not_cross(level: str, name: str, pod: Object) -> None:
    assert security_violations(pod, level) != [], name
    assert security_violations(pod, "privileged") == [], name


def test_a_level_that_nobody_knows_lets_nothing_pass() -> None:
    with pytest.raises(KeyError):
        security_violations(a_pod(), "basline")


@pytest.mark.parametrize("field", ["initContainers", "containers", "ephemeralContainers"])
def test_rule_6_containers_of_every_kind_are_looked_at(field: str) -> None:
    pod = a_pod(**{field: [a_container(), a_container(privileged=True)]})
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
def test_a_kubelet_is_not_sent_to_another_host(container: Object, path: str) -> None:
    assert paths(a_pod({**a_container(), **container})) == [f"spec.containers[0].{path}"]


@pytest.mark.parametrize(
    ("value", "passes"), [("runtime/default", True), ("localhost/x", True), ("", True), ("unconfined", False)]
)
def test_app_armor_is_not_switched_off_by_annotation(value: str, passes: bool) -> None:
    key = "container.apparmor.security.beta.kubernetes.io/c"
    assert paths(a_pod(annotations={key: value})) == ([] if passes else [f"metadata.annotations[{key}]"])


def test_seccomp_annotations_mean_nothing_any_more() -> None:
    pod = a_pod(annotations={"seccomp.security.alpha.kubernetes.io/pod": "unconfined"})
    assert security_violations(pod, "restricted") == []


@pytest.mark.parametrize("profile", [{}, {"type": ""}, {"type": None}])
def test_a_profile_has_to_say_its_type(profile: Object) -> None:
    pod = a_pod(a_container(seccompProfile=profile, appArmorProfile=profile))
    assert {found.rule for found in violations(pod, "baseline")} == {"appArmorProfile", "seccompProfile_baseline"}


def test_a_container_without_a_context_needs_what_the_pod_does_not_set() -> None:
    pod = a_pod({"name": "c"}, securityContext=None)
    assert security_violations(pod, "baseline") == []
    assert paths(pod, "restricted") == [
        f"spec.containers[0].securityContext.{field}"
        for field in ("allowPrivilegeEscalation", "capabilities.drop", "runAsNonRoot", "seccompProfile.type")
    ]


def test_a_container_may_be_stricter_than_its_pod_and_not_laxer() -> None:
    strict = a_container(runAsNonRoot=True, seccompProfile={"type": "Localhost"})
    assert security_violations(a_pod(strict, securityContext={}), "restricted") == []
    lax = a_container(runAsNonRoot=False, seccompProfile={"type": "Unconfined"}, runAsUser=0)
    assert {found.rule for found in violations(a_pod(lax), "restricted")} == {
        "runAsNonRoot",
        "runAsUser",
        "seccompProfile_restricted",
    }


def test_a_pod_that_allows_root_fails_even_if_its_containers_do_not() -> None:
    pod = a_pod(
        a_container(runAsNonRoot=True, seccompProfile={"type": "Localhost"}), securityContext={"runAsNonRoot": False}
    )
    assert paths(pod, "restricted") == ["spec.securityContext.runAsNonRoot"]


@pytest.mark.parametrize(
    ("capability", "levels"), [("NET_BIND_SERVICE", LEVELS), ("CHOWN", ("baseline",)), ("NET_RAW", ()), ("chown", ())]
)
def test_a_level_knows_the_capabilities_to_add(capability: str, levels: tuple[str, ...]) -> None:
    pod = a_pod(a_container(capabilities={"drop": ["ALL"], "add": [capability]}))
    assert [level for level in LEVELS if not violations(pod, level)] == list(levels)


@pytest.mark.parametrize("kind", ["container_t", "container_init_t", "container_kvm_t", "container_engine_t"])
def test_selinux_types_of_containers_pass(kind: str) -> None:
    assert security_violations(a_pod(a_container(seLinuxOptions={"type": kind, "level": "s0:c1"})), "restricted") == []


@pytest.mark.parametrize("source", ["csi", "ephemeral", "image"])
def test_the_standard_knows_volumes_that_do_not_cross(source: str) -> None:
    assert violations(a_volume(source), "restricted") == []


def test_a_windows_pod_need_not_set_what_windows_does_not_have() -> None:
    windows = {"os": {"name": "windows"}, "securityContext": {"runAsNonRoot": True}}
    assert security_violations(a_pod({"name": "c"}, **windows), "restricted") == []
    linux = a_container(allowPrivilegeEscalation=True, capabilities={"add": ["KILL"]})
    assert paths(a_pod(linux, **windows), "restricted") == [
        "spec.containers[0].securityContext.allowPrivilegeEscalation",
        "spec.containers[0].securityContext.capabilities.add[0]",
    ]


def test_a_user_namespace_earns_no_leniency() -> None:
    pod = a_pod(a_container(runAsUser=0, procMount="Unmasked", runAsNonRoot=False), hostUsers=False)
    assert {found.rule for found in violations(pod, "restricted")} == {"procMount", "runAsNonRoot", "runAsUser"}


@pytest.mark.parametrize(
    "spec", [{"hostUsers": True}, {"hostUsers": False}, {"shareProcessNamespace": True}, {"runtimeClassName": "kata"}]
)
def test_what_the_standard_does_not_ask_about_passes(spec: Object) -> None:
    assert security_violations(a_pod(**spec), "restricted") == []


def test_null_is_no_value() -> None:
    context = dict.fromkeys(("privileged", "procMount", "seLinuxOptions", "seccompProfile", "runAsUser", "mystery"))
    nulls = {
        "volumes": [{"name": "v", "hostPath": None}],
        "hostNetwork": None,
        "os": None,
        "initContainers": None,
        "resourceClaims": None,
    }
    assert (
        security_violations(a_pod({**a_container(**context), "ports": None, "lifecycle": None}, **nulls), "restricted")
        == []
    )
    assert security_violations({"metadata": None, "spec": None}, "restricted") == []


# -- our list

SOURCES = (
    *("awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "csi", "ephemeral", "fc", "flexVolume"),
    *("flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "hostPath", "image", "iscsi", "nfs"),
    *("photonPersistentDisk", "portworxVolume", "quobyte", "rbd", "scaleIO", "storageos", "vsphereVolume"),
    "somethingNew",
)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_volume_of_another_kind_is_refused(source: str, level: str) -> None:
    assert paths(a_volume(source), level) == [f"spec.volumes[0].{source}"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "source", ["configMap", "secret", "emptyDir", "projected", "downwardAPI", "persistentVolumeClaim"]
)
def test_a_volume_on_the_list_passes(source: str, level: str) -> None:
    assert security_violations(a_volume(source), level) == []


def test_a_volume_that_says_nothing_is_empty() -> None:
    assert security_violations(a_pod(volumes=[{"name": "v"}]), "restricted") == []


def test_a_second_source_hides_behind_no_first() -> None:
    pod = a_pod(volumes=[{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}])
    assert paths(pod, "baseline") == paths(pod, "restricted") == ["spec.volumes[0].hostPath"]


@pytest.mark.parametrize(
    ("source", "passes"),
    [
        *((source, True) for source in ("configMap", "secret", "downwardAPI", "serviceAccountToken")),
        *((source, False) for source in ("clusterTrustBundle", "podCertificate", "somethingNew")),
    ],
)
def test_a_projection_has_sources_on_the_list(source: str, passes: bool) -> None:
    expected = [] if passes else [f"spec.volumes[0].projected.sources[1].{source}"]
    assert paths(a_volume("projected", {"sources": [{"secret": {"name": "s"}}, {source: {}}]})) == expected


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
def test_a_context_has_fields_on_the_list(context: Object, path: str) -> None:
    assert paths(a_pod(a_container(**context))) == [f"spec.containers[0].securityContext.{path}"]


def test_a_pods_context_has_fields_of_its_own() -> None:
    known = {
        "fsGroup": 1,
        "fsGroupChangePolicy": "Always",
        "supplementalGroups": [1],
        "seLinuxChangePolicy": "MountOption",
    }
    assert security_violations(a_pod(securityContext=known), "baseline") == []
    assert paths(a_pod(securityContext={"procMount": "Default"})) == ["spec.securityContext.procMount"]


def test_unknown_fields_pass_elsewhere() -> None:
    container = {**a_container(), "mystery": {"hostPath": "/"}, "livenessProbe": {"mystery": {"host": "h"}}}
    pod = a_pod(container, mystery=1, volumes=[{"name": "v", "secret": {"mystery": 1}}])
    assert security_violations({**pod, "mystery": 1}, "restricted") == []


def test_claims_of_devices_do_not_cross() -> None:
    pod = a_pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "somebodys"}])
    assert violations(pod, "baseline") == []
    assert paths(pod) == ["spec.resourceClaims[0]"]
    assert security_violations(pod, "privileged") == []


def test_what_is_ours_is_not_of_the_standard() -> None:
    assert {rule.name for rule in OWN_RULES}.isdisjoint(
        rule.name for level in LEVELS for rule in CHECKS_BY_LEVEL[level]
    )


# -- what the owner of a pod is told


def test_a_refusal_says_where_what_and_what_to_do() -> None:
    (refusal,) = security_violations(a_pod(a_container(privileged=True)), "baseline")
    assert str(refusal) == (
        "spec.containers[0].securityContext.privileged: true is not allowed at level baseline; leave it out"
    )
    (missing,) = security_violations(a_pod(a_container(allowPrivilegeEscalation=None)), "restricted")
    assert str(missing) == f"{missing.path}: unset is not allowed at level restricted; set false"


def test_each_field_is_refused_once_and_by_the_standard_if_it_does() -> None:
    assert [(found.path, found.rule) for found in security_violations(a_volume("hostPath"), "baseline")] == [
        ("spec.volumes[0].hostPath", "hostPathVolumes")
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
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
def test_a_message_repeats_little_of_what_was_written(value: Any, shown: str) -> None:
    (refusal,) = security_violations(a_pod(a_container(capabilities={"add": [value]})), "baseline")
    assert refusal.found == shown
