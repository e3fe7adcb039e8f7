"""Connect subresources: exec, attach, portforward and proxy. Requests are admitted and counted, then connected."""

import time
from dataclasses import dataclass, replace
from random import Random

from tapestry.apiserver.admission.matching import admission_attributes, subresource_kind
from tapestry.apiserver.admission.validating_policies import ValidatingPolicies
from tapestry.apiserver.admission.webhooks import AdmissionWebhooks
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.egress import AddressCheck
from tapestry.apiserver.core.requests import Call, Target, WriteRequest
from tapestry.apiserver.core.responses import ApiResponse, SessionResponse
from tapestry.apiserver.core.session_limiter import SessionLimiter
from tapestry.apiserver.core.sessions import Session
from tapestry.apiserver.core.store import Store
from tapestry.apiserver.subresources.connect_options import ConnectOptions, connect_options
from tapestry.apiserver.subresources.http_proxy import HttpProxy
from tapestry.apiserver.subresources.kubelet_client import KubeletClient
from tapestry.apiserver.subresources.pod_streams import PodStreams, RefusedProtocols
from tapestry.apiserver.subresources.proxy_locations import ProxyLocations, split_name

CONNECT_TARGETS = (
    *(("pods", each) for each in ("exec", "attach", "portforward", "proxy")),
    *((each, "proxy") for each in ("services", "nodes")),
)


@dataclass(frozen=True)
class ConnectHandler:
    """Handle requests that connect the client to another server."""

    store: Store
    policies: ValidatingPolicies
    webhooks: AdmissionWebhooks
    streams: PodStreams
    proxy: HttpProxy
    limiter: SessionLimiter

    async def handle(self, call: Call, target: Target) -> ApiResponse | SessionResponse:
        if target.subresource != "proxy" and call.method not in ("GET", "POST"):
            raise api_errors.method_not_allowed()
        resource = target.info.resource
        name = split_name(target.name, resource.kind.lower())[1] if target.subresource == "proxy" else target.name
        if self.store.get(target.info.storage, target.namespace, name) is None:
            raise api_errors.not_found(resource, name)
        options = connect_options(call, target)
        await self.admit(call, target, options)
        connect = self.proxy.connect if target.subresource == "proxy" else self.streams.connect
        session = Session(call, self.limiter.acquire(call.user))
        return await session.opened(connect(call, target, options, session))

    async def admit(self, call: Call, target: Target, options: ConnectOptions) -> None:
        """Call the admission policies and webhooks for CONNECT. Raises their error."""
        kind = subresource_kind(target.info, target.subresource)
        request = WriteRequest(
            *("create", target, call.user, call.query),
            audit_annotations=call.audit_annotations,
            origin=call.origin,
        )
        fields = {"kind": kind.kind, "apiVersion": kind.api_version, **options.fields()}
        attributes = replace(admission_attributes(request, None, fields), operation="CONNECT", is_dry_run=False)
        await self.policies.admit(request, attributes)
        await self.webhooks.admit(request, attributes)


def build_connect_handler(
    store: Store,
    policies: ValidatingPolicies,
    webhooks: AdmissionWebhooks,
    kubelets: KubeletClient,
    random: Random,
    limiter: SessionLimiter,
    check_pod: AddressCheck,
) -> ConnectHandler:
    return ConnectHandler(
        store,
        policies,
        webhooks,
        PodStreams(store, kubelets, RefusedProtocols(time.monotonic)),
        HttpProxy(ProxyLocations(store, random, check_pod), kubelets),
        limiter,
    )
