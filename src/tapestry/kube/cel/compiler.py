"""From a tree to a program: every node gets a type and becomes a function of the variables.

Checking and compiling are one walk, because what a call does is known as soon as its types are.  A function of a
program takes a frame: the variables by name, those of macros by a name that no other has, and the meter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tapestry.kube.cel import comprehensions, parser
from tapestry.kube.cel.comprehensions import METER_VARIABLE, Activation, Code
from tapestry.kube.cel.errors import CompileError, EvaluationError, FoldingError, Issue, Meter, no_overload_error
from tapestry.kube.cel.functions import TYPE_NAMES, Overload, dynamic_dispatch
from tapestry.kube.cel.library import GLOBALS, MEMBERS
from tapestry.kube.cel.library.strings import UNKNOWN, format_errors
from tapestry.kube.cel.types import (
    BOOL,
    DYN,
    ERROR,
    INT,
    Type,
    TypeUnifier,
    is_optional,
    list_of,
    map_of,
    optional_of,
    type_of,
)
from tapestry.kube.cel.values import OPTIONAL_NONE, OptionalValue, TypeValue, type_name_of

MAX_DEPTH = 120
CONVERSION_FUNCTIONS = ("int", "uint", "double", "bool", "string", "bytes")
LITERAL_CHECKED_FUNCTIONS = ("duration", "timestamp", "matches")
"""Functions whose literal arguments are tried when the expression is compiled."""

Typed = tuple[Type, Code]


@dataclass(frozen=True, slots=True)
class Program:
    """An expression, ready to be asked as often as one likes."""

    text: str
    type: Type
    variable_names: frozenset[str]
    """The variables that it refers to."""
    size: int
    code: Code
    cost: int = 0
    """What it costs at least where all that it looks at is as large as it can be."""

    def evaluate(self, variables: Mapping[str, Any], meter: Meter) -> Any:
        """Its value; raises EvaluationError or CostExceeded."""
        meter.charge(self.size)
        try:
            return self.code({**variables, METER_VARIABLE: meter})
        except (TypeError, ValueError, AttributeError, KeyError, RecursionError, OverflowError) as error:
            # data that are not of the type they were said to be: strangers write them
            raise no_overload_error() from error


def compile_expression(text: str, variables: Mapping[str, Type]) -> Program:
    """The program of an expression; raises CompileError."""
    compiler = Compiler(variables)
    try:
        found, code = compiler.compile_node(parser.parse_expression(text))
    except RecursionError:
        raise CompileError(text, [Issue(0, "expression recursion limit exceeded")]) from None
    if compiler.issues or compiler.mixed_type_issues:
        raise CompileError(text, compiler.issues or compiler.mixed_type_issues)
    if compiler.folding_error:
        raise FoldingError(compiler.folding_error)
    return Program(
        text, compiler.unifier.resolve(found), frozenset(compiler.variable_names), compiler.size, code, compiler.cost
    )


class Compiler:
    def __init__(self, variables: Mapping[str, Type]) -> None:
        self.issues: list[Issue] = []
        self.mixed_type_issues: list[Issue] = []
        """Lists and maps of more than one type: complained of where there is nothing else to complain of."""
        self.folding_error = ""
        """What is wrong with a constant."""
        self.variable_names: set[str] = set()
        self.size = 0
        self.cost = 0
        self.unifier = TypeUnifier()
        self._scope: dict[str, tuple[str, Type]] = {name: (name, found) for name, found in variables.items()}
        self._declared_variables = frozenset(variables)
        self._depth = 0

    def compile_node(self, node: parser.Node) -> Typed:
        self.size += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise RecursionError
        found = self._compile_node(node)
        self._depth -= 1
        return found

    def _compile_node(self, node: parser.Node) -> Typed:
        match node:
            case parser.Literal():
                return self.literal(node)
            case parser.Ident():
                return self.ident(node)
            case parser.Select():
                return self.select(node)
            case parser.Call():
                return self.call(node)
            case parser.ListLiteral():
                return self.list_literal(node)
            case parser.MapLiteral():
                return self.map_literal(node)
            case parser.Comprehension():
                return self.comprehension(node)
            case parser.OptionalMap():
                return self.optional_map(node)
        raise AssertionError(node)

    def report_issue(self, node: parser.Node, message: str) -> Typed:
        self.issues.append(Issue(node.at, message))
        return ERROR, constant(None)

    # -- leaves

    def literal(self, node: parser.Literal) -> Typed:
        return Type(type_name_of(node.value)), constant(node.value)

    def ident(self, node: parser.Ident) -> Typed:
        name = node.name
        if name in self._scope:
            slot, found = self._scope[name]
            self.cost += 1
            if slot in self._declared_variables:
                self.variable_names.add(slot)
            return found, lambda frame: frame[slot]
        if name in TYPE_NAMES or name == "type":
            return type_of(Type(name)), constant(TypeValue(name))
        return self.report_issue(node, f"undeclared reference to '{name}' (in container '')")

    # -- fields

    def select(self, node: parser.Select) -> Typed:
        if (name := qualified_name(node)) in self._declared_variables:
            return self.ident(parser.Ident(node.at, name))
        operand, code = self.compile_node(node.operand)
        operand = self.unifier.resolve(operand)
        within = operand.parameters[0] if is_optional(operand) else operand
        found, name = self.field(node, within)
        self.cost += not node.test and within not in (DYN, ERROR)
        if node.test:
            return BOOL, presence_code(code, name)
        if node.optional or is_optional(operand):
            return found if is_optional(found) else optional_of(found), optional_select_code(code, name)
        return found, select_code(code, name)

    def field(self, node: parser.Select, within: Type) -> tuple[Type, str]:
        """The type of a field, and its name in the data."""
        if within.fields is not None:
            found = within.fields.get(node.field)
            if found is None and node.field in parser.RESERVED:
                found = within.fields.get(f"__{node.field}__")
            if found is not None:
                return found.type, found.name
            return self.report_issue(node, f"undefined field '{node.field}'")[0], node.field
        if within.name == "map":
            return within.parameters[1], node.field
        if within.name in ("dyn", ERROR.name):
            return DYN, node.field
        return self.report_issue(node, f"type '{within}' does not support field selection")[0], node.field

    # -- calls

    def call(self, node: parser.Call) -> Typed:
        if node.function in ("_&&_", "_||_"):
            return self.logical_operation(node)
        if node.target is not None:
            qualified = f"{qualified_name(node.target)}.{node.function}"
            if qualified in GLOBALS:
                return self.function_call(node, qualified, GLOBALS[qualified], node.args)
            return self.function_call(node, node.function, MEMBERS.get(node.function), (node.target, *node.args))
        if node.function == "_?_:_":
            return self.conditional(node)
        return self.function_call(node, node.function, GLOBALS.get(node.function), node.args)

    def function_call(
        self, node: parser.Call, name: str, overloads: Sequence[Overload] | None, args: Sequence[parser.Node]
    ) -> Typed:
        is_member = len(args) > len(node.args)
        if overloads is None:
            types = [self.compile_node(each)[0] for each in args]
            if name in GLOBALS or name in MEMBERS:
                return self.report_no_overload(node, name, types, is_member=is_member)
            return self.report_issue(node, f"undeclared reference to '{name}' (in container '')")
        mixed = name == "format"  # whose values are of any type each
        typed = [
            self.list_literal(each, allow_mixed=mixed)
            if isinstance(each, parser.ListLiteral)
            else self.compile_node(each)
            for each in args
        ]
        types, codes = [found for found, _ in typed], [code for _, code in typed]
        fitting, result = self.resolve(overloads, types)
        if not fitting:
            return self.report_no_overload(node, name, types, is_member=is_member)
        self.check_literals(node, name, args, fitting)
        self.cost += 1
        return result, call_code(fitting, codes, is_known=self.is_known(types))

    def resolve(self, overloads: Sequence[Overload], types: Sequence[Type]) -> tuple[list[Overload], Type]:
        """The overloads that could be meant, and what comes of them."""
        fitting: list[Overload] = []
        result = DYN
        for each in overloads:
            *wanted, made = self.unifier.with_fresh_variables([*each.args, each.result])
            if self.unifier.unify(wanted, types):
                same = not fitting or self.unifier.resolve(made) == self.unifier.resolve(result)
                result = made if same else DYN
                fitting.append(each)
        return fitting, result

    def is_known(self, types: Sequence[Type]) -> bool:
        return all(self.unifier.resolve(each).name not in ("dyn", ERROR.name) for each in types)

    def report_no_overload(
        self, node: parser.Node, name: str, types: Sequence[Type], *, is_member: bool = False
    ) -> Typed:
        shown = [str(self.unifier.resolve(each)) for each in types]
        applied = f"{shown[0]}.({', '.join(shown[1:])})" if is_member else f"({', '.join(shown)})"
        return self.report_issue(node, f"found no matching overload for '{name}' applied to '{applied}'")

    def check_literals(
        self, node: parser.Call, name: str, args: Sequence[parser.Node], fitting: list[Overload]
    ) -> None:
        """Find out now what no data will change."""
        last = args[-1] if args else None
        if name == "format" and isinstance(args[0], parser.Literal) and isinstance(last, parser.ListLiteral):
            values = [each.value if isinstance(each, parser.Literal) else UNKNOWN for each, _ in last.items]
            for number, why in format_errors(args[0].value, values):
                self.issues.append(Issue(node.at if number is None else last.items[number][0].at, why))
        if not isinstance(last, parser.Literal) or not isinstance(last.value, str | int | float):
            return
        if name in LITERAL_CHECKED_FUNCTIONS and isinstance(last.value, str):
            tried = ("", last.value) if len(args) > 1 else (last.value,)
            if self.literal_error(fitting, tried):
                self.issues.append(Issue(last.at, f"invalid {name} argument"))
        elif name in CONVERSION_FUNCTIONS and (why := self.literal_error(fitting, (last.value,))):
            self.folding_error = self.folding_error or why

    def literal_error(self, fitting: list[Overload], values: tuple[Any, ...]) -> str:
        try:
            dynamic_dispatch(fitting)(Meter(2**60), *values)
        except EvaluationError as error:
            return str(error)
        return ""

    def logical_operation(self, node: parser.Call) -> Typed:
        codes, before, dearest = [], self.cost, self.cost
        for each in node.args:
            self.cost = before
            found, code = self.compile_node(each)
            codes.append(code)
            dearest = max(dearest, self.cost)  # one of them may decide
            if not self.unifier.unify([BOOL], [found]):
                self.report_issue(each, f"expected type 'bool' but found '{self.unifier.resolve(found)}'")
        self.cost = dearest
        return BOOL, comprehensions.logical_operator(codes, deciding_value=node.function == "_||_")

    def conditional(self, node: parser.Call) -> Typed:
        asked, condition = self.compile_node(node.args[0])
        before = self.cost
        first, yes = self.compile_node(node.args[1])
        dear, self.cost = self.cost, before
        second, no = self.compile_node(node.args[2])
        self.cost = max(self.cost, dear)
        joined = self.unifier.join(first, second) if self.unifier.unify([BOOL], [asked]) else None
        if joined is None:
            return self.report_no_overload(node, node.function, [asked, first, second])

        def run(frame: Activation) -> Any:
            value = condition(frame)
            if value is True:
                return yes(frame)
            if value is False:
                return no(frame)
            raise no_overload_error()

        return joined, run

    # -- aggregates

    def list_literal(self, node: parser.ListLiteral, *, allow_mixed: bool = False) -> Typed:
        codes: list[Code] = []
        joined = self.unifier.fresh_variable()
        for each, optional in node.items:
            found, code = self.compile_node(each)
            codes.append(code)
            joined = (
                DYN
                if allow_mixed
                else self.join_types(each, joined, self.unwrap_optional(each, found) if optional else found)
            )
        if any(optional for _, optional in node.items):
            flags = [optional for _, optional in node.items]
            return list_of(joined), lambda frame: without_absent_optionals([code(frame) for code in codes], flags)
        return list_of(joined), lambda frame: [code(frame) for code in codes]

    def map_literal(self, node: parser.MapLiteral) -> Typed:
        entries: list[tuple[Code, Code, bool]] = []
        keys, values = self.unifier.fresh_variable(), self.unifier.fresh_variable()
        for key, value, optional in node.entries:
            (key_type, key_code), (value_type, value_code) = self.compile_node(key), self.compile_node(value)
            keys = self.join_types(key, keys, key_type)
            values = self.join_types(value, values, self.unwrap_optional(value, value_type) if optional else value_type)
            entries.append((key_code, value_code, optional))

        def run(frame: Activation) -> Any:
            found = {}
            for key_code, value_code, optional in entries:
                key, value = key_code(frame), value_code(frame)
                if optional and not value.is_there:
                    continue
                found[key] = value.value if optional else value
            return found

        return map_of(keys, values), run

    def join_types(self, node: parser.Node, joined: Type, found: Type) -> Type:
        both = self.unifier.join(joined, found)
        if both is None:
            wanted, shown = self.unifier.resolve(joined), self.unifier.resolve(found)
            self.mixed_type_issues.append(Issue(node.at, f"expected type '{wanted}' but found '{shown}'"))
            return DYN
        return both

    def unwrap_optional(self, node: parser.Node, found: Type) -> Type:
        found = self.unifier.resolve(found)
        if is_optional(found):
            return found.parameters[0]
        return (
            DYN
            if found in (DYN, ERROR)
            else self.report_issue(node, f"expected type 'optional_type' but found '{found}'")[0]
        )

    # -- macros

    def comprehension(self, node: parser.Comprehension) -> Typed:
        found, source = self.compile_node(node.source)
        elements = self.iteration_types(node, self.unifier.resolve(found), len(node.variables))
        if elements is None:
            return ERROR, source
        before, size, cost = self._scope, self.size, self.cost
        slots = [f"{name}@{size}" for name in node.variables]
        self._scope = {**before, **dict(zip(node.variables, zip(slots, elements, strict=True), strict=True))}
        typed = [self.compile_node(each) for each in node.args]
        self._scope = before
        most = self.unifier.resolve(found).max_size
        self.cost = cost + (self.cost - cost) * (1 if most is None else most)
        *conditions, (body_type, body) = typed
        needs_bool = node.macro in ("all", "exists", "exists_one", "filter")
        for asked, each in zip([kind for kind, _ in typed], node.args, strict=True):
            is_condition = needs_bool or each is not node.args[-1]
            if is_condition and not self.unifier.unify([BOOL], [asked]):
                if node.macro not in ("all", "exists"):
                    lists = [list_of(elements[0] if node.macro == "filter" else body_type)] * 2
                    return self.report_no_overload(node, "_?_:_", [asked, *lists])
                return self.report_issue(each, f"expected type 'bool' but found '{self.unifier.resolve(asked)}'")
        condition = conditions[0][1] if conditions else None
        result = self.comprehension_type(node, elements, body_type)
        return result, comprehensions.COMPREHENSIONS[node.macro](source, slots, body, condition, self.size - size + 1)

    def iteration_types(self, node: parser.Comprehension, found: Type, count: int) -> Sequence[Type] | None:
        """The types that the variables of a macro get."""
        if found.name == "list":
            return (INT, found.parameters[0])[-count:]
        if found.name == "map":
            return found.parameters[:count]
        if found.name in ("dyn", ERROR.name):
            return (DYN, DYN)[:count]
        why = f"expression of type '{found}' cannot be range of a comprehension (must be list, map, or dynamic)"
        self.report_issue(node.source, why)
        return None

    def comprehension_type(self, node: parser.Comprehension, elements: Sequence[Type], body: Type) -> Type:
        match node.macro:
            case "map" | "transformList":
                return list_of(body)
            case "filter":
                return list_of(elements[0])
            case "transformMap":
                return map_of(elements[0], body)
            case "transformMapEntry":
                found = self.unifier.resolve(body)
                return found if found.name == "map" else DYN
        return BOOL

    def optional_map(self, node: parser.OptionalMap) -> Typed:
        found, target = self.compile_node(node.target)
        within = self.unwrap_optional(node.target, found)
        before, slot = self._scope, f"{node.variable}@{self.size}"
        self._scope = {**before, node.variable: (slot, within)}
        made, body = self.compile_node(node.body)
        self._scope = before
        if node.flat:
            made = self.unwrap_optional(node.body, made)

        def run(frame: Activation) -> Any:
            value = target(frame)
            if not value.is_there:
                return OPTIONAL_NONE
            frame[slot] = value.value
            return body(frame) if node.flat else OptionalValue(body(frame))

        return optional_of(made), run


def constant(value: Any) -> Code:
    return lambda _: value


def qualified_name(node: parser.Node) -> str:
    """The name that a chain of selections spells; it is nothing's name where it is no such chain."""
    match node:
        case parser.Ident():
            return node.name
        case parser.Select(test=False, optional=False):
            return f"{qualified_name(node.operand)}.{node.field}"
    return "?"


def call_code(fitting: list[Overload], codes: Sequence[Code], *, is_known: bool) -> Code:
    """The code of a call: straight to the one overload there is, where the types are certain."""
    if len(fitting) > 1 or not (is_known or fitting[0].takes_any_type):
        choose = dynamic_dispatch(fitting)
        return lambda frame: choose(frame[METER_VARIABLE], *[code(frame) for code in codes])
    run = fitting[0].run
    match fitting[0].metered, codes:
        case False, [only]:
            return lambda frame: run(only(frame))
        case False, [left, right]:
            return lambda frame: run(left(frame), right(frame))
        case True, [left, right]:
            return lambda frame: run(frame[METER_VARIABLE], left(frame), right(frame))
        case True, _:
            return lambda frame: run(frame[METER_VARIABLE], *[code(frame) for code in codes])
    return lambda frame: run(*[code(frame) for code in codes])


def select_code(operand: Code, name: str) -> Code:
    def run(frame: Activation) -> Any:
        value = operand(frame)
        if isinstance(value, dict):
            try:
                return value[name]
            except KeyError:
                raise EvaluationError(f"no such key: {name}") from None
        if isinstance(value, OptionalValue):
            return optional_field(value, name)
        raise no_overload_error()

    return run


def optional_select_code(operand: Code, name: str) -> Code:
    def run(frame: Activation) -> Any:
        value = operand(frame)
        return optional_field(value if isinstance(value, OptionalValue) else OptionalValue(value), name)

    return run


def optional_field(value: OptionalValue, name: str) -> OptionalValue:
    if not value.is_there:
        return OPTIONAL_NONE
    if not isinstance(value.value, dict):
        raise no_overload_error()
    return OptionalValue(value.value[name]) if name in value.value else OPTIONAL_NONE


def presence_code(operand: Code, name: str) -> Code:
    def run(frame: Activation) -> Any:
        value = operand(frame)
        if isinstance(value, OptionalValue):
            return optional_field(value, name).is_there
        if not isinstance(value, dict):
            raise no_overload_error()
        return name in value

    return run


def without_absent_optionals(values: list[Any], flags: Sequence[bool]) -> list[Any]:
    """The items of a list, of which some are optional."""
    found = []
    for value, optional in zip(values, flags, strict=True):
        if not optional:
            found.append(value)
        elif value.is_there:
            found.append(value.value)
    return found
