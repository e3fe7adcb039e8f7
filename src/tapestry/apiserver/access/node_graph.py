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
from tapestry.apiserver.storage.store import Event, Store
from tapestry.kube.objects import Object, name_of, value_at


@dataclass(frozen=True, slots=True)
class Holder:
    """An object that belongs to a node, and what the node may read because of it."""

    node: str
    references: tuple[Reference, ...]


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume: whoever may read its claim may read it and its Secrets."""

    claim: Reference
    secrets: frozenset[Reference]


def pod_holder(pod: Object) -> Holder:
    return Holder(value_at(pod, "spec", "nodeName", default=""), tuple(dict.fromkeys(pod_references(pod))))


def holder_by_name(resource: str) -> Callable[[Object], Holder]:
    """Of an object whose spec names the node that it belongs to."""

    def holder(obj: Object) -> Holder:
        return Holder(value_at(obj, "spec", "nodeName") or "", ((resource, "", name_of(obj)),))

    return holder


HOLDERS: Mapping[str, Callable[[Object], Holder]] = {
    PODS: pod_holder,
    ATTACHMENTS: holder_by_name(ATTACHMENTS),
    RESOURCE_SLICES: holder_by_name(RESOURCE_SLICES),
}


class NodeGraph:
    """Answers whether an object belongs to a node, as of the newest version that readers see."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._holders: dict[Key, Holder] = {}
        self._volumes: dict[Key, Volume] = {}
        self._held: dict[str, Counter[Reference]] = {}
        """By node: what it may read, and how many of its objects refer to that."""
        self._bound: dict[Reference, set[Key]] = {}
        """By claim: the PersistentVolumes for it."""
        self._changed: dict[Key, None] = {}
        for resource in (*HOLDERS, VOLUMES):
            store.on_change(resource, self._note)
            self._changed.update((version.key, None) for version in store.every(resource))

    def reaches(self, node: str, reference: Reference) -> bool:
        """Whether a pod or volume of the node refers to that object."""
        self._catch_up()
        held = self._held.get(node)
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
        return (self._volumes[key] for claim in claims for key in self._bound.get(claim, ()))

    def _note(self, event: Event) -> None:
        key = event.shown.key
        if event.new is None and key not in self._holders and key not in self._volumes:
            self._changed.pop(key, None)  # it came and went between two questions
        else:
            self._changed[key] = None

    def _catch_up(self) -> None:
        while self._changed:
            key, _ = self._changed.popitem()
            self._forget(key)
            version = self._store.get(*key)
            if version is not None:
                self._read(key, msgspec.json.decode(version.raw))

    def _read(self, key: Key, obj: Object) -> None:
        if key.resource == VOLUMES:
            claim = volume_claim(obj)
            if claim is not None:
                volume = self._volumes[key] = Volume((CLAIMS, *claim), frozenset(volume_secrets(obj)))
                self._bound.setdefault(volume.claim, set()).add(key)
            return
        holder = HOLDERS[key.resource](obj)
        if holder.node:
            self._holders[key] = holder
            self._held.setdefault(holder.node, Counter()).update(holder.references)

    def _forget(self, key: Key) -> None:
        volume = self._volumes.pop(key, None)
        if volume is not None:
            bound = self._bound[volume.claim]
            bound.discard(key)
            if not bound:
                del self._bound[volume.claim]
        holder = self._holders.pop(key, None)
        if holder is not None:
            held = self._held[holder.node]
            for reference in holder.references:
                held[reference] -= 1
                if not held[reference]:
                    del held[reference]
            if not held:
                del self._held[holder.node]
