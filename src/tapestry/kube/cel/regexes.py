"""Regular expressions in RE2 syntax with a run time linear in the text.

A pattern is compiled to an NFA of small instructions (`Nfa`), and all its paths are followed at the same time.
`matches` caches the states and transitions that it visits, so further similar texts cost one lookup per character.
`search`, which also finds the bounds of a match, is slower.
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
"""Limit of cached NFA positions and transitions of one pattern."""
MATCH = -1
"""Instruction index that ends a match."""


@dataclass(frozen=True, slots=True)
class Step:
    """Consume one character of a set."""

    characters: Characters
    next: int


@dataclass(frozen=True, slots=True)
class Fork:
    """Try two paths, `first` with priority."""

    first: int
    second: int


@dataclass(frozen=True, slots=True)
class Check:
    """Continue if the assertion holds at this position."""

    assertion: Assertion
    next: int


Instruction = Step | Fork | Check


class Nfa:
    """Instructions of a pattern. Each part is compiled with the instruction that follows it."""

    def __init__(self, part: Part) -> None:
        self.instructions: list[Instruction] = []
        self.start = self.compile_part(part, MATCH)

    def add(self, instruction: Instruction) -> int:
        if len(self.instructions) >= MAX_INSTRUCTIONS:
            raise RegexError("expression too large")
        self.instructions.append(instruction)
        return len(self.instructions) - 1

    def compile_part(self, part: Part, target: int) -> int:
        match part:
            case Characters():
                return self.add(Step(part, target))
            case Assertion():
                return self.add(Check(part, target))
            case Sequence(parts):
                for each in reversed(parts):
                    target = self.compile_part(each, target)
                return target
            case Alternatives(parts):
                starts = [self.compile_part(each, target) for each in parts]
                fork = starts.pop()
                for start in reversed(starts):
                    fork = self.add(Fork(start, fork))
                return fork
            case Repeat():
                return self.compile_repeat(part, target)
            case Empty():
                return target
        raise AssertionError(part)

    def compile_repeat(self, part: Repeat, target: int) -> int:
        if part.maximum is None:
            loop = self.add(Fork(target, target))
            body = self.compile_part(part.part, loop)
            self.instructions[loop] = self.fork(body, target, lazy=part.lazy)
            after = loop
        else:
            after = target
            for _ in range(part.maximum - part.minimum):
                after = self.add(self.fork(self.compile_part(part.part, after), target, lazy=part.lazy))
        for _ in range(part.minimum):
            after = self.compile_part(part.part, after)
        return after

    def fork(self, body: int, target: int, *, lazy: bool) -> Fork:
        return Fork(target, body) if lazy else Fork(body, target)


@dataclass(slots=True, eq=False)
class State:
    """Set of NFA positions after some characters, and the class of the last character."""

    positions: frozenset[int]
    before: str
    transitions: dict[str, "State"] = field(default_factory=dict)
    is_match: bool = False


class Regex:
    def __init__(self, text: str) -> None:
        self.text = text
        self._nfa = Nfa(parse_regex(text))
        self._states: dict[tuple[frozenset[int], str], State] = {}
        self._memory = 0
        self._first = self._state(frozenset(), "")
        self._matched = State(frozenset(), "", is_match=True)

    @property
    def size(self) -> int:
        """Number of instructions that one character can take."""
        return len(self._nfa.instructions)

    def matches(self, text: str) -> bool:
        """Return True if any part of the text matches."""
        state = self._first
        for each in text:
            next_state = state.transitions.get(each)
            state = next_state if next_state is not None else self._next_state(state, each)
            if state.is_match:
                return True
        return MATCH in self._epsilon_closure([*state.positions, self._nfa.start], state.before, "")

    def search(self, text: str, at: int = 0) -> tuple[int, int] | None:
        """Return the bounds of the first match from `at` on, with the priorities of a backtracking search."""
        if not at and not self.matches(text):
            return None
        match: tuple[int, int] | None = None
        threads: list[tuple[int, int]] = []
        for number in range(at, len(text) + 1):
            if match is None:
                threads.append((self._nfa.start, number))
            if not threads:
                break
            before, current = text[number - 1 : number] if number else "", text[number : number + 1]
            threads, match_start = self._advance_threads(threads, before, current)
            if match_start is not None:
                match = match_start, number
        return match

    def _advance_threads(
        self, threads: Iterable[tuple[int, int]], before: str, current: str
    ) -> tuple[list[tuple[int, int]], int | None]:
        """Return the threads after the next character, and the start of a match that ends before it."""
        advanced: list[tuple[int, int]] = []
        seen: set[int] = set()
        for position, start in threads:
            for each in self._epsilon_closure([position], before, current, seen):
                if each == MATCH:
                    return advanced, start
                instruction = self._nfa.instructions[each]
                if current and isinstance(instruction, Step) and instruction.characters.has(current):
                    advanced.append((instruction.next, start))
        return advanced, None

    def _epsilon_closure(
        self, positions: Iterable[int], before: str, current: str, seen: set[int] | None = None
    ) -> list[int]:
        """Return the consuming instructions, and MATCH, reachable without consuming a character, by priority."""
        reachable, seen = [], set() if seen is None else seen
        pending = list(reversed(list(positions)))
        while pending:
            position = pending.pop()
            if position in seen:
                continue
            seen.add(position)
            instruction = self._nfa.instructions[position] if position != MATCH else None
            match instruction:
                case Fork(first, second):
                    pending += (second, first)
                case Check(assertion, target):
                    if assertion.holds(before, current):
                        pending.append(target)
                case _:
                    reachable.append(position)
        return reachable

    def _next_state(self, state: State, current: str) -> State:
        reached = self._epsilon_closure([*state.positions, self._nfa.start], state.before, current)
        if MATCH in reached:
            next_state = self._matched
        else:
            steps = (self._nfa.instructions[position] for position in reached)
            target = frozenset(each.next for each in steps if isinstance(each, Step) and each.characters.has(current))
            next_state = self._state(target, character_class(current))
        self._memory += 1
        if self._memory > MAX_CACHED_STATES:
            self._clear_cache()
        state.transitions[current] = next_state
        return next_state

    def _state(self, positions: frozenset[int], before: str) -> State:
        state = self._states.get((positions, before))
        if state is None:
            state = self._states[positions, before] = State(positions, before)
            self._memory += len(positions)
        return state

    def _clear_cache(self) -> None:
        for each in self._states.values():
            each.transitions.clear()
        self._states.clear()
        self._memory = 0


def character_class(character: str) -> str:
    """Return a representative of all characters that assertions treat alike."""
    if character == "\n":
        return "\n"
    return "w" if character.isascii() and (character.isalnum() or character == "_") else " "


@lru_cache(maxsize=256)
def compile_regex(text: str) -> Regex:
    """Compile a pattern. Raise RegexError."""
    return Regex(text)
