"""CEL types and type unification.

A type is a value. A name of one capital letter is a type variable: in `list(A)` it stands for the type of the elements.
`TypeUnifier` records the substitutions of the variables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Type:
    name: str
    parameters: tuple["Type", ...] = ()
    fields: Mapping[str, "Field"] | None = field(default=None, compare=False)
    """Fields of an object type, by their name in expressions."""
    max_size: int | None = field(default=None, compare=False)
    """Maximum number of elements of a list or map, if known."""

    @property
    def is_variable(self) -> bool:
        return len(self.name.partition("#")[0]) == 1

    def __str__(self) -> str:
        name = DISPLAY_NAMES.get(self.name, self.name)
        return f"{name}({', '.join(map(str, self.parameters))})" if self.parameters else name


@dataclass(frozen=True, slots=True)
class Field:
    """Field of an object type, with its name in the data."""

    name: str
    type: Type


DISPLAY_NAMES = {"null_type": "null"}
BOOL, INT, DOUBLE = Type("bool"), Type("int"), Type("double")
STRING, BYTES, NULL, DYN = Type("string"), Type("bytes"), Type("null_type"), Type("dyn")
TIMESTAMP, DURATION = Type("timestamp"), Type("duration")
ERROR = Type("!error!")
"""Type of an expression whose error has been reported. It unifies with every type."""


def list_of(item: Type, max_size: int | None = None) -> Type:
    return Type("list", (item,), max_size=max_size)


def map_of(key: Type, value: Type, max_size: int | None = None) -> Type:
    return Type("map", (key, value), max_size=max_size)


def optional_of(value: Type) -> Type:
    return Type("optional_type", (value,))


def type_of(value: Type) -> Type:
    return Type("type", (value,))


def is_optional(type_: Type) -> bool:
    return type_.name == "optional_type"


def object_type(name: str, fields: Mapping[str, Type]) -> Type:
    """Return an object type whose fields have the same name in expressions and in data."""
    return Type(name, fields={field_name: Field(field_name, type_) for field_name, type_ in fields.items()})


def parse_type(text: str) -> Type:
    name, parenthesis, rest = text.strip().partition("(")
    return (
        Type(name, tuple(parse_type(each) for each in split_type_arguments(rest[:-1]))) if parenthesis else Type(name)
    )


def split_type_arguments(text: str) -> list[str]:
    """Split at the commas outside parentheses."""
    arguments, depth, start = [], 0, 0
    for number, each in enumerate(text):
        depth += (each == "(") - (each == ")")
        if each == "," and not depth:
            arguments.append(text[start:number])
            start = number + 1
    return [*arguments, text[start:]] if text.strip() else []


class TypeUnifier:
    """Substitutions of the type variables of one expression."""

    def __init__(self) -> None:
        self._substitutions: dict[str, Type] = {}
        self._count = 0

    def with_fresh_variables(self, types: Sequence[Type]) -> list[Type]:
        """Return the types with their variables renamed to unused names."""
        self._count += 1
        return [rename_variables(each, self._count) for each in types]

    def fresh_variable(self) -> Type:
        return self.with_fresh_variables([Type("T")])[0]

    def resolve(self, found: Type) -> Type:
        """Return the type without variables. An unbound variable becomes dyn."""
        found = self._dereference(found)
        if found.is_variable:
            return DYN
        return (
            Type(found.name, tuple(map(self.resolve, found.parameters)), None, found.max_size)
            if found.parameters
            else found
        )

    def unify(self, expected: Sequence[Type], found: Sequence[Type]) -> bool:
        """Unify the types and return True, or change nothing and return False."""
        before = dict(self._substitutions)
        if len(expected) == len(found) and all(map(self._unify_one, expected, found)):
            return True
        self._substitutions = before
        return False

    def join(self, first: Type, second: Type) -> Type | None:
        """Return the more general of two types, or None if they do not unify."""
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
            return True  # all types are comparable
        return all(map(self._unify_one, expected.parameters, found.parameters))

    def _occurs(self, type_: Type, name: str) -> bool:
        type_ = self._dereference(type_)
        return type_.name == name or any(self._occurs(each, name) for each in type_.parameters)


def rename_variables(type_: Type, number: int) -> Type:
    if type_.is_variable:
        return Type(f"{type_.name}#{number}")
    return (
        Type(type_.name, tuple(rename_variables(each, number) for each in type_.parameters))
        if type_.parameters
        else type_
    )
