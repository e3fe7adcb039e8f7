"""Cache of repeated object parts, for example the pod specs of replicas.

The `SpecCache` of a server interns decoded values: equal texts give the same `Interned` value. Interned values are
never modified and carry the results of functions marked `memoized` or `memoized_and_interned`, which must be pure.
These functions also accept other values, and then just run.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, TypeVarTuple

from tapestry.kube.objects import Object

MAX_TEXT_BYTES = 1 << 14
"""Maximum size of a cached text in bytes."""
MAX_ENTRIES = 256
"""Maximum number of cached texts."""
RESULTS_PER_ENTRY = 32
"""Maximum number of cached results, as an average over all entries."""

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
Text = TypeVar("Text", str, bytes)


class SpecCache:
    """Interned values of one server, cleared when there are too many. With no entries, nothing is cached."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._interned: dict[Any, tuple[Any, Any]] = {}
        self._result_count = 0

    def intern(self, text: bytes, scope: Any, read: Callable[[], tuple[Object, T]]) -> tuple[Object, T]:
        """Return the result of `read` for a text; equal texts in the same scope share the first result."""
        key = scope, text
        found = self._interned.get(key)
        if found is None:
            found = read()
            if len(text) <= MAX_TEXT_BYTES and self._max_entries:
                if len(self._interned) >= self._max_entries:
                    self.clear()
                found = self._interned[key] = Interned(found[0], self), found[1]
        return found

    def add_result(self, value: "Interned", key: Any, result: Any) -> None:
        if self._result_count >= RESULTS_PER_ENTRY * self._max_entries:
            self.clear()
        self._result_count += 1
        value.results[key] = result

    def clear(self) -> None:
        """Forget all values. They refer to this cache, so it must be cleared when it is no longer used."""
        self._interned.clear()  # results go with their values
        self._result_count = 0


class Interned(dict[str, Any]):
    """An object that all requests with the same text share."""

    __slots__ = ("cache", "results")

    def __init__(self, value: Object, cache: SpecCache) -> None:
        super().__init__(value)
        self.cache = cache
        self.results: dict[Any, Any] = {}


class Variant(Interned):
    """An object that shares the results of memoized functions with others, which differ only in a random part."""

    __slots__ = ("occurrences", "random_part")

    random_part: str
    occurrences: int
    """Number of times that the random part occurs in the object."""


def variant(original: Object, family: Callable[..., Any], random_part: str, occurrences: int) -> Object:
    """Return a copy, to which `family` adds parts that depend on the original and a random part, such as a name.

    No memoized function may depend on the random part: its result for one variant is used for the others.
    """
    if type(original) is not Interned:
        return {**original}
    result = Variant(original, original.cache)
    result.results = memoize(original, family, dict)
    result.random_part, result.occurrences = random_part, occurrences
    return result


def variant_text(value: Variant, encode: Callable[[Object], bytes]) -> bytes:
    """Return the encoded variant: the text of an earlier one, with its own random part."""
    own = value.random_part.encode()
    pieces: list[bytes] | None = value.results.get(variant_text)
    if pieces is not None:
        return own.join(pieces)
    text = encode(value)
    pieces = text.split(own)
    if len(pieces) == value.occurrences + 1:  # otherwise it also occurs elsewhere
        value.cache.add_result(value, variant_text, pieces)
    return text


def memoize(value: Object, key: Any, compute: Callable[[], T]) -> T:
    """Return the result of `compute`, cached under a hashable key if the value is interned and no variant."""
    if type(value) is not Interned:
        return compute()
    if key in value.results:
        result: T = value.results[key]
        return result
    result = compute()
    value.cache.add_result(value, key, result)
    return result


def memoized(function: Callable[[Object, *Arguments], T]) -> Callable[[Object, *Arguments], T]:
    """Cache the results of a pure function of an interned value and hashable arguments."""

    @wraps(function)
    def cached(value: Object, *args: *Arguments) -> T:
        if not isinstance(value, Interned):
            return function(value, *args)
        key = function, args
        if key in value.results:
            result: T = value.results[key]
            return result
        result = function(value, *args)
        value.cache.add_result(value, key, result)
        return result

    return cached


def memoized_and_interned(function: Callable[[Object, *Arguments], Object]) -> Callable[[Object, *Arguments], Object]:
    """Like `memoized`, for a function whose result is interned too."""

    @wraps(function)
    def cached(value: Object, *args: *Arguments) -> Object:
        if type(value) is not Interned:
            return function(value, *args)
        key = function, args
        result: Object | None = value.results.get(key)
        if result is None:
            result = function(value, *args)
            result = result if isinstance(result, Interned) else Interned(result, value.cache)
            value.cache.add_result(value, key, result)
        return result

    return cached


class Cache(dict[Text, T]):
    """Results of a function by its argument. A cache hit does not run any Python code."""

    def __init__(self, function: Callable[[Text], T], max_entries: int, max_length: int) -> None:
        super().__init__()
        self._function: Callable[[Text], T] = function
        self._max_entries, self._max_length = max_entries, max_length

    def __missing__(self, text: Text) -> T:
        result = self._function(text)
        if len(text) <= self._max_length:
            if len(self) >= self._max_entries:
                self.clear()
            self[text] = result
        return result


def bounded_cache(max_entries: int, max_length: int = 256) -> Callable[[Callable[[Text], T]], Callable[[Text], T]]:
    """Return a decorator that caches a pure function of a text that clients send.

    Texts over `max_length` are not cached, because they could exhaust memory. The cache is cleared when it has
    `max_entries`.
    """
    return lambda function: Cache(function, max_entries, max_length).__getitem__
