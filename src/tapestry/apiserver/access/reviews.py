"""Reviews: questions about users and their rights, which are answered and not stored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tapestry.apiserver import refusals, writes
from tapestry.apiserver.access.authentication import AUTHENTICATED
from tapestry.apiserver.access.nodes import node_of
from tapestry.apiserver.access.rbac import Authorizer, Rule
from tapestry.apiserver.access.service_accounts import Accounts
from tapestry.apiserver.codec import chosen_form
from tapestry.apiserver.payloads import sent_in
from tapestry.apiserver.requests import Call, Target, User
from tapestry.apiserver.rows import Row, Rows
from tapestry.apiserver.server import Answer, Attributes, Authorize, Handler, answered
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import Resource


@dataclass(frozen=True)
class Reviews:
    """Answers what is asked about users and their rights."""

    rows: Rows
    authorize: Authorize
    accounts: Accounts
    authenticate: Callable[[str], User | None]
    """Whose bearer token it is."""

    def handlers(self) -> Mapping[tuple[str, str], Handler]:
        access = "authorization.k8s.io"
        return {
            ("tokenreviews.authentication.k8s.io", ""): self.token,
            ("selfsubjectreviews.authentication.k8s.io", ""): self.oneself,
            (f"subjectaccessreviews.{access}", ""): self.access,
            (f"localsubjectaccessreviews.{access}", ""): self.local_access,
            (f"selfsubjectaccessreviews.{access}", ""): self.own_access,
            (f"selfsubjectrulesreviews.{access}", ""): self.own_rules,
        }

    async def token(self, call: Call, target: Target) -> Answer:
        body = posted(call, target)
        audiences = value_at(body, "spec", "audiences", default=[])
        token = value_at(body, "spec", "token", default="")
        ours = list(self.accounts.audiences)
        user = self.accounts.user(token, audiences or ours)
        if user is None and (not audiences or set(audiences) & set(ours)):
            user = self.authenticate(token)  # what is no service account's is for this server, and for no other
            audiences = [each for each in audiences if each in ours]
        if user is None:
            return created({**body, "status": {"user": {}, "error": "the token is not known here"}})
        groups = user.groups if AUTHENTICATED in user.groups else (*user.groups, AUTHENTICATED)
        status = {
            "authenticated": True,
            "user": user_info(replace(user, groups=groups)),
            "audiences": audiences or ours,
        }
        return created({**body, "status": status})

    async def oneself(self, call: Call, target: Target) -> Answer:
        return created({**posted(call, target), "status": {"userInfo": user_info(call.user)}})

    async def access(self, call: Call, target: Target) -> Answer:
        body = posted(call, target)
        spec = body.get("spec") or {}
        extra = {key: tuple(value) for key, value in (spec.get("extra") or {}).items()}
        user = User(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""), extra)
        return created({**body, "status": self.verdict(user, spec)})

    async def local_access(self, call: Call, target: Target) -> Answer:
        """The same, for those who may ask about one namespace only."""
        spec = posted(call, target).get("spec") or {}
        if value_at(spec, "resourceAttributes", "namespace", default="") != target.namespace:
            why = f'Invalid value: "{value_at(spec, "resourceAttributes", "namespace", default="")}": '
            field = "spec.resourceAttributes.namespace"
            raise refusals.invalid(target.row.resource, "", field, f"{why}must match metadata.namespace")
        if spec.get("nonResourceAttributes") is not None:
            why = "Invalid value: disallowed on this kind of request"
            raise refusals.invalid(target.row.resource, "", "spec.nonResourceAttributes", why)
        return await self.access(call, target)

    async def own_access(self, call: Call, target: Target) -> Answer:
        body = posted(call, target)
        return created({**body, "status": self.verdict(call.user, body.get("spec") or {})})

    def verdict(self, user: User, spec: Object) -> Object:
        """Whether somebody may do something, and why."""
        if (path := spec.get("nonResourceAttributes")) is not None:
            asked = Attributes(user, path.get("verb", ""), path=path.get("path", ""))
        else:
            about = spec.get("resourceAttributes") or {}
            asked = Attributes(user, about.get("verb", ""), self.asked_about(about), fields=field_selector(about))
        if not isinstance(self.authorize, Authorizer):
            return {"allowed": self.authorize(asked)}
        reason = self.authorize.reason(asked)
        said = self.authorize.objection(asked) if reason is None else reason
        return {"allowed": reason is not None, **({"reason": said} if said else {})}

    def asked_about(self, asked: Object) -> Target:
        """What a review is about; it need not exist."""
        group, plural = asked.get("group", ""), asked.get("resource", "")
        found = next((row for row in self.rows if (row.resource.group, row.resource.plural) == (group, plural)), None)
        row = found or unknown_row(group, plural)
        return Target(row, asked.get("namespace", ""), asked.get("name", ""), asked.get("subresource", ""))

    async def own_rules(self, call: Call, target: Target) -> Answer:
        body = posted(call, target)
        namespace = value_at(body, "spec", "namespace", default="")
        rules = list(self.authorize.rules(call.user, namespace)) if isinstance(self.authorize, Authorizer) else []
        status = {
            "resourceRules": [resource_rule(each) for each in rules if each.resources],
            "nonResourceRules": [
                {"verbs": list(each.verbs), "nonResourceURLs": list(each.paths)} for each in rules if each.paths
            ],
            "incomplete": node_of(call.user) is not None,
        }
        if status["incomplete"]:
            status["evaluationError"] = "node authorizer does not support user rule resolution"
        return created({**body, "status": status})


def field_selector(asked: Object) -> str:
    """The field selector that a review asks about, as a query has it."""
    selector = asked.get("fieldSelector") or {}
    terms = (
        f"{each.get('key', '')}={values[0]}"
        for each in selector.get("requirements") or ()
        if each.get("operator") == "In" and len(values := each.get("values") or []) == 1
    )
    return selector.get("rawSelector") or ",".join(terms)


def resource_rule(rule: Rule) -> Object:
    return {
        "verbs": list(rule.verbs),
        "apiGroups": list(rule.groups),
        "resources": list(rule.resources),
        **({"resourceNames": list(rule.names)} if rule.names else {}),
    }


def unknown_row(group: str, plural: str) -> Row:
    """A row for a resource that is not served: rights can be asked about it all the same."""
    return Row(Resource(group, "v1", plural, plural), plural, ())


def user_info(user: User) -> Object:
    found: Object = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        found["uid"] = user.uid
    if user.extra:
        found["extra"] = {key: list(values) for key, values in user.extra.items()}
    return found


def posted(call: Call, target: Target) -> Object:
    if call.method != "POST":
        raise refusals.not_allowed()
    chosen_form(call.headers.get("accept", ""), frozenset())  # an answer is no row of a table
    return writes.placed(target, sent_in(call) or {})


def created(body: Object) -> Answer:
    return answered(201, body)
