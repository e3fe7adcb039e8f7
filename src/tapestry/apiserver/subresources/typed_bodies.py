"""Decoding and checking of bodies that are not stored objects: reviews, tokens, bindings, scales."""

from dataclasses import dataclass

from msgspec import structs

from tapestry.apiserver.admission.matching import subresource_kind
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.request_bodies import decoded_body
from tapestry.apiserver.core.requests import Call, Target
from tapestry.apiserver.core.responses import ApiResponse, ResourceHandler
from tapestry.apiserver.core.type_decoders import TypeDecoders
from tapestry.apiserver.core.workers import reserve_memory, run_if_large

BODY_TYPES = {
    "Binding": "io.k8s.api.core.v1.Binding",
    "Eviction": "io.k8s.api.policy.v1.Eviction",
    "Scale": "io.k8s.api.autoscaling.v1.Scale",
    "TokenRequest": "io.k8s.api.authentication.v1.TokenRequest",
}
"""Types of bodies that are posted to subresources. Other types are in the registry."""
IDENTITY_FIELDS = ("apiVersion", "kind")


@dataclass(frozen=True)
class TypedBodies:
    """Wrap handlers so that they get a body of the expected type."""

    types: TypeDecoders

    def typed_handler(self, handler: ResourceHandler) -> ResourceHandler:
        """Wrap a handler so that a body of another type is a bad request."""

        async def check(call: Call, target: Target) -> ApiResponse:
            if call.method in ("POST", "PUT"):
                await reserve_memory(len(call.body))
                call = await run_if_large(len(call.body), self.read_body, call, target)
            return await handler(call, target)

        return check

    def read_body(self, call: Call, target: Target) -> Call:
        """The call with its body decoded like an object: without nulls and unknown fields."""
        kind, body = subresource_kind(target.info, target.subresource), decoded_body(call)
        if not isinstance(body, dict | None):
            raise api_errors.not_an_object(kind.kind, body)
        identity = {
            key: each for key, each in (body or {}).items() if key in IDENTITY_FIELDS
        }  # the handler checks these
        typed = {**(body or {}), "apiVersion": kind.api_version, "kind": kind.kind}
        decoded, _ = self.types.decode(BODY_TYPES.get(kind.kind) or target.info.schema_name, typed, kind.kind)
        fields = {key: each for key, each in decoded.items() if key not in IDENTITY_FIELDS}
        return structs.replace(call, decoded_body={**identity, **fields})
