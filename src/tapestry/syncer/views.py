"""Typed views of pods, in which the syncer caches them.

A view holds what was computed when the pod was cached, and in `object` the rest of the pod as a plain dict. Everything
that is translated or goes over the wire takes that dict.
"""

import msgspec

from tapestry.kube.objects import Object, View, key_of
from tapestry.kube.pod_requests import PodAllocation
from tapestry.kube.quantity import ResourceList

Port = tuple[str, int, str]
"""Address, number and protocol of a host port."""


class CachedPod(View, frozen=True, gc=False):
    object: Object

    @property
    def key(self) -> str:
        return key_of(self.object)


class VirtualPod(CachedPod, frozen=True, gc=False):
    """A virtual pod. The status in `object` has only its phase and the conditions that do not come from a twin."""

    node: str
    """Name of the virtual node; empty if the pod has none yet."""
    requests: ResourceList
    """Amounts that the pod holds of its node."""
    is_scheduled: bool
    """True if a scheduler bound the pod."""
    synced_conditions: tuple[str, ...]
    """Types of the conditions that came from a twin."""
    status_digest: str
    """Digest of the sanitized status."""


class Twin(CachedPod, frozen=True, gc=False):
    """A twin. The spec in `object` has only what may change."""

    requests: ResourceList | None
    """Amounts that the twin requests of its node; None once it has ended."""
    status_json: bytes
    """Sanitized status with sorted keys."""

    def status(self) -> Object:
        status: Object = msgspec.json.decode(self.status_json)
        return status


class ForeignPod(View, frozen=True, gc=False):
    node: str
    """Name of the physical node that the pod occupies; empty if it occupies none."""
    allocation: PodAllocation
    host_ports: tuple[Port, ...]


PhysicalPod = Twin | ForeignPod
