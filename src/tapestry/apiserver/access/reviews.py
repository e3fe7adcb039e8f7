"""Review APIs: token, access and rules reviews, which are answered but not stored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tapestry.apiserver.access.authentication import AUTHENTICATED
from tapestry.apiserver.access.rbac import PolicyRule, RbacAuthorizer
from tapestry.apiserver.access.service_account_tokens import ServiceAccountTokens
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.codec import negotiated_form
from tapestry.apiserver.core.references import node_name_of_user
from tapestry.apiserver.core.request_bodies import decoded_body
from tapestry.apiserver.core.requests import (
    Attributes,
    Authorize,
    Call,
    Target,
    User,
    object_from_body,
    unserved_resource_info,
    user_info,
)
from tapestry.apiserver.core.resource_registry import ResourceRegistry
from tapestry.apiserver.core.responses import ApiResponse, ResourceHandler, json_response
from tapestry.kube.objects import Object, value_at


@dataclass(frozen=True)
class ReviewHandlers:
    """Handlers of the review resources."""

    registry: ResourceRegistry
    authorize: Authorize
    account_tokens: ServiceAccountTokens
    authenticate: Callable[[str], User | None]
    """Return the user of a bearer token."""

    def handlers(self) -> Mapping[tuple[str, str], ResourceHandler]:
        access = "authorization.k8s.io"
        return {
            ("tokenreviews.authentication.k8s.io", ""): self.review_token,
            ("selfsubjectreviews.authentication.k8s.io", ""): self.review_self,
            (f"subjectaccessreviews.{access}", ""): self.review_access,
            (f"localsubjectaccessreviews.{access}", ""): self.review_local_access,
            (f"selfsubjectaccessreviews.{access}", ""): self.review_self_access,
            (f"selfsubjectrulesreviews.{access}", ""): self.review_self_rules,
        }

    async def review_token(self, call: Call, target: Target) -> ApiResponse:
        body = review_body(call, target)
        audiences = value_at(body, "spec", "audiences", default=[])
        token = value_at(body, "spec", "token", default="")
        own_audiences = list(self.account_tokens.audiences)
        user = self.account_tokens.user_for_token(token, audiences or own_audiences)
        if user is None and (not audiences or set(audiences) & set(own_audiences)):
            user = self.authenticate(token)  # other tokens are valid for this server only
            audiences = [each for each in audiences if each in own_audiences]
        if user is None:
            return created_response({**body, "status": {"user": {}, "error": "the token is not valid for this server"}})
        groups = user.groups if AUTHENTICATED in user.groups else (*user.groups, AUTHENTICATED)
        status = {
            "authenticated": True,
            "user": user_info(replace(user, groups=groups)),
            "audiences": audiences or own_audiences,
        }
        return created_response({**body, "status": status})

    async def review_self(self, call: Call, target: Target) -> ApiResponse:
        return created_response({**review_body(call, target), "status": {"userInfo": user_info(call.user)}})

    async def review_access(self, call: Call, target: Target) -> ApiResponse:
        body = review_body(call, target)
        spec = body.get("spec") or {}
        extra = {key: tuple(value) for key, value in (spec.get("extra") or {}).items()}
        user = User(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""), extra)
        return created_response({**body, "status": self.access_review_status(user, spec)})

    async def review_local_access(self, call: Call, target: Target) -> ApiResponse:
        """Review access within the namespace of the request only."""
        spec = review_body(call, target).get("spec") or {}
        if value_at(spec, "resourceAttributes", "namespace", default="") != target.namespace:
            why = f'Invalid value: "{value_at(spec, "resourceAttributes", "namespace", default="")}": '
            field = "spec.resourceAttributes.namespace"
            raise api_errors.invalid_field(target.info.resource, "", field, f"{why}must match metadata.namespace")
        if spec.get("nonResourceAttributes") is not None:
            why = "Invalid value: disallowed on this kind of request"
            raise api_errors.invalid_field(target.info.resource, "", "spec.nonResourceAttributes", why)
        return await self.review_access(call, target)

    async def review_self_access(self, call: Call, target: Target) -> ApiResponse:
        body = review_body(call, target)
        return created_response({**body, "status": self.access_review_status(call.user, body.get("spec") or {})})

    def access_review_status(self, user: User, spec: Object) -> Object:
        """Return the status of an access review: the decision and its reason."""
        if (path_attributes := spec.get("nonResourceAttributes")) is not None:
            attributes = Attributes(user, path_attributes.get("verb", ""), path=path_attributes.get("path", ""))
        else:
            resource_attributes = spec.get("resourceAttributes") or {}
            attributes = Attributes(
                user,
                resource_attributes.get("verb", ""),
                self.review_target(resource_attributes),
                field_selector=field_selector(resource_attributes),
            )
        if not isinstance(self.authorize, RbacAuthorizer):
            return {"allowed": self.authorize(attributes)}
        reason = self.authorize.allow_reason(attributes)
        explanation = self.authorize.denial_reason(attributes) if reason is None else reason
        return {"allowed": reason is not None, **({"reason": explanation} if explanation else {})}

    def review_target(self, resource_attributes: Object) -> Target:
        """Return the target of a review; it need not exist."""
        group, plural = resource_attributes.get("group", ""), resource_attributes.get("resource", "")
        result = next(
            (info for info in self.registry if (info.resource.group, info.resource.plural) == (group, plural)), None
        )
        info = result or unserved_resource_info(group, plural)
        return Target(
            info,
            resource_attributes.get("namespace", ""),
            resource_attributes.get("name", ""),
            resource_attributes.get("subresource", ""),
        )

    async def review_self_rules(self, call: Call, target: Target) -> ApiResponse:
        body = review_body(call, target)
        namespace = value_at(body, "spec", "namespace", default="")
        rules = list(self.authorize.rules(call.user, namespace)) if isinstance(self.authorize, RbacAuthorizer) else []
        status = {
            "resourceRules": [resource_rule(each) for each in rules if each.resources],
            "nonResourceRules": [
                {"verbs": list(each.verbs), "nonResourceURLs": list(each.paths)} for each in rules if each.paths
            ],
            "incomplete": node_name_of_user(call.user) is not None,
        }
        if status["incomplete"]:
            status["evaluationError"] = "node authorizer does not support user rule resolution"
        return created_response({**body, "status": status})


def field_selector(resource_attributes: Object) -> str:
    """Return the field selector of a review in the form of a query."""
    selector = resource_attributes.get("fieldSelector") or {}
    terms = (
        f"{each.get('key', '')}={values[0]}"
        for each in selector.get("requirements") or ()
        if each.get("operator") == "In" and len(values := each.get("values") or []) == 1
    )
    return selector.get("rawSelector") or ",".join(terms)


def resource_rule(rule: PolicyRule) -> Object:
    return {
        "verbs": list(rule.verbs),
        "apiGroups": list(rule.groups),
        "resources": list(rule.resources),
        **({"resourceNames": list(rule.names)} if rule.names else {}),
    }


def review_body(call: Call, target: Target) -> Object:
    if call.method != "POST":
        raise api_errors.method_not_allowed()
    negotiated_form(call.headers.get("accept", ""), frozenset())  # reviews have no table form
    return object_from_body(target, decoded_body(call) or {})


def created_response(body: Object) -> ApiResponse:
    return json_response(201, body)
