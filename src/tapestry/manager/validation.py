"""Validation of a binding against its own spec and against other bindings.

Two bindings may not have the same clusterID, and may not lead to the same cluster.  The content of the bindings
determines which one is preferred, so the result is the same after every restart: the one accepted before, otherwise the
older one.  BindingError is any error that keeps a binding from being ready.
"""

from collections.abc import Iterable, Iterator
from enum import Enum

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDING, ClusterBindingSpec
from tapestry.apis.names import syncer_lease_name
from tapestry.kube.crds import InvalidSpec, decode_spec
from tapestry.kube.names import SUBDOMAIN_LIMIT
from tapestry.kube.objects import Object, annotations_of, name_of, uid_of, value_at


class RetryPolicy(Enum):
    """Time of the next attempt."""

    ON_CHANGE = "when something that we watch changes"
    ON_RECHECK = "periodically: the fix happens where we do not watch"
    BACKOFF = "with backoff"


class BindingError(Exception):
    """An error of one aspect of a binding.

    `reason` is used in conditions, events and metrics.  `condition` names the aspect; it is empty for an error in the
    binding's own spec.
    """

    def __init__(
        self, reason: str, message: str, *, condition: str = "", retry: RetryPolicy = RetryPolicy.ON_CHANGE
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.condition = condition
        self.retry = retry


MAX_NAME_LENGTH = SUBDOMAIN_LIMIT - len(syncer_lease_name(""))


def validated_spec(binding: Object, others: Iterable[Object], secret_namespaces: Iterable[str]) -> ClusterBindingSpec:
    """Return the spec of a valid binding.  Raise a BindingError that waits for a change."""
    try:
        spec = decode_spec(CLUSTER_BINDING, binding)
    except InvalidSpec as error:
        raise BindingError("ValidationFailed", str(error)) from error
    if errors := "; ".join(spec_errors(name_of(binding), spec)):
        raise BindingError("ValidationFailed", errors)
    rivals = [other for other in others if value_at(other, "spec", "clusterID") == spec.cluster_id]
    if (holder := preferred_binding(binding, rivals)) is not binding:
        problem = f"spec.clusterID: {spec.cluster_id} belongs to ClusterBinding {name_of(holder)}"
        raise BindingError("DuplicateClusterID", f"{problem}; recreate this one with another clusterID")
    allowed = sorted(secret_namespaces)
    if spec.kubeconfig_secret.namespace not in allowed:
        problem = f"spec.secretRef.namespace: {spec.kubeconfig_secret.namespace} is not one of {', '.join(allowed)}"
        message = f"{problem}; move the Secret, or start the manager with --kubeconfig-namespace"
        raise BindingError("SecretNamespaceNotAllowed", message, condition="Connected")
    return spec


def spec_errors(name: str, spec: ClusterBindingSpec) -> Iterator[str]:
    """Yield the errors of a decoded spec, each with its path."""
    if len(name) > MAX_NAME_LENGTH:
        yield f"metadata.name: {len(name)} characters are over the limit of {MAX_NAME_LENGTH}"
    if spec.secret_ref is None:
        yield "spec.secretRef: is required; name the Secret with the kubeconfig of the cluster"
    if not spec.mount_namespace:
        yield "spec.mountNamespace: required; name a namespace of the physical cluster for the synced objects"


def check_identity(binding: Object, identity: str, others: Iterable[Object]) -> None:
    """Raise BindingError unless `identity` is the bound cluster and no other binding has it."""
    pinned = value_at(binding, "status", "identity")
    if pinned not in (None, identity) and annotations_of(binding).get(keys.APPROVE_IDENTITY) != identity:
        message = (
            f"the kubeconfig leads to cluster {identity}, but {pinned} was bound; "
            f"if this is intended, annotate the binding with {keys.APPROVE_IDENTITY}={identity}"
        )
        raise BindingError("IdentityChanged", message, condition="Connected", retry=RetryPolicy.ON_RECHECK)
    holders = [other for other in others if value_at(other, "status", "identity") == identity]
    if holders and (pinned != identity or preferred_binding(binding, holders) is not binding):
        message = f"cluster {identity} is already bound by ClusterBinding {name_of(holders[0])}; delete one of them"
        raise BindingError("DuplicateCluster", message, condition="Connected", retry=RetryPolicy.ON_RECHECK)


def preferred_binding(binding: Object, others: Iterable[Object]) -> Object:
    """Return the preferred one of several conflicting bindings."""
    return min((binding, *others), key=precedence)


def precedence(binding: Object) -> tuple[bool, str, str]:
    """Return the sort key of preference: accepted before, then older, then by UID."""
    accepted = value_at(binding, "status", "identity") is not None
    return not accepted, binding["metadata"].get("creationTimestamp", ""), uid_of(binding)
