"""Everything that a cluster needs before bindings can be made in it, as objects to apply."""

from collections.abc import Iterable, Iterator, Sequence

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDING
from tapestry.apis.policies import POLICY
from tapestry.apis.rights import MANAGER, SYNCER_ABOVE, SYNCER_ROLE, Place, Right, placed, rules
from tapestry.kube.crds import crd
from tapestry.kube.objects import Object
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
    """The namespace, our kinds, the rights of manager and syncers, and the manager, in the order to apply them in.

    Namespaces of kubeconfigs other than ours are expected to exist.
    """
    yield plain(NAMESPACES, namespace)
    yield from (crd(CLUSTER_BINDING), crd(POLICY))
    yield plain(SERVICE_ACCOUNTS, NAME, namespace)
    yield {**plain(CLUSTER_ROLES, SYNCER_ROLE), "rules": rules(SYNCER_ABOVE)}
    yield from granted(
        CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, [each for each in MANAGER if not each.namespace], namespace
    )
    for place in dict.fromkeys((namespace, *kubeconfig_namespaces)):
        places = {Place.KUBECONFIGS: place, **({Place.HOME: place} if place == namespace else {})}
        rights = [each for each in placed(MANAGER, places) if each.namespace]
        yield from granted(ROLES, ROLE_BINDINGS, rights, namespace, place)
    values = {
        "name": NAME,
        "namespace": namespace,
        "image": image,
        "replicas": replicas,
        "kubeconfigNamespaces": ",".join(dict.fromkeys((namespace, *kubeconfig_namespaces))),
    }
    for file, text in templates_in(packaged("manager")).items():
        yield from objects(file, text, values)


def granted(
    role: Resource, binding: Resource, rights: Iterable[Right], account_namespace: str, place: str | None = None
) -> Iterator[Object]:
    """A role of the manager's name and its binding to the manager, in a namespace or for the whole cluster."""
    yield {**plain(role, NAME, place), "rules": rules(rights)}
    yield {
        **plain(binding, NAME, place),
        "roleRef": {"apiGroup": role.group, "kind": role.kind, "name": NAME},
        "subjects": [{"kind": SERVICE_ACCOUNTS.kind, "name": NAME, "namespace": account_namespace}],
    }


def plain(resource: Resource, name: str, namespace: str | None = None) -> Object:
    """An object with a name, and a label that says whose it is."""
    metadata: Object = {"name": name, **({"namespace": namespace} if namespace else {})}
    metadata["labels"] = {"app.kubernetes.io/part-of": keys.TAPESTRY}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
