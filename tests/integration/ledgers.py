"""Record what an API server acknowledged and check that nothing is lost or repeated."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


class PromiseBroken(AssertionError):
    """The server broke a guarantee, which the message names."""


@dataclass
class Ledger:
    """All acknowledged writes.  A key has one writer, which writes increasing values.  None is a deletion."""

    acknowledged: dict[str, int | None] = field(default_factory=dict)
    revisions: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Key and value of the write that produced each revision."""
    pending: dict[str, int | None] = field(default_factory=dict)
    """Writes without an answer."""
    count: int = 0

    def record_request(self, key: str, value: int | None) -> None:
        self.pending[key] = value

    def record_answer(self, key: str, revision: int | None) -> None:
        value = self.acknowledged[key] = self.pending.pop(key)
        self.count += 1
        if revision is not None and value is not None:
            known = self.revisions.setdefault(revision, (key, value))
            if known != (key, value):
                raise PromiseBroken(f"revision {revision} was given to {known} and to {(key, value)}")

    def check_own_read(self, key: str, value: int | None) -> None:
        """Check a read by the writer of the key after a lost answer or a restart."""
        known = self.acknowledged.get(key)
        if value not in {known, self.pending.get(key, known)}:
            raise PromiseBroken(f"{key}: {known} was acknowledged, and {value} is there")
        self.pending.pop(key, None)
        self.acknowledged[key] = value

    def check_other_read(self, key: str, value: int | None, known_before: int | None) -> None:
        """Check a read by another client against the value acknowledged before the read began."""
        if value is not None and known_before is not None and value < known_before:
            raise PromiseBroken(f"{key}: {known_before} had been acknowledged, and {value} was read after that")


@dataclass
class Watcher:
    """Events that one watcher received, over any number of watches."""

    ledger: Ledger
    objects_seen: dict[str, int] = field(default_factory=dict)
    since: int = 0
    """Revision of the last list."""
    last: int = 0
    """Newest revision that the watcher received."""
    seen: set[int] = field(default_factory=set)
    events: int = 0
    bookmarks: int = 0
    lists: int = 0

    def record_list(self, revision: int, objects: dict[str, int]) -> None:
        if revision < self.last:
            raise PromiseBroken(f"a list of revision {revision} after events of {self.last}")
        self.check_complete()
        self.objects_seen, self.since, self.last, self.seen = objects, revision, revision, set()
        self.lists += 1

    def record_event(self, type: str, key: str, value: int, revision: int) -> None:
        if revision <= self.last:
            raise PromiseBroken(f"{type} {key} of revision {revision} came after {self.last}")
        if (type == "ADDED") == (key in self.objects_seen):
            raise PromiseBroken(
                f"{type} {key} of revision {revision}, which was {'' if key in self.objects_seen else 'not '}there"
            )
        self.events += 1
        self.last = revision
        self.seen.add(revision)
        if type == "DELETED":
            del self.objects_seen[key]
        else:
            self.objects_seen[key] = value

    def record_bookmark(self, revision: int) -> None:
        if revision < self.last:
            raise PromiseBroken(f"a bookmark of revision {revision} after {self.last}")
        self.bookmarks += 1
        self.last = revision

    def check_complete(self) -> None:
        """Check that no acknowledged write between `since` and `last` is missing."""
        missed = [
            revision
            for revision in self.ledger.revisions
            if self.since < revision <= self.last and revision not in self.seen
        ]
        if missed:
            raise PromiseBroken(f"told of {self.last}, but never of {missed[:5]} ({len(missed)} in all)")


def check_same(objects_seen: dict[str, int], objects: Iterable[tuple[str, int]]) -> None:
    """Check that the objects of a watcher equal those of a list."""
    wrong = Counter(objects_seen.items()) - Counter(objects)
    if wrong:
        raise PromiseBroken(f"a watcher believes in {list(wrong)[:5]}")
