"""Escalation: nobody hands on rights that they do not have.

Whoever writes a role must hold all of its rules, or be allowed to `escalate`; whoever writes a binding must hold all
rules of the role that it binds, or be allowed to `bind` that role.  They are refused in Kubernetes' own words.
"""

from dataclasses import dataclass

from tapestry.apiserver import refusals
from tapestry.apiserver.access.rbac import GROUP, MASTERS, Authorizer, Rule, quoted, rules_of, uncovered
from tapestry.apiserver.requests import Target
from tapestry.apiserver.rows import Row
from tapestry.apiserver.server import Attributes
from tapestry.apiserver.verbs import Request
from tapestry.apiserver.workers import run_if_large
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.resources import Resource

ROLES = (f"clusterroles.{GROUP}", f"roles.{GROUP}")
BINDINGS = (f"clusterrolebindings.{GROUP}", f"rolebindings.{GROUP}")
KINDS = {
    "ClusterRole": Row(Resource(GROUP, "v1", "ClusterRole", "clusterroles", namespaced=False), "clusterrole", ()),
    "Role": Row(Resource(GROUP, "v1", "Role", "roles"), "role", ()),
}
EVERYTHING = (Rule(("*",), ("*",), ("*",)), Rule(("*",), paths=("*",)))
MOST_LACKING = 1_000
"""Rights that a refusal names."""
HARMLESS = ("ownerReferences", "finalizers", "managedFields")
"""Metadata that whoever collects garbage may change."""


@dataclass(frozen=True)
class Escalation:
    """A step: refuses roles and bindings that give more than their writer has."""

    authorizer: Authorizer

    async def __call__(self, request: Request, old: Object | None, new: Object | None) -> Object:
        if new is None:
            return old or {}
        if MASTERS not in request.user.groups and (old is None or bare(old) != bare(new)):
            is_role = request.target.row.storage in ROLES
            await (self.check_role if is_role else self.check_binding)(request, old, new)
        return new

    async def check_role(self, request: Request, old: Object | None, role: Object) -> None:
        if self.authorizer(Attributes(request.user, "escalate", request.target)):
            return
        await self.check(request, role, rules_of(role))
        if (is_aggregated(role) or is_aggregated(old)) and await self.lacking(request, EVERYTHING):
            raise refused(request, role, "must have cluster-admin privileges to use the aggregationRule")

    async def check_binding(self, request: Request, _: Object | None, binding: Object) -> None:
        reference, namespace = binding["roleRef"], request.target.namespace
        row = KINDS.get(reference.get("kind", ""))
        if row is None:
            return  # which is for validation to refuse
        if self.authorizer(Attributes(request.user, "bind", Target(row, namespace, reference["name"]))):
            return
        rules = self.authorizer.roles.rules(namespace if row.resource.namespaced else "", reference["name"])
        if rules is None:
            raise refusals.not_found(request.target.row.resource, reference["name"])  # Kubernetes mixes them up, too
        await self.check(request, binding, rules)

    async def check(self, request: Request, obj: Object, rules: tuple[Rule, ...]) -> None:
        lacking = await self.lacking(request, rules)
        if lacking:
            user = request.user
            who = f'user "{user.name}" (groups={quoted(user.groups)})'
            why = f"{who} is attempting to grant RBAC permissions not currently held:"
            raise refused(request, obj, "\n".join([why, *sorted({str(rule) for rule in compact(lacking)})]))

    async def lacking(self, request: Request, rules: tuple[Rule, ...]) -> list[Rule]:
        held = list(self.authorizer.rules(request.user, request.target.namespace))
        return await run_if_large(request.size, uncovered, rules, held, MOST_LACKING)


def bare(obj: Object) -> Object:
    return {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key not in HARMLESS}}


def is_aggregated(role: Object | None) -> bool:
    return bool(value_at(role or {}, "aggregationRule", "clusterRoleSelectors"))


def compact(rules: list[Rule]) -> list[Rule]:
    """Single rules about the same thing as one with all of their verbs."""
    verbs: dict[Rule, list[str]] = {}
    for rule in rules:
        thing = Rule((), rule.groups, rule.resources, rule.names) if rule.resources else rule
        verbs.setdefault(thing, []).extend(rule.verbs)
    return [Rule(tuple(each), thing.groups, thing.resources, thing.names, thing.paths) for thing, each in verbs.items()]


def refused(request: Request, obj: Object, why: str) -> Forbidden:
    resource, name = request.target.row.resource, name_of(obj)
    message = f'{resource.name} "{name}" is forbidden: {why}'
    return Forbidden(403, "Forbidden", message, details=refusals.details(resource, name))
