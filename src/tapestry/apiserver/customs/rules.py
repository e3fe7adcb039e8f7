"""Rules of custom resources (`x-kubernetes-validations`): compiled with the schema, asked of every write.

A rule that looks at `oldSelf` is asked only where there is something to compare with: a field of the same name, an item
of a list that has keys with the same keys.  What was wrong before and has not changed since is warned of, not refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tapestry.apiserver.customs.expressions import Convert, conversion, declared_type
from tapestry.apiserver.customs.rule_paths import PathError, normal_path
from tapestry.apiserver.customs.structural import MOST_FAULTS, Fault
from tapestry.kube.budget import charge
from tapestry.kube.cel.compiling import Program, compiled
from tapestry.kube.cel.errors import CompileError, CostExceeded, EvaluationError, Meter
from tapestry.kube.cel.types import BOOL, Type, optional_of
from tapestry.kube.cel.values import NOTHING, Maybe
from tapestry.kube.objects import Object

RULES = "x-kubernetes-validations"
COST_OF_RULE = 1_000_000
COST_OF_OBJECT = 3_000_000
"""Less than Kubernetes allows: here nobody else is served meanwhile."""
MAX_MESSAGE = 5 * 1024
BLOCKING = frozenset(
    {
        *("FieldValueNotSupported", "FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany"),
        "FieldValueTypeInvalid",
    }
)
"""Faults that rules need not be asked after: they count on what the schema says."""
UNCHECKED = (
    "some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation"
)
OUT_OF_BUDGET = "validation failed due to running out of cost budget, no further validation rules will be run"


@dataclass(frozen=True, slots=True)
class Rule:
    source: Object
    program: Program
    message: Program | None = None
    path: str = ""
    """Below the value that the rule is about: where it says the fault is."""

    @property
    def is_optional(self) -> bool:
        """Whether it is asked of new values, too."""
        return bool(self.source.get("optionalOldSelf"))

    @property
    def compares(self) -> bool:
        return "oldSelf" in self.program.names

    @property
    def words(self) -> str:
        return str(self.source.get("message") or self.source["rule"]).strip()


@dataclass(frozen=True, slots=True)
class Twin:
    """A value, and what it was before as far as can be said: what makes an old fault bearable."""

    value: Any
    old: Any
    schema: Object

    def is_same(self) -> bool:
        return bool(self.value == self.old)

    def key(self, name: str) -> "Twin | None":
        if not (
            isinstance(self.value, dict) and isinstance(self.old, dict) and name in self.value and name in self.old
        ):
            return None
        values = self.schema.get("additionalProperties")
        below = (self.schema.get("properties") or {}).get(name) or (values if isinstance(values, dict) else None)
        return Twin(self.value[name], self.old[name], below) if below is not None else None

    def item(self, number: int, old: Any) -> "Twin | None":
        return None if old is None else Twin(self.value[number], old, self.schema.get("items") or {})


@dataclass(frozen=True, slots=True)
class History:
    """Where a value stands to what was before."""

    twin: Twin | None = None
    above: Twin | None = None
    """The nearest that has one."""

    def is_unchanged(self) -> bool:
        nearest = self.twin if self.twin is not None else self.above
        return nearest is not None and nearest.is_same()

    def key(self, name: str) -> "History":
        if self.twin is None:
            return self
        if self.above is None and name in ("apiVersion", "kind"):
            return History()
        return History(self.twin.key(name), self.twin)

    def item(self, number: int, old: Any) -> "History":
        return self if self.twin is None else History(self.twin.item(number, old), self.twin)


@dataclass(slots=True)
class Asking:
    """One write that rules are asked about."""

    left: Meter = field(default_factory=lambda: Meter(COST_OF_OBJECT))
    faults: list[Fault] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.left.left < 0

    def end(self, fault: Fault) -> None:
        self.faults.append(fault)
        self.left.left = -1


@dataclass(frozen=True, slots=True)
class Ruled:
    """One level of a schema that has rules, or has levels below that do."""

    schema: Object
    rules: Sequence[Rule] = ()
    convert: Convert | None = None
    properties: Mapping[str, "Ruled"] = field(default_factory=dict)
    items: "Ruled | None" = None
    values: "Ruled | None" = None

    def faults(self, new: Object, old: Object | None, known: Sequence[Fault], warnings: list[str]) -> list[Fault]:
        """What the rules of a whole schema have against a write of which other faults are known."""
        if any(each.reason in BLOCKING for each in known):
            return [Fault("<nil>", "FieldValueInvalid", f"Invalid value: null: {UNCHECKED}")]
        asking = Asking()
        history = History(Twin(new, old, self.schema)) if old is not None else History()
        self.ask(new, old, "", history, asking)
        warnings.extend(asking.warnings)
        return asking.faults

    def ask(self, value: Any, old: Any, path: str, history: History, asking: Asking) -> None:
        """Have every rule look at the value, and gather what it finds."""
        if value is None or asking.is_over:
            return
        charge(1)
        self.ask_here(value, old, path, history, asking)
        if isinstance(value, list) and self.items is not None:
            was = by_keys(self.schema, old)
            for number, each in enumerate(value):
                before = was.get(keys_of(self.schema, each)) if was else None
                self.items.ask(each, before, f"{path}[{number}]", history.item(number, before), asking)
        elif isinstance(value, dict) and (self.properties or self.values is not None):
            self.ask_fields(value, old if isinstance(old, dict) else {}, path, history, asking)

    def ask_fields(self, value: Object, old: Object, path: str, history: History, asking: Asking) -> None:
        for key, each in value.items():
            if (below := self.properties.get(key)) is not None:
                below.ask(each, old.get(key), f"{path}.{key}" if path else key, history.key(key), asking)
            elif self.values is not None:
                self.values.ask(each, old.get(key), f"{path}[{key}]", history.key(key), asking)

    def ask_here(self, value: Any, old: Any, path: str, history: History, asking: Asking) -> None:
        if not self.rules:
            return
        now, before = self.converted(value), self.converted(old)
        for rule in self.rules:
            if rule.compares and old is None and not rule.is_optional:
                continue
            maybe = (Maybe(before) if old is not None else NOTHING) if rule.is_optional else before
            self.ask_one(rule, {"self": now, "oldSelf": maybe}, path, history, asking)
            if asking.is_over:
                return

    def converted(self, value: Any) -> Any:
        return self.convert(value) if self.convert is not None and value is not None else value

    def ask_one(self, rule: Rule, variables: Object, path: str, history: History, asking: Asking) -> None:
        shown = self.schema.get("type", "")
        try:
            holds = metered(rule.program, variables, asking.left)
        except CostExceeded as error:
            why = f"'{error}': no further validation rules will be run due to call cost exceeds limit for rule: "
            asking.end(invalid(path, shown, why + rule.words if not asking.is_over else OUT_OF_BUDGET))
        except EvaluationError as error:
            why = f"{error} evaluating rule: {rule.words}"
            if str(error).startswith("no such overload"):
                kinds = "call arguments did not match a supported operator, function or macro signature"
                why = f"'{error}': {kinds} for rule: {rule.words}"
            asking.faults.append(invalid(path, shown, why))
        else:
            if holds is not True:
                fault = self.fault(rule, variables, (path + rule.path).lstrip("."), asking)
                if len(asking.warnings) + len(asking.faults) >= MOST_FAULTS:
                    asking.end(fault)
                elif not rule.compares and history.is_unchanged():
                    asking.warnings.append(str(fault))
                else:
                    asking.faults.append(fault)

    def fault(self, rule: Rule, variables: Object, path: str, asking: Asking) -> Fault:
        words = message(rule, variables, asking) or (
            rule.words if rule.source.get("message") else f"failed rule: {rule.words}"
        )
        match rule.source.get("reason"):
            case "FieldValueForbidden":
                return Fault(path, "FieldValueForbidden", f"Forbidden: {words}")
            case "FieldValueRequired":
                return Fault(path, "FieldValueRequired", f"Required value: {words}")
            case "FieldValueDuplicate":
                return Fault(path, "FieldValueDuplicate", f'Duplicate value: "{self.schema.get("type", "")}"')
        return invalid(path, self.schema.get("type", ""), words)


def invalid(path: str, shown: str, why: str) -> Fault:
    return Fault(path, "FieldValueInvalid", f'Invalid value: "{shown}": {why}')


def metered(program: Program, variables: Object, left: Meter) -> Any:
    """The value of a program that may cost what one rule may, and no more than is left for all."""
    allowed = min(COST_OF_RULE, left.left)
    own = Meter(allowed)
    try:
        return program.evaluate(variables, own)
    finally:
        left.left -= allowed - own.left
        own.report()


def message(rule: Rule, variables: Object, asking: Asking) -> str:
    """What the rule's messageExpression says; nothing where it has none, or says nothing of use."""
    if rule.message is None:
        return ""
    try:
        found = metered(rule.message, variables, asking.left)
    except (EvaluationError, CostExceeded):
        return ""
    text = str(found).strip() if isinstance(found, str) else ""
    return "" if len(text) > MAX_MESSAGE or "\n" in text else text


def by_keys(schema: Object, old: Any) -> Mapping[Any, Any]:
    """The items of a list by what tells them apart; none where nothing does."""
    if schema.get("x-kubernetes-list-type") != "map" or not isinstance(old, list):
        return {}
    return {keys_of(schema, each): each for each in old}


def keys_of(schema: Object, item: Any) -> Any:
    return (
        tuple(item.get(key) for key in schema.get("x-kubernetes-list-map-keys") or ()) if isinstance(item, dict) else ()
    )


# -- compiling


def has_rules(schema: Object) -> bool:
    if schema.get(RULES):
        return True
    return any(has_rules(each) for each in below(schema))


def below(schema: Object) -> Iterator[Object]:
    yield from (schema.get("properties") or {}).values()
    for each in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(each, dict):
            yield each


def ruled(schema: Object, name: str = "selfType", *, is_whole: bool = True) -> Ruled | None:
    """The rules of a schema that has been found good; None where it has none."""
    if not has_rules(schema):
        return None
    found = declared_type(schema, name, is_whole=is_whole)
    fields = {
        key: ruled(each, f"{name}.{key}", is_whole=False) for key, each in (schema.get("properties") or {}).items()
    }
    values, items = schema.get("additionalProperties"), schema.get("items")
    return Ruled(
        schema,
        [rule_of(each, schema, found) for each in schema.get(RULES) or ()] if found is not None else (),
        conversion(schema),
        {key: each for key, each in fields.items() if each is not None},
        ruled(items, f"{name}.@idx", is_whole=False) if isinstance(items, dict) else None,
        ruled(values, f"{name}.@elem", is_whole=False) if isinstance(values, dict) else None,
    )


def rule_of(source: Object, schema: Object, found: Type) -> Rule:
    known = {"self": found, "oldSelf": optional_of(found) if source.get("optionalOldSelf") else found}
    charge(len(source["rule"]))
    try:
        program = compiled(source["rule"], known)
        words = compiled(source["messageExpression"], known) if source.get("messageExpression") else None
    except CompileError as error:  # it was stored before what is asked of rules now
        return Rule(source, failing(source["rule"], f"rule compile error: {error}"))
    try:
        path = normal_path(source["fieldPath"], schema) if source.get("fieldPath") else ""
    except PathError:
        path = ""
    return Rule(source, program, words, path)


def failing(text: str, why: str) -> Program:
    """A program that only ever says why there is none."""

    def code(_: Any) -> Any:
        raise EvaluationError(why)

    return Program(text, BOOL, frozenset(), 1, code)
