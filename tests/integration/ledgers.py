"""What clients of an API server were told, against what it says later: nothing may be lost, or told twice."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


class Broken(AssertionError):
    """The server broke a promise; the message says which."""


@dataclass
class Ledger:
    """Every acknowledged write.  A key has one writer, whose values count up; None is a deletion."""

    acknowledged: dict[str, int | None] = field(default_factory=dict)
    revisions: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Which write was given which revision."""
    pending: dict[str, int | None] = field(default_factory=dict)
    """The writes whose answers have not come, or were lost."""
    count: int = 0

    def asks(self, key: str, value: int | None) -> None:
        self.pending[key] = value

    def was_told(self, key: str, revision: int | None) -> None:
        value = self.acknowledged[key] = self.pending.pop(key)
        self.count += 1
        if revision is not None and value is not None:
            known = self.revisions.setdefault(revision, (key, value))
            if known != (key, value):
                raise Broken(f"revision {revision} was given to {known} and to {(key, value)}")

    def found(self, key: str, value: int | None) -> None:
        """A read by the key's own writer, after an answer was lost or the server came back."""
        known = self.acknowledged.get(key)
        if value not in {known, self.pending.get(key, known)}:
            raise Broken(f"{key}: {known} was acknowledged, and {value} is there")
        self.pending.pop(key, None)
        self.acknowledged[key] = value

    def seen_by_another(self, key: str, value: int | None, known_before: int | None) -> None:
        """A read by anybody, and what was acknowledged before it began."""
        if value is not None and known_before is not None and value < known_before:
            raise Broken(f"{key}: {known_before} had been acknowledged, and {value} was read after that")


@dataclass
class Watcher:
    """What one watcher was told, over any number of watches."""

    ledger: Ledger
    picture: dict[str, int] = field(default_factory=dict)
    since: int = 0
    """The revision of its last list."""
    last: int = 0
    """The newest revision that it was told of."""
    seen: set[int] = field(default_factory=set)
    events: int = 0
    bookmarks: int = 0
    lists: int = 0

    def listed(self, revision: int, objects: dict[str, int]) -> None:
        if revision < self.last:
            raise Broken(f"a list of revision {revision} after events of {self.last}")
        self.settle()
        self.picture, self.since, self.last, self.seen = objects, revision, revision, set()
        self.lists += 1

    def told(self, type: str, key: str, value: int, revision: int) -> None:
        if revision <= self.last:
            raise Broken(f"{type} {key} of revision {revision} came after {self.last}")
        if (type == "ADDED") == (key in self.picture):
            raise Broken(f"{type} {key} of revision {revision}, which was {'' if key in self.picture else 'not '}there")
        self.events += 1
        self.last = revision
        self.seen.add(revision)
        if type == "DELETED":
            del self.picture[key]
        else:
            self.picture[key] = value

    def bookmarked(self, revision: int) -> None:
        if revision < self.last:
            raise Broken(f"a bookmark of revision {revision} after {self.last}")
        self.bookmarks += 1
        self.last = revision

    def settle(self) -> None:
        """Every acknowledged write between its list and the last it was told of must have come."""
        missed = [
            revision
            for revision in self.ledger.revisions
            if self.since < revision <= self.last and revision not in self.seen
        ]
        if missed:
            raise Broken(f"told of {self.last}, but never of {missed[:5]} ({len(missed)} in all)")


def same(picture: dict[str, int], objects: Iterable[tuple[str, int]]) -> None:
    """Whether a watcher that has seen everything has the picture that a list gives."""
    wrong = Counter(picture.items()) - Counter(objects)
    if wrong:
        raise Broken(f"a watcher believes in {list(wrong)[:5]}")
