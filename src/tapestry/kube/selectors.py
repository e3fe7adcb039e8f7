"""Label, field and node selectors: parse them and match objects.

Each selector is compiled once into a frozen value with a `matches` method. `str()` of a label or field selector is the
query parameter that selects the same objects on a server. A missing selector differs by type, as in Kubernetes:

    label_selector(None)  nothing          node_selector(None)  every node
    label_selector({})    everything       node_selector({})    no node: its terms are alternatives, and there are none

An unknown field is an error, because a selector that ignores some of its conditions would select too many objects.
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
    """The selector is invalid. The message starts with the path of the error."""


class Operator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GREATER = "Gt"
    LESS = "Lt"


INDEX_THRESHOLD = 8
"""Number of requirements, or of values in one requirement, above which an index is used."""
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

FIELD_TERM = re.compile(r"(?:\\.|[^,])+", re.DOTALL)  # up to an unescaped comma
FIELD_SIGN = re.compile(r"((?:(?!!=)[^=])+)(!=|==|=)((?:[^\\,=]|\\[\\,=])*)", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Requirement:
    """One condition on labels. `values` are sorted and unique. Create it with `requirement`."""

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
    """Conjunction of requirements. Without requirements, everything matches."""

    requirements: tuple[Requirement, ...] = ()
    _index: "LabelIndex | None" = field(default=None, init=False, compare=False, repr=False)
    """Index for many requirements or many values; None for small selectors."""

    def __post_init__(self) -> None:
        if len(self.requirements) > INDEX_THRESHOLD or any(
            len(each.values) > INDEX_THRESHOLD for each in self.requirements
        ):
            object.__setattr__(self, "_index", LabelIndex(self.requirements))

    def matches(self, labels: Mapping[str, str]) -> bool:
        if self._index is not None:
            return self._index.matches(labels)
        return all(requirement.matches(labels) for requirement in self.requirements)

    def required_labels(self) -> Sequence[tuple[str, str]]:
        """Return labels that every matching object has. Requirements that allow several values are omitted."""
        return [
            (each.key, each.values[0])
            for each in self.requirements
            if each.operator is Operator.IN and len(each.values) == 1
        ]

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


class LabelIndex:
    """Requirements by key. Matching cost depends on the labels of the object, not on the number of requirements."""

    def __init__(self, requirements: Iterable[Requirement]) -> None:
        self._allowed: dict[str, frozenset[str] | None] = {}
        """Required labels and their allowed values; None allows any value."""
        self._bounds: list[Requirement] = []
        self._forbidden: dict[str, set[str] | None] = {}
        """Forbidden labels and their forbidden values; None forbids any value."""
        for each in requirements:
            match each.operator:
                case Operator.IN:
                    existing = self._allowed.get(each.key)
                    values = frozenset(each.values)
                    self._allowed[each.key] = values if existing is None else existing & values
                case Operator.EXISTS:
                    self._allowed.setdefault(each.key, None)
                case Operator.NOT_IN:
                    forbidden = self._forbidden.setdefault(each.key, set())
                    if forbidden is not None:
                        forbidden.update(each.values)
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
            if key in self._forbidden and ((values := self._forbidden[key]) is None or value in values):
                return False
        return all(each.matches(labels) for each in self._bounds)


EVERYTHING = LabelSelector()
# A contradiction instead of an empty selector: as a query parameter, the empty string selects everything.
NOTHING = LabelSelector((Requirement("nothing", Operator.DOES_NOT_EXIST), Requirement("nothing", Operator.EXISTS)))


@dataclass(frozen=True, slots=True, order=True)
class FieldTerm:
    """Field equals value, or differs from it if `equal` is False. A missing field has the empty value."""

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
    """Conjunction of terms. The server decides which fields of a resource can be selected by."""

    terms: tuple[FieldTerm, ...] = ()

    def matches(self, fields: Mapping[str, str]) -> bool:
        return all(term.matches(fields) for term in self.terms)

    def __str__(self) -> str:
        return ",".join(map(str, self.terms))


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """Term of a node selector: both labels and fields must match."""

    labels: LabelSelector
    fields: FieldSelector

    def matches(self, node: Object) -> bool:
        return self.labels.matches(labels_of(node)) and self.fields.matches({"metadata.name": name_of(node)})


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Disjunction of terms."""

    terms: tuple[NodeTerm, ...]

    def matches(self, node: Object) -> bool:
        return any(term.matches(node) for term in self.terms)


EVERY_NODE = NodeSelector((NodeTerm(EVERYTHING, FieldSelector()),))


def requirement(key: str, operator: Operator, values: Sequence[str] = (), path: str = "") -> Requirement:
    """Return a validated requirement. A SelectorError names `path`."""
    if error := label_key_error(key):
        raise _selector_error(_child_path(path, "key"), error)
    for index, value in enumerate(values):
        if error := label_value_error(value):
            raise _selector_error(_child_path(path, f"values[{index}]"), error)
    if operator in (Operator.IN, Operator.NOT_IN) and not values:
        raise _selector_error(_child_path(path, "values"), f"no values; {operator} needs at least one")
    if operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST) and values:
        raise _selector_error(_child_path(path, "values"), f"there are {len(values)}; {operator} takes none")
    if operator in (Operator.GREATER, Operator.LESS) and (len(values) != 1 or _integer(values[0]) is None):
        raise _selector_error(_child_path(path, "values"), f"{list(values)} is not one integer, which {operator} needs")
    return Requirement(key, operator, tuple(sorted(set(values))))


def label_selector(spec: Object | None, path: str = "") -> LabelSelector:
    """Return the selector of a field with `matchLabels` and `matchExpressions`. A SelectorError names `path`."""
    if spec is None:
        return NOTHING
    _check_object(spec, path, "matchLabels", "matchExpressions")
    return LabelSelector(tuple(sorted([*_match_labels(spec, path), *_match_expressions(spec, LABEL_OPERATORS, path)])))


def node_selector(spec: Object | None, path: str = "") -> NodeSelector:
    """Return the selector of a field with `nodeSelectorTerms`. A term without conditions matches no node."""
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
    match_labels = spec.get("matchLabels") or {}
    path = _child_path(path, "matchLabels")
    if not isinstance(match_labels, dict):
        raise _selector_error(path, f"{match_labels!r} is not an object")
    for key, value in match_labels.items():
        at = f"{path}[{key}]"
        if error := label_key_error(key) or label_value_error(_text(value, at)):
            raise _selector_error(at, error)
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
    """Yield the path, key, operator and values of each condition in the list `field`."""
    for at, condition in _items(spec, field, path):
        _check_object(condition, at, "key", "operator", "values")
        operator = condition.get("operator")
        if operator not in operators:
            raise _selector_error(f"{at}.operator", f"{operator!r} is none of {', '.join(operators)}")
        values = [_text(value, item_path) for item_path, value in _items(condition, "values", at)]
        yield at, _text(condition.get("key"), f"{at}.key"), Operator(operator), values


def _items(spec: Object, field: str, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each item in the list `field`."""
    items = spec.get(field) or []
    if not isinstance(items, list):
        raise _selector_error(_child_path(path, field), f"{items!r} is not a list")
    for index, item in enumerate(items):
        yield _child_path(path, f"{field}[{index}]"), item


def _check_object(value: object, path: str, *known: str) -> None:
    """Raise SelectorError if the value is not an object or has an unknown field."""
    if not isinstance(value, dict):
        raise _selector_error(path, f"{value!r} is not an object")
    for name in value:
        if name not in known:
            raise _selector_error(_child_path(path, name), f"unknown field; the known fields are {', '.join(known)}")


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise _selector_error(path, f"{value!r} is not a string")
    return value


def parse_label_selector(text: str, path: str = "") -> LabelSelector:
    """Parse a query parameter: `a=b,c!=d,e in (x,y),f notin (z),g,!h,i>3`. The empty string selects everything."""
    tokens = deque(TOKEN.findall(text))
    requirements = []
    try:
        while tokens:
            requirements.append(_read_requirement(tokens))
            if tokens:
                _read(tokens, {","})
                if not tokens:
                    raise SelectorError("it ends with a comma")
    except SelectorError as error:
        raise _selector_error(path, f"{text!r} is not a label selector: {error}") from None
    return LabelSelector(tuple(sorted(requirements)))


def _read_requirement(tokens: deque[str]) -> Requirement:
    negated = tokens[0] == "!"
    if negated:
        tokens.popleft()
    key = tokens.popleft() if tokens else ""  # `in` and `notin` are valid keys
    if negated or not tokens or tokens[0] == ",":
        return requirement(key, Operator.DOES_NOT_EXIST if negated else Operator.EXISTS)
    sign = _read(tokens, OPERATOR_TOKENS.keys())
    values = _read_set(tokens) if sign in ("in", "notin") else [_read_value(tokens)]
    return requirement(key, OPERATOR_TOKENS[sign], values)


def _read_set(tokens: deque[str]) -> list[str]:
    _read(tokens, {"("})
    values = [_read_value(tokens)]
    while _read(tokens, {",", ")"}) == ",":
        values.append(_read_value(tokens))
    return values


def _read_value(tokens: deque[str]) -> str:
    """Return the next token, or the empty string if there is none."""
    return tokens.popleft() if tokens and tokens[0] not in PUNCTUATION else ""


def _read(tokens: deque[str], expected: Collection[str]) -> str:
    token = tokens.popleft() if tokens else "the end"
    if token not in expected:
        raise SelectorError(f"found {token!r} instead of {' or '.join(map(repr, sorted(expected)))}")
    return token


def parse_field_selector(text: str, path: str = "") -> FieldSelector:
    """Parse a query parameter: `a=b,c!=d`. In values, `\\`, `,` and `=` are escaped with a backslash."""
    terms = []
    for term in FIELD_TERM.findall(text):
        parts = FIELD_SIGN.fullmatch(term)
        if parts is None:
            raise _selector_error(
                path, f"{text!r} is not a field selector: {term!r} is not field=value or field!=value"
            )
        field, sign, value = parts.groups()
        terms.append(FieldTerm(field, re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL), sign != "!="))
    return FieldSelector(tuple(sorted(terms)))


def _integer(text: str) -> int | None:
    """Return `text` as a 64-bit integer, or None."""
    if len(text) > 64 or not re.fullmatch("[+-]?[0-9]+", text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def _child_path(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step


def _selector_error(path: str, message: str) -> SelectorError:
    return SelectorError(f"{path}: {message}" if path else message)
