"""Everything that a cluster needs before bindings can be made in it, as objects to apply."""

from collections.abc import Iterable, Iterator, Sequence

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDING
from tapestry.apis.policies import POLICY
from tapestry.apis.rights import (
    MANAGER,
    SYNC_BACK,
    SYNC_BACK_ROLE,
    SYNCER_ABOVE,
    SYNCER_HOST_PORTS,
    SYNCER_ROLE,
    Place,
    Right,
    placed,
    rules,
)
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
from tapestry.manager.config import DEFAULT_IMAGE
from tapestry.manager.manifests import objects
from tapestry.manager.syncers import packaged, templates_in

NAME = "tapestry-manager"


def installation(
    *,
    image: str = DEFAULT_IMAGE,
    replicas: int = 2,
    namespace: str = keys.SYSTEM_NAMESPACE,
    kubeconfig_namespaces: Sequence[str] = (),
) -> Iterator[Object]:
    """The namespaces, our kinds, the rights of manager and syncers, and the manager, in the order to apply them in.

    Namespaces of kubeconfigs other than ours are expected to exist.
    """
    yield from (plain(NAMESPACES, namespace), host_ports_namespace())
    yield from (crd(CLUSTER_BINDING), crd(POLICY))
    yield plain(SERVICE_ACCOUNTS, NAME, namespace)
    yield {**plain(CLUSTER_ROLES, SYNCER_ROLE), "rules": rules(SYNCER_ABOVE)}
    yield {**plain(CLUSTER_ROLES, SYNC_BACK_ROLE), "rules": rules(SYNC_BACK)}
    manager = {"kind": SERVICE_ACCOUNTS.kind, "name": NAME, "namespace": namespace}
    everywhere = [each for each in MANAGER if not each.namespace]
    yield from granted(CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, NAME, everywhere, manager)
    for place in dict.fromkeys((namespace, *kubeconfig_namespaces)):
        places = {Place.KUBECONFIGS: place, **({Place.HOME: place} if place == namespace else {})}
        rights = [each for each in placed(MANAGER, places) if each.namespace]
        yield from granted(ROLES, ROLE_BINDINGS, NAME, rights, manager, place)
    syncers = {"kind": "Group", "apiGroup": ROLES.group, "name": f"system:serviceaccounts:{namespace}"}
    yield from granted(ROLES, ROLE_BINDINGS, SYNCER_ROLE, SYNCER_HOST_PORTS, syncers, keys.HOST_PORTS_NAMESPACE)
    values = {
        "name": NAME,
        "namespace": namespace,
        "image": image,
        "replicas": replicas,
        "kubeconfigNamespaces": ",".join(dict.fromkeys((namespace, *kubeconfig_namespaces))),
    }
    for file, text in templates_in(packaged("manager")).items():
        yield from objects(file, text, values)


def host_ports_namespace() -> Object:
    """Where pods stand for host ports; those run nowhere, so whoever forbids host ports does not mean them."""
    namespace = plain(NAMESPACES, keys.HOST_PORTS_NAMESPACE)
    labels = {**labels_of(namespace), "pod-security.kubernetes.io/enforce": "privileged"}
    return with_value(namespace, ("metadata", "labels"), labels)


def granted(
    role: Resource, binding: Resource, name: str, rights: Iterable[Right], subject: Object, place: str | None = None
) -> Iterator[Object]:
    """A role and its binding to the subject, in a namespace or for the whole cluster."""
    yield {**plain(role, name, place), "rules": rules(rights)}
    yield {
        **plain(binding, name, place),
        "roleRef": {"apiGroup": role.group, "kind": role.kind, "name": name},
        "subjects": [subject],
    }


def plain(resource: Resource, name: str, namespace: str | None = None) -> Object:
    """An object with a name, and a label that says whose it is."""
    metadata: Object = {"name": name, **({"namespace": namespace} if namespace else {})}
    metadata["labels"] = {"app.kubernetes.io/part-of": keys.TAPESTRY}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
