"""Compiler from a CEL syntax tree to a typed program of Python closures.

Type checking and compilation are one pass, because argument types determine which overload a call uses. A compiled
function takes an activation: the variables by name, comprehension variables under unique names, and the meter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tapestry.kube.cel import comprehensions, parser
from tapestry.kube.cel.closures import (
    call_code,
    constant,
    optional_select_code,
    presence_code,
    select_code,
    without_absent_optionals,
)
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
"""Functions whose literal arguments are validated at compile time."""

Typed = tuple[Type, Code]


@dataclass(frozen=True, slots=True)
class Program:
    """Compiled expression that can be evaluated any number of times."""

    text: str
    type: Type
    variable_names: frozenset[str]
    """Names of the declared variables that the expression uses."""
    size: int
    code: Code
    cost: int = 0
    """Estimated minimum cost if all inputs have their maximum size."""

    def evaluate(self, variables: Mapping[str, Any], meter: Meter) -> Any:
        """Return the value of the expression. Raise EvaluationError or CostExceeded."""
        meter.charge(self.size)
        try:
            return self.code({**variables, METER_VARIABLE: meter})
        except (TypeError, ValueError, AttributeError, KeyError, RecursionError, OverflowError) as error:
            # untrusted data whose types differ from the declared types
            raise no_overload_error() from error


def compile_expression(text: str, variables: Mapping[str, Type]) -> Program:
    """Compile an expression. Raise CompileError."""
    compiler = Compiler(variables)
    try:
        type_, code = compiler.compile_node(parser.parse_expression(text))
    except RecursionError:
        raise CompileError(text, [Issue(0, "expression recursion limit exceeded")]) from None
    if compiler.issues or compiler.mixed_type_issues:
        raise CompileError(text, compiler.issues or compiler.mixed_type_issues)
    if compiler.folding_error:
        raise FoldingError(compiler.folding_error)
    return Program(
        text, compiler.unifier.resolve(type_), frozenset(compiler.variable_names), compiler.size, code, compiler.cost
    )


class Compiler:
    def __init__(self, variables: Mapping[str, Type]) -> None:
        self.issues: list[Issue] = []
        self.mixed_type_issues: list[Issue] = []
        """Lists and maps with mixed types. They are reported only if there are no other issues."""
        self.folding_error = ""
        """First error in a constant subexpression."""
        self.variable_names: set[str] = set()
        self.size = 0
        self.cost = 0
        self.unifier = TypeUnifier()
        self._scope: dict[str, tuple[str, Type]] = {name: (name, declared) for name, declared in variables.items()}
        self._declared_variables = frozenset(variables)
        self._depth = 0

    def compile_node(self, node: parser.Node) -> Typed:
        self.size += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise RecursionError
        typed = self._compile_node(node)
        self._depth -= 1
        return typed

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
            slot, declared = self._scope[name]
            self.cost += 1
            if slot in self._declared_variables:
                self.variable_names.add(slot)
            return declared, lambda frame: frame[slot]
        if name in TYPE_NAMES or name == "type":
            return type_of(Type(name)), constant(TypeValue(name))
        return self.report_issue(node, f"undeclared reference to '{name}' (in container '')")

    # -- fields

    def select(self, node: parser.Select) -> Typed:
        if (name := qualified_name(node)) in self._declared_variables:
            return self.ident(parser.Ident(node.at, name))
        operand, code = self.compile_node(node.operand)
        operand = self.unifier.resolve(operand)
        container = operand.parameters[0] if is_optional(operand) else operand
        field_type, name = self.field(node, container)
        self.cost += not node.test and container not in (DYN, ERROR)
        if node.test:
            return BOOL, presence_code(code, name)
        if node.optional or is_optional(operand):
            return field_type if is_optional(field_type) else optional_of(field_type), optional_select_code(code, name)
        return field_type, select_code(code, name)

    def field(self, node: parser.Select, container: Type) -> tuple[Type, str]:
        """Return the type of a field and its name in the data."""
        if container.fields is not None:
            declared = container.fields.get(node.field)
            if declared is None and node.field in parser.RESERVED:
                declared = container.fields.get(f"__{node.field}__")
            if declared is not None:
                return declared.type, declared.name
            return self.report_issue(node, f"undefined field '{node.field}'")[0], node.field
        if container.name == "map":
            return container.parameters[1], node.field
        if container.name in ("dyn", ERROR.name):
            return DYN, node.field
        return self.report_issue(node, f"type '{container}' does not support field selection")[0], node.field

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
        allow_mixed = name == "format"  # values of a format may have different types
        typed = [
            self.list_literal(each, allow_mixed=allow_mixed)
            if isinstance(each, parser.ListLiteral)
            else self.compile_node(each)
            for each in args
        ]
        types, codes = [arg_type for arg_type, _ in typed], [code for _, code in typed]
        fitting, result = self.resolve(overloads, types)
        if not fitting:
            return self.report_no_overload(node, name, types, is_member=is_member)
        self.check_literals(node, name, args, fitting)
        self.cost += 1
        return result, call_code(fitting, codes, is_known=self.is_known(types))

    def resolve(self, overloads: Sequence[Overload], types: Sequence[Type]) -> tuple[list[Overload], Type]:
        """Return the matching overloads and their common result type."""
        fitting: list[Overload] = []
        result = DYN
        for each in overloads:
            *expected, returned = self.unifier.with_fresh_variables([*each.args, each.result])
            if self.unifier.unify(expected, types):
                is_same = not fitting or self.unifier.resolve(returned) == self.unifier.resolve(result)
                result = returned if is_same else DYN
                fitting.append(each)
        return fitting, result

    def is_known(self, types: Sequence[Type]) -> bool:
        return all(self.unifier.resolve(each).name not in ("dyn", ERROR.name) for each in types)

    def report_no_overload(
        self, node: parser.Node, name: str, types: Sequence[Type], *, is_member: bool = False
    ) -> Typed:
        type_names = [str(self.unifier.resolve(each)) for each in types]
        applied = f"{type_names[0]}.({', '.join(type_names[1:])})" if is_member else f"({', '.join(type_names)})"
        return self.report_issue(node, f"found no matching overload for '{name}' applied to '{applied}'")

    def check_literals(
        self, node: parser.Call, name: str, args: Sequence[parser.Node], fitting: list[Overload]
    ) -> None:
        """Report errors in literal arguments at compile time."""
        last = args[-1] if args else None
        if name == "format" and isinstance(args[0], parser.Literal) and isinstance(last, parser.ListLiteral):
            values = [each.value if isinstance(each, parser.Literal) else UNKNOWN for each, _ in last.items]
            for number, message in format_errors(args[0].value, values):
                self.issues.append(Issue(node.at if number is None else last.items[number][0].at, message))
        if not isinstance(last, parser.Literal) or not isinstance(last.value, str | int | float):
            return
        if name in LITERAL_CHECKED_FUNCTIONS and isinstance(last.value, str):
            arguments = ("", last.value) if len(args) > 1 else (last.value,)
            if self.literal_error(fitting, arguments):
                self.issues.append(Issue(last.at, f"invalid {name} argument"))
        elif name in CONVERSION_FUNCTIONS and (message := self.literal_error(fitting, (last.value,))):
            self.folding_error = self.folding_error or message

    def literal_error(self, fitting: list[Overload], values: tuple[Any, ...]) -> str:
        try:
            dynamic_dispatch(fitting)(Meter(2**60), *values)
        except EvaluationError as error:
            return str(error)
        return ""

    def logical_operation(self, node: parser.Call) -> Typed:
        codes, before, highest = [], self.cost, self.cost
        for each in node.args:
            self.cost = before
            operand_type, code = self.compile_node(each)
            codes.append(code)
            highest = max(highest, self.cost)  # the cost of the most expensive operand
            if not self.unifier.unify([BOOL], [operand_type]):
                self.report_issue(each, f"expected type 'bool' but found '{self.unifier.resolve(operand_type)}'")
        self.cost = highest
        return BOOL, comprehensions.logical_operator(codes, deciding_value=node.function == "_||_")

    def conditional(self, node: parser.Call) -> Typed:
        condition_type, condition = self.compile_node(node.args[0])
        before = self.cost
        true_type, if_true = self.compile_node(node.args[1])
        true_cost, self.cost = self.cost, before
        false_type, if_false = self.compile_node(node.args[2])
        self.cost = max(self.cost, true_cost)
        joined = self.unifier.join(true_type, false_type) if self.unifier.unify([BOOL], [condition_type]) else None
        if joined is None:
            return self.report_no_overload(node, node.function, [condition_type, true_type, false_type])

        def run(frame: Activation) -> Any:
            value = condition(frame)
            if value is True:
                return if_true(frame)
            if value is False:
                return if_false(frame)
            raise no_overload_error()

        return joined, run

    # -- aggregates

    def list_literal(self, node: parser.ListLiteral, *, allow_mixed: bool = False) -> Typed:
        codes: list[Code] = []
        joined = self.unifier.fresh_variable()
        for each, optional in node.items:
            item_type, code = self.compile_node(each)
            codes.append(code)
            joined = (
                DYN
                if allow_mixed
                else self.join_types(each, joined, self.unwrap_optional(each, item_type) if optional else item_type)
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
            result = {}
            for key_code, value_code, optional in entries:
                key, value = key_code(frame), value_code(frame)
                if optional and not value.has_value:
                    continue
                result[key] = value.value if optional else value
            return result

        return map_of(keys, values), run

    def join_types(self, node: parser.Node, joined: Type, found: Type) -> Type:
        common = self.unifier.join(joined, found)
        if common is None:
            expected, actual = self.unifier.resolve(joined), self.unifier.resolve(found)
            self.mixed_type_issues.append(Issue(node.at, f"expected type '{expected}' but found '{actual}'"))
            return DYN
        return common

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
        source_type, source = self.compile_node(node.source)
        elements = self.iteration_types(node, self.unifier.resolve(source_type), len(node.variables))
        if elements is None:
            return ERROR, source
        outer_scope, size, cost = self._scope, self.size, self.cost
        slots = [f"{name}@{size}" for name in node.variables]
        self._scope = {**outer_scope, **dict(zip(node.variables, zip(slots, elements, strict=True), strict=True))}
        typed = [self.compile_node(each) for each in node.args]
        self._scope = outer_scope
        max_size = self.unifier.resolve(source_type).max_size
        self.cost = cost + (self.cost - cost) * (1 if max_size is None else max_size)
        *conditions, (body_type, body) = typed
        needs_bool = node.macro in ("all", "exists", "exists_one", "filter")
        for arg_type, each in zip([kind for kind, _ in typed], node.args, strict=True):
            is_condition = needs_bool or each is not node.args[-1]
            if is_condition and not self.unifier.unify([BOOL], [arg_type]):
                if node.macro not in ("all", "exists"):
                    lists = [list_of(elements[0] if node.macro == "filter" else body_type)] * 2
                    return self.report_no_overload(node, "_?_:_", [arg_type, *lists])
                return self.report_issue(each, f"expected type 'bool' but found '{self.unifier.resolve(arg_type)}'")
        condition = conditions[0][1] if conditions else None
        result = self.comprehension_type(node, elements, body_type)
        return result, comprehensions.COMPREHENSIONS[node.macro](source, slots, body, condition, self.size - size + 1)

    def iteration_types(self, node: parser.Comprehension, found: Type, count: int) -> Sequence[Type] | None:
        if found.name == "list":
            return (INT, found.parameters[0])[-count:]
        if found.name == "map":
            return found.parameters[:count]
        if found.name in ("dyn", ERROR.name):
            return (DYN, DYN)[:count]
        message = f"expression of type '{found}' cannot be range of a comprehension (must be list, map, or dynamic)"
        self.report_issue(node.source, message)
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
                resolved = self.unifier.resolve(body)
                return resolved if resolved.name == "map" else DYN
        return BOOL

    def optional_map(self, node: parser.OptionalMap) -> Typed:
        target_type, target = self.compile_node(node.target)
        value_type = self.unwrap_optional(node.target, target_type)
        outer_scope, slot = self._scope, f"{node.variable}@{self.size}"
        self._scope = {**outer_scope, node.variable: (slot, value_type)}
        body_type, body = self.compile_node(node.body)
        self._scope = outer_scope
        if node.flat:
            body_type = self.unwrap_optional(node.body, body_type)

        def run(frame: Activation) -> Any:
            value = target(frame)
            if not value.has_value:
                return OPTIONAL_NONE
            frame[slot] = value.value
            return body(frame) if node.flat else OptionalValue(body(frame))

        return optional_of(body_type), run


def qualified_name(node: parser.Node) -> str:
    """Return the dotted name of a chain of selections, or a name that matches nothing."""
    match node:
        case parser.Ident():
            return node.name
        case parser.Select(test=False, optional=False):
            return f"{qualified_name(node.operand)}.{node.field}"
    return "?"
