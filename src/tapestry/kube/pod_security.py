"""The Pod Security Standards as Kubernetes 1.34 has them: a function for each check, under the name it gives it.

They are stricter than Kubernetes only about pods that no API server accepts: what is not of the type it should be is
refused, so is a second source of one volume, and a Windows pod need not set what Windows does not have, but if it does,
the value has to be right.  With these, `restricted` refuses everything that `baseline` does.  User namespaces
(`hostUsers: false`) earn no leniency: it is granted only where someone vouches that every node has them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tapestry.kube.objects import NOTHING, Object
from tapestry.kube.pods import LISTS

Part = tuple[str, Any]
"""Something in a pod, after its path."""
Parts = Iterable[Part]

LONGEST_SHOWN = 64
"""Characters of what a tenant wrote that a message repeats."""
OTHER_TYPE = "Kubernetes has another type here"


@dataclass(frozen=True, slots=True)
class Violation:
    """A field that keeps a pod from running at a level; as a string, what to tell its owner."""

    path: str
    found: str
    rule: str
    remedy: str
    level: str

    def __str__(self) -> str:
        return f"{self.path}: {self.found} is not allowed at level {self.level}; {self.remedy}"


def violations(pod: Object, level: str) -> list[Violation]:
    """What the standard has against the pod, in the order of its checks."""
    return findings(pod, level, STANDARD[level])


class Reading:
    """The parts of a pod that rules look at.

    What is not of the type that Kubernetes gives it is noted in `malformed` and else taken for absent, so rules need
    not look at types on their way down.
    """

    def __init__(self, pod: Object) -> None:
        self.malformed: dict[str, Any] = {}
        spec = self.object_at("spec", pod.get("spec"))
        self.spec: list[Part] = [("spec", spec)]
        metadata = self.object_at("metadata", pod.get("metadata"))
        self.annotations = self.object_at("metadata.annotations", metadata.get("annotations"))
        # Taken at its word: a kubelet of another system refuses the pod.
        self.is_windows = self.object_at("spec.os", spec.get("os")).get("name") == "windows"
        self.volumes = self.listed(self.spec, "volumes")
        self.containers = self.listed(self.spec, *LISTS)
        self.pod_contexts = self.objects(self.spec, "securityContext")
        self.container_contexts = self.objects(self.containers, "securityContext")
        self.contexts = [*self.pod_contexts, *self.container_contexts]

    def object_at(self, path: str, value: Any) -> Mapping[str, Any]:
        if isinstance(value, dict):
            return value
        if value is not None:
            self.malformed[path] = value
        return NOTHING

    def objects(self, parts: Parts, *fields: str) -> list[Part]:
        """The objects in `fields` of the parts, where they are set."""
        return [
            (f"{path}.{field}", self.object_at(f"{path}.{field}", value))
            for path, part in parts
            for field in fields
            if (value := part.get(field)) is not None
        ]

    def inner(self, parts: Parts, field: str) -> list[Part]:
        """The object in `field` of each part, empty where it is not set."""
        paths = ((f"{path}.{field}", part.get(field)) for path, part in parts)
        return [(path, self.object_at(path, value)) for path, value in paths]

    def entries(self, parts: Parts, *fields: str) -> Iterator[Part]:
        """What is in the lists in `fields` of the parts."""
        for path, part in parts:
            for field in fields:
                entries = part.get(field)
                if isinstance(entries, list):
                    for number, entry in enumerate(entries):
                        yield f"{path}.{field}[{number}]", entry
                elif entries is not None:
                    self.malformed[f"{path}.{field}"] = entries

    def listed(self, parts: Parts, *fields: str) -> list[Part]:
        """The objects in the lists in `fields` of the parts."""
        found = []
        for path, entry in self.entries(parts, *fields):
            if isinstance(entry, dict):
                found.append((path, entry))
            else:
                self.malformed[path] = entry
        return found


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    check: Callable[[Reading], Parts]
    """What in the pod is against the rule: the path, and the value or a description of it."""
    remedy: str


def findings(pod: Object, level: str, rules: tuple[Rule, ...]) -> list[Violation]:
    if not rules:
        return []
    reading = Reading(pod)
    found = [
        Violation(path, shown(value), rule.name, rule.remedy, level)
        for rule in rules
        for path, value in rule.check(reading)
    ]
    malformed = reading.malformed.items()  # complete only now: rules read on
    return found + [Violation(path, shown(value), "malformed", OTHER_TYPE, level) for path, value in malformed]


def shown(value: Any) -> str:
    """A value as messages have it; never the inside of one that should not be there at all."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = str(value)
    shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    return shown if shown.isprintable() and shown else ascii(shown)


def other_than(harmless: bool | int | str, parts: Parts, field: str) -> Iterator[Part]:
    """Where `field` is set to anything but this value of this type."""
    for path, part in parts:
        value = part.get(field)
        if value is not None and (type(value) is not type(harmless) or value != harmless):
            yield f"{path}.{field}", value


def outside(allowed: frozenset[str | None], parts: Parts, field: str) -> Iterator[Part]:
    """Where `field` is none of the allowed; None stands for no value."""
    for path, part in parts:
        value = part.get(field)
        if not isinstance(value, str | None) or value not in allowed:
            yield f"{path}.{field}", value


# -- The standard, baseline

A_SOURCE = "a source of this kind"
HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
HOOKS = ("postStart", "preStop")
CONFINED: frozenset[str | None] = frozenset({"RuntimeDefault", "Localhost"})
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


def app_armor_profile(pod: Reading) -> Parts:
    yield from outside(CONFINED, pod.objects(pod.contexts, "appArmorProfile"), "type")
    for key, value in pod.annotations.items():
        if key.startswith(APP_ARMOR_PREFIX) and not (
            isinstance(value, str) and (value in APP_ARMOR_VALUES or value.startswith(APP_ARMOR_FILES))
        ):
            yield f"metadata.annotations[{shown(key)}]", value


def host_namespaces(pod: Reading) -> Parts:
    for field in HOST_NAMESPACES:
        yield from other_than(False, pod.spec, field)


def host_ports(pod: Reading) -> Parts:
    return other_than(0, pod.listed(pod.containers, "ports"), "hostPort")


def host_probes_and_host_lifecycle(pod: Reading) -> Parts:
    hooks = pod.objects(pod.objects(pod.containers, "lifecycle"), *HOOKS)
    handlers = [*pod.objects(pod.containers, *PROBES), *hooks]
    return other_than("", pod.objects(handlers, "httpGet", "tcpSocket"), "host")


def privileged(pod: Reading) -> Parts:
    return other_than(False, pod.container_contexts, "privileged")


def proc_mount(pod: Reading) -> Parts:
    return outside(PROC_MOUNTS, pod.container_contexts, "procMount")


def selinux_options(pod: Reading) -> Parts:
    options = pod.objects(pod.contexts, "seLinuxOptions")
    yield from outside(SELINUX_TYPES, options, "type")
    yield from other_than("", options, "user")
    yield from other_than("", options, "role")


def sysctls(pod: Reading) -> Parts:
    return outside(SYSCTLS, pod.listed(pod.pod_contexts, "sysctls"), "name")


def windows_host_process(pod: Reading) -> Parts:
    return other_than(False, pod.objects(pod.contexts, "windowsOptions"), "hostProcess")


def capabilities_baseline(pod: Reading) -> Parts:
    return capabilities_outside(CAPABILITIES, pod)


def host_path_volumes(pod: Reading) -> Parts:
    return [(f"{path}.hostPath", A_SOURCE) for path, volume in pod.volumes if volume.get("hostPath") is not None]


def seccomp_profile_baseline(pod: Reading) -> Parts:
    return outside(CONFINED, pod.objects(pod.contexts, "seccompProfile"), "type")


def capabilities_outside(allowed: frozenset[str], pod: Reading) -> Iterator[Part]:
    for path, capability in pod.entries(pod.objects(pod.container_contexts, "capabilities"), "add"):
        if not isinstance(capability, str) or capability not in allowed:
            yield path, capability


# -- The standard, restricted

CAPABILITIES_RESTRICTED = frozenset({"NET_BIND_SERVICE"})
STANDARD_SOURCES = frozenset(
    {
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim"),
        *("projected", "secret"),
    }
)


def allow_privilege_escalation(pod: Reading) -> Parts:
    for path, context in pod.inner(pod.containers, "securityContext"):
        value = context.get("allowPrivilegeEscalation")
        if value is not False and not (value is None and pod.is_windows):
            yield f"{path}.allowPrivilegeEscalation", value


def run_as_non_root(pod: Reading) -> Parts:
    is_inherited = any(context.get("runAsNonRoot") is True for _, context in pod.pod_contexts)
    yield from other_than(True, pod.pod_contexts, "runAsNonRoot")
    for path, context in pod.inner(pod.containers, "securityContext"):
        value = context.get("runAsNonRoot")
        if value is not True and not (value is None and is_inherited):
            yield f"{path}.runAsNonRoot", value


def run_as_user(pod: Reading) -> Parts:
    for path, context in pod.contexts:
        user = context.get("runAsUser")
        if user is not None and (type(user) is not int or user == 0):
            yield f"{path}.runAsUser", user


def capabilities_restricted(pod: Reading) -> Parts:
    yield from capabilities_outside(CAPABILITIES_RESTRICTED, pod)
    if pod.is_windows:
        return
    for path, capabilities in pod.inner(pod.inner(pod.containers, "securityContext"), "capabilities"):
        dropped = capabilities.get("drop")
        if not isinstance(dropped, list) or "ALL" not in dropped:
            yield f"{path}.drop", dropped


def restricted_volumes(pod: Reading) -> Parts:
    return sources_outside(STANDARD_SOURCES, pod.volumes)


def seccomp_profile_restricted(pod: Reading) -> Parts:
    yield from seccomp_profile_baseline(pod)
    profiles = pod.objects(pod.pod_contexts, "seccompProfile")
    if pod.is_windows or (profiles and not any(outside(CONFINED, profiles, "type"))):
        return
    for path, context in pod.inner(pod.containers, "securityContext"):
        if context.get("seccompProfile") is None:
            yield f"{path}.seccompProfile.type", None


def sources_outside(allowed: frozenset[str], parts: Parts) -> Iterator[Part]:
    """Sources of volumes, or of projections, that are not allowed.  One without any is an emptyDir."""
    for path, part in parts:
        for field, value in part.items():
            if value is None or field == "name":
                continue
            if field not in allowed or not isinstance(value, dict):
                yield f"{path}.{shown(field)}", value if field in allowed else A_SOURCE


# -- Which rules hold where


def any_of(values: Iterable[str | None]) -> str:
    return ", ".join(sorted(filter(None, values)))


LEAVE_OUT = "leave it out"
CONFINE = f"leave it out or set one of {any_of(CONFINED)}"
TAKE_ANOTHER = f"use one of {any_of(STANDARD_SOURCES)}"

EVERYWHERE = (
    Rule("appArmorProfile", app_armor_profile, CONFINE),
    Rule("hostNamespaces", host_namespaces, LEAVE_OUT),
    Rule("hostPorts", host_ports, LEAVE_OUT),
    Rule("hostProbesAndHostLifecycle", host_probes_and_host_lifecycle, "leave it out: the pod itself is asked"),
    Rule("privileged", privileged, LEAVE_OUT),
    Rule("procMount", proc_mount, LEAVE_OUT),
    Rule("seLinuxOptions", selinux_options, f"leave it out, or make the type one of {any_of(SELINUX_TYPES)}"),
    Rule("sysctls", sysctls, f"use one of {any_of(SYSCTLS)}"),
    Rule("windowsHostProcess", windows_host_process, LEAVE_OUT),
)
BASELINE = (
    Rule("capabilities_baseline", capabilities_baseline, f"add no other than {any_of(CAPABILITIES)}"),
    Rule("hostPathVolumes", host_path_volumes, TAKE_ANOTHER),
    Rule("seccompProfile_baseline", seccomp_profile_baseline, CONFINE),
)
RESTRICTED = (
    Rule("allowPrivilegeEscalation", allow_privilege_escalation, "set false"),
    Rule("capabilities_restricted", capabilities_restricted, "drop ALL, add none but NET_BIND_SERVICE"),
    Rule("restrictedVolumes", restricted_volumes, TAKE_ANOTHER),
    Rule("runAsNonRoot", run_as_non_root, "set true, here or for the whole pod"),
    Rule("runAsUser", run_as_user, "use another user than 0"),
    Rule(
        "seccompProfile_restricted",
        seccomp_profile_restricted,
        f"set one of {any_of(CONFINED)}, here or for the whole pod",
    ),
)
STANDARD = {"privileged": (), "baseline": EVERYWHERE + BASELINE, "restricted": EVERYWHERE + RESTRICTED}
