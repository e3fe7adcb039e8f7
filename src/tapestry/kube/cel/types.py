"""Types of expressions, and how they are made to agree.

A type is a value.  A name of one capital letter is a variable: in `list(A)` it stands for whatever the elements are.
`Agreement` finds out what: it remembers what each variable has come to stand for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Type:
    name: str
    parameters: tuple["Type", ...] = ()
    fields: Mapping[str, "Field"] | None = field(default=None, compare=False)
    """Of an object: what it has, by the name that expressions use."""
    max_size: int | None = field(default=None, compare=False)
    """Of a list or a map: how many elements it can have, where somebody knows."""

    @property
    def is_variable(self) -> bool:
        return len(self.name.partition("#")[0]) == 1

    def __str__(self) -> str:
        name = DISPLAY_NAMES.get(self.name, self.name)
        return f"{name}({', '.join(map(str, self.parameters))})" if self.parameters else name


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an object, and the name that it has in data."""

    name: str
    type: Type


DISPLAY_NAMES = {"null_type": "null"}
BOOL, INT, UINT, DOUBLE = Type("bool"), Type("int"), Type("uint"), Type("double")
STRING, BYTES, NULL, DYN = Type("string"), Type("bytes"), Type("null_type"), Type("dyn")
TIMESTAMP, DURATION = Type("timestamp"), Type("duration")
ERROR = Type("!error!")
"""Of what has been complained about already: it agrees with everything."""


def list_of(item: Type, max_size: int | None = None) -> Type:
    return Type("list", (item,), max_size=max_size)


def map_of(key: Type, value: Type, max_size: int | None = None) -> Type:
    return Type("map", (key, value), max_size=max_size)


def optional_of(value: Type) -> Type:
    return Type("optional_type", (value,))


def type_of(value: Type) -> Type:
    return Type("type", (value,))


def is_optional(found: Type) -> bool:
    return found.name == "optional_type"


def object_type(name: str, fields: Mapping[str, Type]) -> Type:
    """An object whose fields are called in data what they are called in expressions."""
    return Type(name, fields={each: Field(each, found) for each, found in fields.items()})


def parse_type(text: str) -> Type:
    """The type that a text like `map(string, list(A))` says."""
    name, parenthesis, rest = text.strip().partition("(")
    return (
        Type(name, tuple(parse_type(each) for each in split_type_arguments(rest[:-1]))) if parenthesis else Type(name)
    )


def split_type_arguments(text: str) -> list[str]:
    """Divide at the commas that are within no parenthesis."""
    found, depth, start = [], 0, 0
    for number, each in enumerate(text):
        depth += (each == "(") - (each == ")")
        if each == "," and not depth:
            found.append(text[start:number])
            start = number + 1
    return [*found, text[start:]] if text.strip() else []


class TypeUnifier:
    """What the variables of one expression stand for."""

    def __init__(self) -> None:
        self._substitutions: dict[str, Type] = {}
        self._count = 0

    def with_fresh_variables(self, types: Sequence[Type]) -> list[Type]:
        """The types with variables that nobody else has."""
        self._count += 1
        return [rename_variables(each, self._count) for each in types]

    def fresh_variable(self) -> Type:
        return self.with_fresh_variables([Type("T")])[0]

    def resolve(self, found: Type) -> Type:
        """The type without variables; one that stands for nothing yet is dyn."""
        found = self._dereference(found)
        if found.is_variable:
            return DYN
        return (
            Type(found.name, tuple(map(self.resolve, found.parameters)), None, found.max_size)
            if found.parameters
            else found
        )

    def unify(self, expected: Sequence[Type], found: Sequence[Type]) -> bool:
        """Whether what was found can stand where that is wanted; nothing is remembered where it cannot."""
        before = dict(self._substitutions)
        if len(expected) == len(found) and all(map(self._unify_one, expected, found)):
            return True
        self._substitutions = before
        return False

    def join(self, first: Type, second: Type) -> Type | None:
        """The more general of two types that agree."""
        if self.unify([first], [second]):
            return second if self._dereference(second).name == "dyn" else first
        return None

    def _dereference(self, found: Type) -> Type:
        while found.is_variable and found.name in self._substitutions:
            found = self._substitutions[found.name]
        return found

    def _unify_one(self, expected: Type, found: Type) -> bool:
        expected, found = self._dereference(expected), self._dereference(found)
        if expected == found:
            return True
        if expected.is_variable or found.is_variable:
            name, other = (expected.name, found) if expected.is_variable else (found.name, expected)
            if self._occurs(other, name):
                return False
            self._substitutions[name] = other
            return True
        if {expected.name, found.name} & {"dyn", ERROR.name}:
            return True
        if NULL in (expected, found):
            other = found if expected == NULL else expected
            return other.fields is not None or other in (TIMESTAMP, DURATION)
        if expected.name != found.name or len(expected.parameters) != len(found.parameters):
            return False
        if expected.name == "type":
            return True  # types can be compared, whatever they are of
        return all(map(self._unify_one, expected.parameters, found.parameters))

    def _occurs(self, found: Type, name: str) -> bool:
        found = self._dereference(found)
        return found.name == name or any(self._occurs(each, name) for each in found.parameters)


def rename_variables(found: Type, number: int) -> Type:
    if found.is_variable:
        return Type(f"{found.name}#{number}")
    return (
        Type(found.name, tuple(rename_variables(each, number) for each in found.parameters))
        if found.parameters
        else found
    )
