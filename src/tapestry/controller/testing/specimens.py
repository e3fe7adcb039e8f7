"""The least that a server takes of a kind, for tests that do not care what is in an object."""

from collections.abc import Mapping
from typing import Any

from tapestry.kube.objects import Object, named
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

SOMETHING: Object = {"containers": [{"name": "main", "image": "busybox:1"}]}
LABELS = {"app": "something"}
SEVERAL: Object = {
    "selector": {"matchLabels": LABELS},
    "template": {"metadata": {"labels": LABELS}, "spec": SOMETHING},
}
SPACE: Object = {"storage": "1Gi"}
NEEDED: Mapping[Resource, Object] = {
    PODS: {"spec": SOMETHING},
    DEPLOYMENTS: {"spec": SEVERAL},
    STATEFUL_SETS: {"spec": SEVERAL},
    SERVICES: {"spec": {"ports": [{"port": 80}]}},
    ENDPOINT_SLICES: {"addressType": "IPv4", "endpoints": []},
    PERSISTENT_VOLUME_CLAIMS: {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": SPACE}}},
    PERSISTENT_VOLUMES: {
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": SPACE, "hostPath": {"path": "/somewhere"}}
    },
}
"""What objects of a kind must have; those of others need nothing but a name."""


def specimen(resource: Resource, name: str, namespace: str | None = None, **metadata: Any) -> Object:
    """An object of a kind, with `metadata` such as labels."""
    return {"metadata": {**named(name, namespace)["metadata"], **metadata}, **NEEDED.get(resource, {})}
