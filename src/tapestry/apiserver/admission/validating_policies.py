"""ValidatingAdmissionPolicies: CEL expressions of administrators that writes must satisfy.

A policy defines the validations. Its bindings define where it applies, with which parameters, and the actions on a
failure. Both are compiled when they change, and unchanged policies are not compiled again. Without policies, a write
costs one comparison.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import structs

from tapestry.apiserver.admission.expression_variables import expression_variables
from tapestry.apiserver.admission.matching import (
    AdmissionAttributes,
    EquivalentResources,
    MatchCriteria,
    admission_attributes,
    policy_criteria,
    posted_attributes,
)
from tapestry.apiserver.admission.policy_parameters import ParameterError, PolicyParameters
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.match_conditions import (
    NAMESPACE_TYPE,
    VARIABLE_TYPES,
    MatchConditions,
    compile_conditions,
    evaluate_metered,
)
from tapestry.apiserver.core.requests import Authorize, Call, CallOrigin, Target, WriteRequest
from tapestry.apiserver.core.resource_registry import ResourceRegistry
from tapestry.apiserver.core.responses import ApiResponse, ResourceHandler, response_with_warnings
from tapestry.apiserver.core.store import Store
from tapestry.apiserver.core.workers import run_if_large
from tapestry.kube.budget import charge
from tapestry.kube.cel.compiler import Program, compile_expression
from tapestry.kube.cel.errors import CompileError, CostExceeded, EvaluationError, Meter
from tapestry.kube.cel.library.timestamps import parse_timestamp
from tapestry.kube.cel.types import DYN, Field, Type
from tapestry.kube.errors import ERRORS_BY_CODE, ApiError
from tapestry.kube.objects import Object, labels_of, name_of, uid_of
from tapestry.kube.resources import NAMESPACES, Resource
from tapestry.kube.selectors import SelectorError

POLICIES = "validatingadmissionpolicies.admissionregistration.k8s.io"
BINDINGS = "validatingadmissionpolicybindings.admissionregistration.k8s.io"
POLICY_COST_LIMIT = 3_000_000
MAX_MESSAGE, MAX_AUDIT_ANNOTATION = 5 * 1024, 10 * 1024
FAILURE_ANNOTATION = "validation.policy.admission.k8s.io/validation_failure"
"""Audit annotation with the first validation failure that is to be audited."""
REASON_CODES = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413, "Invalid": 422}
EXCLUDED_RESOURCES = frozenset(
    {
        *("tokenreviews.authentication.k8s.io", "selfsubjectreviews.authentication.k8s.io"),
        *(f"{kind}accessreviews.authorization.k8s.io" for kind in ("subject", "selfsubject", "localsubject")),
        "selfsubjectrulesreviews.authorization.k8s.io",
        *(f"{kind}admissionpolicies.admissionregistration.k8s.io" for kind in ("validating", "mutating")),
        *(f"{kind}admissionpolicybindings.admissionregistration.k8s.io" for kind in ("validating", "mutating")),
    }
)
"""Resources that no policy applies to: a policy that rejects every write could otherwise not be removed."""


@dataclass(frozen=True, slots=True)
class Validation:
    source: Object
    program: Program
    message: Program | None


@dataclass(frozen=True, slots=True)
class CompiledPolicy:
    name: str
    criteria: MatchCriteria
    conditions: MatchConditions
    variables: tuple[tuple[str, Program], ...]
    validations: tuple[Validation, ...]
    audit_annotations: tuple[tuple[str, Program], ...]
    """Pairs of key and program."""
    param_kind: Object | None
    ignores_failures: bool
    """The write is allowed if an expression cannot be evaluated."""


@dataclass(frozen=True, slots=True)
class CompiledBinding:
    name: str
    criteria: MatchCriteria
    actions: tuple[str, ...]
    param_ref: Object | None


@dataclass(frozen=True, slots=True)
class PolicyDenial:
    """A validation failure of a policy."""

    message: str
    reason: str = "Invalid"
    index: int = 0
    """Index of the validation."""


@dataclass(frozen=True, slots=True)
class AuditAnnotation:
    """An audit annotation that a policy adds to a write."""

    key: str
    value: str


def declared_variables(spec: Object) -> Mapping[str, Type]:
    """The variables of a policy's expressions, except `variables`."""
    params = {"params": DYN} if spec.get("paramKind") else {}
    return {**VARIABLE_TYPES, "namespaceObject": NAMESPACE_TYPE, **params}


def variables_type(types: Mapping[str, Type]) -> Type:
    charge(len(types))
    return Type("kubernetes.variables", fields={name: Field(name, each) for name, each in types.items()})


def compile_policy(obj: Object) -> CompiledPolicy:
    """Compile a policy, or raise CompileError or SelectorError."""
    spec = obj["spec"]
    scope, variable_types, variables = dict(declared_variables(spec)), dict[str, Type](), []
    for each in spec.get("variables") or ():
        program = compile_expression(each["expression"], {**scope, "variables": variables_type(variable_types)})
        variable_types[each["name"]] = program.type
        variables.append((each["name"], program))
    scope["variables"] = variables_type(variable_types)
    message_scope = {name: each for name, each in scope.items() if not name.startswith("authorizer")}
    validations = [
        Validation(
            each,
            compile_expression(each["expression"], scope),
            compile_expression(each["messageExpression"], message_scope) if each.get("messageExpression") else None,
        )
        for each in spec.get("validations") or ()
    ]
    conditions = {name: each for name, each in scope.items() if name not in ("variables", "namespaceObject")}
    return CompiledPolicy(
        name_of(obj),
        policy_criteria(spec.get("matchConstraints")),
        compile_conditions(spec.get("matchConditions") or (), conditions),
        tuple(variables),
        tuple(validations),
        tuple(
            (each.get("key", ""), compile_expression(each.get("valueExpression", ""), scope))
            for each in spec.get("auditAnnotations") or ()
        ),
        spec.get("paramKind"),
        spec.get("failurePolicy") == "Ignore",
    )


def compile_binding(obj: Object) -> CompiledBinding:
    """Compile a binding, or raise SelectorError."""
    spec = obj["spec"]
    actions = tuple(spec.get("validationActions") or ())
    return CompiledBinding(name_of(obj), policy_criteria(spec.get("matchResources")), actions, spec.get("paramRef"))


class LazyVariables(dict[str, Any]):
    """The variables of a policy, evaluated on first use."""

    def __init__(self, programs: tuple[tuple[str, Program], ...], others: Mapping[str, Any], meter: Meter) -> None:
        super().__init__()
        self._programs = dict(programs)
        self._others = others
        self._meter = meter

    def __contains__(self, name: object) -> bool:
        return name in self._programs

    def __missing__(self, name: str) -> Any:
        value = evaluate_metered(self._programs[name], {**self._others, "variables": self}, self._meter)
        self[name] = value
        return value


class ValidatingPolicies:
    """An admission step that evaluates every policy that is bound to the object. It runs before the webhooks."""

    def __init__(self, store: Store, registry: ResourceRegistry, authorize: Authorize) -> None:
        self._store = store
        self._authorize = authorize
        self._equivalents = EquivalentResources(registry)
        self._parameters = PolicyParameters(store, registry)
        self._read_revisions: tuple[int, int] = (-1, -1)
        self._compiled: dict[tuple[str, int], CompiledPolicy] = {}
        self._bound: list[tuple[CompiledPolicy, list[CompiledBinding]]] = []

    async def __call__(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        if bound := await self.bound_policies():
            await self.check(bound, request, admission_attributes(request, old, new))
        return new

    async def validate_delete(self, request: WriteRequest, old: Object) -> None:
        if bound := await self.bound_policies():
            await self.check(bound, request, admission_attributes(request, old, None))

    async def admit(self, request: WriteRequest, attributes: AdmissionAttributes) -> None:
        """Check a request that does not write a stored object: a stream or a proxied request."""
        if request.origin is not CallOrigin.SYNCER and (bound := await self.bound_policies()):
            await self.check(bound, request, attributes)

    def admitted_handler(self, handler: ResourceHandler) -> ResourceHandler:
        """Wrap a handler of posts to a subresource with admission by policies."""

        async def admit_and_handle(call: Call, target: Target) -> ApiResponse:
            bound = await self.bound_policies()
            if not bound:
                return await handler(call, target)
            request, attributes = posted_attributes(call, target)
            await self.check(bound, request, attributes)
            response = await handler(call, target)
            return structs.replace(
                response, headers={**response.headers, **response_with_warnings(request, 0, b"").headers}
            )

        return admit_and_handle

    async def bound_policies(self) -> list[tuple[CompiledPolicy, list[CompiledBinding]]]:
        """The policies that have bindings, compiled if any changed."""
        while (
            latest := (self._store.changed_revision(POLICIES), self._store.changed_revision(BINDINGS))
        ) != self._read_revisions:
            by_policy: dict[str, list[CompiledBinding]] = {}
            for obj in self._objects(BINDINGS):
                by_policy.setdefault(obj["spec"]["policyName"], []).append(compile_binding(obj))
            policies = {(uid_of(obj), obj["metadata"].get("generation", 0)): obj for obj in self._objects(POLICIES)}
            compiled: dict[tuple[str, int], CompiledPolicy] = {}
            for key, obj in policies.items():
                if name_of(obj) in by_policy:
                    size = sum(len(version.raw) for version in self._store.list_objects(POLICIES))
                    compiled_policy = self._compiled.get(key) or await run_if_large(size, compiled_or_none, obj)
                    if compiled_policy is not None:
                        compiled[key] = compiled_policy
            self._compiled = compiled
            self._bound = [(policy, by_policy[policy.name]) for policy in compiled.values()]
            self._read_revisions = latest
        return self._bound

    def _objects(self, resource: str) -> Iterator[Any]:
        return (msgspec.json.decode(version.raw) for version in self._store.list_objects(resource))

    def stored_namespace(self, name: str) -> Object | None:
        version = self._store.get("namespaces", "", name)
        return msgspec.json.decode(version.raw) if version is not None else None

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        return labels_of(self.stored_namespace(name) or {"metadata": {}})

    async def check(
        self,
        policies: list[tuple[CompiledPolicy, list[CompiledBinding]]],
        request: WriteRequest,
        attributes: AdmissionAttributes,
    ) -> None:
        if request.target.info.resource.name in EXCLUDED_RESOURCES:
            return
        denied: list[tuple[CompiledPolicy, CompiledBinding, PolicyDenial]] = []
        annotations: dict[str, list[str]] = {}
        for policy, bound in policies:
            matched_resource = policy.criteria.matches(attributes, self._equivalents, self.namespace_labels)
            if matched_resource is None:
                continue
            for binding in bound:
                if binding.criteria.matches(attributes, self._equivalents, self.namespace_labels) is None:
                    continue
                for result in await self.evaluate_binding(policy, binding, attributes, matched_resource):
                    if isinstance(result, AuditAnnotation):
                        annotations.setdefault(f"{policy.name}/{result.key}", []).append(result.value)
                    elif apply_actions(request, policy, binding, result):
                        denied.append((policy, binding, result))
        request.audit_annotations.update({key: ", ".join(dict.fromkeys(values)) for key, values in annotations.items()})
        if denied:
            raise policy_denied_error(attributes, *denied[0])

    async def evaluate_binding(
        self,
        policy: CompiledPolicy,
        binding: CompiledBinding,
        attributes: AdmissionAttributes,
        matched_resource: Resource,
    ) -> list[PolicyDenial | AuditAnnotation]:
        """Evaluate a policy for a write, once for each parameter of the binding."""
        try:
            parameters = self._parameters.resolve(policy.param_kind, binding.param_ref, attributes.namespace)
        except ParameterError as error:
            return [] if policy.ignores_failures else [PolicyDenial(f"failed to configure binding: {error}")]
        is_namespace = attributes.resource.name == NAMESPACES.name
        namespace = self.stored_namespace(attributes.namespace) if attributes.namespace and not is_namespace else None
        results: list[PolicyDenial | AuditAnnotation] = []
        for params in parameters:
            write_variables = expression_variables(attributes, matched_resource, self._authorize)
            variables = {**write_variables, "params": params, "namespaceObject": with_timestamps(namespace)}
            results += await run_if_large(0, policy_results, policy, variables)
        return results


def apply_actions(
    request: WriteRequest, policy: CompiledPolicy, binding: CompiledBinding, denial: PolicyDenial
) -> bool:
    """Apply the actions of a binding to a denial. Returns whether the write is denied."""
    if "Warn" in binding.actions:
        request.warnings.append(
            f"Validation failed for ValidatingAdmissionPolicy '{policy.name}' "
            f"with binding '{binding.name}': {denial.message}"
        )
    if "Audit" in binding.actions:
        failure = {
            "message": denial.message,
            "policy": policy.name,
            "binding": binding.name,
            "expressionIndex": denial.index,
            "validationActions": binding.actions,
        }
        request.audit_annotations.setdefault(FAILURE_ANNOTATION, msgspec.json.encode([failure]).decode())
    return "Deny" in binding.actions


def with_timestamps(namespace: Object | None) -> Object | None:
    """The namespace with parsed timestamps, as its declared type requires."""
    if namespace is None:
        return None
    metadata = namespace["metadata"]
    timestamps = {
        key: parse_timestamp(metadata[key]) for key in ("creationTimestamp", "deletionTimestamp") if key in metadata
    }
    return {**namespace, "metadata": {**metadata, **timestamps}}


def compiled_or_none(obj: Object) -> CompiledPolicy | None:
    """The compiled policy, or None if it does not compile, which an older server may have accepted."""
    try:
        return compile_policy(obj)
    except (CompileError, SelectorError):
        return None


def policy_results(policy: CompiledPolicy, variables: dict[str, Any]) -> list[PolicyDenial | AuditAnnotation]:
    return list(evaluate_policy(policy, variables))


def evaluate_policy(policy: CompiledPolicy, variables: dict[str, Any]) -> Iterator[PolicyDenial | AuditAnnotation]:
    try:
        if not policy.conditions.all_hold(variables):
            return
    except EvaluationError as error:
        if not policy.ignores_failures:
            yield PolicyDenial(str(error))
        return
    meter = Meter(POLICY_COST_LIMIT)
    scope = {**variables, "variables": LazyVariables(policy.variables, variables, meter)}
    for index, validation in enumerate(policy.validations):
        try:
            if evaluate_metered(validation.program, scope, meter) is not True:
                yield PolicyDenial(
                    validation_message(validation, scope, meter), validation.source.get("reason") or "Invalid", index
                )
        except (EvaluationError, CostExceeded) as error:
            if not policy.ignores_failures:
                yield PolicyDenial(str(error), index=index)
    for key, program in policy.audit_annotations:
        try:
            value = evaluate_metered(program, scope, meter)
        except (EvaluationError, CostExceeded) as error:
            if not policy.ignores_failures:
                yield PolicyDenial(str(error))
            continue
        if isinstance(value, str) and (text := value.strip()[:MAX_AUDIT_ANNOTATION]):
            yield AuditAnnotation(key, text)


def validation_message(validation: Validation, variables: Mapping[str, Any], meter: Meter) -> str:
    value: Any = None
    if validation.message is not None:
        try:
            value = evaluate_metered(validation.message, variables, meter)
        except (EvaluationError, CostExceeded):
            value = None
    text = value.strip() if isinstance(value, str) else ""
    if text and len(text) <= MAX_MESSAGE and "\n" not in text:
        return str(text)
    source = validation.source
    return str(source.get("message") or "").strip() or f"failed expression: {source['expression'].strip()}"


def policy_denied_error(
    attributes: AdmissionAttributes, policy: CompiledPolicy, binding: CompiledBinding, denial: PolicyDenial
) -> ApiError:
    reason = f"ValidatingAdmissionPolicy '{policy.name}' with binding '{binding.name}' denied request: {denial.message}"
    resource, code = attributes.resource, REASON_CODES.get(denial.reason, 422)
    details = {**api_errors.status_details(resource, attributes.name), "causes": [{"message": reason}]}
    text = f'{resource.name} "{attributes.name}" is forbidden: {reason}'
    return ERRORS_BY_CODE.get(code, ApiError)(code, denial.reason, text, details=details)
