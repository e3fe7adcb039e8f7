"""Table of default functions by kind, and the pipeline step that applies them."""

from collections.abc import Mapping

from tapestry.apiserver.core.requests import WriteRequest
from tapestry.apiserver.defaults import other_kinds, pods, workloads
from tapestry.apiserver.defaults.field_updates import Defaulter, with_field
from tapestry.kube.objects import Object


async def apply_defaults(request: WriteRequest, old: Object | None, new: Object) -> Object:
    default = DEFAULTS.get(request.target.info.storage)
    if default is None or (old is not None and default not in DEFAULTS_BEYOND_SPEC and is_same_spec(old, new)):
        return new
    return default(new)


def is_same_spec(old: Object, new: Object) -> bool:
    """Return whether a write changed only metadata and status."""
    return "spec" in new and all(new[key] is old.get(key) for key in new if key not in NON_SPEC_FIELDS)


NON_SPEC_FIELDS = ("apiVersion", "kind", "metadata", "status")
DEFAULTS_BEYOND_SPEC = (
    other_kinds.default_namespace,
    other_kinds.default_node,
    other_kinds.default_service,
    other_kinds.default_claim,
)
"""Functions that set defaults outside of the spec."""
DEFAULTS: Mapping[str, Defaulter] = {
    "ingressclasses.networking.k8s.io": other_kinds.default_ingress_class,
    "namespaces": other_kinds.default_namespace,
    "nodes": other_kinds.default_node,
    "apiservices.apiregistration.k8s.io": other_kinds.default_api_service,
    "pods": pods.default_pod,
    "podtemplates": lambda obj: with_field(obj, "template", pods.default_template),
    "replicationcontrollers": workloads.default_replication_controller,
    "deployments.apps": workloads.default_deployment,
    "replicasets.apps": workloads.default_replica_set,
    "statefulsets.apps": workloads.default_stateful_set,
    "daemonsets.apps": workloads.default_daemon_set,
    "jobs.batch": workloads.default_job,
    "cronjobs.batch": workloads.default_cron_job,
    "services": other_kinds.default_service,
    "secrets": other_kinds.default_secret,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": other_kinds.default_mutating_webhooks,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": other_kinds.default_validating_webhooks,
    "limitranges": other_kinds.default_limit_range,
    "persistentvolumeclaims": other_kinds.default_claim,
    "persistentvolumes": other_kinds.default_persistent_volume,
    "rolebindings.rbac.authorization.k8s.io": other_kinds.default_role_binding,
    "clusterrolebindings.rbac.authorization.k8s.io": other_kinds.default_role_binding,
    "endpointslices.discovery.k8s.io": other_kinds.default_endpoint_slice,
    "priorityclasses.scheduling.k8s.io": other_kinds.default_priority_class,
    "storageclasses.storage.k8s.io": other_kinds.default_storage_class,
    "horizontalpodautoscalers.autoscaling": other_kinds.default_autoscaler,
    "endpoints": other_kinds.default_endpoints,
    "networkpolicies.networking.k8s.io": other_kinds.default_network_policy,
    "csidrivers.storage.k8s.io": other_kinds.default_csi_driver,
    "flowschemas.flowcontrol.apiserver.k8s.io": other_kinds.default_flow_schema,
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": other_kinds.default_priority_level,
    "resourceclaims.resource.k8s.io": other_kinds.default_resource_claim,
    "resourceclaimtemplates.resource.k8s.io": lambda obj: with_field(obj, "spec", other_kinds.default_resource_claim),
}
