"""Index of the objects that the pods and volumes of each node refer to.

A change of a pod or volume is queued in O(1) and indexed at the next query. So a query costs a lookup plus the
changes since the last one, and never a scan of all pods.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from tapestry.apiserver.core.references import (
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
from tapestry.apiserver.core.store import Key, Store, WatchEvent
from tapestry.kube.objects import Object, name_of, value_at


@dataclass(frozen=True, slots=True)
class NodeReferences:
    """An object that belongs to a node, and the references that the node may read because of it."""

    node: str
    references: tuple[Reference, ...]


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume: nodes that may read its claim may read it and its Secrets."""

    claim: Reference
    secrets: frozenset[Reference]


def pod_node_references(pod: Object) -> NodeReferences:
    return NodeReferences(value_at(pod, "spec", "nodeName", default=""), tuple(dict.fromkeys(pod_references(pod))))


def own_node_references(resource: str) -> Callable[[Object], NodeReferences]:
    """Return a reader for objects whose spec names their node."""

    def holder(obj: Object) -> NodeReferences:
        return NodeReferences(value_at(obj, "spec", "nodeName") or "", ((resource, "", name_of(obj)),))

    return holder


REFERENCE_READERS: Mapping[str, Callable[[Object], NodeReferences]] = {
    PODS: pod_node_references,
    ATTACHMENTS: own_node_references(ATTACHMENTS),
    RESOURCE_SLICES: own_node_references(RESOURCE_SLICES),
}


class NodeGraph:
    """Answer whether an object is referenced from a node, at the newest version that readers see."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._node_references: dict[Key, NodeReferences] = {}
        self._volumes: dict[Key, Volume] = {}
        self._readable_by_node: dict[str, Counter[Reference]] = {}
        """By node: readable objects, with the number of references to each."""
        self._volumes_by_claim: dict[Reference, set[Key]] = {}
        """By claim: its PersistentVolumes."""
        self._pending_keys: dict[Key, None] = {}
        for resource in (*REFERENCE_READERS, VOLUMES):
            store.on_change(resource, self._on_change)

    def reaches(self, node: str, reference: Reference) -> bool:
        """Return whether a pod or volume of the node refers to that object."""
        self._apply_changes()
        readable = self._readable_by_node.get(node)
        if readable is None:
            return False
        if reference in readable:
            return True
        resource, namespace, name = reference
        if resource == VOLUMES:
            volume = self._volumes.get(Key(VOLUMES, namespace, name))
            return volume is not None and volume.claim in readable
        return resource == SECRETS and any(reference in each.secrets for each in self._volumes_of(readable))

    def _volumes_of(self, held: Iterable[Reference]) -> Iterable[Volume]:
        claims = (each for each in held if each[0] == CLAIMS)
        return (self._volumes[key] for claim in claims for key in self._volumes_by_claim.get(claim, ()))

    def _on_change(self, event: WatchEvent) -> None:
        key = event.object_version.key
        if event.new is None and key not in self._node_references and key not in self._volumes:
            self._pending_keys.pop(key, None)  # created and deleted between two queries
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
        references = REFERENCE_READERS[key.resource](obj)
        if references.node:
            self._node_references[key] = references
            self._readable_by_node.setdefault(references.node, Counter()).update(references.references)

    def _unindex(self, key: Key) -> None:
        volume = self._volumes.pop(key, None)
        if volume is not None:
            keys = self._volumes_by_claim[volume.claim]
            keys.discard(key)
            if not keys:
                del self._volumes_by_claim[volume.claim]
        references = self._node_references.pop(key, None)
        if references is not None:
            readable = self._readable_by_node[references.node]
            for reference in references.references:
                readable[reference] -= 1
                if not readable[reference]:
                    del readable[reference]
            if not readable:
                del self._readable_by_node[references.node]
