"""Match conditions: CEL expressions about a write, and the variables that they can use.

The `matchConditions` of webhooks and policies are compiled once into `MatchConditions`. `expression_variables` are the
values for one write. The cost of all conditions of one write is limited.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tapestry.apiserver.access.reviews import unserved_resource_info, user_info
from tapestry.apiserver.admission.matching import AdmissionAttributes
from tapestry.apiserver.requests import Attributes, Authorize, Target, User
from tapestry.kube.cel.compiler import Program, compile_expression
from tapestry.kube.cel.errors import CostExceeded, EvaluationError, Meter
from tapestry.kube.cel.library.authorization import AuthorizationAttributes, Authorizer, ResourceCheck
from tapestry.kube.cel.types import BOOL, DYN, INT, STRING, TIMESTAMP, Type, list_of, map_of, object_type
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource

CONDITIONS_COST_LIMIT = 2_500_000
EXPRESSION_COST_LIMIT = 1_000_000
SERVICE_ACCOUNT_GROUPS = ("system:serviceaccounts", "system:authenticated")

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


def expression_variables(
    attributes: AdmissionAttributes, matched_resource: Resource, authorize: Authorize
) -> dict[str, Any]:
    """The values of VARIABLE_TYPES for a write that matched as `matched_resource`."""
    authorizer = Authorizer(lambda check: is_authorized(attributes.user, check, authorize))
    request_resource = AuthorizationAttributes(
        group=attributes.resource.group,
        resource=attributes.resource.plural,
        subresource=attributes.subresource,
        namespace=attributes.namespace,
        name=attributes.name,
    )
    return {
        "object": attributes.new,
        "oldObject": attributes.old,
        "request": admission_request(attributes, matched_resource),
        "authorizer": authorizer,
        "authorizer.requestResource": ResourceCheck(authorizer.decide, request_resource),
    }


def admission_request(attributes: AdmissionAttributes, matched_resource: Resource) -> Object:
    kind = matched_resource if attributes.kind.kind == attributes.resource.kind else attributes.kind
    user = user_info(attributes.user)
    return {
        "kind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "resource": {
            "group": matched_resource.group,
            "version": matched_resource.version,
            "resource": matched_resource.plural,
        },
        "requestKind": {
            "group": attributes.kind.group,
            "version": attributes.kind.version,
            "kind": attributes.kind.kind,
        },
        "requestResource": {
            "group": attributes.resource.group,
            "version": attributes.resource.version,
            "resource": attributes.resource.plural,
        },
        **(
            {"subResource": attributes.subresource, "requestSubResource": attributes.subresource}
            if attributes.subresource
            else {}
        ),
        **({"name": attributes.name} if attributes.name else {}),
        **({"namespace": attributes.namespace} if attributes.namespace else {}),
        "operation": attributes.operation,
        "userInfo": user,
        "dryRun": attributes.is_dry_run,
        "options": {},
    }


def is_authorized(user: User, check: AuthorizationAttributes, authorize: Authorize) -> bool:
    """Answer an authorization check of an expression with the server's authorizer."""
    if check.account is not None:
        namespace, name = check.account
        groups = (*SERVICE_ACCOUNT_GROUPS, f"system:serviceaccounts:{namespace}")
        user = User(f"system:serviceaccount:{namespace}:{name}", groups)
    if check.path:
        return authorize(Attributes(user, check.verb, path=check.path))
    info = unserved_resource_info(check.group, check.resource)
    target = Target(info, check.namespace, check.name, check.subresource)
    return authorize(Attributes(user, check.verb, target))
