"""Minimal valid objects of each kind, for tests that do not depend on the content."""

from collections.abc import Mapping
from typing import Any

from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import (
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    Resource,
)

POD_SPEC: Object = {"containers": [{"name": "main", "image": "busybox:1"}]}
LABELS = {"app": "something"}
WORKLOAD_SPEC: Object = {
    "selector": {"matchLabels": LABELS},
    "template": {"metadata": {"labels": LABELS}, "spec": POD_SPEC},
}
STORAGE: Object = {"storage": "1Gi"}
MINIMAL_CONTENT: Mapping[Resource, Object] = {
    PODS: {"spec": POD_SPEC},
    DEPLOYMENTS: {"spec": WORKLOAD_SPEC},
    STATEFUL_SETS: {"spec": WORKLOAD_SPEC},
    SERVICES: {"spec": {"ports": [{"port": 80}]}},
    ENDPOINT_SLICES: {"addressType": "IPv4", "endpoints": []},
    PERSISTENT_VOLUME_CLAIMS: {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": STORAGE}}},
    PERSISTENT_VOLUMES: {
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": STORAGE, "hostPath": {"path": "/somewhere"}}
    },
}
"""Required fields by kind.  Other kinds need only a name."""


def specimen(resource: Resource, name: str, namespace: str | None = None, **metadata: Any) -> Object:
    """Return a minimal object.  `metadata` adds fields, for example labels."""
    return {"metadata": {**object_named(name, namespace)["metadata"], **metadata}, **MINIMAL_CONTENT.get(resource, {})}
