"""Parts of objects that come again: replicas have one spec, and what is found out of it holds for all of them.

A part that was `met` before, by its text, is one and the same value from then on.  Nobody changes values: what a
function marked `remembered` once said of it stands, and the part that one marked `derived` made of it comes again, too.
What is too long to be kept is new each time, and everything is forgotten once there is too much of it.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
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


def cached(most: int, longest: int = 256) -> Callable[[Callable[[Text], T]], Callable[[Text], T]]:
    """A cache for a pure function of a text that callers send; long ones are not kept: they could fill the memory."""

    def decorate(function: Callable[[Text], T]) -> Callable[[Text], T]:
        known = lru_cache(maxsize=most)(function)

        @wraps(function)
        def answer(text: Text) -> T:
            return known(text) if len(text) <= longest else function(text)

        return answer

    return decorate


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
    if len(answers) < QUESTIONS:
        answers[question] = found
        if is_part_too:
            _said.setdefault(id(found), (found, {}))
    return found


def remembered(function: Of[P, T]) -> Of[P, T]:
    """A pure function of a part, and of what can be hashed: it is asked once."""

    @wraps(function)
    def answer(part: Any, /, *others: P.args, **named: P.kwargs) -> T:
        question = function, others, *named.items()
        return once(part, question, lambda: function(part, *others, **named))

    return answer


def derived(function: Of[P, T]) -> Of[P, T]:
    """The same of a function that makes another part of one."""

    @wraps(function)
    def answer(part: Any, /, *others: P.args, **named: P.kwargs) -> T:
        return once(
            part, (function, others, *named.items()), lambda: function(part, *others, **named), is_part_too=True
        )

    return answer
