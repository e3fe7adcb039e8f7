"""The tolerations of a twin: for taints that its node has when the twin is created, and for no others.

A twin must not tolerate a taint that the owner adds later.  So each toleration of the pod is narrowed to the key, value
and effect of a taint that is there.  The exceptions are the two taints of a node that fails, which every pod tolerates
for some time.  Tolerations are decided once: changes of the node or of the pod do not change a twin.
"""

from collections.abc import Iterable, Sequence

from tapestry.apis import keys
from tapestry.kube.objects import Object
from tapestry.kube.taints import CORDON_TAINT, NOT_READY, UNREACHABLE, is_tolerated, tolerates

NO_EXECUTE = "NoExecute"
BLOCKING_EFFECTS = (keys.NO_SCHEDULE, NO_EXECUTE)
"""Effects that keep a new pod from a node."""


def narrowed_tolerations(tolerations: Sequence[Object], taints: Iterable[Object]) -> list[Object]:
    """The tolerations of a twin on a node with these taints, one for each taint that the pod tolerates."""
    found = []
    for key in (NOT_READY, UNREACHABLE):
        named = [each for each in tolerations if each.get("key") == key]
        if toleration := first_matching(named, {"key": key, "effect": NO_EXECUTE}):
            found.append({"key": key, "operator": "Exists", "effect": NO_EXECUTE, **toleration_seconds(toleration)})
    for taint in taints:
        if is_never_tolerated(taint) or is_tolerated(taint, found):
            continue
        if toleration := first_matching(tolerations, taint):
            found.append(exact_toleration(taint, toleration))
    return found


def first_matching(tolerations: Iterable[Object], taint: Object) -> Object | None:
    """The toleration that counts for a taint: Kubernetes takes the first that matches."""
    return next((each for each in tolerations if tolerates(each, taint)), None)


def exact_toleration(taint: Object, toleration: Object) -> Object:
    """A toleration for just this taint, for as long as `toleration` says."""
    value = {"value": taint["value"]} if taint.get("value") else {}
    lasting = toleration_seconds(toleration) if taint["effect"] == NO_EXECUTE else {}
    return {"key": taint["key"], "operator": "Equal", **value, "effect": taint["effect"], **lasting}


def toleration_seconds(toleration: Object) -> Object:
    found = toleration.get("tolerationSeconds")
    return {} if found is None else {"tolerationSeconds": found}


def is_never_tolerated(taint: Object) -> bool:
    """Whether no twin tolerates the taint: it is a cordon, or our own."""
    return bool(taint["key"] == CORDON_TAINT["key"]) or taint["key"].startswith(keys.PREFIX)


def untolerated_taints(taints: Iterable[Object], tolerations: Sequence[Object]) -> list[Object]:
    """The taints that keep a new pod with these tolerations from a node."""
    return [each for each in taints if each.get("effect") in BLOCKING_EFFECTS and not is_tolerated(each, tolerations)]
