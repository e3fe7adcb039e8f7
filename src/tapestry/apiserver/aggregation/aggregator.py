"""The parts of API aggregation, as the request path uses them."""

import time
from dataclasses import dataclass

from tapestry.apiserver.aggregation.api_services import ApiServices
from tapestry.apiserver.aggregation.proxy import AggregationProxy
from tapestry.apiserver.aggregation.remote_documents import RemoteDocuments
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.host_access import HostAccess
from tapestry.apiserver.core.request_bodies import read_body
from tapestry.apiserver.core.requests import APISERVER_USER, Call
from tapestry.apiserver.core.resource_registry import ResourceRegistry
from tapestry.apiserver.core.responses import ApiResponse, SessionResponse
from tapestry.apiserver.core.session_limiter import SessionLimiter
from tapestry.apiserver.core.sessions import Session
from tapestry.apiserver.core.store import Store
from tapestry.kube.errors import Unavailable


@dataclass(frozen=True)
class Aggregator:
    services: ApiServices
    proxy: AggregationProxy
    documents: RemoteDocuments
    limiter: SessionLimiter

    def is_group_version(self, path: str) -> bool:
        """Return whether a path is that of a forwarded group version, whose document its server serves."""
        service = self.services.for_path(path)
        return service is not None and path.rstrip("/") == service.path

    async def forward(self, call: Call) -> ApiResponse | SessionResponse:
        """Forward an authorized call. Raises NotFound if its path is not forwarded, and Unavailable.

        A server that failed its last check gets only checks, so that requests do not wait for it in vain.
        """
        service = self.services.for_path(call.path)
        if service is None:
            raise api_errors.path_not_found()
        if service.is_unavailable and call.user != APISERVER_USER:
            raise Unavailable(503, "ServiceUnavailable", f"service unavailable: APIService {service.name} explains why")
        if not call.is_upgrade or service.is_in_process or self.is_group_version(call.path):
            return await self.proxy.forward(await read_body(call), service)
        session = Session(call, self.limiter.acquire(call.user))
        return await session.opened(self.proxy.upgrade(call, service, session))


def build_aggregator(
    store: Store, registry: ResourceRegistry, proxy: AggregationProxy, limiter: SessionLimiter, host: HostAccess
) -> Aggregator:
    services = ApiServices(store, registry, host)
    return Aggregator(services, proxy, RemoteDocuments(services, proxy, time.monotonic), limiter)
