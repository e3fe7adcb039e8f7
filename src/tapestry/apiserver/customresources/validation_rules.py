"""Rules of custom resources (`x-kubernetes-validations`): compiled with the schema, asked of every write.

A rule that looks at `oldSelf` is asked only where there is something to compare with: a field of the same name, an item
of a list that has keys with the same keys.  What was wrong before and has not changed since is warned of, not refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tapestry.apiserver.customresources.cel_types import CelConversion, cel_conversion, declared_type
from tapestry.apiserver.customresources.field_paths import PathError, normalized_path
from tapestry.apiserver.customresources.structural_schema import MAX_FAULTS, Fault
from tapestry.kube.budget import charge
from tapestry.kube.cel.compiler import Program, compile_expression
from tapestry.kube.cel.errors import CompileError, CostExceeded, EvaluationError, Meter
from tapestry.kube.cel.types import BOOL, Type, optional_of
from tapestry.kube.cel.values import OPTIONAL_NONE, OptionalValue
from tapestry.kube.objects import Object

RULES = "x-kubernetes-validations"
RULE_COST_LIMIT = 1_000_000
OBJECT_COST_LIMIT = 3_000_000
"""Less than Kubernetes allows: here nobody else is served meanwhile."""
MAX_MESSAGE = 5 * 1024
BLOCKING_REASONS = frozenset(
    {
        *("FieldValueNotSupported", "FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany"),
        "FieldValueTypeInvalid",
    }
)
"""Faults that rules need not be asked after: they count on what the schema says."""
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
    """Below the value that the rule is about: where it says the fault is."""

    @property
    def has_optional_old_self(self) -> bool:
        """Whether it is asked of new values, too."""
        return bool(self.source.get("optionalOldSelf"))

    @property
    def uses_old_self(self) -> bool:
        return "oldSelf" in self.program.variable_names

    @property
    def text(self) -> str:
        return str(self.source.get("message") or self.source["rule"]).strip()


@dataclass(frozen=True, slots=True)
class CorrelatedValue:
    """A value, and what it was before as far as can be said: what makes an old fault bearable."""

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
        below = (self.schema.get("properties") or {}).get(name) or (values if isinstance(values, dict) else None)
        return CorrelatedValue(self.value[name], self.old[name], below) if below is not None else None

    def item(self, number: int, old: Any) -> "CorrelatedValue | None":
        return None if old is None else CorrelatedValue(self.value[number], old, self.schema.get("items") or {})


@dataclass(frozen=True, slots=True)
class Correlation:
    """Where a value stands to what was before."""

    correlated: CorrelatedValue | None = None
    parent: CorrelatedValue | None = None
    """The nearest that has one."""

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
    """One write that rules are asked about."""

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
    """One level of a schema that has rules, or has levels below that do."""

    schema: Object
    rules: Sequence[ValidationRule] = ()
    convert: CelConversion | None = None
    properties: Mapping[str, "RuleNode"] = field(default_factory=dict)
    items: "RuleNode | None" = None
    values: "RuleNode | None" = None

    def faults(
        self, new: Object, old: Object | None, known_faults: Sequence[Fault], warnings: list[str]
    ) -> list[Fault]:
        """What the rules of a whole schema have against a write of which other faults are known."""
        if any(each.reason in BLOCKING_REASONS for each in known_faults):
            return [Fault("<nil>", "FieldValueInvalid", f"Invalid value: null: {RULES_NOT_CHECKED}")]
        asking = RuleEvaluation()
        history = Correlation(CorrelatedValue(new, old, self.schema)) if old is not None else Correlation()
        self.evaluate(new, old, "", history, asking)
        warnings.extend(asking.warnings)
        return asking.faults

    def evaluate(self, value: Any, old: Any, path: str, correlation: Correlation, evaluation: RuleEvaluation) -> None:
        """Have every rule look at the value, and gather what it finds."""
        if value is None or evaluation.is_exhausted:
            return
        charge(1)
        self.evaluate_own_rules(value, old, path, correlation, evaluation)
        if isinstance(value, list) and self.items is not None:
            was = items_by_key(self.schema, old)
            for number, each in enumerate(value):
                before = was.get(item_key(self.schema, each)) if was else None
                self.items.evaluate(each, before, f"{path}[{number}]", correlation.item(number, before), evaluation)
        elif isinstance(value, dict) and (self.properties or self.values is not None):
            self.evaluate_fields(value, old if isinstance(old, dict) else {}, path, correlation, evaluation)

    def evaluate_fields(
        self, value: Object, old: Object, path: str, correlation: Correlation, evaluation: RuleEvaluation
    ) -> None:
        for key, each in value.items():
            if (below := self.properties.get(key)) is not None:
                below.evaluate(each, old.get(key), f"{path}.{key}" if path else key, correlation.key(key), evaluation)
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
            maybe = (
                (OptionalValue(before) if old is not None else OPTIONAL_NONE) if rule.has_optional_old_self else before
            )
            self.evaluate_rule(rule, {"self": now, "oldSelf": maybe}, path, correlation, evaluation)
            if evaluation.is_exhausted:
                return

    def converted(self, value: Any) -> Any:
        return self.convert(value) if self.convert is not None and value is not None else value

    def evaluate_rule(
        self, rule: ValidationRule, variables: Object, path: str, correlation: Correlation, evaluation: RuleEvaluation
    ) -> None:
        shown = self.schema.get("type", "")
        try:
            holds = evaluate_program(rule.program, variables, evaluation.meter)
        except CostExceeded as error:
            why = f"'{error}': no further validation rules will be run due to call cost exceeds limit for rule: "
            evaluation.stop(
                invalid_rule_value(path, shown, why + rule.text if not evaluation.is_exhausted else OUT_OF_BUDGET)
            )
        except EvaluationError as error:
            why = f"{error} evaluating rule: {rule.text}"
            if str(error).startswith("no such overload"):
                kinds = "call arguments did not match a supported operator, function or macro signature"
                why = f"'{error}': {kinds} for rule: {rule.text}"
            evaluation.faults.append(invalid_rule_value(path, shown, why))
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
        words = rule_message(rule, variables, evaluation) or (
            rule.text if rule.source.get("message") else f"failed rule: {rule.text}"
        )
        match rule.source.get("reason"):
            case "FieldValueForbidden":
                return Fault(path, "FieldValueForbidden", f"Forbidden: {words}")
            case "FieldValueRequired":
                return Fault(path, "FieldValueRequired", f"Required value: {words}")
            case "FieldValueDuplicate":
                return Fault(path, "FieldValueDuplicate", f'Duplicate value: "{self.schema.get("type", "")}"')
        return invalid_rule_value(path, self.schema.get("type", ""), words)


def invalid_rule_value(path: str, type_name: str, why: str) -> Fault:
    return Fault(path, "FieldValueInvalid", f'Invalid value: "{type_name}": {why}')


def evaluate_program(program: Program, variables: Object, meter: Meter) -> Any:
    """The value of a program that may cost what one rule may, and no more than is left for all."""
    allowed = min(RULE_COST_LIMIT, meter.left)
    own = Meter(allowed)
    try:
        return program.evaluate(variables, own)
    finally:
        meter.left -= allowed - own.left
        own.report()


def rule_message(rule: ValidationRule, variables: Object, evaluation: RuleEvaluation) -> str:
    """What the rule's messageExpression says; nothing where it has none, or says nothing of use."""
    if rule.message is None:
        return ""
    try:
        found = evaluate_program(rule.message, variables, evaluation.meter)
    except (EvaluationError, CostExceeded):
        return ""
    text = str(found).strip() if isinstance(found, str) else ""
    return "" if len(text) > MAX_MESSAGE or "\n" in text else text


def items_by_key(schema: Object, old: Any) -> Mapping[Any, Any]:
    """The items of a list by what tells them apart; none where nothing does."""
    if schema.get("x-kubernetes-list-type") != "map" or not isinstance(old, list):
        return {}
    return {item_key(schema, each): each for each in old}


def item_key(schema: Object, item: Any) -> Any:
    return (
        tuple(item.get(key) for key in schema.get("x-kubernetes-list-map-keys") or ()) if isinstance(item, dict) else ()
    )


# -- compiling


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
    """The rules of a schema that has been found good; None where it has none."""
    if not has_rules(schema):
        return None
    found = declared_type(schema, name, is_resource_root=is_resource_root)
    fields = {
        key: compile_rules(each, f"{name}.{key}", is_resource_root=False)
        for key, each in (schema.get("properties") or {}).items()
    }
    values, items = schema.get("additionalProperties"), schema.get("items")
    return RuleNode(
        schema,
        [compile_rule(each, schema, found) for each in schema.get(RULES) or ()] if found is not None else (),
        cel_conversion(schema),
        {key: each for key, each in fields.items() if each is not None},
        compile_rules(items, f"{name}.@idx", is_resource_root=False) if isinstance(items, dict) else None,
        compile_rules(values, f"{name}.@elem", is_resource_root=False) if isinstance(values, dict) else None,
    )


def compile_rule(source: Object, schema: Object, self_type: Type) -> ValidationRule:
    known = {"self": self_type, "oldSelf": optional_of(self_type) if source.get("optionalOldSelf") else self_type}
    charge(len(source["rule"]))
    try:
        program = compile_expression(source["rule"], known)
        words = compile_expression(source["messageExpression"], known) if source.get("messageExpression") else None
    except CompileError as error:  # it was stored before what is asked of rules now
        return ValidationRule(source, failing_program(source["rule"], f"rule compile error: {error}"))
    try:
        path = normalized_path(source["fieldPath"], schema) if source.get("fieldPath") else ""
    except PathError:
        path = ""
    return ValidationRule(source, program, words, path)


def failing_program(text: str, why: str) -> Program:
    """A program that only ever says why there is none."""

    def code(_: Any) -> Any:
        raise EvaluationError(why)

    return Program(text, BOOL, frozenset(), 1, code)
