"""Validation rules of custom resources (`x-kubernetes-validations`), evaluated on every write.

A rule that uses `oldSelf` is evaluated only if there is an old value: a field of the same name, or an item with the
same keys in a keyed list. A violation whose value did not change causes a warning instead of an error.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tapestry.apiserver.core.cel_types import CelConversion, cel_conversion, declared_type
from tapestry.apiserver.core.faults import MAX_FAULTS, Fault
from tapestry.apiserver.customresources.field_paths import PathError, normalized_path
from tapestry.kube.budget import charge
from tapestry.kube.cel.compiler import Program, compile_expression
from tapestry.kube.cel.errors import CompileError, CostExceeded, EvaluationError, Meter
from tapestry.kube.cel.types import BOOL, Type, optional_of
from tapestry.kube.cel.values import OPTIONAL_NONE, OptionalValue
from tapestry.kube.objects import Object

RULES = "x-kubernetes-validations"
RULE_COST_LIMIT = 1_000_000
OBJECT_COST_LIMIT = 3_000_000
"""Lower than in Kubernetes, because an evaluation blocks other requests."""
MAX_MESSAGE = 5 * 1024
BLOCKING_REASONS = frozenset(
    {
        *("FieldValueNotSupported", "FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany"),
        "FieldValueTypeInvalid",
    }
)
"""Schema violations after which rules are not evaluated, because rules rely on the schema."""
RULES_NOT_CHECKED = (
    "some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation"
)
OUT_OF_BUDGET = "validation failed due to running out of cost budget, no further validation rules will be run"


@dataclass(frozen=True, slots=True)
class ValidationRule:
    source: Object
    program: Program
    message: Program | None = None
    path: str = ""
    """Path of the fault relative to the value of the rule."""

    @property
    def has_optional_old_self(self) -> bool:
        """The rule also applies to new values."""
        return bool(self.source.get("optionalOldSelf"))

    @property
    def uses_old_self(self) -> bool:
        return "oldSelf" in self.program.variable_names

    @property
    def text(self) -> str:
        return str(self.source.get("message") or self.source["rule"]).strip()


@dataclass(frozen=True, slots=True)
class CorrelatedValue:
    """A value and its old version, to detect unchanged violations."""

    value: Any
    old: Any
    schema: Object

    def is_equal(self) -> bool:
        return bool(self.value == self.old)

    def key(self, name: str) -> "CorrelatedValue | None":
        if not (
            isinstance(self.value, dict) and isinstance(self.old, dict) and name in self.value and name in self.old
        ):
            return None
        values = self.schema.get("additionalProperties")
        subschema = (self.schema.get("properties") or {}).get(name) or (values if isinstance(values, dict) else None)
        return CorrelatedValue(self.value[name], self.old[name], subschema) if subschema is not None else None

    def item(self, number: int, old: Any) -> "CorrelatedValue | None":
        return None if old is None else CorrelatedValue(self.value[number], old, self.schema.get("items") or {})


@dataclass(frozen=True, slots=True)
class Correlation:
    """The relation of a value to its old version."""

    correlated: CorrelatedValue | None = None
    parent: CorrelatedValue | None = None
    """The nearest enclosing value with an old version."""

    def is_unchanged(self) -> bool:
        nearest = self.correlated if self.correlated is not None else self.parent
        return nearest is not None and nearest.is_equal()

    def key(self, name: str) -> "Correlation":
        if self.correlated is None:
            return self
        if self.parent is None and name in ("apiVersion", "kind"):
            return Correlation()
        return Correlation(self.correlated.key(name), self.correlated)

    def item(self, number: int, old: Any) -> "Correlation":
        return self if self.correlated is None else Correlation(self.correlated.item(number, old), self.correlated)


@dataclass(slots=True)
class RuleEvaluation:
    """State of the evaluation of all rules for one write."""

    meter: Meter = field(default_factory=lambda: Meter(OBJECT_COST_LIMIT))
    faults: list[Fault] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def is_exhausted(self) -> bool:
        return self.meter.left < 0

    def stop(self, fault: Fault) -> None:
        self.faults.append(fault)
        self.meter.left = -1


@dataclass(frozen=True, slots=True)
class RuleNode:
    """One level of a schema with rules at this level or below."""

    schema: Object
    rules: Sequence[ValidationRule] = ()
    convert: CelConversion | None = None
    properties: Mapping[str, "RuleNode"] = field(default_factory=dict)
    items: "RuleNode | None" = None
    values: "RuleNode | None" = None

    def faults(
        self, new: Object, old: Object | None, known_faults: Sequence[Fault], warnings: list[str]
    ) -> list[Fault]:
        """Faults of the rules of a schema. `known_faults` are those that the schema found."""
        if any(each.reason in BLOCKING_REASONS for each in known_faults):
            return [Fault("<nil>", "FieldValueInvalid", f"Invalid value: null: {RULES_NOT_CHECKED}")]
        evaluation = RuleEvaluation()
        correlation = Correlation(CorrelatedValue(new, old, self.schema)) if old is not None else Correlation()
        self.evaluate(new, old, "", correlation, evaluation)
        warnings.extend(evaluation.warnings)
        return evaluation.faults

    def evaluate(self, value: Any, old: Any, path: str, correlation: Correlation, evaluation: RuleEvaluation) -> None:
        """Evaluate all rules for a value and its parts, and collect the faults."""
        if value is None or evaluation.is_exhausted:
            return
        charge(1)
        self.evaluate_own_rules(value, old, path, correlation, evaluation)
        if isinstance(value, list) and self.items is not None:
            old_items = items_by_key(self.schema, old)
            for number, each in enumerate(value):
                old_item = old_items.get(item_key(self.schema, each)) if old_items else None
                self.items.evaluate(each, old_item, f"{path}[{number}]", correlation.item(number, old_item), evaluation)
        elif isinstance(value, dict) and (self.properties or self.values is not None):
            self.evaluate_fields(value, old if isinstance(old, dict) else {}, path, correlation, evaluation)

    def evaluate_fields(
        self, value: Object, old: Object, path: str, correlation: Correlation, evaluation: RuleEvaluation
    ) -> None:
        for key, each in value.items():
            if (node := self.properties.get(key)) is not None:
                node.evaluate(each, old.get(key), f"{path}.{key}" if path else key, correlation.key(key), evaluation)
            elif self.values is not None:
                self.values.evaluate(each, old.get(key), f"{path}[{key}]", correlation.key(key), evaluation)

    def evaluate_own_rules(
        self, value: Any, old: Any, path: str, correlation: Correlation, evaluation: RuleEvaluation
    ) -> None:
        if not self.rules:
            return
        now, before = self.converted(value), self.converted(old)
        for rule in self.rules:
            if rule.uses_old_self and old is None and not rule.has_optional_old_self:
                continue
            old_self = (
                (OptionalValue(before) if old is not None else OPTIONAL_NONE) if rule.has_optional_old_self else before
            )
            self.evaluate_rule(rule, {"self": now, "oldSelf": old_self}, path, correlation, evaluation)
            if evaluation.is_exhausted:
                return

    def converted(self, value: Any) -> Any:
        return self.convert(value) if self.convert is not None and value is not None else value

    def evaluate_rule(
        self, rule: ValidationRule, variables: Object, path: str, correlation: Correlation, evaluation: RuleEvaluation
    ) -> None:
        type_name = self.schema.get("type", "")
        try:
            holds = evaluate_program(rule.program, variables, evaluation.meter)
        except CostExceeded as error:
            text = f"'{error}': no further validation rules will be run due to call cost exceeds limit for rule: "
            evaluation.stop(
                invalid_rule_value(path, type_name, text + rule.text if not evaluation.is_exhausted else OUT_OF_BUDGET)
            )
        except EvaluationError as error:
            text = f"{error} evaluating rule: {rule.text}"
            if str(error).startswith("no such overload"):
                explanation = "call arguments did not match a supported operator, function or macro signature"
                text = f"'{error}': {explanation} for rule: {rule.text}"
            evaluation.faults.append(invalid_rule_value(path, type_name, text))
        else:
            if holds is not True:
                fault = self.rule_fault(rule, variables, (path + rule.path).lstrip("."), evaluation)
                if len(evaluation.warnings) + len(evaluation.faults) >= MAX_FAULTS:
                    evaluation.stop(fault)
                elif not rule.uses_old_self and correlation.is_unchanged():
                    evaluation.warnings.append(str(fault))
                else:
                    evaluation.faults.append(fault)

    def rule_fault(self, rule: ValidationRule, variables: Object, path: str, evaluation: RuleEvaluation) -> Fault:
        message = rule_message(rule, variables, evaluation) or (
            rule.text if rule.source.get("message") else f"failed rule: {rule.text}"
        )
        match rule.source.get("reason"):
            case "FieldValueForbidden":
                return Fault(path, "FieldValueForbidden", f"Forbidden: {message}")
            case "FieldValueRequired":
                return Fault(path, "FieldValueRequired", f"Required value: {message}")
            case "FieldValueDuplicate":
                return Fault(path, "FieldValueDuplicate", f'Duplicate value: "{self.schema.get("type", "")}"')
        return invalid_rule_value(path, self.schema.get("type", ""), message)


def invalid_rule_value(path: str, type_name: str, message: str) -> Fault:
    return Fault(path, "FieldValueInvalid", f'Invalid value: "{type_name}": {message}')


def evaluate_program(program: Program, variables: Object, meter: Meter) -> Any:
    """Evaluate a program within the limit of one rule and the remaining budget of the object."""
    allowed = min(RULE_COST_LIMIT, meter.left)
    own_meter = Meter(allowed)
    try:
        return program.evaluate(variables, own_meter)
    finally:
        meter.left -= allowed - own_meter.left
        own_meter.report()


def rule_message(rule: ValidationRule, variables: Object, evaluation: RuleEvaluation) -> str:
    """The result of the rule's messageExpression; empty if there is none or it is not usable."""
    if rule.message is None:
        return ""
    try:
        result = evaluate_program(rule.message, variables, evaluation.meter)
    except (EvaluationError, CostExceeded):
        return ""
    text = str(result).strip() if isinstance(result, str) else ""
    return "" if len(text) > MAX_MESSAGE or "\n" in text else text


def items_by_key(schema: Object, old: Any) -> Mapping[Any, Any]:
    """The items of a keyed list by key; empty for other lists."""
    if schema.get("x-kubernetes-list-type") != "map" or not isinstance(old, list):
        return {}
    return {item_key(schema, each): each for each in old}


def item_key(schema: Object, item: Any) -> Any:
    return (
        tuple(item.get(key) for key in schema.get("x-kubernetes-list-map-keys") or ()) if isinstance(item, dict) else ()
    )


# -- compilation


def has_rules(schema: Object) -> bool:
    if schema.get(RULES):
        return True
    return any(has_rules(each) for each in subschemas(schema))


def subschemas(schema: Object) -> Iterator[Object]:
    yield from (schema.get("properties") or {}).values()
    for each in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(each, dict):
            yield each


def compile_rules(schema: Object, name: str = "selfType", *, is_resource_root: bool = True) -> RuleNode | None:
    """Compile the rules of a valid schema. Returns None if it has none."""
    if not has_rules(schema):
        return None
    self_type = declared_type(schema, name, is_resource_root=is_resource_root)
    fields = {
        key: compile_rules(each, f"{name}.{key}", is_resource_root=False)
        for key, each in (schema.get("properties") or {}).items()
    }
    values, items = schema.get("additionalProperties"), schema.get("items")
    return RuleNode(
        schema,
        [compile_rule(each, schema, self_type) for each in schema.get(RULES) or ()] if self_type is not None else (),
        cel_conversion(schema),
        {key: each for key, each in fields.items() if each is not None},
        compile_rules(items, f"{name}.@idx", is_resource_root=False) if isinstance(items, dict) else None,
        compile_rules(values, f"{name}.@elem", is_resource_root=False) if isinstance(values, dict) else None,
    )


def compile_rule(source: Object, schema: Object, self_type: Type) -> ValidationRule:
    scope = {"self": self_type, "oldSelf": optional_of(self_type) if source.get("optionalOldSelf") else self_type}
    charge(len(source["rule"]))
    try:
        program = compile_expression(source["rule"], scope)
        message = compile_expression(source["messageExpression"], scope) if source.get("messageExpression") else None
    except CompileError as error:  # stored before rules were validated
        return ValidationRule(source, failing_program(source["rule"], f"rule compile error: {error}"))
    try:
        path = normalized_path(source["fieldPath"], schema) if source.get("fieldPath") else ""
    except PathError:
        path = ""
    return ValidationRule(source, program, message, path)


def failing_program(text: str, message: str) -> Program:
    """A program that always fails with a message."""

    def code(_: Any) -> Any:
        raise EvaluationError(message)

    return Program(text, BOOL, frozenset(), 1, code)
