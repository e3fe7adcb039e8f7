"""What becomes of ValidatingAdmissionPolicies and their bindings when they are written.

Defaults are filled in, expressions that cannot be meant are refused, and the status says what could go wrong with the
others: they are checked once more, against the types of the resources that the policy is about.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tapestry.apiserver.admission.conditions import VARIABLES
from tapestry.apiserver.admission.policies import BINDINGS, POLICIES, composed, declared_variables
from tapestry.apiserver.customs.definitions import OBJECT_META, invalid_object
from tapestry.apiserver.customs.expressions import declared_type
from tapestry.apiserver.customs.structural import Fault, first_faults
from tapestry.apiserver.rows import Row, Rows
from tapestry.apiserver.verbs import Request
from tapestry.kube.cel.compiling import compiled
from tapestry.kube.cel.errors import CompileError, FoldingError
from tapestry.kube.cel.types import BOOL, DYN, NULL, STRING, Type
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.selectors import SelectorError, label_selector

ACTIONS = ("Audit", "Deny", "Warn")
REASONS = ("Forbidden", "Invalid", "RequestEntityTooLarge")
MAX_TYPES = 10
"""How many resources of a policy its expressions are checked against."""
MAX_NESTING = 12


@dataclass(frozen=True)
class PolicyRules:
    """Steps for policies and bindings."""

    rows: Rows
    types: Mapping[str, Any]
    """The published schemas of built-in kinds."""

    async def default(self, request: Request, old: Object | None, new: Object | None) -> Object:
        if new is None:
            return old or {}
        field = MATCHES[request.target.row.storage]
        spec = dict(new.get("spec") or {})
        if spec.get(field) is not None:
            spec[field] = with_match_defaults(spec[field])
        if request.target.row.storage == POLICIES:
            spec.setdefault("failurePolicy", "Fail")
        return {**new, "spec": spec}

    async def settle(self, request: Request, old: Object | None, new: Object | None) -> Object:
        storage = request.target.row.storage
        if new is None or request.target.subresource:
            return new if new is not None else old or {}
        faults = first_faults(policy_faults(new["spec"]) if storage == POLICIES else binding_faults(new["spec"]))
        if faults:
            raise invalid_object(request.target.row.resource, name_of(new), faults)
        return self.with_status(new) if storage == POLICIES else new

    def with_status(self, policy: Object) -> Object:
        generation = policy["metadata"].get("generation", 1)
        status = policy.get("status") or {}
        if status.get("observedGeneration") == generation:
            return policy
        warnings = list(self.warnings(policy["spec"]))
        checked = {"expressionWarnings": warnings} if warnings else {}
        return {**policy, "status": {**status, "observedGeneration": generation, "typeChecking": checked}}

    # -- type checking

    def warnings(self, spec: Object) -> Iterator[Object]:
        kinds = [(row, self.type_of(row)) for row in self.rows_of(spec)]
        params = self.params_type(spec)
        for number, validation in enumerate(spec.get("validations") or ()):
            for name in ("expression", "messageExpression"):
                complaints = [
                    f"{gvk(row)}: {complaint}\n"
                    for row, found in kinds
                    if validation.get(name) and (complaint := self.complaint(spec, validation[name], found, params))
                ]
                if complaints:
                    yield {"fieldRef": f"spec.validations[{number}].{name}", "warning": "\n".join(complaints)}

    def complaint(self, spec: Object, text: str, found: Type, params: Type | None) -> str:
        """What is wrong with an expression where `object` is of that type."""
        known = {**declared_variables(spec), "object": found, "oldObject": found}
        if params is not None:
            known["params"] = params
        variables: dict[str, Type] = {}
        for each in spec.get("variables") or ():
            variables[each["name"]] = compiled_type(each["expression"], {**known, "variables": composed(variables)})
        try:
            compiled(text, {**known, "variables": composed(variables)})
        except CompileError as error:
            return f"compilation failed: {error}"
        return ""

    def rows_of(self, spec: Object) -> list[Row]:
        """The resources that a policy names: those behind wildcards are not looked for."""
        found: dict[tuple[str, str, str], Row] = {}
        for rule in value_at(spec, "matchConstraints", "resourceRules", default=[]):
            if any("*" in (rule.get(field) or ()) for field in ("apiGroups", "apiVersions")):
                continue
            for group in sorted(rule.get("apiGroups") or ()):
                for version in sorted(rule.get("apiVersions") or ()):
                    for plural in sorted(rule.get("resources") or ()):
                        row = self.rows.get(group, version, plural)
                        if row is not None:
                            found[group, version, row.resource.kind] = row
        return [row for _, row in sorted(found.items())][:MAX_TYPES]

    def params_type(self, spec: Object) -> Type | None:
        kind = spec.get("paramKind")
        if not kind:
            return None
        for row in self.rows:
            if (row.resource.api_version, row.resource.kind) == (kind["apiVersion"], kind["kind"]):
                return self.type_of(row)
        return None

    def type_of(self, row: Row) -> Type:
        if row.is_custom:
            metadata = self.resolved({"$ref": OBJECT_META})
            properties = {**(row.schema.get("properties") or {}), "metadata": metadata, **TYPE_FIELDS}
            schema: Object = {**row.schema, "type": "object", "properties": properties}
        else:
            schema = self.resolved({"$ref": row.type})
        return declared_type(schema, row.resource.kind) or DYN

    def resolved(self, schema: Any, depth: int = 0) -> Object:
        """A published schema with what it refers to in it; what is nested deeper than people ask for is left open."""
        if depth > MAX_NESTING:
            return {"x-kubernetes-int-or-string": True}
        if "$ref" in schema:
            return self.resolved(self.types[schema["$ref"]], depth + 1)
        found = dict(schema)
        if "properties" in schema:
            found["properties"] = {name: self.resolved(each, depth + 1) for name, each in schema["properties"].items()}
        for field in ("items", "additionalProperties"):
            if isinstance(schema.get(field), dict):
                found[field] = self.resolved(schema[field], depth + 1)
        return found


MATCHES = {POLICIES: "matchConstraints", BINDINGS: "matchResources"}
TYPE_FIELDS = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}


def gvk(row: Row) -> str:
    resource = row.resource
    return f"{resource.group}/{resource.version}, Kind={resource.kind}"


def compiled_type(text: str, known: Mapping[str, Type]) -> Type:
    try:
        return compiled(text, known).type
    except CompileError:
        return DYN


def with_match_defaults(match: Object) -> Object:
    found = {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}, **match}
    for field in ("resourceRules", "excludeResourceRules"):
        if match.get(field):
            found[field] = [{"scope": "*", **rule} for rule in match[field]]
    return found


# -- what is wrong with them


def policy_faults(spec: Object) -> Iterator[Fault]:
    if spec.get("failurePolicy") not in ("Fail", "Ignore"):
        yield unsupported("spec.failurePolicy", spec.get("failurePolicy"), ("Fail", "Ignore"))
    kind = spec.get("paramKind")
    for field in ("apiVersion", "kind") if kind else ():
        if not (kind or {}).get(field):
            yield Fault(f"spec.paramKind.{field}", "FieldValueRequired", "Required value")
    if not spec.get("matchConstraints"):
        yield Fault("spec.matchConstraints", "FieldValueRequired", "Required value")
    else:
        yield from match_faults(spec["matchConstraints"], "spec.matchConstraints")
        if not spec["matchConstraints"].get("resourceRules"):
            yield Fault("spec.matchConstraints.resourceRules", "FieldValueRequired", "Required value")
    yield from condition_faults(spec)
    if not spec.get("validations") and not spec.get("auditAnnotations"):
        why = "Required value: validations or auditAnnotations must contain at least one item"
        yield Fault("spec.validations", "FieldValueRequired", why)
        yield Fault("spec.auditAnnotations", "FieldValueRequired", why)
    yield from expression_faults(spec)


def expression_faults(spec: Object) -> Iterator[Fault]:
    known, variables = dict(declared_variables(spec)), dict[str, Type]()
    for number, each in enumerate(spec.get("variables") or ()):
        at, scope = f"spec.variables[{number}].expression", {**known, "variables": composed(variables)}
        yield from faults_of(each.get("expression", ""), scope, at, "expression is not specified")
        variables[each.get("name", "")] = compiled_type(each.get("expression", ""), scope)
    if variables:
        known["variables"] = composed(variables)
    words = {name: each for name, each in known.items() if not name.startswith("authorizer")}
    for number, each in enumerate(spec.get("validations") or ()):
        at = f"spec.validations[{number}]"
        yield from faults_of(each.get("expression", ""), known, f"{at}.expression", "expression is not specified", BOOL)
        if each.get("messageExpression"):
            yield from faults_of(each["messageExpression"], words, f"{at}.messageExpression", "", STRING)
        if "\n" in str(each.get("message") or "").strip():
            yield invalid(f"{at}.message", each["message"], "must not contain line breaks")
        if each.get("reason") and each["reason"] not in REASONS:
            yield unsupported(f"{at}.reason", each["reason"], REASONS)
    for number, each in enumerate(spec.get("auditAnnotations") or ()):
        at, text = f"spec.auditAnnotations[{number}]", each.get("valueExpression", "")
        if not each.get("key"):
            yield Fault(f"{at}.key", "FieldValueRequired", "Required value")
        yield from faults_of(text, known, f"{at}.valueExpression", "valueExpression is not specified", STRING, NULL)


def condition_faults(spec: Object) -> Iterator[Fault]:
    known = {**VARIABLES, **({"params": DYN} if spec.get("paramKind") else {})}
    for number, each in enumerate(spec.get("matchConditions") or ()):
        at = f"spec.matchConditions[{number}]"
        yield from faults_of(each.get("expression", "").strip(), known, f"{at}.expression", "", BOOL)
        if not each.get("name"):
            yield Fault(f"{at}.name", "FieldValueRequired", "Required value")


def faults_of(text: str, known: Mapping[str, Type], at: str, lacking: str, *wanted: Type) -> Iterator[Fault]:
    """What is wrong with one expression, whose value has to be of one of those types where any are wanted."""
    if not text.strip():
        yield Fault(at, "FieldValueRequired", f"Required value: {lacking}" if lacking else "Required value")
        return
    try:
        found = compiled(text, known).type
    except FoldingError as error:
        yield Fault(at, "InternalError", f"Internal error: program instantiation failed: {error}")
    except CompileError as error:
        yield invalid(at, text, f"compilation failed: {error}")
    else:
        if wanted and found not in wanted:
            listed = [str(each) if each != NULL else "null_type" for each in wanted]
            said = listed[0] if len(listed) == 1 else f"one of [{' '.join(listed)}]"
            yield invalid(at, text, f"must evaluate to {said} but got {found}")


def match_faults(match: Object, path: str) -> Iterator[Fault]:
    for field in ("namespaceSelector", "objectSelector"):
        try:
            label_selector(match.get(field) or {})
        except SelectorError as error:
            yield invalid(f"{path}.{field}", str(match[field]), str(error))
    for field in ("resourceRules", "excludeResourceRules"):
        for number, rule in enumerate(match.get(field) or ()):
            for part in ("operations", "apiGroups", "apiVersions", "resources"):
                if not rule.get(part):
                    yield Fault(f"{path}.{field}[{number}].{part}", "FieldValueRequired", "Required value")


def binding_faults(spec: Object) -> Iterator[Fault]:
    if not spec.get("policyName"):
        yield Fault("spec.policyName", "FieldValueRequired", "Required value")
    if spec.get("matchResources"):
        yield from match_faults(spec["matchResources"], "spec.matchResources")
    yield from reference_faults(spec.get("paramRef"))
    actions = spec.get("validationActions") or []
    if not actions:
        why = "Required value: at least one validation action is required"
        yield Fault("spec.validationActions", "FieldValueRequired", why)
    seen = set()
    for number, each in enumerate(actions):
        at = f"spec.validationActions[{number}]"
        if each not in ACTIONS:
            yield unsupported(at, each, ACTIONS)
        if each in seen:
            yield Fault(at, "FieldValueDuplicate", f'Duplicate value: "{each}"')
        seen.add(each)
    if {"Deny", "Warn"} <= set(actions):
        shown = ",".join(f'"{each}"' for each in actions)
        why = (
            "must not contain both Deny and Warn (repeating the same validation failure information "
            "in the API response and headers serves no purpose)"
        )
        yield Fault("spec.validationActions", "FieldValueInvalid", f"Invalid value: [{shown}]: {why}")


def reference_faults(reference: Object | None) -> Iterator[Fault]:
    if reference is None:
        return
    fields = [field for field in ("name", "selector") if reference.get(field) is not None]
    if not fields:
        why = "Required value: one of name or selector must be specified"
        yield Fault("spec.paramRef", "FieldValueRequired", why)
    for field in fields if len(fields) > 1 else ():
        why = "Forbidden: name and selector are mutually exclusive"
        yield Fault(f"spec.paramRef.{field}", "FieldValueForbidden", why)
    action = reference.get("parameterNotFoundAction")
    if not action:
        yield Fault("spec.paramRef.parameterNotFoundAction", "FieldValueRequired", "Required value")
    elif action not in ("Allow", "Deny"):
        yield unsupported("spec.paramRef.parameterNotFoundAction", action, ("Allow", "Deny"))


def invalid(path: str, value: str, why: str) -> Fault:
    shown = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return Fault(path, "FieldValueInvalid", f'Invalid value: "{shown}": {why}')


def unsupported(path: str, value: Any, known: tuple[str, ...]) -> Fault:
    listed = ", ".join(f'"{each}"' for each in known)
    return Fault(path, "FieldValueNotSupported", f'Unsupported value: "{value or ""}": supported values: {listed}')
