"""OpenAPI and discovery: documents that say what is served, each with a tag that clients keep it by."""

from typing import Any

import msgspec
import pytest

from tapestry.apiserver.documents.openapi_v2 import v2_structural_schema
from tapestry.apiserver.requests import Call
from tapestry.apiserver.server import ApiResponse
from tapestry.kube.objects import Object

from .conftest import ADMIN, Hand

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
SCHEMA = {
    "type": "object",
    "description": "Something to try.",
    "properties": {"spec": {"type": "object", "properties": {"color": {"type": "string", "enum": ["red", "blue"]}}}},
}


def a_definition(schema: Object = SCHEMA, **versions: bool) -> Object:
    """With versions by name, and whether each is served; the first is stored."""
    names = versions or {"v1": True}
    return {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [
                {"name": name, "served": served, "storage": not number, "schema": {"openAPIV3Schema": schema}}
                for number, (name, served) in enumerate(names.items())
            ],
        },
    }


async def definitions(call: Hand) -> Any:
    status, found = await call("GET", "/openapi/v2")
    assert status == 200
    return found["definitions"]


async def conditional(call: Hand, path: str, tag: str, accept: str = "") -> ApiResponse:
    found = await call.server.handle(Call("GET", path, {}, {"if-none-match": tag, "accept": accept}, b"", ADMIN))
    assert isinstance(found, ApiResponse)
    return found


async def test_v2_has_every_custom_resource_in_the_versions_that_are_served(call: Hand) -> None:
    assert "com.example.v1.Widget" not in await definitions(call)
    made = await call.made(DEFINITIONS, a_definition(v1=True, v2=True, v3=False))
    found = await definitions(call)
    assert {name for name in found if name.startswith("com.example")} == {
        "com.example.v1.Widget",
        "com.example.v2.Widget",
    }
    widget = found["com.example.v1.Widget"]
    assert widget["properties"]["spec"] == SCHEMA["properties"]["spec"]
    assert widget["properties"]["metadata"]["$ref"] == "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    assert widget["x-kubernetes-group-version-kind"] == [{"group": "example.com", "kind": "Widget", "version": "v1"}]
    made["spec"]["versions"][1]["served"] = False
    assert (await call("PUT", f"{DEFINITIONS}/widgets.example.com", made))[0] == 200
    assert "com.example.v2.Widget" not in await definitions(call)


async def test_v2_says_nothing_where_anything_may_be(call: Hand) -> None:
    await call.made(DEFINITIONS, a_definition({"type": "object", "x-kubernetes-preserve-unknown-fields": True}))
    found = (await definitions(call))["com.example.v1.Widget"]
    assert {**found, "x-kubernetes-group-version-kind": None} == {
        "type": "object",
        "x-kubernetes-group-version-kind": None,
    }


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "nullable": True}, {}),
        ({"type": "array", "nullable": True, "items": {"type": "string"}}, {}),
        (
            {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"a": {"type": "string"}}},
            {"x-kubernetes-preserve-unknown-fields": True},
        ),
        ({"x-kubernetes-int-or-string": True, "anyOf": [{}]}, {"x-kubernetes-int-or-string": True}),
        (
            {"type": "object", "required": ["a", "b"], "properties": {"a": {"nullable": True}, "b": {"not": {}}}},
            {"type": "object", "required": ["b"], "properties": {"a": {}, "b": {}}},
        ),
        (
            {"type": "array", "items": {"type": "object", "oneOf": []}},
            {"type": "array", "items": {"type": "object"}},
        ),
    ],
)
def test_v2_leaves_out_what_it_cannot_say(schema: Object, expected: Object) -> None:
    assert v2_structural_schema(schema) == expected


async def test_v2_is_to_be_had_in_json_and_in_protobuf_alone(call: Hand) -> None:
    status, _ = await call("GET", "/openapi/v2", accept="application/xml")
    assert status == 406


async def test_every_reference_of_v2_leads_somewhere(call: Hand) -> None:
    await call.made(DEFINITIONS, a_definition())
    found = await definitions(call)
    text = msgspec.json.encode(found).decode()
    named = {each.partition('"')[0] for each in text.split('"$ref":"#/definitions/')[1:]}
    assert named
    assert named <= set(found)


@pytest.mark.parametrize(
    ("path", "accept"),
    [("/openapi/v2", ""), ("/openapi/v3", ""), ("/openapi/v3/apis/apps/v1", ""), ("/apis", AGGREGATED)],
)
async def test_who_has_a_document_is_told_so_until_it_changes(call: Hand, path: str, accept: str) -> None:
    tag = (await conditional(call, path, "", accept)).headers["ETag"]
    again = await conditional(call, path, tag, accept)
    assert (again.status, again.body) == (304, b"")
    await call.made(DEFINITIONS, a_definition())
    after = await conditional(call, path, tag, accept)
    assert after.status == (304 if path.endswith("apps/v1") else 200)


async def test_the_index_of_v3_names_the_tags_of_its_documents(call: Hand) -> None:
    _, index = await call("GET", "/openapi/v3")
    address = index["paths"]["apis/apps/v1"]["serverRelativeURL"]
    path, _, tag = address.partition("?hash=")
    document = await call.answer("GET", path, hash=tag)
    assert isinstance(document, ApiResponse)
    assert document.headers["ETag"] == f'"{tag}"'
    assert "immutable" in document.headers["Cache-Control"]


async def test_v3_explains_what_custom_resources_have_in_common(call: Hand) -> None:
    await call.made(DEFINITIONS, a_definition())
    _, found = await call("GET", "/openapi/v3/apis/example.com/v1")
    schemas = found["components"]["schemas"]
    widget = schemas["com.example.v1.Widget"]
    assert widget["description"] == SCHEMA["description"]
    assert all(widget["properties"][name]["description"] for name in ("apiVersion", "kind", "metadata"))
    metadata = schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]
    assert metadata["properties"]["creationTimestamp"]["description"]


async def test_resources_that_are_stored_as_one_have_one_hash(call: Hand) -> None:
    async def hash_of(path: str, name: str) -> str:
        _, listed = await call("GET", path)
        found: str = next(each["storageVersionHash"] for each in listed["resources"] if each["name"] == name)
        return found

    assert await hash_of("/api/v1", "pods") == "xPOwRZ+Yhw8="  # as in every Kubernetes
    assert await hash_of("/api/v1", "events") == await hash_of("/apis/events.k8s.io/v1", "events")
    scalers = "horizontalpodautoscalers"
    assert await hash_of("/apis/autoscaling/v1", scalers) == await hash_of("/apis/autoscaling/v2", scalers)


async def test_the_version_has_every_field_that_clients_insist_on(call: Hand) -> None:
    _, found = await call("GET", "/version")
    assert set(found) == {
        *("major", "minor", "gitVersion", "gitCommit", "gitTreeState"),
        *("buildDate", "goVersion", "compiler", "platform"),
        *("emulationMajor", "emulationMinor", "minCompatibilityMajor", "minCompatibilityMinor"),
    }


async def test_kubectl_of_the_same_release_takes_the_version_for_its_own(call: Hand) -> None:
    _, found = await call("GET", "/version")
    compared = ("gitVersion", "gitCommit", "gitTreeState")  # by `kubectl --match-server-version`
    release = "v1.34.3", "df11db1c0f08fab3c0baee1e5ce6efbf816af7f1", "clean"
    assert tuple(found[each] for each in compared) == release
