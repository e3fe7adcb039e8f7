"""Security contexts: of a pod, and of a container."""

import re
from collections.abc import Iterator
from typing import Any

from tapestry.apiserver.customs.structural import Fault
from tapestry.apiserver.validation.faults import (
    between,
    duplicate,
    every,
    invalid,
    one_of,
    required,
    struct,
    unsupported,
)
from tapestry.apiserver.validation.volumes import relative_path
from tapestry.kube.objects import Object

SYSCTL = re.compile(r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?")
SYSCTL_LIMIT = 253
IPC_SYSCTLS = ("kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.")
PROFILES = ("Localhost", "RuntimeDefault", "Unconfined")

an_id = between(0, 2**31 - 1)


def profile(kind: str) -> Any:
    """The rule for a profile of seccomp or AppArmor."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        type, file = value.get("type", ""), value.get("localhostProfile")
        if type not in PROFILES:
            yield unsupported(f"{path}.type", type, PROFILES)
        if type == "Localhost":
            if file is None:
                yield required(f"{path}.localhostProfile", f"must be set when {kind} type is Localhost")
            elif kind == "seccomp":
                yield from relative_path(file, f"{path}.localhostProfile")
        elif file is not None:
            yield invalid(f"{path}.localhostProfile", value, f"can only be set when {kind} type is Localhost")

    return faults


def sysctls(value: Any, path: str, spec: Object) -> Iterator[Fault]:
    seen = set()
    for number, each in enumerate(value):
        name, at = each.get("name", ""), f"{path}[{number}].name"
        if not name:
            yield required(at)
        elif len(name) > SYSCTL_LIMIT or not SYSCTL.fullmatch(name):
            yield invalid(at, name, f"must have at most {SYSCTL_LIMIT} characters and match regex ^{SYSCTL.pattern}$")
        elif name in seen:
            yield duplicate(at, name)
        dotted = name.replace("/", ".")
        if spec.get("hostNetwork") and dotted.startswith("net."):
            yield invalid(at, name, "may not be specified when 'hostNetwork' is true")
        elif spec.get("hostIPC") and dotted.startswith(IPC_SYSCTLS):
            yield invalid(at, name, "may not be specified when 'hostIPC' is true")
        seen.add(name)


def of_pod(spec: Object, path: str) -> Iterator[Fault]:
    """Of a pod; some of what its security context says depends on the rest of the spec."""
    if not (context := spec.get("securityContext")):
        return
    yield from IDS(context, path)
    if context.get("sysctls"):
        yield from sysctls(context["sysctls"], f"{path}.sysctls", spec)
    yield from POLICIES(context, path)


IDS = struct(
    ("fsGroup", an_id),
    ("runAsUser", an_id),
    ("runAsGroup", an_id),
    ("supplementalGroups", every(an_id)),
)
POLICIES = struct(
    ("fsGroupChangePolicy", one_of("Always", "OnRootMismatch")),
    ("seccompProfile", profile("seccomp")),
    ("appArmorProfile", profile("AppArmor")),
    ("supplementalGroupsPolicy", one_of("Merge", "Strict")),
    ("seLinuxChangePolicy", one_of("MountOption", "Recursive")),
)


def no_escalation(value: Any, path: str) -> Iterator[Fault]:
    if value.get("allowPrivilegeEscalation") is not False:
        return
    if value.get("privileged"):
        yield invalid(path, value, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
    if "CAP_SYS_ADMIN" in ((value.get("capabilities") or {}).get("add") or ()):
        why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
        yield invalid(path, value, why)


of_container = struct(
    ("runAsUser", an_id),
    ("runAsGroup", an_id),
    ("procMount", one_of("Default", "Unmasked")),
    ("seccompProfile", profile("seccomp")),
    ("", no_escalation),
    ("appArmorProfile", profile("AppArmor")),
)
