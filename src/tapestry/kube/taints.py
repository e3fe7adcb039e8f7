"""Node taints and pod tolerations."""

from collections.abc import Iterable

from tapestry.kube.objects import Object

NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
CORDON_TAINT: Object = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
"""Taint that the node controller sets on a cordoned node."""


def tolerates(toleration: Object, taint: Object) -> bool:
    """Return True if one toleration of a pod matches the taint."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Exists":
        return True
    return operator == "Equal" and (toleration.get("value") or "") == (taint.get("value") or "")


def is_tolerated(taint: Object, tolerations: Iterable[Object]) -> bool:
    return any(tolerates(each, taint) for each in tolerations)
