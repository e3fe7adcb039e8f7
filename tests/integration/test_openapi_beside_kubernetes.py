"""Comparison of OpenAPI documents of our API server and of a kube-apiserver."""

import asyncio
from typing import Any

import pytest

from tapestry.kube.objects import Object

from .sides import JSON, Ours, Theirs

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "open-api.example.com"
PATH = f"apis/{GROUP}/v1beta1"
PARTS = ("paths", "definitions", "parameters")
TIMEOUT = 60.0


def new_definition(plural: str, kind: str, scope: str, **subresources: Any) -> Object:
    spec = {"type": "object", "properties": {"n": {"type": "integer"}, "color": {"type": "string", "enum": ["red"]}}}
    schema = {"type": "object", "description": "Something.", "properties": {"spec": spec, "status": spec}}
    version = {"name": "v1beta1", "served": True, "storage": True, "subresources": subresources}
    return {
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {"plural": plural, "kind": kind},
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


SCALE = {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}
DEFINITIONS = [
    new_definition("bigwidgets", "BigWidget", "Namespaced", status={}, scale=SCALE),
    new_definition("gadgets", "Gadget", "Cluster", status={}),
    new_definition("things", "Thing", "Namespaced"),
]


async def document(side: Ours | Theirs, path: str) -> Any:
    if isinstance(side, Theirs):  # the content type of its index is not JSON
        headers = {"Authorization": f"Bearer {side.plane.token}"}
        async with side.session.get(f"{side.plane.url}{path}", headers=headers) as response:
            assert response.status == 200
            return await response.json(content_type=None)
    status, found = await side("GET", path, None, JSON, {})
    assert status == 200, found
    return found


def served_part(found: Any) -> Any:
    """The document without the deprecated paths, which our server does not serve."""
    return {**found, "paths": {path: each for path, each in found["paths"].items() if "/watch/" not in path}}


@pytest.fixture
async def custom_kinds(ours: Ours, theirs: Theirs) -> Any:
    """Define the same custom resources on both servers and wait until both publish them."""
    for side in (ours, theirs):
        for each in DEFINITIONS:
            status, found = await side("POST", CRDS, each, JSON, {})
            assert status == 201, found
    async with asyncio.timeout(TIMEOUT):
        for index in ("/openapi/v2", "/openapi/v3"):
            while custom_paths(await document(theirs, index)) != custom_paths(await document(ours, index)):
                pass
    yield
    for each in DEFINITIONS:
        await theirs("DELETE", f"{CRDS}/{each['metadata']['name']}", None, JSON, {})


def custom_paths(index: Any) -> set[str]:
    return {path for path in index["paths"] if path.lstrip("/").startswith(f"apis/{GROUP}")}


@pytest.mark.usefixtures("custom_kinds")
@pytest.mark.kubernetes
async def test_both_servers_publish_the_same_documents(ours: Ours, theirs: Theirs) -> None:
    groups = {each["spec"]["group"] for each in (await document(theirs, CRDS))["items"]} - {GROUP}
    our_index, their_index = [(await document(side, "/openapi/v3"))["paths"] for side in (ours, theirs)]
    assert set(our_index) == {path for path in their_index if path.split("/")[1:2] not in [[each] for each in groups]}
    for path in sorted(our_index):
        compare_documents(*[await document(side, f"/openapi/v3/{path}") for side in (ours, theirs)], groups)
    compare_documents(*[await document(side, "/openapi/v2") for side in (ours, theirs)], groups)


def compare_documents(our_document: Any, their_document: Any, groups: set[str]) -> None:
    """Compare part by part, because a whole document is too long to print. `groups` are those of other tests."""
    prefixes = tuple(f"/apis/{each}/" for each in groups) + tuple(
        ".".join([*each.split(".")[::-1], "v"]) for each in groups
    )
    schemas = [each.get("components", {}).get("schemas", {}) for each in (our_document, their_document)]
    parts = [(our_document.get(part, {}), served_part(their_document).get(part, {})) for part in PARTS]
    for our_part, their_part in (*parts, schemas):
        for key in sorted(our_part.keys() | their_part.keys()):
            if not key.startswith(prefixes):
                assert our_part.get(key) == their_part.get(key), key
