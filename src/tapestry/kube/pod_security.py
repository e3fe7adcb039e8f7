"""Pod Security Standards of Kubernetes 1.34: one function per check, named as upstream.

The checks are stricter than Kubernetes only for pods that no API server accepts. They reject fields of the wrong type
and volumes with two sources. A Windows pod may omit the fields that do not exist on Windows, but values that it sets
must be valid. `restricted` therefore rejects everything that `baseline` rejects. User namespaces (`hostUsers: false`)
do not relax any check, because that requires support on every node.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tapestry.kube.objects import EMPTY_MAPPING, Object
from tapestry.kube.pods import CONTAINER_FIELDS

Part = tuple[str, Any]
"""Path and value of a part of a pod."""
Parts = Iterable[Part]

MAX_VALUE_LENGTH = 64
"""Limit of characters of a user's value that a message quotes."""
WRONG_TYPE_REMEDY = "set a value of the type that Kubernetes expects"


@dataclass(frozen=True, slots=True)
class Violation:
    """Field that violates the standard at a level. `str()` is the message for the owner of the pod."""

    path: str
    found: str
    rule: str
    remedy: str
    level: str

    def __str__(self) -> str:
        return f"{self.path}: {self.found} is not allowed at level {self.level}; {self.remedy}"


def violations(pod: Object, level: str) -> list[Violation]:
    return violations_of_checks(pod, level, CHECKS_BY_LEVEL[level])


class PodView:
    """Parts of a pod that checks read.

    A value of the wrong type is recorded in `malformed` and treated as absent, so checks need not test types.
    """

    def __init__(self, pod: Object) -> None:
        self.malformed: dict[str, Any] = {}
        spec = self.object_at("spec", pod.get("spec"))
        self.spec: list[Part] = [("spec", spec)]
        metadata = self.object_at("metadata", pod.get("metadata"))
        self.annotations = self.object_at("metadata.annotations", metadata.get("annotations"))
        # This value is not verified: a kubelet of another OS rejects the pod.
        self.is_windows = self.object_at("spec.os", spec.get("os")).get("name") == "windows"
        self.volumes = self.object_items(self.spec, "volumes")
        self.containers = self.object_items(self.spec, *CONTAINER_FIELDS)
        self.pod_contexts = self.objects(self.spec, "securityContext")
        self.container_contexts = self.objects(self.containers, "securityContext")
        self.contexts = [*self.pod_contexts, *self.container_contexts]

    def object_at(self, path: str, value: Any) -> Mapping[str, Any]:
        if isinstance(value, dict):
            return value
        if value is not None:
            self.malformed[path] = value
        return EMPTY_MAPPING

    def objects(self, parts: Parts, *fields: str) -> list[Part]:
        """Return the objects in `fields` of the parts, if set."""
        return [
            (f"{path}.{field}", self.object_at(f"{path}.{field}", value))
            for path, part in parts
            for field in fields
            if (value := part.get(field)) is not None
        ]

    def child_objects(self, parts: Parts, field: str) -> list[Part]:
        """Return the object in `field` of each part, or an empty object."""
        paths = ((f"{path}.{field}", part.get(field)) for path, part in parts)
        return [(path, self.object_at(path, value)) for path, value in paths]

    def entries(self, parts: Parts, *fields: str) -> Iterator[Part]:
        """Yield the items of the lists in `fields` of the parts."""
        for path, part in parts:
            for field in fields:
                entries = part.get(field)
                if isinstance(entries, list):
                    for number, entry in enumerate(entries):
                        yield f"{path}.{field}[{number}]", entry
                elif entries is not None:
                    self.malformed[f"{path}.{field}"] = entries

    def object_items(self, parts: Parts, *fields: str) -> list[Part]:
        """Return the objects in the lists in `fields` of the parts."""
        objects = []
        for path, entry in self.entries(parts, *fields):
            if isinstance(entry, dict):
                objects.append((path, entry))
            else:
                self.malformed[path] = entry
        return objects


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    find_violations: Callable[[PodView], Parts]
    """Function that yields path and value (or a description of it) of each violation."""
    remedy: str


def violations_of_checks(pod: Object, level: str, checks: tuple[Check, ...]) -> list[Violation]:
    if not checks:
        return []
    view = PodView(pod)
    result = [
        Violation(path, value_text(value), rule.name, rule.remedy, level)
        for rule in checks
        for path, value in rule.find_violations(view)
    ]
    malformed = view.malformed.items()  # complete only after all checks have run
    return result + [
        Violation(path, value_text(value), "malformed", WRONG_TYPE_REMEDY, level) for path, value in malformed
    ]


def value_text(value: Any) -> str:
    """Return a value as messages show it. The content of objects and lists is not shown."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = str(value)
    excerpt = text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}..."
    return excerpt if excerpt.isprintable() and excerpt else ascii(excerpt)


def values_other_than(harmless: bool | int | str, parts: Parts, field: str) -> Iterator[Part]:
    for path, part in parts:
        value = part.get(field)
        if value is not None and (type(value) is not type(harmless) or value != harmless):
            yield f"{path}.{field}", value


def values_outside(allowed: frozenset[str | None], parts: Parts, field: str) -> Iterator[Part]:
    """Yield the parts whose `field` is not allowed. None stands for an unset field."""
    for path, part in parts:
        value = part.get(field)
        if not isinstance(value, str | None) or value not in allowed:
            yield f"{path}.{field}", value


# -- baseline

SOURCE_DESCRIPTION = "a source of this kind"
HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
HOOKS = ("postStart", "preStop")
CONFINED_PROFILES: frozenset[str | None] = frozenset({"RuntimeDefault", "Localhost"})
APP_ARMOR_PREFIX = "container.apparmor.security.beta.kubernetes.io/"
APP_ARMOR_VALUES = frozenset({"", "runtime/default"})
APP_ARMOR_FILES = "localhost/"
PROC_MOUNTS = frozenset({None, "Default"})
SELINUX_TYPES = frozenset({None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"})
CAPABILITIES = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
        *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    }
)
SYSCTLS: frozenset[str | None] = frozenset(
    {
        *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports"),
        *("net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout"),
        *("net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time"),
        *("net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem"),
    }
)


def app_armor_profile(pod: PodView) -> Parts:
    yield from values_outside(CONFINED_PROFILES, pod.objects(pod.contexts, "appArmorProfile"), "type")
    for key, value in pod.annotations.items():
        if key.startswith(APP_ARMOR_PREFIX) and not (
            isinstance(value, str) and (value in APP_ARMOR_VALUES or value.startswith(APP_ARMOR_FILES))
        ):
            yield f"metadata.annotations[{value_text(key)}]", value


def host_namespaces(pod: PodView) -> Parts:
    for field in HOST_NAMESPACES:
        yield from values_other_than(False, pod.spec, field)


def host_ports(pod: PodView) -> Parts:
    return values_other_than(0, pod.object_items(pod.containers, "ports"), "hostPort")


def host_probes_and_host_lifecycle(pod: PodView) -> Parts:
    hooks = pod.objects(pod.objects(pod.containers, "lifecycle"), *HOOKS)
    handlers = [*pod.objects(pod.containers, *PROBES), *hooks]
    return values_other_than("", pod.objects(handlers, "httpGet", "tcpSocket"), "host")


def privileged(pod: PodView) -> Parts:
    return values_other_than(False, pod.container_contexts, "privileged")


def proc_mount(pod: PodView) -> Parts:
    return values_outside(PROC_MOUNTS, pod.container_contexts, "procMount")


def selinux_options(pod: PodView) -> Parts:
    options = pod.objects(pod.contexts, "seLinuxOptions")
    yield from values_outside(SELINUX_TYPES, options, "type")
    yield from values_other_than("", options, "user")
    yield from values_other_than("", options, "role")


def sysctls(pod: PodView) -> Parts:
    return values_outside(SYSCTLS, pod.object_items(pod.pod_contexts, "sysctls"), "name")


def windows_host_process(pod: PodView) -> Parts:
    return values_other_than(False, pod.objects(pod.contexts, "windowsOptions"), "hostProcess")


def capabilities_baseline(pod: PodView) -> Parts:
    return capabilities_outside(CAPABILITIES, pod)


def host_path_volumes(pod: PodView) -> Parts:
    return [
        (f"{path}.hostPath", SOURCE_DESCRIPTION) for path, volume in pod.volumes if volume.get("hostPath") is not None
    ]


def seccomp_profile_baseline(pod: PodView) -> Parts:
    return values_outside(CONFINED_PROFILES, pod.objects(pod.contexts, "seccompProfile"), "type")


def capabilities_outside(allowed: frozenset[str], pod: PodView) -> Iterator[Part]:
    for path, capability in pod.entries(pod.objects(pod.container_contexts, "capabilities"), "add"):
        if not isinstance(capability, str) or capability not in allowed:
            yield path, capability


# -- restricted

CAPABILITIES_RESTRICTED = frozenset({"NET_BIND_SERVICE"})
STANDARD_SOURCES = frozenset(
    {
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim"),
        *("projected", "secret"),
    }
)


def allow_privilege_escalation(pod: PodView) -> Parts:
    for path, context in pod.child_objects(pod.containers, "securityContext"):
        value = context.get("allowPrivilegeEscalation")
        if value is not False and not (value is None and pod.is_windows):
            yield f"{path}.allowPrivilegeEscalation", value


def run_as_non_root(pod: PodView) -> Parts:
    is_inherited = any(context.get("runAsNonRoot") is True for _, context in pod.pod_contexts)
    yield from values_other_than(True, pod.pod_contexts, "runAsNonRoot")
    for path, context in pod.child_objects(pod.containers, "securityContext"):
        value = context.get("runAsNonRoot")
        if value is not True and not (value is None and is_inherited):
            yield f"{path}.runAsNonRoot", value


def run_as_user(pod: PodView) -> Parts:
    for path, context in pod.contexts:
        user = context.get("runAsUser")
        if user is not None and (type(user) is not int or user == 0):
            yield f"{path}.runAsUser", user


def capabilities_restricted(pod: PodView) -> Parts:
    yield from capabilities_outside(CAPABILITIES_RESTRICTED, pod)
    if pod.is_windows:
        return
    for path, capabilities in pod.child_objects(pod.child_objects(pod.containers, "securityContext"), "capabilities"):
        dropped = capabilities.get("drop")
        if not isinstance(dropped, list) or "ALL" not in dropped:
            yield f"{path}.drop", dropped


def restricted_volumes(pod: PodView) -> Parts:
    return sources_outside(STANDARD_SOURCES, pod.volumes)


def seccomp_profile_restricted(pod: PodView) -> Parts:
    yield from seccomp_profile_baseline(pod)
    profiles = pod.objects(pod.pod_contexts, "seccompProfile")
    if pod.is_windows or (profiles and not any(values_outside(CONFINED_PROFILES, profiles, "type"))):
        return
    for path, context in pod.child_objects(pod.containers, "securityContext"):
        if context.get("seccompProfile") is None:
            yield f"{path}.seccompProfile.type", None


def sources_outside(allowed: frozenset[str], parts: Parts) -> Iterator[Part]:
    """Yield the volume or projection sources that are not allowed. A volume without a source is an emptyDir."""
    for path, part in parts:
        for field, value in part.items():
            if value is None or field == "name":
                continue
            if field not in allowed or not isinstance(value, dict):
                yield f"{path}.{value_text(field)}", value if field in allowed else SOURCE_DESCRIPTION


# -- checks by level


def sorted_list_text(values: Iterable[str | None]) -> str:
    return ", ".join(sorted(filter(None, values)))


UNSET_REMEDY = "leave it out"
CONFINED_PROFILE_REMEDY = f"leave it out or set one of {sorted_list_text(CONFINED_PROFILES)}"
ALLOWED_SOURCE_REMEDY = f"use one of {sorted_list_text(STANDARD_SOURCES)}"

COMMON_CHECKS = (
    Check("appArmorProfile", app_armor_profile, CONFINED_PROFILE_REMEDY),
    Check("hostNamespaces", host_namespaces, UNSET_REMEDY),
    Check("hostPorts", host_ports, UNSET_REMEDY),
    Check("hostProbesAndHostLifecycle", host_probes_and_host_lifecycle, "leave it out: the default is the pod itself"),
    Check("privileged", privileged, UNSET_REMEDY),
    Check("procMount", proc_mount, UNSET_REMEDY),
    Check(
        "seLinuxOptions", selinux_options, f"leave it out, or make the type one of {sorted_list_text(SELINUX_TYPES)}"
    ),
    Check("sysctls", sysctls, f"use one of {sorted_list_text(SYSCTLS)}"),
    Check("windowsHostProcess", windows_host_process, UNSET_REMEDY),
)
BASELINE_CHECKS = (
    Check("capabilities_baseline", capabilities_baseline, f"add only {sorted_list_text(CAPABILITIES)}"),
    Check("hostPathVolumes", host_path_volumes, ALLOWED_SOURCE_REMEDY),
    Check("seccompProfile_baseline", seccomp_profile_baseline, CONFINED_PROFILE_REMEDY),
)
RESTRICTED_CHECKS = (
    Check("allowPrivilegeEscalation", allow_privilege_escalation, "set false"),
    Check("capabilities_restricted", capabilities_restricted, "drop ALL, add at most NET_BIND_SERVICE"),
    Check("restrictedVolumes", restricted_volumes, ALLOWED_SOURCE_REMEDY),
    Check("runAsNonRoot", run_as_non_root, "set true, here or for the whole pod"),
    Check("runAsUser", run_as_user, "use a user other than 0"),
    Check(
        "seccompProfile_restricted",
        seccomp_profile_restricted,
        f"set one of {sorted_list_text(CONFINED_PROFILES)}, here or for the whole pod",
    ),
)
CHECKS_BY_LEVEL = {
    "privileged": (),
    "baseline": COMMON_CHECKS + BASELINE_CHECKS,
    "restricted": COMMON_CHECKS + RESTRICTED_CHECKS,
}
