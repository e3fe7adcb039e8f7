"""What is said of pods, and of the templates of pods, that are accepted all the same.

A plain pod passes by in a few microseconds: what can be wrong is asked for by the few fields that it can be wrong in.
"""

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any

from tapestry.apiserver.advice.addresses import ip_advice
from tapestry.apiserver.recurring import remembered
from tapestry.apiserver.validation.names import label_value
from tapestry.kube.objects import Object, value_at
from tapestry.kube.quantity import parse

NODE_LABELS = {
    "beta.kubernetes.io/arch": 'deprecated since v1.14; use "kubernetes.io/arch" instead',
    "beta.kubernetes.io/os": 'deprecated since v1.14; use "kubernetes.io/os" instead',
    "failure-domain.beta.kubernetes.io/region": 'deprecated since v1.17; use "topology.kubernetes.io/region" instead',
    "failure-domain.beta.kubernetes.io/zone": 'deprecated since v1.17; use "topology.kubernetes.io/zone" instead',
    "beta.kubernetes.io/instance-type": 'deprecated since v1.17; use "node.kubernetes.io/instance-type" instead',
    "app.kubernetes.io/created-by": "deprecated since v1.9",
    "scheduler.alpha.kubernetes.io/preferAvoidPods": "deprecated since v1.22; use Taints and Tolerations instead",
    "node-role.kubernetes.io/master": 'use "node-role.kubernetes.io/control-plane" instead',
}
VOLUMES = {
    "photonPersistentDisk": "deprecated in v1.11, non-functional in v1.16+",
    "gitRepo": "deprecated in v1.11, and disabled by default in v1.33+",
    "scaleIO": "deprecated in v1.16, non-functional in v1.22+",
    "flocker": "deprecated in v1.22, non-functional in v1.25+",
    "storageos": "deprecated in v1.22, non-functional in v1.25+",
    "quobyte": "deprecated in v1.22, non-functional in v1.25+",
    "glusterfs": "deprecated in v1.25, non-functional in v1.26+",
    "cephfs": "deprecated in v1.28, non-functional in v1.31+",
    "rbd": "deprecated in v1.28, non-functional in v1.31+",
}
SHOWN_AS = {"storageos": "storageOS"}
SYSCTLS = 'non-functional in v1.11+; use the "sysctls" field instead'
ANNOTATIONS = {
    "scheduler.alpha.kubernetes.io/critical-pod": 'non-functional in v1.16+; use the "priorityClassName" field instead',
    "security.alpha.kubernetes.io/sysctls": SYSCTLS,
    "security.alpha.kubernetes.io/unsafe-sysctls": SYSCTLS,
}
SECCOMP, SECCOMP_OF = "seccomp.security.alpha.kubernetes.io/pod", "container.seccomp.security.alpha.kubernetes.io/"
APPARMOR_OF = "container.apparmor.security.beta.kubernetes.io/"
USE_SECCOMP = 'non-functional in v1.27+; use the "seccompProfile" field instead'
USE_APPARMOR = 'deprecated since v1.30; use the "appArmorProfile" field instead'
BYTES = ("memory", "ephemeral-storage")
PARTS_OF_BYTES = ("m", "u", "n")
CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
PLACING = frozenset({"nodeSelector", "topologySpreadConstraints", "affinity"})
REPEATING = frozenset({"hostAliases", "imagePullSecrets", "dnsConfig"})
MOST_STEPS = 50_000
"""Parts of paths that are compared with each other."""
OWN_VOLUMES = "kube-api-access-"
"""How the volumes are called that the server itself gives to pods."""
MOST_ADVICE = 200
"""Warnings about one object: a header has no place for more."""
NO_SELECTOR = "a null labelSelector results in matching no pod"


def pod_advice(at: str, pod: Object) -> Iterator[str]:
    """Of a pod, or of a template under `at`, which ends with a dot."""
    spec = pod.get("spec") or {}
    if not PLACING.isdisjoint(spec):
        yield from placement(f"{at}spec.", spec)
    if annotations := (pod.get("metadata") or {}).get("annotations"):
        yield from old_annotations(f"{at}metadata.annotations", spec, annotations)
    yield from spec_advice(spec, at)


@remembered
def spec_advice(spec: Object, at: str) -> Sequence[str]:
    return [*islice(volumes_and_containers(at, spec), MOST_ADVICE)]


def volumes_and_containers(at: str, spec: Object) -> Iterator[str]:
    for number, volume in enumerate(spec.get("volumes") or ()):
        if not volume["name"].startswith(OWN_VOLUMES):
            yield from volume_advice(f"{at}spec.volumes[{number}]", volume)
    if not REPEATING.isdisjoint(spec):
        yield from repetitions(f"{at}spec.", spec)
    if "overhead" in spec:
        yield from broken_bytes(f"{at}spec.overhead", spec["overhead"])
    ports: list[tuple[str, Object]] = []
    for field in CONTAINERS:
        for number, each in enumerate(spec.get(field) or ()):
            path = f"{at}spec.{field}[{number}]"
            yield from container_advice(path, each)
            ports += [(f"{path}.ports[{index}]", port) for index, port in enumerate(each.get("ports") or ())]
    yield from port_advice(ports)
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        why = "must be >= 0; negative values are invalid and will be treated as 1"
        yield f"{at}spec.terminationGracePeriodSeconds: {why}"


# -- where pods go


def placement(at: str, spec: Object) -> Iterator[str]:
    for key in spec.get("nodeSelector") or ():
        if key in NODE_LABELS:
            yield f"{at}nodeSelector[{key}]: {NODE_LABELS[key]}"
    for number, each in enumerate(spec.get("topologySpreadConstraints") or ()):
        path = f"{at}topologySpreadConstraints[{number}]"
        if (key := each.get("topologyKey")) in NODE_LABELS:
            yield f"{path}.topologyKey: {key} is {NODE_LABELS[key]}"
        if each.get("labelSelector") is None:
            yield f"{path}.labelSelector: {NO_SELECTOR}"
    if affinity := spec.get("affinity"):
        yield from affinity_advice(f"{at}affinity", affinity)


def affinity_advice(at: str, affinity: Object) -> Iterator[str]:
    required, preferred = (f"{when}DuringSchedulingIgnoredDuringExecution" for when in ("required", "preferred"))
    nodes = affinity.get("nodeAffinity") or {}
    for number, term in enumerate(value_at(nodes, required, "nodeSelectorTerms", default=[])):
        yield from node_term_advice(f"{at}.nodeAffinity.{required}.nodeSelectorTerms[{number}]", term)
    for number, each in enumerate(nodes.get(preferred) or ()):
        path, term = f"{at}.nodeAffinity.{preferred}[{number}].preference", each.get("preference") or {}
        yield from node_term_advice(path, term)
        yield from odd_values(path, term)
    for field in ("podAffinity", "podAntiAffinity"):
        pods = affinity.get(field) or {}
        for number, term in enumerate(pods.get(required) or ()):
            if term.get("labelSelector") is None:
                yield f"{at}.{field}.{required}[{number}].labelSelector: {NO_SELECTOR}"
        for number, each in enumerate(pods.get(preferred) or ()):
            if value_at(each, "podAffinityTerm", "labelSelector") is None:
                yield f"{at}.{field}.{preferred}[{number}].podAffinityTerm.labelSelector: {NO_SELECTOR}"


def node_term_advice(at: str, term: Object) -> Iterator[str]:
    for number, each in enumerate(term.get("matchExpressions") or ()):
        if (key := each.get("key")) in NODE_LABELS:
            yield f"{at}.matchExpressions[{number}].key: {key} is {NODE_LABELS[key]}"


def odd_values(at: str, term: Object) -> Iterator[str]:
    for number, each in enumerate(term.get("matchExpressions") or ()):
        for index, value in enumerate(each.get("values") or ()):
            for why in label_value(value):
                yield f"{at}.matchExpressions[{number}].values[{index}]: {value} is invalid, {why}"


# -- what pods are made of


def old_annotations(at: str, spec: Object, annotations: Mapping[str, str]) -> Iterator[str]:
    """Annotations whose place fields have taken."""
    for key, why in ANNOTATIONS.items():
        if key in annotations:
            yield f"{at}[{key}]: {why}"
    if SECCOMP in annotations and value_at(spec, "securityContext", "seccompProfile") is None:
        yield f"{at}[{SECCOMP}]: {USE_SECCOMP}"
    for field in CONTAINERS:
        for each in spec.get(field) or ():
            seccomp, apparmor = f"{SECCOMP_OF}{each['name']}", f"{APPARMOR_OF}{each['name']}"
            if seccomp in annotations and value_at(each, "securityContext", "seccompProfile") is None:
                yield f"{at}[{seccomp}]: {USE_SECCOMP}"
            if apparmor in annotations and not any(
                value_at(holder, "securityContext", "appArmorProfile") for holder in (each, spec)
            ):
                yield f"{at}[{apparmor}]: {USE_APPARMOR}"


def volume_advice(at: str, volume: Object) -> Iterator[str]:
    for kind in VOLUMES.keys() & volume.keys():
        yield f"{at}.{SHOWN_AS.get(kind, kind)}: {VOLUMES[kind]}"
    if claim := value_at(volume, "ephemeral", "volumeClaimTemplate", "spec"):
        yield from claim_advice(f"{at}.ephemeral.volumeClaimTemplate.spec", claim)
    yield from overlaps(volume)


def claim_advice(at: str, spec: Object) -> Iterator[str]:
    for field in ("requests", "limits"):
        amounts = value_at(spec, "resources", field, default={})
        yield from broken_bytes(f"{at}.resources.{field}", amounts, ("storage",))


def overlaps(volume: Object) -> Iterator[str]:
    """Files of a volume that are in each other's place."""
    head = f'volume "{volume["name"]}" '
    for field, named, kind in (("configMap", "name", "ConfigMap"), ("secret", "secretName", "Secret")):
        source = volume.get(field) or {}
        if items := source.get("items"):
            whose = f'({kind} "{source.get(named, "")}"): overlapping paths: '
            yield from (head + whose + each for each in collisions([(path_of(item), "") for item in items]))
    if items := value_at(volume, "downwardAPI", "items"):
        found = collisions([(path_of(item), "") for item in items])
        yield from (f"{head}(DownwardAPI): overlapping paths: {each}" for each in found)
    if (sources := value_at(volume, "projected", "sources")) is not None:
        yield from (f"{head}(Projected) has no sources provided" for each in sources if not each)
        found = collisions([path for each in sources for path in projected_paths(each)])
        yield from (f"{head}(Projected): overlapping paths: {each}" for each in found)


def projected_paths(source: Object) -> Iterator[tuple[str, str]]:
    for field, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
        about = source.get(field) or {}
        yield from ((path_of(item), f'{kind} "{about.get("name", "")}"') for item in about.get("items") or ())
    for item in value_at(source, "downwardAPI", "items", default=[]):
        yield path_of(item), "DownwardAPI"
    if token := source.get("serviceAccountToken"):
        yield path_of(token), "ServiceAccountToken"
    if bundle := source.get("clusterTrustBundle"):
        yield path_of(bundle), f'ClusterTrustBundle "{bundle.get("name") or bundle.get("signerName", "")}"'


def path_of(item: Object) -> str:
    return str(item.get("path", "")).rstrip("/")


class Folder:
    """A place that paths go through or end at."""

    __slots__ = ("below", "ends", "within")

    def __init__(self) -> None:
        self.below: dict[str, Folder] = {}
        self.ends: list[int] = []
        """Which paths end here, as numbers."""
        self.within: list[int] = []
        """Which go on from here."""


def collisions(paths: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Paths that are equal to an earlier one, above it or below it; of very many only the first are looked at."""
    root, left = Folder(), MOST_STEPS
    for number, (path, source) in enumerate(paths):
        left -= path.count("/") + 1
        if left < 0:
            return
        if not path:
            continue
        passed, folder = [], root
        for step in path.split("/"):
            passed.append(folder)
            folder = folder.below.setdefault(step, Folder())
        for earlier in merge(*(each.ends for each in passed[1:] if each.ends), folder.ends, folder.within):
            other, whose = paths[earlier]
            yield f"{placed(path, source)} with {placed(other, whose)}"
        for each in passed[1:]:
            each.within.append(number)
        folder.ends.append(number)


def placed(path: str, source: str) -> str:
    return f'"{path}" ({source})' if source else f'"{path}"'


def repetitions(at: str, spec: Object) -> Iterator[str]:
    for field, key in (("hostAliases", "ip"), ("imagePullSecrets", "name")):
        seen: set[str] = set()
        for number, each in enumerate(spec.get(field) or ()):
            value = each.get(key, "")
            if value in seen:
                yield f'{at}{field}[{number}].{key}: duplicate {key} "{value}"'
            seen.add(value)
            if field == "hostAliases":
                yield from ip_advice(f"{at}{field}[{number}].ip", value)
            elif not value:
                yield f'{at}{field}[{number}].name: invalid empty name ""'
    for number, server in enumerate(value_at(spec, "dnsConfig", "nameservers", default=[])):
        yield from ip_advice(f"{at}dnsConfig.nameservers[{number}]", server)


def container_advice(at: str, container: Object) -> Iterator[str]:
    resources = container.get("resources") or {}
    for field in ("limits", "requests"):
        if amounts := resources.get(field):
            yield from broken_bytes(f"{at}.resources.{field}", amounts)
    if "env" not in container:
        return
    seen: set[str] = set()
    for number, each in enumerate(container["env"] or ()):
        name = each["name"]
        reference, value = f"$({name})", each.get("value", "")
        if name in seen and ("valueFrom" in each or value == reference or reference not in value):
            why = "which may be dropped when using apply"
            yield f'{at}.env[{number}]: hides previous definition of "{name}", {why}'
        seen.add(name)


def broken_bytes(at: str, amounts: Mapping[str, str], kinds: Sequence[str] = BYTES) -> Iterator[str]:
    """Of amounts that are no whole number of bytes."""
    for kind in kinds:
        text = str(amounts.get(kind, ""))
        if text.endswith(PARTS_OF_BYTES) and (found := parse(text)).milli_value() % 1000:
            yield f'{at}[{kind}]: fractional byte value "{found}" is invalid, must be an integer'


def port_advice(ports: Sequence[tuple[str, Object]]) -> Iterator[str]:
    """Of the ports of all containers of a pod, which share one address."""
    first: dict[str, str] = {}
    known: dict[Any, list[int]] = {}
    for number, (where, port) in enumerate(ports):
        if port.get("hostIP") and not port.get("hostPort"):
            yield f"{where}: hostIP set without hostPort: {go_port(port)}"
        same = port.get("containerPort"), port.get("protocol")
        ip, host_port = port.get("hostIP", ""), port.get("hostPort", 0)
        for earlier, word in conflicts(known, same, ip, host_port):
            yield f"{where}: {word} port definition with {ports[earlier][0]}"
        for key in ((same, ip, host_port), (same, host_port, bool(ip)), (same, bool(host_port))):
            known.setdefault(key, []).append(number)
        if (name := port.get("name")) and (other := first.setdefault(name, where)) != where:
            use = "services and probes that select ports by name will use"
            yield f'{where}: duplicate port name "{name}" with {other}, {use} {other}'


def conflicts(known: Mapping[Any, list[int]], same: Any, ip: str, host_port: int) -> Iterator[tuple[int, str]]:
    """Which earlier ports a port is in conflict with, and how; `known` has their numbers by what can be the same."""
    duplicates = known.get((same, ip, host_port), ())
    groups = [((number, "duplicate") for number in duplicates)]
    without = known.get((same, False), ())
    if host_port:
        others = known.get((same, host_port, not ip), ())
        groups.append((number, "dangerously ambiguous") for number in others)
        groups.append((number, "overlapping") for number in without)
    else:
        equal = set(duplicates)
        groups.append((number, "overlapping") for number in known.get((same, True), ()))
        groups.append((number, "overlapping") for number in without if number not in equal)
    yield from merge(*groups)


def go_port(port: Object) -> str:
    fields = {"Name": "name", "HostPort": "hostPort", "ContainerPort": "containerPort", "Protocol": "protocol"}
    numbers = ("hostPort", "containerPort")
    shown = [f"{name}:{port.get(field, 0 if field in numbers else '')}" for name, field in fields.items()]
    return f"{{{' '.join(shown)} HostIP:{port['hostIP']}}}"
