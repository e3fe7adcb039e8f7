"""Twin of a virtual pod: the same workload in the owner's cluster, under the owner's rules.

Fields about the workload are copied (containers, volumes, security, grace). Fields about placement and priority are
not: the virtual scheduler has chosen the node, and the owner decides about priority. Every reference to another object
is renamed; a pod with a reference that cannot be renamed is rejected.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import physical_name, tokens_secret_name
from tapestry.kube.names import LABEL_LIMIT
from tapestry.kube.objects import Object, annotations_of, name_of, namespace_of, uid_of
from tapestry.syncer.translate.allowed_metadata import (
    copied_annotations,
    literal_values,
    self_reference_errors,
    source_annotations,
)
from tapestry.syncer.translate.host_placement import HostPlacement, placement_errors, placement_fields
from tapestry.syncer.translate.metadata import (
    full_annotations,
    is_applied,
    metadata_patch,
    truncated_labels,
    twin_labels,
    with_applied_metadata,
    workload_metadata,
)
from tapestry.syncer.translate.pod_dns import CLUSTER_DOMAIN, dns_settings
from tapestry.syncer.translate.references import (
    VIRTUAL_FIELDS,
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
"""Spec fields that are copied unchanged. Some of the others are rewritten; unknown fields are not copied."""
COUNTED = ("cpu", "memory")
"""Resources for which a ResourceQuota may require a request."""
ENDPOINT = re.compile(r"(?:\[([^]]*)\]|([^:]*))(?::([0-9]*))?")
"""`host:port`, where an IPv6 address is in brackets and the port is optional."""
HOST_SCHEDULED_FIELDS = {field: path for field, path in VIRTUAL_FIELDS.items() if field != "spec.nodeName"}
"""Downward API fields that differ on a twin whose node has the same name in both clusters."""
Placement = str | HostPlacement
"""The physical node of a twin, or the nodes from which the scheduler of the host cluster chooses one."""


@dataclass(frozen=True, slots=True)
class HostAlias:
    """Names that a twin resolves to an address."""

    ip: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TwinSettings:
    """Fields of a twin that other objects than its pod decide."""

    labels: Mapping[str, str]
    priority_class: str = ""
    """PriorityClass of the physical cluster; empty for that of the binding. It never changes."""
    service_account: str = ""
    """ServiceAccount of the physical cluster; empty for `default`. It never changes."""


DEFAULT_SETTINGS = TwinSettings({})


def untranslatable_fields(pod: Object, binding: Binding) -> list[str]:
    """Return the fields that refer to something that is never synced, at any Pod Security level."""
    spec = pod["spec"]
    errors = ["spec.resourceClaims: device claims are not synced"] if spec.get("resourceClaims") else []
    errors += [f"{path}: it may name an object that is not synced; remove it" for path in unknown_sources(spec)]
    errors += placement_errors(pod) if binding.spec.schedules_on_host else []
    return errors + self_reference_errors(pod, binding)


def twin_name(pod: Object, binding: Binding) -> str:
    return physical_name(binding.virtual_cluster, binding.uid, namespace_of(pod) or "", name_of(pod))


def new_twin(
    pod: Object,
    binding: Binding,
    node: Placement,
    aliases: Sequence[HostAlias] = (),
    taints: Iterable[Object] = (),
    settings: TwinSettings = DEFAULT_SETTINGS,
    terms: str = "",
) -> Object:
    """Return the twin to create: `desired_twin` and what is decided only once.

    These are its tolerations, for the `taints` of the physical node, zero requests if the pod has none, and the `terms`
    on which it will be reclaimed.
    """
    desired = desired_twin(pod, binding, node, aliases, settings)
    if isinstance(node, HostPlacement):
        desired = with_annotation(desired, keys.PLACEMENT, node.digest)
    if terms:
        desired = with_annotation(desired, keys.LAST_TERMS, terms)
    spec = {**desired["spec"], "tolerations": narrowed_tolerations(pod["spec"].get("tolerations") or (), taints)}
    for field in ("initContainers", "containers"):
        if spec.get(field):
            spec[field] = [with_zero_requests(each, pod["spec"].get("resources") or {}) for each in spec[field]]
    return {**desired, "spec": spec}


def with_annotation(obj: Object, key: str, value: str) -> Object:
    annotations = {**annotations_of(obj), key: value}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def with_zero_requests(container: Object, pod_resources: Object) -> Object:
    """Return the container with zero requests if neither it nor the pod has a request or a limit.

    A ResourceQuota requires a request. Zero keeps the QoS class. If there is a limit, the API server makes it the
    request.
    """
    resources = container.get("resources") or {}
    declared = {
        name for each in (resources, pod_resources) for kind in ("requests", "limits") for name in each.get(kind) or ()
    }
    missing = {name: "0" for name in COUNTED if name not in declared}
    if not missing:
        return container
    return {**container, "resources": {**resources, "requests": {**(resources.get("requests") or {}), **missing}}}


def desired_twin(
    pod: Object,
    binding: Binding,
    node: Placement,
    aliases: Sequence[HostAlias] = (),
    settings: TwinSettings = DEFAULT_SETTINGS,
) -> Object:
    """Return the desired twin of `pod` on the physical `node`, as far as it follows changes of the pod."""
    spec = twin_spec(pod, binding, node, aliases)
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    if settings.service_account:
        spec["serviceAccountName"] = settings.service_account
    twin: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": twin_name(pod, binding),
            "namespace": binding.spec.mount_namespace,
            "labels": {**twin_labels(pod, binding), **truncated_labels(workload_metadata(pod)), **settings.labels},
            "annotations": twin_annotations(pod, binding),
        },
        "spec": spec,
    }
    return with_applied_metadata(twin, mutable_fields(spec))


def twin_annotations(pod: Object, binding: Binding) -> dict[str, str]:
    return {
        **copied_annotations(pod, binding),
        **source_annotations(pod),
        **full_annotations({keys.CLUSTER_BINDING: binding.name, **workload_metadata(pod)}),
        keys.VIRTUAL_POD_NAMESPACE: namespace_of(pod) or "",
        keys.VIRTUAL_POD_NAME: name_of(pod),
        keys.VIRTUAL_POD_UID: uid_of(pod),
        # The host cluster gives virtual nodes the names of its nodes, and a pod its node after its twin.
        **({} if binding.spec.schedules_on_host else {keys.VIRTUAL_NODE_NAME: pod["spec"]["nodeName"]}),
    }


def twin_spec(pod: Object, binding: Binding, node: Placement, aliases: Sequence[HostAlias]) -> Object:
    spec = pod["spec"]
    rename, literals = rename_for(pod, binding), literals_of(pod, binding)
    result = {key: value for key, value in spec.items() if key in COPIED_FIELDS}
    for field in ("initContainers", "containers"):
        if spec.get(field):
            result[field] = [twin_container(each, binding, rename, literals) for each in spec[field]]
    if spec.get("volumes"):
        secret = tokens_secret_name(binding.virtual_cluster, binding.uid, namespace_of(pod) or "", name_of(pod))
        result["volumes"] = [renamed_volume(each, pod, rename, secret) for each in spec["volumes"]]
    if spec.get("imagePullSecrets"):
        result["imagePullSecrets"] = [
            {"name": rename(each["name"])} if each.get("name") else {} for each in spec["imagePullSecrets"]
        ]
    result |= {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": spec.get("hostname") or hostname_of(name_of(pod)),
        "priorityClassName": binding.spec.pod_priority_class_name or keys.PRIORITY_CLASS,
    }
    where = placement_fields(pod, binding, node) if isinstance(node, HostPlacement) else placement(binding, node)
    return {**result, **where, **name_resolution(pod, binding, aliases)}


def rename_for(pod: Object, binding: Binding) -> Rename:
    namespace = namespace_of(pod) or ""
    return lambda name: physical_name(binding.virtual_cluster, binding.uid, namespace, name)


def literals_of(pod: Object, binding: Binding) -> dict[str, str]:
    """Return the values of downward API fields that a twin lacks."""
    return {
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName") or "default",
        **literal_values(pod, binding),
    }


def twin_container(container: Object, binding: Binding, rename: Rename, literals: Object) -> Object:
    virtual_fields = HOST_SCHEDULED_FIELDS if binding.spec.schedules_on_host else VIRTUAL_FIELDS
    renamed = renamed_container(container, rename, literals, virtual_fields)
    declared = {each["name"] for each in container.get("env") or ()}
    if added := [each for each in api_server_env(binding) if each["name"] not in declared]:
        renamed["env"] = [*added, *renamed.get("env", ())]
    return renamed


def ephemeral_patch(existing: Object, pod: Object, binding: Binding) -> Object | None:
    """Return the patch of the twin's `ephemeralcontainers`; these can only be added to an existing pod."""
    present = {each["name"] for each in existing["spec"].get("ephemeralContainers") or ()}
    rename, literals = rename_for(pod, binding), literals_of(pod, binding)
    missing = [
        twin_container(each, binding, rename, literals)
        for each in pod["spec"].get("ephemeralContainers") or ()
        if each["name"] not in present
    ]
    return {"spec": {"ephemeralContainers": missing}} if missing else None


def api_server_env(binding: Binding) -> list[Object]:
    """Return variables with the address of the virtual API server; a kubelet would set those of its own."""
    endpoint = binding.spec.virtual_endpoints.api
    if not endpoint:
        return []
    host, port = host_and_port(endpoint)
    names = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "KUBERNETES_SERVICE_PORT_HTTPS": port}
    return [{"name": name, "value": value} for name, value in names.items()]


def host_and_port(endpoint: str) -> tuple[str, str]:
    matched = ENDPOINT.fullmatch(endpoint)
    if matched is None:
        return endpoint, "443"  # an IPv6 address without brackets
    bracketed, plain, port = matched.groups()
    return bracketed or plain, port or "443"


def hostname_of(name: str) -> str:
    """Return the host name that the pod would have in its own cluster."""
    return name[:LABEL_LIMIT].replace(".", "-").rstrip("-")


def placement(binding: Binding, node: str) -> Object:
    """Bind the twin to the node: through the physical scheduler, which still checks whether it fits, or directly."""
    if binding.spec.direct_scheduling:
        return {"nodeName": node}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


def name_resolution(pod: Object, binding: Binding, aliases: Iterable[HostAlias]) -> Object:
    """Return the DNS settings and host aliases that resolve names of the virtual cluster."""
    spec = pod["spec"]
    all_aliases = [*api_alias(binding, namespace_of(pod) or ""), *aliases]
    entries = [{"ip": alias.ip, "hostnames": list(alias.names)} for alias in all_aliases]
    result: dict[str, Any] = {}
    if entries or spec.get("hostAliases"):
        result["hostAliases"] = [*(spec.get("hostAliases") or ()), *entries]
    return {**result, **dns_settings(pod, binding)}


def api_alias(binding: Binding, namespace: str) -> list[HostAlias]:
    host, _ = host_and_port(binding.spec.virtual_endpoints.api or "")
    try:
        ip_address(host)
    except ValueError:
        return []  # a name is resolved by DNS
    names = service_names("kubernetes", "default")
    return [HostAlias(host, names if namespace == "default" else names[1:])]


def service_names(name: str, namespace: str) -> tuple[str, ...]:
    """Return all names of a Service within its own namespace."""
    return (
        name,
        f"{name}.{namespace}",
        f"{name}.{namespace}.svc",
        f"{name}.{namespace}.svc.{CLUSTER_DOMAIN}",
    )


# -- Changes of an existing pod.


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
    """Return the strategic merge patch for a twin; None if it is up to date."""
    if is_applied(existing, wanted):
        return None
    spec: dict[str, Any] = images_of(wanted["spec"])
    if wanted["spec"].get("activeDeadlineSeconds") is not None:
        spec["activeDeadlineSeconds"] = wanted["spec"]["activeDeadlineSeconds"]
    return {"metadata": metadata_patch(existing, wanted), "spec": spec}


def resize_patch(existing: Object, wanted: Object) -> Object | None:
    """Return the patch of the twin's `resize`; None if its containers have the desired amounts.

    Amounts that the owner's defaults added make no difference.
    """
    resized: Object = {}
    for field in ("initContainers", "containers"):
        current = {each["name"]: each.get("resources") or {} for each in existing["spec"].get(field) or ()}
        changed = [
            {"name": each["name"], "resources": each["resources"]}
            for each in wanted["spec"].get(field) or ()
            if each["name"] in current and has_other_amounts(each.get("resources") or {}, current[each["name"]])
        ]
        if changed:
            resized[field] = changed
    return {"spec": resized} if resized else None


def has_other_amounts(wanted: Object, have: Object) -> bool:
    """Return whether an amount of `wanted` differs from `have`."""
    return any(
        (have.get(kind) or {}).get(resource) != amount
        for kind in ("limits", "requests")
        for resource, amount in (wanted.get(kind) or {}).items()
    )
