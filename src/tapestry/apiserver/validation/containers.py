"""Containers: their ports, environment, mounts, probes and resources."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tapestry.apiserver.customs.structural import Fault
from tapestry.apiserver.validation import names, security
from tapestry.apiserver.validation.faults import (
    Rule,
    between,
    duplicate,
    forbidden,
    invalid,
    matching,
    needs,
    nonnegative,
    not_found,
    one_of,
    required,
    struct,
    unsupported,
)
from tapestry.apiserver.validation.resources import claims, requirements
from tapestry.apiserver.validation.volumes import (
    POD_FIELDS,
    devices,
    field_of_pod,
    mounts,
    resource_of_container,
)
from tapestry.kube.objects import Object

PROTOCOLS = ("SCTP", "TCP", "UDP")
ONLY_SIDECARS = "may not be set for init containers without restartPolicy=Always"
SOURCES = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
FOR_EPHEMERAL = "cannot be set for an Ephemeral Container"

is_label, is_subdomain = matching(names.label), matching(names.subdomain)
port_number = between(1, 65535)
protocol = one_of(*PROTOCOLS)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What containers can refer to."""

    spec: Object
    volumes: dict[str, Object]
    claims: set[str]


def port_number_or_name(value: Any, path: str) -> Iterator[Fault]:
    rule = matching(names.port_name) if isinstance(value, str) else port_number
    return rule(value, path)


# -- ports


def ports(value: Any, path: str) -> Iterator[Fault]:
    seen: set[str] = set()
    for number, each in enumerate(value):
        at = f"{path}[{number}]"
        if name := each.get("name"):
            if complaints := names.port_name(name):
                yield from (invalid(f"{at}.name", name, why) for why in complaints)
            elif name in seen:
                yield duplicate(f"{at}.name", name)
            seen.add(name)
        if not each.get("containerPort"):
            yield required(f"{at}.containerPort")
        else:
            yield from port_number(each["containerPort"], f"{at}.containerPort")
        if host := each.get("hostPort"):
            yield from port_number(host, f"{at}.hostPort")
        yield from protocol(each.get("protocol", "TCP"), f"{at}.protocol")


def host_ports(containers: list[Object], path: str) -> Iterator[Fault]:
    """A port of the node can be had once."""
    seen: set[str] = set()
    for number, container in enumerate(containers):
        for index, each in enumerate(container.get("ports") or ()):
            if each.get("hostPort"):
                key = f"{each.get('protocol', '')}/{each.get('hostIP', '')}/{each['hostPort']}"
                if key in seen:
                    yield duplicate(f"{path}[{number}].ports[{index}].hostPort", key)
                seen.add(key)


# -- environment


def key_reference(value: Any, path: str) -> Iterator[Fault]:
    yield from is_subdomain(value.get("name", ""), f"{path}.name")
    if not value.get("key"):
        yield required(f"{path}.key")
    else:
        yield from matching(names.config_key)(value["key"], f"{path}.key")


VALUES: dict[str, Rule] = {
    "fieldRef": field_of_pod(POD_FIELDS),
    "resourceFieldRef": resource_of_container(in_volume=False),
    "configMapKeyRef": key_reference,
    "secretKeyRef": key_reference,
}


def environment(value: Any, path: str) -> Iterator[Fault]:
    for number, each in enumerate(value):
        if name := each.get("name"):
            for why in names.variable_name(name):
                yield invalid(f"{path}[{number}].name", name, why)
        else:
            yield required(f"{path}[{number}].name")
        if (source := each.get("valueFrom")) is not None:
            yield from variable_source(source, each, f"{path}[{number}].valueFrom")


def variable_source(source: Object, variable: Object, path: str) -> Iterator[Fault]:
    found = [kind for kind in VALUES if source.get(kind) is not None]
    for kind in found:
        yield from VALUES[kind](source[kind], f"{path}.{kind}")
    if not found:
        yield invalid(path, "", SOURCES)
    elif variable.get("value"):
        yield invalid(path, "", "may not be specified when `value` is not empty")
    elif len(found) > 1:
        yield invalid(path, "", "may not have more than one field specified at a time")


named = struct(needs("name"), ("name", is_subdomain))


def environment_from(value: Any, path: str) -> Iterator[Fault]:
    for number, each in enumerate(value):
        at = f"{path}[{number}]"
        if prefix := each.get("prefix"):
            yield from matching(names.variable_name)(prefix, f"{at}.prefix")
        found = [kind for kind in ("configMapRef", "secretRef") if each.get(kind) is not None]
        for kind in found:
            yield from named(each[kind], f"{at}.{kind}")
        if not found:
            yield invalid(path, "", "must specify one of: `configMapRef` or `secretRef`")
        elif len(found) > 1:
            yield invalid(path, "", "may not have more than one field specified at a time")


# -- probes and hooks


def headers(value: Any, path: str) -> Iterator[Fault]:
    for each in value:
        yield from matching(names.header_name)(each.get("name", ""), path)


http_get = struct(
    needs("path"), ("port", port_number_or_name), ("scheme", one_of("HTTP", "HTTPS")), ("httpHeaders", headers)
)
HANDLERS: dict[str, Rule] = {
    "exec": struct(needs("command")),
    "httpGet": http_get,
    "tcpSocket": struct(("port", port_number_or_name)),
    "grpc": struct(("port", port_number)),
}


def handler(value: Any, path: str, grace: int | None) -> Iterator[Fault]:
    found = [kind for kind in (*HANDLERS, "sleep") if value.get(kind) is not None]
    if not found:
        yield required(path, "must specify a handler type")
    for kind in found[:1]:
        if kind == "sleep":
            yield from sleep(value["sleep"].get("seconds", 0), f"{path}.sleep", grace)
        else:
            yield from HANDLERS[kind](value[kind], f"{path}.{kind}")
    for kind in found[1:]:
        yield forbidden(f"{path}.{kind}", "may not specify more than 1 handler type")


def sleep(seconds: int, path: str, grace: int | None) -> Iterator[Fault]:
    if grace is not None and not 0 <= seconds <= grace:
        why = f"must be non-negative and less than terminationGracePeriodSeconds ({grace})"
        yield invalid(path, seconds, why)


TIMES = struct(
    *(
        (f"{each}", nonnegative)
        for each in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
    )
)


def probe(value: Any, path: str, *, may_take_several: bool) -> Iterator[Fault]:
    yield from handler(value, path, None)
    yield from TIMES(value, path)
    grace = value.get("terminationGracePeriodSeconds")
    if grace is not None and grace <= 0:
        yield invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0")
    if may_take_several:
        if grace is not None:
            yield invalid(f"{path}.terminationGracePeriodSeconds", grace, "must not be set for readinessProbes")
    elif value.get("successThreshold", 1) != 1:
        yield invalid(f"{path}.successThreshold", value["successThreshold"], "must be 1")


def lifecycle(value: Any, path: str, spec: Object) -> Iterator[Fault]:
    for hook in ("postStart", "preStop"):
        if value.get(hook) is not None:
            yield from handler(value[hook], f"{path}.{hook}", spec.get("terminationGracePeriodSeconds"))
    if value.get("stopSignal") and not spec.get("os"):
        yield forbidden(f"{path}.stopSignal", "may not be set for containers with empty `spec.os.name`")


def attended(container: Object, path: str, spec: Object) -> Iterator[Fault]:
    """Of a container that runs on: what watches over it."""
    if container.get("lifecycle") is not None:
        yield from lifecycle(container["lifecycle"], f"{path}.lifecycle", spec)
    for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(kind) is not None:
            yield from probe(container[kind], f"{path}.{kind}", may_take_several=kind == "readinessProbe")


# -- containers


def common(container: Object, path: str, around: Surroundings) -> Iterator[Fault]:
    """What holds for containers of all three sorts."""
    if name := container.get("name"):
        if names.label(name):
            yield from is_label(name, f"{path}.name")
    else:
        yield required(f"{path}.name")
    if not container.get("image"):
        yield required(f"{path}.image")
    yield from HEAD(container, path)
    if container.get("volumeMounts"):
        yield from mounts(container, set(around.volumes), f"{path}.volumeMounts")
    if container.get("volumeDevices"):
        yield from devices(container, around.volumes, f"{path}.volumeDevices")
    yield from TAIL(container, path)
    if resources := container.get("resources"):
        yield from requirements(resources, f"{path}.resources")
        if resources.get("claims"):
            yield from claims(resources["claims"], f"{path}.resources.claims", around.claims)
    if container.get("resizePolicy"):
        yield from resize(container["resizePolicy"], f"{path}.resizePolicy", around.spec)
    if context := container.get("securityContext"):
        yield from security.of_container(context, f"{path}.securityContext")


def resize(value: Any, path: str, spec: Object) -> Iterator[Fault]:
    seen = set()
    for number, each in enumerate(value):
        name, policy = each.get("resourceName", ""), each.get("restartPolicy", "")
        if name in seen:
            yield duplicate(f"{path}[{number}]", name)
        seen.add(name)
        if name not in ("cpu", "memory"):
            yield unsupported(path, name, ("cpu", "memory")) if name else required(path)
        if policy not in ("NotRequired", "RestartContainer"):
            yield unsupported(path, policy, ("NotRequired", "RestartContainer")) if policy else required(path)
        if spec.get("restartPolicy") == "Never" and policy != "NotRequired":
            yield invalid(path, policy, "must be 'NotRequired' when `restartPolicy` is 'Never'")


HEAD = struct(
    ("terminationMessagePolicy", one_of("File", "FallbackToLogsOnError")),
    ("ports", ports),
    ("env", environment),
    ("envFrom", environment_from),
)
TAIL = struct(("imagePullPolicy", one_of("Always", "IfNotPresent", "Never")))


def regular(containers: list[Object], path: str, around: Surroundings) -> Iterator[Fault]:
    if not containers:
        yield required(path)
        return
    seen: set[str] = set()
    for number, each in enumerate(containers):
        at = f"{path}[{number}]"
        yield from common(each, at, around)
        if (name := each.get("name", "")) in seen:
            yield duplicate(f"{at}.name", name)
        seen.add(name)
        yield from attended(each, at, around.spec)
    yield from host_ports(containers, path)


def initial(containers: list[Object], path: str, around: Surroundings) -> Iterator[Fault]:
    seen = {each.get("name", "") for each in around.spec.get("containers") or ()}
    for number, each in enumerate(containers):
        at = f"{path}[{number}]"
        yield from common(each, at, around)
        if (name := each.get("name", "")) in seen:
            yield duplicate(f"{at}.name", name)
        elif name:
            seen.add(name)
        yield from host_ports([each], path)
        if each.get("restartPolicy") == "Always":
            yield from attended(each, at, around.spec)
        else:
            for kind in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
                if each.get(kind) is not None:
                    yield forbidden(f"{at}.{kind}", ONLY_SIDECARS)


EPHEMERAL = frozenset(
    {
        *("name", "image", "command", "args", "workingDir", "envFrom", "env", "volumeMounts", "volumeDevices"),
        *("terminationMessagePath", "terminationMessagePolicy", "imagePullPolicy", "securityContext", "stdin"),
        *("stdinOnce", "tty", "targetContainerName"),
    }
)


def ephemeral(containers: list[Object], path: str, around: Surroundings) -> Iterator[Fault]:
    others = {
        each.get("name", "") for field in ("containers", "initContainers") for each in around.spec.get(field) or ()
    }
    seen = set(others)
    for number, each in enumerate(containers):
        at = f"{path}[{number}]"
        yield from common(each, at, around)
        if (name := each.get("name", "")) in seen:
            yield duplicate(f"{at}.name", name)
        seen.add(name)
        target = each.get("targetContainerName")
        if target and target not in others:
            yield not_found(f"{at}.targetContainerName", target)
        for field, value in each.items():
            if field not in EPHEMERAL and value:
                yield forbidden(f"{at}.{field}", FOR_EPHEMERAL)
