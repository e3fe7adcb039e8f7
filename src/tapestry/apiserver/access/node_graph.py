"""The node graph: which objects the pods and volumes of each node refer to.

The index is kept by node.  A change of a pod or volume is noted when it happens (O(1)) and read when a node next asks,
so a question costs a lookup plus the changes since the last question, and never a scan of all pods.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from tapestry.apiserver.access.references import (
    ATTACHMENTS,
    CLAIMS,
    PODS,
    RESOURCE_SLICES,
    SECRETS,
    VOLUMES,
    Reference,
    pod_references,
    volume_claim,
    volume_secrets,
)
from tapestry.apiserver.storage.log import Key
from tapestry.apiserver.storage.store import Store, WatchEvent
from tapestry.kube.objects import Object, name_of, value_at


@dataclass(frozen=True, slots=True)
class NodeReferences:
    """An object that belongs to a node, and what the node may read because of it."""

    node: str
    references: tuple[Reference, ...]


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume: whoever may read its claim may read it and its Secrets."""

    claim: Reference
    secrets: frozenset[Reference]


def pod_node_references(pod: Object) -> NodeReferences:
    return NodeReferences(value_at(pod, "spec", "nodeName", default=""), tuple(dict.fromkeys(pod_references(pod))))


def own_node_references(resource: str) -> Callable[[Object], NodeReferences]:
    """Of an object whose spec names the node that it belongs to."""

    def holder(obj: Object) -> NodeReferences:
        return NodeReferences(value_at(obj, "spec", "nodeName") or "", ((resource, "", name_of(obj)),))

    return holder


REFERENCE_READERS: Mapping[str, Callable[[Object], NodeReferences]] = {
    PODS: pod_node_references,
    ATTACHMENTS: own_node_references(ATTACHMENTS),
    RESOURCE_SLICES: own_node_references(RESOURCE_SLICES),
}


class NodeGraph:
    """Answers whether an object belongs to a node, as of the newest version that readers see."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._node_references: dict[Key, NodeReferences] = {}
        self._volumes: dict[Key, Volume] = {}
        self._readable_by_node: dict[str, Counter[Reference]] = {}
        """By node: what it may read, and how many of its objects refer to that."""
        self._volumes_by_claim: dict[Reference, set[Key]] = {}
        """By claim: the PersistentVolumes for it."""
        self._pending_keys: dict[Key, None] = {}
        for resource in (*REFERENCE_READERS, VOLUMES):
            store.on_change(resource, self._on_change)
            self._pending_keys.update((version.key, None) for version in store.list_objects(resource))

    def reaches(self, node: str, reference: Reference) -> bool:
        """Whether a pod or volume of the node refers to that object."""
        self._apply_changes()
        held = self._readable_by_node.get(node)
        if held is None:
            return False
        if reference in held:
            return True
        resource, namespace, name = reference
        if resource == VOLUMES:
            volume = self._volumes.get(Key(VOLUMES, namespace, name))
            return volume is not None and volume.claim in held
        return resource == SECRETS and any(reference in each.secrets for each in self._volumes_of(held))

    def _volumes_of(self, held: Iterable[Reference]) -> Iterable[Volume]:
        claims = (each for each in held if each[0] == CLAIMS)
        return (self._volumes[key] for claim in claims for key in self._volumes_by_claim.get(claim, ()))

    def _on_change(self, event: WatchEvent) -> None:
        key = event.object_version.key
        if event.new is None and key not in self._node_references and key not in self._volumes:
            self._pending_keys.pop(key, None)  # it came and went between two questions
        else:
            self._pending_keys[key] = None

    def _apply_changes(self) -> None:
        while self._pending_keys:
            key, _ = self._pending_keys.popitem()
            self._unindex(key)
            version = self._store.get(*key)
            if version is not None:
                self._index(key, msgspec.json.decode(version.raw))

    def _index(self, key: Key, obj: Object) -> None:
        if key.resource == VOLUMES:
            claim = volume_claim(obj)
            if claim is not None:
                volume = self._volumes[key] = Volume((CLAIMS, *claim), frozenset(volume_secrets(obj)))
                self._volumes_by_claim.setdefault(volume.claim, set()).add(key)
            return
        holder = REFERENCE_READERS[key.resource](obj)
        if holder.node:
            self._node_references[key] = holder
            self._readable_by_node.setdefault(holder.node, Counter()).update(holder.references)

    def _unindex(self, key: Key) -> None:
        volume = self._volumes.pop(key, None)
        if volume is not None:
            bound = self._volumes_by_claim[volume.claim]
            bound.discard(key)
            if not bound:
                del self._volumes_by_claim[volume.claim]
        holder = self._node_references.pop(key, None)
        if holder is not None:
            held = self._readable_by_node[holder.node]
            for reference in holder.references:
                held[reference] -= 1
                if not held[reference]:
                    del held[reference]
            if not held:
                del self._readable_by_node[holder.node]
