"""CEL authorization functions: `authorizer.group("apps").resource("deployments").check("create")`.

The Authorizer of a program contains a function that decides AuthorizationAttributes for the requesting user.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from tapestry.kube.cel.errors import EvaluationError
from tapestry.kube.cel.functions import cel_function

TYPE_PREFIX = "kubernetes.authorization"


@dataclass(frozen=True, slots=True)
class AuthorizationAttributes:
    """Attributes of an authorization check: a path or a resource."""

    verb: str = ""
    path: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    account: tuple[str, str] | None = None
    """Namespace and name of the service account to check instead of the requesting user."""


Authorize = Callable[[AuthorizationAttributes], bool]


@dataclass(frozen=True, slots=True)
class Authorizer:
    kind: ClassVar[str] = f"{TYPE_PREFIX}.Authorizer"
    decide: Authorize
    attributes: AuthorizationAttributes = AuthorizationAttributes()


@dataclass(frozen=True, slots=True)
class PathCheck:
    kind: ClassVar[str] = f"{TYPE_PREFIX}.PathCheck"
    decide: Authorize
    attributes: AuthorizationAttributes


@dataclass(frozen=True, slots=True)
class GroupCheck:
    kind: ClassVar[str] = f"{TYPE_PREFIX}.GroupCheck"
    decide: Authorize
    attributes: AuthorizationAttributes


@dataclass(frozen=True, slots=True)
class ResourceCheck:
    kind: ClassVar[str] = f"{TYPE_PREFIX}.ResourceCheck"
    decide: Authorize
    attributes: AuthorizationAttributes


@dataclass(frozen=True, slots=True)
class Decision:
    kind: ClassVar[str] = f"{TYPE_PREFIX}.Decision"
    allowed: bool


@cel_function(f"{TYPE_PREFIX}.Authorizer.path(string) -> {TYPE_PREFIX}.PathCheck")
def authorizer_path(receiver: Authorizer, text: str) -> PathCheck:
    if not text.strip():
        raise EvaluationError("path must not be empty")
    return PathCheck(receiver.decide, replace(receiver.attributes, path=text))


@cel_function(f"{TYPE_PREFIX}.Authorizer.group(string) -> {TYPE_PREFIX}.GroupCheck")
def authorizer_group(receiver: Authorizer, name: str) -> GroupCheck:
    return GroupCheck(receiver.decide, replace(receiver.attributes, group=name))


@cel_function(f"{TYPE_PREFIX}.Authorizer.serviceAccount(string, string) -> {TYPE_PREFIX}.Authorizer")
def authorizer_service_account(receiver: Authorizer, namespace: str, name: str) -> Authorizer:
    return Authorizer(receiver.decide, replace(receiver.attributes, account=(namespace, name)))


@cel_function(f"{TYPE_PREFIX}.GroupCheck.resource(string) -> {TYPE_PREFIX}.ResourceCheck")
def group_resource(receiver: GroupCheck, plural: str) -> ResourceCheck:
    if not plural.strip():
        raise EvaluationError("resource must not be empty")
    return ResourceCheck(receiver.decide, replace(receiver.attributes, resource=plural))


@cel_function(f"{TYPE_PREFIX}.ResourceCheck.subresource(string) -> {TYPE_PREFIX}.ResourceCheck")
def check_subresource(receiver: ResourceCheck, name: str) -> ResourceCheck:
    return replace(receiver, attributes=replace(receiver.attributes, subresource=name))


@cel_function(f"{TYPE_PREFIX}.ResourceCheck.namespace(string) -> {TYPE_PREFIX}.ResourceCheck")
def check_namespace(receiver: ResourceCheck, name: str) -> ResourceCheck:
    return replace(receiver, attributes=replace(receiver.attributes, namespace=name))


@cel_function(f"{TYPE_PREFIX}.ResourceCheck.name(string) -> {TYPE_PREFIX}.ResourceCheck")
def check_name(receiver: ResourceCheck, name: str) -> ResourceCheck:
    return replace(receiver, attributes=replace(receiver.attributes, name=name))


@cel_function(
    f"{TYPE_PREFIX}.ResourceCheck.fieldSelector(string) -> {TYPE_PREFIX}.ResourceCheck",
    f"{TYPE_PREFIX}.ResourceCheck.labelSelector(string) -> {TYPE_PREFIX}.ResourceCheck",
)
def ignore_selector(receiver: ResourceCheck, _: str) -> ResourceCheck:
    """Ignore the selector, because RBAC does not evaluate selectors."""
    return receiver


@cel_function(
    f"{TYPE_PREFIX}.ResourceCheck.check(string) -> {TYPE_PREFIX}.Decision",
    f"{TYPE_PREFIX}.PathCheck.check(string) -> {TYPE_PREFIX}.Decision",
)
def check_verb(receiver: ResourceCheck | PathCheck, verb: str) -> Decision:
    return Decision(receiver.decide(replace(receiver.attributes, verb=verb)))


@cel_function(f"{TYPE_PREFIX}.Decision.allowed() -> bool")
def allowed(decision: Decision) -> bool:
    return decision.allowed


@cel_function(f"{TYPE_PREFIX}.Decision.reason() -> string", f"{TYPE_PREFIX}.Decision.error() -> string")
def reason(_: Decision) -> str:
    return ""


@cel_function(f"{TYPE_PREFIX}.Decision.errored() -> bool")
def errored(_: Decision) -> bool:
    return False
