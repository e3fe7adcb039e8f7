"""What expressions can ask about a write: `object`, `oldObject`, `request`, `authorizer` and their kin.

`matchConditions`, of webhooks and of policies, are compiled once into `Conditions`; `bindings` are what an attempt
looks like to them.  The cost of what is asked about one attempt is bounded, whoever wrote it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tapestry.apiserver.access.reviews import unknown_row, user_info
from tapestry.apiserver.admission.matching import Attempt
from tapestry.apiserver.requests import Target, User
from tapestry.apiserver.server import Attributes, Authorize
from tapestry.kube.cel.compiling import Program, compiled
from tapestry.kube.cel.errors import CostExceeded, EvaluationError, Meter
from tapestry.kube.cel.library.authorization import Authorizer, Question, ResourceCheck
from tapestry.kube.cel.types import BOOL, DYN, INT, STRING, TIMESTAMP, Type, list_of, map_of, object_of
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource

COST_OF_CONDITIONS = 2_500_000
COST_OF_ONE = 1_000_000
ACCOUNT_GROUPS = ("system:serviceaccounts", "system:authenticated")

KIND = object_of("kubernetes.GroupVersionKind", {"group": STRING, "version": STRING, "kind": STRING})
RESOURCE = object_of("kubernetes.GroupVersionResource", {"group": STRING, "version": STRING, "resource": STRING})
USER = object_of(
    "kubernetes.UserInfo",
    {
        "username": STRING,
        "uid": STRING,
        "groups": list_of(STRING),
        "extra": map_of(STRING, list_of(STRING)),
    },
)
REQUEST = object_of(
    "kubernetes.AdmissionRequest",
    {
        "kind": KIND,
        "resource": RESOURCE,
        "subResource": STRING,
        "requestKind": KIND,
        "requestResource": RESOURCE,
        "requestSubResource": STRING,
        "name": STRING,
        "namespace": STRING,
        "operation": STRING,
        "userInfo": USER,
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
NAMESPACE = object_of(
    "kubernetes.Namespace",
    {
        "metadata": object_of("kubernetes.NamespaceMetadata", NAMESPACE_METADATA),
        "spec": object_of("kubernetes.NamespaceSpec", {"finalizers": list_of(STRING)}),
        "status": object_of("kubernetes.NamespaceStatus", {"phase": STRING, "conditions": list_of(DYN)}),
    },
)
AUTHORIZER, RESOURCE_CHECK = Type(Authorizer.kind), Type(ResourceCheck.kind)

VARIABLES: Mapping[str, Type] = {
    "object": DYN,
    "oldObject": DYN,
    "request": REQUEST,
    "authorizer": AUTHORIZER,
    "authorizer.requestResource": RESOURCE_CHECK,
}
"""What every expression about a write can ask for."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The `matchConditions` of a webhook or a policy."""

    listed: tuple[tuple[str, Program], ...]
    """Each with its name."""

    def hold(self, variables: Mapping[str, Any]) -> bool:
        """Whether all hold; raises EvaluationError where none is false and some cannot be said."""
        left, faults = Meter(COST_OF_CONDITIONS), []
        for _, program in self.listed:
            try:
                if evaluated(program, variables, left) is not True:
                    return False
            except (EvaluationError, CostExceeded) as error:
                faults.append(str(error))
        if faults:
            raise EvaluationError(faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]")
        return True


def conditions_of(listed: Sequence[Object], variables: Mapping[str, Type] = VARIABLES) -> Conditions:
    """The conditions of a list of `matchConditions`; raises CompileError."""
    return Conditions(tuple((each["name"], compiled(each["expression"], variables)) for each in listed))


def evaluated(program: Program, variables: Mapping[str, Any], left: Meter) -> Any:
    """The value of one expression of many, which share what they may cost."""
    own = Meter(min(COST_OF_ONE, left.left))
    before = own.left
    try:
        return program.evaluate(variables, own)
    except EvaluationError as error:
        raise EvaluationError(f"expression '{program.text}' resulted in error: {error}") from error
    finally:
        left.left -= before - max(own.left, 0)
        own.report()


def bindings(attempt: Attempt, known_as: Resource, authorize: Authorize) -> dict[str, Any]:
    """The values of VARIABLES; `known_as` is what the criteria matched the attempt as."""
    rights = Authorizer(lambda question: decided(attempt.user, question, authorize))
    about = Question(
        group=attempt.resource.group,
        resource=attempt.resource.plural,
        subresource=attempt.subresource,
        namespace=attempt.namespace,
        name=attempt.name,
    )
    return {
        "object": attempt.new,
        "oldObject": attempt.old,
        "request": request_words(attempt, known_as),
        "authorizer": rights,
        "authorizer.requestResource": ResourceCheck(rights.decide, about),
    }


def request_words(attempt: Attempt, known_as: Resource) -> Object:
    kind = known_as if attempt.kind.kind == attempt.resource.kind else attempt.kind
    user = user_info(attempt.user)
    return {
        "kind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "resource": {"group": known_as.group, "version": known_as.version, "resource": known_as.plural},
        "requestKind": {"group": attempt.kind.group, "version": attempt.kind.version, "kind": attempt.kind.kind},
        "requestResource": {
            "group": attempt.resource.group,
            "version": attempt.resource.version,
            "resource": attempt.resource.plural,
        },
        **(
            {"subResource": attempt.subresource, "requestSubResource": attempt.subresource}
            if attempt.subresource
            else {}
        ),
        **({"name": attempt.name} if attempt.name else {}),
        **({"namespace": attempt.namespace} if attempt.namespace else {}),
        "operation": attempt.operation,
        "userInfo": user,
        "dryRun": attempt.dry,
        "options": {},
    }


def decided(user: User, question: Question, authorize: Authorize) -> bool:
    """What the server's own authorization says to a question of an expression."""
    if question.account is not None:
        namespace, name = question.account
        groups = (*ACCOUNT_GROUPS, f"system:serviceaccounts:{namespace}")
        user = User(f"system:serviceaccount:{namespace}:{name}", groups)
    if question.path:
        return authorize(Attributes(user, question.verb, path=question.path))
    row = unknown_row(question.group, question.resource)
    target = Target(row, question.namespace, question.name, question.subresource)
    return authorize(Attributes(user, question.verb, target))
