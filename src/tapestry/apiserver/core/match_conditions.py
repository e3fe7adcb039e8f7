"""Match conditions: CEL expressions about a write, and the types of their variables.

The `matchConditions` of webhooks and policies are compiled once into `MatchConditions`. The cost of all conditions of
one write is limited.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tapestry.kube.cel.compiler import Program, compile_expression
from tapestry.kube.cel.errors import CostExceeded, EvaluationError, Meter
from tapestry.kube.cel.library.authorization import Authorizer, ResourceCheck
from tapestry.kube.cel.types import BOOL, DYN, INT, STRING, TIMESTAMP, Type, list_of, map_of, object_type
from tapestry.kube.objects import Object

CONDITIONS_COST_LIMIT = 2_500_000
EXPRESSION_COST_LIMIT = 1_000_000

KIND_TYPE = object_type("kubernetes.GroupVersionKind", {"group": STRING, "version": STRING, "kind": STRING})
RESOURCE_TYPE = object_type("kubernetes.GroupVersionResource", {"group": STRING, "version": STRING, "resource": STRING})
USER_TYPE = object_type(
    "kubernetes.UserInfo",
    {
        "username": STRING,
        "uid": STRING,
        "groups": list_of(STRING),
        "extra": map_of(STRING, list_of(STRING)),
    },
)
REQUEST_TYPE = object_type(
    "kubernetes.AdmissionRequest",
    {
        "kind": KIND_TYPE,
        "resource": RESOURCE_TYPE,
        "subResource": STRING,
        "requestKind": KIND_TYPE,
        "requestResource": RESOURCE_TYPE,
        "requestSubResource": STRING,
        "name": STRING,
        "namespace": STRING,
        "operation": STRING,
        "userInfo": USER_TYPE,
        "dryRun": BOOL,
        "options": DYN,
    },
)
NAMESPACE_METADATA = {
    **dict.fromkeys(("name", "generateName", "namespace", "UID", "resourceVersion"), STRING),
    **dict.fromkeys(("labels", "annotations"), map_of(STRING, STRING)),
    **dict.fromkeys(("creationTimestamp", "deletionTimestamp"), TIMESTAMP),
    "deletionGracePeriodSeconds": INT,
    "generation": INT,
    "finalizers": list_of(STRING),
}
NAMESPACE_TYPE = object_type(
    "kubernetes.Namespace",
    {
        "metadata": object_type("kubernetes.NamespaceMetadata", NAMESPACE_METADATA),
        "spec": object_type("kubernetes.NamespaceSpec", {"finalizers": list_of(STRING)}),
        "status": object_type("kubernetes.NamespaceStatus", {"phase": STRING, "conditions": list_of(DYN)}),
    },
)
AUTHORIZER_TYPE, RESOURCE_CHECK_TYPE = Type(Authorizer.kind), Type(ResourceCheck.kind)

VARIABLE_TYPES: Mapping[str, Type] = {
    "object": DYN,
    "oldObject": DYN,
    "request": REQUEST_TYPE,
    "authorizer": AUTHORIZER_TYPE,
    "authorizer.requestResource": RESOURCE_CHECK_TYPE,
}
"""Variables that are available to every expression about a write."""


@dataclass(frozen=True, slots=True)
class MatchConditions:
    """The `matchConditions` of a webhook or a policy."""

    programs: tuple[tuple[str, Program], ...]
    """Pairs of name and program."""

    def all_hold(self, variables: Mapping[str, Any]) -> bool:
        """Return whether all conditions hold. Raises EvaluationError if none is false and some fail."""
        meter, faults = Meter(CONDITIONS_COST_LIMIT), []
        for _, program in self.programs:
            try:
                if evaluate_metered(program, variables, meter) is not True:
                    return False
            except (EvaluationError, CostExceeded) as error:
                faults.append(str(error))
        if faults:
            raise EvaluationError(faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]")
        return True


def compile_conditions(conditions: Sequence[Object], variables: Mapping[str, Type] = VARIABLE_TYPES) -> MatchConditions:
    """Compile a list of `matchConditions`. Raises CompileError."""
    return MatchConditions(
        tuple((each["name"], compile_expression(each["expression"], variables)) for each in conditions)
    )


def evaluate_metered(program: Program, variables: Mapping[str, Any], meter: Meter) -> Any:
    """Evaluate one of several expressions that share a cost budget."""
    own_meter = Meter(min(EXPRESSION_COST_LIMIT, meter.left))
    before = own_meter.left
    try:
        return program.evaluate(variables, own_meter)
    except EvaluationError as error:
        raise EvaluationError(f"expression '{program.text}' resulted in error: {error}") from error
    finally:
        meter.left -= before - max(own_meter.left, 0)
        own_meter.report()
