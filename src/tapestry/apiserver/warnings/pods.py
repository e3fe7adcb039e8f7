"""Warnings about accepted pods and pod templates.

Most pods take a few microseconds, because only fields that can cause warnings are read.
"""

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any

from tapestry.apiserver.core.names import label_value_errors
from tapestry.apiserver.core.spec_cache import memoized
from tapestry.apiserver.warnings.addresses import ip_warnings
from tapestry.kube.objects import Object, value_at
from tapestry.kube.quantity import parse_quantity

DEPRECATED_NODE_LABELS = {
    "beta.kubernetes.io/arch": 'deprecated since v1.14; use "kubernetes.io/arch" instead',
    "beta.kubernetes.io/os": 'deprecated since v1.14; use "kubernetes.io/os" instead',
    "failure-domain.beta.kubernetes.io/region": 'deprecated since v1.17; use "topology.kubernetes.io/region" instead',
    "failure-domain.beta.kubernetes.io/zone": 'deprecated since v1.17; use "topology.kubernetes.io/zone" instead',
    "beta.kubernetes.io/instance-type": 'deprecated since v1.17; use "node.kubernetes.io/instance-type" instead',
    "app.kubernetes.io/created-by": "deprecated since v1.9",
    "scheduler.alpha.kubernetes.io/preferAvoidPods": "deprecated since v1.22; use Taints and Tolerations instead",
    "node-role.kubernetes.io/master": 'use "node-role.kubernetes.io/control-plane" instead',
}
DEPRECATED_VOLUMES = {
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
DISPLAY_NAMES = {"storageos": "storageOS"}
USE_SYSCTLS = 'non-functional in v1.11+; use the "sysctls" field instead'
DEPRECATED_ANNOTATIONS = {
    "scheduler.alpha.kubernetes.io/critical-pod": 'non-functional in v1.16+; use the "priorityClassName" field instead',
    "security.alpha.kubernetes.io/sysctls": USE_SYSCTLS,
    "security.alpha.kubernetes.io/unsafe-sysctls": USE_SYSCTLS,
}
SECCOMP_POD_ANNOTATION, SECCOMP_CONTAINER_PREFIX = (
    "seccomp.security.alpha.kubernetes.io/pod",
    "container.seccomp.security.alpha.kubernetes.io/",
)
APPARMOR_CONTAINER_PREFIX = "container.apparmor.security.beta.kubernetes.io/"
USE_SECCOMP = 'non-functional in v1.27+; use the "seccompProfile" field instead'
USE_APPARMOR = 'deprecated since v1.30; use the "appArmorProfile" field instead'
BYTE_RESOURCES = ("memory", "ephemeral-storage")
FRACTIONAL_SUFFIXES = ("m", "u", "n")
CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
SCHEDULING_FIELDS = frozenset({"nodeSelector", "topologySpreadConstraints", "affinity"})
DUPLICATE_CHECKED_FIELDS = frozenset({"hostAliases", "imagePullSecrets", "dnsConfig"})
MAX_PATH_STEPS = 50_000
"""Maximum number of path segments that are compared."""
TOKEN_VOLUME_PREFIX = "kube-api-access-"
"""Prefix of the names of the token volumes that the server adds to pods."""
MAX_WARNINGS = 200
"""Maximum number of warnings about one object, because headers have a limited size."""
NO_SELECTOR = "a null labelSelector results in matching no pod"


def template_warnings(field_path: str, pod: Object) -> Iterator[str]:
    """Warnings about a pod, or about a template at `field_path`, which ends with a dot."""
    spec = pod.get("spec") or {}
    if not SCHEDULING_FIELDS.isdisjoint(spec):
        yield from scheduling_warnings(f"{field_path}spec.", spec)
    if annotations := (pod.get("metadata") or {}).get("annotations"):
        yield from annotation_warnings(f"{field_path}metadata.annotations", spec, annotations)
    yield from spec_warnings(spec, field_path)


@memoized
def spec_warnings(spec: Object, field_path: str) -> Sequence[str]:
    return [*islice(spec_part_warnings(field_path, spec), MAX_WARNINGS)]


def spec_part_warnings(field_path: str, spec: Object) -> Iterator[str]:
    for number, volume in enumerate(spec.get("volumes") or ()):
        if not volume["name"].startswith(TOKEN_VOLUME_PREFIX):
            yield from volume_warnings(f"{field_path}spec.volumes[{number}]", volume)
    if not DUPLICATE_CHECKED_FIELDS.isdisjoint(spec):
        yield from duplicate_warnings(f"{field_path}spec.", spec)
    if "overhead" in spec:
        yield from fractional_byte_warnings(f"{field_path}spec.overhead", spec["overhead"])
    ports: list[tuple[str, Object]] = []
    for field in CONTAINERS:
        for number, each in enumerate(spec.get(field) or ()):
            path = f"{field_path}spec.{field}[{number}]"
            yield from container_warnings(path, each)
            ports += [(f"{path}.ports[{index}]", port) for index, port in enumerate(each.get("ports") or ())]
    yield from port_warnings(ports)
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        reason = "must be >= 0; negative values are invalid and will be treated as 1"
        yield f"{field_path}spec.terminationGracePeriodSeconds: {reason}"


# -- scheduling


def scheduling_warnings(field_path: str, spec: Object) -> Iterator[str]:
    for key in spec.get("nodeSelector") or ():
        if key in DEPRECATED_NODE_LABELS:
            yield f"{field_path}nodeSelector[{key}]: {DEPRECATED_NODE_LABELS[key]}"
    for number, each in enumerate(spec.get("topologySpreadConstraints") or ()):
        path = f"{field_path}topologySpreadConstraints[{number}]"
        if (key := each.get("topologyKey")) in DEPRECATED_NODE_LABELS:
            yield f"{path}.topologyKey: {key} is {DEPRECATED_NODE_LABELS[key]}"
        if each.get("labelSelector") is None:
            yield f"{path}.labelSelector: {NO_SELECTOR}"
    if affinity := spec.get("affinity"):
        yield from affinity_warnings(f"{field_path}affinity", affinity)


def affinity_warnings(field_path: str, affinity: Object) -> Iterator[str]:
    required, preferred = (f"{mode}DuringSchedulingIgnoredDuringExecution" for mode in ("required", "preferred"))
    nodes = affinity.get("nodeAffinity") or {}
    for number, term in enumerate(value_at(nodes, required, "nodeSelectorTerms", default=[])):
        yield from node_term_warnings(f"{field_path}.nodeAffinity.{required}.nodeSelectorTerms[{number}]", term)
    for number, each in enumerate(nodes.get(preferred) or ()):
        path, term = f"{field_path}.nodeAffinity.{preferred}[{number}].preference", each.get("preference") or {}
        yield from node_term_warnings(path, term)
        yield from label_value_warnings(path, term)
    for field in ("podAffinity", "podAntiAffinity"):
        pods = affinity.get(field) or {}
        for number, term in enumerate(pods.get(required) or ()):
            if term.get("labelSelector") is None:
                yield f"{field_path}.{field}.{required}[{number}].labelSelector: {NO_SELECTOR}"
        for number, each in enumerate(pods.get(preferred) or ()):
            if value_at(each, "podAffinityTerm", "labelSelector") is None:
                yield f"{field_path}.{field}.{preferred}[{number}].podAffinityTerm.labelSelector: {NO_SELECTOR}"


def node_term_warnings(field_path: str, term: Object) -> Iterator[str]:
    for number, each in enumerate(term.get("matchExpressions") or ()):
        if (key := each.get("key")) in DEPRECATED_NODE_LABELS:
            yield f"{field_path}.matchExpressions[{number}].key: {key} is {DEPRECATED_NODE_LABELS[key]}"


def label_value_warnings(field_path: str, term: Object) -> Iterator[str]:
    for number, each in enumerate(term.get("matchExpressions") or ()):
        for index, value in enumerate(each.get("values") or ()):
            for error in label_value_errors(value):
                yield f"{field_path}.matchExpressions[{number}].values[{index}]: {value} is invalid, {error}"


# -- parts of a pod


def annotation_warnings(field_path: str, spec: Object, annotations: Mapping[str, str]) -> Iterator[str]:
    """Warnings about annotations that fields have replaced."""
    for key, reason in DEPRECATED_ANNOTATIONS.items():
        if key in annotations:
            yield f"{field_path}[{key}]: {reason}"
    if SECCOMP_POD_ANNOTATION in annotations and value_at(spec, "securityContext", "seccompProfile") is None:
        yield f"{field_path}[{SECCOMP_POD_ANNOTATION}]: {USE_SECCOMP}"
    for field in CONTAINERS:
        for each in spec.get(field) or ():
            seccomp, apparmor = (
                f"{SECCOMP_CONTAINER_PREFIX}{each['name']}",
                f"{APPARMOR_CONTAINER_PREFIX}{each['name']}",
            )
            if seccomp in annotations and value_at(each, "securityContext", "seccompProfile") is None:
                yield f"{field_path}[{seccomp}]: {USE_SECCOMP}"
            if apparmor in annotations and not any(
                value_at(holder, "securityContext", "appArmorProfile") for holder in (each, spec)
            ):
                yield f"{field_path}[{apparmor}]: {USE_APPARMOR}"


def volume_warnings(field_path: str, volume: Object) -> Iterator[str]:
    for kind in DEPRECATED_VOLUMES.keys() & volume.keys():
        yield f"{field_path}.{DISPLAY_NAMES.get(kind, kind)}: {DEPRECATED_VOLUMES[kind]}"
    if claim := value_at(volume, "ephemeral", "volumeClaimTemplate", "spec"):
        yield from claim_spec_warnings(f"{field_path}.ephemeral.volumeClaimTemplate.spec", claim)
    yield from overlap_warnings(volume)


def claim_spec_warnings(field_path: str, spec: Object) -> Iterator[str]:
    for field in ("requests", "limits"):
        amounts = value_at(spec, "resources", field, default={})
        yield from fractional_byte_warnings(f"{field_path}.resources.{field}", amounts, ("storage",))


def overlap_warnings(volume: Object) -> Iterator[str]:
    """Warnings about overlapping paths of files in a volume."""
    prefix = f'volume "{volume["name"]}" '
    for field, name_field, kind in (("configMap", "name", "ConfigMap"), ("secret", "secretName", "Secret")):
        source = volume.get(field) or {}
        if items := source.get("items"):
            label = f'({kind} "{source.get(name_field, "")}"): overlapping paths: '
            yield from (prefix + label + each for each in path_collisions([(item_path(item), "") for item in items]))
    if items := value_at(volume, "downwardAPI", "items"):
        collisions = path_collisions([(item_path(item), "") for item in items])
        yield from (f"{prefix}(DownwardAPI): overlapping paths: {each}" for each in collisions)
    if (sources := value_at(volume, "projected", "sources")) is not None:
        yield from (f"{prefix}(Projected) has no sources provided" for each in sources if not each)
        collisions = path_collisions([path for each in sources for path in projected_paths(each)])
        yield from (f"{prefix}(Projected): overlapping paths: {each}" for each in collisions)


def projected_paths(source: Object) -> Iterator[tuple[str, str]]:
    for field, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
        reference = source.get(field) or {}
        yield from ((item_path(item), f'{kind} "{reference.get("name", "")}"') for item in reference.get("items") or ())
    for item in value_at(source, "downwardAPI", "items", default=[]):
        yield item_path(item), "DownwardAPI"
    if token := source.get("serviceAccountToken"):
        yield item_path(token), "ServiceAccountToken"
    if bundle := source.get("clusterTrustBundle"):
        yield item_path(bundle), f'ClusterTrustBundle "{bundle.get("name") or bundle.get("signerName", "")}"'


def item_path(item: Object) -> str:
    return str(item.get("path", "")).rstrip("/")


class PathNode:
    """A node of the path tree."""

    __slots__ = ("below", "ends", "within")

    def __init__(self) -> None:
        self.below: dict[str, PathNode] = {}
        self.ends: list[int] = []
        """Indexes of the paths that end here."""
        self.within: list[int] = []
        """Indexes of the paths that continue below this node."""


def path_collisions(paths: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Paths that equal, contain or are inside an earlier path. Stops after MAX_PATH_STEPS segments."""
    root, budget = PathNode(), MAX_PATH_STEPS
    for number, (path, source) in enumerate(paths):
        budget -= path.count("/") + 1
        if budget < 0:
            return
        if not path:
            continue
        ancestors, node = [], root
        for step in path.split("/"):
            ancestors.append(node)
            node = node.below.setdefault(step, PathNode())
        for earlier in merge(*(each.ends for each in ancestors[1:] if each.ends), node.ends, node.within):
            other, other_source = paths[earlier]
            yield f"{path_text(path, source)} with {path_text(other, other_source)}"
        for each in ancestors[1:]:
            each.within.append(number)
        node.ends.append(number)


def path_text(path: str, source: str) -> str:
    return f'"{path}" ({source})' if source else f'"{path}"'


def duplicate_warnings(field_path: str, spec: Object) -> Iterator[str]:
    for field, key in (("hostAliases", "ip"), ("imagePullSecrets", "name")):
        seen: set[str] = set()
        for number, each in enumerate(spec.get(field) or ()):
            value = each.get(key, "")
            if value in seen:
                yield f'{field_path}{field}[{number}].{key}: duplicate {key} "{value}"'
            seen.add(value)
            if field == "hostAliases":
                yield from ip_warnings(f"{field_path}{field}[{number}].ip", value)
            elif not value:
                yield f'{field_path}{field}[{number}].name: invalid empty name ""'
    for number, server in enumerate(value_at(spec, "dnsConfig", "nameservers", default=[])):
        yield from ip_warnings(f"{field_path}dnsConfig.nameservers[{number}]", server)


def container_warnings(field_path: str, container: Object) -> Iterator[str]:
    resources = container.get("resources") or {}
    for field in ("limits", "requests"):
        if amounts := resources.get(field):
            yield from fractional_byte_warnings(f"{field_path}.resources.{field}", amounts)
    if "env" not in container:
        return
    seen: set[str] = set()
    for number, each in enumerate(container["env"] or ()):
        name = each["name"]
        reference, value = f"$({name})", each.get("value", "")
        if name in seen and ("valueFrom" in each or value == reference or reference not in value):
            reason = "which may be dropped when using apply"
            yield f'{field_path}.env[{number}]: hides previous definition of "{name}", {reason}'
        seen.add(name)


def fractional_byte_warnings(
    field_path: str, amounts: Mapping[str, str], kinds: Sequence[str] = BYTE_RESOURCES
) -> Iterator[str]:
    """Warnings about amounts that are not a whole number of bytes."""
    for kind in kinds:
        text = str(amounts.get(kind, ""))
        if text.endswith(FRACTIONAL_SUFFIXES) and (quantity := parse_quantity(text)).milli_value() % 1000:
            yield f'{field_path}[{kind}]: fractional byte value "{quantity}" is invalid, must be an integer'


def port_warnings(ports: Sequence[tuple[str, Object]]) -> Iterator[str]:
    """Warnings about the ports of all containers of a pod, which share one address."""
    first_paths: dict[str, str] = {}
    earlier_ports: dict[Any, list[int]] = {}
    for number, (path, port) in enumerate(ports):
        if port.get("hostIP") and not port.get("hostPort"):
            yield f"{path}: hostIP set without hostPort: {go_port_text(port)}"
        port_key = port.get("containerPort"), port.get("protocol")
        ip, host_port = port.get("hostIP", ""), port.get("hostPort", 0)
        for earlier, word in port_conflicts(earlier_ports, port_key, ip, host_port):
            yield f"{path}: {word} port definition with {ports[earlier][0]}"
        for key in ((port_key, ip, host_port), (port_key, host_port, bool(ip)), (port_key, bool(host_port))):
            earlier_ports.setdefault(key, []).append(number)
        if (name := port.get("name")) and (other := first_paths.setdefault(name, path)) != path:
            effect = "services and probes that select ports by name will use"
            yield f'{path}: duplicate port name "{name}" with {other}, {effect} {other}'


def port_conflicts(
    earlier_ports: Mapping[Any, list[int]], port_key: Any, ip: str, host_port: int
) -> Iterator[tuple[int, str]]:
    """The numbers of earlier ports that conflict with a port, and the kind of conflict."""
    duplicates = earlier_ports.get((port_key, ip, host_port), ())
    groups = [((number, "duplicate") for number in duplicates)]
    without = earlier_ports.get((port_key, False), ())
    if host_port:
        others = earlier_ports.get((port_key, host_port, not ip), ())
        groups.append((number, "dangerously ambiguous") for number in others)
        groups.append((number, "overlapping") for number in without)
    else:
        equal = set(duplicates)
        groups.append((number, "overlapping") for number in earlier_ports.get((port_key, True), ()))
        groups.append((number, "overlapping") for number in without if number not in equal)
    yield from merge(*groups)


def go_port_text(port: Object) -> str:
    fields = {"Name": "name", "HostPort": "hostPort", "ContainerPort": "containerPort", "Protocol": "protocol"}
    numbers = ("hostPort", "containerPort")
    parts = [f"{name}:{port.get(field, 0 if field in numbers else '')}" for name, field in fields.items()]
    return f"{{{' '.join(parts)} HostIP:{port['hostIP']}}}"
