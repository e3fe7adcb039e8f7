"""What a server has, by its own account."""

from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.discovery import is_served, served_resources
from tapestry.client.transport import Request, Response
from tapestry.controller.testing import InProcessApi
from tapestry.controller.testing.clock import START
from tapestry.kube.errors import TransportError
from tapestry.kube.objects import Object
from tapestry.kube.resources import CONFIGMAPS, DEPLOYMENTS, PODS, Resource

from .script import BINDINGS, Script, answer

OLD, NEW = (Resource("example.com", version, "Widget", "widgets") for version in ("v1", "v2"))


class Accounts(Script):
    """A server that answers each path with what is written down for it."""

    def __init__(self, accounts: dict[str, Object]) -> None:
        super().__init__()
        self.accounts = accounts

    async def send(self, request: Request) -> Response:
        return answer(self.accounts[request.path])


def groups(**versions: list[str]) -> Object:
    found = [{"versions": [{"groupVersion": f"example.com/{each}"} for each in some]} for some in versions.values()]
    return {"kind": "APIGroupList", "groups": found}


def resources(*entries: tuple[str, str], **more: Any) -> Object:
    found = [{"name": name, "kind": kind, "namespaced": True, "verbs": ["get", "list"]} for name, kind in entries]
    return {"kind": "APIResourceList", "resources": found, **more}


@pytest.mark.parametrize(
    ("resource", "has"), [(PODS, True), (CONFIGMAPS, False), (DEPLOYMENTS, False), (BINDINGS, True)], ids=str
)
async def test_a_server_has_what_it_says(resource: Resource, has: bool) -> None:
    client = Client(InProcessApi([PODS, BINDINGS], now=lambda: START))
    assert await is_served(client, resource) is has


async def test_a_resource_is_had_in_the_versions_that_are_named_and_in_no_other() -> None:
    accounts = {"/apis": groups(widgets=["v1"]), "/apis/example.com/v1": resources(("widgets", "Widget"))}
    client = Client(Accounts(accounts))
    assert await is_served(client, OLD)
    assert not await is_served(client, NEW)


async def test_each_resource_is_told_once_in_the_version_that_the_server_prefers_and_no_subresource_is() -> None:
    accounts = {
        "/api/v1": resources(("pods", "Pod"), ("pods/status", "Pod")),
        "/apis": groups(widgets=["v2", "v1"]),
        "/apis/example.com/v1": resources(("widgets", "Widget"), ("gadgets", "Gadget")),
        "/apis/example.com/v2": resources(("widgets", "Widget")),
    }
    found = await served_resources(Client(Accounts(accounts)))
    assert set(found) == {PODS, NEW, Resource("example.com", "v1", "Gadget", "gadgets")}
    assert set(found.values()) == {frozenset({"get", "list"})}


@pytest.mark.parametrize("resource", [PODS, DEPLOYMENTS], ids=str)
async def test_whoever_gives_no_such_account_says_nothing_about_a_resource(resource: Resource) -> None:
    with pytest.raises(TransportError, match="not Kubernetes' own"):
        await is_served(Client(Script(answer({"kind": "Welcome"}))), resource)
