"""Pods that try to escape, at each Pod Security level.

A technique fails if the pod is rejected, or if `escapes`, which shares no code with the translation, finds no trace of
it in the twin.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tapestry.apis.names import physical_name, tokens_secret_name
from tapestry.kube.objects import Object
from tapestry.syncer.translate.pods import ephemeral_patch, new_twin, untranslatable_fields
from tapestry.syncer.translate.security import security_violations

from .hostile_pods import BINDING, FAMILIES, TECHNIQUES, new_pod

LEVELS = ("baseline", "restricted")
FIXTURES = Path(__file__).parents[3] / "golden" / "pod_security"

# -- forbidden content of a twin

SPEC_FIELDS = frozenset(
    {
        *("activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy"),
        *("enableServiceLinks", "ephemeralContainers", "hostAliases", "hostname", "hostUsers", "imagePullSecrets"),
        *("initContainers", "os", "priorityClassName", "resources", "restartPolicy", "securityContext"),
        *("setHostnameAsFQDN", "shareProcessNamespace", "subdomain", "terminationGracePeriodSeconds", "tolerations"),
        *("volumes",),
    }
)
VOLUMES = frozenset({"configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected", "secret"})
PROJECTIONS = frozenset({"configMap", "downwardAPI", "secret"})
NAMING = frozenset(
    {"configMapKeyRef", "secretKeyRef", "configMapRef", "secretRef", "configMap", "secret", "persistentVolumeClaim"}
)
BESIDE_A_NAME = frozenset({"name", "secretName", "claimName", "key", "optional", "items", "defaultMode", "readOnly"})
GRANTED = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
        *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    }
)
FORBIDDEN = {
    "privileged": lambda value: value is not False,
    "hostPort": lambda value: value not in (None, 0),
    "hostProcess": lambda value: value is not False,
    "gmsaCredentialSpecName": lambda value: value is not None,
    "procMount": lambda value: value != "Default",
    "hostPath": lambda value: value is not None,
    "serviceAccountToken": lambda value: value is not None,
}
"""Fields that no twin may have with such a value, anywhere."""
UNCONFINED = "Unconfined"
TAINTS = [
    {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
    {"key": "tapestry.io/vnode", "effect": "NoSchedule"},
    {"key": "gpu", "value": "a100", "effect": "NoSchedule"},
]
TOLERATION = {"key": "gpu", "operator": "Equal", "value": "a100", "effect": "NoSchedule"}
FAILING = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute"}
    for name in ("not-ready", "unreachable")
]
HARMLESS = ("app.kubernetes.io", "batch.kubernetes.io", "apps.kubernetes.io", "statefulset.kubernetes.io")
PIN = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
        }
    }
}


def walk(value: Any, path: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield path, name and value of every field."""
    if isinstance(value, dict):
        for field, inner in value.items():
            yield f"{path}.{field}", field, inner
            yield from walk(inner, f"{path}.{field}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from walk(inner, f"{path}[{number}]")


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(inner)


def escapes(twin: Object, pod: Object) -> Iterator[str]:
    """Yield what a twin must not contain."""
    metadata, spec = twin["metadata"], twin["spec"]
    if twin.keys() != {"apiVersion", "kind", "metadata", "spec"}:
        yield f"fields {twin.keys()}"
    if metadata.keys() != {"name", "namespace", "labels", "annotations"}:
        yield f"metadata {metadata.keys()}"
    if metadata["namespace"] != "leased" or not re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", metadata["name"]):
        yield f"name {metadata['namespace']}/{metadata['name']}"
    yield from escapes_of_identity(metadata, pod)
    yield from (f"spec.{field}" for field in spec.keys() - SPEC_FIELDS)
    for field, value in {
        "affinity": PIN,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": "tapestry-leased",
    }.items():
        if spec.get(field) != value:
            yield f"spec.{field} is {spec.get(field)!r}"
    if len(str(spec)) > 2**20:
        yield "a spec of a mebibyte"
    for toleration in spec["tolerations"]:
        if toleration not in (TOLERATION, *FAILING):
            yield f"toleration {toleration}"
    yield from escapes_by_names(spec, pod)
    yield from escapes_to_the_host(spec)


def escapes_of_identity(metadata: Object, pod: Object) -> Iterator[str]:
    labels = {
        "tapestry.io/managed-by": "tapestry",
        "tapestry.io/virtual-cluster": BINDING.virtual_cluster,
        "tapestry.io/cluster-binding-uid": "5e1f",
        "tapestry.io/cluster-binding": "east",
    }
    annotations = {
        "tapestry.io/virtual-pod-namespace": pod["metadata"]["namespace"],
        "tapestry.io/virtual-pod-name": pod["metadata"]["name"],
        "tapestry.io/virtual-pod-uid": pod["metadata"]["uid"],
        "tapestry.io/virtual-node-name": pod["spec"]["nodeName"],
    }
    ours = ("tapestry.io/virtual-namespace", "tapestry.io/workload-type", "tapestry.io/workload-name")
    for field, wanted, allowed in (
        ("labels", labels, ours),
        ("annotations", annotations, (*ours, "tapestry.io/expected-metadata")),
    ):
        for key, value in metadata[field].items():
            if key.startswith("tapestry.io/") and key not in allowed and wanted.get(key) != value:
                yield f"{field} {key}={value}"
            if "/" in key and key.split("/")[0] not in ("tapestry.io", *HARMLESS):
                yield f"{field} {key}"
        if wanted.keys() - metadata[field].keys():
            yield f"{field} lack some of ours"
    if not pod["metadata"].get("ownerReferences") and metadata["labels"].keys() & set(ours[1:]):
        yield "a workload"


def escapes_by_names(spec: Object, pod: Object) -> Iterator[str]:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    claims = {f"{name}-{each['name']}" for each in pod["spec"].get("volumes") or () if each.get("ephemeral")}
    own = {physical_name(BINDING.virtual_cluster, BINDING.uid, namespace, text) for text in {*texts(pod), *claims, ""}}
    own.add(tokens_secret_name(BINDING.virtual_cluster, BINDING.uid, namespace, name))
    for secret in spec.get("imagePullSecrets", ()):
        if secret.keys() - {"name"} or secret.get("name", next(iter(own))) not in own:
            yield f"pull secret {secret}"
    for path, field, value in walk(spec):
        if field not in NAMING:
            continue
        named = [value[each] for each in ("name", "secretName", "claimName") if each in value]
        if value.keys() - BESIDE_A_NAME or (value and (len(named) != 1 or named[0] not in own)):
            yield f"{path} names {value}"
    for volume in spec.get("volumes", ()):
        if volume.keys() - {"name"} - VOLUMES:
            yield f"volume {volume.keys()}"
        for source in (volume.get("projected") or {}).get("sources") or ():
            if source.keys() - PROJECTIONS:
                yield f"projection {source.keys()}"


def escapes_to_the_host(spec: Object) -> Iterator[str]:
    for path, field, value in walk(spec):
        if field in FORBIDDEN and FORBIDDEN[field](value):
            yield f"{path} is {value!r}"
        if field == "type" and value == UNCONFINED:
            yield path
        if field == "add" and path.endswith("capabilities.add") and set(value) - GRANTED:
            yield f"{path} {value}"
        if field in ("httpGet", "tcpSocket") and value.get("host"):
            yield f"{path} of {value['host']}"
        if field == "securityContext" and any("future" in each or not each.isascii() for each in value):
            yield f"{path} {value}"
        if field == "seLinuxOptions" and (value.get("type") == "spc_t" or value.keys() & {"user", "role"}):
            yield f"{path} {value}"
        if field == "sysctls" and not all(each["name"].startswith("net.ipv4.tcp_") for each in value):
            yield f"{path} {value}"


def outcome(pod: Object, level: str) -> list[str] | None:
    """Return what of the pod escaped; None if it was rejected."""
    if [*security_violations(pod, level), *untranslatable_fields(pod, BINDING)]:
        return None
    twin = new_twin(pod, BINDING, "n1", taints=TAINTS)
    later = ephemeral_patch(twin, pod, BINDING) or {"spec": {}}
    return list(escapes({**twin, "spec": {**twin["spec"], **later["spec"]}}, pod))


# -- the tests


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", TECHNIQUES)
def test_nothing_escapes(name: str, level: str) -> None:
    assert outcome(TECHNIQUES[name], level) in (None, [])


def test_there_are_many_hostile_pods(record_property: Callable[[str, object], None]) -> None:
    rejected = sum(outcome(pod, "baseline") is None for pod in TECHNIQUES.values())
    figure = (
        f"hostile pods: {len(TECHNIQUES)} techniques, {rejected} refused at baseline, of the others nothing is left"
    )
    record_property("figure", figure)
    assert len(TECHNIQUES) == sum(len(list(family())) for family in FAMILIES) >= 300
    assert 100 <= rejected <= len(TECHNIQUES) - 100


@pytest.mark.parametrize(
    ("level", "pod"),
    [
        pytest.param(level, pod, id=f"{level}-{name}")
        for level in LEVELS
        for name, pod in yaml.safe_load((FIXTURES / f"{level}-pass.yaml").read_text()).items()
    ],
)
def test_allowed_kubernetes_pods_are_translated(level: str, pod: Object) -> None:
    whole = {
        "metadata": {"namespace": "team-a", "uid": "0c1d", **pod["metadata"]},
        "spec": {"nodeName": "vnode-east-n1", **pod["spec"]},
    }
    twin = outcome(whole, level)
    assert twin is not None
    assert [each for each in twin if "seLinuxOptions" not in each and "sysctls" not in each] == []


def planted(**spec: Any) -> Object:
    twin = new_twin(new_pod(), BINDING, "n1", taints=TAINTS)
    return {**twin, "spec": {**twin["spec"], **spec}}


@pytest.mark.parametrize(
    "twin",
    [
        planted(hostNetwork=True),
        planted(serviceAccountName="owner"),
        planted(nodeName="n2"),
        planted(priorityClassName="system-node-critical"),
        planted(affinity={}),
        planted(automountServiceAccountToken=True),
        planted(tolerations=[{"key": "tapestry.io/vnode"}]),
        planted(tolerations=[{"operator": "Exists"}]),
        planted(tolerations=[{"key": "gpu", "operator": "Exists"}]),
        planted(imagePullSecrets=[{"name": "owner"}]),
        planted(volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
        planted(volumes=[{"name": "v", "future": {}}]),
        planted(volumes=[{"name": "v", "secret": {"secretName": "owner"}}]),
        planted(volumes=[{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {}}]}}]),
        planted(containers=[{"env": [{"valueFrom": {"secretKeyRef": {"name": "owner"}}}]}]),
        planted(containers=[{"securityContext": {"privileged": True}}]),
        planted(containers=[{"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]),
        planted(containers=[{"ports": [{"hostPort": 80}]}]),
        planted(securityContext={"seccompProfile": {"type": "Unconfined"}}),
        {**planted(), "metadata": {**planted()["metadata"], "namespace": "kube-system"}},
        {**planted(), "metadata": {**planted()["metadata"], "labels": {}}},
        {**planted(), "metadata": {**planted()["metadata"], "annotations": {"iam.amazonaws.com/role": "x"}}},
        {**planted(), "metadata": {**planted()["metadata"], "finalizers": []}},
        {**planted(), "metadata": {**planted()["metadata"], "annotations": {"kubernetes.io/config.mirror": "x"}}},
    ],
)
def test_escapes_are_detected(twin: Object) -> None:
    assert list(escapes(planted(), new_pod())) == []
    assert list(escapes(twin, new_pod())) != []
