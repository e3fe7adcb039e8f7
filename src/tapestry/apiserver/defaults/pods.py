"""Pods, and templates of pods."""

from tapestry.apiserver.defaults.filling import each, within
from tapestry.apiserver.recurring import derived
from tapestry.kube.objects import Object

PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
DEFAULT_MODE = 420
TOKEN_SECONDS = 3600


def pod(obj: Object) -> Object:
    return within(obj, "spec", own_spec)


@derived
def own_spec(spec: Object) -> Object:
    """Of a pod itself: a template leaves some of it to the pods that are made by it."""
    found = {"enableServiceLinks": True, **pod_spec(spec)}
    for field in ("containers", "initContainers"):
        found = within(found, field, each(lambda one: within(one, "resources", resources)))
    return found


def template(obj: Object) -> Object:
    return within(obj, "spec", pod_spec)


@derived
def pod_spec(spec: Object) -> Object:
    found = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        **spec,
    }
    for field in ("containers", "initContainers", "ephemeralContainers"):
        found = within(found, field, each(container))
    found = within(found, "volumes", each(volume))
    if found.get("hostNetwork"):
        found = within(found, "containers", each(with_host_ports))
    if account := found.get("serviceAccountName") or found.get("serviceAccount"):
        found |= {"serviceAccountName": account, "serviceAccount": account}
    return found


def container(obj: Object) -> Object:
    found = {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always" if is_latest(obj.get("image", "")) else "IfNotPresent",
        "resources": {},
        **obj,
    }
    found = within(found, "ports", each(lambda port: {"protocol": "TCP", **port}))
    found = within(found, "env", each(variable))
    for field in PROBES:
        found = within(found, field, probe)
    return within(found, "lifecycle", lifecycle)


def is_latest(image: str) -> bool:
    name, at, _ = image.partition("@")
    if at:
        return False
    _, colon, tag = name.rpartition("/")[2].partition(":")
    return not colon or tag == "latest"


def resources(obj: Object) -> Object:
    limits = obj.get("limits")
    return {**obj, "requests": {**limits, **(obj.get("requests") or {})}} if limits else obj


def variable(obj: Object) -> Object:
    source = obj.get("valueFrom") or {}
    if "fieldRef" not in source:
        return obj
    return {**obj, "valueFrom": {**source, "fieldRef": {"apiVersion": "v1", **source["fieldRef"]}}}


def probe(obj: Object) -> Object:
    return action({**PROBE, **obj})


def lifecycle(obj: Object) -> Object:
    return {hook: action(value) if isinstance(value, dict) else value for hook, value in obj.items()}


def action(obj: Object) -> Object:
    found = within(obj, "httpGet", lambda get: {"path": "/", "scheme": "HTTP", **get})
    return within(found, "grpc", lambda call: {"service": "", **call})


def with_host_ports(obj: Object) -> Object:
    return within(obj, "ports", each(lambda port: {"hostPort": port.get("containerPort"), **port}))


def volume(obj: Object) -> Object:
    if len(obj) == 1:
        return {**obj, "emptyDir": {}}
    found = obj
    for field in ("configMap", "secret", "downwardAPI"):
        found = within(found, field, lambda source: {"defaultMode": DEFAULT_MODE, **source})
    found = within(found, "downwardAPI", downward)
    found = within(
        found, "projected", lambda source: within({"defaultMode": DEFAULT_MODE, **source}, "sources", each(projection))
    )
    return within(found, "hostPath", lambda source: {"type": "", **source})


def projection(obj: Object) -> Object:
    found = within(obj, "serviceAccountToken", lambda token: {"expirationSeconds": TOKEN_SECONDS, **token})
    return within(found, "downwardAPI", downward)


def downward(obj: Object) -> Object:
    def file(found: Object) -> Object:
        return within(found, "fieldRef", lambda field: {"apiVersion": "v1", **field})

    return within(obj, "items", each(file))
