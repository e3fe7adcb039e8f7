"""Connections to what runs: exec, attach, port forwarding and proxying.

Who may have one is decided here, as it will be when they are served; the streams themselves are not, and say so.
"""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tapestry.apiserver import refusals
from tapestry.apiserver.admission.matching import Attempt, kind_of
from tapestry.apiserver.admission.webhooks import Webhooks
from tapestry.apiserver.requests import Call, Target
from tapestry.apiserver.server import TRUE, Answer
from tapestry.apiserver.storage.store import Store
from tapestry.apiserver.verbs import Request
from tapestry.kube.errors import ServerError
from tapestry.kube.objects import Object

CONNECTIONS = (
    *(("pods", each) for each in ("exec", "attach", "portforward", "proxy")),
    *((each, "proxy") for each in ("services", "nodes")),
)
PORT = re.compile("[0-9]{1,5}")
SWITCHES, LISTS, NUMBERS = ("stdin", "stdout", "stderr", "tty"), ("command",), ("ports",)


@dataclass(frozen=True)
class Connections:
    """Answers whoever wants a stream."""

    store: Store
    webhooks: Webhooks

    async def handle(self, call: Call, target: Target) -> Answer:
        name = target.name.split(":")[-2 if target.name.count(":") > 1 else 0]  # of a proxy: scheme:name:port
        if self.store.get(target.row.storage, target.namespace, name) is None:
            raise refusals.not_found(target.row.resource, name)
        kind = kind_of(target.row, target.subresource)
        wanted = {"kind": kind.kind, "apiVersion": kind.api_version, **options(call)}
        request = Request("create", target, call.user, call.query, notes=call.notes)
        attempt = Attempt(
            "CONNECT",
            target.row.resource,
            target.subresource,
            kind,
            target.namespace,
            target.name,
            call.user,
            dry=False,
            new=wanted,
            old=None,
        )
        await self.webhooks.admit(request, attempt)
        resource = target.row.resource
        why = f"{resource.plural}/{target.subresource} is not served by this server: connect to the kubelet instead"
        raise ServerError(501, "NotImplemented", why, details=refusals.details(resource, target.name))


def options(call: Call) -> Object:
    """What the query asks for, as an object."""
    found: dict[str, Any] = {}
    for name, values in parse_qs(urlsplit(call.uri).query).items():
        if name in SWITCHES:
            found[name] = values[-1] in TRUE
        elif name in NUMBERS:
            found[name] = [int(each) for value in values for each in value.split(",") if PORT.fullmatch(each)]
        else:
            found[name] = values if name in LISTS else values[-1]
    return found
