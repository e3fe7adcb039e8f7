"""The methods of the contract for snapshots. Operations of virtual clusters make them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from google.protobuf.message import Message

from tapestry.apis.operations import SNAPSHOTS
from tapestry.client.client import Client
from tapestry.kube.objects import Object, labels_of, value_at
from tapestry.vclusters.access.roles import Caller
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.errors import etag_mismatch, not_found
from tapestry.vclusters.gateway import AdmittedCall, Respond
from tapestry.vclusters.management_errors import reported
from tapestry.vclusters.model import snapshot_message, timestamp_of
from tapestry.vclusters.pages import Pager, is_visible, selector_of
from tapestry.vclusters.stored_objects import StoredObjects, project_in


@dataclass(frozen=True)
class SnapshotService:
    client: Callable[[Caller], Client]
    """Client of the management API in the name of a caller."""
    objects: StoredObjects
    pager: Pager
    now: Callable[[], datetime]

    def methods(self) -> Mapping[str, Respond]:
        return {"ListSnapshots": self.list, "GetSnapshot": self.get, "DeleteSnapshot": self.delete}

    def project_of(self, method: str, request: Any) -> str | None:
        """Return the project in which a request acts: empty if in none, and None if what it names does not exist."""
        return "" if method == "ListSnapshots" else project_in(self._find(request))

    def _find(self, request: Any) -> Object | None:
        if request.id:
            return next(iter(self.objects.named(SNAPSHOTS, request.id)), None)
        namespace = getattr(request, "namespace", "")  # a deletion needs the id
        names = self.objects.all(SNAPSHOTS, namespace) if namespace else []
        return next((each for each in names if value_at(each, "spec", "displayName") == request.name), None)

    async def get(self, call: AdmittedCall) -> Message:
        found = self._find(call.request)
        if found is None:
            raise not_found("Snapshot", call.request.id)
        return api.GetSnapshotResponse(snapshot=snapshot_message(found))

    async def list(self, call: AdmittedCall) -> Message:
        request = call.request
        selector = selector_of(request.label_selector)

        def list_at(revision: int) -> list[Object]:
            return [
                each
                for each in self.objects.at_revision(SNAPSHOTS, request.namespace, revision)
                if is_visible(call.caller, each)
                and request.vcluster_name in ("", each["spec"]["vcluster"])
                and selector.matches(labels_of(each))
            ]

        filters = {"method": call.method, "user": call.caller.user, "namespace": request.namespace}
        filters |= {"vcluster": request.vcluster_name, "labels": request.label_selector}
        page = self.pager.page(request, self.objects.revision, list_at, filters, "-create_time")
        return api.ListSnapshotsResponse(
            snapshots=[snapshot_message(each) for each in page.items],
            next_page_token=page.next_token,
            total_count=page.total,
        )

    async def delete(self, call: AdmittedCall) -> Message:
        request = call.request
        found = next(iter(self.objects.named(SNAPSHOTS, request.id)), None)
        if found is None:
            raise not_found("Snapshot", request.id)
        if request.etag and request.etag != snapshot_message(found).etag:
            raise etag_mismatch(request.id, is_header=call.incoming.is_etag_header)
        with reported("Snapshot", request.id):
            await self.client(call.caller).delete(SNAPSHOTS, found, dry_run=request.validate_only)
        return api.DeleteSnapshotResponse(delete_time=timestamp_of(self.now()))
