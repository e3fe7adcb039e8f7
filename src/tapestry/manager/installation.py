"""Manifests of a Tapestry installation: namespaces, CRDs, roles, admission policies, the manager and its Services."""

from collections.abc import Iterable, Iterator, Sequence

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDING
from tapestry.apis.permissions import (
    MANAGER_IN_MANAGEMENT,
    MANAGER_PERMISSIONS,
    MANAGER_TOKEN_PERMISSIONS,
    SYNCER_AUTHENTICATION,
    SYNCER_HOST_PORTS,
    SYNCER_IN_VIRTUAL,
    SYNCER_NODE_LEASES,
    SYNCER_ROLE,
    Permission,
    Placeholder,
    policy_rules,
    with_names,
)
from tapestry.apis.policies import POLICY
from tapestry.kube.crds import crd
from tapestry.kube.objects import Object, labels_of, with_value
from tapestry.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    Resource,
)
from tapestry.manager.admission_policies import admission_policies
from tapestry.manager.config import DEFAULT_IMAGE, DEFAULT_REPLICAS, PROFILES
from tapestry.manager.location import MANAGER_NAME
from tapestry.manager.manifests import Values, rendered_objects
from tapestry.manager.syncers import load_templates, packaged_templates

TOKENS_ROLE = "tapestry-manager-tokens"
"""Role of the manager if it issues tokens of syncers, which run in another cluster."""
METRICS_READER_ROLE = "tapestry-metrics-reader"
"""Role of accounts that read metrics of the manager and the syncers, for example of Prometheus."""
METRICS_RULES = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]


OPTIONAL_VALUES: Values = dict.fromkeys(
    (
        *("podAnnotations", "priorityClassName", "imagePullSecrets", "nodeSelector", "tolerations", "extraArgs"),
        *("extraEnv", "volumeMounts", "volumes"),
    )
)
"""Values of the manager's Deployment that only the chart sets."""


def installation_objects(
    *,
    image: str = DEFAULT_IMAGE,
    replicas: int = DEFAULT_REPLICAS,
    namespace: str = keys.SYSTEM_NAMESPACE,
    kubeconfig_namespaces: Sequence[str] = (),
    profile: str = "small",
    deployment_values: Values = OPTIONAL_VALUES,
    has_admission_policies: bool = True,
    issues_tokens: bool = False,
) -> Iterator[Object]:
    """Yield the namespaces, CRDs, roles, admission policies, the manager and what protects and exposes its pods.

    The objects are in the order to apply them.
    Other namespaces of kubeconfigs must exist.
    """
    yield from (labelled_object(NAMESPACES, namespace), host_ports_namespace())
    yield from (crd(CLUSTER_BINDING), crd(POLICY))
    if has_admission_policies:  # before the rights that they restrict
        yield from admission_policies(namespace, kubeconfig_namespaces)
    yield labelled_object(SERVICE_ACCOUNTS, MANAGER_NAME, namespace)
    yield {**labelled_object(CLUSTER_ROLES, SYNCER_ROLE), "rules": policy_rules(SYNCER_IN_VIRTUAL)}
    yield {**labelled_object(CLUSTER_ROLES, METRICS_READER_ROLE), "rules": METRICS_RULES}
    manager = {"kind": SERVICE_ACCOUNTS.kind, "name": MANAGER_NAME, "namespace": namespace}
    cluster_wide = [permission for permission in MANAGER_PERMISSIONS if not permission.namespace]
    yield from role_with_binding(CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, MANAGER_NAME, cluster_wide, manager)
    for target in dict.fromkeys((namespace, *kubeconfig_namespaces)):
        places = {
            Placeholder.KUBECONFIG_NAMESPACE: target,
            **({Placeholder.MANAGER_NAMESPACE: target} if target == namespace else {}),
        }
        permissions = [each for each in with_names(MANAGER_PERMISSIONS, places) if each.namespace]
        yield from role_with_binding(ROLES, ROLE_BINDINGS, MANAGER_NAME, permissions, manager, target)
    if issues_tokens:
        tokens = with_names(MANAGER_TOKEN_PERMISSIONS, {Placeholder.MANAGER_NAMESPACE: namespace})
        yield from role_with_binding(ROLES, ROLE_BINDINGS, TOKENS_ROLE, tokens, manager, namespace)
    syncers = {"kind": "Group", "apiGroup": ROLES.group, "name": f"system:serviceaccounts:{namespace}"}
    for shared in (SYNCER_HOST_PORTS, SYNCER_NODE_LEASES, SYNCER_AUTHENTICATION):
        (place,) = {permission.namespace for permission in shared}
        yield from role_with_binding(ROLES, ROLE_BINDINGS, SYNCER_ROLE, shared, syncers, place)
    values = {
        "name": MANAGER_NAME,
        "namespace": namespace,
        "image": image,
        "replicas": replicas,
        "kubeconfigNamespaces": ",".join(dict.fromkeys((namespace, *kubeconfig_namespaces))),
        "resources": PROFILES[profile],
        **deployment_values,
    }
    for file, text in load_templates(packaged_templates("manager")).items():
        yield from rendered_objects(file, text, values)


def management_objects(namespace: str) -> Iterator[Object]:
    """Yield the namespace, and the account of the manager, in another cluster that syncers run in."""
    yield from (labelled_object(NAMESPACES, namespace), labelled_object(SERVICE_ACCOUNTS, MANAGER_NAME, namespace))
    permissions = with_names(MANAGER_IN_MANAGEMENT, {Placeholder.MANAGER_NAMESPACE: namespace})
    manager = {"kind": SERVICE_ACCOUNTS.kind, "name": MANAGER_NAME, "namespace": namespace}
    yield from role_with_binding(ROLES, ROLE_BINDINGS, MANAGER_NAME, permissions, manager, namespace)


def host_ports_namespace() -> Object:
    """Return the namespace of placeholder pods for host ports.  They never run, so host ports are allowed there."""
    namespace = labelled_object(NAMESPACES, keys.HOST_PORTS_NAMESPACE)
    labels = {**labels_of(namespace), "pod-security.kubernetes.io/enforce": "privileged"}
    return with_value(namespace, ("metadata", "labels"), labels)


def role_with_binding(
    role: Resource,
    binding: Resource,
    name: str,
    permissions: Iterable[Permission],
    subject: Object,
    place: str | None = None,
) -> Iterator[Object]:
    """Yield a role and its binding to the subject, in one namespace or cluster-wide."""
    yield {**labelled_object(role, name, place), "rules": policy_rules(permissions)}
    yield {
        **labelled_object(binding, name, place),
        "roleRef": {"apiGroup": role.group, "kind": role.kind, "name": name},
        "subjects": [subject],
    }


def labelled_object(resource: Resource, name: str, namespace: str | None = None) -> Object:
    metadata: Object = {"name": name, **({"namespace": namespace} if namespace else {})}
    metadata["labels"] = {"app.kubernetes.io/part-of": keys.TAPESTRY}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
