"""Kinds with little to fill in."""

from tapestry.apiserver.defaults.field_updates import map_items, with_field
from tapestry.kube.objects import Object

AFFINITY_SECONDS = 10800
DEFAULT_UTILIZATION = 80


def default_service(obj: Object) -> Object:
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
        return with_field(found, "ports", map_items(default_service_port))

    found = with_field(obj, "spec", spec)
    if found.get("spec", {}).get("type") != "LoadBalancer":
        return found
    return with_field(found, "status", lambda status: with_field(status, "loadBalancer", default_load_balancer))


def default_load_balancer(obj: Object) -> Object:
    return with_field(obj, "ingress", map_items(lambda one: {"ipMode": "VIP", **one} if one.get("ip") else one))


def default_service_port(obj: Object) -> Object:
    return {"protocol": "TCP", **obj, "targetPort": obj.get("targetPort") or obj.get("port")}  # Go says 0 for nothing


def default_claim(obj: Object) -> Object:
    found = with_field(obj, "spec", lambda spec: {"volumeMode": "Filesystem", **spec})
    return {**found, "status": {"phase": "Pending", **(found.get("status") or {})}}


def default_persistent_volume(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        found = {"persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem", **found}
        return with_field(found, "hostPath", lambda path: {"type": "", **path})

    return with_field(obj, "spec", spec)


def default_role_binding(obj: Object) -> Object:
    group = "rbac.authorization.k8s.io"

    def subject(found: Object) -> Object:
        return found if found.get("kind") == "ServiceAccount" else {"apiGroup": group, **found}

    found = with_field(obj, "roleRef", lambda reference: {**reference, "apiGroup": reference.get("apiGroup") or group})
    return with_field(found, "subjects", map_items(subject))


def default_endpoint_slice(obj: Object) -> Object:
    return with_field(obj, "ports", map_items(lambda port: {"name": "", "protocol": "TCP", **port}))


def default_priority_class(obj: Object) -> Object:
    return {"preemptionPolicy": "PreemptLowerPriority", **obj}


def default_storage_class(obj: Object) -> Object:
    return {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", **obj}


def default_limit_range(obj: Object) -> Object:
    return with_field(obj, "spec", lambda spec: with_field(spec, "limits", map_items(default_limit)))


def default_limit(obj: Object) -> Object:
    """What containers may have at most is what they get, and ask for, where nothing else is said."""
    if obj.get("type") != "Container":
        return obj
    most = {**(obj.get("max") or {}), **(obj.get("default") or {})}
    asked = {**(obj.get("min") or {}), **most, **(obj.get("defaultRequest") or {})}
    return {**obj, **({"default": most} if most else {}), **({"defaultRequest": asked} if asked else {})}


def default_mutating_webhooks(obj: Object) -> Object:
    return with_field(obj, "webhooks", map_items(lambda hook: {"reinvocationPolicy": "Never", **default_webhook(hook)}))


def default_validating_webhooks(obj: Object) -> Object:
    return with_field(obj, "webhooks", map_items(default_webhook))


def default_webhook(obj: Object) -> Object:
    found = {
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "timeoutSeconds": 10,
        **obj,
    }
    found = with_field(found, "rules", map_items(lambda rule: {"scope": "*", **rule}))
    return with_field(found, "clientConfig", default_webhook_client)


def default_webhook_client(obj: Object) -> Object:
    return with_field(obj, "service", lambda service: {"port": 443, **service})


def default_secret(obj: Object) -> Object:
    return {"type": "Opaque", **obj}


def default_autoscaler(obj: Object) -> Object:
    """In either version."""
    if obj["apiVersion"] == "autoscaling/v1":
        return with_field(obj, "spec", lambda spec: {"minReplicas": 1, **spec})
    target = {"type": "Utilization", "averageUtilization": DEFAULT_UTILIZATION}
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    return with_field(obj, "spec", lambda spec: {"minReplicas": 1, **spec, "metrics": spec.get("metrics") or [metric]})


def default_endpoints(obj: Object) -> Object:
    def subset(found: Object) -> Object:
        return with_field(found, "ports", map_items(lambda port: {"protocol": "TCP", **port}))

    return with_field(obj, "subsets", map_items(subset))


def default_network_policy(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        for field in ("ingress", "egress"):
            found = with_field(
                found, field, map_items(lambda rule: with_field(rule, "ports", map_items(default_policy_port)))
            )
        types = ["Ingress", "Egress"] if found.get("egress") else ["Ingress"]
        return {**found, "policyTypes": found.get("policyTypes") or types}

    return with_field(obj, "spec", spec)


def default_policy_port(obj: Object) -> Object:
    return {"protocol": "TCP", **obj}


def default_csi_driver(obj: Object) -> Object:
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

    return with_field(obj, "spec", spec)


def default_flow_schema(obj: Object) -> Object:
    return with_field(obj, "spec", lambda spec: {"matchingPrecedence": 1000, **spec})


def default_priority_level(obj: Object) -> Object:
    def limited(found: Object) -> Object:
        found = {"nominalConcurrencyShares": 30, "lendablePercent": 0, **found}
        return with_field(found, "limitResponse", lambda response: with_field(response, "queuing", default_queuing))

    def spec(found: Object) -> Object:
        if found.get("type") == "Exempt":
            return {
                **found,
                "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0, **(found.get("exempt") or {})},
            }
        return with_field(found, "limited", limited)

    return with_field(obj, "spec", spec)


def default_queuing(obj: Object) -> Object:
    return {"queues": 64, "handSize": 8, "queueLengthLimit": 50, **obj}


def default_resource_claim(obj: Object) -> Object:
    return with_field(obj, "spec", default_claim_devices)


def default_claim_devices(spec: Object) -> Object:
    """A request that says neither how many devices nor which is for one."""

    def exact(found: Object) -> Object:
        found = {"allocationMode": "ExactCount", **found}
        return {"count": 1, **found} if found["allocationMode"] == "ExactCount" else found

    def request(found: Object) -> Object:
        return with_field(with_field(found, "exactly", exact), "firstAvailable", map_items(exact))

    return with_field(spec, "devices", lambda devices: with_field(devices, "requests", map_items(request)))


def default_namespace(obj: Object) -> Object:
    labels = {**(obj["metadata"].get("labels") or {}), "kubernetes.io/metadata.name": obj["metadata"]["name"]}
    return {**obj, "metadata": {**obj["metadata"], "labels": labels}}


def default_node(obj: Object) -> Object:
    def status(found: Object) -> Object:
        return {"allocatable": found["capacity"], **found} if "capacity" in found else found

    return with_field(obj, "status", status)


def default_ingress_class(obj: Object) -> Object:
    return with_field(
        obj, "spec", lambda spec: with_field(spec, "parameters", lambda found: {"scope": "Cluster", **found})
    )


def default_api_service(obj: Object) -> Object:
    return with_field(obj, "spec", lambda spec: with_field(spec, "service", lambda found: {"port": 443, **found}))
