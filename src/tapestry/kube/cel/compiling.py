"""From a tree to a program: every node gets a type and becomes a function of the variables.

Checking and compiling are one walk, because what a call does is known as soon as its types are.  A function of a
program takes a frame: the variables by name, those of macros by a name that no other has, and the meter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tapestry.kube.cel import folds, syntax
from tapestry.kube.cel.errors import CompileError, EvaluationError, FoldingError, Issue, Meter, no_overload
from tapestry.kube.cel.folds import METER, Code, Frame
from tapestry.kube.cel.functions import TYPE_NAMES, Overload, chosen
from tapestry.kube.cel.library import GLOBALS, MEMBERS
from tapestry.kube.cel.library.texts import UNKNOWN, format_complaints
from tapestry.kube.cel.types import (
    BOOL,
    DYN,
    ERROR,
    INT,
    Agreement,
    Type,
    is_optional,
    list_of,
    map_of,
    optional_of,
    type_of,
)
from tapestry.kube.cel.values import NOTHING, Maybe, TypeValue, kind_of

MAX_DEPTH = 120
CONVERSIONS = ("int", "uint", "double", "bool", "string", "bytes")
CHECKED_LITERALS = ("duration", "timestamp", "matches")
"""Functions whose literal arguments are tried when the expression is compiled."""

Typed = tuple[Type, Code]


@dataclass(frozen=True, slots=True)
class Program:
    """An expression, ready to be asked as often as one likes."""

    text: str
    type: Type
    names: frozenset[str]
    """The variables that it refers to."""
    size: int
    code: Code
    cost: int = 0
    """What it costs at least where all that it looks at is as large as it can be."""

    def evaluate(self, variables: Mapping[str, Any], meter: Meter) -> Any:
        """Its value; raises EvaluationError or CostExceeded."""
        meter.charge(self.size)
        try:
            return self.code({**variables, METER: meter})
        except (TypeError, ValueError, AttributeError, KeyError, RecursionError, OverflowError) as error:
            # data that are not of the type they were said to be: strangers write them
            raise no_overload() from error


def compiled(text: str, variables: Mapping[str, Type]) -> Program:
    """The program of an expression; raises CompileError."""
    compiler = Compiler(variables)
    try:
        found, code = compiler.typed(syntax.parsed(text))
    except RecursionError:
        raise CompileError(text, [Issue(0, "expression recursion limit exceeded")]) from None
    if compiler.issues or compiler.mixtures:
        raise CompileError(text, compiler.issues or compiler.mixtures)
    if compiler.folding:
        raise FoldingError(compiler.folding)
    return Program(
        text, compiler.agreement.resolved(found), frozenset(compiler.names), compiler.size, code, compiler.cost
    )


class Compiler:
    def __init__(self, variables: Mapping[str, Type]) -> None:
        self.issues: list[Issue] = []
        self.mixtures: list[Issue] = []
        """Lists and maps of more than one type: complained of where there is nothing else to complain of."""
        self.folding = ""
        """What is wrong with a constant."""
        self.names: set[str] = set()
        self.size = 0
        self.cost = 0
        self.agreement = Agreement()
        self._scope: dict[str, tuple[str, Type]] = {name: (name, found) for name, found in variables.items()}
        self._given = frozenset(variables)
        self._depth = 0

    def typed(self, node: syntax.Node) -> Typed:
        self.size += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise RecursionError
        found = self._typed(node)
        self._depth -= 1
        return found

    def _typed(self, node: syntax.Node) -> Typed:
        match node:
            case syntax.Literal():
                return self.literal(node)
            case syntax.Ident():
                return self.ident(node)
            case syntax.Select():
                return self.select(node)
            case syntax.Call():
                return self.call(node)
            case syntax.ListOf():
                return self.list(node)
            case syntax.MapOf():
                return self.map(node)
            case syntax.Fold():
                return self.fold(node)
            case syntax.OptionalMap():
                return self.optional_map(node)
        raise AssertionError(node)

    def fault(self, node: syntax.Node, message: str) -> Typed:
        self.issues.append(Issue(node.at, message))
        return ERROR, constant(None)

    # -- leaves

    def literal(self, node: syntax.Literal) -> Typed:
        return Type(kind_of(node.value)), constant(node.value)

    def ident(self, node: syntax.Ident) -> Typed:
        name = node.name
        if name in self._scope:
            slot, found = self._scope[name]
            self.cost += 1
            if slot in self._given:
                self.names.add(slot)
            return found, lambda frame: frame[slot]
        if name in TYPE_NAMES or name == "type":
            return type_of(Type(name)), constant(TypeValue(name))
        return self.fault(node, f"undeclared reference to '{name}' (in container '')")

    # -- fields

    def select(self, node: syntax.Select) -> Typed:
        if (name := dotted(node)) in self._given:
            return self.ident(syntax.Ident(node.at, name))
        operand, code = self.typed(node.operand)
        operand = self.agreement.resolved(operand)
        within = operand.of[0] if is_optional(operand) else operand
        found, name = self.field(node, within)
        self.cost += not node.test and within not in (DYN, ERROR)
        if node.test:
            return BOOL, has(code, name)
        if node.optional or is_optional(operand):
            return found if is_optional(found) else optional_of(found), select_optional(code, name)
        return found, select(code, name)

    def field(self, node: syntax.Select, within: Type) -> tuple[Type, str]:
        """The type of a field, and its name in the data."""
        if within.fields is not None:
            found = within.fields.get(node.field)
            if found is None and node.field in syntax.RESERVED:
                found = within.fields.get(f"__{node.field}__")
            if found is not None:
                return found.type, found.name
            return self.fault(node, f"undefined field '{node.field}'")[0], node.field
        if within.name == "map":
            return within.of[1], node.field
        if within.name in ("dyn", ERROR.name):
            return DYN, node.field
        return self.fault(node, f"type '{within}' does not support field selection")[0], node.field

    # -- calls

    def call(self, node: syntax.Call) -> Typed:
        if node.function in ("_&&_", "_||_"):
            return self.logic(node)
        if node.target is not None:
            qualified = f"{dotted(node.target)}.{node.function}"
            if qualified in GLOBALS:
                return self.invoked(node, qualified, GLOBALS[qualified], node.args)
            return self.invoked(node, node.function, MEMBERS.get(node.function), (node.target, *node.args))
        if node.function == "_?_:_":
            return self.choice(node)
        return self.invoked(node, node.function, GLOBALS.get(node.function), node.args)

    def invoked(
        self, node: syntax.Call, name: str, overloads: Sequence[Overload] | None, args: Sequence[syntax.Node]
    ) -> Typed:
        is_member = len(args) > len(node.args)
        if overloads is None:
            types = [self.typed(each)[0] for each in args]
            if name in GLOBALS or name in MEMBERS:
                return self.no_overload(node, name, types, is_member=is_member)
            return self.fault(node, f"undeclared reference to '{name}' (in container '')")
        mixed = name == "format"  # whose values are of any type each
        typed = [self.list(each, mixed=mixed) if isinstance(each, syntax.ListOf) else self.typed(each) for each in args]
        types, codes = [found for found, _ in typed], [code for _, code in typed]
        fitting, result = self.resolve(overloads, types)
        if not fitting:
            return self.no_overload(node, name, types, is_member=is_member)
        self.try_literals(node, name, args, fitting)
        self.cost += 1
        return result, called(fitting, codes, is_known=self.is_known(types))

    def resolve(self, overloads: Sequence[Overload], types: Sequence[Type]) -> tuple[list[Overload], Type]:
        """The overloads that could be meant, and what comes of them."""
        fitting: list[Overload] = []
        result = DYN
        for each in overloads:
            *wanted, made = self.agreement.fresh([*each.args, each.result])
            if self.agreement.agrees(wanted, types):
                same = not fitting or self.agreement.resolved(made) == self.agreement.resolved(result)
                result = made if same else DYN
                fitting.append(each)
        return fitting, result

    def is_known(self, types: Sequence[Type]) -> bool:
        return all(self.agreement.resolved(each).name not in ("dyn", ERROR.name) for each in types)

    def no_overload(self, node: syntax.Node, name: str, types: Sequence[Type], *, is_member: bool = False) -> Typed:
        shown = [str(self.agreement.resolved(each)) for each in types]
        applied = f"{shown[0]}.({', '.join(shown[1:])})" if is_member else f"({', '.join(shown)})"
        return self.fault(node, f"found no matching overload for '{name}' applied to '{applied}'")

    def try_literals(self, node: syntax.Call, name: str, args: Sequence[syntax.Node], fitting: list[Overload]) -> None:
        """Find out now what no data will change."""
        last = args[-1] if args else None
        if name == "format" and isinstance(args[0], syntax.Literal) and isinstance(last, syntax.ListOf):
            values = [each.value if isinstance(each, syntax.Literal) else UNKNOWN for each, _ in last.items]
            for number, why in format_complaints(args[0].value, values):
                self.issues.append(Issue(node.at if number is None else last.items[number][0].at, why))
        if not isinstance(last, syntax.Literal) or not isinstance(last.value, str | int | float):
            return
        if name in CHECKED_LITERALS and isinstance(last.value, str):
            tried = ("", last.value) if len(args) > 1 else (last.value,)
            if self.fails(fitting, tried):
                self.issues.append(Issue(last.at, f"invalid {name} argument"))
        elif name in CONVERSIONS and (why := self.fails(fitting, (last.value,))):
            self.folding = self.folding or why

    def fails(self, fitting: list[Overload], values: tuple[Any, ...]) -> str:
        try:
            chosen(fitting)(Meter(2**60), *values)
        except EvaluationError as error:
            return str(error)
        return ""

    def logic(self, node: syntax.Call) -> Typed:
        codes, before, dearest = [], self.cost, self.cost
        for each in node.args:
            self.cost = before
            found, code = self.typed(each)
            codes.append(code)
            dearest = max(dearest, self.cost)  # one of them may decide
            if not self.agreement.agrees([BOOL], [found]):
                self.fault(each, f"expected type 'bool' but found '{self.agreement.resolved(found)}'")
        self.cost = dearest
        return BOOL, folds.conjunction(codes, decided=node.function == "_||_")

    def choice(self, node: syntax.Call) -> Typed:
        asked, condition = self.typed(node.args[0])
        before = self.cost
        first, yes = self.typed(node.args[1])
        dear, self.cost = self.cost, before
        second, no = self.typed(node.args[2])
        self.cost = max(self.cost, dear)
        joined = self.agreement.joined(first, second) if self.agreement.agrees([BOOL], [asked]) else None
        if joined is None:
            return self.no_overload(node, node.function, [asked, first, second])

        def run(frame: Frame) -> Any:
            value = condition(frame)
            if value is True:
                return yes(frame)
            if value is False:
                return no(frame)
            raise no_overload()

        return joined, run

    # -- aggregates

    def list(self, node: syntax.ListOf, *, mixed: bool = False) -> Typed:
        codes: list[Code] = []
        joined = self.agreement.variable()
        for each, optional in node.items:
            found, code = self.typed(each)
            codes.append(code)
            joined = DYN if mixed else self.join(each, joined, self.unwrapped(each, found) if optional else found)
        if any(optional for _, optional in node.items):
            flags = [optional for _, optional in node.items]
            return list_of(joined), lambda frame: spread([code(frame) for code in codes], flags)
        return list_of(joined), lambda frame: [code(frame) for code in codes]

    def map(self, node: syntax.MapOf) -> Typed:
        entries: list[tuple[Code, Code, bool]] = []
        keys, values = self.agreement.variable(), self.agreement.variable()
        for key, value, optional in node.entries:
            (key_type, key_code), (value_type, value_code) = self.typed(key), self.typed(value)
            keys = self.join(key, keys, key_type)
            values = self.join(value, values, self.unwrapped(value, value_type) if optional else value_type)
            entries.append((key_code, value_code, optional))

        def run(frame: Frame) -> Any:
            found = {}
            for key_code, value_code, optional in entries:
                key, value = key_code(frame), value_code(frame)
                if optional and not value.is_there:
                    continue
                found[key] = value.value if optional else value
            return found

        return map_of(keys, values), run

    def join(self, node: syntax.Node, joined: Type, found: Type) -> Type:
        both = self.agreement.joined(joined, found)
        if both is None:
            wanted, shown = self.agreement.resolved(joined), self.agreement.resolved(found)
            self.mixtures.append(Issue(node.at, f"expected type '{wanted}' but found '{shown}'"))
            return DYN
        return both

    def unwrapped(self, node: syntax.Node, found: Type) -> Type:
        found = self.agreement.resolved(found)
        if is_optional(found):
            return found.of[0]
        return (
            DYN if found in (DYN, ERROR) else self.fault(node, f"expected type 'optional_type' but found '{found}'")[0]
        )

    # -- macros

    def fold(self, node: syntax.Fold) -> Typed:
        found, source = self.typed(node.source)
        elements = self.elements(node, self.agreement.resolved(found), len(node.variables))
        if elements is None:
            return ERROR, source
        before, size, cost = self._scope, self.size, self.cost
        slots = [f"{name}@{size}" for name in node.variables]
        self._scope = {**before, **dict(zip(node.variables, zip(slots, elements, strict=True), strict=True))}
        typed = [self.typed(each) for each in node.args]
        self._scope = before
        most = self.agreement.resolved(found).most
        self.cost = cost + (self.cost - cost) * (1 if most is None else most)
        *conditions, (body_type, body) = typed
        needs_bool = node.macro in ("all", "exists", "exists_one", "filter")
        for asked, each in zip([kind for kind, _ in typed], node.args, strict=True):
            is_condition = needs_bool or each is not node.args[-1]
            if is_condition and not self.agreement.agrees([BOOL], [asked]):
                if node.macro not in ("all", "exists"):
                    lists = [list_of(elements[0] if node.macro == "filter" else body_type)] * 2
                    return self.no_overload(node, "_?_:_", [asked, *lists])
                return self.fault(each, f"expected type 'bool' but found '{self.agreement.resolved(asked)}'")
        condition = conditions[0][1] if conditions else None
        result = self.folded_type(node, elements, body_type)
        return result, folds.FOLDS[node.macro](source, slots, body, condition, self.size - size + 1)

    def elements(self, node: syntax.Fold, found: Type, count: int) -> Sequence[Type] | None:
        """The types that the variables of a macro get."""
        if found.name == "list":
            return (INT, found.of[0])[-count:]
        if found.name == "map":
            return found.of[:count]
        if found.name in ("dyn", ERROR.name):
            return (DYN, DYN)[:count]
        why = f"expression of type '{found}' cannot be range of a comprehension (must be list, map, or dynamic)"
        self.fault(node.source, why)
        return None

    def folded_type(self, node: syntax.Fold, elements: Sequence[Type], body: Type) -> Type:
        match node.macro:
            case "map" | "transformList":
                return list_of(body)
            case "filter":
                return list_of(elements[0])
            case "transformMap":
                return map_of(elements[0], body)
            case "transformMapEntry":
                found = self.agreement.resolved(body)
                return found if found.name == "map" else DYN
        return BOOL

    def optional_map(self, node: syntax.OptionalMap) -> Typed:
        found, target = self.typed(node.target)
        within = self.unwrapped(node.target, found)
        before, slot = self._scope, f"{node.variable}@{self.size}"
        self._scope = {**before, node.variable: (slot, within)}
        made, body = self.typed(node.body)
        self._scope = before
        if node.flat:
            made = self.unwrapped(node.body, made)

        def run(frame: Frame) -> Any:
            value = target(frame)
            if not value.is_there:
                return NOTHING
            frame[slot] = value.value
            return body(frame) if node.flat else Maybe(body(frame))

        return optional_of(made), run


def constant(value: Any) -> Code:
    return lambda _: value


def dotted(node: syntax.Node) -> str:
    """The name that a chain of selections spells; it is nothing's name where it is no such chain."""
    match node:
        case syntax.Ident():
            return node.name
        case syntax.Select(test=False, optional=False):
            return f"{dotted(node.operand)}.{node.field}"
    return "?"


def called(fitting: list[Overload], codes: Sequence[Code], *, is_known: bool) -> Code:
    """The code of a call: straight to the one overload there is, where the types are certain."""
    if len(fitting) > 1 or not (is_known or fitting[0].is_open):
        choose = chosen(fitting)
        return lambda frame: choose(frame[METER], *[code(frame) for code in codes])
    run = fitting[0].run
    match fitting[0].metered, codes:
        case False, [only]:
            return lambda frame: run(only(frame))
        case False, [left, right]:
            return lambda frame: run(left(frame), right(frame))
        case True, [left, right]:
            return lambda frame: run(frame[METER], left(frame), right(frame))
        case True, _:
            return lambda frame: run(frame[METER], *[code(frame) for code in codes])
    return lambda frame: run(*[code(frame) for code in codes])


def select(operand: Code, name: str) -> Code:
    def run(frame: Frame) -> Any:
        value = operand(frame)
        if isinstance(value, dict):
            try:
                return value[name]
            except KeyError:
                raise EvaluationError(f"no such key: {name}") from None
        if isinstance(value, Maybe):
            return within(value, name)
        raise no_overload()

    return run


def select_optional(operand: Code, name: str) -> Code:
    def run(frame: Frame) -> Any:
        value = operand(frame)
        return within(value if isinstance(value, Maybe) else Maybe(value), name)

    return run


def within(value: Maybe, name: str) -> Maybe:
    if not value.is_there:
        return NOTHING
    if not isinstance(value.value, dict):
        raise no_overload()
    return Maybe(value.value[name]) if name in value.value else NOTHING


def has(operand: Code, name: str) -> Code:
    def run(frame: Frame) -> Any:
        value = operand(frame)
        if isinstance(value, Maybe):
            return within(value, name).is_there
        if not isinstance(value, dict):
            raise no_overload()
        return name in value

    return run


def spread(values: list[Any], flags: Sequence[bool]) -> list[Any]:
    """The items of a list, of which some are optional."""
    found = []
    for value, optional in zip(values, flags, strict=True):
        if not optional:
            found.append(value)
        elif value.is_there:
            found.append(value.value)
    return found
