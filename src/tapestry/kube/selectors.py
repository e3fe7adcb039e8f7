"""Selectors: which labels, fields and nodes are meant.

Each is compiled once into a frozen value and then asked with `matches`.  Label and field selectors print, with `str`,
as the query parameter that makes a server choose the same objects.  Absence differs by kind, as it does in Kubernetes:

    label_selector(None)  nothing          node_selector(None)  every node
    label_selector({})    everything       node_selector({})    no node: its terms are alternatives, and there is none

A field that we do not know is an error: a selector with part of its conditions ignored chooses too much.
"""

import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tapestry.kube.names import label_key_error, label_value_error
from tapestry.kube.objects import Object, labels_of, name_of


class SelectorError(ValueError):
    """The selector cannot be meant: the message has the path of the fault."""


class Operator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GREATER = "Gt"
    LESS = "Lt"


INDEX_THRESHOLD = 8
"""Requirements, or values of one, that are looked at one after the other."""
LABEL_OPERATORS = (Operator.IN, Operator.NOT_IN, Operator.EXISTS, Operator.DOES_NOT_EXIST)
FIELD_OPERATORS = (Operator.IN, Operator.NOT_IN)

OPERATOR_TOKENS = {
    "=": Operator.IN,
    "==": Operator.IN,
    "in": Operator.IN,
    "!=": Operator.NOT_IN,
    "notin": Operator.NOT_IN,
    ">": Operator.GREATER,
    "<": Operator.LESS,
}
TOKEN = re.compile(r"==|!=|[=!<>(),]|[^ \t\r\n=!<>(),]+")
PUNCTUATION = frozenset({"==", "!=", "=", "!", "<", ">", "(", ")", ","})

FIELD_TERM = re.compile(r"(?:\\.|[^,])+", re.DOTALL)  # up to a comma that is not escaped
FIELD_SIGN = re.compile(r"((?:(?!!=)[^=])+)(!=|==|=)((?:[^\\,=]|\\[\\,=])*)", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Requirement:
    """One condition on labels.  `values` are sorted and without doubles; build it with `requirement`."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value in self.values
            case Operator.NOT_IN:
                return value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
        number = None if value is None else _integer(value)
        if number is None:
            return False
        bound = int(self.values[0])
        return number > bound if self.operator is Operator.GREATER else number < bound

    def __str__(self) -> str:
        match self.operator, self.values:
            case Operator.IN, (value,):
                return f"{self.key}={value}"
            case Operator.NOT_IN, (value,):
                return f"{self.key}!={value}"
            case Operator.GREATER, (value,):
                return f"{self.key}>{value}"
            case Operator.LESS, (value,):
                return f"{self.key}<{value}"
            case Operator.EXISTS, _:
                return self.key
            case Operator.DOES_NOT_EXIST, _:
                return f"!{self.key}"
        word = "in" if self.operator is Operator.IN else "notin"
        return f"{self.key} {word} ({','.join(self.values)})"


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All of its requirements must hold; without any, everything matches."""

    requirements: tuple[Requirement, ...] = ()
    _index: "LabelIndex | None" = field(default=None, init=False, compare=False, repr=False)
    """Where there are many requirements, or many values in one."""

    def __post_init__(self) -> None:
        if len(self.requirements) > INDEX_THRESHOLD or any(
            len(each.values) > INDEX_THRESHOLD for each in self.requirements
        ):
            object.__setattr__(self, "_index", LabelIndex(self.requirements))

    def matches(self, labels: Mapping[str, str]) -> bool:
        if self._index is not None:
            return self._index.matches(labels)
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


class LabelIndex:
    """Many requirements by key, so that an object is asked about what it has, and not about each of them."""

    def __init__(self, requirements: Iterable[Requirement]) -> None:
        self._allowed: dict[str, frozenset[str] | None] = {}
        """The labels that there must be, with the values that they may have, or None for any value."""
        self._bounds: list[Requirement] = []
        self._forbidden: dict[str, set[str] | None] = {}
        """The labels that there must not be, with the values that they must not have, or None for every value."""
        for each in requirements:
            match each.operator:
                case Operator.IN:
                    known = self._allowed.get(each.key)
                    values = frozenset(each.values)
                    self._allowed[each.key] = values if known is None else known & values
                case Operator.EXISTS:
                    self._allowed.setdefault(each.key, None)
                case Operator.NOT_IN:
                    refused = self._forbidden.setdefault(each.key, set())
                    if refused is not None:
                        refused.update(each.values)
                case Operator.DOES_NOT_EXIST:
                    self._forbidden[each.key] = None
                case _:
                    self._allowed.setdefault(each.key, None)
                    self._bounds.append(each)

    def matches(self, labels: Mapping[str, str]) -> bool:
        if len(self._allowed) > len(labels):
            return False
        for key, allowed in self._allowed.items():
            value = labels.get(key)
            if value is None or (allowed is not None and value not in allowed):
                return False
        for key, value in labels.items():
            if key in self._forbidden and ((refused := self._forbidden[key]) is None or value in refused):
                return False
        return all(each.matches(labels) for each in self._bounds)


EVERYTHING = LabelSelector()
# A contradiction, not an empty text: sent to a server, it must not come back with everything.
NOTHING = LabelSelector((Requirement("nothing", Operator.DOES_NOT_EXIST), Requirement("nothing", Operator.EXISTS)))


@dataclass(frozen=True, slots=True, order=True)
class FieldTerm:
    """The field has the value, or, with `equal` False, any other.  A missing field has the empty value."""

    field: str
    value: str
    equal: bool = True

    def matches(self, fields: Mapping[str, str]) -> bool:
        return (fields.get(self.field, "") == self.value) is self.equal

    def __str__(self) -> str:
        escaped = re.sub(r"[\\,=]", r"\\\g<0>", self.value)
        return f"{self.field}={escaped}" if self.equal else f"{self.field}!={escaped}"


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """All of its terms must hold.  Which fields a resource can be selected by, its server knows."""

    terms: tuple[FieldTerm, ...] = ()

    def matches(self, fields: Mapping[str, str]) -> bool:
        return all(term.matches(fields) for term in self.terms)

    def __str__(self) -> str:
        return ",".join(map(str, self.terms))


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """Both its labels and its fields must match."""

    labels: LabelSelector
    fields: FieldSelector

    def matches(self, node: Object) -> bool:
        return self.labels.matches(labels_of(node)) and self.fields.matches({"metadata.name": name_of(node)})


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """One of its terms must match."""

    terms: tuple[NodeTerm, ...]

    def matches(self, node: Object) -> bool:
        return any(term.matches(node) for term in self.terms)


EVERY_NODE = NodeSelector((NodeTerm(EVERYTHING, FieldSelector()),))


def requirement(key: str, operator: Operator, values: Sequence[str] = (), path: str = "") -> Requirement:
    """A requirement that has been checked; `path` is where it stands, for the SelectorError."""
    if complaint := label_key_error(key):
        raise _selector_error(_child_path(path, "key"), complaint)
    for index, value in enumerate(values):
        if complaint := label_value_error(value):
            raise _selector_error(_child_path(path, f"values[{index}]"), complaint)
    if operator in (Operator.IN, Operator.NOT_IN) and not values:
        raise _selector_error(_child_path(path, "values"), f"there are none; {operator} needs at least one")
    if operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST) and values:
        raise _selector_error(_child_path(path, "values"), f"there are {len(values)}; {operator} takes none")
    if operator in (Operator.GREATER, Operator.LESS) and (len(values) != 1 or _integer(values[0]) is None):
        raise _selector_error(_child_path(path, "values"), f"{list(values)} is not one integer, which {operator} needs")
    return Requirement(key, operator, tuple(sorted(set(values))))


def label_selector(spec: Object | None, path: str = "") -> LabelSelector:
    """The selector of a field with `matchLabels` and `matchExpressions`; `path` is the field."""
    if spec is None:
        return NOTHING
    _check_object(spec, path, "matchLabels", "matchExpressions")
    return LabelSelector(tuple(sorted([*_match_labels(spec, path), *_match_expressions(spec, LABEL_OPERATORS, path)])))


def node_selector(spec: Object | None, path: str = "") -> NodeSelector:
    """The selector of a field with `nodeSelectorTerms`; a term without conditions matches no node."""
    if spec is None:
        return EVERY_NODE
    _check_object(spec, path, "nodeSelectorTerms")
    terms = []
    for at, term in _items(spec, "nodeSelectorTerms", path):
        _check_object(term, at, "matchExpressions", "matchFields")
        labels = LabelSelector(tuple(sorted(_match_expressions(term, tuple(Operator), at))))
        fields = FieldSelector(tuple(sorted(_match_fields(term, at))))
        if labels.requirements or fields.terms:
            terms.append(NodeTerm(labels, fields))
    return NodeSelector(tuple(terms))


def _match_labels(spec: Object, path: str) -> Iterator[Requirement]:
    wanted = spec.get("matchLabels") or {}
    path = _child_path(path, "matchLabels")
    if not isinstance(wanted, dict):
        raise _selector_error(path, f"{wanted!r} is not an object")
    for key, value in wanted.items():
        at = f"{path}[{key}]"
        if complaint := label_key_error(key) or label_value_error(_text(value, at)):
            raise _selector_error(at, complaint)
        yield Requirement(key, Operator.IN, (value,))


def _match_expressions(spec: Object, operators: tuple[Operator, ...], path: str) -> Iterator[Requirement]:
    for at, key, operator, values in _conditions(spec, "matchExpressions", operators, path):
        yield requirement(key, operator, values, at)


def _match_fields(term: Object, path: str) -> Iterator[FieldTerm]:
    for at, key, operator, values in _conditions(term, "matchFields", FIELD_OPERATORS, path):
        if key != "metadata.name":
            raise _selector_error(f"{at}.key", f"{key!r} is not a field that nodes are selected by; metadata.name is")
        if len(values) != 1:
            raise _selector_error(f"{at}.values", f"there are {len(values)}; a field takes one")
        yield FieldTerm(key, values[0], operator is Operator.IN)


def _conditions(
    spec: Object, field: str, operators: tuple[Operator, ...], path: str
) -> Iterator[tuple[str, str, Operator, list[str]]]:
    """The path, key, operator and values of each condition in the list `field`."""
    for at, condition in _items(spec, field, path):
        _check_object(condition, at, "key", "operator", "values")
        operator = condition.get("operator")
        if operator not in operators:
            raise _selector_error(f"{at}.operator", f"{operator!r} is none of {', '.join(operators)}")
        values = [_text(value, where) for where, value in _items(condition, "values", at)]
        yield at, _text(condition.get("key"), f"{at}.key"), Operator(operator), values


def _items(spec: Object, field: str, path: str) -> Iterator[tuple[str, Any]]:
    """The path and the value of each item in the list `field`."""
    found = spec.get(field) or []
    if not isinstance(found, list):
        raise _selector_error(_child_path(path, field), f"{found!r} is not a list")
    for index, item in enumerate(found):
        yield _child_path(path, f"{field}[{index}]"), item


def _check_object(value: object, path: str, *known: str) -> None:
    """Refuse what is no object or has a field that is not known."""
    if not isinstance(value, dict):
        raise _selector_error(path, f"{value!r} is not an object")
    for name in value:
        if name not in known:
            raise _selector_error(_child_path(path, name), f"there is no such field; there is {', '.join(known)}")


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise _selector_error(path, f"{value!r} is not a text")
    return value


def parse_label_selector(text: str, path: str = "") -> LabelSelector:
    """The selector of a query: `a=b,c!=d,e in (x,y),f notin (z),g,!h,i>3`; the empty text means everything."""
    words = deque(TOKEN.findall(text))
    found = []
    try:
        while words:
            found.append(_read_requirement(words))
            if words:
                _read(words, {","})
                if not words:
                    raise SelectorError("it ends with a comma")
    except SelectorError as error:
        raise _selector_error(path, f"{text!r} is not a label selector: {error}") from None
    return LabelSelector(tuple(sorted(found)))


def _read_requirement(words: deque[str]) -> Requirement:
    negated = words[0] == "!"
    if negated:
        words.popleft()
    key = words.popleft() if words else ""  # `in` and `notin` are keys here, and values further on
    if negated or not words or words[0] == ",":
        return requirement(key, Operator.DOES_NOT_EXIST if negated else Operator.EXISTS)
    sign = _read(words, OPERATOR_TOKENS.keys())
    values = _read_set(words) if sign in ("in", "notin") else [_read_value(words)]
    return requirement(key, OPERATOR_TOKENS[sign], values)


def _read_set(words: deque[str]) -> list[str]:
    _read(words, {"("})
    values = [_read_value(words)]
    while _read(words, {",", ")"}) == ",":
        values.append(_read_value(words))
    return values


def _read_value(words: deque[str]) -> str:
    """The next word, or the empty value where none stands."""
    return words.popleft() if words and words[0] not in PUNCTUATION else ""


def _read(words: deque[str], expected: Collection[str]) -> str:
    found = words.popleft() if words else "the end"
    if found not in expected:
        raise SelectorError(f"found {found!r} in the place of {' or '.join(map(repr, sorted(expected)))}")
    return found


def parse_field_selector(text: str, path: str = "") -> FieldSelector:
    """The selector of a query: `a=b,c!=d`, where `\\`, `,` and `=` in a value follow a backslash."""
    found = []
    for term in FIELD_TERM.findall(text):
        parts = FIELD_SIGN.fullmatch(term)
        if parts is None:
            raise _selector_error(
                path, f"{text!r} is not a field selector: {term!r} is not field=value or field!=value"
            )
        field, sign, value = parts.groups()
        found.append(FieldTerm(field, re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL), sign != "!="))
    return FieldSelector(tuple(sorted(found)))


def _integer(text: str) -> int | None:
    """The 64-bit integer that `text` is, or None."""
    if len(text) > 64 or not re.fullmatch("[+-]?[0-9]+", text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def _child_path(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step


def _selector_error(path: str, message: str) -> SelectorError:
    return SelectorError(f"{path}: {message}" if path else message)
