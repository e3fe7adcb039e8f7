"""Conversion webhooks for the versions of a custom resource."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver.customresources.conversions import ConversionError, with_original_metadata
from tapestry.apiserver.handlers.watches import WatchResponse
from tapestry.kube.objects import Object

from ..conftest import ServerClient
from ..hooks import Hook, listening, patching

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
V1, V2 = "/apis/example.com/v1/namespaces/default/sites", "/apis/example.com/v2/namespaces/default/sites"
MERGE = "application/merge-patch+json"
FIELDS = {"example.com/v1": "host", "example.com/v2": "address"}


def convert_sites(request: Object) -> Object:
    """Convert between v1, which has `host`, and v2, which has `address` instead."""
    version = request["desiredAPIVersion"]
    converted = []
    for obj in request["objects"]:
        spec = dict(obj.get("spec") or {})
        value = spec.pop(FIELDS[obj["apiVersion"]], None)
        converted.append({**obj, "apiVersion": version, "spec": spec | ({FIELDS[version]: value} if value else {})})
    return {"convertedObjects": converted, "result": {"status": "Success"}}


def version_body(name: str, field: str, *, storage: bool) -> Object:
    properties = {field: {"type": "string"}, "size": {"type": "integer"}}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}
    return {"name": name, "served": True, "storage": storage, "schema": {"openAPIV3Schema": schema}}


def definition_body(hook: Hook, storage: str = "v1") -> Object:
    webhook = {"clientConfig": hook.client, "conversionReviewVersions": ["v1"]}
    return {
        "metadata": {"name": "sites.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "sites", "kind": "Site"},
            "versions": [
                version_body("v1", "host", storage=storage == "v1"),
                version_body("v2", "address", storage=storage == "v2"),
            ],
            "conversion": {"strategy": "Webhook", "webhook": webhook},
        },
    }


@pytest.fixture
async def hook(call: ServerClient, tmp_path: Path) -> AsyncIterator[Hook]:
    """The webhook of a served definition."""
    async with listening(tmp_path / "pki", convert_sites) as hook:
        await call.made(CRDS, definition_body(hook))
        yield hook


def custom_object(name: str, **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": spec}


async def test_get_returns_the_requested_version(call: ServerClient, hook: Hook) -> None:
    created = await call.made(V1, custom_object("a", host="here", size=3))
    assert hook.requests == []
    _, other = await call("GET", f"{V2}/a")
    assert (other["apiVersion"], other["spec"]) == ("example.com/v2", {"address": "here", "size": 3})
    assert other["metadata"] == created["metadata"]
    assert (await call("GET", f"{V1}/a"))[1] == created


async def test_write_in_other_version_is_stored_converted(call: ServerClient, hook: Hook) -> None:
    created = await call.made(V2, custom_object("a", address="there"))
    assert created["spec"] == {"address": "there"}
    assert (await call("GET", f"{V1}/a"))[1]["spec"] == {"host": "there"}
    status, patched = await call("PATCH", f"{V2}/a", {"spec": {"size": 1}}, kind=MERGE)
    assert (status, patched["spec"]) == (200, {"address": "there", "size": 1})
    replaced = {**patched, "spec": {"address": "elsewhere"}}
    assert (await call("PUT", f"{V2}/a", replaced))[1]["spec"] == {"address": "elsewhere"}
    stored = msgspec.json.decode(call.server.verbs.store.list_objects("sites.example.com")[0].raw)
    assert (stored["apiVersion"], stored["spec"]) == ("example.com/v1", {"host": "elsewhere"})
    assert (await call("DELETE", f"{V2}/a"))[0] == 200


async def test_list_is_converted_in_one_call(call: ServerClient, hook: Hook) -> None:
    for number in range(5):
        await call.made(V1, custom_object(f"s{number}", host=f"h{number}"))
    _, listed = await call("GET", V2)
    assert [each["spec"]["address"] for each in listed["items"]] == [f"h{number}" for number in range(5)]
    assert len(hook.requests) == 1


async def test_admission_webhook_gets_version_of_its_rule(call: ServerClient, hook: Hook, tmp_path: Path) -> None:
    rule = {"operations": ["*"], "apiGroups": ["example.com"], "apiVersions": ["v2"], "resources": ["sites"]}
    change = patching({"op": "replace", "path": "/spec/address", "value": "moved"})
    async with listening(tmp_path / "pki", change) as other:
        webhook = {
            "name": "one.example.com",
            "clientConfig": other.client,
            "rules": [rule],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        await call.made(configurations, {"metadata": {"name": "hooks"}, "webhooks": [webhook]})
        created = await call.made(V1, custom_object("a", host="here"))
    assert created["spec"] == {"host": "moved"}
    [request] = other.requests
    assert (request["kind"]["version"], request["requestKind"]["version"]) == ("v2", "v1")
    assert (request["object"]["apiVersion"], request["object"]["spec"]) == ("example.com/v2", {"address": "here"})


async def test_watch_returns_the_requested_version(call: ServerClient, hook: Hook) -> None:
    await call.made(V1, custom_object("a", host="first"))
    watch = await call.answer("GET", V2, watch="true", timeoutSeconds="30")
    assert isinstance(watch, WatchResponse)
    chunks = watch.chunks()
    assert msgspec.json.decode(await anext(chunks))["object"]["spec"] == {"address": "first"}
    await call("PATCH", f"{V1}/a", {"spec": {"host": "then"}}, kind=MERGE)
    event = msgspec.json.decode(await anext(chunks))
    assert (event["type"], event["object"]["apiVersion"]) == ("MODIFIED", "example.com/v2")
    assert event["object"]["spec"] == {"address": "then"}
    await chunks.aclose()


async def test_object_in_old_storage_version_is_converted(call: ServerClient, hook: Hook) -> None:
    await call.made(V1, custom_object("a", host="old"))
    _, definition = await call("GET", f"{CRDS}/sites.example.com")
    changed = {**definition, "spec": definition_body(hook, storage="v2")["spec"]}
    assert (await call("PUT", f"{CRDS}/sites.example.com", changed))[0] == 200
    assert (await call("GET", f"{V2}/a"))[1]["spec"] == {"address": "old"}
    assert (await call("GET", f"{V1}/a"))[1]["spec"] == {"host": "old"}


async def test_conversion_changes_only_labels_and_annotations(call: ServerClient, hook: Hook) -> None:
    def change_metadata(request: Object) -> Object:
        response = convert_sites(request)
        for obj in response["convertedObjects"]:
            obj["metadata"] = {
                **obj["metadata"],
                "labels": {"new": "label"},
                "finalizers": ["example.com/mine"],
                "resourceVersion": "1",
            }
        return response

    created = await call.made(V1, custom_object("a", host="here"))
    hook.say = change_metadata
    _, converted = await call("GET", f"{V2}/a")
    assert converted["metadata"] == {**created["metadata"], "labels": {"new": "label"}}


async def test_converted_object_is_pruned(call: ServerClient, hook: Hook) -> None:
    def add_field(request: Object) -> Object:
        response = convert_sites(request)
        for obj in response["convertedObjects"]:
            obj["spec"]["surprise"] = True
        return response

    await call.made(V1, custom_object("a", host="here"))
    hook.say = add_field
    assert (await call("GET", f"{V2}/a"))[1]["spec"] == {"address": "here"}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
METADATA = st.dictionaries(
    st.sampled_from(["name", "namespace", "uid", "labels", "annotations", "finalizers", "resourceVersion", "other"]),
    JSON_VALUES,
)


@given(metadata=METADATA | JSON_VALUES, keeps_identity=st.booleans())
def test_conversion_preserves_identity_for_any_response(metadata: Any, keeps_identity: bool) -> None:
    own = {"name": "a", "namespace": "default", "uid": "1", "resourceVersion": "7", "finalizers": ["x.com/y"]}
    old = {"apiVersion": "example.com/v1", "kind": "Site", "metadata": own}
    keeps_identity = keeps_identity and isinstance(metadata, dict)
    returned = {**metadata, **{key: own[key] for key in ("name", "namespace", "uid")}} if keeps_identity else metadata
    try:
        converted = with_original_metadata(
            old, {**old, "apiVersion": "example.com/v2", "metadata": returned}, "example.com/v2"
        )
    except ConversionError:
        return
    assert {key: value for key, value in converted["metadata"].items() if key not in ("labels", "annotations")} == own


def rename_sites(request: Object) -> Object:
    response = convert_sites(request)
    for obj in response["convertedObjects"]:
        obj["metadata"] = {**obj["metadata"], "name": "another"}
    return response


@pytest.mark.parametrize(
    ("say", "message"),
    [
        (
            lambda _: {"result": {"status": "Failure", "message": "cannot"}},
            "conversion webhook for example.com/v1, Kind=Site failed: cannot",
        ),
        (
            lambda _: {"result": {"status": "Failure"}},
            "Kind=Site failed: response.result.status was 'Failure', not 'Success'",
        ),
        (
            lambda _: {"result": {"status": "Success"}, "convertedObjects": []},
            "conversion webhook for example.com/v1, Kind=Site returned 0 objects, expected 1",
        ),
        (
            lambda request: {"result": {"status": "Success"}, "convertedObjects": request["objects"]},
            "invalid groupVersion (expected example.com/v2, received example.com/v1)",
        ),
        (rename_sites, "must have the same name: a != another"),
    ],
)
async def test_failed_conversion_is_server_error(
    call: ServerClient, hook: Hook, say: Callable[[Object], Object], message: str
) -> None:
    await call.made(V1, custom_object("a", host="here"))
    hook.say = say
    status, response = await call("GET", f"{V2}/a")
    assert status == 500
    assert message in response["message"]


async def test_watch_ends_with_error_if_conversion_fails(call: ServerClient, hook: Hook) -> None:
    await call.made(V1, custom_object("a", host="here"))
    hook.say = lambda _: {"result": {"status": "Failure", "message": "cannot"}}
    watch = await call.answer("GET", V2, watch="true", timeoutSeconds="30")
    assert isinstance(watch, WatchResponse)
    [line] = [chunk async for chunk in watch.chunks()]
    event = msgspec.json.decode(line)
    assert (event["type"], event["object"]["code"]) == ("ERROR", 500)


@pytest.mark.parametrize(
    ("conversion", "message"),
    [
        (
            {"strategy": "Magic"},
            'spec.conversion.strategy: Unsupported value: "Magic": supported values: "None", "Webhook"',
        ),
        (
            {"strategy": "Webhook"},
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to",
        ),
        (
            {"strategy": "Webhook", "webhook": {"clientConfig": {}, "conversionReviewVersions": ["v1"]}},
            "spec.conversion.webhookClientConfig: Required value: exactly one of url or service is required",
        ),
        (
            {
                "strategy": "Webhook",
                "webhook": {"clientConfig": {"url": "https://a"}, "conversionReviewVersions": ["x"]},
            },
            'spec.conversion.conversionReviewVersions: Invalid value: ["x"]: must include at least one of v1, v1beta1',
        ),
        (
            {"strategy": "None", "webhook": {"clientConfig": {"url": "https://a"}, "conversionReviewVersions": ["v1"]}},
            "spec.conversion.webhookClientConfig: Forbidden: should not be set when strategy is not set to Webhook",
        ),
    ],
)
async def test_invalid_conversion_settings_are_rejected(
    call: ServerClient, hook: Hook, conversion: Object, message: str
) -> None:
    _, definition = await call("GET", f"{CRDS}/sites.example.com")
    changed = {**definition, "spec": {**definition["spec"], "conversion": conversion}}
    status, response = await call("PUT", f"{CRDS}/sites.example.com", changed)
    assert status == 422
    assert message in response["message"]
