"""Plain REST API over an API server in this process."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tapestry.apiext.requests import RestRequest, RestResponse
from tapestry.apiext.resource_mapper import ResourceMapper
from tapestry.apiext.rest_api import RestApi
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import User
from tapestry.apiserver.handlers.server import Server
from tapestry.client.client import Client
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import Object
from tapestry.kube.resources import CRDS, Resource

ADMIN = User("admin", ("system:masters",))
WIDGETS = Resource("example.com", "v1", "Widget", "widgets")


@dataclass(frozen=True)
class Page:
    """Client that calls the API like the back end of a web page, as one user."""

    server: Server
    plain: RestApi = field(default_factory=lambda: RestApi(ResourceMapper()))
    user: User = ADMIN

    async def reply(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: str
    ) -> RestResponse:
        raw = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)

        async def read_body() -> bytes:
            return raw

        return await self.plain.handle(
            RestRequest(method, path, query, kind, read_body), InProcessTransport(self.server, self.user)
        )

    async def __call__(self, method: str, path: str, body: Any = None, **query: str) -> tuple[int, Any]:
        """Return the status and the body of the response."""
        reply = await self.reply(method, path, body, **query)
        return reply.status, msgspec.json.decode(reply.body)

    async def names(self, path: str, **query: str) -> list[str]:
        status, found = await self("GET", path, **query)
        assert status == 200, found
        return [each["name"] for each in found["items"]]

    async def error(self, method: str, path: str, body: Any = None, **query: str) -> tuple[int, str]:
        status, found = await self(method, path, body, **query)
        assert found["code"] == status
        assert found["reason"]
        return status, found["message"]

    def as_user(self, user: User) -> "Page":
        return Page(self.server, self.plain, user)

    @property
    def client(self) -> Client:
        """Return a client that uses the Kubernetes API directly."""
        return Client(InProcessTransport(self.server, ADMIN))


def new_definition(resource: Resource) -> Object:
    spec = {
        "color": {"type": "string"},
        "size": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    }
    preserved = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}, "status": preserved}}
    version = {"name": resource.version, "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.name},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {"plural": resource.plural, "kind": resource.kind, "shortNames": [resource.plural[:2]]},
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    """Client of a server that serves widgets."""
    config = ApiServerConfig(backend="memory", pod_accounts=False, file_rootpath=str(tmp_path), secure_address="")
    async with run_apiserver(config) as served:
        await Client(InProcessTransport(served.server, ADMIN)).create(CRDS, new_definition(WIDGETS))
        yield Page(served.server)
