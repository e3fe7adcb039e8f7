"""CEL authorization functions: `authorizer.group("apps").resource("deployments").check("create")`.

The Authorizer of a program contains a function that decides AuthorizationAttributes for the requesting user.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tapestry.kube.cel.errors import EvaluationError
from tapestry.kube.cel.functions import register_functions

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
class AuthorizationCheck:
    """A check whose attributes are given so far."""

    kind: ClassVar[str]
    decide: Authorize
    attributes: AuthorizationAttributes = AuthorizationAttributes()


class Authorizer(AuthorizationCheck):
    __slots__ = ()
    kind = f"{TYPE_PREFIX}.Authorizer"


class PathCheck(AuthorizationCheck):
    __slots__ = ()
    kind = f"{TYPE_PREFIX}.PathCheck"


class GroupCheck(AuthorizationCheck):
    __slots__ = ()
    kind = f"{TYPE_PREFIX}.GroupCheck"


class ResourceCheck(AuthorizationCheck):
    __slots__ = ()
    kind = f"{TYPE_PREFIX}.ResourceCheck"


@dataclass(frozen=True, slots=True)
class Decision:
    kind: ClassVar[str] = f"{TYPE_PREFIX}.Decision"
    allowed: bool


def narrowed(check: AuthorizationCheck, kind: type[AuthorizationCheck], **attributes: Any) -> AuthorizationCheck:
    """Return a check of that kind with more attributes."""
    return kind(check.decide, replace(check.attributes, **attributes))


def not_empty(name: str, text: str) -> str:
    if not text.strip():
        raise EvaluationError(f"{name} must not be empty")
    return text


def decision(check: AuthorizationCheck, verb: str) -> Decision:
    return Decision(check.decide(replace(check.attributes, verb=verb)))


AUTHORIZER, PATH, GROUP, RESOURCE = (each.kind for each in (Authorizer, PathCheck, GroupCheck, ResourceCheck))
register_functions(
    {
        f"{AUTHORIZER}.path(string) -> {PATH}": lambda check, text: narrowed(
            check, PathCheck, path=not_empty("path", text)
        ),
        f"{AUTHORIZER}.group(string) -> {GROUP}": lambda check, name: narrowed(check, GroupCheck, group=name),
        f"{AUTHORIZER}.serviceAccount(string, string) -> {AUTHORIZER}": lambda check, namespace, name: narrowed(
            check, Authorizer, account=(namespace, name)
        ),
        f"{GROUP}.resource(string) -> {RESOURCE}": lambda check, plural: narrowed(
            check, ResourceCheck, resource=not_empty("resource", plural)
        ),
        f"{RESOURCE}.subresource(string) -> {RESOURCE}": lambda check, name: narrowed(
            check, ResourceCheck, subresource=name
        ),
        f"{RESOURCE}.namespace(string) -> {RESOURCE}": lambda check, name: narrowed(
            check, ResourceCheck, namespace=name
        ),
        f"{RESOURCE}.name(string) -> {RESOURCE}": lambda check, name: narrowed(check, ResourceCheck, name=name),
        # RBAC does not evaluate selectors
        f"{RESOURCE}.fieldSelector(string) -> {RESOURCE}": lambda check, _: check,
        f"{RESOURCE}.labelSelector(string) -> {RESOURCE}": lambda check, _: check,
        f"{RESOURCE}.check(string) -> {Decision.kind}": decision,
        f"{PATH}.check(string) -> {Decision.kind}": decision,
        f"{Decision.kind}.allowed() -> bool": lambda made: made.allowed,
        f"{Decision.kind}.reason() -> string": lambda _: "",
        f"{Decision.kind}.error() -> string": lambda _: "",
        f"{Decision.kind}.errored() -> bool": lambda _: False,
    }
)
