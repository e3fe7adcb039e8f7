"""Subresources that are not the object itself: tokens and bindings."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from tapestry.apiserver import api_errors
from tapestry.apiserver.access.service_account_tokens import (
    BOUND_OBJECT_RESOURCES,
    MAX_TOKEN_SECONDS,
    MIN_TOKEN_SECONDS,
    ServiceAccountTokens,
)
from tapestry.apiserver.request_bodies import decoded_body
from tapestry.apiserver.requests import Call, Target
from tapestry.apiserver.resource_registry import ResourceRegistry
from tapestry.apiserver.server import ApiResponse, ResourceHandler, json_response
from tapestry.apiserver.verbs import Verbs, WriteRequest
from tapestry.kube.conditions import with_condition
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, name_of, uid_of, value_at, with_value
from tapestry.kube.resources import PODS, Resource

TOKEN_REQUESTS = Resource("authentication.k8s.io", "v1", "TokenRequest", "tokenrequests")
BINDINGS = Resource("", "v1", "Binding", "pods/binding")
"""What a conflict over a binding is about."""


@dataclass(frozen=True)
class TokensAndBindings:
    """Answers what is asked of an object beside itself."""

    verbs: Verbs
    registry: ResourceRegistry
    account_tokens: ServiceAccountTokens

    def handlers(self) -> Mapping[tuple[str, str], ResourceHandler]:
        return {
            ("serviceaccounts", "token"): self.create_token,
            ("pods", "binding"): self.bind,
            ("bindings", ""): self.bind_legacy,
        }

    def decoded_body(self, call: Call) -> Object:
        return decoded_body(call) or {}

    async def create_token(self, call: Call, target: Target) -> ApiResponse:
        body = self.decoded_body(call)
        account: Object = msgspec.json.decode(await self.verbs.get(target, {}))
        spec = body.get("spec") or {}
        if (
            seconds := spec.get("expirationSeconds")
        ) is not None and not MIN_TOKEN_SECONDS <= seconds <= MAX_TOKEN_SECONDS:
            bound = (
                f"less than {MIN_TOKEN_SECONDS // 60} minutes"
                if seconds < MIN_TOKEN_SECONDS
                else "larger than 2^32 seconds"
            )
            why = f"Invalid value: {seconds}: may not specify a duration {bound}"
            raise api_errors.invalid_field(TOKEN_REQUESTS, "", "spec.expirationSeconds", why)
        status = self.account_tokens.issue_token(account, spec, self.bound_object(spec.get("boundObjectRef"), target))
        metadata = {"name": target.name, "namespace": target.namespace}
        identity = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
        return json_response(201, {**identity, "metadata": metadata, "spec": spec, "status": status})

    def bound_object(self, reference: Object | None, target: Target) -> Object | None:
        """What a token is to be bound to, which must be there."""
        if not reference:
            return None
        resource = BOUND_OBJECT_RESOURCES.get(reference.get("kind", ""))
        if resource is None:
            raise api_errors.bad_request(
                f"cannot bind token for {reference.get('kind')}: pods, secrets and nodes can be"
            )
        namespace = "" if resource == "nodes" else target.namespace
        version = self.verbs.store.get(resource, namespace, reference.get("name", ""))
        if version is None:
            raise NotFound(404, "NotFound", f'{resource} "{reference.get("name")}" not found')
        found: Object = {"kind": reference["kind"], **msgspec.json.decode(version.raw)}
        if reference.get("uid") not in (None, "", uid_of(found)):
            why = f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record"
            raise api_errors.conflict(PODS, name_of(found), why)
        return found

    async def bind_legacy(self, call: Call, target: Target) -> ApiResponse:
        """The same, under the name that it had before pods had subresources."""
        row = self.registry.get("", "v1", "pods")
        assert row is not None, "pods are always served"
        name = value_at(self.decoded_body(call), "metadata", "name", default="")
        if not name:
            raise api_errors.bad_request("metadata.name: Required value: the pod to bind")
        return await self.bind(call, Target(row, target.namespace, name, "binding"))

    async def bind(self, call: Call, target: Target) -> ApiResponse:
        """A scheduler says where a pod runs."""
        body = self.decoded_body(call)
        node = value_at(body, "target", "name", default="")
        if not node:
            raise api_errors.bad_request("target.name: Required value: the node to run on")

        def bound(pod: Object) -> Object:
            if uid_of(body) and uid_of(body) != uid_of(pod):
                raise api_errors.uid_mismatch(PODS, name_of(pod), uid_of(body), uid_of(pod))
            if is_deleting(pod):
                raise api_errors.conflict(
                    BINDINGS, name_of(pod), f"pod {name_of(pod)} is being deleted, cannot be assigned to a host"
                )
            if current := value_at(pod, "spec", "nodeName"):
                why = f'pod {name_of(pod)} is already assigned to node "{current}"'
                raise api_errors.conflict(BINDINGS, name_of(pod), why)
            conditions = value_at(pod, "status", "conditions", default=[])
            placed = with_value(pod, ("spec", "nodeName"), node)
            marks = with_condition(conditions, {"type": "PodScheduled", "status": "True"}, self.verbs.now())
            return with_value(placed, ("status", "conditions"), marks)

        request = WriteRequest(
            "update", Target(target.info, target.namespace, target.name, "binding"), call.user, call.query
        )
        await self.verbs.update(request, bound, unrestricted=True)
        return json_response(
            201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        )
