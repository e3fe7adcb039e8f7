"""Write-back of changes of a copied ConfigMap or Secret to its source, if both sides allow it."""

from dataclasses import dataclass

from tapestry.apis.clusterbindings import Binding
from tapestry.apis.permissions import SYNC_BACK_ROLE
from tapestry.kube.errors import BadRequest, Forbidden, Invalid
from tapestry.kube.objects import Object, namespace_of
from tapestry.kube.resources import CONFIGMAPS, SECRETS
from tapestry.syncer.context import SyncContext
from tapestry.syncer.translate.sync_back import SyncBackRejected, is_allowed, is_changed_below_only, sync_back_patch


@dataclass(frozen=True)
class SyncBack:
    context: SyncContext

    async def updated_source(self, source: Object, copy: Object, binding: Binding) -> Object:
        """Return the source with the values that were changed in the copy, or unchanged if none may be written back.

        Both objects are live. Raises Conflict if the source changed meanwhile: the tenant's change wins then.
        """
        if not (is_allowed(source, binding) and is_changed_below_only(source, copy)):
            return source
        events = self.context.manager.events
        try:
            patch = sync_back_patch(source, copy)
        except SyncBackRejected as error:
            events.warning(source, "SyncBackRefused", f"a change in the physical cluster was not taken over: {error}")
            return source
        if not patch:
            return source
        try:
            resource = SECRETS if source["kind"] == SECRETS.kind else CONFIGMAPS
            changed = await self.context.virtual_client.patch(resource, source, patch)
        except Forbidden:
            message = (
                "a change in the physical cluster was not taken over: the syncer may not patch objects in this "
                f"namespace; bind the ClusterRole {SYNC_BACK_ROLE} to its account in {namespace_of(source)}"
            )
            events.warning(source, "SyncBackForbidden", message)
            return source
        except (BadRequest, Invalid):  # the message may quote the data
            message = "a change in the physical cluster was not taken over: the virtual API server rejected the data"
            events.warning(source, "SyncBackRefused", message)
            return source
        names = ", ".join(sorted(key for values in patch.values() for key in values))
        events.normal(source, "SyncedBack", f"taken over from the physical cluster: {names}"[:1024])
        return changed
