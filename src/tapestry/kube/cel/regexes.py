"""Regular expressions that cannot run away: RE2's syntax, and time that grows with the text and the pattern alone.

A pattern becomes a machine of small instructions (`machine_of`), and all the ways to go on are gone at once instead of
one after the other.  Whether a text matches is remembered as it is found out, state by state and letter by letter, so
that the next text of the same make costs one look-up a letter; where a match begins and ends takes a slower walk.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from tapestry.kube.cel.regex_parser import (
    Alternatives,
    Assertion,
    Characters,
    Empty,
    Part,
    RegexError,
    Repeat,
    Sequence,
    parse_regex,
)

__all__ = ["Regex", "RegexError", "compile_regex"]

MAX_INSTRUCTIONS = 10_000
MAX_CACHED_STATES = 50_000
"""How much of its walks a pattern may remember at a time: places of states, and steps between these."""
MATCH = -1
"""The instruction that ends a match."""


@dataclass(frozen=True, slots=True)
class Step:
    """Go on with one character of a kind."""

    characters: Characters
    then: int


@dataclass(frozen=True, slots=True)
class Fork:
    """Go on here or there; here first."""

    first: int
    second: int


@dataclass(frozen=True, slots=True)
class Check:
    """Go on where the place in the text is right."""

    assertion: Assertion
    then: int


Instruction = Step | Fork | Check


class Nfa:
    """The instructions of a pattern; each part is put before what follows it."""

    def __init__(self, part: Part) -> None:
        self.instructions: list[Instruction] = []
        self.start = self.compile_part(part, MATCH)

    def add(self, instruction: Instruction) -> int:
        if len(self.instructions) >= MAX_INSTRUCTIONS:
            raise RegexError("expression too large")
        self.instructions.append(instruction)
        return len(self.instructions) - 1

    def compile_part(self, part: Part, then: int) -> int:
        match part:
            case Characters():
                return self.add(Step(part, then))
            case Assertion():
                return self.add(Check(part, then))
            case Sequence(parts):
                for each in reversed(parts):
                    then = self.compile_part(each, then)
                return then
            case Alternatives(parts):
                starts = [self.compile_part(each, then) for each in parts]
                found = starts.pop()
                for start in reversed(starts):
                    found = self.add(Fork(start, found))
                return found
            case Repeat():
                return self.compile_repeat(part, then)
            case Empty():
                return then
        raise AssertionError(part)

    def compile_repeat(self, part: Repeat, then: int) -> int:
        if part.maximum is None:
            loop = self.add(Fork(then, then))
            body = self.compile_part(part.part, loop)
            self.instructions[loop] = self.fork(body, then, lazy=part.lazy)
            after = loop
        else:
            after = then
            for _ in range(part.maximum - part.minimum):
                after = self.add(self.fork(self.compile_part(part.part, after), then, lazy=part.lazy))
        for _ in range(part.minimum):
            after = self.compile_part(part.part, after)
        return after

    def fork(self, body: int, then: int, *, lazy: bool) -> Fork:
        return Fork(then, body) if lazy else Fork(body, then)


@dataclass(slots=True, eq=False)
class State:
    """Where a walk may be after some of the text, and what came last."""

    places: frozenset[int]
    before: str
    after: dict[str, "State"] = field(default_factory=dict)
    is_match: bool = False


class Regex:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._nfa = Nfa(parse_regex(text))
        self._states: dict[tuple[frozenset[int], str], State] = {}
        self._memory = 0
        self._first = self._state(frozenset(), "")
        self._matched = State(frozenset(), "", is_match=True)

    @property
    def size(self) -> int:
        """The instructions that one letter can take."""
        return len(self._nfa.instructions)

    def matches(self, text: str) -> bool:
        """Whether some of the text matches."""
        state = self._first
        for each in text:
            following = state.after.get(each)
            state = following if following is not None else self._next_state(state, each)
            if state.is_match:
                return True
        return MATCH in self._epsilon_closure([*state.places, self._nfa.start], state.before, "")

    def search(self, text: str, at: int = 0) -> tuple[int, int] | None:
        """Where the first match begins and ends, from `at` on; the one that a backtracking search would prefer."""
        if not at and not self.matches(text):
            return None
        found: tuple[int, int] | None = None
        threads: list[tuple[int, int]] = []
        for number in range(at, len(text) + 1):
            if found is None:
                threads.append((self._nfa.start, number))
            if not threads:
                break
            before, here = text[number - 1 : number] if number else "", text[number : number + 1]
            threads, ended = self._advance_threads(threads, before, here)
            if ended is not None:
                found = ended, number
        return found

    def _advance_threads(
        self, threads: Iterable[tuple[int, int]], before: str, here: str
    ) -> tuple[list[tuple[int, int]], int | None]:
        """The threads behind the next character, and where the match began that ends before it."""
        moved: list[tuple[int, int]] = []
        seen: set[int] = set()
        for place, start in threads:
            for each in self._epsilon_closure([place], before, here, seen):
                if each == MATCH:
                    return moved, start
                instruction = self._nfa.instructions[each]
                if here and isinstance(instruction, Step) and instruction.characters.has(here):
                    moved.append((instruction.then, start))
        return moved, None

    def _epsilon_closure(
        self, places: Iterable[int], before: str, here: str, seen: set[int] | None = None
    ) -> list[int]:
        """The steps, and perhaps the end, that the places lead to without another character; the preferred first."""
        found, seen = [], set() if seen is None else seen
        waiting = list(reversed(list(places)))
        while waiting:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            instruction = self._nfa.instructions[place] if place != MATCH else None
            match instruction:
                case Fork(first, second):
                    waiting += (second, first)
                case Check(assertion, then):
                    if assertion.holds(before, here):
                        waiting.append(then)
                case _:
                    found.append(place)
        return found

    def _next_state(self, state: State, here: str) -> State:
        reached = self._epsilon_closure([*state.places, self._nfa.start], state.before, here)
        if MATCH in reached:
            following = self._matched
        else:
            steps = (self._nfa.instructions[place] for place in reached)
            then = frozenset(each.then for each in steps if isinstance(each, Step) and each.characters.has(here))
            following = self._state(then, character_class(here))
        self._memory += 1
        if self._memory > MAX_CACHED_STATES:
            self._clear_cache()
        state.after[here] = following
        return following

    def _state(self, places: frozenset[int], before: str) -> State:
        found = self._states.get((places, before))
        if found is None:
            found = self._states[places, before] = State(places, before)
            self._memory += len(places)
        return found

    def _clear_cache(self) -> None:
        for each in self._states.values():
            each.after.clear()
        self._states.clear()
        self._memory = 0


def character_class(character: str) -> str:
    """A character that stands for all that assertions do not tell apart."""
    if character == "\n":
        return "\n"
    return "w" if character.isascii() and (character.isalnum() or character == "_") else " "


@lru_cache(maxsize=256)
def compile_regex(text: str) -> Regex:
    """The pattern of a text; raises RegexError."""
    return Regex(text)
