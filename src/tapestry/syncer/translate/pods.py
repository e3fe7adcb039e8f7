"""The twin of a virtual pod: the same work, in the owner's cluster, on the owner's terms.

What a tenant says about the work travels (containers, volumes, security, grace).  What a tenant says about placement
and rank does not: where the twin runs was decided by the virtual scheduler, and how much it matters below is for the
owner to say.  Every name of another object is rewritten; whatever cannot be rewritten is refused.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import accumulate
from typing import Any

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import physical_name, tokens_secret_name
from tapestry.kube.names import LABEL_LIMIT
from tapestry.kube.objects import Object, annotations_of, controller_of, name_of, namespace_of, uid_of
from tapestry.syncer.translate.allowed_metadata import copied_annotations, literal_values, self_reference_errors
from tapestry.syncer.translate.metadata import (
    full_annotations,
    is_applied,
    metadata_patch,
    truncated_labels,
    twin_labels,
    with_applied_metadata,
    workload_metadata,
)
from tapestry.syncer.translate.references import (
    Rename,
    renamed_container,
    renamed_volume,
    unknown_sources,
)
from tapestry.syncer.translate.tolerations import narrowed_tolerations

COPIED_FIELDS = frozenset(
    {
        *("activeDeadlineSeconds", "restartPolicy", "terminationGracePeriodSeconds"),
        *("dnsConfig", "dnsPolicy", "hostAliases", "hostnameOverride", "setHostnameAsFQDN", "subdomain"),
        *("hostIPC", "hostNetwork", "hostPID", "hostUsers", "securityContext", "shareProcessNamespace"),
        *("os", "resources"),
    }
)
"""Fields of a spec that travel as they are.  Of the others some are rewritten; what nobody knows stays here."""
COUNTED = ("cpu", "memory")
"""Resources that a ResourceQuota may demand a request for."""
SYSTEM_NAMESPACES = frozenset(
    {"kube-system", "kube-public", "kube-node-lease", keys.SYSTEM_NAMESPACE, keys.HOST_PORTS_NAMESPACE}
)
"""Namespaces of the virtual cluster whose pods are its own affair."""
CLUSTER_DOMAIN = "cluster.local"
ENDPOINT = re.compile(r"(?:\[([^]]*)\]|([^:]*))(?::([0-9]*))?")
"""`host:port`, where an IPv6 address stands in brackets and the port may be missing."""
MAX_NAMESERVERS = 3
MAX_SEARCHES = 32
MAX_SEARCHES_LENGTH = 2048
"""Characters.  With more of any of these an API server takes no pod."""


@dataclass(frozen=True, slots=True)
class HostAlias:
    """Names that a twin resolves to an address."""

    ip: str
    names: tuple[str, ...]


def is_excluded(pod: Object, binding: Binding) -> bool:
    """Whether the pod is not for us to run: it belongs to the virtual cluster itself, or to a DaemonSet."""
    if namespace_of(pod) in SYSTEM_NAMESPACES:
        return True
    owner = controller_of(pod)
    if owner is None or owner["kind"] != "DaemonSet" or binding.spec.running_daemonset_by_default:
        return False
    return annotations_of(pod).get(keys.RUNNING_DAEMONSET) != "true"


def untranslatable_fields(pod: Object, binding: Binding) -> list[str]:
    """Fields that name what does not cross, at any level of Pod Security."""
    spec = pod["spec"]
    found = ["spec.resourceClaims: claims of devices do not cross"] if spec.get("resourceClaims") else []
    found += [f"{path}: it may name an object that does not cross; leave it out" for path in unknown_sources(spec)]
    return found + self_reference_errors(pod, binding)


def twin_name(pod: Object, binding: Binding) -> str:
    return physical_name(binding.virtual_cluster, binding.uid, namespace_of(pod) or "", name_of(pod))


def new_twin(
    pod: Object, binding: Binding, node: str, aliases: Sequence[HostAlias] = (), taints: Iterable[Object] = ()
) -> Object:
    """The pod to create below for `pod`: its `twin`, with what is decided once, and never changed later.

    These are its tolerations, for the `taints` of the physical node, and requests where the pod has none.
    """
    made = desired_twin(pod, binding, node, aliases)
    spec = {**made["spec"], "tolerations": narrowed_tolerations(pod["spec"].get("tolerations") or (), taints)}
    for field in ("initContainers", "containers"):
        if spec.get(field):
            spec[field] = [with_zero_requests(each, pod["spec"].get("resources") or {}) for each in spec[field]]
    return {**made, "spec": spec}


def with_zero_requests(container: Object, pod_resources: Object) -> Object:
    """A container with requests of zero where neither it nor the pod as a whole has a request or a limit.

    A ResourceQuota wants to see a request.  Zero is none: the QoS class stays as it is.  Where there is a limit, the
    API server makes it the request.
    """
    resources = container.get("resources") or {}
    said = {
        name for each in (resources, pod_resources) for kind in ("requests", "limits") for name in each.get(kind) or ()
    }
    missing = {name: "0" for name in COUNTED if name not in said}
    if not missing:
        return container
    return {**container, "resources": {**resources, "requests": {**(resources.get("requests") or {}), **missing}}}


def desired_twin(pod: Object, binding: Binding, node: str, aliases: Sequence[HostAlias] = ()) -> Object:
    """The pod to have below for `pod`, pinned to the physical `node`, as far as it follows changes of the pod."""
    spec = twin_spec(pod, binding, node, aliases)
    made: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": twin_name(pod, binding),
            "namespace": binding.spec.mount_namespace,
            "labels": {**twin_labels(pod, binding), **truncated_labels(workload_metadata(pod))},
            "annotations": twin_annotations(pod, binding),
        },
        "spec": spec,
    }
    return with_applied_metadata(made, mutable_fields(spec))


def twin_annotations(pod: Object, binding: Binding) -> dict[str, str]:
    return {
        **copied_annotations(pod, binding),
        **full_annotations({keys.CLUSTER_BINDING: binding.name, **workload_metadata(pod)}),
        keys.VIRTUAL_POD_NAMESPACE: namespace_of(pod) or "",
        keys.VIRTUAL_POD_NAME: name_of(pod),
        keys.VIRTUAL_POD_UID: uid_of(pod),
        keys.VIRTUAL_NODE_NAME: pod["spec"]["nodeName"],
    }


def twin_spec(pod: Object, binding: Binding, node: str, aliases: Sequence[HostAlias]) -> Object:
    spec = pod["spec"]
    rename, literals = rename_for(pod, binding), literals_of(pod, binding)
    found = {key: value for key, value in spec.items() if key in COPIED_FIELDS}
    for field in ("initContainers", "containers"):
        if spec.get(field):
            found[field] = [twin_container(each, binding, rename, literals) for each in spec[field]]
    if spec.get("volumes"):
        secret = tokens_secret_name(binding.virtual_cluster, binding.uid, namespace_of(pod) or "", name_of(pod))
        found["volumes"] = [renamed_volume(each, rename, secret) for each in spec["volumes"]]
    if spec.get("imagePullSecrets"):
        found["imagePullSecrets"] = [
            {"name": rename(each["name"])} if each.get("name") else {} for each in spec["imagePullSecrets"]
        ]
    found |= {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": spec.get("hostname") or hostname_of(name_of(pod)),
        "priorityClassName": binding.spec.pod_priority_class_name or keys.PRIORITY_CLASS,
    }
    return {**found, **placement(binding, node), **name_resolution(pod, binding, aliases)}


def rename_for(pod: Object, binding: Binding) -> Rename:
    namespace = namespace_of(pod) or ""
    return lambda name: physical_name(binding.virtual_cluster, binding.uid, namespace, name)


def literals_of(pod: Object, binding: Binding) -> dict[str, str]:
    """The downward API fields that a twin lacks, and their values."""
    return {
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName") or "default",
        **literal_values(pod, binding),
    }


def twin_container(container: Object, binding: Binding, rename: Rename, literals: Object) -> Object:
    found = renamed_container(container, rename, literals)
    told = {each["name"] for each in container.get("env") or ()}
    if added := [each for each in api_server_env(binding) if each["name"] not in told]:
        found["env"] = [*added, *found.get("env", ())]
    return found


def ephemeral_patch(existing: Object, pod: Object, binding: Binding) -> Object | None:
    """What to patch the twin's `ephemeralcontainers` with: they come to a pod that is there already, and only come."""
    there = {each["name"] for each in existing["spec"].get("ephemeralContainers") or ()}
    rename, literals = rename_for(pod, binding), literals_of(pod, binding)
    missing = [
        twin_container(each, binding, rename, literals)
        for each in pod["spec"].get("ephemeralContainers") or ()
        if each["name"] not in there
    ]
    return {"spec": {"ephemeralContainers": missing}} if missing else None


def api_server_env(binding: Binding) -> list[Object]:
    """Where the virtual API server is; without these a kubelet would tell of its own."""
    endpoint = binding.spec.virtual_endpoints.api
    if not endpoint:
        return []
    host, port = host_and_port(endpoint)
    names = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "KUBERNETES_SERVICE_PORT_HTTPS": port}
    return [{"name": name, "value": value} for name, value in names.items()]


def host_and_port(endpoint: str) -> tuple[str, str]:
    found = ENDPOINT.fullmatch(endpoint)
    if found is None:
        return endpoint, "443"  # an IPv6 address without brackets
    bracketed, plain, port = found.groups()
    return bracketed or plain, port or "443"


def hostname_of(name: str) -> str:
    """What the pod would be called on a node of its own cluster, as far as a host name may say it."""
    return name[:LABEL_LIMIT].replace(".", "-").rstrip("-")


def placement(binding: Binding, node: str) -> Object:
    """On that node: by the physical scheduler, which still looks whether it fits, or past it."""
    if binding.spec.direct_scheduling:
        return {"nodeName": node}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


def name_resolution(pod: Object, binding: Binding, aliases: Iterable[HostAlias]) -> Object:
    """Names of the virtual cluster, as far as the binding says where they lead."""
    spec, endpoints = pod["spec"], binding.spec.virtual_endpoints
    told = [*api_alias(binding, namespace_of(pod) or ""), *aliases]
    known = [{"ip": alias.ip, "hostnames": list(alias.names)} for alias in told]
    found: dict[str, Any] = {}
    if known or spec.get("hostAliases"):
        found["hostAliases"] = [*(spec.get("hostAliases") or ()), *known]
    if endpoints.dns and uses_cluster_dns(spec):
        found |= {"dnsPolicy": "None", "dnsConfig": dns_config(pod, endpoints.dns)}
    return found


def uses_cluster_dns(spec: Object) -> bool:
    """Whether a kubelet would have the pod ask the DNS server of its cluster."""
    policy = spec.get("dnsPolicy") or "ClusterFirst"
    return policy == "ClusterFirstWithHostNet" or (policy == "ClusterFirst" and not spec.get("hostNetwork"))


def api_alias(binding: Binding, namespace: str) -> list[HostAlias]:
    host, _ = host_and_port(binding.spec.virtual_endpoints.api or "")
    try:
        ip_address(host)
    except ValueError:
        return []  # a name is known to some DNS server, or to nobody
    names = service_names("kubernetes", "default")
    return [HostAlias(host, names if namespace == "default" else names[1:])]


def service_names(name: str, namespace: str) -> tuple[str, ...]:
    """Every way to name a Service from within its own namespace."""
    return (
        name,
        f"{name}.{namespace}",
        f"{name}.{namespace}.svc",
        f"{name}.{namespace}.svc.{CLUSTER_DOMAIN}",
    )


def dns_config(pod: Object, server: str) -> Object:
    """What a kubelet of the virtual cluster would write, and after it what the pod asks for itself."""
    own = pod["spec"].get("dnsConfig") or {}
    searches = [f"{namespace_of(pod)}.svc.{CLUSTER_DOMAIN}", f"svc.{CLUSTER_DOMAIN}", CLUSTER_DOMAIN]
    options: list[Object] = own.get("options") or []
    if not any(each.get("name") == "ndots" for each in options):
        options = [{"name": "ndots", "value": "5"}, *options]
    return {
        "nameservers": unique([server, *(own.get("nameservers") or ())])[:MAX_NAMESERVERS],
        "searches": searches_within_limit(unique([*searches, *(own.get("searches") or ())])[:MAX_SEARCHES]),
        "options": options,
    }


def unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def searches_within_limit(searches: list[str]) -> list[str]:
    """As many of the search domains as an API server takes."""
    lengths = accumulate(len(each) + 1 for each in searches)  # with a space between two
    return [each for each, length in zip(searches, lengths, strict=True) if length - 1 <= MAX_SEARCHES_LENGTH]


# -- What may change of a pod that is there.


def mutable_fields(spec: Object) -> Object:
    return {
        "images": images_of(spec),
        "deadline": spec.get("activeDeadlineSeconds"),
        "resources": {
            each["name"]: each["resources"]
            for field in ("initContainers", "containers")
            for each in spec.get(field) or ()
            if each.get("resources")
        },
    }


def images_of(spec: Object) -> dict[str, list[Object]]:
    return {
        field: [{"name": each["name"], "image": each.get("image")} for each in spec[field]]
        for field in ("initContainers", "containers")
        if spec.get(field)
    }


def twin_patch(existing: Object, wanted: Object) -> Object | None:
    """The strategic merge patch that makes a twin what it should be now; None where we set just that already."""
    if is_applied(existing, wanted):
        return None
    spec: dict[str, Any] = images_of(wanted["spec"])
    if wanted["spec"].get("activeDeadlineSeconds") is not None:
        spec["activeDeadlineSeconds"] = wanted["spec"]["activeDeadlineSeconds"]
    return {"metadata": metadata_patch(existing, wanted), "spec": spec}


def resize_patch(existing: Object, wanted: Object) -> Object | None:
    """What to patch the twin's `resize` with; None where its containers ask for what they should.

    What the owner's defaults added to it is no difference.
    """
    resized: Object = {}
    for field in ("initContainers", "containers"):
        have = {each["name"]: each.get("resources") or {} for each in existing["spec"].get(field) or ()}
        changed = [
            {"name": each["name"], "resources": each["resources"]}
            for each in wanted["spec"].get(field) or ()
            if each["name"] in have and has_other_amounts(each.get("resources") or {}, have[each["name"]])
        ]
        if changed:
            resized[field] = changed
    return {"spec": resized} if resized else None


def has_other_amounts(wanted: Object, have: Object) -> bool:
    """Whether some amount that is wanted is another now."""
    return any(
        (have.get(kind) or {}).get(resource) != amount
        for kind in ("limits", "requests")
        for resource, amount in (wanted.get(kind) or {}).items()
    )
