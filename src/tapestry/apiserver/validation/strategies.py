"""Validation strategies: the validators of each built-in kind for create, update and status update.

`validation_step` is the validation stage of a write. It runs on the object as it would be stored. All faults of an
object are reported together, as kube-apiserver does.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tapestry.apiserver.core import metadata, names
from tapestry.apiserver.core.faults import (
    Fault,
    FormatCheck,
    Validator,
    accept_any,
    first_faults,
    invalid_object,
    struct_validator,
)
from tapestry.apiserver.core.requests import CallOrigin, WriteRequest
from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.validation import (
    api_services,
    certificates,
    configmaps_secrets,
    events,
    jobs,
    networking,
    pod_resize,
    pods,
    policies,
    rbac,
    services,
    storage,
    webhooks,
    workloads,
)
from tapestry.kube.objects import Object, name_of
from tapestry.kube.resources import EVENTS, SERVICES

UpdateValidator = Callable[[Object, Object], Iterator[Fault]]
"""Function that yields the faults of an update from `old` to `new`."""


@dataclass(frozen=True, slots=True)
class ValidationStrategy:
    validate: Validator = accept_any
    """Validator for new objects, and for updated objects if `validate_update` is None."""
    validate_update: UpdateValidator | None = None
    validate_status_update: UpdateValidator | None = None
    name_check: FormatCheck = names.object_name_errors


def spec_validator(validator: Validator) -> Validator:
    """Return a validator for objects that validates only the spec."""
    return lambda obj, _: validator(obj.get("spec") or {}, "spec")


def status_validator(validator: Validator) -> UpdateValidator:
    return lambda _, new: validator(new.get("status") or {}, "status")


def accept_any_update(_: Object, __: Object) -> Iterator[Fault]:
    """Accept every update, for kinds whose fields are all mutable."""
    return iter(())


READY_COUNTERS = ("readyReplicas", "availableReplicas")
validate_deployment_status = workloads.counter_validator(
    *("replicas", "updatedReplicas", *READY_COUNTERS, "unavailableReplicas"),
    upper_bounds=(
        *((each, "replicas") for each in ("updatedReplicas", *READY_COUNTERS)),
        ("availableReplicas", "readyReplicas"),
    ),
)
validate_replica_set_status = workloads.counter_validator(
    *("replicas", "fullyLabeledReplicas", *READY_COUNTERS),
    upper_bounds=(
        *((each, "replicas") for each in ("fullyLabeledReplicas", *READY_COUNTERS)),
        ("availableReplicas", "readyReplicas"),
    ),
)
validate_stateful_set_status = workloads.counter_validator(
    *("replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"),
    upper_bounds=tuple((each, "replicas") for each in ("readyReplicas", "currentReplicas", "updatedReplicas")),
)
validate_daemon_set_status = workloads.counter_validator(
    "currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady"
)

STRATEGIES: Mapping[str, ValidationStrategy] = {
    "pods": ValidationStrategy(pods.validate_pod, pods.validate_pod_update, pods.validate_pod_status_update),
    "podtemplates": ValidationStrategy(struct_validator(("template", pods.validate_pod_template))),
    "configmaps": ValidationStrategy(
        configmaps_secrets.validate_config_map, configmaps_secrets.validate_config_map_update
    ),
    "secrets": ValidationStrategy(configmaps_secrets.validate_secret, configmaps_secrets.validate_secret_update),
    "namespaces": ValidationStrategy(
        spec_validator(struct_validator(("finalizers", policies.validate_namespace_finalizers))),
        accept_any_update,
        policies.validate_namespace_status_update,
        names.dns_label_errors,
    ),
    "nodes": ValidationStrategy(policies.validate_node, policies.validate_node_update, policies.validate_node_update),
    "events": ValidationStrategy(
        events.validate_event, events.validate_event_update, name_check=names.path_segment_errors
    ),
    "services": ValidationStrategy(
        spec_validator(services.validate_service_spec),
        services.validate_service_update,
        services.validate_service_status_update,
        names.dns_1035_label_errors,
    ),
    "endpoints": ValidationStrategy(services.validate_endpoints),
    "endpointslices.discovery.k8s.io": ValidationStrategy(
        services.validate_endpoint_slice, services.validate_endpoint_slice_update
    ),
    "replicationcontrollers": ValidationStrategy(
        spec_validator(workloads.validate_replication_controller_spec),
        validate_status_update=status_validator(validate_replica_set_status),
    ),
    "deployments.apps": ValidationStrategy(
        spec_validator(workloads.validate_deployment_spec),
        workloads.immutable_selector_validator(workloads.validate_deployment_spec),
        status_validator(validate_deployment_status),
    ),
    "replicasets.apps": ValidationStrategy(
        spec_validator(workloads.validate_replica_set_spec),
        workloads.immutable_selector_validator(workloads.validate_replica_set_spec),
        status_validator(validate_replica_set_status),
    ),
    "statefulsets.apps": ValidationStrategy(
        spec_validator(workloads.validate_stateful_set_spec),
        workloads.validate_stateful_set_update,
        status_validator(validate_stateful_set_status),
        names.dns_label_errors,
    ),
    "daemonsets.apps": ValidationStrategy(
        spec_validator(workloads.validate_daemon_set_spec),
        workloads.immutable_selector_validator(workloads.validate_daemon_set_spec),
        status_validator(validate_daemon_set_status),
    ),
    "jobs.batch": ValidationStrategy(jobs.validate_job, jobs.validate_job_update),
    "cronjobs.batch": ValidationStrategy(
        jobs.validate_cron_job, lambda _, new: jobs.validate_cron_job_spec(new["spec"], "spec")
    ),
    "ingresses.networking.k8s.io": ValidationStrategy(
        networking.validate_ingress,
        lambda _, new: networking.validate_ingress_spec(new["spec"], "spec"),
        networking.validate_ingress_status_update,
    ),
    "ingressclasses.networking.k8s.io": ValidationStrategy(
        spec_validator(networking.validate_ingress_class_spec), networking.validate_ingress_class_update
    ),
    "networkpolicies.networking.k8s.io": ValidationStrategy(spec_validator(networking.validate_network_policy_spec)),
    "ipaddresses.networking.k8s.io": ValidationStrategy(
        spec_validator(networking.validate_ip_address_spec),
        networking.validate_ip_address_update,
        name_check=names.canonical_ip_errors,
    ),
    "servicecidrs.networking.k8s.io": ValidationStrategy(
        spec_validator(networking.validate_service_cidr_spec), networking.validate_service_cidr_update
    ),
    "persistentvolumeclaims": ValidationStrategy(
        spec_validator(storage.validate_claim_spec), storage.validate_claim_update
    ),
    "persistentvolumes": ValidationStrategy(
        spec_validator(storage.validate_volume_spec), storage.validate_volume_update
    ),
    "storageclasses.storage.k8s.io": ValidationStrategy(
        storage.validate_storage_class, storage.validate_storage_class_update
    ),
    "volumeattributesclasses.storage.k8s.io": ValidationStrategy(
        storage.validate_volume_attributes_class, storage.validate_volume_attributes_class_update
    ),
    "volumeattachments.storage.k8s.io": ValidationStrategy(
        spec_validator(storage.validate_attachment_spec), storage.validate_attachment_update
    ),
    "csidrivers.storage.k8s.io": ValidationStrategy(
        spec_validator(storage.validate_csi_driver_spec), storage.validate_csi_driver_update
    ),
    "csinodes.storage.k8s.io": ValidationStrategy(
        spec_validator(storage.validate_csi_node_spec), storage.validate_csi_node_update
    ),
    "csistoragecapacities.storage.k8s.io": ValidationStrategy(
        storage.validate_storage_capacity, storage.validate_storage_capacity_update
    ),
    "resourcequotas": ValidationStrategy(
        spec_validator(policies.validate_quota_spec),
        policies.validate_quota_update,
        status_validator(policies.validate_quota_status),
    ),
    "limitranges": ValidationStrategy(spec_validator(policies.validate_limit_range_spec)),
    "poddisruptionbudgets.policy": ValidationStrategy(
        spec_validator(policies.validate_disruption_budget_spec), name_check=names.path_segment_errors
    ),
    "priorityclasses.scheduling.k8s.io": ValidationStrategy(
        policies.validate_priority_class, policies.validate_priority_class_update
    ),
    "leases.coordination.k8s.io": ValidationStrategy(spec_validator(policies.validate_lease_spec)),
    "runtimeclasses.node.k8s.io": ValidationStrategy(
        policies.validate_runtime_class, policies.validate_runtime_class_update
    ),
    "horizontalpodautoscalers.autoscaling": ValidationStrategy(spec_validator(policies.validate_autoscaler_spec)),
    "roles.rbac.authorization.k8s.io": ValidationStrategy(rbac.validate_role, name_check=names.path_segment_errors),
    "clusterroles.rbac.authorization.k8s.io": ValidationStrategy(
        rbac.validate_cluster_role, name_check=names.path_segment_errors
    ),
    "rolebindings.rbac.authorization.k8s.io": ValidationStrategy(
        rbac.validate_role_binding,
        rbac.binding_update_validator(rbac.validate_role_binding),
        name_check=names.path_segment_errors,
    ),
    "clusterrolebindings.rbac.authorization.k8s.io": ValidationStrategy(
        rbac.validate_cluster_role_binding,
        rbac.binding_update_validator(rbac.validate_cluster_role_binding),
        name_check=names.path_segment_errors,
    ),
    "certificatesigningrequests.certificates.k8s.io": ValidationStrategy(
        certificates.validate_signing_request,
        accept_any_update,
        certificates.validate_signing_request_status,
        names.path_segment_errors,
    ),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": ValidationStrategy(
        webhooks.validate_mutating_configuration
    ),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": ValidationStrategy(
        webhooks.validate_validating_configuration
    ),
    "customresourcedefinitions.apiextensions.k8s.io": ValidationStrategy(webhooks.validate_conversion),
    "apiservices.apiregistration.k8s.io": ValidationStrategy(
        api_services.validate_api_service,
        validate_status_update=api_services.validate_api_service_status,
        name_check=names.path_segment_errors,
    ),
}
GROUPS_WITH_FREE_FINALIZERS = frozenset(
    {"apiextensions.k8s.io", "apiregistration.k8s.io", "admissionregistration.k8s.io", "coordination.k8s.io"}
)
"""Groups whose finalizers need no domain prefix, like those of custom resources."""
DEFAULT_STRATEGY = ValidationStrategy()
"""Strategy of all other kinds, including custom resources: only metadata is validated."""
UNVALIDATED_SUBRESOURCES = frozenset({"binding"})
"""Subresources that their handlers validate completely."""


async def validation_step(request: WriteRequest, old: Object | None, new: Object) -> Object:
    target = request.target
    if target.info.is_custom and new["metadata"].get("finalizers"):
        request.warnings.extend(metadata.finalizer_warnings(old, new))
    if old is not None and target.info.storage == SERVICES.name and request.origin is CallOrigin.SYNCER:
        old = services.without_addresses(old)
    if faults := first_faults(object_faults(target.info, target.subresource, old, new)):
        resource = EVENTS if target.info.storage == EVENTS.name else target.info.resource
        raise invalid_object(resource, name_of(new), faults)
    return new


def object_faults(resource_info: ResourceInfo, subresource: str, old: Object | None, new: Object) -> Iterator[Fault]:
    """Yield the faults that prevent storing `new` in place of `old`."""
    rules = STRATEGIES.get(resource_info.storage, DEFAULT_STRATEGY)
    is_core = not resource_info.is_custom and resource_info.resource.group not in GROUPS_WITH_FREE_FINALIZERS
    if subresource in UNVALIDATED_SUBRESOURCES:
        return
    if old is None:
        yield from metadata.validate_new_metadata(new["metadata"], rules.name_check, is_core=is_core)
        yield from rules.validate(new, "")
        return
    yield from metadata.validate_metadata(new["metadata"], is_core=is_core)
    if subresource in ("", "scale"):
        yield from rules.validate_update(old, new) if rules.validate_update is not None else rules.validate(new, "")
    elif subresource == "ephemeralcontainers":
        yield from pods.validate_ephemeral_containers_update(old, new)
    elif subresource == "resize":
        yield from pod_resize.validate_pod_resize(old, new)
    elif subresource == "approval":
        yield from certificates.validate_approval_update(old, new)
    elif subresource == "status" and rules.validate_status_update is not None:
        yield from rules.validate_status_update(old, new)
