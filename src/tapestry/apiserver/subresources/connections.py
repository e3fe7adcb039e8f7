"""Connections to what runs: exec, attach, port forwarding and proxying.

Who may have one is decided here, as it will be when they are served; the streams themselves are not, and say so.
"""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tapestry.apiserver import api_errors
from tapestry.apiserver.admission.matching import AdmissionAttributes, subresource_kind
from tapestry.apiserver.admission.webhooks import AdmissionWebhooks
from tapestry.apiserver.requests import Call, Target
from tapestry.apiserver.server import TRUE_VALUES, ApiResponse
from tapestry.apiserver.storage.store import Store
from tapestry.apiserver.verbs import WriteRequest
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
    """Answers whoever wants a stream."""

    store: Store
    webhooks: AdmissionWebhooks

    async def handle(self, call: Call, target: Target) -> ApiResponse:
        name = target.name.split(":")[-2 if target.name.count(":") > 1 else 0]  # of a proxy: scheme:name:port
        if self.store.get(target.info.storage, target.namespace, name) is None:
            raise api_errors.not_found(target.info.resource, name)
        kind = subresource_kind(target.info, target.subresource)
        wanted = {"kind": kind.kind, "apiVersion": kind.api_version, **connect_options(call)}
        request = WriteRequest("create", target, call.user, call.query, audit_annotations=call.audit_annotations)
        attempt = AdmissionAttributes(
            "CONNECT",
            target.info.resource,
            target.subresource,
            kind,
            target.namespace,
            target.name,
            call.user,
            is_dry_run=False,
            new=wanted,
            old=None,
        )
        await self.webhooks.admit(request, attempt)
        resource = target.info.resource
        why = f"{resource.plural}/{target.subresource} is not served by this server: connect to the kubelet instead"
        raise ServerError(501, "NotImplemented", why, details=api_errors.status_details(resource, target.name))


def connect_options(call: Call) -> Object:
    """What the query asks for, as an object."""
    found: dict[str, Any] = {}
    for name, values in parse_qs(urlsplit(call.uri).query).items():
        if name in BOOLEAN_OPTIONS:
            found[name] = values[-1] in TRUE_VALUES
        elif name in NUMBER_OPTIONS:
            found[name] = [int(each) for value in values for each in value.split(",") if PORT.fullmatch(each)]
        else:
            found[name] = values if name in LIST_OPTIONS else values[-1]
    return found
