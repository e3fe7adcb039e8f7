"""SyncerRestriction admission: only the syncer writes what the host cluster of a plane decides.

While it is enabled, clients may not write Nodes, CSINodes and node Leases, nor bind pods. Neither clients nor built-in
controllers may change the pod conditions of the syncer, nor the addresses of Services.

Rights depend on `Call.origin` and not on the user, because an administrator of the plane impersonates every user.
Webhooks, policies, quotas and limits of the plane do not apply to the syncer. They do not apply either to what built-in
controllers write to Nodes, which a mutating webhook could otherwise change.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from tapestry.apiserver.core.references import CSI_NODES, LEASE_NAMESPACE, LEASES, NODES, PODS
from tapestry.apiserver.core.requests import (
    Call,
    CallOrigin,
    DeleteStep,
    Step,
    Target,
    WriteRequest,
    admission_forbidden,
)
from tapestry.apiserver.core.responses import ApiResponse, ResourceHandler
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import NAMESPACES, SERVICES

NODES_DENIED = (
    "nodes belong to the host cluster, and only its syncer writes Nodes, CSINodes and node Leases; "
    "ask the operator of the host cluster to cordon, drain, taint or label a node"
)
BINDING_DENIED = (
    "nodes belong to the host cluster, and only the scheduler binds pods to them; "
    "set spec.nodeName when you create the pod"
)
NAMESPACE_DENIED = "the namespace of node Leases cannot be deleted, because nodes belong to the host cluster"
NO_ADDRESSES = (None, "", "None")
RESTRICTED_TARGETS = (NODES, CSI_NODES, LEASES, PODS)
"""Resources that clients may not write, or of which they may not write all."""
RESTRICTED_FIELDS_OF = (PODS, SERVICES.name)
"""Resources of which some fields are restricted."""


class SyncerRestriction:
    """Steps that reject writes of others than the syncer. They reject nothing until the restriction is enabled."""

    def __init__(self) -> None:
        self._is_enabled = self._schedules_pods = False
        self._pod_conditions: frozenset[str] = frozenset()

    @property
    def is_enabled(self) -> bool:
        return self._is_enabled

    @property
    def schedules_pods(self) -> bool:
        """True if the syncer chooses the nodes of pods, in place of a scheduler."""
        return self._is_enabled and self._schedules_pods

    def enable(self, pod_conditions: Iterable[str], *, schedules_pods: bool = False) -> None:
        """Reject writes from now on. `pod_conditions` are the types of the conditions that only the syncer changes."""
        self._is_enabled, self._pod_conditions = True, frozenset(pod_conditions)
        self._schedules_pods = schedules_pods

    def disable(self) -> None:
        self._is_enabled = False

    # -- steps

    async def check_target(self, request: WriteRequest, _: Object | None, new: Object) -> Object:
        """Reject writes to resources of the syncer, before any webhook of the plane is called."""
        if self._is_enabled and request.origin is CallOrigin.CLIENT and (denial := target_denial(request.target)):
            raise admission_forbidden(request, denial)
        return new

    async def check_fields(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        """Reject changes of fields of the syncer, after all mutations."""
        if self._is_enabled and request.origin is not CallOrigin.SYNCER:
            denial = (
                service_denial(old or {}, new)
                if request.target.info.storage == SERVICES.name
                else condition_denial(self._pod_conditions, old or {}, new)
            )
            if denial:
                raise admission_forbidden(request, denial)
        return new

    async def check_delete(self, request: WriteRequest, _: Object) -> None:
        if self._is_enabled and request.origin is CallOrigin.CLIENT and (denial := delete_denial(request.target)):
            raise admission_forbidden(request, denial)

    # -- admission that clients of the plane define

    def skips_admission(self, origin: CallOrigin, target: Target) -> bool:
        """Return whether webhooks, policies, quotas and limits of the plane do not apply to a write."""
        if origin is CallOrigin.CONTROLLER:
            return self._is_enabled and bool(target_denial(target))
        return origin is CallOrigin.SYNCER

    def unless_skipped(self, step: Step) -> Step:
        async def run_unless_skipped(request: WriteRequest, old: Object | None, new: Object) -> Object:
            return new if self.skips_admission(request.origin, request.target) else await step(request, old, new)

        return run_unless_skipped

    def delete_unless_skipped(self, step: DeleteStep) -> DeleteStep:
        async def run_unless_skipped(request: WriteRequest, old: Object) -> None:
            if not self.skips_admission(request.origin, request.target):
                await step(request, old)

        return run_unless_skipped

    def handler_unless_skipped(self, admitted: ResourceHandler, handler: ResourceHandler) -> ResourceHandler:
        """Return a handler of posts to a subresource: with the admission of the plane, or without.

        Like `check_target`, it rejects writes before any webhook of the plane is called.
        """

        async def handle(call: Call, target: Target) -> ApiResponse:
            await self.check_target(WriteRequest("create", target, call.user, call.query, origin=call.origin), None, {})
            chosen = handler if self.skips_admission(call.origin, target) else admitted
            return await chosen(call, target)

        return handle


def target_denial(target: Target) -> str:
    """Return why clients may not write a target, whatever the write is; empty if they may."""
    storage = target.info.storage
    if storage in (NODES, CSI_NODES) or (storage == LEASES and target.namespace == LEASE_NAMESPACE):
        return NODES_DENIED
    is_binding = storage == "bindings" or (storage == PODS and target.subresource == "binding")
    return BINDING_DENIED if is_binding else ""


def delete_denial(target: Target) -> str:
    if target.info.storage == NAMESPACES.name and target.name == LEASE_NAMESPACE:
        return NAMESPACE_DENIED
    return target_denial(target)


def condition_denial(types: frozenset[str], old: Object, new: Object) -> str:
    before, after = ([each for each in conditions_of(pod) if each.get("type") in types] for pod in (old, new))
    if before == after:
        return ""
    return f"only the syncer of the host cluster changes the condition {' or '.join(sorted(types))}"


def conditions_of(pod: Object) -> list[Object]:
    return value_at(pod, "status", "conditions") or []


def service_denial(old: Object, new: Object) -> str:
    """Return why only the syncer may change a Service like this; empty if others may.

    They may remove addresses: the syncer sets those of the host cluster again.
    """
    addresses = list(cluster_addresses(new))
    if addresses and addresses != list(cluster_addresses(old)):
        return "the host cluster allocates the addresses of Services; leave spec.clusterIP and spec.clusterIPs empty"
    ingress, is_balanced = ingress_of(new), value_at(new, "spec", "type") == "LoadBalancer"
    if ingress != ingress_of(old) and (ingress or is_balanced):
        return "only the syncer of the host cluster changes status.loadBalancer"
    return ""


def cluster_addresses(service: Object) -> Iterator[str]:
    spec = service.get("spec") or {}
    yield from (each for each in (spec.get("clusterIP"), *(spec.get("clusterIPs") or ())) if each not in NO_ADDRESSES)


def ingress_of(service: Object) -> list[Any]:
    return value_at(service, "status", "loadBalancer", "ingress") or []
