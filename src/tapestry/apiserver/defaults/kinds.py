"""Which kind gets which defaults, as a step of every write."""

from collections.abc import Mapping

from tapestry.apiserver.defaults import others, pods, workloads
from tapestry.apiserver.defaults.filling import Default, within
from tapestry.apiserver.verbs import Request
from tapestry.kube.objects import Object


async def step(request: Request, old: Object | None, new: Object | None) -> Object:
    """A step of the pipeline."""
    if new is None:
        return old or {}
    default = DEFAULTS.get(request.target.row.storage)
    if default is None or (old is not None and default not in ELSEWHERE and is_same_spec(old, new)):
        return new
    return default(new)


def is_same_spec(old: Object, new: Object) -> bool:
    """Whether a write left everything alone but metadata and status."""
    return "spec" in new and all(new[key] is old.get(key) for key in new if key not in BESIDE)


BESIDE = ("apiVersion", "kind", "metadata", "status")
ELSEWHERE = (others.namespace, others.node, others.service, others.claim)
"""Defaults that are not of the spec alone."""
DEFAULTS: Mapping[str, Default] = {
    "ingressclasses.networking.k8s.io": others.ingress_class,
    "namespaces": others.namespace,
    "nodes": others.node,
    "apiservices.apiregistration.k8s.io": others.api_service,
    "pods": pods.pod,
    "podtemplates": lambda obj: within(obj, "template", pods.template),
    "replicationcontrollers": workloads.replication_controller,
    "deployments.apps": workloads.deployment,
    "replicasets.apps": workloads.replica_set,
    "statefulsets.apps": workloads.stateful_set,
    "daemonsets.apps": workloads.daemon_set,
    "jobs.batch": workloads.job,
    "cronjobs.batch": workloads.cron_job,
    "services": others.service,
    "secrets": others.secret,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": others.mutating_webhooks,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": others.validating_webhooks,
    "limitranges": others.limit_range,
    "persistentvolumeclaims": others.claim,
    "persistentvolumes": others.persistent_volume,
    "rolebindings.rbac.authorization.k8s.io": others.role_binding,
    "clusterrolebindings.rbac.authorization.k8s.io": others.role_binding,
    "endpointslices.discovery.k8s.io": others.slice_,
    "priorityclasses.scheduling.k8s.io": others.priority_class,
    "storageclasses.storage.k8s.io": others.storage_class,
    "horizontalpodautoscalers.autoscaling": others.autoscaler,
    "endpoints": others.endpoints,
    "networkpolicies.networking.k8s.io": others.network_policy,
    "csidrivers.storage.k8s.io": others.csi_driver,
    "flowschemas.flowcontrol.apiserver.k8s.io": others.flow_schema,
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": others.priority_level,
    "resourceclaims.resource.k8s.io": others.resource_claim,
    "resourceclaimtemplates.resource.k8s.io": lambda obj: within(obj, "spec", others.resource_claim),
}
