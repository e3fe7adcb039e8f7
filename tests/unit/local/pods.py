"""Pods for kubelets to run."""

from typing import Any

from tapestry.kube.objects import Object

UID = "11111111-2222-3333-4444-555555555555"


def a_pod(name: str = "web", annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    """A pod on the node `n`, as a server shows it."""
    metadata = {"name": name, "namespace": "default", "uid": UID, "annotations": annotations or {}, "generation": 1}
    containers = [{"name": "c", "image": "nginx"}]
    return {"metadata": metadata, "spec": {"nodeName": "n", "containers": containers, **spec}}


def simulated(**course: str) -> dict[str, str]:
    """`simulated(ends_after="1s")`: annotations that say how a pod fares."""
    return {f"simulated.tapestry.io/{name.replace('_', '-')}": value for name, value in course.items()}
