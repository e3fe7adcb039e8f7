"""The PriorityClass of twins: everybody else's pods in the physical cluster come first."""

from tapestry.apis import keys
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource

PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False)
TWIN_PRIORITY = -10_000
"""Below everything of the owner's: whose pods need room, gets it."""


def priority_class() -> Object:
    return {
        "metadata": {"name": keys.PRIORITY_CLASS, "labels": {keys.MANAGED_BY: keys.TAPESTRY}},
        "value": TWIN_PRIORITY,
        "preemptionPolicy": "Never",
        "description": "Pods on leased capacity: they give way to everybody else's.",
    }


def missing_class_message(name: str) -> str:
    """What to do where the physical cluster has no such class."""
    remedy = (
        "`tapestry join` creates it, or an administrator of the physical cluster"
        if name == keys.PRIORITY_CLASS
        else "create it there, or name another one in spec.podPriorityClassName"
    )
    return f"no PriorityClass {name} below: nothing is mapped; {remedy}"
