"""Connect subresources: exec, attach, portforward and proxy.

Requests are authorized and admitted. The streams themselves are not implemented, and the server responds with 501.
"""

import re
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tapestry.apiserver.admission.matching import admission_attributes, subresource_kind
from tapestry.apiserver.admission.webhooks import AdmissionWebhooks
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import TRUE_VALUES, Call, Target, WriteRequest
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.core.store import Store
from tapestry.kube.errors import ServerError
from tapestry.kube.objects import Object

CONNECT_SUBRESOURCES = (
    *(("pods", each) for each in ("exec", "attach", "portforward", "proxy")),
    *((each, "proxy") for each in ("services", "nodes")),
)
PORT = re.compile("[0-9]{1,5}")
BOOLEAN_OPTIONS, LIST_OPTIONS, NUMBER_OPTIONS = ("stdin", "stdout", "stderr", "tty"), ("command",), ("ports",)


@dataclass(frozen=True)
class ConnectHandler:
    """Handles requests for a stream."""

    store: Store
    webhooks: AdmissionWebhooks

    async def handle(self, call: Call, target: Target) -> ApiResponse:
        name = target.name.split(":")[-2 if target.name.count(":") > 1 else 0]  # scheme:name:port of a proxy
        if self.store.get(target.info.storage, target.namespace, name) is None:
            raise api_errors.not_found(target.info.resource, name)
        kind = subresource_kind(target.info, target.subresource)
        options = {"kind": kind.kind, "apiVersion": kind.api_version, **connect_options(call)}
        request = WriteRequest("create", target, call.user, call.query, audit_annotations=call.audit_annotations)
        attributes = admission_attributes(request, None, options)
        await self.webhooks.admit(request, replace(attributes, operation="CONNECT", is_dry_run=False))
        resource = target.info.resource
        message = f"{resource.plural}/{target.subresource} is not served by this server: connect to the kubelet instead"
        raise ServerError(501, "NotImplemented", message, details=api_errors.status_details(resource, target.name))


def connect_options(call: Call) -> Object:
    """The options of the query, as an object."""
    options: dict[str, Any] = {}
    for name, values in parse_qs(urlsplit(call.uri).query).items():
        if name in BOOLEAN_OPTIONS:
            options[name] = values[-1] in TRUE_VALUES
        elif name in NUMBER_OPTIONS:
            options[name] = [int(each) for value in values for each in value.split(",") if PORT.fullmatch(each)]
        else:
            options[name] = values if name in LIST_OPTIONS else values[-1]
    return options
