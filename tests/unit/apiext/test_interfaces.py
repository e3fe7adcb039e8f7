"""HTTP interfaces that authors add to their kinds."""

import asyncio
from typing import Annotated, Any

import pytest
from msgspec import Meta

from tapestry.apiext import interfaces
from tapestry.apiext.interfaces import HttpCall, routes_of
from tapestry.apiext.resource_mapper import ResourceMapper
from tapestry.apiext.rest_api import RestApi
from tapestry.apiserver.core.requests import User
from tapestry.kube.api_types import ApiStruct
from tapestry.kube.crds import Kind
from tapestry.kube.objects import Object, name_of
from tapestry.kube.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES

from .conftest import WIDGETS, Page


class WidgetSpec(ApiStruct):
    size: int = 0


class Resize(ApiStruct):
    new_size: Annotated[int, Meta(ge=1, le=5)]


class Size(ApiStruct):
    size: int


WIDGET = Kind(WIDGETS, WidgetSpec)


@WIDGET.http("POST", "/resize")
async def resize(call: HttpCall, arguments: Resize) -> Size:
    """Change the size of a widget."""
    patch = {"spec": {"size": arguments.new_size}}
    changed = await call.client.patch(WIDGETS, call.object, patch)
    return Size(changed["spec"]["size"])


@WIDGET.http("GET", "/times")
async def multiply(call: HttpCall, arguments: Resize) -> Object:
    return {"name": name_of(call.object), "product": call.object["spec"]["size"] * arguments.new_size}


@WIDGET.http("DELETE", "/nothing")
async def delete_nothing(_: HttpCall) -> None: ...


@WIDGET.http("POST", "/fail")
async def fail(_: HttpCall) -> None:
    raise RuntimeError("the password is secret")


@WIDGET.http("POST", "/wait")
async def wait(_: HttpCall) -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def widgets(page: Page) -> Page:
    """Client of an API with the interfaces above, and a widget of size 2."""
    found = Page(page.server, RestApi(ResourceMapper(), routes_of([WIDGET])), page.user)
    assert (await found("POST", "/v1/widgets", {"name": "a", "spec": {"size": 2}}))[0] == 201
    return found


async def test_handler_gets_typed_arguments_and_object(widgets: Page) -> None:
    assert await widgets("POST", "/v1/widgets/a/resize", {"newSize": 3}) == (200, {"size": 3})
    assert await widgets("GET", "/v1/widgets/a/times", newSize="4") == (200, {"name": "a", "product": 12})
    reply = await widgets.reply("DELETE", "/v1/wi/a/nothing")
    assert (reply.status, reply.body) == (204, b"")


@pytest.mark.parametrize(
    ("method", "path", "body", "query", "status"),
    [
        ("POST", "/v1/widgets/a/resize", {"newSize": 9}, {}, 400),
        ("POST", "/v1/widgets/a/resize", {"newSize": "3"}, {}, 400),
        ("POST", "/v1/widgets/a/resize", {"newSize": 3, "other": 1}, {}, 400),
        ("POST", "/v1/widgets/a/resize", [], {}, 400),
        ("POST", "/v1/widgets/a/resize", None, {}, 400),
        ("POST", "/v1/widgets/a/resize", {"newSize": 3}, {"newSize": "3"}, 400),
        ("GET", "/v1/widgets/a/times", None, {"newSize": "x"}, 400),
        ("GET", "/v1/widgets/a/resize", None, {}, 405),
        ("POST", "/v1/widgets/b/resize", {"newSize": 3}, {}, 404),
        ("POST", "/v1/widgets/a/unknown", {}, {}, 404),
        ("POST", "/v1/configmaps/a/resize", {}, {}, 404),
    ],
)
async def test_invalid_calls_are_rejected(
    widgets: Page, method: str, path: str, body: Any, query: dict[str, str], status: int
) -> None:
    assert (await widgets.error(method, path, body, **query))[0] == status


async def test_caller_needs_right_to_subresource(widgets: Page) -> None:
    bob = widgets.as_user(User("bob", ("system:authenticated",)))
    status, message = await bob.error("POST", "/v1/widgets/a/resize", {"newSize": 3})
    refusal = "you may not create widgets.example.com/resize in namespace default"
    assert (status, message.partition(";")[0]) == (403, refusal)

    async def allow(*rules: tuple[str, str]) -> None:
        name = f"rights-{len(rules)}"
        listed = [{"apiGroups": ["example.com"], "resources": [each], "verbs": [verb]} for each, verb in rules]
        await widgets.client.create(CLUSTER_ROLES, {"metadata": {"name": name}, "rules": listed})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}
        await widgets.client.create(
            CLUSTER_ROLE_BINDINGS, {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
        )

    await allow(("widgets/resize", "create"))
    status, message = await bob.error("POST", "/v1/widgets/a/resize", {"newSize": 3})
    assert (status, "cannot get" in message) == (403, True)
    await allow(("widgets/resize", "create"), ("widgets", "get"))
    status, message = await bob.error("POST", "/v1/widgets/a/resize", {"newSize": 3})
    assert (status, "cannot patch" in message) == (403, True)  # the client of the handler has the caller's rights
    await allow(("widgets/resize", "create"), ("widgets", "get"), ("widgets", "patch"))
    assert await bob("POST", "/v1/widgets/a/resize", {"newSize": 3}) == (200, {"size": 3})


async def test_failed_handler_reveals_nothing(widgets: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    status, message = await widgets.error("POST", "/v1/widgets/a/fail")
    assert (status, message) == (500, "POST widgets.example.com/fail failed; see the log of this process")
    monkeypatch.setattr(interfaces, "HANDLER_SECONDS", 0.01)
    assert (await widgets.error("POST", "/v1/widgets/a/wait"))[0] == 504


async def test_openapi_and_index_name_the_interfaces(widgets: Page) -> None:
    _, document = await widgets("GET", "/openapi.json")
    posted = document["paths"]["/apiext/v1/widgets.example.com/{name}/resize"]["post"]
    assert posted["summary"] == "Change the size of a widget."
    schema = posted["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["newSize"] == {"type": "integer", "minimum": 1, "maximum": 5}
    assert "size" in posted["responses"]["200"]["content"]["application/json"]["schema"]["properties"]
    read = document["paths"]["/apiext/v1/widgets.example.com/{name}/times"]["get"]
    assert [(each["name"], each.get("required")) for each in read["parameters"]][-1] == ("newSize", True)
    identities = [each["operationId"] for path in document["paths"].values() for each in path.values()]
    assert len(identities) == len(set(identities))
    _, index = await widgets("GET", "/v1")
    (listed,) = [each["actions"] for each in index["kinds"] if each["name"] == "widgets"]
    assert listed == ["POST /resize", "GET /times", "DELETE /nothing", "POST /fail", "POST /wait"]


def test_unsupported_handlers_are_refused() -> None:
    kind = Kind(WIDGETS, WidgetSpec)

    def blocking(_: HttpCall) -> None: ...
    async def untyped(_: HttpCall, arguments: dict[str, str]) -> None: ...
    async def fine(_: HttpCall) -> None: ...

    with pytest.raises(TypeError, match="async def"):
        kind.http("POST", "/a")(blocking)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="annotate arguments with a Struct"):
        kind.http("POST", "/a")(untyped)
    with pytest.raises(TypeError, match="a path of one segment"):
        kind.http("POST", "/a/b")(fine)
    kind.http("POST", "/a")(fine)
    with pytest.raises(ValueError, match="has two handlers"):
        kind.http("POST", "/a")(fine)
