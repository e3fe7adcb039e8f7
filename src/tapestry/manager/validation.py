"""What can be said about a binding without asking anybody: its own spec, and the other bindings.

Two bindings may neither have one clusterID nor lead to one cluster.  Which of the two may stay is decided by what is
written in them, so it is the same after every restart: the one that was accepted before, else the older one.
"""

from collections.abc import Iterable, Iterator

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDING, ClusterBindingSpec
from tapestry.apis.names import syncer_lease_name
from tapestry.kube.crds import InvalidSpec, decode_spec
from tapestry.kube.names import SUBDOMAIN_LIMIT
from tapestry.kube.objects import Object, annotations_of, name_of, uid_of, value_at
from tapestry.manager.binding_errors import BindingError, RetryPolicy

MAX_NAME_LENGTH = SUBDOMAIN_LIMIT - len(syncer_lease_name(""))


def validated_spec(binding: Object, others: Iterable[Object], secret_namespaces: Iterable[str]) -> ClusterBindingSpec:
    """The spec of a binding that may be served, as far as it alone can tell; raises a Fault that waits for a change."""
    try:
        spec = decode_spec(CLUSTER_BINDING, binding)
    except InvalidSpec as error:
        raise BindingError("ValidationFailed", str(error)) from error
    if found := "; ".join(spec_errors(name_of(binding), spec)):
        raise BindingError("ValidationFailed", found)
    rivals = [other for other in others if value_at(other, "spec", "clusterID") == spec.cluster_id]
    if (holder := preferred_binding(binding, rivals)) is not binding:
        held = f"spec.clusterID: {spec.cluster_id} belongs to ClusterBinding {name_of(holder)}"
        raise BindingError("DuplicateClusterID", f"{held}; make this one anew with another")
    allowed = sorted(secret_namespaces)
    if spec.secret_ref.namespace not in allowed:
        where = f"spec.secretRef.namespace: {spec.secret_ref.namespace} is not one of {', '.join(allowed)}"
        message = f"{where}; move the Secret, or start the manager with --kubeconfig-namespace"
        raise BindingError("SecretNamespaceNotAllowed", message, condition="Connected")
    return spec


def spec_errors(name: str, spec: ClusterBindingSpec) -> Iterator[str]:
    """What is wrong with a spec that has the right shape, each with its path."""
    if len(name) > MAX_NAME_LENGTH:
        yield f"metadata.name: {len(name)} characters are over {MAX_NAME_LENGTH}"
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
        raise BindingError("IdentityChanged", message, condition="Connected", retry=RetryPolicy.ON_RECHECK)
    holders = [other for other in others if value_at(other, "status", "identity") == identity]
    if holders and (pinned != identity or preferred_binding(binding, holders) is not binding):
        message = f"cluster {identity} is bound by ClusterBinding {name_of(holders[0])} already; delete one of the two"
        raise BindingError("DuplicateCluster", message, condition="Connected", retry=RetryPolicy.ON_RECHECK)


def preferred_binding(binding: Object, others: Iterable[Object]) -> Object:
    """Of several bindings that want the same, the one that may have it."""
    return min((binding, *others), key=precedence)


def precedence(binding: Object) -> tuple[bool, str, str]:
    """Lower goes first: accepted before, then older; the UID decides between two of one second."""
    accepted = value_at(binding, "status", "identity") is not None
    return not accepted, binding["metadata"].get("creationTimestamp", ""), uid_of(binding)
