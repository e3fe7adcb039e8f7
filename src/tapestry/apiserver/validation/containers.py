"""Validation of containers: ports, environment, mounts, probes and resources."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tapestry.apiserver.core import names
from tapestry.apiserver.core.faults import (
    Fault,
    Validator,
    between,
    duplicate_value,
    forbidden_field,
    format_validator,
    invalid_value,
    one_of,
    required_fields,
    required_value,
    struct_validator,
    unsupported_value,
    validate_nonnegative,
    value_not_found,
)
from tapestry.apiserver.validation import security_context
from tapestry.apiserver.validation.resources import validate_resource_claims, validate_resource_requirements
from tapestry.apiserver.validation.volumes import (
    POD_FIELDS,
    field_reference_validator,
    resource_reference_validator,
    validate_volume_devices,
    validate_volume_mounts,
)
from tapestry.kube.objects import Object

PROTOCOLS = ("SCTP", "TCP", "UDP")
SIDECAR_ONLY_MESSAGE = "may not be set for init containers without restartPolicy=Always"
ENV_SOURCES_MESSAGE = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
EPHEMERAL_MESSAGE = "cannot be set for an Ephemeral Container"

validate_dns_label, validate_dns_subdomain = (
    format_validator(names.dns_label_errors),
    format_validator(names.dns_subdomain_errors),
)
validate_port_number = between(1, 65535)
validate_protocol = one_of(*PROTOCOLS)


@dataclass(frozen=True, slots=True)
class PodReferences:
    """Parts of a pod that its containers can refer to."""

    spec: Object
    volumes: dict[str, Object]
    claims: set[str]


def validate_port_number_or_name(value: Any, path: str) -> Iterator[Fault]:
    rule = format_validator(names.port_name_errors) if isinstance(value, str) else validate_port_number
    return rule(value, path)


# -- ports


def validate_container_ports(value: Any, path: str) -> Iterator[Fault]:
    seen: set[str] = set()
    for number, each in enumerate(value):
        at = f"{path}[{number}]"
        if name := each.get("name"):
            if errors := names.port_name_errors(name):
                yield from (invalid_value(f"{at}.name", name, msg) for msg in errors)
            elif name in seen:
                yield duplicate_value(f"{at}.name", name)
            seen.add(name)
        if not each.get("containerPort"):
            yield required_value(f"{at}.containerPort")
        else:
            yield from validate_port_number(each["containerPort"], f"{at}.containerPort")
        if host := each.get("hostPort"):
            yield from validate_port_number(host, f"{at}.hostPort")
        yield from validate_protocol(each.get("protocol", "TCP"), f"{at}.protocol")


def validate_host_ports(containers: list[Object], path: str) -> Iterator[Fault]:
    """Validate that containers do not share a host port."""
    seen: set[str] = set()
    for number, container in enumerate(containers):
        for index, each in enumerate(container.get("ports") or ()):
            if each.get("hostPort"):
                key = f"{each.get('protocol', '')}/{each.get('hostIP', '')}/{each['hostPort']}"
                if key in seen:
                    yield duplicate_value(f"{path}[{number}].ports[{index}].hostPort", key)
                seen.add(key)


# -- environment


def validate_key_reference(value: Any, path: str) -> Iterator[Fault]:
    yield from validate_dns_subdomain(value.get("name", ""), f"{path}.name")
    if not value.get("key"):
        yield required_value(f"{path}.key")
    else:
        yield from format_validator(names.config_key_errors)(value["key"], f"{path}.key")


ENV_VALUE_SOURCES: dict[str, Validator] = {
    "fieldRef": field_reference_validator(POD_FIELDS),
    "resourceFieldRef": resource_reference_validator(in_volume=False),
    "configMapKeyRef": validate_key_reference,
    "secretKeyRef": validate_key_reference,
}


def validate_env(value: Any, path: str) -> Iterator[Fault]:
    for number, each in enumerate(value):
        if name := each.get("name"):
            for msg in names.env_var_name_errors(name):
                yield invalid_value(f"{path}[{number}].name", name, msg)
        else:
            yield required_value(f"{path}[{number}].name")
        if (source := each.get("valueFrom")) is not None:
            yield from validate_env_value_from(source, each, f"{path}[{number}].valueFrom")


def validate_env_value_from(source: Object, variable: Object, path: str) -> Iterator[Fault]:
    kinds = [kind for kind in ENV_VALUE_SOURCES if source.get(kind) is not None]
    for kind in kinds:
        yield from ENV_VALUE_SOURCES[kind](source[kind], f"{path}.{kind}")
    if not kinds:
        yield invalid_value(path, "", ENV_SOURCES_MESSAGE)
    elif variable.get("value"):
        yield invalid_value(path, "", "may not be specified when `value` is not empty")
    elif len(kinds) > 1:
        yield invalid_value(path, "", "may not have more than one field specified at a time")


validate_local_reference = struct_validator(required_fields("name"), ("name", validate_dns_subdomain))


def validate_env_from(value: Any, path: str) -> Iterator[Fault]:
    for number, each in enumerate(value):
        at = f"{path}[{number}]"
        if prefix := each.get("prefix"):
            yield from format_validator(names.env_var_name_errors)(prefix, f"{at}.prefix")
        kinds = [kind for kind in ("configMapRef", "secretRef") if each.get(kind) is not None]
        for kind in kinds:
            yield from validate_local_reference(each[kind], f"{at}.{kind}")
        if not kinds:
            yield invalid_value(path, "", "must specify one of: `configMapRef` or `secretRef`")
        elif len(kinds) > 1:
            yield invalid_value(path, "", "may not have more than one field specified at a time")


# -- probes and hooks


def validate_http_headers(value: Any, path: str) -> Iterator[Fault]:
    for each in value:
        yield from format_validator(names.header_name_errors)(each.get("name", ""), path)


validate_http_get = struct_validator(
    required_fields("path"),
    ("port", validate_port_number_or_name),
    ("scheme", one_of("HTTP", "HTTPS")),
    ("httpHeaders", validate_http_headers),
)
HANDLER_VALIDATORS: dict[str, Validator] = {
    "exec": struct_validator(required_fields("command")),
    "httpGet": validate_http_get,
    "tcpSocket": struct_validator(("port", validate_port_number_or_name)),
    "grpc": struct_validator(("port", validate_port_number)),
}


def validate_handler(value: Any, path: str, grace_seconds: int | None) -> Iterator[Fault]:
    kinds = [kind for kind in (*HANDLER_VALIDATORS, "sleep") if value.get(kind) is not None]
    if not kinds:
        yield required_value(path, "must specify a handler type")
    for kind in kinds[:1]:
        if kind == "sleep":
            yield from validate_sleep_action(value["sleep"].get("seconds", 0), f"{path}.sleep", grace_seconds)
        else:
            yield from HANDLER_VALIDATORS[kind](value[kind], f"{path}.{kind}")
    for kind in kinds[1:]:
        yield forbidden_field(f"{path}.{kind}", "may not specify more than 1 handler type")


def validate_sleep_action(seconds: int, path: str, grace_seconds: int | None) -> Iterator[Fault]:
    if grace_seconds is not None and not 0 <= seconds <= grace_seconds:
        msg = f"must be non-negative and less than terminationGracePeriodSeconds ({grace_seconds})"
        yield invalid_value(path, seconds, msg)


validate_probe_numbers = struct_validator(
    *(
        (f"{each}", validate_nonnegative)
        for each in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
    )
)


def validate_probe(value: Any, path: str, *, is_readiness: bool) -> Iterator[Fault]:
    yield from validate_handler(value, path, None)
    yield from validate_probe_numbers(value, path)
    grace = value.get("terminationGracePeriodSeconds")
    if grace is not None and grace <= 0:
        yield invalid_value(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0")
    if is_readiness:
        if grace is not None:
            yield invalid_value(f"{path}.terminationGracePeriodSeconds", grace, "must not be set for readinessProbes")
    elif value.get("successThreshold", 1) != 1:
        yield invalid_value(f"{path}.successThreshold", value["successThreshold"], "must be 1")


def validate_lifecycle(value: Any, path: str, spec: Object) -> Iterator[Fault]:
    for hook in ("postStart", "preStop"):
        if value.get(hook) is not None:
            yield from validate_handler(value[hook], f"{path}.{hook}", spec.get("terminationGracePeriodSeconds"))
    if value.get("stopSignal") and not spec.get("os"):
        yield forbidden_field(f"{path}.stopSignal", "may not be set for containers with empty `spec.os.name`")


def validate_lifecycle_and_probes(container: Object, path: str, spec: Object) -> Iterator[Fault]:
    """Validate the hooks and probes of a regular container or a sidecar."""
    if container.get("lifecycle") is not None:
        yield from validate_lifecycle(container["lifecycle"], f"{path}.lifecycle", spec)
    for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(kind) is not None:
            yield from validate_probe(container[kind], f"{path}.{kind}", is_readiness=kind == "readinessProbe")


# -- containers


def validate_container_common(container: Object, path: str, pod_references: PodReferences) -> Iterator[Fault]:
    """Validate the fields that regular, init and ephemeral containers share."""
    if name := container.get("name"):
        if names.dns_label_errors(name):
            yield from validate_dns_label(name, f"{path}.name")
    else:
        yield required_value(f"{path}.name")
    if not container.get("image"):
        yield required_value(f"{path}.image")
    yield from validate_ports_and_env(container, path)
    if container.get("volumeMounts"):
        yield from validate_volume_mounts(container, set(pod_references.volumes), f"{path}.volumeMounts")
    if container.get("volumeDevices"):
        yield from validate_volume_devices(container, pod_references.volumes, f"{path}.volumeDevices")
    yield from validate_image_pull_policy(container, path)
    if resources := container.get("resources"):
        yield from validate_resource_requirements(resources, f"{path}.resources")
        if resources.get("claims"):
            yield from validate_resource_claims(resources["claims"], f"{path}.resources.claims", pod_references.claims)
    if container.get("resizePolicy"):
        yield from validate_resize_policy(container["resizePolicy"], f"{path}.resizePolicy", pod_references.spec)
    if context := container.get("securityContext"):
        yield from security_context.validate_container_security_context(context, f"{path}.securityContext")


def validate_resize_policy(value: Any, path: str, spec: Object) -> Iterator[Fault]:
    seen = set()
    for number, each in enumerate(value):
        name, policy = each.get("resourceName", ""), each.get("restartPolicy", "")
        if name in seen:
            yield duplicate_value(f"{path}[{number}]", name)
        seen.add(name)
        if name not in ("cpu", "memory"):
            yield unsupported_value(path, name, ("cpu", "memory")) if name else required_value(path)
        if policy not in ("NotRequired", "RestartContainer"):
            yield (
                unsupported_value(path, policy, ("NotRequired", "RestartContainer")) if policy else required_value(path)
            )
        if spec.get("restartPolicy") == "Never" and policy != "NotRequired":
            yield invalid_value(path, policy, "must be 'NotRequired' when `restartPolicy` is 'Never'")


validate_ports_and_env = struct_validator(
    ("terminationMessagePolicy", one_of("File", "FallbackToLogsOnError")),
    ("ports", validate_container_ports),
    ("env", validate_env),
    ("envFrom", validate_env_from),
)
validate_image_pull_policy = struct_validator(("imagePullPolicy", one_of("Always", "IfNotPresent", "Never")))


def validate_containers(containers: list[Object], path: str, pod_references: PodReferences) -> Iterator[Fault]:
    if not containers:
        yield required_value(path)
        return
    seen: set[str] = set()
    for number, each in enumerate(containers):
        at = f"{path}[{number}]"
        yield from validate_container_common(each, at, pod_references)
        if (name := each.get("name", "")) in seen:
            yield duplicate_value(f"{at}.name", name)
        seen.add(name)
        yield from validate_lifecycle_and_probes(each, at, pod_references.spec)
    yield from validate_host_ports(containers, path)


def validate_init_containers(containers: list[Object], path: str, pod_references: PodReferences) -> Iterator[Fault]:
    seen = {each.get("name", "") for each in pod_references.spec.get("containers") or ()}
    for number, each in enumerate(containers):
        at = f"{path}[{number}]"
        yield from validate_container_common(each, at, pod_references)
        if (name := each.get("name", "")) in seen:
            yield duplicate_value(f"{at}.name", name)
        elif name:
            seen.add(name)
        yield from validate_host_ports([each], path)
        if each.get("restartPolicy") == "Always":
            yield from validate_lifecycle_and_probes(each, at, pod_references.spec)
        else:
            for kind in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
                if each.get(kind) is not None:
                    yield forbidden_field(f"{at}.{kind}", SIDECAR_ONLY_MESSAGE)


EPHEMERAL_CONTAINER_FIELDS = frozenset(
    {
        *("name", "image", "command", "args", "workingDir", "envFrom", "env", "volumeMounts", "volumeDevices"),
        *("terminationMessagePath", "terminationMessagePolicy", "imagePullPolicy", "securityContext", "stdin"),
        *("stdinOnce", "tty", "targetContainerName"),
    }
)


def validate_ephemeral_containers(
    containers: list[Object], path: str, pod_references: PodReferences
) -> Iterator[Fault]:
    other_names = {
        each.get("name", "")
        for field in ("containers", "initContainers")
        for each in pod_references.spec.get(field) or ()
    }
    seen = set(other_names)
    for number, each in enumerate(containers):
        at = f"{path}[{number}]"
        yield from validate_container_common(each, at, pod_references)
        if (name := each.get("name", "")) in seen:
            yield duplicate_value(f"{at}.name", name)
        seen.add(name)
        target = each.get("targetContainerName")
        if target and target not in other_names:
            yield value_not_found(f"{at}.targetContainerName", target)
        for field, value in each.items():
            if field not in EPHEMERAL_CONTAINER_FIELDS and value:
                yield forbidden_field(f"{at}.{field}", EPHEMERAL_MESSAGE)
