"""Parts of objects that come again: replicas have one spec, and what is found out of it holds for all of them.

A part that was `met` before, by its text, is one and the same value from then on.  Nobody changes values: what a
function marked `remembered` once said of it stands, and the part that one marked `derived` made of it comes again, too.
What is too long to be kept is new each time, and everything is forgotten once there is too much of it.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

MAX_TEXT_BYTES = 1 << 14
"""Bytes of a text that is kept."""
MAX_ENTRIES = 256
"""Texts that are kept."""

MAX_RESULTS_PER_VALUE = 64
"""Answers that are kept of each part."""

P = ParamSpec("P")
T = TypeVar("T")
Text = TypeVar("Text", str, bytes)
MemoizableFunction = Callable[Concatenate[Any, P], T]

_interned: dict[Any, tuple[Any, Any]] = {}
_results: dict[int, tuple[Any, dict[Any, Any]]] = {}
"""What was said of each part, which is held here, too: as long as it is, no other value has its id."""


class Cache(dict[Text, T]):
    """The answers of a function by its argument.  A lookup that hits does not run any Python code."""

    def __init__(self, function: Callable[[Text], T], most: int, longest: int) -> None:
        super().__init__()
        self._function: Callable[[Text], T] = function
        self._most, self._longest = most, longest

    def __missing__(self, text: Text) -> T:
        found = self._function(text)
        if len(text) <= self._longest:
            if len(self) >= self._most:
                self.clear()
            self[text] = found
        return found


def bounded_cache(max_entries: int, max_length: int = 256) -> Callable[[Callable[[Text], T]], Callable[[Text], T]]:
    """A cache for a pure function of a text that callers send.

    Long texts are not kept: they could fill the memory.  Once `most` are kept, all of them are forgotten.
    """
    return lambda function: Cache(function, max_entries, max_length).__getitem__


def intern(text: bytes, scope: Any, read: Callable[[], tuple[T, Any]]) -> tuple[T, Any]:
    """What `read` makes of a text in a place: a part that comes again when the text does, and whatever else."""
    key = scope, text
    found = _interned.get(key)
    if found is None:
        found = read()
        if len(text) <= MAX_TEXT_BYTES:
            if len(_interned) >= MAX_ENTRIES:
                clear_cache()
            _interned[key] = found
            _results[id(found[0])] = found[0], {}
    return found


def clear_cache() -> None:
    _interned.clear()
    _results.clear()


def is_interned(value: Any) -> bool:
    """Whether it comes again."""
    return id(value) in _results


def memoize(value: Any, key: Any, compute: Callable[[], T], *, intern_result: bool = False) -> T:
    """What was answered to a question about a part, for which something stands that can be hashed."""
    known = _results.get(id(value))
    if known is None:
        return compute()
    answers = known[1]
    if key in answers:
        found: T = answers[key]
        return found
    found = compute()
    _keep(answers, key, found, is_part_too=intern_result)
    return found


def _keep(answers: dict[Any, Any], question: Any, found: Any, *, is_part_too: bool) -> None:
    if len(answers) < MAX_RESULTS_PER_VALUE:
        answers[question] = found
        if is_part_too:
            _results.setdefault(id(found), (found, {}))


def memoized(function: MemoizableFunction[P, T]) -> MemoizableFunction[P, T]:
    """A pure function of a part, and of what can be hashed: it is asked once."""
    return _asked_once(function, is_part_too=False)


def memoized_and_interned(function: MemoizableFunction[P, T]) -> MemoizableFunction[P, T]:
    """The same of a function that makes another part of one."""
    return _asked_once(function, is_part_too=True)


def _asked_once(function: MemoizableFunction[P, T], *, is_part_too: bool) -> MemoizableFunction[P, T]:
    @wraps(function)
    def answer(part: Any, /, *others: P.args, **named: P.kwargs) -> T:
        known = _results.get(id(part))
        if known is None:
            return function(part, *others, **named)
        answers, question = known[1], (function, others, *named.items())
        if question in answers:
            found: T = answers[question]
            return found
        found = function(part, *others, **named)
        _keep(answers, question, found, is_part_too=is_part_too)
        return found

    return answer
