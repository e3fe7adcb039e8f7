"""Defaults of kinds with few default values."""

from tapestry.apiserver.defaults.field_updates import map_items, with_field
from tapestry.kube.autoscalers import DEFAULT_UTILIZATION, cpu_metric, default_behavior
from tapestry.kube.objects import Object

AFFINITY_SECONDS = 10800


def default_service(obj: Object) -> Object:
    def default_spec(spec: Object) -> Object:
        spec = {"type": "ClusterIP", "sessionAffinity": "None", **spec}
        is_external = spec["type"] in ("NodePort", "LoadBalancer")
        if is_external or (spec["type"] == "ClusterIP" and spec.get("externalIPs")):
            spec = {"externalTrafficPolicy": "Cluster", **spec}
        if spec["type"] == "LoadBalancer":
            spec = {"allocateLoadBalancerNodePorts": True, **spec}
        if spec["sessionAffinity"] == "ClientIP":
            spec = {"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}}, **spec}
        if spec["type"] != "ExternalName":
            spec = {"internalTrafficPolicy": "Cluster", **spec}
        return with_field(spec, "ports", map_items(default_service_port))

    service = with_field(obj, "spec", default_spec)
    if service.get("spec", {}).get("type") != "LoadBalancer":
        return service
    return with_field(service, "status", lambda status: with_field(status, "loadBalancer", default_load_balancer))


def default_load_balancer(obj: Object) -> Object:
    return with_field(obj, "ingress", map_items(lambda item: {"ipMode": "VIP", **item} if item.get("ip") else item))


def default_service_port(obj: Object) -> Object:
    return {"protocol": "TCP", **obj, "targetPort": obj.get("targetPort") or obj.get("port")}  # Go sends 0 if unset


def default_claim(obj: Object) -> Object:
    claim = with_field(obj, "spec", lambda spec: {"volumeMode": "Filesystem", **spec})
    return {**claim, "status": {"phase": "Pending", **(claim.get("status") or {})}}


def default_persistent_volume(obj: Object) -> Object:
    def default_spec(spec: Object) -> Object:
        spec = {"persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem", **spec}
        return with_field(spec, "hostPath", lambda path: {"type": "", **path})

    return with_field(obj, "spec", default_spec)


def default_role_binding(obj: Object) -> Object:
    group = "rbac.authorization.k8s.io"

    def default_subject(subject: Object) -> Object:
        return subject if subject.get("kind") == "ServiceAccount" else {"apiGroup": group, **subject}

    binding = with_field(obj, "roleRef", lambda role: {**role, "apiGroup": role.get("apiGroup") or group})
    return with_field(binding, "subjects", map_items(default_subject))


def default_endpoint_slice(obj: Object) -> Object:
    return with_field(obj, "ports", map_items(lambda port: {"name": "", "protocol": "TCP", **port}))


def default_priority_class(obj: Object) -> Object:
    return {"preemptionPolicy": "PreemptLowerPriority", **obj}


def default_storage_class(obj: Object) -> Object:
    return {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", **obj}


def default_limit_range(obj: Object) -> Object:
    return with_field(obj, "spec", lambda spec: with_field(spec, "limits", map_items(default_limit)))


def default_limit(obj: Object) -> Object:
    """The limits of containers default to the maximum, the requests to the limits."""
    if obj.get("type") != "Container":
        return obj
    limits = {**(obj.get("max") or {}), **(obj.get("default") or {})}
    requests = {**(obj.get("min") or {}), **limits, **(obj.get("defaultRequest") or {})}
    return {**obj, **({"default": limits} if limits else {}), **({"defaultRequest": requests} if requests else {})}


def default_mutating_webhooks(obj: Object) -> Object:
    return with_field(obj, "webhooks", map_items(lambda item: {"reinvocationPolicy": "Never", **default_webhook(item)}))


def default_validating_webhooks(obj: Object) -> Object:
    return with_field(obj, "webhooks", map_items(default_webhook))


def default_webhook(obj: Object) -> Object:
    webhook = {
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "timeoutSeconds": 10,
        **obj,
    }
    webhook = with_field(webhook, "rules", map_items(lambda rule: {"scope": "*", **rule}))
    return with_field(webhook, "clientConfig", default_webhook_client)


def default_webhook_client(obj: Object) -> Object:
    return with_field(obj, "service", lambda service: {"port": 443, **service})


def default_secret(obj: Object) -> Object:
    return {"type": "Opaque", **obj}


def default_autoscaler(obj: Object) -> Object:
    """Both versions are supported."""
    if obj["apiVersion"] == "autoscaling/v1":
        return with_field(obj, "spec", lambda spec: {"minReplicas": 1, **spec})

    def default_spec(spec: Object) -> Object:
        spec = {"minReplicas": 1, **spec, "metrics": spec.get("metrics") or [cpu_metric(DEFAULT_UTILIZATION)]}
        return with_field(spec, "behavior", default_behavior)

    return with_field(obj, "spec", default_spec)


def default_endpoints(obj: Object) -> Object:
    def default_subset(subset: Object) -> Object:
        return with_field(subset, "ports", map_items(lambda port: {"protocol": "TCP", **port}))

    return with_field(obj, "subsets", map_items(default_subset))


def default_network_policy(obj: Object) -> Object:
    def default_spec(spec: Object) -> Object:
        for field in ("ingress", "egress"):
            spec = with_field(
                spec, field, map_items(lambda rule: with_field(rule, "ports", map_items(default_policy_port)))
            )
        types = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
        return {**spec, "policyTypes": spec.get("policyTypes") or types}

    return with_field(obj, "spec", default_spec)


def default_policy_port(obj: Object) -> Object:
    return {"protocol": "TCP", **obj}


def default_csi_driver(obj: Object) -> Object:
    def default_spec(spec: Object) -> Object:
        return {
            "attachRequired": True,
            "podInfoOnMount": False,
            "storageCapacity": False,
            "fsGroupPolicy": "ReadWriteOnceWithFSType",
            "requiresRepublish": False,
            "seLinuxMount": False,
            "volumeLifecycleModes": ["Persistent"],
            **spec,
        }

    return with_field(obj, "spec", default_spec)


def default_flow_schema(obj: Object) -> Object:
    return with_field(obj, "spec", lambda spec: {"matchingPrecedence": 1000, **spec})


def default_priority_level(obj: Object) -> Object:
    def default_limited(limited: Object) -> Object:
        limited = {"nominalConcurrencyShares": 30, "lendablePercent": 0, **limited}
        return with_field(limited, "limitResponse", lambda response: with_field(response, "queuing", default_queuing))

    def default_spec(spec: Object) -> Object:
        if spec.get("type") == "Exempt":
            return {
                **spec,
                "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0, **(spec.get("exempt") or {})},
            }
        return with_field(spec, "limited", default_limited)

    return with_field(obj, "spec", default_spec)


def default_queuing(obj: Object) -> Object:
    return {"queues": 64, "handSize": 8, "queueLengthLimit": 50, **obj}


def default_resource_claim(obj: Object) -> Object:
    return with_field(obj, "spec", default_claim_devices)


def default_claim_devices(spec: Object) -> Object:
    """A request for devices defaults to one device."""

    def default_exact(exact: Object) -> Object:
        exact = {"allocationMode": "ExactCount", **exact}
        return {"count": 1, **exact} if exact["allocationMode"] == "ExactCount" else exact

    def default_request(request: Object) -> Object:
        return with_field(with_field(request, "exactly", default_exact), "firstAvailable", map_items(default_exact))

    return with_field(spec, "devices", lambda devices: with_field(devices, "requests", map_items(default_request)))


def default_namespace(obj: Object) -> Object:
    labels = {**(obj["metadata"].get("labels") or {}), "kubernetes.io/metadata.name": obj["metadata"]["name"]}
    return {**obj, "metadata": {**obj["metadata"], "labels": labels}}


def default_node(obj: Object) -> Object:
    def default_status(status: Object) -> Object:
        return {"allocatable": status["capacity"], **status} if "capacity" in status else status

    return with_field(obj, "status", default_status)


def default_ingress_class(obj: Object) -> Object:
    return with_field(
        obj, "spec", lambda spec: with_field(spec, "parameters", lambda parameters: {"scope": "Cluster", **parameters})
    )


def default_api_service(obj: Object) -> Object:
    return with_field(obj, "spec", lambda spec: with_field(spec, "service", lambda service: {"port": 443, **service}))
