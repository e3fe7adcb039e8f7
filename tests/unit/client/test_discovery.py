"""API discovery."""

from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.discovery import discovered_resources, is_served, served_resources
from tapestry.client.transport import Request, Response
from tapestry.controller.testing import InProcessApi
from tapestry.controller.testing.clock import START
from tapestry.kube.errors import TransportError, Unavailable
from tapestry.kube.objects import Object
from tapestry.kube.resources import CONFIGMAPS, DEPLOYMENTS, PODS, Resource

from .script import BINDINGS, ScriptedTransport, error_response, response_of

OLD, NEW = (Resource("example.com", version, "Widget", "widgets") for version in ("v1", "v2"))


class ScriptedDiscovery(ScriptedTransport):
    """A server with a scripted response for each path."""

    def __init__(self, accounts: dict[str, Any]) -> None:
        super().__init__()
        self.accounts = accounts

    async def send(self, request: Request) -> Response:
        found = self.accounts[request.path]
        return found if isinstance(found, Response) else response_of(found)


def groups(**versions: list[str]) -> Object:
    found = [{"versions": [{"groupVersion": f"example.com/{each}"} for each in some]} for some in versions.values()]
    return {"kind": "APIGroupList", "groups": found}


def resources(*entries: tuple[str, str], **more: Any) -> Object:
    found = [{"name": name, "kind": kind, "namespaced": True, "verbs": ["get", "list"]} for name, kind in entries]
    return {"kind": "APIResourceList", "resources": found, **more}


@pytest.mark.parametrize(
    ("resource", "has"), [(PODS, True), (CONFIGMAPS, False), (DEPLOYMENTS, False), (BINDINGS, True)], ids=str
)
async def test_is_served_follows_the_discovery_document(resource: Resource, has: bool) -> None:
    client = Client(InProcessApi([PODS, BINDINGS], now=lambda: START))
    assert await is_served(client, resource) is has


async def test_only_named_versions_are_served() -> None:
    accounts = {"/apis": groups(widgets=["v1"]), "/apis/example.com/v1": resources(("widgets", "Widget"))}
    client = Client(ScriptedDiscovery(accounts))
    assert await is_served(client, OLD)
    assert not await is_served(client, NEW)


async def test_served_resources_lists_preferred_versions_without_subresources() -> None:
    accounts = {
        "/api/v1": resources(("pods", "Pod"), ("pods/status", "Pod")),
        "/apis": groups(widgets=["v2", "v1"]),
        "/apis/example.com/v1": resources(("widgets", "Widget"), ("gadgets", "Gadget")),
        "/apis/example.com/v2": resources(("widgets", "Widget")),
    }
    found = await served_resources(Client(ScriptedDiscovery(accounts)))
    assert set(found) == {PODS, NEW, Resource("example.com", "v1", "Gadget", "gadgets")}
    assert set(found.values()) == {frozenset({"get", "list"})}


async def test_unavailable_aggregated_api_can_be_skipped() -> None:
    accounts: dict[str, Any] = {
        "/api/v1": resources(("pods", "Pod")),
        "/apis": groups(widgets=["v2", "v1"]),
        "/apis/example.com/v1": resources(("widgets", "Widget")),
        "/apis/example.com/v2": error_response(Unavailable(503, "ServiceUnavailable", "down")),
    }
    client = Client(ScriptedDiscovery(accounts))
    with pytest.raises(Unavailable):
        await served_resources(client)
    assert set(await discovered_resources(client, skip_unavailable=True)) == {PODS, OLD}
    assert set(await served_resources(client, skip={"example.com/v2"})) == {PODS, OLD}


@pytest.mark.parametrize("resource", [PODS, DEPLOYMENTS], ids=str)
async def test_response_without_discovery_document_raises(resource: Resource) -> None:
    with pytest.raises(TransportError, match="not from an API server"):
        await is_served(Client(ScriptedTransport(response_of({"kind": "Welcome"}))), resource)
