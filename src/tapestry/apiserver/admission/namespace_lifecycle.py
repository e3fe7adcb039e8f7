"""NamespaceLifecycle admission: no objects in missing or terminating namespaces, no deletion of system namespaces."""

from dataclasses import dataclass

import msgspec

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import CallOrigin, WriteRequest, admission_forbidden
from tapestry.apiserver.core.store import Store
from tapestry.kube.objects import Object, is_deleting
from tapestry.kube.resources import NAMESPACES

IMMORTAL_NAMESPACES = ("default", "kube-system", "kube-public")


@dataclass(frozen=True)
class NamespaceLifecycle:
    """Reject creates in a namespace that does not exist or is being deleted."""

    store: Store

    async def __call__(self, request: WriteRequest, _: Object | None, new: Object) -> Object:
        if request.verb == "create" and request.target.namespace and not request.target.subresource:
            self.check_namespace(request)
        return new

    async def validate_delete(self, request: WriteRequest, _: Object) -> None:
        """Reject the deletion of namespaces that must always exist."""
        if request.target.info.storage == "namespaces" and request.target.name in IMMORTAL_NAMESPACES:
            raise admission_forbidden(request, "this namespace may not be deleted")

    def check_namespace(self, request: WriteRequest) -> None:
        name = request.target.namespace
        version = self.store.get("namespaces", "", name)
        if version is None and request.is_dry_run and request.origin is CallOrigin.SERVICE:
            return
        if version is None:
            raise api_errors.not_found(NAMESPACES, name)
        if b'"deletionTimestamp"' in version.raw and is_deleting(msgspec.json.decode(version.raw)):
            reason = f"unable to create new content in namespace {name} because it is being terminated"
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {name} is being terminated",
                "field": "metadata.namespace",
            }
            raise admission_forbidden(request, reason, [cause])
