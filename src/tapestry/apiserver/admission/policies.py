"""ValidatingAdmissionPolicies: what administrators have against writes, in expressions.

A policy says what is wrong, its bindings say where and with which parameters it holds and what follows.  Both are
compiled when they have changed, and a policy that has not is not compiled again; where there are none, a write pays
for a comparison.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tapestry.apiserver import refusals
from tapestry.apiserver.admission.conditions import (
    NAMESPACE,
    VARIABLES,
    Conditions,
    bindings,
    conditions_of,
    evaluated,
)
from tapestry.apiserver.admission.matching import Attempt, Criteria, Equivalents, attempt_of, policy_criteria
from tapestry.apiserver.admission.parameters import ParameterError, Parameters
from tapestry.apiserver.rows import Rows
from tapestry.apiserver.server import Authorize
from tapestry.apiserver.storage.store import Store
from tapestry.apiserver.verbs import Request
from tapestry.apiserver.workers import run_if_large
from tapestry.kube.budget import charge
from tapestry.kube.cel.compiling import Program, compiled
from tapestry.kube.cel.errors import CompileError, CostExceeded, EvaluationError, Meter
from tapestry.kube.cel.library.moments import moment
from tapestry.kube.cel.types import DYN, Field, Type
from tapestry.kube.errors import BY_CODE, ApiError
from tapestry.kube.objects import Object, labels_of, name_of, uid_of
from tapestry.kube.resources import NAMESPACES, Resource
from tapestry.kube.selectors import SelectorError

POLICIES = "validatingadmissionpolicies.admissionregistration.k8s.io"
BINDINGS = "validatingadmissionpolicybindings.admissionregistration.k8s.io"
COST_OF_POLICY = 3_000_000
MAX_MESSAGE, MAX_REMARK = 5 * 1024, 10 * 1024
FAILURE = "validation.policy.admission.k8s.io/validation_failure"
"""The audit annotation that tells of the first thing that a policy has against a write and that is to be audited."""
CODES = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413, "Invalid": 422}
EXCLUDED = frozenset(
    {
        *("tokenreviews.authentication.k8s.io", "selfsubjectreviews.authentication.k8s.io"),
        *(f"{kind}accessreviews.authorization.k8s.io" for kind in ("subject", "selfsubject", "localsubject")),
        "selfsubjectrulesreviews.authorization.k8s.io",
        *(f"{kind}admissionpolicies.admissionregistration.k8s.io" for kind in ("validating", "mutating")),
        *(f"{kind}admissionpolicybindings.admissionregistration.k8s.io" for kind in ("validating", "mutating")),
    }
)
"""Resources that no policy is about: one that refused every write could not be taken back."""


@dataclass(frozen=True, slots=True)
class Validation:
    source: Object
    program: Program
    message: Program | None


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    criteria: Criteria
    conditions: Conditions
    variables: tuple[tuple[str, Program], ...]
    validations: tuple[Validation, ...]
    remarks: tuple[tuple[str, Program], ...]
    """What it has to say for the audit log, each by its key."""
    param_kind: Object | None
    forgiving: bool
    """Whether what cannot be evaluated is let through."""


@dataclass(frozen=True, slots=True)
class Binding:
    name: str
    criteria: Criteria
    actions: tuple[str, ...]
    param_ref: Object | None


@dataclass(frozen=True, slots=True)
class Denial:
    """What a policy has against a write."""

    message: str
    reason: str = "Invalid"
    index: int = 0
    """Of the validation."""


@dataclass(frozen=True, slots=True)
class Remark:
    """What a policy says of a write for the audit log."""

    key: str
    value: str


def declared_variables(spec: Object) -> Mapping[str, Type]:
    """What expressions of a policy can ask for, but for its own variables."""
    params = {"params": DYN} if spec.get("paramKind") else {}
    return {**VARIABLES, "namespaceObject": NAMESPACE, **params}


def composed(found: Mapping[str, Type]) -> Type:
    """The type of `variables`."""
    charge(len(found))
    return Type("kubernetes.variables", fields={name: Field(name, each) for name, each in found.items()})


def policy_of(obj: Object) -> Policy:
    """Raises CompileError or SelectorError."""
    spec = obj["spec"]
    known, found, variables = dict(declared_variables(spec)), dict[str, Type](), []
    for each in spec.get("variables") or ():
        program = compiled(each["expression"], {**known, "variables": composed(found)})
        found[each["name"]] = program.type
        variables.append((each["name"], program))
    known["variables"] = composed(found)
    words = {name: each for name, each in known.items() if not name.startswith("authorizer")}
    validations = [
        Validation(
            each,
            compiled(each["expression"], known),
            compiled(each["messageExpression"], words) if each.get("messageExpression") else None,
        )
        for each in spec.get("validations") or ()
    ]
    conditions = {name: each for name, each in known.items() if name not in ("variables", "namespaceObject")}
    return Policy(
        name_of(obj),
        policy_criteria(spec.get("matchConstraints")),
        conditions_of(spec.get("matchConditions") or (), conditions),
        tuple(variables),
        tuple(validations),
        tuple(
            (each.get("key", ""), compiled(each.get("valueExpression", ""), known))
            for each in spec.get("auditAnnotations") or ()
        ),
        spec.get("paramKind"),
        spec.get("failurePolicy") == "Ignore",
    )


def binding_of(obj: Object) -> Binding:
    """Raises SelectorError."""
    spec = obj["spec"]
    actions = tuple(spec.get("validationActions") or ())
    return Binding(name_of(obj), policy_criteria(spec.get("matchResources")), actions, spec.get("paramRef"))


class Composed(dict[str, Any]):
    """The variables of a policy, each evaluated when it is asked for, and once."""

    def __init__(self, programs: tuple[tuple[str, Program], ...], others: Mapping[str, Any], left: Meter) -> None:
        super().__init__()
        self._programs = dict(programs)
        self._others = others
        self._left = left

    def __contains__(self, name: object) -> bool:
        return name in self._programs

    def __missing__(self, name: str) -> Any:
        found = evaluated(self._programs[name], {**self._others, "variables": self}, self._left)
        self[name] = found
        return found


class Policies:
    """A step, the last but webhooks: every policy that is bound to the object has its say."""

    def __init__(self, store: Store, rows: Rows, authorize: Authorize) -> None:
        self._store = store
        self._authorize = authorize
        self._equivalents = Equivalents(rows)
        self._parameters = Parameters(store, rows)
        self._read: tuple[int, int] = (-1, -1)
        self._compiled: dict[tuple[str, int], Policy] = {}
        self._bound: list[tuple[Policy, list[Binding]]] = []

    async def __call__(self, request: Request, old: Object | None, new: Object | None) -> Object:
        if bound := await self.bound():
            await self.check(bound, request, old, new)
        return new if new is not None else old or {}

    async def bound(self) -> list[tuple[Policy, list[Binding]]]:
        """The policies that hold somewhere, as of the last change."""
        while (latest := (self._store.changed_at(POLICIES), self._store.changed_at(BINDINGS))) != self._read:
            by_policy: dict[str, list[Binding]] = {}
            for obj in self._objects(BINDINGS):
                by_policy.setdefault(obj["spec"]["policyName"], []).append(binding_of(obj))
            policies = {(uid_of(obj), obj["metadata"].get("generation", 0)): obj for obj in self._objects(POLICIES)}
            compiled: dict[tuple[str, int], Policy] = {}
            for key, obj in policies.items():
                if name_of(obj) in by_policy:
                    size = sum(len(version.raw) for version in self._store.every(POLICIES))
                    found = self._compiled.get(key) or await run_if_large(size, usable, obj)
                    if found is not None:
                        compiled[key] = found
            self._compiled = compiled
            self._bound = [(policy, by_policy[policy.name]) for policy in compiled.values()]
            self._read = latest
        return self._bound

    def _objects(self, resource: str) -> Iterator[Any]:
        return (msgspec.json.decode(version.raw) for version in self._store.every(resource))

    def namespace(self, name: str) -> Object | None:
        version = self._store.get("namespaces", "", name)
        return msgspec.json.decode(version.raw) if version is not None else None

    def labels(self, name: str) -> Mapping[str, str]:
        return labels_of(self.namespace(name) or {"metadata": {}})

    async def check(
        self,
        every: list[tuple[Policy, list[Binding]]],
        request: Request,
        old: Object | None,
        new: Object | None,
    ) -> None:
        if request.target.row.resource.name in EXCLUDED:
            return
        attempt = attempt_of(request, old, new)
        denied: list[tuple[Policy, Binding, Denial]] = []
        remarks: dict[str, list[str]] = {}
        for policy, bound in every:
            known_as = policy.criteria.matches(attempt, self._equivalents, self.labels)
            if known_as is None:
                continue
            for binding in bound:
                if binding.criteria.matches(attempt, self._equivalents, self.labels) is None:
                    continue
                for found in await self.said(policy, binding, attempt, known_as):
                    if isinstance(found, Remark):
                        remarks.setdefault(f"{policy.name}/{found.key}", []).append(found.value)
                    elif follow(request, policy, binding, found):
                        denied.append((policy, binding, found))
        request.notes.update({key: ", ".join(dict.fromkeys(values)) for key, values in remarks.items()})
        if denied:
            raise refusal(attempt, *denied[0])

    async def said(
        self, policy: Policy, binding: Binding, attempt: Attempt, known_as: Resource
    ) -> list[Denial | Remark]:
        """What a policy says to an attempt, with each of the parameters that a binding gives it."""
        try:
            parameters = self._parameters.of(policy.param_kind, binding.param_ref, attempt.namespace)
        except ParameterError as error:
            return [] if policy.forgiving else [Denial(f"failed to configure binding: {error}")]
        is_namespace = attempt.resource.name == NAMESPACES.name
        namespace = self.namespace(attempt.namespace) if attempt.namespace and not is_namespace else None
        found: list[Denial | Remark] = []
        for each in parameters:
            given = bindings(attempt, known_as, self._authorize)
            variables = {**given, "params": each, "namespaceObject": dated(namespace)}
            found += await run_if_large(0, verdicts, policy, variables)
        return found


def follow(request: Request, policy: Policy, binding: Binding, denial: Denial) -> bool:
    """What follows from a denial, as its binding wants it; whether the write is refused."""
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
        request.notes.setdefault(FAILURE, msgspec.json.encode([failure]).decode())
    return "Deny" in binding.actions


def dated(namespace: Object | None) -> Object | None:
    """A namespace as its declared type has it: with moments instead of texts."""
    if namespace is None:
        return None
    metadata = namespace["metadata"]
    moments = {key: moment(metadata[key]) for key in ("creationTimestamp", "deletionTimestamp") if key in metadata}
    return {**namespace, "metadata": {**metadata, **moments}}


def usable(obj: Object) -> Policy | None:
    """The policy, unless it was written before what is asked of one now."""
    try:
        return policy_of(obj)
    except (CompileError, SelectorError):
        return None


def verdicts(policy: Policy, variables: dict[str, Any]) -> list[Denial | Remark]:
    return list(verdict(policy, variables))


def verdict(policy: Policy, variables: dict[str, Any]) -> Iterator[Denial | Remark]:
    try:
        if not policy.conditions.hold(variables):
            return
    except EvaluationError as error:
        if not policy.forgiving:
            yield Denial(str(error))
        return
    left = Meter(COST_OF_POLICY)
    given = {**variables, "variables": Composed(policy.variables, variables, left)}
    for index, validation in enumerate(policy.validations):
        try:
            if evaluated(validation.program, given, left) is not True:
                yield Denial(message(validation, given, left), validation.source.get("reason") or "Invalid", index)
        except (EvaluationError, CostExceeded) as error:
            if not policy.forgiving:
                yield Denial(str(error), index=index)
    for key, program in policy.remarks:
        try:
            value = evaluated(program, given, left)
        except (EvaluationError, CostExceeded) as error:
            if not policy.forgiving:
                yield Denial(str(error))
            continue
        if isinstance(value, str) and (text := value.strip()[:MAX_REMARK]):
            yield Remark(key, text)


def message(validation: Validation, variables: Mapping[str, Any], left: Meter) -> str:
    found: Any = None
    if validation.message is not None:
        try:
            found = evaluated(validation.message, variables, left)
        except (EvaluationError, CostExceeded):
            found = None
    text = found.strip() if isinstance(found, str) else ""
    if text and len(text) <= MAX_MESSAGE and "\n" not in text:
        return str(text)
    source = validation.source
    return str(source.get("message") or "").strip() or f"failed expression: {source['expression'].strip()}"


def refusal(attempt: Attempt, policy: Policy, binding: Binding, denial: Denial) -> ApiError:
    why = f"ValidatingAdmissionPolicy '{policy.name}' with binding '{binding.name}' denied request: {denial.message}"
    resource, code = attempt.resource, CODES.get(denial.reason, 422)
    details = {**refusals.details(resource, attempt.name), "causes": [{"message": why}]}
    text = f'{resource.name} "{attempt.name}" is forbidden: {why}'
    return BY_CODE.get(code, ApiError)(code, denial.reason, text, details=details)
