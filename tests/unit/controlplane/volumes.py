"""Claims, volumes and storage classes for tests of volume controllers."""

from typing import Any

from tapestry.kube.objects import Object

DONE = {"pv.kubernetes.io/bind-completed": "yes"}


def new_claim(
    name: str = "c", uid: str | None = None, annotations: Any = None, size: str = "1Gi", **spec: Any
) -> Object:
    metadata: Object = {"name": name, "namespace": "default", "annotations": annotations or {}}
    if uid is not None:
        metadata["uid"] = uid
    requests = {"requests": {"storage": size}}
    return {
        "metadata": metadata,
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": requests, "storageClassName": "", **spec},
    }


def new_volume(name: str = "v", size: str = "1Gi", phase: str = "", metadata: Any = None, **spec: Any) -> Object:
    source: Object = {} if "csi" in spec else {"hostPath": {"path": "/tmp"}}
    volume: Object = {
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}, **source, **spec},
    }
    return {**volume, "status": {"phase": phase}} if phase else volume


def reserved_for(name: str = "c", uid: str = "") -> Object:
    reference = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": name}
    return {**reference, "uid": uid} if uid else reference


def new_class(
    name: str = "late", mode: str = "WaitForFirstConsumer", provisioner: str = "maker", **more: Any
) -> Object:
    return {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode, **more}
