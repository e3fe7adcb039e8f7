"""Validation of security contexts of pods and containers."""

import re
from collections.abc import Iterator
from typing import Any

from tapestry.apiserver.core.faults import (
    Fault,
    between,
    duplicate_value,
    invalid_value,
    item_validator,
    one_of,
    required_value,
    struct_validator,
    unsupported_value,
)
from tapestry.apiserver.validation.volumes import validate_relative_path
from tapestry.kube.objects import Object

SYSCTL = re.compile(r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?")
SYSCTL_LIMIT = 253
IPC_SYSCTL_PREFIXES = ("kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.")
PROFILE_TYPES = ("Localhost", "RuntimeDefault", "Unconfined")

validate_id = between(0, 2**31 - 1)


def profile_validator(kind: str) -> Any:
    """Return a validator for a seccomp or AppArmor profile."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        type, file = value.get("type", ""), value.get("localhostProfile")
        if type not in PROFILE_TYPES:
            yield unsupported_value(f"{path}.type", type, PROFILE_TYPES)
        if type == "Localhost":
            if file is None:
                yield required_value(f"{path}.localhostProfile", f"must be set when {kind} type is Localhost")
            elif kind == "seccomp":
                yield from validate_relative_path(file, f"{path}.localhostProfile")
        elif file is not None:
            yield invalid_value(f"{path}.localhostProfile", value, f"can only be set when {kind} type is Localhost")

    return faults


def validate_sysctls(value: Any, path: str, spec: Object) -> Iterator[Fault]:
    seen = set()
    for number, each in enumerate(value):
        name, at = each.get("name", ""), f"{path}[{number}].name"
        if not name:
            yield required_value(at)
        elif len(name) > SYSCTL_LIMIT or not SYSCTL.fullmatch(name):
            yield invalid_value(
                at, name, f"must have at most {SYSCTL_LIMIT} characters and match regex ^{SYSCTL.pattern}$"
            )
        elif name in seen:
            yield duplicate_value(at, name)
        dotted = name.replace("/", ".")
        if spec.get("hostNetwork") and dotted.startswith("net."):
            yield invalid_value(at, name, "may not be specified when 'hostNetwork' is true")
        elif spec.get("hostIPC") and dotted.startswith(IPC_SYSCTL_PREFIXES):
            yield invalid_value(at, name, "may not be specified when 'hostIPC' is true")
        seen.add(name)


def validate_pod_security_context(spec: Object, path: str) -> Iterator[Fault]:
    """Validate the security context of a pod. Some rules depend on other fields of the spec."""
    if not (context := spec.get("securityContext")):
        return
    yield from validate_ids(context, path)
    if context.get("sysctls"):
        yield from validate_sysctls(context["sysctls"], f"{path}.sysctls", spec)
    yield from validate_context_policies(context, path)


validate_ids = struct_validator(
    ("fsGroup", validate_id),
    ("runAsUser", validate_id),
    ("runAsGroup", validate_id),
    ("supplementalGroups", item_validator(validate_id)),
)
validate_context_policies = struct_validator(
    ("fsGroupChangePolicy", one_of("Always", "OnRootMismatch")),
    ("seccompProfile", profile_validator("seccomp")),
    ("appArmorProfile", profile_validator("AppArmor")),
    ("supplementalGroupsPolicy", one_of("Merge", "Strict")),
    ("seLinuxChangePolicy", one_of("MountOption", "Recursive")),
)


def validate_privilege_escalation(value: Any, path: str) -> Iterator[Fault]:
    if value.get("allowPrivilegeEscalation") is not False:
        return
    if value.get("privileged"):
        yield invalid_value(path, value, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
    if "CAP_SYS_ADMIN" in ((value.get("capabilities") or {}).get("add") or ()):
        msg = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
        yield invalid_value(path, value, msg)


validate_container_security_context = struct_validator(
    ("runAsUser", validate_id),
    ("runAsGroup", validate_id),
    ("procMount", one_of("Default", "Unmasked")),
    ("seccompProfile", profile_validator("seccomp")),
    ("", validate_privilege_escalation),
    ("appArmorProfile", profile_validator("AppArmor")),
)
