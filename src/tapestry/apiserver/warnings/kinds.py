"""Warnings by kind about deprecated, ignored or ambiguous fields, in the wording of Kubernetes.

They are given when an object is created and when its spec changes. Status writes are frequent, so only the addresses in
some of them are checked.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice

from tapestry.apiserver.core.names import IS_SHORT_LABEL, dns_label_errors
from tapestry.apiserver.core.requests import WriteRequest
from tapestry.apiserver.warnings.addresses import cidr_warnings, ip_warnings
from tapestry.apiserver.warnings.pods import (
    DEPRECATED_NODE_LABELS,
    DEPRECATED_VOLUMES,
    DISPLAY_NAMES,
    MAX_WARNINGS,
    claim_spec_warnings,
    node_term_warnings,
    template_warnings,
)
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of, value_at

WarningRule = Callable[[Object, Object | None], Iterator[str]]
"""Yield warnings about an object, given the new and the old version."""

DNS_LABEL_RECOMMENDED = "which can result in surprising behavior; a DNS label is recommended"
STORAGE_CLASS_ANNOTATION, MOUNT_OPTIONS_ANNOTATION = (
    "volume.beta.kubernetes.io/storage-class",
    "volume.beta.kubernetes.io/mount-options",
)
USE_STORAGE_CLASS, USE_MOUNT_OPTIONS = (
    f'use "{field}" attribute instead' for field in ("storageClassName", "mountOptions")
)
TOPOLOGY_HINTS, TOPOLOGY_MODE = "service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"
INGRESS_CLASS = "kubernetes.io/ingress.class"
RECYCLE_DEPRECATED = (
    "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning."
)
NEGATIVE_HISTORY_LIMIT = "a negative value retains all historical revisions; a value >= 0 is recommended"
USE_TIME_ZONE = (
    "use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
)
TOO_MANY_INDEXES = (
    "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes "
    "might not be able to track completedIndexes when a big number of indexes fail"
)
PODS_PRESERVED = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)
MANAGED_BY = ("endpoints.kubernetes.io/managed-by", "endpointslice.kubernetes.io/managed-by")


async def add_warnings(request: WriteRequest, old: Object | None, new: Object) -> Object:
    """Add warnings about a write to the request."""
    if (rule := WARNING_RULES.get((request.target.info.storage, request.target.subresource))) is not None:
        request.warnings.extend(islice(rule(new, old), MAX_WARNINGS))
    return new


async def add_delete_warnings(request: WriteRequest, _: Object) -> None:
    if request.target.info.storage == "jobs.batch" and not has_propagation_policy(request):
        request.warnings.append(PODS_PRESERVED)


def has_propagation_policy(request: WriteRequest) -> bool:
    """Return whether a deletion specifies what happens to dependents."""
    body = request.decoded_body if isinstance(request.decoded_body, dict) else {}
    return any(
        field in options for field in ("propagationPolicy", "orphanDependents") for options in (request.query, body)
    )


# -- pods and pod templates


def pod_warnings(new: Object, old: Object | None) -> Iterator[str]:
    if old is not None:  # pod updates are frequent and mostly automatic
        return iter(())
    return chain(name_warnings(new, "the Pod's hostname"), template_warnings("", new))


def template_rule(*steps: str, is_named: bool = True) -> WarningRule:
    """Warnings about the pod template at a path. `is_named` means that pods get the name of the object."""
    prefix = "".join(f"{each}." for each in steps)

    def warnings(new: Object, old: Object | None) -> Iterator[str]:
        if old is None and is_named:
            yield from name_warnings(new, "Pod names and hostnames")
        if old is None or new["metadata"].get("generation") != old["metadata"].get("generation"):
            yield from template_warnings(prefix, value_at(new, *steps, default={}))

    return warnings


def name_warnings(obj: Object, use: str) -> Sequence[str]:
    name = name_of(obj)
    if IS_SHORT_LABEL.fullmatch(name):
        return ()
    errors = dns_label_errors(name)
    return [f"metadata.name: this is used in {use}, {DNS_LABEL_RECOMMENDED}: [{' '.join(errors)}]"] if errors else ()


def stateful_set_warnings(new: Object, old: Object | None) -> Iterator[str]:
    yield from template_rule("spec", "template", is_named=False)(new, old)
    for number, claim in enumerate(value_at(new, "spec", "volumeClaimTemplates", default=[])):
        path = f"spec.volumeClaimTemplates[{number}]" + ("" if old is None else ".Spec")
        yield from claim_spec_warnings(path, claim.get("spec") or {})
    if value_at(new, "spec", "revisionHistoryLimit", default=0) < 0:
        yield f"spec.revisionHistoryLimit: {NEGATIVE_HISTORY_LIMIT}"


def job_warnings(new: Object, old: Object | None) -> Iterator[str]:
    yield from index_warnings("spec", new.get("spec") or {})
    yield from template_rule("spec", "template")(new, old)


def cron_job_warnings(new: Object, old: Object | None) -> Iterator[str]:
    yield from index_warnings("spec.jobTemplate.spec", value_at(new, "spec", "jobTemplate", "spec", default={}))
    yield from template_rule("spec", "jobTemplate", "spec", "template")(new, old)
    if old is not None and "TZ" in value_at(new, "spec", "schedule", default=""):
        yield f"cannot use TZ or CRON_TZ in spec.spec.schedule, {USE_TIME_ZONE}"


def index_warnings(field_path: str, spec: Object) -> Iterator[str]:
    is_large = spec.get("completions", 0) > 100_000 and spec.get("parallelism", 0) > 10_000
    if is_large and spec.get("completionMode") == "Indexed":
        yield f"{field_path}: {TOO_MANY_INDEXES}"


# -- networks


def service_warnings(new: Object, _: Object | None) -> Iterator[str]:
    spec = new.get("spec") or {}
    kind, external = spec.get("type"), spec.get("externalIPs") or []
    if TOPOLOGY_HINTS in annotations_of(new):
        yield f"annotation {TOPOLOGY_HINTS} is deprecated, please use {TOPOLOGY_MODE} instead"
    if spec.get("clusterIP", "None") not in ("", "None"):
        yield from ip_list_warnings("spec.clusterIPs", spec.get("clusterIPs"))
    elif kind == "ClusterIP":
        ignored = [field for field in ("loadBalancerIP", "externalIPs") if spec.get(field)]
        ignored += ["SessionAffinity"] if spec.get("sessionAffinity") != "None" else []
        yield from (f"spec.{field} is ignored for headless services" for field in ignored)
    yield from ip_list_warnings("spec.externalIPs", external)
    if spec.get("loadBalancerIP"):
        yield from ip_warnings("spec.loadBalancerIP", spec["loadBalancerIP"])
    yield from cidr_list_warnings("spec.loadBalancerSourceRanges", spec.get("loadBalancerSourceRanges"))
    if kind == "ExternalName" and external:
        yield 'spec.externalIPs is ignored when spec.type is "ExternalName"'
    if kind != "ExternalName" and spec.get("externalName"):
        yield 'spec.externalName is ignored when spec.type is not "ExternalName"'


def ip_list_warnings(field_path: str, values: list[str] | None) -> Iterator[str]:
    for number, each in enumerate(values or ()):
        yield from ip_warnings(f"{field_path}[{number}]", each)


def cidr_list_warnings(field_path: str, values: list[str] | None) -> Iterator[str]:
    for number, each in enumerate(values or ()):
        yield from cidr_warnings(f"{field_path}[{number}]", each)


def load_balancer_warnings(new: Object, _: Object | None) -> Iterator[str]:
    """Warnings about the ingress addresses of a load balancer."""
    for number, each in enumerate(value_at(new, "status", "loadBalancer", "ingress", default=[])):
        if each.get("ip"):
            yield from ip_warnings(f"status.loadBalancer.ingress[{number}]", each["ip"])


def ingress_warnings(new: Object, old: Object | None) -> Iterator[str]:
    if old is None and INGRESS_CLASS in annotations_of(new) and not value_at(new, "spec", "ingressClassName"):
        yield f"annotation \"{INGRESS_CLASS}\" is deprecated, please use 'spec.ingressClassName' instead"


def network_policy_warnings(new: Object, _: Object | None) -> Iterator[str]:
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for number, rule in enumerate(value_at(new, "spec", direction, default=[])):
            for index, peer in enumerate(rule.get(peers) or ()):
                if block := peer.get("ipBlock"):
                    path = f"spec.{direction}[{number}].{peers}[{index}].ipBlock"
                    yield from cidr_warnings(f"{path}.cidr", block.get("cidr", ""))
                    yield from cidr_list_warnings(f"{path}.except", block.get("except"))


def endpoints_warnings(new: Object, _: Object | None) -> Iterator[str]:
    if is_managed_by_controller(new):
        return
    for number, subset in enumerate(new.get("subsets") or ()):
        for field in ("addresses", "notReadyAddresses"):
            for index, each in enumerate(subset.get(field) or ()):
                yield from ip_warnings(f"subsets[{number}].{field}[{index}].ip", each.get("ip", ""))


def endpoint_slice_warnings(new: Object, old: Object | None) -> Iterator[str]:
    if new.get("addressType") == "FQDN":
        if old is None:
            yield "spec.addressType: FQDN endpoints are deprecated"
        return
    if not is_managed_by_controller(new):
        for number, each in enumerate(new.get("endpoints") or ()):
            yield from ip_list_warnings(f"endpoints[{number}].addresses", each.get("addresses"))


def is_managed_by_controller(obj: Object) -> bool:
    """Controllers write canonical addresses."""
    return any(each in labels_of(obj) for each in MANAGED_BY)


# -- storage and nodes


def persistent_volume_warnings(new: Object, _: Object | None) -> Iterator[str]:
    spec, annotations = new.get("spec") or {}, annotations_of(new)
    if STORAGE_CLASS_ANNOTATION in annotations:
        yield f"metadata.annotations[{STORAGE_CLASS_ANNOTATION}]: deprecated since v1.8; {USE_STORAGE_CLASS}"
    if MOUNT_OPTIONS_ANNOTATION in annotations:
        yield f"metadata.annotations[{MOUNT_OPTIONS_ANNOTATION}]: deprecated since v1.31; {USE_MOUNT_OPTIONS}"
    if spec.get("persistentVolumeReclaimPolicy") == "Recycle":
        yield f"spec.persistentVolumeReclaimPolicy: {RECYCLE_DEPRECATED}"
    for number, term in enumerate(value_at(spec, "nodeAffinity", "required", "nodeSelectorTerms", default=[])):
        yield from node_term_warnings(f"spec.nodeAffinity.required.nodeSelectorTerms[{number}]", term)
    for kind in DEPRECATED_VOLUMES.keys() & spec.keys():
        yield f"spec.{DISPLAY_NAMES.get(kind, kind)}: {DEPRECATED_VOLUMES[kind]}"


def claim_warnings(new: Object, _: Object | None) -> Iterator[str]:
    if STORAGE_CLASS_ANNOTATION in annotations_of(new):
        yield f"metadata.annotations[{STORAGE_CLASS_ANNOTATION}]: deprecated since v1.8; {USE_STORAGE_CLASS}"
    yield from claim_spec_warnings("spec", new.get("spec") or {})


def storage_class_warnings(new: Object, _: Object | None) -> Iterator[str]:
    for number, topology in enumerate(new.get("allowedTopologies") or ()):
        for index, each in enumerate(topology.get("matchLabelExpressions") or ()):
            if (key := each.get("key")) in DEPRECATED_NODE_LABELS:
                yield f"allowedTopologies[{number}].matchLabelExpressions[{index}].key: {DEPRECATED_NODE_LABELS[key]}"


def storage_capacity_warnings(new: Object, _: Object | None) -> Iterator[str]:
    topology = new.get("nodeTopology") or {}
    yield from node_term_warnings("nodeTopology", topology)
    for key in (topology.get("matchLabels") or {}).keys() & DEPRECATED_NODE_LABELS.keys():
        yield f"nodeTopology.matchLabels.{key}: {DEPRECATED_NODE_LABELS[key]}"


def runtime_class_warnings(new: Object, _: Object | None) -> Iterator[str]:
    for key in value_at(new, "scheduling", "nodeSelector", default={}).keys() & DEPRECATED_NODE_LABELS.keys():
        yield f"scheduling.nodeSelector: {DEPRECATED_NODE_LABELS[key]}"


def node_warnings(new: Object, _: Object | None) -> Iterator[str]:
    spec = new.get("spec") or {}
    if spec.get("configSource") is not None:
        yield "spec.configSource: the feature is removed"
    if spec.get("externalID"):
        yield "spec.externalID: this field is deprecated, and is unused by Kubernetes"
    yield from cidr_list_warnings("spec.podCIDRs", spec.get("podCIDRs"))


WARNING_RULES: Mapping[tuple[str, str], WarningRule] = {
    ("pods", ""): pod_warnings,
    ("podtemplates", ""): template_rule("template", is_named=False),
    ("replicationcontrollers", ""): template_rule("spec", "template"),
    ("replicasets.apps", ""): template_rule("spec", "template"),
    ("deployments.apps", ""): template_rule("spec", "template"),
    ("daemonsets.apps", ""): template_rule("spec", "template", is_named=False),
    ("statefulsets.apps", ""): stateful_set_warnings,
    ("jobs.batch", ""): job_warnings,
    ("cronjobs.batch", ""): cron_job_warnings,
    ("services", ""): service_warnings,
    ("services", "status"): load_balancer_warnings,
    ("ingresses.networking.k8s.io", ""): ingress_warnings,
    ("ingresses.networking.k8s.io", "status"): load_balancer_warnings,
    ("networkpolicies.networking.k8s.io", ""): network_policy_warnings,
    ("endpoints", ""): endpoints_warnings,
    ("endpointslices.discovery.k8s.io", ""): endpoint_slice_warnings,
    ("persistentvolumes", ""): persistent_volume_warnings,
    ("persistentvolumeclaims", ""): claim_warnings,
    ("storageclasses.storage.k8s.io", ""): storage_class_warnings,
    ("csistoragecapacities.storage.k8s.io", ""): storage_capacity_warnings,
    ("runtimeclasses.node.k8s.io", ""): runtime_class_warnings,
    ("nodes", ""): node_warnings,
}
