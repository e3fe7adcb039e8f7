"""The PriorityClass of twins, lower than that of the owner's pods."""

from tapestry.apis import keys
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource

PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False)
TWIN_PRIORITY = -10_000
"""Lower than any priority of the owner's pods, so that these can preempt twins."""


def priority_class() -> Object:
    return {
        "metadata": {"name": keys.PRIORITY_CLASS, "labels": {keys.MANAGED_BY: keys.TAPESTRY}},
        "value": TWIN_PRIORITY,
        "preemptionPolicy": "Never",
        "description": "Pods on leased capacity. Pods of the owner preempt them.",
    }


def missing_class_message(name: str) -> str:
    remedy = (
        "`tapestry join` creates it, or an administrator of the physical cluster"
        if name == keys.PRIORITY_CLASS
        else "create it there, or name another one in spec.podPriorityClassName"
    )
    return f"PriorityClass {name} does not exist in the physical cluster: no pods are synced; {remedy}"
