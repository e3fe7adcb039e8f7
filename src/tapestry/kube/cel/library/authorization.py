"""Questions about rights: `authorizer.group("apps").resource("deployments").check("create").allowed()`.

Who asks is behind the Authorizer that a program is run with: a function that decides about a Question.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from tapestry.kube.cel.errors import EvaluationError
from tapestry.kube.cel.functions import declared

NAMES = "kubernetes.authorization"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about: a path, or a resource."""

    verb: str = ""
    path: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    account: tuple[str, str] | None = None
    """The namespace and name of the service account that is meant instead of who asks."""


Decide = Callable[[Question], bool]


@dataclass(frozen=True, slots=True)
class Authorizer:
    kind: ClassVar[str] = f"{NAMES}.Authorizer"
    decide: Decide
    about: Question = Question()


@dataclass(frozen=True, slots=True)
class PathCheck:
    kind: ClassVar[str] = f"{NAMES}.PathCheck"
    decide: Decide
    about: Question


@dataclass(frozen=True, slots=True)
class GroupCheck:
    kind: ClassVar[str] = f"{NAMES}.GroupCheck"
    decide: Decide
    about: Question


@dataclass(frozen=True, slots=True)
class ResourceCheck:
    kind: ClassVar[str] = f"{NAMES}.ResourceCheck"
    decide: Decide
    about: Question


@dataclass(frozen=True, slots=True)
class Decision:
    kind: ClassVar[str] = f"{NAMES}.Decision"
    allowed: bool


@declared(f"{NAMES}.Authorizer.path(string) -> {NAMES}.PathCheck")
def path(asker: Authorizer, text: str) -> PathCheck:
    if not text.strip():
        raise EvaluationError("path must not be empty")
    return PathCheck(asker.decide, replace(asker.about, path=text))


@declared(f"{NAMES}.Authorizer.group(string) -> {NAMES}.GroupCheck")
def group(asker: Authorizer, name: str) -> GroupCheck:
    return GroupCheck(asker.decide, replace(asker.about, group=name))


@declared(f"{NAMES}.Authorizer.serviceAccount(string, string) -> {NAMES}.Authorizer")
def service_account(asker: Authorizer, namespace: str, name: str) -> Authorizer:
    return Authorizer(asker.decide, replace(asker.about, account=(namespace, name)))


@declared(f"{NAMES}.GroupCheck.resource(string) -> {NAMES}.ResourceCheck")
def resource(asker: GroupCheck, plural: str) -> ResourceCheck:
    if not plural.strip():
        raise EvaluationError("resource must not be empty")
    return ResourceCheck(asker.decide, replace(asker.about, resource=plural))


@declared(f"{NAMES}.ResourceCheck.subresource(string) -> {NAMES}.ResourceCheck")
def subresource(asker: ResourceCheck, name: str) -> ResourceCheck:
    return replace(asker, about=replace(asker.about, subresource=name))


@declared(f"{NAMES}.ResourceCheck.namespace(string) -> {NAMES}.ResourceCheck")
def namespace(asker: ResourceCheck, name: str) -> ResourceCheck:
    return replace(asker, about=replace(asker.about, namespace=name))


@declared(f"{NAMES}.ResourceCheck.name(string) -> {NAMES}.ResourceCheck")
def named(asker: ResourceCheck, name: str) -> ResourceCheck:
    return replace(asker, about=replace(asker.about, name=name))


@declared(
    f"{NAMES}.ResourceCheck.fieldSelector(string) -> {NAMES}.ResourceCheck",
    f"{NAMES}.ResourceCheck.labelSelector(string) -> {NAMES}.ResourceCheck",
)
def selecting(asker: ResourceCheck, _: str) -> ResourceCheck:
    """Roles do not look at selectors."""
    return asker


@declared(
    f"{NAMES}.ResourceCheck.check(string) -> {NAMES}.Decision", f"{NAMES}.PathCheck.check(string) -> {NAMES}.Decision"
)
def check(asker: ResourceCheck | PathCheck, verb: str) -> Decision:
    return Decision(asker.decide(replace(asker.about, verb=verb)))


@declared(f"{NAMES}.Decision.allowed() -> bool")
def allowed(decision: Decision) -> bool:
    return decision.allowed


@declared(f"{NAMES}.Decision.reason() -> string", f"{NAMES}.Decision.error() -> string")
def reason(_: Decision) -> str:
    return ""


@declared(f"{NAMES}.Decision.errored() -> bool")
def errored(_: Decision) -> bool:
    return False
