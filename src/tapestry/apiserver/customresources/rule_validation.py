"""Validation of the rules and patterns of a schema when its definition is written."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tapestry.apiserver.core.cel_types import MAX_REQUEST_BYTES, declared_type, min_size
from tapestry.apiserver.core.faults import Fault, unsupported_value
from tapestry.apiserver.customresources.field_paths import PathError, normalized_path
from tapestry.apiserver.customresources.structural_schema import TYPE_CHECKS
from tapestry.apiserver.customresources.validation_rules import RULES
from tapestry.kube.cel.compiler import compile_expression
from tapestry.kube.cel.errors import CompileError, FoldingError
from tapestry.kube.cel.regexes import RegexError, compile_regex
from tapestry.kube.cel.types import BOOL, STRING, Type, optional_of
from tapestry.kube.objects import Object

COST_LIMIT = 10_000_000
"""Maximum estimated cost of a rule for the largest possible object."""
COST_ADVICE = (
    "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, "
    "and strings are declared)"
)


@dataclass(frozen=True, slots=True)
class SchemaLocation:
    """Position of a rule in a schema."""

    path: str
    name: str = "selfType"
    """Name of the type at this position."""
    is_resource_root: bool = True
    unkeyed_list: str = ""
    """Path of an enclosing list without keys; empty if there is none."""
    max_count: int | None = 1
    """Maximum number of values at this position; None if it is not limited."""

    def child(self, step: str, name: str, *, unkeyed_list: str = "", max_items: int | None = 1) -> "SchemaLocation":
        count = self.max_count * max_items if self.max_count is not None and max_items is not None else None
        return SchemaLocation(
            f"{self.path}.{step}", f"{self.name}.{name}", False, self.unkeyed_list or unkeyed_list, count
        )


def rule_faults(schema: Object, path: str) -> Iterator[Fault]:
    """Faults of the rules and patterns of a schema. Nested schemas are checked first."""
    return schema_faults(schema, SchemaLocation(path))


def schema_faults(schema: Object, location: SchemaLocation) -> Iterator[Fault]:
    yield from branch_faults(schema, location.path)
    if schema.get("type") and schema["type"] not in TYPE_CHECKS:
        yield unsupported_value(f"{location.path}.type", schema["type"], sorted(TYPE_CHECKS))
    if "pattern" in schema:
        yield from pattern_faults(schema["pattern"], f"{location.path}.pattern")
    for key, each in (schema.get("properties") or {}).items():
        yield from schema_faults(each, location.child(f"properties[{key}]", key))
    values, items = schema.get("additionalProperties"), schema.get("items")
    if isinstance(values, dict):
        limit = schema.get("maxProperties")
        yield from schema_faults(values, location.child("additionalProperties", "@elem", max_items=limit))
    if isinstance(items, dict):
        unkeyed = "" if schema.get("x-kubernetes-list-type") == "map" else location.path
        yield from schema_faults(
            items, location.child("items", "@idx", unkeyed_list=unkeyed, max_items=schema.get("maxItems"))
        )
    if schema.get(RULES):
        yield from node_rule_faults(schema, location)


def misplaced_rule_faults(schema: Object, path: str) -> Iterator[Fault]:
    """Faults of rules in branches, which may only add constraints on values."""
    if schema.get(RULES):
        yield Fault(f"{path}.{RULES}", "FieldValueForbidden", "Forbidden: must be empty to be structural")
    for key, each in (schema.get("properties") or {}).items():
        yield from misplaced_rule_faults(each, f"{path}.properties[{key}]")
    for field in ("items", "not"):
        if isinstance(schema.get(field), dict):
            yield from misplaced_rule_faults(schema[field], f"{path}.{field}")
    yield from branch_faults(schema, path)


def branch_faults(schema: Object, path: str) -> Iterator[Fault]:
    for field in ("allOf", "anyOf", "oneOf"):
        for number, each in enumerate(schema.get(field) or ()):
            yield from misplaced_rule_faults(each, f"{path}.{field}[{number}]")


def pattern_faults(pattern: str, field_path: str) -> Iterator[Fault]:
    try:
        compile_regex(pattern)
    except RegexError as error:
        message = f"must be a valid regular expression, but isn't: error parsing regexp: {error}"
        yield quoted_fault(field_path, pattern, message)


def node_rule_faults(schema: Object, location: SchemaLocation) -> Iterator[Fault]:
    rules = [(rule, f"{location.path}.{RULES}[{number}]") for number, rule in enumerate(schema[RULES])]
    malformed = [fault for rule, path in rules for fault in rule_shape_faults(rule, schema, path)]
    yield from malformed
    self_type = declared_type(schema, location.name, is_resource_root=location.is_resource_root)
    if self_type is not None and not malformed:
        times = location.max_count if location.max_count is not None else MAX_REQUEST_BYTES // (min_size(schema) + 1)
        for rule, path in rules:
            yield from rule_expression_faults(rule, path, self_type, location.unkeyed_list, times)


def rule_shape_faults(rule: Object, schema: Object, field_path: str) -> Iterator[Fault]:
    text, message = str(rule.get("rule") or ""), str(rule.get("message") or "")
    if not text.strip():
        yield Fault(f"{field_path}.rule", "FieldValueRequired", "Required value: rule is not specified")
    elif message and not message.strip():
        yield quoted_fault(f"{field_path}.message", message, "must be non-empty if specified")
    elif "\n" in message.strip():
        yield quoted_fault(f"{field_path}.message", message, "must not contain line breaks")
    elif "\n" in text.strip() and not message:
        detail = "Required value: message must be specified if rule contains line breaks"
        yield Fault(f"{field_path}.message", "FieldValueRequired", detail)
    expression = rule.get("messageExpression") or ""
    if expression and not expression.strip():
        detail = "Required value: messageExpression must be non-empty if specified"
        yield Fault(f"{field_path}.messageExpression", "FieldValueRequired", detail)
    if rule.get("reason") and rule["reason"] not in REASONS:
        supported = ", ".join(f'"{each}"' for each in REASONS)
        detail = f'Unsupported value: "{rule["reason"]}": supported values: {supported}'
        yield Fault(f"{field_path}.reason", "FieldValueNotSupported", detail)
    if rule.get("fieldPath"):
        try:
            normalized_path(rule["fieldPath"], schema)
        except PathError:
            yield quoted_fault(f"{field_path}.fieldPath", rule["fieldPath"], "must be a valid path")


REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")


def quoted_fault(path: str, value: str, message: str) -> Fault:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return Fault(path, "FieldValueInvalid", f'Invalid value: "{escaped}": {message}')


def rule_expression_faults(rule: Object, field_path: str, self_type: Type, unkeyed: str, times: int) -> Iterator[Fault]:
    scope = {"self": self_type, "oldSelf": optional_of(self_type) if rule.get("optionalOldSelf") else self_type}
    text = rule_json(rule)
    try:
        program = compile_expression(rule["rule"], scope)
    except FoldingError as error:
        detail = f"Invalid value: {text}: program instantiation failed: {error}"
        yield Fault(f"{field_path}.rule", "FieldValueInvalid", detail)
        return
    except CompileError as error:
        yield Fault(f"{field_path}.rule", "FieldValueInvalid", f"Invalid value: {text}: compilation failed: {error}")
        return
    if program.type != BOOL:
        detail = f"Invalid value: {text}: cel expression must evaluate to a bool"
        yield Fault(f"{field_path}.rule", "FieldValueInvalid", detail)
        return
    if program.cost * times > COST_LIMIT:
        factor = cost_factor(program.cost * times)
        detail = f"Forbidden: estimated rule cost exceeds budget by factor of {factor} {COST_ADVICE}"
        yield Fault(f"{field_path}.rule", "FieldValueForbidden", detail)
    if rule.get("messageExpression"):
        detail = message_expression_error(rule["messageExpression"], scope)
        if detail:
            yield Fault(f"{field_path}.messageExpression", "FieldValueInvalid", f"Invalid value: {text}: {detail}")
    if "oldSelf" in program.variable_names:
        if unkeyed:
            detail = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {unkeyed}"
            yield quoted_fault(f"{field_path}.rule", rule["rule"], detail)
    elif "optionalOldSelf" in rule:
        detail = f"Invalid value: {str(rule['optionalOldSelf']).lower()}: may not be set if oldSelf is not used in rule"
        yield Fault(f"{field_path}.optionalOldSelf", "FieldValueInvalid", detail)


def cost_factor(cost: int) -> str:
    times = cost / COST_LIMIT
    return "more than 100x" if times > 100 else f"{times:f}x" if times < 1.5 else f"{times:.1f}x"


def message_expression_error(text: str, variable_types: Mapping[str, Type]) -> str:
    try:
        result_type = compile_expression(text, variable_types).type
    except CompileError as error:
        return f"messageExpression compilation failed: {error}"
    return "" if result_type == STRING else "messageExpression must evaluate to a string"


def rule_json(rule: Object) -> str:
    """The rule as JSON with HTML characters escaped, as it appears in Kubernetes' messages."""
    fields = {
        "Rule": rule["rule"],
        "Message": rule.get("message", ""),
        "MessageExpression": rule.get("messageExpression", ""),
        "Reason": rule.get("reason"),
        "FieldPath": rule.get("fieldPath", ""),
        "OptionalOldSelf": rule.get("optionalOldSelf"),
    }
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    return "".join(HTML_ESCAPES.get(each, each) for each in text)


HTML_ESCAPES = {"&": "\\u0026", "<": "\\u003c", ">": "\\u003e"}
