"""The methods of the contract that read virtual clusters, from the store of the management API in this process."""

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from google.protobuf.message import Message

from tapestry.apis.vclusters import VCLUSTERS, Phase
from tapestry.apiserver.core.store import Compacted, WatchEvent
from tapestry.kube.objects import Object, labels_of, name_of, value_at
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.errors import (
    Violation,
    field_invalid,
    not_found,
    phase_not_allowed,
    resource_version_expired,
    unavailable,
)
from tapestry.vclusters.gateway import AdmittedCall, Respond
from tapestry.vclusters.management_errors import reported
from tapestry.vclusters.model import VClusterMessages, phase_number, timestamp_of
from tapestry.vclusters.pages import Pager, is_visible, selector_of
from tapestry.vclusters.stored_objects import StoredObjects, project_in
from tapestry.vclusters.vcluster_kubeconfigs import Kubeconfig, VClusterKubeconfigs

DEFAULT_KUBECONFIG_HOURS = 24
MAX_KUBECONFIG_HOURS = 30 * 24
EXEC_FORMAT = "exec"
KUBECONFIG_FORMATS = ("", "default", "token", EXEC_FORMAT)


@dataclass(frozen=True)
class VClusterReads:
    objects: StoredObjects
    pager: Pager
    kubeconfigs: VClusterKubeconfigs
    messages: VClusterMessages

    def methods(self) -> Mapping[str, Respond]:
        return {
            "GetVCluster": self.get,
            "ListVClusters": self.list,
            "GetVClusterKubeconfig": self.kubeconfig,
        }

    def project_of(self, method: str, request: Any) -> str | None:
        """Return the project in which a request acts: empty if in none, and None if what it names does not exist."""
        if method == "ListVClusters":
            project: str = request.project
            return project
        return "" if method == "WatchVCluster" else project_in(find_vcluster(self.objects, request))

    async def get(self, call: AdmittedCall) -> Message:
        vcluster = found_vcluster(self.objects, call.request)
        if not call.request.include_kubeconfig:
            return api.GetVClusterResponse(vcluster=self.messages.of(vcluster))
        issued = await self._issue(call, vcluster, DEFAULT_KUBECONFIG_HOURS)
        response = api.GetVClusterResponse(vcluster=self.messages.of(vcluster))
        response.vcluster.status.kubeconfig = issued.in_base64
        return response

    async def list(self, call: AdmittedCall) -> Message:
        request, caller = call.request, call.caller
        selector = selector_of(request.label_selector)
        phases = frozenset(request.phases)

        checks: list[Callable[[Object], bool]] = [lambda each: is_visible(caller, each)]
        if request.project:
            checks.append(lambda each: project_in(each) == request.project)
        if request.owner:
            checks.append(lambda each: value_at(each, "spec", "owner") == request.owner)
        if phases:
            checks.append(lambda each: self._phase(each) in phases)
        if request.label_selector:
            checks.append(lambda each: selector.matches(labels_of(each)))

        def list_at(revision: int) -> list[Object]:
            found = self.objects.at_revision(VCLUSTERS, request.namespace, revision)
            for check in checks:
                found = list(filter(check, found))
            return found

        filters = {
            "method": call.method,
            "user": caller.user,
            "namespace": request.namespace,
            "labels": request.label_selector,
            "phases": sorted(phases),
            "owner": request.owner,
            "project": request.project,
        }
        page = self.pager.page(request, self.objects.revision, list_at, filters, request.order_by)
        return api.ListVClustersResponse(
            vclusters=[self.messages.of(each) for each in page.items],
            next_page_token=page.next_token,
            total_count=page.total,
        )

    def _phase(self, vcluster: Object) -> int:
        phase = value_at(vcluster, "status", "phase")
        number: int = phase_number(phase, is_compatible=self.messages.is_compatible)
        return number

    async def watch(self, call: AdmittedCall) -> AsyncGenerator[Message, None]:
        """Yield all virtual clusters that match, or those that have changed since a version, and all later changes."""
        request, store = call.request, self.objects.store
        selector = selector_of(request.label_selector)

        def matches(vcluster: Object | None) -> bool:
            return (
                vcluster is not None
                and is_visible(call.caller, vcluster)
                and request.name in ("", name_of(vcluster))
                and selector.matches(labels_of(vcluster))
            )

        after = version_in(request.resource_version, self.objects.revision)
        existing = self.objects.all(VCLUSTERS, request.namespace) if not request.resource_version else []
        try:
            subscription = store.watch(VCLUSTERS.name, request.namespace, after=after)
        except Compacted as error:
            raise resource_version_expired(error.oldest) from error
        try:
            for each in existing:
                if matches(each):
                    yield api.WatchVClusterResponse(type="WATCH_EVENT_TYPE_ADDED", vcluster=self.messages.of(each))
            while True:
                for event in await subscription.next_events():
                    if (response := self._watch_response(event, matches)) is not None:
                        yield response
                if subscription.dropped:
                    raise resource_version_expired(self.objects.revision)
                if subscription.is_finished:
                    raise unavailable("the service is stopping; watch again from the last version")
        finally:
            store.unwatch(VCLUSTERS.name, subscription)

    def _watch_response(self, event: WatchEvent, matches: Callable[[Object | None], bool]) -> Message | None:
        old = self.objects.decoded(event.old) if event.old is not None else None
        new = self.objects.decoded(event.new) if event.new is not None else None
        was, is_now = matches(old), matches(new)
        if is_now and new is not None:
            type = "WATCH_EVENT_TYPE_MODIFIED" if was else "WATCH_EVENT_TYPE_ADDED"
            return api.WatchVClusterResponse(type=type, vcluster=self.messages.of(new))
        if not was or old is None:
            return None
        last = api.VCluster()
        last.CopyFrom(self.messages.of(old))
        last.resource_version = str(event.revision)
        return api.WatchVClusterResponse(type="WATCH_EVENT_TYPE_DELETED", vcluster=last)

    async def kubeconfig(self, call: AdmittedCall) -> Message:
        request = call.request
        if request.format not in KUBECONFIG_FORMATS:
            raise field_invalid(Violation("format", "must be default, token or exec"))
        hours = request.validity_hours or DEFAULT_KUBECONFIG_HOURS
        if not 0 < hours <= MAX_KUBECONFIG_HOURS:
            raise field_invalid(Violation("validityHours", f"must be from 1 to {MAX_KUBECONFIG_HOURS}"))
        vcluster = found_vcluster(self.objects, request)
        issued = await self._issue(call, vcluster, None if request.format == EXEC_FORMAT else hours)
        return api.GetVClusterKubeconfigResponse(
            kubeconfig=issued.in_base64,
            api_server_endpoint=issued.server,
            expires_at=timestamp_of(issued.expires),
        )

    async def _issue(self, call: AdmittedCall, vcluster: Object, hours: int | None) -> Kubeconfig:
        """Return a kubeconfig with a credential for some hours, or for None with a program that gets credentials."""
        phase = value_at(vcluster, "status", "phase") or Phase.PENDING
        if phase in (Phase.PENDING, Phase.SUSPENDED, Phase.DELETING):
            raise phase_not_allowed(name_of(vcluster), "GetKubeconfig", Phase(phase), [Phase.RUNNING])
        with reported("VCluster", name_of(vcluster)):
            if hours is None:
                return await self.kubeconfigs.with_plugin(vcluster, call.caller)
            return await self.kubeconfigs.issue(vcluster, call.caller, timedelta(hours=hours))


def find_vcluster(objects: StoredObjects, request: Any) -> Object | None:
    """Return the virtual cluster that a request names, or that has its id."""
    if id := getattr(request, "id", ""):
        return objects.with_uid(VCLUSTERS, id)
    return objects.get(VCLUSTERS, request.namespace, request.name)


def found_vcluster(objects: StoredObjects, request: Any) -> Object:
    found = find_vcluster(objects, request)
    if found is None:
        raise not_found("VCluster", request.name)
    return found


def version_in(text: str, current: int) -> int:
    """Return the version from which a watch continues. Raises ServiceError."""
    if not text:
        return current
    if not text.isdecimal() or len(text) > 19 or int(text) > current:
        raise field_invalid(Violation("resourceVersion", "must be that of an event or of a virtual cluster"))
    return int(text)
