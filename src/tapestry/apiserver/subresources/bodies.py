"""Bodies of what is asked beside objects: reviews, tokens, bindings, evictions and scales are of a type, too."""

from dataclasses import dataclass

from msgspec import structs

from tapestry.apiserver import refusals
from tapestry.apiserver.admission.matching import kind_of
from tapestry.apiserver.payloads import sent_in
from tapestry.apiserver.requests import Call, Target
from tapestry.apiserver.server import Answer, Handler
from tapestry.apiserver.types import Types
from tapestry.apiserver.workers import make_room, run_if_large

TYPES = {
    "Binding": "io.k8s.api.core.v1.Binding",
    "Eviction": "io.k8s.api.policy.v1.Eviction",
    "Scale": "io.k8s.api.autoscaling.v1.Scale",
    "TokenRequest": "io.k8s.api.authentication.v1.TokenRequest",
}
"""Of those that are posted to an object; the others have rows of their own."""
IDENTITY = ("apiVersion", "kind")


@dataclass(frozen=True)
class Bodies:
    """Lets handlers have what they expect."""

    types: Types

    def checked(self, handler: Handler) -> Handler:
        """The handler, where a body is what it should be; one of another type is a bad request."""

        async def check(call: Call, target: Target) -> Answer:
            if call.method in ("POST", "PUT"):
                await make_room(len(call.body))
                call = await run_if_large(len(call.body), self.read, call, target)
            return await handler(call, target)

        return check

    def read(self, call: Call, target: Target) -> Call:
        """The call with its body as objects are read: without nulls, and without what its type does not know."""
        kind, body = kind_of(target.row, target.subresource), sent_in(call)
        if not isinstance(body, dict | None):
            raise refusals.no_object(kind.kind, body)
        said = {key: each for key, each in (body or {}).items() if key in IDENTITY}  # which is for the handler to judge
        named = {**(body or {}), "apiVersion": kind.api_version, "kind": kind.kind}
        found, _ = self.types.read(TYPES.get(kind.kind) or target.row.type, named, kind.kind)
        bare = {key: each for key, each in found.items() if key not in IDENTITY}
        return structs.replace(call, sent={**said, **bare})
