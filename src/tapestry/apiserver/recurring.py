"""Parts of objects that come again: replicas have one spec, and what is found out of it holds for all of them.

A part that was `met` before, by its text, is one and the same value from then on.  Nobody changes values: what a
function marked `remembered` once said of it stands, and the part that one marked `derived` made of it comes again, too.
What is too long to be kept is new each time, and everything is forgotten once there is too much of it.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

LONGEST = 1 << 14
"""Bytes of a text that is kept."""
MOST = 256
"""Texts that are kept."""

QUESTIONS = 64
"""Answers that are kept of each part."""

P = ParamSpec("P")
T = TypeVar("T")
Text = TypeVar("Text", str, bytes)
Of = Callable[Concatenate[Any, P], T]

_met: dict[Any, tuple[Any, Any]] = {}
_said: dict[int, tuple[Any, dict[Any, Any]]] = {}
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


def cached(most: int, longest: int = 256) -> Callable[[Callable[[Text], T]], Callable[[Text], T]]:
    """A cache for a pure function of a text that callers send.

    Long texts are not kept: they could fill the memory.  Once `most` are kept, all of them are forgotten.
    """
    return lambda function: Cache(function, most, longest).__getitem__


def met(text: bytes, place: Any, read: Callable[[], tuple[T, Any]]) -> tuple[T, Any]:
    """What `read` makes of a text in a place: a part that comes again when the text does, and whatever else."""
    key = place, text
    found = _met.get(key)
    if found is None:
        found = read()
        if len(text) <= LONGEST:
            if len(_met) >= MOST:
                forget_all()
            _met[key] = found
            _said[id(found[0])] = found[0], {}
    return found


def forget_all() -> None:
    _met.clear()
    _said.clear()


def is_part(value: Any) -> bool:
    """Whether it comes again."""
    return id(value) in _said


def once(part: Any, question: Any, answer: Callable[[], T], *, is_part_too: bool = False) -> T:
    """What was answered to a question about a part, for which something stands that can be hashed."""
    known = _said.get(id(part))
    if known is None:
        return answer()
    answers = known[1]
    if question in answers:
        found: T = answers[question]
        return found
    found = answer()
    _keep(answers, question, found, is_part_too=is_part_too)
    return found


def _keep(answers: dict[Any, Any], question: Any, found: Any, *, is_part_too: bool) -> None:
    if len(answers) < QUESTIONS:
        answers[question] = found
        if is_part_too:
            _said.setdefault(id(found), (found, {}))


def remembered(function: Of[P, T]) -> Of[P, T]:
    """A pure function of a part, and of what can be hashed: it is asked once."""
    return _asked_once(function, is_part_too=False)


def derived(function: Of[P, T]) -> Of[P, T]:
    """The same of a function that makes another part of one."""
    return _asked_once(function, is_part_too=True)


def _asked_once(function: Of[P, T], *, is_part_too: bool) -> Of[P, T]:
    @wraps(function)
    def answer(part: Any, /, *others: P.args, **named: P.kwargs) -> T:
        known = _said.get(id(part))
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
