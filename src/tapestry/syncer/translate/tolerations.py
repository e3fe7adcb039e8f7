"""Tolerations of a twin: only for taints that its node has when the twin is created.

A twin must not tolerate a taint that the owner adds later. So each toleration of the pod is narrowed to the key, value
and effect of an existing taint. The exceptions are the two taints of a failing node, which every pod tolerates for some
time. Tolerations are decided once: changes of the node or of the pod do not change a twin.
"""

from collections.abc import Iterable, Sequence

from tapestry.apis import keys
from tapestry.kube.objects import Object
from tapestry.kube.pods import CORDON_TAINT, NOT_READY, UNREACHABLE, is_tolerated, tolerates

NO_EXECUTE = "NoExecute"
BLOCKING_EFFECTS = (keys.NO_SCHEDULE, NO_EXECUTE)
"""Effects that keep a new pod off a node."""


def narrowed_tolerations(tolerations: Sequence[Object], taints: Iterable[Object]) -> list[Object]:
    """Return the tolerations of a twin on a node with these taints: one for each taint that the pod tolerates."""
    narrowed = []
    for key in (NOT_READY, UNREACHABLE):
        named = [each for each in tolerations if each.get("key") == key]
        if toleration := first_matching(named, {"key": key, "effect": NO_EXECUTE}):
            narrowed.append({"key": key, "operator": "Exists", "effect": NO_EXECUTE, **toleration_seconds(toleration)})
    for taint in taints:
        if is_never_tolerated(taint) or is_tolerated(taint, narrowed):
            continue
        if toleration := first_matching(tolerations, taint):
            narrowed.append(exact_toleration(taint, toleration))
    return narrowed


def first_matching(tolerations: Iterable[Object], taint: Object) -> Object | None:
    """Return the toleration that applies to a taint: the first that matches, as in Kubernetes."""
    return next((each for each in tolerations if tolerates(each, taint)), None)


def exact_toleration(taint: Object, toleration: Object) -> Object:
    """Return a toleration of exactly this taint, as long as `toleration` lasts."""
    value = {"value": taint["value"]} if taint.get("value") else {}
    duration = toleration_seconds(toleration) if taint["effect"] == NO_EXECUTE else {}
    return {"key": taint["key"], "operator": "Equal", **value, "effect": taint["effect"], **duration}


def toleration_seconds(toleration: Object) -> Object:
    seconds = toleration.get("tolerationSeconds")
    return {} if seconds is None else {"tolerationSeconds": seconds}


def is_never_tolerated(taint: Object) -> bool:
    """Return whether no twin may tolerate the taint: it is a cordon or one of ours."""
    return bool(taint["key"] == CORDON_TAINT["key"]) or taint["key"].startswith(keys.PREFIX)


def untolerated_taints(taints: Iterable[Object], tolerations: Sequence[Object]) -> list[Object]:
    """Return the taints that keep a new pod with these tolerations off a node."""
    return [each for each in taints if each.get("effect") in BLOCKING_EFFECTS and not is_tolerated(each, tolerations)]
