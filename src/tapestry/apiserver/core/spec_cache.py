"""Interning and memoization of repeated object parts, for example the pod specs of replicas.

`intern` returns the same value for the same text. Values are never modified, so results of functions marked
`memoized` stay valid, and results of functions marked `memoized_and_interned` are interned too. Texts over the size
limit are not cached. The cache is cleared when it is full.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

MAX_TEXT_BYTES = 1 << 14
"""Maximum size of a cached text in bytes."""
MAX_ENTRIES = 256
"""Maximum number of cached texts."""

MAX_RESULTS_PER_VALUE = 64
"""Maximum number of cached results per interned value."""

P = ParamSpec("P")
T = TypeVar("T")
Text = TypeVar("Text", str, bytes)
MemoizableFunction = Callable[Concatenate[Any, P], T]

_interned: dict[Any, tuple[Any, Any]] = {}
_results: dict[int, tuple[Any, dict[Any, Any]]] = {}
"""Results by the id of each interned value. The value is kept alive here, so that its id stays unique."""


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


def intern(text: bytes, scope: Any, read: Callable[[], tuple[T, Any]]) -> tuple[T, Any]:
    """Return the result of `read` for a text; equal texts in the same scope share the first result."""
    key = scope, text
    result = _interned.get(key)
    if result is None:
        result = read()
        if len(text) <= MAX_TEXT_BYTES:
            if len(_interned) >= MAX_ENTRIES:
                clear_cache()
            _interned[key] = result
            _results[id(result[0])] = result[0], {}
    return result


def clear_cache() -> None:
    _interned.clear()
    _results.clear()


def is_interned(value: Any) -> bool:
    return id(value) in _results


def memoize(value: Any, key: Any, compute: Callable[[], T], *, intern_result: bool = False) -> T:
    """Return the result of `compute` for an interned value, cached under a hashable key."""
    known = _results.get(id(value))
    if known is None:
        return compute()
    results = known[1]
    if key in results:
        result: T = results[key]
        return result
    result = compute()
    _store_result(results, key, result, intern_result=intern_result)
    return result


def _store_result(results: dict[Any, Any], key: Any, found: Any, *, intern_result: bool) -> None:
    if len(results) < MAX_RESULTS_PER_VALUE:
        results[key] = found
        if intern_result:
            _results.setdefault(id(found), (found, {}))


def memoized(function: MemoizableFunction[P, T]) -> MemoizableFunction[P, T]:
    """Cache the results of a pure function of an interned value and hashable arguments."""
    return _memoize_function(function, intern_result=False)


def memoized_and_interned(function: MemoizableFunction[P, T]) -> MemoizableFunction[P, T]:
    """Like `memoized`, for a function whose result is interned too."""
    return _memoize_function(function, intern_result=True)


def _memoize_function(function: MemoizableFunction[P, T], *, intern_result: bool) -> MemoizableFunction[P, T]:
    @wraps(function)
    def cached(value: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        known = _results.get(id(value))
        if known is None:
            return function(value, *args, **kwargs)
        results, key = known[1], (function, args, *kwargs.items())
        if key in results:
            result: T = results[key]
            return result
        result = function(value, *args, **kwargs)
        _store_result(results, key, result, intern_result=intern_result)
        return result

    return cached
