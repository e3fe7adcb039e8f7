"""Parser of RE2 regular expression syntax."""

import unicodedata
from dataclasses import dataclass, replace

MAX_REPEAT = 1000
MAX_NESTING = 100


class RegexError(ValueError):
    """The pattern is invalid. The message is that of RE2."""


@dataclass(frozen=True, slots=True)
class Characters:
    """Set of characters: code point ranges and Unicode categories."""

    ranges: tuple[tuple[int, int], ...]
    categories: tuple[tuple[str, bool], ...] = ()
    """Categories, each with True if it is negated."""
    inverted: bool = False
    folded: bool = False
    """True for case-insensitive matching."""

    def has(self, character: str) -> bool:
        variants = {character, character.lower(), character.upper()} if self.folded else {character}
        return any(self._lists(each) for each in variants if len(each) == 1) is not self.inverted

    def _lists(self, character: str) -> bool:
        code = ord(character)
        if any(low <= code <= high for low, high in self.ranges):
            return True
        return any(unicodedata.category(character).startswith(name) is not negated for name, negated in self.categories)


@dataclass(frozen=True, slots=True)
class Assertion:
    """Condition on the characters before and after a position. The character is empty at an edge of the text."""

    kind: str

    def holds(self, before: str, after: str) -> bool:
        match self.kind:
            case "begin":
                return not before
            case "end":
                return not after
            case "line begin":
                return before in ("", "\n")
            case "line end":
                return after in ("", "\n")
            case "boundary":
                return is_word(before) is not is_word(after)
        return is_word(before) is is_word(after)


def is_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")


@dataclass(frozen=True, slots=True)
class Empty:
    pass


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple["Part", ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    parts: tuple["Part", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: "Part"
    minimum: int
    maximum: int | None
    lazy: bool


Part = Characters | Assertion | Empty | Sequence | Alternatives | Repeat

DIGITS, SPACES = ((48, 57),), ((9, 10), (12, 13), (32, 32))
WORDS = ((48, 57), (65, 90), (95, 95), (97, 122))
PERL = {"d": DIGITS, "s": SPACES, "w": WORDS}
POSIX = {
    "alnum": ((48, 57), (65, 90), (97, 122)),
    "alpha": ((65, 90), (97, 122)),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": DIGITS,
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),),
    "word": WORDS,
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}
ESCAPES = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
ASSERTIONS = {"A": "begin", "z": "end", "b": "boundary", "B": "no boundary"}
ANY, ANY_IN_LINE = Characters(((0, 0x10FFFF),)), Characters(((10, 10),), inverted=True)


def inverse(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    result, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            result.append((start, low - 1))
        start = high + 1
    return (*result, (start, 0x10FFFF))


def parse_regex(text: str) -> Part:
    """Parse a pattern. Raise RegexError."""
    parser = RegexParser(text)
    part = parser.alternatives()
    if parser.next:
        raise RegexError(f"unexpected ): `{text}`")
    return part


class RegexParser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._flags: frozenset[str] = frozenset()
        self._nesting = 0

    @property
    def next(self) -> str:
        return self.text[self.at : self.at + 1]

    def accept(self, text: str) -> bool:
        if self.text.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def take(self) -> str:
        character = self.next
        self.at += 1
        return character

    # -- structure

    def alternatives(self) -> Part:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise RegexError(f"expression nests too deeply: `{self.text}`")
        before = self._flags
        options = [self.sequence()]
        while self.accept("|"):
            options.append(self.sequence())
        self._flags = before
        self._nesting -= 1
        return Alternatives(tuple(options)) if len(options) > 1 else options[0]

    def sequence(self) -> Part:
        parts: list[Part] = []
        while self.next and self.next not in "|)":
            part = self.atom()
            if part is not None:
                parts.append(self.repetition(part))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def repetition(self, part: Part) -> Part:
        start = self.at
        bounds = self.bounds()
        if bounds is None:
            return part
        lazy = self.accept("?") is not ("U" in self._flags)
        end = self.at
        if self.bounds() is not None:
            raise RegexError(f"invalid nested repetition operator: `{self.text[start : self.at]}`")
        self.at = end
        return Repeat(part, *bounds, lazy)

    def bounds(self) -> tuple[int, int | None] | None:
        match self.next:
            case "*":
                self.at += 1
                return 0, None
            case "+":
                self.at += 1
                return 1, None
            case "?":
                self.at += 1
                return 0, 1
            case "{":
                return self.counted_bounds()
        return None

    def counted_bounds(self) -> tuple[int, int | None] | None:
        end = self.text.find("}", self.at)
        first, comma, second = self.text[self.at + 1 : end].partition(",")
        if end < 0 or not (first.isascii() and first.isdigit()) or (second and not second.isdigit()):
            return None  # a literal brace
        minimum = int(first)
        maximum = (int(second) if second else None) if comma else minimum
        if minimum > MAX_REPEAT or (maximum is not None and (maximum > MAX_REPEAT or maximum < minimum)):
            raise RegexError(f"invalid repeat count: `{self.text[self.at : end + 1]}`")
        self.at = end + 1
        return minimum, maximum

    # -- atoms

    def atom(self) -> Part | None:
        """Parse what can be repeated. Return None for flags, which match nothing by themselves."""
        match self.next:
            case "(":
                return self.group()
            case "[":
                return self.bracket()
            case "\\":
                return self.escape()
            case "*" | "+" | "?":
                raise RegexError(f"missing argument to repetition operator: `{self.next}`")
        character = self.take()
        match character:
            case ".":
                return ANY if "s" in self._flags else ANY_IN_LINE
            case "^":
                return Assertion("line begin" if "m" in self._flags else "begin")
            case "$":
                return Assertion("line end" if "m" in self._flags else "end")
        return self.literal(ord(character))

    def literal(self, code: int) -> Characters:
        return Characters(((code, code),), folded="i" in self._flags)

    def group(self) -> Part | None:
        self.at += 1
        if self.accept("?"):
            start = self.at
            if self.accept("P<") or self.accept("<"):
                end = self.text.find(">", self.at)
                if end < 0 or not self.text[self.at : end].isidentifier():
                    raise RegexError(f"invalid named capture: `{self.text[start - 2 :]}`")
                self.at = end + 1
            else:
                outer = self._flags
                if not self.flags(start):
                    return None
                part = self.expect_group_end(self.alternatives())
                self._flags = outer
                return part
        return self.expect_group_end(self.alternatives())

    def flags(self, start: int) -> bool:
        """Parse flags. Return True if a group follows, to which alone they apply."""
        turned_on, flags = True, set(self._flags)
        while True:
            match self.take():
                case "i" | "m" | "s" | "U" as flag:
                    flags = flags | {flag} if turned_on else flags - {flag}
                case "-" if turned_on:
                    turned_on = False
                case ":":
                    self._flags = frozenset(flags)
                    return True
                case ")":
                    self._flags = frozenset(flags)
                    return False
                case _:
                    raise RegexError(f"invalid or unsupported Perl syntax: `(?{self.text[start : self.at]}`")

    def expect_group_end(self, part: Part) -> Part:
        if not self.accept(")"):
            raise RegexError(f"missing closing ): `{self.text}`")
        return part

    def escape(self) -> Part | None:
        start = self.at
        self.at += 1
        letter = self.next
        if letter in ASSERTIONS and letter:
            self.at += 1
            return Assertion(ASSERTIONS[letter])
        if letter == "Q":
            return self.quoted_literal(start)
        class_part = self.class_escape()
        return class_part if class_part is not None else self.literal(self.escaped_code(start))

    def quoted_literal(self, start: int) -> Part | None:
        """Replace the text between \\Q and \\E with escaped characters and continue parsing."""
        end = self.text.find("\\E", start)
        quoted, rest = (self.text[start + 2 :], "") if end < 0 else (self.text[start + 2 : end], self.text[end + 2 :])
        escaped = "".join(f"\\{each}" if each.isascii() and not each.isalnum() else each for each in quoted)
        self.text, self.at = self.text[:start] + escaped + rest, start
        return self.atom() if escaped else None

    def class_escape(self) -> Characters | None:
        """Parse a class like \\d or \\pL after its backslash."""
        letter = self.next
        if letter and letter.lower() in PERL:
            self.at += 1
            ranges = PERL[letter.lower()]
            return Characters(inverse(ranges) if letter.isupper() else ranges)
        if letter not in ("p", "P") or not letter:
            return None
        self.at += 1
        name = self.take()
        if name == "{":
            end = self.text.find("}", self.at)
            if end < 0:
                raise RegexError(f"invalid character class range: `\\{letter}{self.text[self.at - 1 :]}`")
            name, self.at = self.text[self.at : end], end + 1
        negated = (letter == "P") is not name.startswith("^")
        name = name.removeprefix("^")
        if name == "Any":
            return Characters(() if negated else ANY.ranges)
        if not name or name[0] not in "LMNPSZC" or len(name) > 2:
            raise RegexError(f"invalid character class range: `\\{letter}{{{name}}}`")
        return Characters((), ((name, negated),))

    def escaped_code(self, start: int) -> int:
        letter = self.take()
        if letter in ESCAPES and letter:
            return ESCAPES[letter]
        if letter == "x":
            end = self.text.find("}", self.at) + 1 if self.next == "{" else self.at + 2
            digits = self.text[self.at : end].strip("{}")
            self.at = end
            if digits and all(each in "0123456789abcdefABCDEF" for each in digits):
                return min(int(digits, 16), 0x10FFFF)
        elif letter == "0":
            digits = letter
            while len(digits) < 3 and self.next and self.next in "01234567":
                digits += self.take()
            return int(digits, 8)
        elif letter and letter.isascii() and not letter.isalnum():
            return ord(letter)
        if not letter:
            raise RegexError("trailing backslash at end of expression: ``")
        raise RegexError(f"invalid escape sequence: `{self.text[start : self.at]}`")

    def bracket(self) -> Characters:
        start = self.at
        self.at += 1
        characters = Characters((), inverted=self.accept("^"), folded="i" in self._flags)
        first = True
        while first or self.next != "]":
            if not self.next:
                raise RegexError(f"missing closing ]: `{self.text[start:]}`")
            characters, first = self.with_bracket_item(characters, start), False
        self.at += 1
        return characters

    def with_bracket_item(self, result: Characters, start: int) -> Characters:
        """Return the class with the next item of the bracket expression added."""
        if self.accept("[:"):
            end = self.text.find(":]", self.at)
            name = self.text[self.at : end].removeprefix("^")
            if end < 0 or name not in POSIX:
                raise RegexError(f"invalid character class range: `[:{self.text[self.at : end + 2]}`")
            negated = self.text[self.at] == "^"
            self.at = end + 2
            return replace(result, ranges=result.ranges + (inverse(POSIX[name]) if negated else POSIX[name]))
        if self.next == "\\":
            self.at += 1
            escaped_class = self.class_escape()
            if escaped_class is not None:
                return replace(
                    result,
                    ranges=result.ranges + escaped_class.ranges,
                    categories=result.categories + escaped_class.categories,
                )
            self.at -= 1
        at = self.at
        low = self.bracket_code(start)
        high = low
        if self.next == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
            self.at += 1
            high = self.bracket_code(start)
        if high < low:
            raise RegexError(f"invalid character class range: `{self.text[at : self.at]}`")
        return replace(result, ranges=(*result.ranges, (low, high)))

    def bracket_code(self, start: int) -> int:
        if not self.next:
            raise RegexError(f"missing closing ]: `{self.text[start:]}`")
        if self.accept("\\"):
            return self.escaped_code(self.at - 1)
        return ord(self.take())
