"""Kinds with little to fill in."""

from tapestry.apiserver.defaults.filling import each, within
from tapestry.kube.objects import Object

AFFINITY_SECONDS = 10800
DEFAULT_UTILIZATION = 80


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
