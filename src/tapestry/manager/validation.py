"""What can be said about a binding without asking anybody: its own spec, and the other bindings.

Two bindings may neither have one clusterID nor lead to one cluster.  Which of the two may stay is decided by what is
written in them, so it is the same after every restart: the one that was accepted before, else the older one.
"""

from collections.abc import Iterable, Iterator

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDING, ClusterBindingSpec
from tapestry.apis.names import syncer_election
from tapestry.kube.crds import InvalidSpec, decode
from tapestry.kube.names import SUBDOMAIN_LIMIT
from tapestry.kube.objects import Object, annotations_of, name_of, uid_of, value_at
from tapestry.manager.faults import Fault, Patience

LONGEST_NAME = SUBDOMAIN_LIMIT - len(syncer_election(""))


def checked_spec(binding: Object, others: Iterable[Object], secret_namespaces: Iterable[str]) -> ClusterBindingSpec:
    """The spec of a binding that may be served, as far as it alone can tell; raises a Fault that waits for a change."""
    try:
        spec = decode(CLUSTER_BINDING, binding)
    except InvalidSpec as error:
        raise Fault("ValidationFailed", str(error)) from error
    if found := "; ".join(complaints(name_of(binding), spec)):
        raise Fault("ValidationFailed", found)
    rivals = [other for other in others if value_at(other, "spec", "clusterID") == spec.cluster_id]
    if (holder := first_of(binding, rivals)) is not binding:
        held = f"spec.clusterID: {spec.cluster_id} belongs to ClusterBinding {name_of(holder)}"
        raise Fault("DuplicateClusterID", f"{held}; make this one anew with another")
    allowed = sorted(secret_namespaces)
    if spec.secret_ref.namespace not in allowed:
        where = f"spec.secretRef.namespace: {spec.secret_ref.namespace} is not one of {', '.join(allowed)}"
        message = f"{where}; move the Secret, or start the manager with --kubeconfig-namespace"
        raise Fault("SecretNamespaceNotAllowed", message, condition="Connected")
    return spec


def complaints(name: str, spec: ClusterBindingSpec) -> Iterator[str]:
    """What is wrong with a spec that has the right shape, each with its path."""
    if len(name) > LONGEST_NAME:
        yield f"metadata.name: {len(name)} characters are over {LONGEST_NAME}"
    if not spec.mount_namespace:
        yield "spec.mountNamespace: is required; name the namespace below where everything of ours is to live"


def check_identity(binding: Object, identity: str, others: Iterable[Object]) -> None:
    """Raises a Fault unless `identity` is the cluster that the binding is to lead to, and nobody else's."""
    pinned = value_at(binding, "status", "identity")
    if pinned not in (None, identity) and annotations_of(binding).get(keys.APPROVE_IDENTITY) != identity:
        message = (
            f"the cluster behind the kubeconfig is {identity}, and {pinned} was bound; "
            f"if that is meant, annotate the binding with {keys.APPROVE_IDENTITY}={identity}"
        )
        raise Fault("IdentityChanged", message, condition="Connected", patience=Patience.RECHECK)
    holders = [other for other in others if value_at(other, "status", "identity") == identity]
    if holders and (pinned != identity or first_of(binding, holders) is not binding):
        message = f"cluster {identity} is bound by ClusterBinding {name_of(holders[0])} already; delete one of the two"
        raise Fault("DuplicateCluster", message, condition="Connected", patience=Patience.RECHECK)


def first_of(binding: Object, rivals: Iterable[Object]) -> Object:
    """Of several bindings that want the same, the one that may have it."""
    return min((binding, *rivals), key=precedence)


def precedence(binding: Object) -> tuple[bool, str, str]:
    """Lower goes first: accepted before, then older; the UID decides between two of one second."""
    accepted = value_at(binding, "status", "identity") is not None
    return not accepted, binding["metadata"].get("creationTimestamp", ""), uid_of(binding)
