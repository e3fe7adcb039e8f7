"""Admission policies for the accounts of syncers and of the manager in the virtual cluster.

RBAC restricts requests by name.  The policy of syncers restricts what RBAC cannot: which objects a syncer may create,
and the changes of objects that belong to its binding by a field.  It asks RBAC with `authorizer`, so the roles of a
binding decide.  The manager may write any role; its policy allows only those of syncers.  `tapestry manifests` installs
both, and the manager cannot change them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.names import VIRTUAL_NODE_PREFIX, syncer_name
from tapestry.apis.permissions import SYNC, SYNCER_ROLE
from tapestry.apis.policies import POLICIES
from tapestry.kube.conditions import new_condition
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIGMAPS,
    CSI_NODES,
    EVENTS,
    LEASES,
    NODE_LEASE_NAMESPACE,
    NODES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    Resource,
)

SYNCER_POLICY, MANAGER_POLICY = "tapestry-syncers", "tapestry-manager"
PLACEHOLDER_IMAGE = "host-ports-taken-below"
"""Image of the pods that reserve host ports.  It does not exist: these pods never run."""
RESTRICTED = "Restricted"
POLICIES_MISSING = "AdmissionPoliciesMissing"
PREFIX = syncer_name("")

SYNCER_RESOURCES = {
    NODES: ("nodes", "nodes/status"),
    PODS: ("pods", "pods/status"),
    SECRETS: ("secrets",),
    CONFIGMAPS: ("configmaps",),
    SERVICE_ACCOUNTS: ("serviceaccounts/token",),
    EVENTS: ("events",),
    CSI_NODES: ("csinodes",),
    LEASES: ("leases",),
    CLUSTER_BINDINGS: ("clusterbindings",),
    POLICIES: (f"{POLICIES.plural}/status",),
}
MANAGER_RESOURCES = {
    **{kind: (kind.plural,) for kind in (ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS)},
    SERVICE_ACCOUNTS: ("serviceaccounts/token",),
}
NAMESPACE_RESOURCES = (
    *("configmaps", "persistentvolumeclaims", "persistentvolumeclaims/status", "pods/eviction"),
    *("secrets", "serviceaccounts/token"),
)
"""Resources in the Roles of syncers in namespaces with pods."""
NAMED_RESOURCES = ("secrets", "serviceaccounts/token")
"""Those that are only granted by name."""
BINDING_RESOURCES = (
    *("clusterbindings", "clusterbindings/status", "nodes", "nodes/status", "csinodes", "leases"),
    "persistentvolumes",
)
"""Resources in the ClusterRoles of syncers.  All but PersistentVolumes, which are only read, are granted by name."""

MATCH_DEFAULTS: Object = {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}}
"""Constraints of a policy that select everything, which the server adds."""


def admission_policies(namespace: str, kubeconfig_namespaces: Iterable[str]) -> Iterator[Object]:
    """Yield both policies and their bindings for a manager in `namespace`."""
    homes = sorted({namespace, *kubeconfig_namespaces})
    is_syncer = f"request.userInfo.username.startsWith({cel(f'system:serviceaccount:{namespace}:{PREFIX}')})"
    yield from policy_with_binding(
        SYNCER_POLICY, is_syncer, SYNCER_RESOURCES, VARIABLES, list(syncer_rules(namespace, homes))
    )
    is_manager = f"request.userInfo.username == {cel(f'system:serviceaccount:{namespace}:tapestry-manager')}"
    yield from policy_with_binding(
        MANAGER_POLICY, is_manager, MANAGER_RESOURCES, VARIABLES[:1], list(manager_rules(namespace, homes))
    )


def policy_with_binding(
    name: str,
    condition: str,
    resources: Mapping[Resource, Sequence[str]],
    variables: Sequence[Object],
    rules: list[Object],
) -> Iterator[Object]:
    metadata = {"name": name, "labels": {"app.kubernetes.io/part-of": keys.TAPESTRY}}
    matched = [
        {
            "apiGroups": [kind.group],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE", "DELETE"],
            "resources": list(names),
            "scope": "*",
        }
        for kind, names in resources.items()
    ]
    yield {
        "apiVersion": ADMISSION_POLICIES.api_version,
        "kind": ADMISSION_POLICIES.kind,
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": matched},
            "matchConditions": [{"name": "account", "expression": condition}],
            "variables": list(variables),
            "validations": list(rules),
        },
    }
    yield {
        "apiVersion": ADMISSION_POLICY_BINDINGS.api_version,
        "kind": ADMISSION_POLICY_BINDINGS.kind,
        "metadata": metadata,
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }


# -- expressions


def cel(value: object) -> str:
    """Return a string, or a list of strings, as a CEL literal."""
    return msgspec.json.encode(value).decode()


def label(obj: str, key: str) -> str:
    """Return the value of a label; empty if there is none."""
    labels, name = f"{obj}.metadata.labels", cel(key)
    return f"({obj} != null && has({labels}) && {name} in {labels} ? {labels}[{name}] : '')"


def annotation(obj: str, key: str) -> str:
    annotations, name = f"{obj}.metadata.annotations", cel(key)
    return f"({obj} != null && has({annotations}) && {name} in {annotations} ? {annotations}[{name}] : '')"


def may_sync(name: str) -> str:
    """Return the check that the account may sync the binding with this name, UID or clusterID."""
    kind = f"authorizer.group({cel(CLUSTER_BINDINGS.group)}).resource({cel(CLUSTER_BINDINGS.plural)})"
    return f"{kind}.name({name}).check({cel(SYNC)}).allowed()"


def unchanged(field: str, empty: str) -> str:
    """Return the check that an optional field of the metadata does not change."""
    new, old = f"object.metadata.{field}", f"oldObject.metadata.{field}"
    return f"(has({new}) ? {new} : {empty}) == (has({old}) ? {old} : {empty})"


def without_finalizer(obj: str) -> str:
    finalizers = f"{obj}.metadata.finalizers"
    return f"(has({finalizers}) ? {finalizers} : []).filter(each, each != {cel(keys.SYNCER_FINALIZER)})"


def only_for(resources: Iterable[str], expression: str) -> str:
    return f"!(request.resource.resource in {cel(list(resources))}) || ({expression})"


def rule(expression: str, message: str) -> Object:
    return {"expression": expression, "message": message, "reason": "Forbidden"}


VARIABLES = [
    {"name": "current", "expression": "object != null ? object : oldObject"},
    {"name": "oldBinding", "expression": label("oldObject", keys.CLUSTER_BINDING_UID)},
    {"name": "newBinding", "expression": label("object", keys.CLUSTER_BINDING_UID)},
    {
        "name": "node",
        "expression": "has(variables.current.spec) && has(variables.current.spec.nodeName) "
        "? variables.current.spec.nodeName : ''",
    },
]
# An expression may call `authorizer` twice: each call has more than a third of the cost that Kubernetes allows.
OWN_NODE = "authorizer.group('').resource('nodes').subresource('status').name({}).check('patch').allowed()"


def syncer_rules(namespace: str, homes: Sequence[str]) -> Iterator[Object]:
    """Yield the rules for syncers; `homes` are the namespaces of kubeconfigs."""
    was_labelled = f"(oldObject == null || {may_sync('variables.oldBinding')})"
    is_labelled = f"(object == null || {may_sync('variables.newBinding')})"
    named = f"variables.current.metadata.name.startsWith({cel(VIRTUAL_NODE_PREFIX)})"
    yield rule(
        only_for(["nodes"], f"{named} && {was_labelled} && {is_labelled}"),
        "a syncer may only write nodes with the label of its own binding",
    )
    yield rule(
        only_for(["csinodes"], f"{OWN_NODE.format('variables.current.metadata.name')} && {is_labelled}"),
        "a syncer may only write the CSINodes of its own nodes",
    )
    by_name = "authorizer.group('coordination.k8s.io').resource('leases').namespace(request.namespace)"
    places, name = cel([namespace, NODE_LEASE_NAMESPACE]), "variables.current.metadata.name"
    yield rule(
        only_for(
            ["leases"],
            f"request.namespace in {places}"
            f" && (request.namespace == {cel(NODE_LEASE_NAMESPACE)} || {name}.startsWith({cel(PREFIX)}))"
            f" && {by_name}.name({name}).check('update').allowed()",
        ),
        "a syncer may only write the Leases of its own nodes and of its election",
    )
    yield rule(
        only_for(["pods"], f"variables.node != '' && {OWN_NODE.format('variables.node')}"),
        "a syncer may only write pods on its own nodes",
    )
    daemon = f"{annotation('object', keys.RUNNING_DAEMONSET)} == {annotation('oldObject', keys.RUNNING_DAEMONSET)}"
    yield rule(
        only_for(["pods"], f"request.operation != 'UPDATE' || {unchanged('ownerReferences', '[]')} && {daemon}"),
        "a syncer may not change what a pod belongs to",
    )
    yield rule(
        only_for(["pods"], f"object == null || request.namespace != {cel(keys.HOST_PORTS_NAMESPACE)} || {PLACEHOLDER}"),
        f"a syncer may only create pods in {keys.HOST_PORTS_NAMESPACE} that reserve host ports",
    )
    bound = "object.spec.boundObjectRef"
    yield rule(
        only_for(["serviceaccounts"], f"has({bound}) && {bound} != null && {bound}.kind == 'Pod'"),
        "a syncer may only request tokens that are bound to a pod",
    )
    same = " && ".join(
        unchanged(field, empty) for field, empty in (("labels", "{}"), ("annotations", "{}"), ("ownerReferences", "[]"))
    )
    finalizers = f"{without_finalizer('object')} == {without_finalizer('oldObject')}"
    yield rule(
        only_for(["clusterbindings"], f"object != null && object.spec == oldObject.spec && {same} && {finalizers}"),
        "a syncer may only change the status and its own finalizer of a ClusterBinding",
    )
    yield rule(
        only_for([POLICIES.plural], may_sync("oldObject.spec.cluster")),
        "a syncer may only write the status of policies for its own binding",
    )
    has_same_keys = " && ".join(
        f"(!has(object.{field}) || object.{field}.all(key, has(oldObject.{field}) && key in oldObject.{field}))"
        for field in ("data", "binaryData")
    )
    opted_in = f"{annotation('oldObject', keys.SYNC_BACK)} == 'true' && {has_same_keys}"
    yield rule(
        only_for(
            ["secrets", "configmaps"],
            f"object != null && oldObject != null && {same} && {unchanged('finalizers', '[]')}"
            f" && (request.namespace in {cel(homes)} || {opted_in})",
        ),
        "a syncer may only change values of its kubeconfig, and of objects that opted in to sync-back",
    )
    sources = [
        f"({obj} == null || has({obj}.reportingComponent) && {obj}.reportingComponent.startsWith({cel(PREFIX)})"
        f" && {may_sync(f'{obj}.reportingComponent.substring({len(PREFIX)})')})"
        for obj in ("oldObject", "object")
    ]
    yield rule(
        only_for(["events"], " && ".join(sources)), "a syncer may only write events that name it as their source"
    )


CONTAINER_FIELDS = (
    "command",
    "args",
    "env",
    "envFrom",
    "volumeMounts",
    "volumeDevices",
    "securityContext",
    "lifecycle",
)
PLACEHOLDER = (
    "("
    + " && ".join(
        [
            may_sync("variables.newBinding"),
            "size(object.spec.containers) == 1",
            f"object.spec.containers[0].image == {cel(PLACEHOLDER_IMAGE)}",
            *(f"!has(object.spec.containers[0].{field})" for field in CONTAINER_FIELDS),
            *(
                f"(!has(object.spec.{field}) || size(object.spec.{field}) == 0)"
                for field in ("volumes", "initContainers")
            ),
            "(!has(object.spec.ephemeralContainers) || size(object.spec.ephemeralContainers) == 0)",
            *(
                f"(!has(object.spec.{field}) || !object.spec.{field})"
                for field in ("hostNetwork", "hostPID", "hostIPC")
            ),
            "has(object.spec.automountServiceAccountToken) && !object.spec.automountServiceAccountToken",
        ]
    )
    + ")"
)
"""Check that a pod only reserves host ports."""


def manager_rules(namespace: str, homes: Sequence[str]) -> Iterator[Object]:
    """Yield the rules for roles that the manager writes."""
    prefix, home = cel(PREFIX), cel(namespace)
    yield rule(
        "(request.resource.resource == 'serviceaccounts' ? request.name : variables.current.metadata.name)"
        f".startsWith({prefix})",
        f"the manager may only write roles, and request tokens of accounts, named {PREFIX}*",
    )
    yield rule(
        "!has(request.namespace) || request.namespace == '' || !request.namespace.startsWith('kube-')",
        "the manager may not grant rights in system namespaces",
    )
    subject = f"each.kind == 'ServiceAccount' && each.namespace == {home} && each.name.startsWith({prefix})"
    referred = f"(object.roleRef.name == {cel(SYNCER_ROLE)} || object.roleRef.name.startsWith({prefix}))"
    yield rule(
        only_for(
            ["rolebindings", "clusterrolebindings"],
            f"object == null || {referred} && (!has(object.subjects) || object.subjects.all(each, {subject}))",
        ),
        "the manager may only bind roles of syncers to accounts of syncers",
    )
    named = "has(each.resourceNames) && size(each.resourceNames) > 0"
    verbs = "each.verbs.all(verb, verb in ['get', 'list', 'watch', 'create', 'update', 'patch', 'delete', 'sync'])"
    yield rule(
        only_for(
            ["clusterroles"],
            "object == null || !has(object.aggregationRule) && (!has(object.rules) || object.rules.all(each, "
            f"has(each.resources) && each.resources.all(resource, resource in {cel(BINDING_RESOURCES)}) && {verbs}"
            f" && ({named} || each.resources == ['persistentvolumes']"
            " && each.verbs.all(verb, verb in ['get', 'list', 'watch']))))",
        ),
        "the manager may only grant cluster-wide rights on bindings and nodes, by name",
    )
    at_home = f"(request.namespace in {cel(homes)} ? {cel(['leases', 'secrets'])} : {cel(NAMESPACE_RESOURCES)})"
    yield rule(
        only_for(
            ["roles"],
            "object == null || !has(object.rules) || object.rules.all(each, "
            f"has(each.resources) && each.resources.all(resource, resource in {at_home}) && {verbs}"
            f" && ({named} || !each.resources.exists(resource, resource in {cel(NAMED_RESOURCES)})))",
        ),
        "the manager may only grant rights on what pods use, and on Secrets and tokens by name",
    )


# -- condition


def restricted_condition(expected: Iterable[Object], policies: Iterable[Object], bindings: Iterable[Object]) -> Object:
    """Return the condition that the expected policies are installed, as this version has them, and deny."""
    installed = {name_of(each): without_defaults(each["spec"]) for each in policies}
    bound = {value_at(each, "spec", "policyName") for each in bindings if is_denying(each)}
    wrong = [
        name_of(each)
        for each in expected
        if each["kind"] == ADMISSION_POLICIES.kind
        and (installed.get(name_of(each)) != each["spec"] or name_of(each) not in bound)
    ]
    if not wrong:
        return new_condition(RESTRICTED, True, RESTRICTED, "admission policies restrict the accounts of syncers")
    message = (
        f"{' and '.join(wrong)}: the ValidatingAdmissionPolicy is missing or differs from this version; with a stolen "
        "token of the syncer, all pods, nodes of other bindings and its own ClusterBinding could be changed, and with "
        "one of the manager, any right granted; apply `tapestry manifests` (needs Kubernetes 1.30 or later)"
    )
    return new_condition(RESTRICTED, False, POLICIES_MISSING, message)


def without_defaults(spec: Object) -> Object:
    """Return the spec of a policy without the constraints that the server adds.  Others would narrow the policy."""
    constraints = spec.get("matchConstraints") or {}
    return {
        **spec,
        "matchConstraints": {name: value for name, value in constraints.items() if MATCH_DEFAULTS.get(name) != value},
    }


def is_denying(binding: Object) -> bool:
    spec = binding["spec"]
    return (
        "Deny" in (spec.get("validationActions") or ()) and not spec.get("matchResources") and not spec.get("paramRef")
    )
