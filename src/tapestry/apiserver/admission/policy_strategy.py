"""Defaulting, validation and type checking of ValidatingAdmissionPolicies and their bindings.

Invalid expressions are rejected. The status lists type errors, which a check against the schemas of the matched
resources finds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tapestry.apiserver.admission.validating_policies import BINDINGS, POLICIES, declared_variables, variables_type
from tapestry.apiserver.core.cel_types import declared_type
from tapestry.apiserver.core.faults import Fault, first_faults, invalid_object
from tapestry.apiserver.core.match_conditions import VARIABLE_TYPES
from tapestry.apiserver.core.requests import WriteRequest
from tapestry.apiserver.core.resource_registry import ResourceInfo, ResourceRegistry
from tapestry.apiserver.core.type_decoders import OBJECT_META
from tapestry.kube.cel.compiler import compile_expression
from tapestry.kube.cel.errors import CompileError, FoldingError
from tapestry.kube.cel.types import BOOL, DYN, NULL, STRING, Type
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.selectors import SelectorError, label_selector

ACTIONS = ("Audit", "Deny", "Warn")
REASONS = ("Forbidden", "Invalid", "RequestEntityTooLarge")
MAX_TYPES = 10
"""Maximum number of resources that the expressions of a policy are checked against."""
MAX_NESTING = 12


@dataclass(frozen=True)
class PolicyStrategy:
    """Pipeline steps for policies and bindings."""

    registry: ResourceRegistry
    types: Mapping[str, Any]
    """The published schemas of built-in kinds."""

    async def default(self, request: WriteRequest, _: Object | None, new: Object) -> Object:
        field = MATCH_FIELDS[request.target.info.storage]
        spec = dict(new.get("spec") or {})
        if spec.get(field) is not None:
            spec[field] = with_match_defaults(spec[field])
        if request.target.info.storage == POLICIES:
            spec.setdefault("failurePolicy", "Fail")
        return {**new, "spec": spec}

    async def validate(self, request: WriteRequest, _: Object | None, new: Object) -> Object:
        storage = request.target.info.storage
        if request.target.subresource:
            return new
        faults = first_faults(policy_faults(new["spec"]) if storage == POLICIES else binding_faults(new["spec"]))
        if faults:
            raise invalid_object(request.target.info.resource, name_of(new), faults)
        return self.with_status(new) if storage == POLICIES else new

    def with_status(self, policy: Object) -> Object:
        generation = policy["metadata"].get("generation", 1)
        status = policy.get("status") or {}
        if status.get("observedGeneration") == generation:
            return policy
        warnings = list(self.type_warnings(policy["spec"]))
        type_checking = {"expressionWarnings": warnings} if warnings else {}
        return {**policy, "status": {**status, "observedGeneration": generation, "typeChecking": type_checking}}

    # -- type checking

    def type_warnings(self, spec: Object) -> Iterator[Object]:
        kinds = [(info, self.resource_type(info)) for info in self.named_resources(spec)]
        params = self.params_type(spec)
        for number, validation in enumerate(spec.get("validations") or ()):
            for name in ("expression", "messageExpression"):
                errors = [
                    f"{gvk(info)}: {error}\n"
                    for info, object_type in kinds
                    if validation.get(name) and (error := self.type_error(spec, validation[name], object_type, params))
                ]
                if errors:
                    yield {"fieldRef": f"spec.validations[{number}].{name}", "warning": "\n".join(errors)}

    def type_error(self, spec: Object, text: str, object_type: Type, params: Type | None) -> str:
        """The error of an expression if `object` has this type; empty if there is none."""
        scope = {**declared_variables(spec), "object": object_type, "oldObject": object_type}
        if params is not None:
            scope["params"] = params
        variables: dict[str, Type] = {}
        for variable in spec.get("variables") or ():
            variables[variable["name"]] = compiled_type(
                variable["expression"], {**scope, "variables": variables_type(variables)}
            )
        try:
            compile_expression(text, {**scope, "variables": variables_type(variables)})
        except CompileError as error:
            return f"compilation failed: {error}"
        return ""

    def named_resources(self, spec: Object) -> list[ResourceInfo]:
        """The resources that the rules of a policy name. Wildcards are not expanded."""
        infos: dict[tuple[str, str, str], ResourceInfo] = {}
        for rule in value_at(spec, "matchConstraints", "resourceRules", default=[]):
            if any("*" in (rule.get(field) or ()) for field in ("apiGroups", "apiVersions")):
                continue
            for group in sorted(rule.get("apiGroups") or ()):
                for version in sorted(rule.get("apiVersions") or ()):
                    for plural in sorted(rule.get("resources") or ()):
                        info = self.registry.get(group, version, plural)
                        if info is not None:
                            infos[group, version, info.resource.kind] = info
        return [info for _, info in sorted(infos.items())][:MAX_TYPES]

    def params_type(self, spec: Object) -> Type | None:
        kind = spec.get("paramKind")
        if not kind:
            return None
        for info in self.registry:
            if (info.resource.api_version, info.resource.kind) == (kind["apiVersion"], kind["kind"]):
                return self.resource_type(info)
        return None

    def resource_type(self, info: ResourceInfo) -> Type:
        if info.is_custom:
            metadata = self.resolved_schema({"$ref": OBJECT_META})
            properties = {**(info.schema.get("properties") or {}), "metadata": metadata, **TYPE_FIELDS}
            schema: Object = {**info.schema, "type": "object", "properties": properties}
        else:
            schema = self.resolved_schema({"$ref": info.schema_name})
        return declared_type(schema, info.resource.kind) or DYN

    def resolved_schema(self, schema: Any, depth: int = 0) -> Object:
        """A published schema with its references resolved. Levels below MAX_NESTING accept any value."""
        if depth > MAX_NESTING:
            return {"x-kubernetes-int-or-string": True}
        if "$ref" in schema:
            return self.resolved_schema(self.types[schema["$ref"]], depth + 1)
        resolved = dict(schema)
        if "properties" in schema:
            resolved["properties"] = {
                name: self.resolved_schema(each, depth + 1) for name, each in schema["properties"].items()
            }
        for field in ("items", "additionalProperties"):
            if isinstance(schema.get(field), dict):
                resolved[field] = self.resolved_schema(schema[field], depth + 1)
        return resolved


MATCH_FIELDS = {POLICIES: "matchConstraints", BINDINGS: "matchResources"}
TYPE_FIELDS = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}


def gvk(info: ResourceInfo) -> str:
    resource = info.resource
    return f"{resource.group}/{resource.version}, Kind={resource.kind}"


def compiled_type(text: str, variable_types: Mapping[str, Type]) -> Type:
    try:
        return compile_expression(text, variable_types).type
    except CompileError:
        return DYN


def with_match_defaults(match: Object) -> Object:
    result = {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}, **match}
    for field in ("resourceRules", "excludeResourceRules"):
        if match.get(field):
            result[field] = [{"scope": "*", **rule} for rule in match[field]]
    return result


# -- validation


def policy_faults(spec: Object) -> Iterator[Fault]:
    if spec.get("failurePolicy") not in ("Fail", "Ignore"):
        yield unsupported_value("spec.failurePolicy", spec.get("failurePolicy"), ("Fail", "Ignore"))
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
        message = "Required value: validations or auditAnnotations must contain at least one item"
        yield Fault("spec.validations", "FieldValueRequired", message)
        yield Fault("spec.auditAnnotations", "FieldValueRequired", message)
    yield from expression_faults(spec)


def expression_faults(spec: Object) -> Iterator[Fault]:
    declared, variables = dict(declared_variables(spec)), dict[str, Type]()
    for number, each in enumerate(spec.get("variables") or ()):
        path, scope = f"spec.variables[{number}].expression", {**declared, "variables": variables_type(variables)}
        yield from compile_faults(each.get("expression", ""), scope, path, "expression is not specified")
        variables[each.get("name", "")] = compiled_type(each.get("expression", ""), scope)
    if variables:
        declared["variables"] = variables_type(variables)
    message_scope = {name: each for name, each in declared.items() if not name.startswith("authorizer")}
    for number, each in enumerate(spec.get("validations") or ()):
        path = f"spec.validations[{number}]"
        yield from compile_faults(
            each.get("expression", ""), declared, f"{path}.expression", "expression is not specified", BOOL
        )
        if each.get("messageExpression"):
            yield from compile_faults(each["messageExpression"], message_scope, f"{path}.messageExpression", "", STRING)
        if "\n" in str(each.get("message") or "").strip():
            yield invalid_text(f"{path}.message", each["message"], "must not contain line breaks")
        if each.get("reason") and each["reason"] not in REASONS:
            yield unsupported_value(f"{path}.reason", each["reason"], REASONS)
    for number, each in enumerate(spec.get("auditAnnotations") or ()):
        path, text = f"spec.auditAnnotations[{number}]", each.get("valueExpression", "")
        if not each.get("key"):
            yield Fault(f"{path}.key", "FieldValueRequired", "Required value")
        yield from compile_faults(
            text, declared, f"{path}.valueExpression", "valueExpression is not specified", STRING, NULL
        )


def condition_faults(spec: Object) -> Iterator[Fault]:
    scope = {**VARIABLE_TYPES, **({"params": DYN} if spec.get("paramKind") else {})}
    for number, each in enumerate(spec.get("matchConditions") or ()):
        path = f"spec.matchConditions[{number}]"
        yield from compile_faults(each.get("expression", "").strip(), scope, f"{path}.expression", "", BOOL)
        if not each.get("name"):
            yield Fault(f"{path}.name", "FieldValueRequired", "Required value")


def compile_faults(
    text: str, variable_types: Mapping[str, Type], field_path: str, missing_message: str, *allowed_types: Type
) -> Iterator[Fault]:
    """The errors of one expression. Its type must be one of `allowed_types` if there are any."""
    if not text.strip():
        yield Fault(
            field_path,
            "FieldValueRequired",
            f"Required value: {missing_message}" if missing_message else "Required value",
        )
        return
    try:
        result_type = compile_expression(text, variable_types).type
    except FoldingError as error:
        yield Fault(field_path, "InternalError", f"Internal error: program instantiation failed: {error}")
    except CompileError as error:
        yield invalid_text(field_path, text, f"compilation failed: {error}")
    else:
        if allowed_types and result_type not in allowed_types:
            names = [str(each) if each != NULL else "null_type" for each in allowed_types]
            expected = names[0] if len(names) == 1 else f"one of [{' '.join(names)}]"
            yield invalid_text(field_path, text, f"must evaluate to {expected} but got {result_type}")


def match_faults(match: Object, path: str) -> Iterator[Fault]:
    for field in ("namespaceSelector", "objectSelector"):
        try:
            label_selector(match.get(field) or {})
        except SelectorError as error:
            yield invalid_text(f"{path}.{field}", str(match[field]), str(error))
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
        message = "Required value: at least one validation action is required"
        yield Fault("spec.validationActions", "FieldValueRequired", message)
    seen = set()
    for number, each in enumerate(actions):
        path = f"spec.validationActions[{number}]"
        if each not in ACTIONS:
            yield unsupported_value(path, each, ACTIONS)
        if each in seen:
            yield Fault(path, "FieldValueDuplicate", f'Duplicate value: "{each}"')
        seen.add(each)
    if {"Deny", "Warn"} <= set(actions):
        listed = ",".join(f'"{each}"' for each in actions)
        message = (
            "must not contain both Deny and Warn (repeating the same validation failure information "
            "in the API response and headers serves no purpose)"
        )
        yield Fault("spec.validationActions", "FieldValueInvalid", f"Invalid value: [{listed}]: {message}")


def reference_faults(reference: Object | None) -> Iterator[Fault]:
    if reference is None:
        return
    fields = [field for field in ("name", "selector") if reference.get(field) is not None]
    if not fields:
        message = "Required value: one of name or selector must be specified"
        yield Fault("spec.paramRef", "FieldValueRequired", message)
    for field in fields if len(fields) > 1 else ():
        message = "Forbidden: name and selector are mutually exclusive"
        yield Fault(f"spec.paramRef.{field}", "FieldValueForbidden", message)
    action = reference.get("parameterNotFoundAction")
    if not action:
        yield Fault("spec.paramRef.parameterNotFoundAction", "FieldValueRequired", "Required value")
    elif action not in ("Allow", "Deny"):
        yield unsupported_value("spec.paramRef.parameterNotFoundAction", action, ("Allow", "Deny"))


def invalid_text(path: str, value: str, message: str) -> Fault:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return Fault(path, "FieldValueInvalid", f'Invalid value: "{escaped}": {message}')


def unsupported_value(path: str, value: Any, supported: tuple[str, ...]) -> Fault:
    listed = ", ".join(f'"{each}"' for each in supported)
    return Fault(path, "FieldValueNotSupported", f'Unsupported value: "{value or ""}": supported values: {listed}')
