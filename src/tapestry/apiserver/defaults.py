"""Defaults: what Kubernetes fills in where a writer says nothing, for the kinds whose controllers depend on it.

Each function takes an object and returns it with its defaults, sharing with it what it can.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tapestry.apiserver.verbs import Request
from tapestry.kube.objects import Object, labels_of, value_at, with_value

Default = Callable[[Object], Object]

PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
DEFAULT_MODE = 420
TOKEN_SECONDS = 3600
AFFINITY_SECONDS = 10800
DEFAULT_UTILIZATION = 80


async def step(request: Request, old: Object | None, new: Object | None) -> Object:
    """A step of the pipeline."""
    if new is None:
        return old or {}
    default = DEFAULTS.get(request.target.row.storage)
    return (
        new
        if default is None or (old is not None and default not in ELSEWHERE and is_same_spec(old, new))
        else default(new)
    )


def is_same_spec(old: Object, new: Object) -> bool:
    """Whether a write left everything alone but metadata and status."""
    return "spec" in new and all(new[key] is old.get(key) for key in new if key not in ("metadata", "status"))


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
    """It selects, and is labelled, by what its pods are labelled with."""
    labels = value_at(obj, "spec", "template", "metadata", "labels", default={})
    if labels and not labels_of(obj):
        obj = with_value(obj, ("metadata", "labels"), labels)

    def spec(found: Object) -> Object:
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
        found = within(found, "volumeClaimTemplates", each(claim_template))
        return within(found, "template", template)

    return within(obj, "spec", spec)


def claim_template(obj: Object) -> Object:
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim(obj)}


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
        is_external = found["type"] in ("NodePort", "LoadBalancer")
        if is_external or (found["type"] == "ClusterIP" and found.get("externalIPs")):
            found = {"externalTrafficPolicy": "Cluster", **found}
        if found["type"] == "LoadBalancer":
            found = {"allocateLoadBalancerNodePorts": True, **found}
        if found["sessionAffinity"] == "ClientIP":
            found = {"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}}, **found}
        if found["type"] != "ExternalName":
            found = {"internalTrafficPolicy": "Cluster", **found}
        return within(found, "ports", each(service_port))

    found = within(obj, "spec", spec)
    if found.get("spec", {}).get("type") != "LoadBalancer":
        return found
    return within(found, "status", lambda status: within(status, "loadBalancer", balancer))


def balancer(obj: Object) -> Object:
    return within(obj, "ingress", each(lambda one: {"ipMode": "VIP", **one} if one.get("ip") else one))


def service_port(obj: Object) -> Object:
    return {"protocol": "TCP", **obj, "targetPort": obj.get("targetPort") or obj.get("port")}  # Go says 0 for nothing


def claim(obj: Object) -> Object:
    found = within(obj, "spec", lambda spec: {"volumeMode": "Filesystem", **spec})
    return {**found, "status": {"phase": "Pending", **(found.get("status") or {})}}


def persistent_volume(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        found = {"persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem", **found}
        return within(found, "hostPath", lambda path: {"type": "", **path})

    return within(obj, "spec", spec)


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


def limit_range(obj: Object) -> Object:
    return within(obj, "spec", lambda spec: within(spec, "limits", each(limit)))


def limit(obj: Object) -> Object:
    """What containers may have at most is what they get, and ask for, where nothing else is said."""
    if obj.get("type") != "Container":
        return obj
    most = {**(obj.get("max") or {}), **(obj.get("default") or {})}
    asked = {**(obj.get("min") or {}), **most, **(obj.get("defaultRequest") or {})}
    return {**obj, **({"default": most} if most else {}), **({"defaultRequest": asked} if asked else {})}


def mutating_webhooks(obj: Object) -> Object:
    return within(obj, "webhooks", each(lambda hook: {"reinvocationPolicy": "Never", **webhook(hook)}))


def validating_webhooks(obj: Object) -> Object:
    return within(obj, "webhooks", each(webhook))


def webhook(obj: Object) -> Object:
    found = {
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "timeoutSeconds": 10,
        **obj,
    }
    found = within(found, "rules", each(lambda rule: {"scope": "*", **rule}))
    return within(found, "clientConfig", webhook_client)


def webhook_client(obj: Object) -> Object:
    return within(obj, "service", lambda service: {"port": 443, **service})


def secret(obj: Object) -> Object:
    return {"type": "Opaque", **obj}


def autoscaler(obj: Object) -> Object:
    """In either version."""
    if obj["apiVersion"] == "autoscaling/v1":
        return within(obj, "spec", lambda spec: {"minReplicas": 1, **spec})
    target = {"type": "Utilization", "averageUtilization": DEFAULT_UTILIZATION}
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    return within(obj, "spec", lambda spec: {"minReplicas": 1, **spec, "metrics": spec.get("metrics") or [metric]})


def endpoints(obj: Object) -> Object:
    def subset(found: Object) -> Object:
        return within(found, "ports", each(lambda port: {"protocol": "TCP", **port}))

    return within(obj, "subsets", each(subset))


def network_policy(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        for field in ("ingress", "egress"):
            found = within(found, field, each(lambda rule: within(rule, "ports", each(policy_port))))
        types = ["Ingress", "Egress"] if found.get("egress") else ["Ingress"]
        return {**found, "policyTypes": found.get("policyTypes") or types}

    return within(obj, "spec", spec)


def policy_port(obj: Object) -> Object:
    return {"protocol": "TCP", **obj}


def csi_driver(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        return {
            "attachRequired": True,
            "podInfoOnMount": False,
            "storageCapacity": False,
            "fsGroupPolicy": "ReadWriteOnceWithFSType",
            "requiresRepublish": False,
            "seLinuxMount": False,
            "volumeLifecycleModes": ["Persistent"],
            **found,
        }

    return within(obj, "spec", spec)


def flow_schema(obj: Object) -> Object:
    return within(obj, "spec", lambda spec: {"matchingPrecedence": 1000, **spec})


def priority_level(obj: Object) -> Object:
    def limited(found: Object) -> Object:
        found = {"nominalConcurrencyShares": 30, "lendablePercent": 0, **found}
        return within(found, "limitResponse", lambda response: within(response, "queuing", queuing))

    def spec(found: Object) -> Object:
        if found.get("type") == "Exempt":
            return {
                **found,
                "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0, **(found.get("exempt") or {})},
            }
        return within(found, "limited", limited)

    return within(obj, "spec", spec)


def queuing(obj: Object) -> Object:
    return {"queues": 64, "handSize": 8, "queueLengthLimit": 50, **obj}


def resource_claim(obj: Object) -> Object:
    return within(obj, "spec", claim_devices)


def claim_devices(spec: Object) -> Object:
    """A request that says neither how many devices nor which is for one."""

    def exact(found: Object) -> Object:
        found = {"allocationMode": "ExactCount", **found}
        return {"count": 1, **found} if found["allocationMode"] == "ExactCount" else found

    def request(found: Object) -> Object:
        return within(within(found, "exactly", exact), "firstAvailable", each(exact))

    return within(spec, "devices", lambda devices: within(devices, "requests", each(request)))


def namespace(obj: Object) -> Object:
    labels = {**(obj["metadata"].get("labels") or {}), "kubernetes.io/metadata.name": obj["metadata"]["name"]}
    return {**obj, "metadata": {**obj["metadata"], "labels": labels}}


def node(obj: Object) -> Object:
    def status(found: Object) -> Object:
        return {"allocatable": found["capacity"], **found} if "capacity" in found else found

    return within(obj, "status", status)


def ingress_class(obj: Object) -> Object:
    return within(obj, "spec", lambda spec: within(spec, "parameters", lambda found: {"scope": "Cluster", **found}))


def api_service(obj: Object) -> Object:
    return within(obj, "spec", lambda spec: within(spec, "service", lambda found: {"port": 443, **found}))


ELSEWHERE = (namespace, node)
"""Defaults that are not of the spec."""
DEFAULTS: Mapping[str, Default] = {
    "ingressclasses.networking.k8s.io": ingress_class,
    "namespaces": namespace,
    "nodes": node,
    "apiservices.apiregistration.k8s.io": api_service,
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
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": mutating_webhooks,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": validating_webhooks,
    "limitranges": limit_range,
    "persistentvolumeclaims": claim,
    "persistentvolumes": persistent_volume,
    "rolebindings.rbac.authorization.k8s.io": role_binding,
    "clusterrolebindings.rbac.authorization.k8s.io": role_binding,
    "endpointslices.discovery.k8s.io": slice_,
    "priorityclasses.scheduling.k8s.io": priority_class,
    "storageclasses.storage.k8s.io": storage_class,
    "horizontalpodautoscalers.autoscaling": autoscaler,
    "endpoints": endpoints,
    "networkpolicies.networking.k8s.io": network_policy,
    "csidrivers.storage.k8s.io": csi_driver,
    "flowschemas.flowcontrol.apiserver.k8s.io": flow_schema,
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": priority_level,
    "resourceclaims.resource.k8s.io": resource_claim,
    "resourceclaimtemplates.resource.k8s.io": lambda obj: within(obj, "spec", resource_claim),
}
