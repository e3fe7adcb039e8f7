"""Admission policies of a host cluster, for the account of the process of planes and for the accounts of tenants.

Roles cannot say in which namespaces the account of the process may write, because these do not exist yet, nor which
objects of a namespace an account may change. `tapestry host add` installs both policies before it grants any rights.
Neither account may change them.
"""

from collections.abc import Iterator

from tapestry.apis import keys
from tapestry.controlplane.volume_matching import SELECTED_NODE
from tapestry.kube.objects import Object
from tapestry.kube.resources import (
    CLUSTER_ROLES,
    CONFIGMAPS,
    DISRUPTION_BUDGETS,
    ENDPOINT_SLICES,
    INGRESSES,
    LIMIT_RANGES,
    NAMESPACES,
    NETWORK_POLICIES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_QUOTAS,
    ROLE_BINDINGS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from tapestry.manager.admission_policies import annotation, cel, label, only_for, policy_with_binding, rule
from tapestry.manager.volume_policies import POD_SOURCES
from tapestry.tenants.api_ingress import PASSTHROUGH_ANNOTATIONS, SAFE_VALUE
from tapestry.tenants.host_connection import SHARED_NAMESPACE
from tapestry.tenants.host_objects import ACCOUNT, API_SERVICE, NAMESPACE_PREFIX
from tapestry.tenants.host_rights import HOST_ACCOUNT
from tapestry.tenants.sync.ingress_translation import MAX_PATHS, SAFE_PATH
from tapestry.tenants.sync.network_policy_translation import MAX_PEERS
from tapestry.tenants.tenant_binding import ISOLATION_LEVELS

HOST_POLICY, TENANT_POLICY = "tapestry-host", "tapestry-tenants"
ACCOUNTS = "system:serviceaccount:"
SYSTEM_PRIORITIES = "system-"
"""Prefix of the PriorityClasses of Kubernetes itself."""

HOST_RESOURCES = {
    NAMESPACES: ("namespaces",),
    SERVICE_ACCOUNTS: ("serviceaccounts", "serviceaccounts/token"),
    **{
        kind: (kind.plural,)
        for kind in (
            *(ROLE_BINDINGS, RESOURCE_QUOTAS, LIMIT_RANGES, NETWORK_POLICIES),
            *(SERVICES, ENDPOINT_SLICES, INGRESSES),
        )
    },
}
TENANT_RESOURCES = {
    kind: (kind.plural,)
    for kind in (
        *(PODS, CONFIGMAPS, SECRETS, SERVICES, ENDPOINT_SLICES, PERSISTENT_VOLUME_CLAIMS),
        *(INGRESSES, NETWORK_POLICIES, DISRUPTION_BUDGETS),
    )
}

VARIABLES = [
    {"name": "current", "expression": "object != null ? object : oldObject"},
    {"name": "tenant", "expression": label("namespaceObject", keys.CLUSTER_BINDING_UID)},
    {"name": "oldTenant", "expression": label("oldObject", keys.CLUSTER_BINDING_UID)},
    {"name": "newTenant", "expression": label("object", keys.CLUSTER_BINDING_UID)},
]
SIDES = (("oldObject", "oldTenant"), ("object", "newTenant"))
"""The object before and after a write, with the variables that name their tenants."""


def host_policies() -> Iterator[Object]:
    """Yield both policies and their bindings."""
    is_host = f"request.userInfo.username == {cel(f'{ACCOUNTS}{SHARED_NAMESPACE}:{HOST_ACCOUNT}')}"
    is_tenant = (
        f"request.userInfo.username.startsWith({cel(f'{ACCOUNTS}{NAMESPACE_PREFIX}')})"
        f" && request.userInfo.username.endsWith({cel(f':{ACCOUNT}')})"
    )
    for name, condition, resources, rules in (
        (HOST_POLICY, is_host, HOST_RESOURCES, list(host_rules())),
        (TENANT_POLICY, is_tenant, TENANT_RESOURCES, list(tenant_rules())),
    ):
        for obj in policy_with_binding(name, condition, resources, VARIABLES, rules):
            labels = {**obj["metadata"]["labels"], keys.MANAGED_BY: keys.TAPESTRY}
            yield {**obj, "metadata": {**obj["metadata"], "labels": labels}}


# -- the account of the process of planes


def host_rules() -> Iterator[Object]:
    yield from namespace_rules()
    yield from setup_rules()
    yield from account_rules()
    yield from api_ingress_rules()
    spec = "object.spec"
    yield rule(
        only_for(
            ["services"],
            f"object == null || (!has({spec}.type) || {spec}.type == 'ClusterIP')"
            f" && (!has({spec}.externalIPs) || size({spec}.externalIPs) == 0)"
            f" && (!has({spec}.selector) || size({spec}.selector) == 0)",
        ),
        "the account of the planes may only write Services without a selector and without external addresses",
    )


def namespace_rules() -> Iterator[Object]:
    """Yield the rules for namespaces: only those of tenants, which stay those of the same tenant."""
    marked = " && ".join(
        f"({obj} == null || {label(obj, keys.MANAGED_BY)} == {cel(keys.TAPESTRY)}"
        f" && {label(obj, keys.VIRTUAL_CLUSTER)} != '' && variables.{tenant} != '')"
        for obj, tenant in SIDES
    )
    yield rule(
        only_for(
            ["namespaces"],
            f"variables.current.metadata.name.startsWith({cel(NAMESPACE_PREFIX)}) && {marked}"
            " && (object == null || oldObject == null || variables.oldTenant == variables.newTenant)",
        ),
        f"the account of the planes may only write namespaces {NAMESPACE_PREFIX}* with the labels of a tenant",
    )
    levels = cel(sorted(ISOLATION_LEVELS.values()))
    yield rule(
        only_for(["namespaces"], f"object == null || {label('object', keys.POD_SECURITY_ENFORCE)} in {levels}"),
        "a namespace of a tenant enforces the Pod Security level restricted or baseline",
    )


def setup_rules() -> Iterator[Object]:
    """Yield the rules for objects in namespaces: only the setup of tenants."""
    is_own_token = (
        f"request.resource.resource == 'serviceaccounts' && request.namespace == {cel(SHARED_NAMESPACE)}"
        f" && request.name == {cel(HOST_ACCOUNT)} && {is_token_request()}"
    )
    place = f"request.namespace.startsWith({cel(NAMESPACE_PREFIX)}) && variables.tenant != ''"
    is_labelled = f"{label('namespaceObject', keys.MANAGED_BY)} == {cel(keys.TAPESTRY)}"
    yield rule(
        f"request.resource.resource == 'namespaces' || {is_own_token} || {place} && {is_labelled}",
        "the account of the planes may only write in the namespaces of tenants",
    )
    marked = " && ".join(
        f"({obj} == null || {label(obj, keys.TENANT_SETUP)} == 'true' && variables.{tenant} == variables.tenant)"
        for obj, tenant in SIDES
    )
    yield rule(
        f"request.resource.resource == 'namespaces' || {is_token_request()} || {marked}",
        f"the account of the planes may only write objects with the label {keys.TENANT_SETUP} of the same tenant",
    )


def account_rules() -> Iterator[Object]:
    """Yield the rules for accounts of tenants: one with fixed rights, and its tokens, and one of the pods without."""
    accounts, name = ["serviceaccounts"], "variables.current.metadata.name"
    is_own_token = f"request.name == {cel(ACCOUNT)} || request.namespace == {cel(SHARED_NAMESPACE)}"
    of_pods = f"{name} == {annotation('namespaceObject', keys.POD_ACCOUNT)} && {name} != 'default'"
    yield rule(
        only_for(
            accounts,
            f"{is_token_request()} ? {is_own_token} : object == null || {name} == {cel(ACCOUNT)} || {of_pods}",
        ),
        f"the account of the planes may only write ServiceAccounts {ACCOUNT} and those of pods, and request the tokens"
        " of the former and its own",
    )
    annotations, old = "object.metadata.annotations", "oldObject.metadata.annotations"
    unchanged = f"oldObject != null && has({old}) && key in {old} && {old}[key] == {annotations}[key]"
    without_token = "has(object.automountServiceAccountToken) && !object.automountServiceAccountToken"
    no_annotations = f"!has({annotations}) || {annotations}.all(key, {unchanged})"
    yield rule(
        only_for(accounts, f"{is_token_request()} || object == null || {without_token} && ({no_annotations})"),
        "the account of the planes may only write ServiceAccounts whose tokens are not mounted, and no annotations",
    )
    subject = f"each.kind == 'ServiceAccount' && each.name == {cel(ACCOUNT)} && each.namespace == request.namespace"
    role = f"object.roleRef.kind == {cel(CLUSTER_ROLES.kind)} && object.roleRef.name == {cel(ACCOUNT)}"
    yield rule(
        only_for(
            ["rolebindings"],
            f"object == null || {role} && (!has(object.subjects) || object.subjects.all(each, {subject}))",
        ),
        f"the account of the planes may only bind ClusterRole {ACCOUNT} to the account of the same namespace",
    )


def api_ingress_rules() -> Iterator[Object]:
    """Yield the rules for the Ingresses to the APIs of planes: one host each, and no settings but to pass TLS on."""
    spec, kinds = "object.spec", [INGRESSES.plural]
    own_service = f"has(path.backend.service) && path.backend.service.name == {cel(API_SERVICE)}"
    own_rules = (
        f"has({spec}.rules) && size({spec}.rules) == 1 && {spec}.rules.all(each, has(each.host)"
        f" && has(each.http) && each.http.paths.all(path, {own_service}))"
    )
    own_hosts = f"{spec}.tls.all(each, has(each.hosts) && each.hosts.all(host, host == {spec}.rules[0].host))"
    yield rule(
        only_for(
            kinds,
            f"object == null || !has({spec}.defaultBackend) && {own_rules} && (!has({spec}.tls) || {own_hosts})",
        ),
        f"spec.rules: the account of the planes may only write Ingresses of one host to the Service {API_SERVICE}",
    )
    annotations, old = "object.metadata.annotations", "oldObject.metadata.annotations"
    unchanged = f"oldObject != null && has({old}) && key in {old} && {old}[key] == {annotations}[key]"
    safe = f"key in {cel(sorted(PASSTHROUGH_ANNOTATIONS))} && {annotations}[key].matches({cel(SAFE_VALUE)})"
    yield rule(
        only_for(kinds, f"object == null || !has({annotations}) || {annotations}.all(key, {safe} || {unchanged})"),
        "metadata.annotations: the account of the planes may only let the ingress controller pass TLS through",
    )


def is_token_request() -> str:
    return "(has(request.subResource) && request.subResource == 'token')"


# -- the accounts of tenants


def tenant_rules() -> Iterator[Object]:
    own = " && ".join(
        f"({obj} == null || variables.{tenant} != '' && variables.{tenant} == variables.tenant"
        f" && {label(obj, keys.MANAGED_BY)} == {cel(keys.TAPESTRY)} && {label(obj, keys.TENANT_SETUP)} == '')"
        for obj, tenant in SIDES
    )
    yield rule(own, "a tenant may only write objects with its labels, and not those of its setup")
    yield from pod_rules()
    yield rule(
        only_for(
            ["secrets"], "object == null || !has(object.type) || object.type != 'kubernetes.io/service-account-token'"
        ),
        "type: a tenant may have no tokens of accounts in the host cluster",
    )
    yield from service_rules()
    yield from claim_rules()
    yield from ingress_rules()
    yield from network_policy_rules()
    yield from budget_rules()


def pod_rules() -> Iterator[Object]:
    creates, spec = "request.operation != 'CREATE'", "object.spec"
    account = annotation("namespaceObject", keys.POD_ACCOUNT)
    yield rule(
        only_for(
            ["pods"],
            f"{creates} || has({spec}.automountServiceAccountToken) && !{spec}.automountServiceAccountToken"
            f" && (!has({spec}.serviceAccountName) || {spec}.serviceAccountName in ['', 'default', {account}]"
            f" && {spec}.serviceAccountName != {cel(ACCOUNT)})",
        ),
        "spec.serviceAccountName: pods of a tenant have only the account of their namespace, and not its token",
    )
    sources = " || ".join(f"has(volume.{source})" for source in POD_SOURCES)
    no_token = (
        "!has(volume.projected) || !has(volume.projected.sources)"
        " || volume.projected.sources.all(each, !has(each.serviceAccountToken))"
    )
    volumes = f"{spec}.volumes.all(volume, ({sources}) && ({no_token}))"
    yield rule(
        only_for(["pods"], f"{creates} || !has({spec}.volumes) || {volumes}"),
        f"spec.volumes: only {', '.join(POD_SOURCES)} are allowed, and no tokens",
    )
    priority, classes = f"{spec}.priorityClassName", annotation("namespaceObject", keys.PRIORITY_CLASSES)
    is_offered = f"{priority} in {classes}.split(',') && !{priority}.startsWith({cel(SYSTEM_PRIORITIES)})"
    yield rule(
        only_for(["pods"], f"{creates} || has({priority}) && {is_offered}"),
        "spec.priorityClassName: a tenant may only have the classes that its HostCluster allows",
    )


def claim_rules() -> Iterator[Object]:
    """Yield the rules for claims: the host cluster provisions a new volume of an offered class for each."""
    spec, claims = "object.spec", [PERSISTENT_VOLUME_CLAIMS.plural]
    volume = f"(has({spec}.volumeName) ? {spec}.volumeName : '')"
    bound = "(has(oldObject.spec.volumeName) ? oldObject.spec.volumeName : '')"
    yield rule(
        only_for(claims, f"object == null || {volume} == (oldObject == null ? '' : {bound})"),
        "spec.volumeName: the host cluster chooses the volumes of a tenant",
    )
    for field in ("dataSource", "dataSourceRef", "selector", "volumeAttributesClassName"):
        message = f"spec.{field}: a tenant gets new and empty volumes with the default attributes of their class"
        yield rule(only_for(claims, f"object == null || !has({spec}.{field})"), message)
    offered = f"(',' + {annotation('namespaceObject', keys.OFFERED_CLASSES)} + ',')"
    is_offered = f"has({spec}.storageClassName) && {offered}.contains(',' + {spec}.storageClassName + ',')"
    yield rule(
        only_for(claims, f"request.operation != 'CREATE' || {is_offered} && {spec}.storageClassName != ''"),
        "spec.storageClassName: the host cluster does not offer this class to tenants",
    )
    own = f"key.startsWith({cel(keys.PREFIX)}) || key == {cel(SELECTED_NODE)}"
    old = "oldObject.metadata.annotations"
    unchanged = f"oldObject != null && has({old}) && key in {old} && {old}[key] == object.metadata.annotations[key]"
    yield rule(
        only_for(
            claims,
            f"object == null || !has(object.metadata.annotations)"
            f" || object.metadata.annotations.all(key, {own} || {unchanged})",
        ),
        f"metadata.annotations: a tenant may only set {keys.PREFIX}* and {SELECTED_NODE}",
    )


def service_rules() -> Iterator[Object]:
    """Yield the rules for Services: what the labels of the namespace allow."""
    spec, type = "object.spec", "(has(object.spec.type) ? object.spec.type : 'ClusterIP')"
    no_balancer_ports = f"has({spec}.allocateLoadBalancerNodePorts) && !{spec}.allocateLoadBalancerNodePorts"
    no_ports = f"(!has({spec}.ports) || {spec}.ports.all(each, !has(each.nodePort) || each.nodePort == 0))"
    node_ports = f"{type} != 'NodePort' && ({type} != 'LoadBalancer' || {no_balancer_ports}) && {no_ports}"
    yield service_rule("node-ports", node_ports, "spec.type: this tenant may have no node ports")
    external_ips = f"!has({spec}.externalIPs) || size({spec}.externalIPs) == 0"
    yield service_rule("external-ips", external_ips, "spec.externalIPs: this tenant may have no external addresses")
    yield service_rule("external-names", f"{type} != 'ExternalName'", "spec.type: this tenant may have no ExternalName")


def service_rule(permission: str, expression: str, message: str) -> Object:
    """Return a rule for Services in namespaces whose labels do not allow something."""
    return rule(only_for(["services"], f"object == null || {is_allowed(permission)} || {expression}"), message)


def is_allowed(permission: str) -> str:
    return f"{label('namespaceObject', keys.ALLOWS_PREFIX + permission)} == 'true'"


def ingress_rules() -> Iterator[Object]:
    """Yield the rules for Ingresses: only hosts of the tenant, and nothing that changes the controller otherwise."""
    spec, suffix = "object.spec", annotation("namespaceObject", keys.INGRESS_SUFFIX)
    class_name = annotation("namespaceObject", keys.INGRESS_CLASS)
    yield ingress_rule(
        f"{suffix} != '' && has({spec}.ingressClassName) && {spec}.ingressClassName == {class_name}",
        "spec.ingressClassName: this tenant may only have the class that its HostCluster offers",
    )
    own_rules = f"has({spec}.rules) && {spec}.rules.all(each, has(each.host) && each.host.endsWith({suffix}))"
    own_hosts = f"has(each.hosts) && size(each.hosts) > 0 && each.hosts.all(host, host.endsWith({suffix}))"
    yield ingress_rule(
        f"!has({spec}.defaultBackend) && {own_rules} && (!has({spec}.tls) || {spec}.tls.all(each, {own_hosts}))",
        "spec.rules: a tenant may only have hosts below its domain, and no default backend",
    )
    few = f"has({spec}.rules) && size({spec}.rules) <= {MAX_PATHS}"
    few_paths = f"{spec}.rules.all(each, !has(each.http) || size(each.http.paths) <= {MAX_PATHS})"
    yield ingress_rule(f"{few} && {few_paths}", f"spec.rules: a tenant may have {MAX_PATHS} rules and paths")
    safe = f"(!has(path.path) || path.path.matches({cel(SAFE_PATH)})) && has(path.backend.service)"
    yield ingress_rule(
        f"!has({spec}.rules) || {spec}.rules.all(each, !has(each.http) || each.http.paths.all(path, {safe}))",
        "spec.rules: a tenant may only have plain paths that lead to Services",
    )
    annotations = "object.metadata.annotations"
    yield ingress_rule(
        f"!has({annotations}) || {annotations}.all(key, key.startsWith({cel(keys.PREFIX)}))",
        "metadata.annotations: a tenant may have no settings of an ingress controller",
    )


def ingress_rule(expression: str, message: str) -> Object:
    return rule(only_for(["ingresses"], f"object == null || {expression}"), message)


def network_policy_rules() -> Iterator[Object]:
    """Yield the rules for NetworkPolicies: they may not allow more than the isolation of the namespace does."""
    yield rule(
        only_for(
            ["networkpolicies"],
            f"object == null || {is_allowed('network-policies')} && {selects_tenant('object.spec.podSelector')}",
        ),
        "a tenant may only have network policies if its binding syncs them, and only for its own pods",
    )
    for field, side in (("ingress", "from"), ("egress", "to")):
        rules = f"object.spec.{field}"
        few_peers = f"{rules}.all(each, !has(each.{side}) || size(each.{side}) <= {MAX_PEERS})"
        few = f"size({rules}) <= {3 * MAX_PEERS} && {few_peers}"  # a rule may need two more, for the plane and for DNS
        yield rule(
            only_for(["networkpolicies"], f"object == null || !has({rules}) || {few}"),
            f"spec.{field}: a tenant may have {MAX_PEERS} rules and peers",
        )
    forbidden = f"{annotation('namespaceObject', keys.FORBIDDEN_RANGES)}.split(',')"
    overlaps = "cidr(peer.ipBlock.cidr).containsCIDR(range) || cidr(range).containsCIDR(peer.ipBlock.cidr)"
    left_out = "has(peer.ipBlock.except) && peer.ipBlock.except.exists(each, cidr(each).containsCIDR(range))"
    block = f"!has(peer.ipBlock) || {forbidden}.all(range, !({overlaps}) || {left_out})"
    peer = f"!has(peer.namespaceSelector) && ({block})"
    endpoints = f"{annotation('namespaceObject', keys.PLANE_ENDPOINTS)}.split(',')"
    endpoint = f"has(port.port) && !has(port.endPort) && peer.ipBlock.cidr + ':' + string(port.port) in {endpoints}"
    plane = f"has(rule.ports) && size(rule.ports) > 0 && has(peer.ipBlock) && rule.ports.all(port, {endpoint})"
    for field, side, exception in (("ingress", "from", "false"), ("egress", "to", plane)):
        rules, peers = f"object.spec.{field}", f"rule.{side}"
        allowed = f"has({peers}) && size({peers}) > 0 && {peers}.all(peer, {exception} || {peer})"
        yield rule(
            only_for(["networkpolicies"], f"object == null || !has({rules}) || {rules}.all(rule, {allowed})"),
            f"spec.{field}: a tenant may only allow its own pods, and addresses outside the forbidden ranges",
        )


def budget_rules() -> Iterator[Object]:
    spec = "object.spec"
    number = f"has({spec}.minAvailable) && type({spec}.minAvailable) == int && !has({spec}.maxUnavailable)"
    yield rule(
        only_for(
            ["poddisruptionbudgets"],
            f"object == null || {is_allowed('disruption-budgets')} && has({spec}.selector)"
            f" && {selects_tenant(f'{spec}.selector')} && {number}",
        ),
        "a tenant may only have disruption budgets if its binding syncs them, and only for a number of its own pods",
    )


def selects_tenant(selector: str) -> str:
    """Return the check that a selector requires the label of the tenant."""
    labels, key = f"{selector}.matchLabels", cel(keys.CLUSTER_BINDING_UID)
    return f"has({labels}) && {key} in {labels} && {labels}[{key}] == variables.tenant"
