"""Privilege escalation checks: users cannot grant rights that they do not have.

The writer of a role must hold all of its rules, or have the verb `escalate`. The writer of a binding must hold all
rules of the bound role, or have the verb `bind` on it. Errors have the same message as Kubernetes.
"""

from dataclasses import dataclass

from tapestry.apiserver.access.rbac import (
    GROUP,
    PolicyRule,
    RbacAuthorizer,
    quoted_list,
    rules_of,
    uncovered_rules,
)
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import MASTERS_GROUP, Attributes, Target, WriteRequest
from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.core.workers import run_if_large
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.resources import Resource

ROLES = (f"clusterroles.{GROUP}", f"roles.{GROUP}")
BINDINGS = (f"clusterrolebindings.{GROUP}", f"rolebindings.{GROUP}")
ROLE_RESOURCES = {
    "ClusterRole": ResourceInfo(
        Resource(GROUP, "v1", "ClusterRole", "clusterroles", namespaced=False), "clusterrole", ()
    ),
    "Role": ResourceInfo(Resource(GROUP, "v1", "Role", "roles"), "role", ()),
}
ALL_RULES = (PolicyRule(("*",), ("*",), ("*",)), PolicyRule(("*",), paths=("*",)))
MAX_REPORTED_RULES = 1_000
"""Maximum number of missing rules that an error lists."""
IGNORED_METADATA = ("ownerReferences", "finalizers", "managedFields")
"""Metadata fields that the garbage collector may change."""


@dataclass(frozen=True)
class EscalationCheck:
    """A step that rejects roles and bindings that grant more than their writer holds."""

    authorizer: RbacAuthorizer

    async def __call__(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        if MASTERS_GROUP not in request.user.groups and (
            old is None or without_ignored_metadata(old) != without_ignored_metadata(new)
        ):
            is_role = request.target.info.storage in ROLES
            await (self.check_role if is_role else self.check_binding)(request, old, new)
        return new

    async def check_role(self, request: WriteRequest, old: Object | None, role: Object) -> None:
        if self.authorizer(Attributes(request.user, "escalate", request.target)):
            return
        await self.check_rules(request, role, rules_of(role))
        if (is_aggregated(role) or is_aggregated(old)) and await self.missing_rules(request, ALL_RULES):
            raise escalation_error(request, role, "must have cluster-admin privileges to use the aggregationRule")

    async def check_binding(self, request: WriteRequest, _: Object | None, binding: Object) -> None:
        reference, namespace = binding["roleRef"], request.target.namespace
        info = ROLE_RESOURCES.get(reference.get("kind", ""))
        if info is None:
            return  # validation rejects it
        if self.authorizer(Attributes(request.user, "bind", Target(info, namespace, reference["name"]))):
            return
        rules = self.authorizer.roles.rules(namespace if info.resource.namespaced else "", reference["name"])
        if rules is None:
            raise api_errors.not_found(request.target.info.resource, reference["name"])  # sic, as in Kubernetes
        await self.check_rules(request, binding, rules)

    async def check_rules(self, request: WriteRequest, obj: Object, rules: tuple[PolicyRule, ...]) -> None:
        missing = await self.missing_rules(request, rules)
        if missing:
            user = request.user
            who = f'user "{user.name}" (groups={quoted_list(user.groups)})'
            why = f"{who} is attempting to grant RBAC permissions not currently held:"
            raise escalation_error(
                request, obj, "\n".join([why, *sorted({str(rule) for rule in merge_verbs(missing)})])
            )

    async def missing_rules(self, request: WriteRequest, rules: tuple[PolicyRule, ...]) -> list[PolicyRule]:
        held = list(self.authorizer.rules(request.user, request.target.namespace))
        return await run_if_large(request.size, uncovered_rules, rules, held, MAX_REPORTED_RULES)


def without_ignored_metadata(obj: Object) -> Object:
    return {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key not in IGNORED_METADATA}}


def is_aggregated(role: Object | None) -> bool:
    return bool(value_at(role or {}, "aggregationRule", "clusterRoleSelectors"))


def merge_verbs(rules: list[PolicyRule]) -> list[PolicyRule]:
    """Merge rules about the same resources into one rule with all verbs."""
    verbs: dict[PolicyRule, list[str]] = {}
    for rule in rules:
        scope = PolicyRule((), rule.groups, rule.resources, rule.names) if rule.resources else rule
        verbs.setdefault(scope, []).extend(rule.verbs)
    return [
        PolicyRule(tuple(each), scope.groups, scope.resources, scope.names, scope.paths)
        for scope, each in verbs.items()
    ]


def escalation_error(request: WriteRequest, obj: Object, why: str) -> Forbidden:
    resource, name = request.target.info.resource, name_of(obj)
    message = f'{resource.name} "{name}" is forbidden: {why}'
    return Forbidden(403, "Forbidden", message, details=api_errors.status_details(resource, name))
