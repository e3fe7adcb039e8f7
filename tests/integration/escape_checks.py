"""Checks of what a tenant has in its host cluster: none of it may reach anything of others."""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address, ip_network

from tapestry.apis import keys
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of, value_at
from tapestry.kube.resources import (
    DISRUPTION_BUDGETS,
    ENDPOINT_SLICES,
    INGRESSES,
    NETWORK_POLICIES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)
from tapestry.local import simulated_storage
from tapestry.manager.volume_policies import POD_SOURCES

from .escape_objects import VICTIM_LABELS
from .escaping_tenant import (
    ACCOUNT_OF_PODS,
    CANARY,
    INGRESS_CLASS,
    INGRESS_DOMAIN,
    PRIORITIES,
    STORAGE_CLASS,
    EscapingTenant,
)

CLAIM_ANNOTATIONS = (keys.PREFIX, "pv.kubernetes.io/", "volume.kubernetes.io/", "volume.beta.kubernetes.io/storage-p")
"""Prefixes of annotations that the syncer and the controllers of the host cluster write."""
QUIET_SECONDS, POLL_SECONDS, MAX_WAIT_SECONDS = 1.5, 0.25, 40.0
FORBIDDEN = ("169.254.169.254", "10.0.0.1", "10.96.0.1", "127.0.0.1", "192.168.0.1", "fd00:ec2::254", "::ffff:1.2.3.4")
"""Addresses that pods of a tenant must not reach."""
Check = Callable[[Object, EscapingTenant], Iterator[str]]


async def wait_for_no_changes(tenant: EscapingTenant) -> None:
    """Wait until nothing of the attacker changes in the host cluster."""
    before, quiet = None, 0.0
    async with asyncio.timeout(MAX_WAIT_SECONDS):
        while quiet < QUIET_SECONDS:
            await asyncio.sleep(POLL_SECONDS)
            now = [
                (each["metadata"]["uid"], each["metadata"]["resourceVersion"])
                for resource in CHECKS
                for each in await tenant.host_objects(resource, tenant.own_namespace)
            ]
            quiet = quiet + POLL_SECONDS if now == before else 0.0
            before = now


async def violations(tenant: EscapingTenant) -> list[str]:
    """Return what the attacker's objects in the host cluster have that they may not, by the name of the attempt."""
    found = []
    twins = await tenant.host_objects(PODS, tenant.own_namespace)
    tenant.own_addresses = {value_at(each, "status", "podIP", default="") for each in twins}
    for resource, check in CHECKS.items():
        for obj in await tenant.host_objects(resource, tenant.own_namespace):
            source = annotations_of(obj).get(keys.VIRTUAL_POD_NAME) or annotations_of(obj).get(keys.VIRTUAL_NAME)
            found += [f"{source or name_of(obj)}: {resource.kind}: {each}" for each in check(obj, tenant)]
    return found


def foreign_labels(labels: Mapping[str, str], tenant: EscapingTenant) -> Iterator[str]:
    """Yield a message if labels, or those that a selector requires, are not those of the attacker."""
    for key, name in ((keys.CLUSTER_BINDING_UID, "own-tenant"), (keys.VIRTUAL_CLUSTER, "own-cluster")):
        if labels.get(key) != tenant.values[name]:
            yield f"{key} is {labels.get(key)}"


def check_pod(pod: Object, tenant: EscapingTenant) -> Iterator[str]:
    spec = pod["spec"]
    yield from check_pod_metadata(pod, tenant)
    yield from (field for field in ("hostNetwork", "hostPID", "hostIPC", "runtimeClassName") if spec.get(field))
    if spec.get("serviceAccountName") != ACCOUNT_OF_PODS or spec.get("automountServiceAccountToken") is not False:
        yield "account of the host cluster"
    if spec.get("nodeName") in (tenant.values["closed"], "evil"):
        yield f"runs on {spec['nodeName']}"
    if spec.get("priorityClassName") not in PRIORITIES or spec.get("priority", 0) > 0:
        yield f"priority {spec.get('priorityClassName')} {spec.get('priority')}"
    for volume in spec.get("volumes") or ():
        yield from check_volume(volume)
    for field in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec.get(field) or ():
            yield from check_container(container)
    for term in affinity_terms(spec):
        if term.get("namespaceSelector") is not None or term.get("namespaces"):
            yield "affinity to pods of other namespaces"
        yield from foreign_labels(value_at(term, "labelSelector", "matchLabels", default={}), tenant)


def check_pod_metadata(pod: Object, tenant: EscapingTenant) -> Iterator[str]:
    yield from foreign_labels(labels_of(pod), tenant)
    for key in (keys.TENANT_SETUP, keys.CLUSTER_BINDING):
        if labels_of(pod).get(key) == VICTIM_LABELS[key]:
            yield f"label {key}"
    yield from (f"annotation {key}" for key in annotations_of(pod) if key.startswith(("kubernetes.io/config", "iam.")))


def check_volume(volume: Object) -> Iterator[str]:
    yield from (f"volume source {source}" for source in volume if source not in ("name", *POD_SOURCES))
    for source in value_at(volume, "projected", "sources", default=[]):
        if "serviceAccountToken" in source:
            yield "token of the host cluster"


def check_container(container: Object) -> Iterator[str]:
    context = container.get("securityContext") or {}
    if context.get("privileged") or context.get("allowPrivilegeEscalation") is not False:
        yield "privileges"
    yield from (f"capability {each}" for each in value_at(context, "capabilities", "add", default=[]))
    if context.get("runAsUser") == 0 or context.get("procMount") not in (None, "Default"):
        yield "user or /proc"
    yield from (f"host port {each['hostPort']}" for each in container.get("ports") or () if each.get("hostPort"))
    for probe in (container.get(field) or {} for field in ("livenessProbe", "readinessProbe", "startupProbe")):
        yield from host_of_handler(probe)
    for hook in (container.get("lifecycle") or {}).values():
        yield from host_of_handler(hook)


def host_of_handler(handler: Object) -> Iterator[str]:
    for kind in ("httpGet", "tcpSocket"):
        if host := value_at(handler, kind, "host"):
            yield f"the kubelet calls {host}"


def affinity_terms(spec: Object) -> Iterator[Object]:
    for field in ("podAffinity", "podAntiAffinity"):
        terms = value_at(spec, "affinity", field, default={})
        yield from terms.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        for each in terms.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
            yield each["podAffinityTerm"]


def check_service(service: Object, tenant: EscapingTenant) -> Iterator[str]:
    spec = service["spec"]
    if labels_of(service).get(keys.TENANT_SETUP) == "true":
        return
    yield from foreign_labels(labels_of(service), tenant)
    yield from (
        field for field in ("externalIPs", "loadBalancerIP", "loadBalancerClass", "externalName") if spec.get(field)
    )
    if spec.get("type") not in ("ClusterIP", "LoadBalancer") or any(
        "nodePort" in each for each in spec.get("ports") or ()
    ):
        yield f"type {spec.get('type')}, or a node port"
    if spec.get("selector") is not None:
        yield from foreign_labels(spec["selector"], tenant)
    if spec.get("clusterIP") == tenant.values["victim-service-ip"]:
        yield "address of the victim"
    yield from (f"annotation {key}" for key in annotations_of(service) if not key.startswith(keys.PREFIX))


def check_slice(slice: Object, tenant: EscapingTenant) -> Iterator[str]:
    if labels_of(slice).get(keys.TENANT_SETUP) == "true":
        return
    addresses = {address for each in slice["endpoints"] or () for address in each["addresses"]}
    yield from (f"address {address}" for address in sorted(addresses - tenant.own_addresses))


def check_ingress(ingress: Object, tenant: EscapingTenant) -> Iterator[str]:
    own = f".{tenant.ids['mallory']}.{INGRESS_DOMAIN}"
    if ingress["spec"].get("ingressClassName") != INGRESS_CLASS:
        yield f"class {ingress['spec'].get('ingressClassName')}"
    if ingress["spec"].get("defaultBackend"):
        yield "default backend"
    hosts = [each.get("host", "") for each in ingress["spec"].get("rules") or ()]
    hosts += [host for each in ingress["spec"].get("tls") or () for host in each.get("hosts") or [""]]
    yield from (f"host {host!r}" for host in hosts if not host.endswith(own))
    yield from check_paths(ingress, tenant)
    for entry in ingress["spec"].get("tls") or ():
        if entry.get("secretName") in ("foreign", "shop", tenant.values["victim-certificate"]):
            yield f"certificate {entry['secretName']}"
    yield from (f"annotation {key}" for key in annotations_of(ingress) if not key.startswith(keys.PREFIX))


def check_paths(ingress: Object, tenant: EscapingTenant) -> Iterator[str]:
    for rule in ingress["spec"].get("rules") or ():
        for path in value_at(rule, "http", "paths", default=[]):
            if re.fullmatch("[A-Za-z0-9/]*", path.get("path", "")) is None or "service" not in path["backend"]:
                yield f"path {path}"
            elif path["backend"]["service"]["name"] in ("kubernetes", tenant.values["victim-service"]):
                yield "Service of others"


def check_network_policy(policy: Object, tenant: EscapingTenant) -> Iterator[str]:
    if labels_of(policy).get(keys.TENANT_SETUP) == "true":
        return
    yield from foreign_labels(value_at(policy, "spec", "podSelector", "matchLabels", default={}), tenant)
    for field, side in (("ingress", "from"), ("egress", "to")):
        for rule in policy["spec"].get(field) or ():
            if not rule.get(side):
                yield f"{field}: everything"
            for peer in rule.get(side) or ():
                if "ipBlock" in peer:
                    yield from (f"{field}: {each}" for each in FORBIDDEN if is_in_block(each, peer["ipBlock"]))
                if peer.get("namespaceSelector") is not None:
                    yield f"{field}: namespaces of the host cluster"
                if "podSelector" in peer:
                    yield from foreign_labels(value_at(peer, "podSelector", "matchLabels", default={}), tenant)


def is_in_block(address: str, block: Object) -> bool:
    ip = ip_address(address)
    return ip in ip_network(block["cidr"]) and not any(ip in ip_network(each) for each in block.get("except") or ())


def check_budget(budget: Object, tenant: EscapingTenant) -> Iterator[str]:
    yield from foreign_labels(value_at(budget, "spec", "selector", "matchLabels", default={}), tenant)
    if not isinstance(budget["spec"].get("minAvailable"), int) or "maxUnavailable" in budget["spec"]:
        yield "a share of the pods, which the host cluster cannot compute"


def check_claim(claim: Object, tenant: EscapingTenant) -> Iterator[str]:
    spec = claim["spec"]
    yield from foreign_labels(labels_of(claim), tenant)
    yield from (field for field in ("dataSource", "dataSourceRef", "selector") if spec.get(field))
    if spec.get("volumeName") not in (None, f"pvc-{claim['metadata']['uid']}"):
        yield f"volume {spec['volumeName']}"
    if spec.get("storageClassName") != STORAGE_CLASS:
        yield f"class {spec.get('storageClassName')}"
    annotations = annotations_of(claim)
    yield from (f"annotation {key}" for key in annotations if not key.startswith(CLAIM_ANNOTATIONS))
    if annotations.get("volume.kubernetes.io/storage-provisioner") not in (None, simulated_storage.DRIVER):
        yield "annotations for the volume controller"
    if annotations.get("volume.kubernetes.io/selected-node") == tenant.values["closed"]:
        yield "a volume on the closed node"


def check_secret(secret: Object, tenant: EscapingTenant) -> Iterator[str]:
    yield from foreign_labels(labels_of(secret), tenant)
    if secret.get("type") == "kubernetes.io/service-account-token" or CANARY in str(secret):
        yield "secret of others"


CHECKS: dict[Resource, Check] = {
    PODS: check_pod,
    SERVICES: check_service,
    ENDPOINT_SLICES: check_slice,
    INGRESSES: check_ingress,
    NETWORK_POLICIES: check_network_policy,
    DISRUPTION_BUDGETS: check_budget,
    PERSISTENT_VOLUME_CLAIMS: check_claim,
    SECRETS: check_secret,
}
