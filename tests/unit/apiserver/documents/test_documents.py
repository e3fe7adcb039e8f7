"""OpenAPI and discovery documents, their ETags, and the version document."""

import asyncio
import gzip
import re
import zlib
from collections.abc import Callable
from hashlib import sha512
from typing import Any

import msgspec
import pytest

from tapestry.apiserver.core.requests import Call, target_of
from tapestry.apiserver.core.resource_registry import ResourceRegistry, published_api
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.customresources.definitions import served_resources
from tapestry.apiserver.documents import document_cache
from tapestry.apiserver.documents.document_cache import IDLE_SECONDS, Document, DocumentCache
from tapestry.apiserver.documents.openapi_v2 import v2_structural_schema
from tapestry.apiserver.documents.openapi_v2_protobuf import CONTENT_TYPE, encode_document
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.controller.testing import run
from tapestry.kube.objects import Object

from ..conftest import ADMIN, ServerClient

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
SCHEMA = {
    "type": "object",
    "description": "Something to try.",
    "properties": {"spec": {"type": "object", "properties": {"color": {"type": "string", "enum": ["red", "blue"]}}}},
}


def definition_body(schema: Object = SCHEMA, **versions: bool) -> Object:
    """A definition with versions by name and whether each is served. The first is the storage version."""
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


async def definitions(call: ServerClient) -> Any:
    status, document = await call("GET", "/openapi/v2")
    assert status == 200
    return document["definitions"]


async def conditional_get(call: ServerClient, path: str, tag: str, accept: str = "") -> ApiResponse:
    response = await call.server.handle(Call("GET", path, {}, {"if-none-match": tag, "accept": accept}, b"", ADMIN))
    assert isinstance(response, ApiResponse)
    return response


async def test_v2_has_served_versions_of_custom_resources(call: ServerClient) -> None:
    assert "com.example.v1.Widget" not in await definitions(call)
    created = await call.made(DEFINITIONS, definition_body(v1=True, v2=True, v3=False))
    schemas = await definitions(call)
    assert {name for name in schemas if name.startswith("com.example")} == {
        *("com.example.v1.Widget", "com.example.v1.WidgetList"),
        *("com.example.v2.Widget", "com.example.v2.WidgetList"),
    }
    widget = schemas["com.example.v1.Widget"]
    assert widget["properties"]["spec"] == SCHEMA["properties"]["spec"]
    assert widget["properties"]["metadata"]["$ref"] == "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    assert widget["x-kubernetes-group-version-kind"] == [{"group": "example.com", "kind": "Widget", "version": "v1"}]
    created["spec"]["versions"][1]["served"] = False
    assert (await call("PUT", f"{DEFINITIONS}/widgets.example.com", created))[0] == 200
    assert "com.example.v2.Widget" not in await definitions(call)


async def test_v2_has_no_schema_if_unknown_fields_are_preserved(call: ServerClient) -> None:
    await call.made(DEFINITIONS, definition_body({"type": "object", "x-kubernetes-preserve-unknown-fields": True}))
    schemas = (await definitions(call))["com.example.v1.Widget"]
    assert {**schemas, "x-kubernetes-group-version-kind": None} == {
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
def test_v2_omits_unsupported_constraints(schema: Object, expected: Object) -> None:
    assert v2_structural_schema(schema) == expected


async def test_v2_rejects_other_media_types(call: ServerClient) -> None:
    status, _ = await call("GET", "/openapi/v2", accept="application/xml")
    assert status == 406


async def test_v2_references_exist(call: ServerClient) -> None:
    await call.made(DEFINITIONS, definition_body())
    schemas = await definitions(call)
    text = msgspec.json.encode(schemas).decode()
    references = {each.partition('"')[0] for each in text.split('"$ref":"#/definitions/')[1:]}
    assert references
    assert references <= set(schemas)


@pytest.mark.parametrize(
    ("path", "accept"),
    [("/openapi/v2", ""), ("/openapi/v3", ""), ("/openapi/v3/apis/apps/v1", ""), ("/apis", AGGREGATED)],
)
async def test_document_with_current_etag_is_not_modified(call: ServerClient, path: str, accept: str) -> None:
    tag = (await conditional_get(call, path, "", accept)).headers["ETag"]
    again = await conditional_get(call, path, tag, accept)
    assert (again.status, again.body) == (304, b"")
    await call.made(DEFINITIONS, definition_body())
    after = await conditional_get(call, path, tag, accept)
    assert after.status == (304 if path.endswith("apps/v1") else 200)


async def test_v3_index_has_hashes_of_documents(call: ServerClient) -> None:
    _, index = await call("GET", "/openapi/v3")
    address = index["paths"]["apis/apps/v1"]["serverRelativeURL"]
    path, _, tag = address.partition("?hash=")
    document = await call.answer("GET", path, hash=tag)
    assert isinstance(document, ApiResponse)
    assert document.headers["ETag"] == f'"{tag}"'
    assert "immutable" in document.headers["Cache-Control"]


async def test_documents_of_custom_resources_follow_their_schemas(call: ServerClient) -> None:
    """Parts that are cached are those that would be built now, in each form."""
    created = await call.made(DEFINITIONS, definition_body())
    for color in ("green", "yellow"):
        _, index = await call("GET", "/openapi/v3")
        path, _, tag = index["paths"]["apis/example.com/v1"]["serverRelativeURL"].partition("?hash=")
        document = await call.answer("GET", path, hash=tag)
        assert isinstance(document, ApiResponse)
        assert document.headers["ETag"] == f'"{tag}"'
        swagger = await call.answer("GET", "/openapi/v2")
        assert isinstance(swagger, ApiResponse)
        protobuf = await call.answer("GET", "/openapi/v2", accept=CONTENT_TYPE)
        assert isinstance(protobuf, ApiResponse)
        assert protobuf.body == encode_document(msgspec.json.decode(swagger.body))
        schema = created["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        schema["properties"]["spec"]["properties"]["color"]["enum"] = [color]
        status, created = await call("PUT", f"{DEFINITIONS}/widgets.example.com", created)
        assert status == 200
        widget = (await definitions(call))["com.example.v1.Widget"]
        assert widget["properties"]["spec"]["properties"]["color"]["enum"] == [color]


async def test_v3_describes_metadata_of_custom_resources(call: ServerClient) -> None:
    await call.made(DEFINITIONS, definition_body())
    _, document = await call("GET", "/openapi/v3/apis/example.com/v1")
    schemas = document["components"]["schemas"]
    widget = schemas["com.example.v1.Widget"]
    assert widget["description"] == SCHEMA["description"]
    assert all(widget["properties"][name]["description"] for name in ("apiVersion", "kind", "metadata"))
    metadata = schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]
    assert metadata["properties"]["creationTimestamp"]["description"]


async def test_documented_paths_are_served(call: ServerClient) -> None:
    await call.made(DEFINITIONS, definition_body())
    _, index = await call("GET", "/openapi/v3")
    _, swagger = await call("GET", "/openapi/v2")
    paths = {path for name in index["paths"] for path in (await call("GET", f"/openapi/v3/{name}"))[1]["paths"]}
    assert paths <= set(swagger["paths"])
    assert "/apis/example.com/v1/namespaces/{namespace}/widgets/{name}" in paths
    resources = {path for path in paths if re.match("/api/v1/.|/apis/[^/]+/[^/]+/.", path)}
    assert len(resources) > 150
    for path in resources:
        target_of(re.sub("{[a-z]+}", "x", path), call.server.registry)
    for path in (each for each in paths - resources if "openid" not in each):  # served only with service accounts
        assert (await call("GET", path))[0] == 200, path


async def test_custom_resource_has_paths_of_its_subresources(call: ServerClient) -> None:
    await call.made(DEFINITIONS, definition_body())
    _, document = await call("GET", "/openapi/v3/apis/example.com/v1")
    paths = "/apis/example.com/v1/namespaces/{namespace}/widgets"
    assert set(document["paths"]) == {"/apis/example.com/v1/widgets", paths, f"{paths}/{{name}}"}
    assert document["paths"][paths]["get"]["operationId"] == "listExampleComV1NamespacedWidget"
    assert document["paths"][paths]["get"]["tags"] == ["exampleCom_v1"]
    assert "com.example.v1.WidgetList" in document["components"]["schemas"]


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("", False), ("gzip;q=0", False), ("gzip; q=0.0, br", False)],
)
async def test_openapi_is_compressed_if_accepted(call: ServerClient, accepted: str, compressed: bool) -> None:
    headers = {"accept-encoding": accepted}
    response = await call.server.handle(Call("GET", "/openapi/v3/api/v1", {}, headers, b"", ADMIN))
    assert isinstance(response, ApiResponse)
    assert (response.headers.get("Content-Encoding") == "gzip") is compressed
    body = gzip.decompress(response.body) if compressed else response.body
    assert response.headers["ETag"] == f'"{sha512(body).hexdigest().upper()}"'


@pytest.mark.parametrize("path", ["/api", "/apis"])
async def test_discovery_is_formatted_and_never_compressed(call: ServerClient, path: str) -> None:
    handler = RequestHandler(call.server, 60.0)
    headers = {"accept-encoding": "gzip", "accept": AGGREGATED}
    response = await handler.handle(Call("GET", path, {}, headers, b"", ADMIN))
    assert isinstance(response, ApiResponse)
    assert "Content-Encoding" not in response.headers
    assert response.body.endswith(b"}\n")
    assert msgspec.json.decode(response.body)["kind"] == "APIGroupDiscoveryList"


@pytest.mark.parametrize("path", ["/openapi/v2", "/openapi/v3", "/openapi/v3/apis/apps/v1"])
async def test_compressed_documents_are_sent_unchanged(call: ServerClient, path: str) -> None:
    handler = RequestHandler(call.server, 60.0)
    response = await handler.handle(Call("GET", path, {}, {"accept-encoding": "gzip"}, b"", ADMIN))
    assert isinstance(response, ApiResponse)
    assert response.headers["Content-Encoding"] == "gzip"
    decompressor = zlib.decompressobj(wbits=31)
    assert msgspec.json.decode(decompressor.decompress(response.body))
    assert decompressor.eof
    assert decompressor.unused_data == b""


def new_registry(*definitions: Object) -> ResourceRegistry:
    registry = ResourceRegistry(published_api().resources)
    for each in definitions:
        for info in served_resources(each):
            registry.add(info)
    return registry


async def all_documents(cache: DocumentCache) -> list[Document]:
    """The documents that are not recorded."""
    discovery = [await cache.aggregated_discovery(legacy=legacy) for legacy in (True, False)]
    return [*discovery, await cache.openapi_v3_index(), await cache.openapi_v2_protobuf()]


async def test_servers_without_custom_resources_share_documents() -> None:
    shared: dict[str, Document] = {}
    first, second = DocumentCache(new_registry(), shared), DocumentCache(new_registry(), shared)
    for one, other in zip(await all_documents(first), await all_documents(second), strict=True):
        assert one is other


async def test_documents_with_custom_resources_are_not_shared() -> None:
    shared: dict[str, Document] = {}
    registry = new_registry()
    before = await all_documents(DocumentCache(registry, shared))
    with_custom = DocumentCache(registry, shared)
    for info in served_resources(definition_body()):
        registry.add(info)
    assert b"widgets" in gzip.decompress((await with_custom.aggregated_discovery(legacy=False)).body)
    assert (await with_custom.openapi_v3_index()).etag != before[2].etag
    assert await all_documents(DocumentCache(new_registry(), shared)) == before
    with_custom.close()


async def test_document_that_is_outdated_when_built_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: dict[str, Document] = {}
    registry = new_registry()

    async def define_meanwhile(_: int, make: Callable[[], Document]) -> Document:
        for info in served_resources(definition_body()):
            registry.add(info)
        return make()

    monkeypatch.setattr(document_cache, "run_if_large", define_meanwhile)
    assert b"widgets" in gzip.decompress(
        (await DocumentCache(registry, shared).aggregated_discovery(legacy=False)).body
    )
    assert shared == {}


def test_documents_with_custom_resources_are_dropped_when_idle() -> None:
    async def use_and_wait() -> None:
        cache = DocumentCache(new_registry(definition_body()), {})
        path = "apis/example.com/v1"
        first, group = await all_documents(cache), await cache.openapi_v3(path)
        for _ in range(3):  # each use counts
            await asyncio.sleep(IDLE_SECONDS - 1)
            assert await cache.openapi_v3(path) is group
        assert all(one is other for one, other in zip(first, await all_documents(cache), strict=True))
        await asyncio.sleep(IDLE_SECONDS + 1)
        again = await all_documents(cache)
        assert again == first
        assert not any(one is other for one, other in zip(first, again, strict=True))
        assert await cache.openapi_v3(path) is not group
        cache.close()

    run(use_and_wait())


async def test_resources_with_same_storage_have_same_hash(call: ServerClient) -> None:
    async def hash_of(path: str, name: str) -> str:
        _, listed = await call("GET", path)
        version_hash: str = next(each["storageVersionHash"] for each in listed["resources"] if each["name"] == name)
        return version_hash

    assert await hash_of("/api/v1", "pods") == "xPOwRZ+Yhw8="  # the same as in Kubernetes
    assert await hash_of("/api/v1", "events") == await hash_of("/apis/events.k8s.io/v1", "events")
    scalers = "horizontalpodautoscalers"
    assert await hash_of("/apis/autoscaling/v1", scalers) == await hash_of("/apis/autoscaling/v2", scalers)


async def test_version_has_all_fields(call: ServerClient) -> None:
    _, document = await call("GET", "/version")
    assert set(document) == {
        *("major", "minor", "gitVersion", "gitCommit", "gitTreeState"),
        *("buildDate", "goVersion", "compiler", "platform"),
        *("emulationMajor", "emulationMinor", "minCompatibilityMajor", "minCompatibilityMinor"),
    }


async def test_version_matches_kubectl_of_same_release(call: ServerClient) -> None:
    _, document = await call("GET", "/version")
    compared = ("gitVersion", "gitCommit", "gitTreeState")  # compared by `kubectl --match-server-version`
    release = "v1.34.3", "df11db1c0f08fab3c0baee1e5ce6efbf816af7f1", "clean"
    assert tuple(document[each] for each in compared) == release
