"""What is wrong with the rules and patterns of a schema, in Kubernetes' words: asked when a definition is written."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tapestry.apiserver.customs.expressions import MAX_REQUEST, declared_type, least_size
from tapestry.apiserver.customs.rule_paths import PathError, normal_path
from tapestry.apiserver.customs.rules import RULES
from tapestry.apiserver.customs.structural import OF_TYPE, Fault
from tapestry.apiserver.validation.faults import unsupported
from tapestry.kube.cel.compiling import compiled
from tapestry.kube.cel.errors import CompileError, FoldingError
from tapestry.kube.cel.regexes import RegexError, regex
from tapestry.kube.cel.types import BOOL, STRING, Type, optional_of
from tapestry.kube.objects import Object

COST_LIMIT = 10_000_000
"""What a rule may cost in the largest object there can be."""
ADVICE = (
    "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, "
    "and strings are declared)"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a schema rules are."""

    path: str
    name: str = "selfType"
    """Of the type there."""
    is_whole: bool = True
    unkeyed: str = ""
    """The list above that has no keys, if there is one."""
    times: int | None = 1
    """How many values there can be; None where nothing limits them."""

    def below(self, step: str, name: str, *, unkeyed: str = "", most: int | None = 1) -> "Place":
        times = self.times * most if self.times is not None and most is not None else None
        return Place(f"{self.path}.{step}", f"{self.name}.{name}", False, self.unkeyed or unkeyed, times)


def rule_faults(schema: Object, path: str) -> Iterator[Fault]:
    """What is wrong with the rules and patterns of a schema, those of its parts first."""
    return faults_at(schema, Place(path))


def faults_at(schema: Object, place: Place) -> Iterator[Fault]:
    yield from branches(schema, place.path)
    if schema.get("type") and schema["type"] not in OF_TYPE:
        yield unsupported(f"{place.path}.type", schema["type"], sorted(OF_TYPE))
    if "pattern" in schema:
        yield from pattern_faults(schema["pattern"], f"{place.path}.pattern")
    for key, each in (schema.get("properties") or {}).items():
        yield from faults_at(each, place.below(f"properties[{key}]", key))
    values, items = schema.get("additionalProperties"), schema.get("items")
    if isinstance(values, dict):
        most = schema.get("maxProperties")
        yield from faults_at(values, place.below("additionalProperties", "@elem", most=most))
    if isinstance(items, dict):
        unkeyed = "" if schema.get("x-kubernetes-list-type") == "map" else place.path
        yield from faults_at(items, place.below("items", "@idx", unkeyed=unkeyed, most=schema.get("maxItems")))
    if schema.get(RULES):
        yield from own_faults(schema, place)


def misplaced(schema: Object, path: str) -> Iterator[Fault]:
    """Rules in branches, which may only add conditions on values."""
    if schema.get(RULES):
        yield Fault(f"{path}.{RULES}", "FieldValueForbidden", "Forbidden: must be empty to be structural")
    for key, each in (schema.get("properties") or {}).items():
        yield from misplaced(each, f"{path}.properties[{key}]")
    for field in ("items", "not"):
        if isinstance(schema.get(field), dict):
            yield from misplaced(schema[field], f"{path}.{field}")
    yield from branches(schema, path)


def branches(schema: Object, path: str) -> Iterator[Fault]:
    for field in ("allOf", "anyOf", "oneOf"):
        for number, each in enumerate(schema.get(field) or ()):
            yield from misplaced(each, f"{path}.{field}[{number}]")


def pattern_faults(pattern: str, at: str) -> Iterator[Fault]:
    try:
        regex(pattern)
    except RegexError as error:
        why = f"must be a valid regular expression, but isn't: error parsing regexp: {error}"
        yield quoted_fault(at, pattern, why)


def own_faults(schema: Object, place: Place) -> Iterator[Fault]:
    placed = [(rule, f"{place.path}.{RULES}[{number}]") for number, rule in enumerate(schema[RULES])]
    shapes = [fault for rule, at in placed for fault in shape_faults(rule, schema, at)]
    yield from shapes
    found = declared_type(schema, place.name, is_whole=place.is_whole)
    if found is not None and not shapes:
        times = place.times if place.times is not None else MAX_REQUEST // (least_size(schema) + 1)
        for rule, at in placed:
            yield from meaning_faults(rule, at, found, place.unkeyed, times)


def shape_faults(rule: Object, schema: Object, at: str) -> Iterator[Fault]:
    text, words = str(rule.get("rule") or ""), str(rule.get("message") or "")
    if not text.strip():
        yield Fault(f"{at}.rule", "FieldValueRequired", "Required value: rule is not specified")
    elif words and not words.strip():
        yield quoted_fault(f"{at}.message", words, "must be non-empty if specified")
    elif "\n" in words.strip():
        yield quoted_fault(f"{at}.message", words, "must not contain line breaks")
    elif "\n" in text.strip() and not words:
        why = "Required value: message must be specified if rule contains line breaks"
        yield Fault(f"{at}.message", "FieldValueRequired", why)
    expression = rule.get("messageExpression") or ""
    if expression and not expression.strip():
        why = "Required value: messageExpression must be non-empty if specified"
        yield Fault(f"{at}.messageExpression", "FieldValueRequired", why)
    if rule.get("reason") and rule["reason"] not in REASONS:
        known = ", ".join(f'"{each}"' for each in REASONS)
        why = f'Unsupported value: "{rule["reason"]}": supported values: {known}'
        yield Fault(f"{at}.reason", "FieldValueNotSupported", why)
    if rule.get("fieldPath"):
        try:
            normal_path(rule["fieldPath"], schema)
        except PathError:
            yield quoted_fault(f"{at}.fieldPath", rule["fieldPath"], "must be a valid path")


REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")


def quoted_fault(path: str, value: str, why: str) -> Fault:
    shown = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return Fault(path, "FieldValueInvalid", f'Invalid value: "{shown}": {why}')


def meaning_faults(rule: Object, at: str, found: Type, unkeyed: str, times: int) -> Iterator[Fault]:
    known = {"self": found, "oldSelf": optional_of(found) if rule.get("optionalOldSelf") else found}
    shown = source_words(rule)
    try:
        program = compiled(rule["rule"], known)
    except FoldingError as error:
        why = f"Invalid value: {shown}: program instantiation failed: {error}"
        yield Fault(f"{at}.rule", "FieldValueInvalid", why)
        return
    except CompileError as error:
        yield Fault(f"{at}.rule", "FieldValueInvalid", f"Invalid value: {shown}: compilation failed: {error}")
        return
    if program.type != BOOL:
        why = f"Invalid value: {shown}: cel expression must evaluate to a bool"
        yield Fault(f"{at}.rule", "FieldValueInvalid", why)
        return
    if program.cost * times > COST_LIMIT:
        why = f"Forbidden: estimated rule cost exceeds budget by factor of {factor(program.cost * times)} {ADVICE}"
        yield Fault(f"{at}.rule", "FieldValueForbidden", why)
    if rule.get("messageExpression"):
        why = message_complaint(rule["messageExpression"], known)
        if why:
            yield Fault(f"{at}.messageExpression", "FieldValueInvalid", f"Invalid value: {shown}: {why}")
    if "oldSelf" in program.names:
        if unkeyed:
            why = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {unkeyed}"
            yield quoted_fault(f"{at}.rule", rule["rule"], why)
    elif "optionalOldSelf" in rule:
        why = f"Invalid value: {str(rule['optionalOldSelf']).lower()}: may not be set if oldSelf is not used in rule"
        yield Fault(f"{at}.optionalOldSelf", "FieldValueInvalid", why)


def factor(cost: int) -> str:
    times = cost / COST_LIMIT
    return "more than 100x" if times > 100 else f"{times:f}x" if times < 1.5 else f"{times:.1f}x"


def message_complaint(text: str, known: Mapping[str, Type]) -> str:
    try:
        found = compiled(text, known).type
    except CompileError as error:
        return f"messageExpression compilation failed: {error}"
    return "" if found == STRING else "messageExpression must evaluate to a string"


def source_words(rule: Object) -> str:
    """A rule as Kubernetes shows it in complaints: as JSON, with what HTML would take amiss hidden."""
    found = {
        "Rule": rule["rule"],
        "Message": rule.get("message", ""),
        "MessageExpression": rule.get("messageExpression", ""),
        "Reason": rule.get("reason"),
        "FieldPath": rule.get("fieldPath", ""),
        "OptionalOldSelf": rule.get("optionalOldSelf"),
    }
    text = json.dumps(found, separators=(",", ":"), ensure_ascii=False)
    return "".join(HIDDEN.get(each, each) for each in text)


HIDDEN = {"&": "\\u0026", "<": "\\u003c", ">": "\\u003e"}
