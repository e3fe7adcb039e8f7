"""Advice by kind: what is deprecated, means nothing where it is, or hides something else, in Kubernetes' words.

It is given when an object is made, and when what is wanted of it changes; writes of a status say little and often, so
only the addresses in some of them are looked at.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice

from tapestry.apiserver.advice.addresses import cidr_advice, ip_advice
from tapestry.apiserver.advice.pods import (
    MOST_ADVICE,
    NODE_LABELS,
    SHOWN_AS,
    VOLUMES,
    claim_advice,
    node_term_advice,
    pod_advice,
)
from tapestry.apiserver.validation.names import label
from tapestry.apiserver.verbs import Request
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of, value_at

Advice = Callable[[Object, Object | None], Iterator[str]]
"""Of an object, and of what it was before."""

SURPRISING = "which can result in surprising behavior; a DNS label is recommended"
OLD_CLASS, OLD_MOUNTS = "volume.beta.kubernetes.io/storage-class", "volume.beta.kubernetes.io/mount-options"
USE_CLASS, USE_MOUNTS = (f'use "{field}" attribute instead' for field in ("storageClassName", "mountOptions"))
HINTS, MODE = "service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"
INGRESS_CLASS = "kubernetes.io/ingress.class"
RECYCLE = "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning."
HISTORY = "a negative value retains all historical revisions; a value >= 0 is recommended"
ZONES = (
    "use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
)
MANY = (
    "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes "
    "might not be able to track completedIndexes when a big number of indexes fail"
)
CHILDREN = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)
MANAGED_BY = ("endpoints.kubernetes.io/managed-by", "endpointslice.kubernetes.io/managed-by")


async def step(request: Request, old: Object | None, new: Object | None) -> Object:
    """Warn of what is written, or left behind."""
    row = request.target.row
    if new is None:
        if row.storage == "jobs.batch" and not says_what_follows(request):
            request.warnings.append(CHILDREN)
        return old or {}
    if (advice := KINDS.get((row.storage, request.target.subresource))) is not None:
        request.warnings.extend(islice(advice(new, old), MOST_ADVICE))
    return new


def says_what_follows(request: Request) -> bool:
    """Whether a deletion says what becomes of what belongs to the object."""
    sent = request.sent if isinstance(request.sent, dict) else {}
    return any(field in where for field in ("propagationPolicy", "orphanDependents") for where in (request.query, sent))


# -- pods and what makes them


def pod(new: Object, old: Object | None) -> Iterator[str]:
    if old is not None:  # changes of pods are made by programs, and often
        return iter(())
    return chain(odd_name(new, "the Pod's hostname"), pod_advice("", new))


def made_of(*steps: str, is_named: bool = True) -> Advice:
    """Of what has a template of pods at that place; most of them give their name to pods."""
    at = "".join(f"{each}." for each in steps)

    def advice(new: Object, old: Object | None) -> Iterator[str]:
        if old is None and is_named:
            yield from odd_name(new, "Pod names and hostnames")
        if old is None or new["metadata"].get("generation") != old["metadata"].get("generation"):
            yield from pod_advice(at, value_at(new, *steps, default={}))

    return advice


def odd_name(obj: Object, use: str) -> Sequence[str]:
    complaints = label(name_of(obj))
    return [f"metadata.name: this is used in {use}, {SURPRISING}: [{' '.join(complaints)}]"] if complaints else ()


def stateful_set(new: Object, old: Object | None) -> Iterator[str]:
    yield from made_of("spec", "template", is_named=False)(new, old)
    for number, claim in enumerate(value_at(new, "spec", "volumeClaimTemplates", default=[])):
        path = f"spec.volumeClaimTemplates[{number}]" + ("" if old is None else ".Spec")
        yield from claim_advice(path, claim.get("spec") or {})
    if value_at(new, "spec", "revisionHistoryLimit", default=0) < 0:
        yield f"spec.revisionHistoryLimit: {HISTORY}"


def job(new: Object, old: Object | None) -> Iterator[str]:
    yield from many_indexes("spec", new.get("spec") or {})
    yield from made_of("spec", "template")(new, old)


def cron_job(new: Object, old: Object | None) -> Iterator[str]:
    yield from many_indexes("spec.jobTemplate.spec", value_at(new, "spec", "jobTemplate", "spec", default={}))
    yield from made_of("spec", "jobTemplate", "spec", "template")(new, old)
    if old is not None and "TZ" in value_at(new, "spec", "schedule", default=""):
        yield f"cannot use TZ or CRON_TZ in spec.spec.schedule, {ZONES}"


def many_indexes(at: str, spec: Object) -> Iterator[str]:
    many = spec.get("completions", 0) > 100_000 and spec.get("parallelism", 0) > 10_000
    if many and spec.get("completionMode") == "Indexed":
        yield f"{at}: {MANY}"


# -- networks


def service(new: Object, _: Object | None) -> Iterator[str]:
    spec = new.get("spec") or {}
    kind, external = spec.get("type"), spec.get("externalIPs") or []
    if HINTS in annotations_of(new):
        yield f"annotation {HINTS} is deprecated, please use {MODE} instead"
    if spec.get("clusterIP", "None") not in ("", "None"):
        yield from all_ips("spec.clusterIPs", spec.get("clusterIPs"))
    elif kind == "ClusterIP":
        ignored = [field for field in ("loadBalancerIP", "externalIPs") if spec.get(field)]
        ignored += ["SessionAffinity"] if spec.get("sessionAffinity") != "None" else []
        yield from (f"spec.{field} is ignored for headless services" for field in ignored)
    yield from all_ips("spec.externalIPs", external)
    if spec.get("loadBalancerIP"):
        yield from ip_advice("spec.loadBalancerIP", spec["loadBalancerIP"])
    yield from all_networks("spec.loadBalancerSourceRanges", spec.get("loadBalancerSourceRanges"))
    if kind == "ExternalName" and external:
        yield 'spec.externalIPs is ignored when spec.type is "ExternalName"'
    if kind != "ExternalName" and spec.get("externalName"):
        yield 'spec.externalName is ignored when spec.type is not "ExternalName"'


def all_ips(at: str, values: list[str] | None) -> Iterator[str]:
    for number, each in enumerate(values or ()):
        yield from ip_advice(f"{at}[{number}]", each)


def all_networks(at: str, values: list[str] | None) -> Iterator[str]:
    for number, each in enumerate(values or ()):
        yield from cidr_advice(f"{at}[{number}]", each)


def entrances(new: Object, _: Object | None) -> Iterator[str]:
    """Where a load balancer lets traffic in, as its controller says."""
    for number, each in enumerate(value_at(new, "status", "loadBalancer", "ingress", default=[])):
        if each.get("ip"):
            yield from ip_advice(f"status.loadBalancer.ingress[{number}]", each["ip"])


def ingress(new: Object, old: Object | None) -> Iterator[str]:
    if old is None and INGRESS_CLASS in annotations_of(new) and not value_at(new, "spec", "ingressClassName"):
        yield f"annotation \"{INGRESS_CLASS}\" is deprecated, please use 'spec.ingressClassName' instead"


def network_policy(new: Object, _: Object | None) -> Iterator[str]:
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for number, rule in enumerate(value_at(new, "spec", direction, default=[])):
            for index, peer in enumerate(rule.get(peers) or ()):
                if block := peer.get("ipBlock"):
                    at = f"spec.{direction}[{number}].{peers}[{index}].ipBlock"
                    yield from cidr_advice(f"{at}.cidr", block.get("cidr", ""))
                    yield from all_networks(f"{at}.except", block.get("except"))


def endpoints(new: Object, _: Object | None) -> Iterator[str]:
    if is_by_controller(new):
        return
    for number, subset in enumerate(new.get("subsets") or ()):
        for field in ("addresses", "notReadyAddresses"):
            for index, each in enumerate(subset.get(field) or ()):
                yield from ip_advice(f"subsets[{number}].{field}[{index}].ip", each.get("ip", ""))


def endpoint_slice(new: Object, old: Object | None) -> Iterator[str]:
    if new.get("addressType") == "FQDN":
        if old is None:
            yield "spec.addressType: FQDN endpoints are deprecated"
        return
    if not is_by_controller(new):
        for number, each in enumerate(new.get("endpoints") or ()):
            yield from all_ips(f"endpoints[{number}].addresses", each.get("addresses"))


def is_by_controller(obj: Object) -> bool:
    """Controllers write addresses as they should be."""
    return any(each in labels_of(obj) for each in MANAGED_BY)


# -- storage and nodes


def volume(new: Object, _: Object | None) -> Iterator[str]:
    spec, annotations = new.get("spec") or {}, annotations_of(new)
    if OLD_CLASS in annotations:
        yield f"metadata.annotations[{OLD_CLASS}]: deprecated since v1.8; {USE_CLASS}"
    if OLD_MOUNTS in annotations:
        yield f"metadata.annotations[{OLD_MOUNTS}]: deprecated since v1.31; {USE_MOUNTS}"
    if spec.get("persistentVolumeReclaimPolicy") == "Recycle":
        yield f"spec.persistentVolumeReclaimPolicy: {RECYCLE}"
    for number, term in enumerate(value_at(spec, "nodeAffinity", "required", "nodeSelectorTerms", default=[])):
        yield from node_term_advice(f"spec.nodeAffinity.required.nodeSelectorTerms[{number}]", term)
    for kind in VOLUMES.keys() & spec.keys():
        yield f"spec.{SHOWN_AS.get(kind, kind)}: {VOLUMES[kind]}"


def claim(new: Object, _: Object | None) -> Iterator[str]:
    if OLD_CLASS in annotations_of(new):
        yield f"metadata.annotations[{OLD_CLASS}]: deprecated since v1.8; {USE_CLASS}"
    yield from claim_advice("spec", new.get("spec") or {})


def storage_class(new: Object, _: Object | None) -> Iterator[str]:
    for number, topology in enumerate(new.get("allowedTopologies") or ()):
        for index, each in enumerate(topology.get("matchLabelExpressions") or ()):
            if (key := each.get("key")) in NODE_LABELS:
                yield f"allowedTopologies[{number}].matchLabelExpressions[{index}].key: {NODE_LABELS[key]}"


def storage_capacity(new: Object, _: Object | None) -> Iterator[str]:
    topology = new.get("nodeTopology") or {}
    yield from node_term_advice("nodeTopology", topology)
    for key in (topology.get("matchLabels") or {}).keys() & NODE_LABELS.keys():
        yield f"nodeTopology.matchLabels.{key}: {NODE_LABELS[key]}"


def runtime_class(new: Object, _: Object | None) -> Iterator[str]:
    for key in value_at(new, "scheduling", "nodeSelector", default={}).keys() & NODE_LABELS.keys():
        yield f"scheduling.nodeSelector: {NODE_LABELS[key]}"


def node(new: Object, _: Object | None) -> Iterator[str]:
    spec = new.get("spec") or {}
    if spec.get("configSource") is not None:
        yield "spec.configSource: the feature is removed"
    if spec.get("externalID"):
        yield "spec.externalID: this field is deprecated, and is unused by Kubernetes"
    yield from all_networks("spec.podCIDRs", spec.get("podCIDRs"))


KINDS: Mapping[tuple[str, str], Advice] = {
    ("pods", ""): pod,
    ("podtemplates", ""): made_of("template", is_named=False),
    ("replicationcontrollers", ""): made_of("spec", "template"),
    ("replicasets.apps", ""): made_of("spec", "template"),
    ("deployments.apps", ""): made_of("spec", "template"),
    ("daemonsets.apps", ""): made_of("spec", "template", is_named=False),
    ("statefulsets.apps", ""): stateful_set,
    ("jobs.batch", ""): job,
    ("cronjobs.batch", ""): cron_job,
    ("services", ""): service,
    ("services", "status"): entrances,
    ("ingresses.networking.k8s.io", ""): ingress,
    ("ingresses.networking.k8s.io", "status"): entrances,
    ("networkpolicies.networking.k8s.io", ""): network_policy,
    ("endpoints", ""): endpoints,
    ("endpointslices.discovery.k8s.io", ""): endpoint_slice,
    ("persistentvolumes", ""): volume,
    ("persistentvolumeclaims", ""): claim,
    ("storageclasses.storage.k8s.io", ""): storage_class,
    ("csistoragecapacities.storage.k8s.io", ""): storage_capacity,
    ("runtimeclasses.node.k8s.io", ""): runtime_class,
    ("nodes", ""): node,
}
