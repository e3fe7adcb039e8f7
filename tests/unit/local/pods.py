"""Pods for the tests of kubelets."""

from typing import Any

from tapestry.kube.objects import Object

UID = "11111111-2222-3333-4444-555555555555"


def new_pod(name: str = "web", annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    """Return a pod on the node `n`, as a server returns it."""
    metadata = {"name": name, "namespace": "default", "uid": UID, "annotations": annotations or {}, "generation": 1}
    containers = [{"name": "c", "image": "nginx"}]
    return {"metadata": metadata, "spec": {"nodeName": "n", "containers": containers, **spec}}


def simulated(**values: str) -> dict[str, str]:
    """Return the annotations of a simulated lifecycle: `simulated(ends_after="1s")`."""
    return {f"simulated.tapestry.io/{name.replace('_', '-')}": value for name, value in values.items()}
