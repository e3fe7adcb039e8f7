"""Defaults of pods and pod templates."""

from tapestry.apiserver.core.spec_cache import memoized_and_interned
from tapestry.apiserver.defaults.field_updates import map_items, with_field
from tapestry.kube.objects import Object

PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
PROBE_DEFAULTS = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
DEFAULT_MODE = 420
TOKEN_SECONDS = 3600


def default_pod(obj: Object) -> Object:
    return with_field(obj, "spec", default_pod_spec)


@memoized_and_interned
def default_pod_spec(spec: Object) -> Object:
    """Defaults of a pod, including those that a template leaves to its pods."""
    result = {"enableServiceLinks": True, **default_template_spec(spec)}
    for field in ("containers", "initContainers"):
        result = with_field(result, field, map_items(lambda item: with_field(item, "resources", default_resources)))
    return result


def default_template(obj: Object) -> Object:
    return with_field(obj, "spec", default_template_spec)


@memoized_and_interned
def default_template_spec(spec: Object) -> Object:
    result = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        **spec,
    }
    for field in ("containers", "initContainers", "ephemeralContainers"):
        result = with_field(result, field, map_items(default_container))
    result = with_field(result, "volumes", map_items(default_volume))
    if result.get("hostNetwork"):
        result = with_field(result, "containers", map_items(with_host_ports))
    if account := result.get("serviceAccountName") or result.get("serviceAccount"):
        result |= {"serviceAccountName": account, "serviceAccount": account}
    return result


def default_container(obj: Object) -> Object:
    container = {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always" if has_latest_tag(obj.get("image", "")) else "IfNotPresent",
        "resources": {},
        **obj,
    }
    container = with_field(container, "ports", map_items(lambda port: {"protocol": "TCP", **port}))
    container = with_field(container, "env", map_items(default_env_var))
    for field in PROBES:
        container = with_field(container, field, default_probe)
    return with_field(container, "lifecycle", default_lifecycle)


def has_latest_tag(image: str) -> bool:
    name, at, _ = image.partition("@")
    if at:
        return False
    _, colon, tag = name.rpartition("/")[2].partition(":")
    return not colon or tag == "latest"


def default_resources(obj: Object) -> Object:
    limits = obj.get("limits")
    return {**obj, "requests": {**limits, **(obj.get("requests") or {})}} if limits else obj


def default_env_var(obj: Object) -> Object:
    source = obj.get("valueFrom") or {}
    if "fieldRef" not in source:
        return obj
    return {**obj, "valueFrom": {**source, "fieldRef": {"apiVersion": "v1", **source["fieldRef"]}}}


def default_probe(obj: Object) -> Object:
    return default_action({**PROBE_DEFAULTS, **obj})


def default_lifecycle(obj: Object) -> Object:
    return {hook: default_action(value) if isinstance(value, dict) else value for hook, value in obj.items()}


def default_action(obj: Object) -> Object:
    action = with_field(obj, "httpGet", lambda get: {"path": "/", "scheme": "HTTP", **get})
    return with_field(action, "grpc", lambda call: {"service": "", **call})


def with_host_ports(obj: Object) -> Object:
    return with_field(obj, "ports", map_items(lambda port: {"hostPort": port.get("containerPort"), **port}))


def default_volume(obj: Object) -> Object:
    if len(obj) == 1:
        return {**obj, "emptyDir": {}}
    volume = obj
    for field in ("configMap", "secret", "downwardAPI"):
        volume = with_field(volume, field, lambda source: {"defaultMode": DEFAULT_MODE, **source})
    volume = with_field(volume, "downwardAPI", default_downward_api)
    volume = with_field(
        volume,
        "projected",
        lambda source: with_field({"defaultMode": DEFAULT_MODE, **source}, "sources", map_items(default_projection)),
    )
    return with_field(volume, "hostPath", lambda source: {"type": "", **source})


def default_projection(obj: Object) -> Object:
    projection = with_field(obj, "serviceAccountToken", lambda token: {"expirationSeconds": TOKEN_SECONDS, **token})
    return with_field(projection, "downwardAPI", default_downward_api)


def default_downward_api(obj: Object) -> Object:
    def default_file(file: Object) -> Object:
        return with_field(file, "fieldRef", lambda field: {"apiVersion": "v1", **field})

    return with_field(obj, "items", map_items(default_file))
