"""Variables of the CEL expressions about a write: the objects, the request and the authorizer."""

from typing import Any

from tapestry.apiserver.admission.matching import AdmissionAttributes
from tapestry.apiserver.core.requests import Attributes, Authorize, Target, User, unserved_resource_info, user_info
from tapestry.kube.cel.library.authorization import AuthorizationAttributes, Authorizer, ResourceCheck
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource

SERVICE_ACCOUNT_GROUPS = ("system:serviceaccounts", "system:authenticated")


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
