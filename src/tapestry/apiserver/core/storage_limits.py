"""Limits on the number and the size of the objects of a server.

A write over a limit is rejected, whoever makes it. Deletes are never rejected. When no more objects can be created,
updates may still grow the objects by a reserve, so that a status or a finalizer can be written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tapestry.apiserver.core.store import Key, ObjectVersion, Precondition, RevisionEncoder, Store
from tapestry.kube.errors import Forbidden

HISTORY_SHARE = 4
"""The history of changes may have the size of all objects divided by this."""
UPDATE_RESERVE = 8
"""Updates may exceed the size of all objects by the limit divided by this."""
ADVICE = "delete objects, or ask the operator of this API server for a higher limit"


@dataclass
class StorageLimits:
    """Writer to a store within limits. 0 means no limit."""

    store: Store
    max_objects: int
    max_bytes: int
    rejected: int = 0
    """Number of writes that were rejected."""
    _pending: dict[object, tuple[int, int]] = field(default_factory=dict)
    """Objects and bytes that writes in progress add, as far as they are more than before."""

    def __post_init__(self) -> None:
        self.store.max_history_bytes = self.max_bytes // HISTORY_SHARE

    async def put(
        self,
        key: Key,
        expected: ObjectVersion | None,
        encode: RevisionEncoder,
        precondition: Precondition | None = None,
    ) -> ObjectVersion:
        """Write like `Store.put`. Raises Forbidden if the objects would exceed a limit."""
        write = object()

        def encode_within_limits(revision: int) -> tuple[bytes, Mapping[str, str]]:
            raw, labels = encode(revision)
            self._pending.pop(write, None)  # the store may encode an object again
            self._check(key, expected, len(raw))
            self._pending[write] = int(expected is None), max(len(raw) - size_of(expected), 0)
            return raw, labels

        try:
            return await self.store.put(key, expected, encode_within_limits, precondition)
        finally:
            self._pending.pop(write, None)

    def _check(self, key: Key, expected: ObjectVersion | None, size: int) -> None:
        added = size - size_of(expected)
        if expected is not None and added <= 0:
            return
        objects = self.store.object_count + sum(count for count, _ in self._pending.values())
        if expected is None and 0 < self.max_objects <= objects:
            raise self._rejection(key, f"objects, requested: 1, used: {objects}, limited: {self.max_objects}")
        used = self.store.object_bytes + sum(size for _, size in self._pending.values())
        reserve = self.max_bytes // UPDATE_RESERVE if expected is not None else 0
        if 0 < self.max_bytes + reserve < used + added:
            raise self._rejection(key, f"bytes, requested: {added}, used: {used}, limited: {self.max_bytes}")

    def _rejection(self, key: Key, what: str) -> Forbidden:
        self.rejected += 1
        return Forbidden(
            403, "Forbidden", f'{key.resource} "{key.name}" is forbidden: exceeded quota of {what}: {ADVICE}'
        )


def size_of(version: ObjectVersion | None) -> int:
    return len(version.raw) if version is not None else 0
