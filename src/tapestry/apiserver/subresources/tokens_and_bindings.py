"""Handlers of token requests and pod bindings."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from tapestry.apiserver.access.service_account_tokens import (
    BOUND_OBJECT_RESOURCES,
    MAX_TOKEN_SECONDS,
    MIN_TOKEN_SECONDS,
    ServiceAccountTokens,
)
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.request_bodies import decoded_body
from tapestry.apiserver.core.requests import Call, Target, WriteRequest
from tapestry.apiserver.core.resource_registry import ResourceRegistry
from tapestry.apiserver.core.responses import CREATED_STATUS, ApiResponse, ResourceHandler, json_response
from tapestry.apiserver.handlers.reader import Reader
from tapestry.apiserver.handlers.verbs import Verbs
from tapestry.kube.conditions import with_condition
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, name_of, uid_of, value_at, with_value
from tapestry.kube.resources import PODS, Resource

TOKEN_REQUESTS = Resource("authentication.k8s.io", "v1", "TokenRequest", "tokenrequests")
BINDINGS = Resource("", "v1", "Binding", "pods/binding")
"""The resource that binding conflicts name."""


@dataclass(frozen=True)
class TokensAndBindings:
    """Handle the `token` subresource of service accounts and bindings of pods."""

    reader: Reader
    verbs: Verbs
    registry: ResourceRegistry
    account_tokens: ServiceAccountTokens

    def handlers(self) -> Mapping[tuple[str, str], ResourceHandler]:
        return {
            ("serviceaccounts", "token"): self.create_token,
            ("pods", "binding"): self.bind,
            ("bindings", ""): self.bind_legacy,
        }

    async def create_token(self, call: Call, target: Target) -> ApiResponse:
        body: Object = decoded_body(call) or {}
        account: Object = msgspec.json.decode(await self.reader.get(target, {}))
        spec = body.get("spec") or {}
        if (
            seconds := spec.get("expirationSeconds")
        ) is not None and not MIN_TOKEN_SECONDS <= seconds <= MAX_TOKEN_SECONDS:
            limit = (
                f"less than {MIN_TOKEN_SECONDS // 60} minutes"
                if seconds < MIN_TOKEN_SECONDS
                else "larger than 2^32 seconds"
            )
            message = f"Invalid value: {seconds}: may not specify a duration {limit}"
            raise api_errors.invalid_field(TOKEN_REQUESTS, "", "spec.expirationSeconds", message)
        status = self.account_tokens.issue_token(account, spec, self.bound_object(spec.get("boundObjectRef"), target))
        metadata = {"name": target.name, "namespace": target.namespace}
        identity = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
        return json_response(201, {**identity, "metadata": metadata, "spec": spec, "status": status})

    def bound_object(self, reference: Object | None, target: Target) -> Object | None:
        """The object that a token is to be bound to. Raises NotFound if it does not exist."""
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
        obj: Object = {"kind": reference["kind"], **msgspec.json.decode(version.raw)}
        if reference.get("uid") not in (None, "", uid_of(obj)):
            message = f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record"
            raise api_errors.conflict(PODS, name_of(obj), message)
        return obj

    async def bind_legacy(self, call: Call, target: Target) -> ApiResponse:
        """Handle a binding through the legacy `bindings` resource."""
        info = self.registry.get("", "v1", "pods")
        assert info is not None, "pods are always served"
        name = value_at(decoded_body(call) or {}, "metadata", "name", default="")
        if not name:
            raise api_errors.bad_request("metadata.name: Required value: the pod to bind")
        return await self.bind(call, Target(info, target.namespace, name, "binding"))

    async def bind(self, call: Call, target: Target) -> ApiResponse:
        """Assign a pod to a node."""
        body: Object = decoded_body(call) or {}
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
                message = f'pod {name_of(pod)} is already assigned to node "{current}"'
                raise api_errors.conflict(BINDINGS, name_of(pod), message)
            conditions = value_at(pod, "status", "conditions", default=[])
            assigned = with_value(pod, ("spec", "nodeName"), node)
            new_conditions = with_condition(conditions, {"type": "PodScheduled", "status": "True"}, self.verbs.now())
            return with_value(assigned, ("status", "conditions"), new_conditions)

        request = WriteRequest(
            *("update", Target(target.info, target.namespace, target.name, "binding"), call.user, call.query),
            origin=call.origin,
        )
        await self.verbs.update(request, bound, unrestricted=True)
        return json_response(201, CREATED_STATUS)
