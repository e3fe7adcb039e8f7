"""Defaults: what Kubernetes fills in where a writer says nothing, for the kinds whose controllers depend on it.

Each function takes an object and returns it with its defaults, sharing with it what it can.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tapestry.apiserver.verbs import Request
from tapestry.kube.objects import Object

Default = Callable[[Object], Object]

PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
DEFAULT_MODE = 420
TOKEN_SECONDS = 3600


async def step(request: Request, old: Object | None, new: Object | None) -> Object:
    """A step of the pipeline."""
    if new is None:
        return old or {}
    default = DEFAULTS.get(request.target.row.storage)
    return default(new) if default is not None else new


def within(obj: Object, field: str, change: Callable[[Any], Any], empty: Any = None) -> Object:
    """`obj` with what is in a field changed; `empty` is taken for one that is not there."""
    value = obj.get(field, empty)
    return obj if value is None else {**obj, field: change(value)}


def each(change: Default) -> Callable[[list[Object]], list[Object]]:
    return lambda items: [change(item) for item in items]


# -- pods


def pod(obj: Object) -> Object:
    return within(obj, "spec", own_spec)


def own_spec(spec: Object) -> Object:
    """Of a pod itself: a template leaves some of it to the pods that are made by it."""
    found = {"enableServiceLinks": True, **pod_spec(spec)}
    for field in ("containers", "initContainers"):
        found = within(found, field, each(lambda one: within(one, "resources", resources)))
    return found


def template(obj: Object) -> Object:
    return within(obj, "spec", pod_spec)


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
    found = within(
        found, "projected", lambda source: within({"defaultMode": DEFAULT_MODE, **source}, "sources", each(projection))
    )
    return within(found, "hostPath", lambda source: {"type": "", **source})


def projection(obj: Object) -> Object:
    return within(obj, "serviceAccountToken", lambda token: {"expirationSeconds": TOKEN_SECONDS, **token})


# -- workloads


def deployment(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        found = {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600, "strategy": {}, **found}
        return within(within(found, "strategy", strategy), "template", template)

    return within(obj, "spec", spec)


def strategy(obj: Object) -> Object:
    found = {"type": "RollingUpdate", **obj}
    if found["type"] != "RollingUpdate":
        return found
    return {
        **found,
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%", **(found.get("rollingUpdate") or {})},
    }


def replica_set(obj: Object) -> Object:
    return within(obj, "spec", lambda spec: within({"replicas": 1, **spec}, "template", template))


def replication_controller(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        labels = ((found.get("template") or {}).get("metadata") or {}).get("labels") or {}
        found = {"replicas": 1, **({"selector": labels} if labels else {}), **found}
        return within(found, "template", template)

    return within(obj, "spec", spec)


def stateful_set(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        found = {
            "replicas": 1,
            "revisionHistoryLimit": 10,
            "podManagementPolicy": "OrderedReady",
            "updateStrategy": {},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            **found,
        }
        found = within(found, "updateStrategy", stateful_strategy)
        found = within(found, "volumeClaimTemplates", each(claim))
        return within(found, "template", template)

    return within(obj, "spec", spec)


def stateful_strategy(obj: Object) -> Object:
    found = {"type": "RollingUpdate", **obj}
    if found["type"] != "RollingUpdate":
        return found
    return {**found, "rollingUpdate": {"partition": 0, **(found.get("rollingUpdate") or {})}}


def daemon_set(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        found = within({"revisionHistoryLimit": 10, "updateStrategy": {}, **found}, "updateStrategy", daemon_strategy)
        return within(found, "template", template)

    return within(obj, "spec", spec)


def daemon_strategy(obj: Object) -> Object:
    found = {"type": "RollingUpdate", **obj}
    if found["type"] != "RollingUpdate":
        return found
    return {**found, "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0, **(found.get("rollingUpdate") or {})}}


def job(obj: Object) -> Object:
    return within(obj, "spec", job_spec)


def job_spec(spec: Object) -> Object:
    found = {"backoffLimit": 6, "completionMode": "NonIndexed", "suspend": False, "manualSelector": False, **spec}
    if "completions" not in spec and "parallelism" not in spec:
        found |= {"completions": 1, "parallelism": 1}
    found.setdefault("parallelism", 1)
    if "podReplacementPolicy" not in found:
        found["podReplacementPolicy"] = "Failed" if found.get("podFailurePolicy") else "TerminatingOrFailed"
    return within(found, "template", template)


def cron_job(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        found = {
            "concurrencyPolicy": "Allow",
            "suspend": False,
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 1,
            **found,
        }
        return within(found, "jobTemplate", lambda made: within(made, "spec", cron_spec))

    return within(obj, "spec", spec)


def cron_spec(spec: Object) -> Object:
    """A job that is yet to be made gets its own defaults then; its pods get theirs here."""
    return within(spec, "template", template)


# -- the others


def service(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        found = {"type": "ClusterIP", "sessionAffinity": "None", **found}
        if found["type"] in ("NodePort", "LoadBalancer"):
            found = {"externalTrafficPolicy": "Cluster", **found}
        if found["type"] != "ExternalName":
            found = {"internalTrafficPolicy": "Cluster", **found}
        return within(found, "ports", each(service_port))

    return within(obj, "spec", spec)


def service_port(obj: Object) -> Object:
    return {"protocol": "TCP", **obj, "targetPort": obj.get("targetPort") or obj.get("port")}  # Go says 0 for nothing


def claim(obj: Object) -> Object:
    found = within(obj, "spec", lambda spec: {"volumeMode": "Filesystem", **spec})
    return {**found, "status": {"phase": "Pending", **(found.get("status") or {})}}


def persistent_volume(obj: Object) -> Object:
    return within(
        obj, "spec", lambda spec: {"persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem", **spec}
    )


def role_binding(obj: Object) -> Object:
    group = "rbac.authorization.k8s.io"

    def subject(found: Object) -> Object:
        return found if found.get("kind") == "ServiceAccount" else {"apiGroup": group, **found}

    found = within(obj, "roleRef", lambda reference: {**reference, "apiGroup": reference.get("apiGroup") or group})
    return within(found, "subjects", each(subject))


def slice_(obj: Object) -> Object:
    return within(obj, "ports", each(lambda port: {"name": "", "protocol": "TCP", **port}))


def priority_class(obj: Object) -> Object:
    return {"preemptionPolicy": "PreemptLowerPriority", **obj}


def storage_class(obj: Object) -> Object:
    return {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", **obj}


def secret(obj: Object) -> Object:
    return {"type": "Opaque", **obj}


def autoscaler(obj: Object) -> Object:
    return within(obj, "spec", lambda spec: {"minReplicas": 1, **spec})


DEFAULTS: Mapping[str, Default] = {
    "pods": pod,
    "podtemplates": lambda obj: within(obj, "template", template),
    "replicationcontrollers": replication_controller,
    "deployments.apps": deployment,
    "replicasets.apps": replica_set,
    "statefulsets.apps": stateful_set,
    "daemonsets.apps": daemon_set,
    "jobs.batch": job,
    "cronjobs.batch": cron_job,
    "services": service,
    "secrets": secret,
    "persistentvolumeclaims": claim,
    "persistentvolumes": persistent_volume,
    "rolebindings.rbac.authorization.k8s.io": role_binding,
    "clusterrolebindings.rbac.authorization.k8s.io": role_binding,
    "endpointslices.discovery.k8s.io": slice_,
    "priorityclasses.scheduling.k8s.io": priority_class,
    "storageclasses.storage.k8s.io": storage_class,
    "horizontalpodautoscalers.autoscaling": autoscaler,
}
