"""Authorization of callers before the bodies of their requests are received."""

from tapestry.client.client import Client
from tapestry.client.transport import Transport
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import value_at
from tapestry.kube.resources import SELF_SUBJECT_ACCESS_REVIEWS, Resource

VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


async def check_access(
    api: Transport, method: str, resource: Resource, namespace: str | None, name: str = "", subresource: str = ""
) -> None:
    """Raise Forbidden if the caller may not use the verb of the method. The API server checks this again later."""
    verb = VERBS[method]
    attributes = {"group": resource.group, "version": resource.version, "resource": resource.plural}
    attributes |= {"verb": verb, "namespace": namespace or "", "name": name, "subresource": subresource}
    try:
        review = await Client(api).review(SELF_SUBJECT_ACCESS_REVIEWS, {"resourceAttributes": attributes})
    except Forbidden:  # anonymous callers may not ask
        review = {}
    if value_at(review, "status", "allowed", default=False) is not True:
        what = f"{resource.name}/{subresource}" if subresource else resource.name
        advice = "ask for a Role that allows it"
        if namespace:
            what, advice = f"{what} in namespace {namespace}", f"{advice}, or name another namespace in the query"
        raise Forbidden(403, "Forbidden", f"you may not {verb} {what}; {advice}")
