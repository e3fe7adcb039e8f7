"""The objects of the in-process API, one revision for all of them, and a bounded memory of what changed.

Every change is one revision, so the log has no gaps, and the state at a revision that it still reaches is the present
with the changes since then undone.  Readers may be held back behind the writers, as by a slow cache of a real server.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tapestry.kube.objects import Object, with_value
from tapestry.kube.resources import Resource


class Key(NamedTuple):
    resource: Resource
    namespace: str  # empty for a cluster-scoped object
    name: str


@dataclass(frozen=True, slots=True)
class Change:
    """What one revision did: `before` is None for a creation, `after` for a deletion."""

    revision: int
    key: Key
    before: Object | None
    after: Object | None


class Storage:
    """Objects as they are and, for at most `history` changes back, as they were."""

    def __init__(self, history: int) -> None:
        self.revision = 1
        self.compacted = 1  # the oldest revision that can still be shown
        self.lag = 0
        self.frozen: int | None = None
        self._history = history
        self._objects: dict[Key, Object] = {}
        self._log: list[Change] = []

    @property
    def visible(self) -> int:
        """The revision that readers see."""
        return max(self.compacted, self.revision - self.lag)

    @property
    def delivered(self) -> int:
        """The revision up to which watches are told."""
        return self.visible if self.frozen is None else min(self.visible, self.frozen)

    def get(self, key: Key) -> Object | None:
        """The object as it truly is, for writers."""
        return self._objects.get(key)

    def commit(self, key: Key, after: Object | None) -> Object:
        """Store `after`, or delete where it is None; returns the object, or what it last was, at the new revision."""
        before = self._objects.get(key)
        self.revision += 1
        if after is None:
            assert before is not None, f"{key} is not there to be deleted"
            del self._objects[key]
            found = at_revision(before, self.revision)
        else:
            found = self._objects[key] = after = at_revision(after, self.revision)
        self._log.append(Change(self.revision, key, before, after))
        if len(self._log) > self._history:
            self.compact(self.revision - self._history // 2)
        return found

    def compact(self, revision: int) -> None:
        """Forget what was before `revision`."""
        del self._log[: revision - self.compacted]
        self.compacted = revision

    def changes(self, after: int, until: int) -> list[Change]:
        """The changes of the revisions after `after` up to `until`, in order."""
        return self._log[after - self.compacted : until - self.compacted]

    def at(self, revision: int) -> Mapping[Key, Object]:
        """Every object as of `revision`, which must not be older than `compacted`."""
        if revision == self.revision:
            return self._objects
        objects = dict(self._objects)
        for change in reversed(self.changes(revision, self.revision)):
            if change.before is None:
                del objects[change.key]
            else:
                objects[change.key] = change.before
        return objects


def at_revision(obj: Object, revision: int) -> Object:
    return with_value(obj, ("metadata", "resourceVersion"), str(revision))
