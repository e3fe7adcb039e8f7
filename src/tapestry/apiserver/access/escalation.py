"""Escalation: nobody hands on rights that they do not have.

Whoever writes a role must hold all of its rules, or be allowed to `escalate`; whoever writes a binding must hold all
rules of the role that it binds, or be allowed to `bind` that role.  They are refused in Kubernetes' own words.
"""

from dataclasses import dataclass

from tapestry.apiserver import api_errors
from tapestry.apiserver.access.rbac import (
    GROUP,
    MASTERS_GROUP,
    PolicyRule,
    RbacAuthorizer,
    quoted_list,
    rules_of,
    uncovered_rules,
)
from tapestry.apiserver.requests import Target
from tapestry.apiserver.resource_registry import ResourceInfo
from tapestry.apiserver.server import Attributes
from tapestry.apiserver.verbs import WriteRequest
from tapestry.apiserver.workers import run_if_large
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
"""Rights that a refusal names."""
IGNORED_METADATA = ("ownerReferences", "finalizers", "managedFields")
"""Metadata that whoever collects garbage may change."""


@dataclass(frozen=True)
class EscalationCheck:
    """A step: refuses roles and bindings that give more than their writer has."""

    authorizer: RbacAuthorizer

    async def __call__(self, request: WriteRequest, old: Object | None, new: Object | None) -> Object:
        if new is None:
            return old or {}
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
        row = ROLE_RESOURCES.get(reference.get("kind", ""))
        if row is None:
            return  # which is for validation to refuse
        if self.authorizer(Attributes(request.user, "bind", Target(row, namespace, reference["name"]))):
            return
        rules = self.authorizer.roles.rules(namespace if row.resource.namespaced else "", reference["name"])
        if rules is None:
            raise api_errors.not_found(request.target.info.resource, reference["name"])  # Kubernetes mixes them up, too
        await self.check_rules(request, binding, rules)

    async def check_rules(self, request: WriteRequest, obj: Object, rules: tuple[PolicyRule, ...]) -> None:
        lacking = await self.missing_rules(request, rules)
        if lacking:
            user = request.user
            who = f'user "{user.name}" (groups={quoted_list(user.groups)})'
            why = f"{who} is attempting to grant RBAC permissions not currently held:"
            raise escalation_error(
                request, obj, "\n".join([why, *sorted({str(rule) for rule in merge_verbs(lacking)})])
            )

    async def missing_rules(self, request: WriteRequest, rules: tuple[PolicyRule, ...]) -> list[PolicyRule]:
        held = list(self.authorizer.rules(request.user, request.target.namespace))
        return await run_if_large(request.size, uncovered_rules, rules, held, MAX_REPORTED_RULES)


def without_ignored_metadata(obj: Object) -> Object:
    return {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key not in IGNORED_METADATA}}


def is_aggregated(role: Object | None) -> bool:
    return bool(value_at(role or {}, "aggregationRule", "clusterRoleSelectors"))


def merge_verbs(rules: list[PolicyRule]) -> list[PolicyRule]:
    """Single rules about the same thing as one with all of their verbs."""
    verbs: dict[PolicyRule, list[str]] = {}
    for rule in rules:
        thing = PolicyRule((), rule.groups, rule.resources, rule.names) if rule.resources else rule
        verbs.setdefault(thing, []).extend(rule.verbs)
    return [
        PolicyRule(tuple(each), thing.groups, thing.resources, thing.names, thing.paths)
        for thing, each in verbs.items()
    ]


def escalation_error(request: WriteRequest, obj: Object, why: str) -> Forbidden:
    resource, name = request.target.info.resource, name_of(obj)
    message = f'{resource.name} "{name}" is forbidden: {why}'
    return Forbidden(403, "Forbidden", message, details=api_errors.status_details(resource, name))
