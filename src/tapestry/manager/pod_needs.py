"""Index of what the pods on virtual nodes need, by binding and namespace.

The manager grants rights from it.  It is updated with each change of a pod or node, at a cost that depends only on that
object, and names the scopes whose needs changed.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from tapestry.apis.excluded_pods import is_daemon_pod
from tapestry.kube.names import dns_subdomain_error
from tapestry.kube.objects import Object, View, key_of, namespace_of, uid_of, version_of
from tapestry.kube.pod_references import projected_tokens, references
from tapestry.kube.resources import PODS, SERVICE_ACCOUNTS

REVOCATION_DELAY = timedelta(seconds=30)
"""Time for which a need counts after its last pod: pods of a workload are replaced often."""
POD, TOKEN = PODS.plural, f"{SERVICE_ACCOUNTS.plural}/token"


class Need(NamedTuple):
    """An object that pods use."""

    kind: str
    """A ReferenceKind, `serviceaccounts/token`, or `pods` for the pods themselves."""
    name: str = ""


class Scope(NamedTuple):
    """The pods in one namespace on the nodes of one binding."""

    binding_uid: str
    namespace: str


class PodNeeds(View, frozen=True, gc=False):
    """A pod on a virtual node, reduced to what it needs."""

    key: str
    namespace: str
    node: str
    is_daemon: bool
    """True if the pod is synced only if its binding runs DaemonSets."""
    needs: tuple[Need, ...]

    @property
    def relevant_fields(self) -> tuple[object, ...]:
        return self.node, self.is_daemon, self.needs


def pod_needs(pod: Object) -> PodNeeds:
    """Return the needs of a pod.  Names that no object can have are omitted."""
    spec = pod["spec"]
    named = {Need(each.kind, each.name) for each in references(pod)}
    if projected_tokens(spec):
        named.add(Need(TOKEN, spec.get("serviceAccountName") or "default"))
    valid = sorted(each for each in named if isinstance(each.name, str) and dns_subdomain_error(each.name) is None)
    return PodNeeds(
        uid_of(pod),
        version_of(pod),
        key_of(pod),
        namespace_of(pod) or "",
        spec["nodeName"],
        is_daemon_pod(pod),
        (Need(POD), *valid),
    )


class NeedIndex:
    """Count the pods that need each object."""

    def __init__(self) -> None:
        self._binding_uids: dict[str, str] = {}
        """UID of the binding of each virtual node."""
        self._pods: dict[str, dict[str, PodNeeds]] = {}
        """Pods by node, of unknown nodes too, and key."""
        self._counts: dict[tuple[Scope, bool], Counter[Need]] = {}
        """Number of pods by need.  Those of DaemonSets are counted separately."""
        self._released: dict[tuple[Scope, bool], dict[Need, datetime]] = {}
        """Times at which the last pod of a need ended."""

    def set_node(self, name: str, binding_uid: str | None, now: datetime) -> set[Scope]:
        """Record the binding of a node, or its deletion.  Return the scopes whose needs changed."""
        if self._binding_uids.get(name) == binding_uid:
            return set()
        pods = list(self._pods.get(name, {}).values())
        changed = {scope for pod in pods for scope in self._count(pod, -1, now)}
        if binding_uid is None:
            self._binding_uids.pop(name, None)
        else:
            self._binding_uids[name] = binding_uid
        return changed | {scope for pod in pods for scope in self._count(pod, 1, now)}

    def set_pod(self, old: PodNeeds | None, new: PodNeeds | None, now: datetime) -> set[Scope]:
        """Record a change of a pod.  Return the scopes whose needs changed."""
        if old is not None and new is not None and old.relevant_fields == new.relevant_fields:
            return set()
        changed: set[Scope] = set()
        if new is not None:  # first, so that shared needs never look unused
            self._pods.setdefault(new.node, {})[new.key] = new
            changed |= self._count(new, 1, now)
        if old is not None:
            if new is None or new.node != old.node:
                pods = self._pods[old.node]
                pods.pop(old.key, None)
                if not pods:
                    del self._pods[old.node]
            changed |= self._count(old, -1, now)
        return changed

    def _count(self, pod: PodNeeds, step: int, now: datetime) -> set[Scope]:
        uid = self._binding_uids.get(pod.node)
        if uid is None:
            return set()
        scope = Scope(uid, pod.namespace)
        group = scope, pod.is_daemon
        counts = self._counts.setdefault(group, Counter())
        is_changed = False
        for need in pod.needs:
            before = counts[need]
            counts[need] = before + step
            if before == 0 and step > 0:
                self._released.get(group, {}).pop(need, None)
                is_changed = True
            elif before + step == 0:
                del counts[need]
                self._released.setdefault(group, {})[need] = now
                is_changed = True
        if not counts:
            del self._counts[group]
        return {scope} if is_changed else set()

    def namespaces(self, binding_uid: str) -> set[str]:
        """Return the namespaces with pods on the nodes of a binding, now or recently."""
        scopes = (scope for scope, _ in (*self._counts, *self._released))
        return {scope.namespace for scope in scopes if scope.binding_uid == binding_uid}

    def needs(self, scope: Scope, now: datetime, *, with_daemons: bool) -> tuple[set[Need], datetime | None]:
        """Return the current and recent needs of a scope, and when the next recent one expires."""
        needs: set[Need] = set()
        expiries: list[datetime] = []
        for is_daemon in (False, True) if with_daemons else (False,):
            group = scope, is_daemon
            released = self._released.get(group, {})
            for need in [need for need, since in released.items() if since + REVOCATION_DELAY <= now]:
                del released[need]
            if not released:
                self._released.pop(group, None)
            needs |= self._counts.get(group, {}).keys() | released.keys()
            expiries += [since + REVOCATION_DELAY for since in released.values()]
        return needs, min(expiries, default=None)


def names_of_kind(needs: Iterable[Need], kind: str) -> set[str]:
    return {need.name for need in needs if need.kind == kind}
