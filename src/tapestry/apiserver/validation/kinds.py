"""The table of built-in kinds: what holds for a new object of each, for a changed one, and for its status.

`step` is validation as a step of the pipeline: it comes when an object is as it would be stored, and everything that is
wrong with it is reported together, as Kubernetes does.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tapestry.apiserver.customs.definitions import invalid_object
from tapestry.apiserver.customs.structural import Fault, first_faults
from tapestry.apiserver.rows import Row
from tapestry.apiserver.validation import (
    certificates,
    events,
    jobs,
    metadata,
    names,
    networking,
    pods,
    policies,
    rights,
    services,
    settings,
    sizes,
    storage,
    webhooks,
    workloads,
)
from tapestry.apiserver.validation.faults import Complaints, Rule, nothing_wrong, struct
from tapestry.apiserver.verbs import Request
from tapestry.kube.objects import Object, name_of
from tapestry.kube.resources import EVENTS

Change = Callable[[Object, Object], Iterator[Fault]]
"""What is wrong with an object that was another before: (old, new)."""


@dataclass(frozen=True, slots=True)
class Kind:
    made: Rule = nothing_wrong
    """Of a new object, and of a changed one where `changed` is not given."""
    changed: Change | None = None
    status: Change | None = None
    name: Complaints = names.subdomain


def of_spec(rule: Rule) -> Rule:
    """A rule for objects that is about their specs."""
    return lambda obj, _: rule(obj.get("spec") or {}, "spec")


def of_status(rule: Rule) -> Change:
    return lambda _, new: rule(new.get("status") or {}, "status")


def anything(_: Object, __: Object) -> Iterator[Fault]:
    """Of kinds that change as their writers please."""
    return iter(())


REPLICAS = ("readyReplicas", "availableReplicas")
DEPLOYED = workloads.counted(
    *("replicas", "updatedReplicas", *REPLICAS, "unavailableReplicas"),
    below=(*((each, "replicas") for each in ("updatedReplicas", *REPLICAS)), ("availableReplicas", "readyReplicas")),
)
REPLICATED = workloads.counted(
    *("replicas", "fullyLabeledReplicas", *REPLICAS),
    below=(
        *((each, "replicas") for each in ("fullyLabeledReplicas", *REPLICAS)),
        ("availableReplicas", "readyReplicas"),
    ),
)
STATEFUL = workloads.counted(
    *("replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"),
    below=tuple((each, "replicas") for each in ("readyReplicas", "currentReplicas", "updatedReplicas")),
)
DAEMONS = workloads.counted("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady")

KINDS: Mapping[str, Kind] = {
    "pods": Kind(pods.pod, pods.changed_pod, pods.changed_status),
    "podtemplates": Kind(struct(("template", pods.template))),
    "configmaps": Kind(settings.config_map, settings.changed_config_map),
    "secrets": Kind(settings.secret, settings.changed_secret),
    "namespaces": Kind(
        of_spec(struct(("finalizers", policies.namespace_finalizers))),
        anything,
        policies.changed_phase,
        names.label,
    ),
    "nodes": Kind(policies.node, policies.changed_node, policies.changed_node),
    "events": Kind(events.event, events.changed_event, name=names.path_segment),
    "services": Kind(of_spec(services.service), services.changed_service, services.changed_balancer, names.label_1035),
    "endpoints": Kind(services.endpoints),
    "endpointslices.discovery.k8s.io": Kind(services.endpoint_slice, services.changed_slice),
    "replicationcontrollers": Kind(of_spec(workloads.replication_controller), status=of_status(REPLICATED)),
    "deployments.apps": Kind(
        of_spec(workloads.deployment), workloads.with_fixed_selector(workloads.deployment), of_status(DEPLOYED)
    ),
    "replicasets.apps": Kind(
        of_spec(workloads.replica_set), workloads.with_fixed_selector(workloads.replica_set), of_status(REPLICATED)
    ),
    "statefulsets.apps": Kind(
        of_spec(workloads.stateful_set), workloads.changed_stateful_set, of_status(STATEFUL), names.label
    ),
    "daemonsets.apps": Kind(
        of_spec(workloads.daemon_set), workloads.with_fixed_selector(workloads.daemon_set), of_status(DAEMONS)
    ),
    "jobs.batch": Kind(jobs.job, jobs.changed_job),
    "cronjobs.batch": Kind(jobs.cron_job, lambda _, new: jobs.cron_spec(new["spec"], "spec")),
    "ingresses.networking.k8s.io": Kind(
        networking.ingress,
        lambda _, new: networking.ingress_spec(new["spec"], "spec"),
        networking.changed_ingress_status,
    ),
    "ingressclasses.networking.k8s.io": Kind(of_spec(networking.ingress_class), networking.changed_ingress_class),
    "networkpolicies.networking.k8s.io": Kind(of_spec(networking.network_policy)),
    "ipaddresses.networking.k8s.io": Kind(
        of_spec(networking.ip_address), networking.changed_ip_address, name=names.canonical_ip
    ),
    "servicecidrs.networking.k8s.io": Kind(of_spec(networking.service_cidr), networking.changed_service_cidr),
    "persistentvolumeclaims": Kind(of_spec(storage.claim_spec), storage.changed_claim),
    "persistentvolumes": Kind(of_spec(storage.volume_spec), storage.changed_volume),
    "storageclasses.storage.k8s.io": Kind(storage.storage_class, storage.changed_storage_class),
    "volumeattributesclasses.storage.k8s.io": Kind(storage.attributes_class, storage.changed_attributes_class),
    "volumeattachments.storage.k8s.io": Kind(of_spec(storage.attachment), storage.changed_attachment),
    "csidrivers.storage.k8s.io": Kind(of_spec(storage.driver), storage.changed_driver),
    "csinodes.storage.k8s.io": Kind(of_spec(storage.csi_node), storage.changed_csi_node),
    "csistoragecapacities.storage.k8s.io": Kind(storage.storage_capacity, storage.changed_capacity),
    "resourcequotas": Kind(of_spec(policies.quota), policies.changed_quota, of_status(policies.quota_status)),
    "limitranges": Kind(of_spec(policies.limit_range)),
    "poddisruptionbudgets.policy": Kind(of_spec(policies.disruption_budget), name=names.path_segment),
    "priorityclasses.scheduling.k8s.io": Kind(policies.priority_class, policies.changed_priority_class),
    "leases.coordination.k8s.io": Kind(of_spec(policies.lease)),
    "runtimeclasses.node.k8s.io": Kind(policies.runtime_class, policies.changed_runtime_class),
    "horizontalpodautoscalers.autoscaling": Kind(of_spec(policies.autoscaler)),
    "roles.rbac.authorization.k8s.io": Kind(rights.role, name=names.path_segment),
    "clusterroles.rbac.authorization.k8s.io": Kind(rights.cluster_role, name=names.path_segment),
    "rolebindings.rbac.authorization.k8s.io": Kind(
        rights.role_binding, rights.changed_binding(rights.role_binding), name=names.path_segment
    ),
    "clusterrolebindings.rbac.authorization.k8s.io": Kind(
        rights.cluster_role_binding, rights.changed_binding(rights.cluster_role_binding), name=names.path_segment
    ),
    "certificatesigningrequests.certificates.k8s.io": Kind(
        certificates.request, anything, certificates.signed, names.path_segment
    ),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": Kind(webhooks.mutating),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": Kind(webhooks.validating),
    "customresourcedefinitions.apiextensions.k8s.io": Kind(webhooks.conversion),
    "apiservices.apiregistration.k8s.io": Kind(name=names.path_segment),
}
APART = frozenset(
    {"apiextensions.k8s.io", "apiregistration.k8s.io", "admissionregistration.k8s.io", "coordination.k8s.io"}
)
"""Groups whose finalizers can be called anything, as those of custom resources."""
PLAIN = Kind()
"""Every other kind, custom resources among them: what is said of all metadata."""
WITHOUT_RULES = frozenset({"binding"})
"""Subresources whose handlers have checked all there is."""


async def step(request: Request, old: Object | None, new: Object | None) -> Object:
    if new is None:
        return old or {}
    target = request.target
    if target.row.is_custom and new["metadata"].get("finalizers"):
        request.warnings.extend(metadata.doubtful_finalizers(old, new))
    if faults := first_faults(faults_of(target.row, target.subresource, old, new)):
        resource = EVENTS if target.row.storage == EVENTS.name else target.row.resource
        raise invalid_object(resource, name_of(new), faults)
    return new


def faults_of(row: Row, subresource: str, old: Object | None, new: Object) -> Iterator[Fault]:
    """What keeps `new` from being stored in the place of `old`."""
    kind = KINDS.get(row.storage, PLAIN)
    is_core = not row.is_custom and row.resource.group not in APART
    if subresource in WITHOUT_RULES:
        return
    if old is None:
        yield from metadata.made(new["metadata"], kind.name, is_core=is_core)
        yield from kind.made(new, "")
        return
    yield from metadata.kept(new["metadata"], is_core=is_core)
    if subresource in ("", "scale"):
        yield from kind.changed(old, new) if kind.changed is not None else kind.made(new, "")
    elif subresource == "ephemeralcontainers":
        yield from pods.changed_ephemerals(old, new)
    elif subresource == "resize":
        yield from sizes.resized(old, new)
    elif subresource == "approval":
        yield from certificates.approved(old, new)
    elif subresource == "status" and kind.status is not None:
        yield from kind.status(old, new)
