"""Types of expressions, and how they are made to agree.

A type is a value.  A name of one capital letter is a variable: in `list(A)` it stands for whatever the elements are.
`Agreement` finds out what: it remembers what each variable has come to stand for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Type:
    name: str
    of: tuple["Type", ...] = ()
    fields: Mapping[str, "Field"] | None = field(default=None, compare=False)
    """Of an object: what it has, by the name that expressions use."""
    most: int | None = field(default=None, compare=False)
    """Of a list or a map: how many elements it can have, where somebody knows."""

    @property
    def is_variable(self) -> bool:
        return len(self.name.partition("#")[0]) == 1

    def __str__(self) -> str:
        name = SHOWN.get(self.name, self.name)
        return f"{name}({', '.join(map(str, self.of))})" if self.of else name


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an object, and the name that it has in data."""

    name: str
    type: Type


SHOWN = {"null_type": "null"}
BOOL, INT, UINT, DOUBLE = Type("bool"), Type("int"), Type("uint"), Type("double")
STRING, BYTES, NULL, DYN = Type("string"), Type("bytes"), Type("null_type"), Type("dyn")
TIMESTAMP, DURATION = Type("timestamp"), Type("duration")
ERROR = Type("!error!")
"""Of what has been complained about already: it agrees with everything."""


def list_of(item: Type, most: int | None = None) -> Type:
    return Type("list", (item,), most=most)


def map_of(key: Type, value: Type, most: int | None = None) -> Type:
    return Type("map", (key, value), most=most)


def optional_of(value: Type) -> Type:
    return Type("optional_type", (value,))


def type_of(value: Type) -> Type:
    return Type("type", (value,))


def is_optional(found: Type) -> bool:
    return found.name == "optional_type"


def object_of(name: str, fields: Mapping[str, Type]) -> Type:
    """An object whose fields are called in data what they are called in expressions."""
    return Type(name, fields={each: Field(each, found) for each, found in fields.items()})


def type_named(text: str) -> Type:
    """The type that a text like `map(string, list(A))` says."""
    name, parenthesis, rest = text.strip().partition("(")
    return Type(name, tuple(type_named(each) for each in split(rest[:-1]))) if parenthesis else Type(name)


def split(text: str) -> list[str]:
    """Divide at the commas that are within no parenthesis."""
    found, depth, start = [], 0, 0
    for number, each in enumerate(text):
        depth += (each == "(") - (each == ")")
        if each == "," and not depth:
            found.append(text[start:number])
            start = number + 1
    return [*found, text[start:]] if text.strip() else []


class Agreement:
    """What the variables of one expression stand for."""

    def __init__(self) -> None:
        self._stands_for: dict[str, Type] = {}
        self._count = 0

    def fresh(self, types: Sequence[Type]) -> list[Type]:
        """The types with variables that nobody else has."""
        self._count += 1
        return [renamed(each, self._count) for each in types]

    def variable(self) -> Type:
        return self.fresh([Type("T")])[0]

    def resolved(self, found: Type) -> Type:
        """The type without variables; one that stands for nothing yet is dyn."""
        found = self._seen(found)
        if found.is_variable:
            return DYN
        return Type(found.name, tuple(map(self.resolved, found.of)), None, found.most) if found.of else found

    def agrees(self, wanted: Sequence[Type], found: Sequence[Type]) -> bool:
        """Whether what was found can stand where that is wanted; nothing is remembered where it cannot."""
        before = dict(self._stands_for)
        if len(wanted) == len(found) and all(map(self._fits, wanted, found)):
            return True
        self._stands_for = before
        return False

    def joined(self, first: Type, second: Type) -> Type | None:
        """The more general of two types that agree."""
        if self.agrees([first], [second]):
            return second if self._seen(second).name == "dyn" else first
        return None

    def _seen(self, found: Type) -> Type:
        while found.is_variable and found.name in self._stands_for:
            found = self._stands_for[found.name]
        return found

    def _fits(self, wanted: Type, found: Type) -> bool:
        wanted, found = self._seen(wanted), self._seen(found)
        if wanted == found:
            return True
        if wanted.is_variable or found.is_variable:
            name, other = (wanted.name, found) if wanted.is_variable else (found.name, wanted)
            if self._mentions(other, name):
                return False
            self._stands_for[name] = other
            return True
        if {wanted.name, found.name} & {"dyn", ERROR.name}:
            return True
        if NULL in (wanted, found):
            other = found if wanted == NULL else wanted
            return other.fields is not None or other in (TIMESTAMP, DURATION)
        if wanted.name != found.name or len(wanted.of) != len(found.of):
            return False
        if wanted.name == "type":
            return True  # types can be compared, whatever they are of
        return all(map(self._fits, wanted.of, found.of))

    def _mentions(self, found: Type, name: str) -> bool:
        found = self._seen(found)
        return found.name == name or any(self._mentions(each, name) for each in found.of)


def renamed(found: Type, number: int) -> Type:
    if found.is_variable:
        return Type(f"{found.name}#{number}")
    return Type(found.name, tuple(renamed(each, number) for each in found.of)) if found.of else found
