"""Conversion webhooks: the objects of a custom resource in the versions that they are not stored in."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver.customresources.conversions import ConversionError, with_original_metadata
from tapestry.apiserver.watches import WatchResponse
from tapestry.kube.objects import Object

from .conftest import Hand
from .hooks import Hook, listening, patching

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
V1, V2 = "/apis/example.com/v1/namespaces/default/sites", "/apis/example.com/v2/namespaces/default/sites"
MERGE = "application/merge-patch+json"
FIELDS = {"example.com/v1": "host", "example.com/v2": "address"}


def converting(request: Object) -> Object:
    """v1 has a host, which v2 calls its address."""
    wanted = request["desiredAPIVersion"]
    found = []
    for obj in request["objects"]:
        spec = dict(obj.get("spec") or {})
        value = spec.pop(FIELDS[obj["apiVersion"]], None)
        found.append({**obj, "apiVersion": wanted, "spec": spec | ({FIELDS[wanted]: value} if value else {})})
    return {"convertedObjects": found, "result": {"status": "Success"}}


def a_version(name: str, field: str, *, storage: bool) -> Object:
    properties = {field: {"type": "string"}, "size": {"type": "integer"}}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}
    return {"name": name, "served": True, "storage": storage, "schema": {"openAPIV3Schema": schema}}


def a_definition(hook: Hook, storage: str = "v1") -> Object:
    webhook = {"clientConfig": hook.client, "conversionReviewVersions": ["v1"]}
    return {
        "metadata": {"name": "sites.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "sites", "kind": "Site"},
            "versions": [
                a_version("v1", "host", storage=storage == "v1"),
                a_version("v2", "address", storage=storage == "v2"),
            ],
            "conversion": {"strategy": "Webhook", "webhook": webhook},
        },
    }


@pytest.fixture
async def hook(call: Hand, tmp_path: Path) -> AsyncIterator[Hook]:
    """The webhook of a definition that is served."""
    async with listening(tmp_path / "pki", converting) as hook:
        await call.made(CRDS, a_definition(hook))
        yield hook


def a_site(name: str, **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": spec}


async def test_an_object_is_shown_in_the_version_that_is_asked_for(call: Hand, hook: Hook) -> None:
    made = await call.made(V1, a_site("a", host="here", size=3))
    assert hook.asked == []
    _, other = await call("GET", f"{V2}/a")
    assert (other["apiVersion"], other["spec"]) == ("example.com/v2", {"address": "here", "size": 3})
    assert other["metadata"] == made["metadata"]
    assert (await call("GET", f"{V1}/a"))[1] == made


async def test_what_is_written_in_another_version_is_stored_in_the_first(call: Hand, hook: Hook) -> None:
    made = await call.made(V2, a_site("a", address="there"))
    assert made["spec"] == {"address": "there"}
    assert (await call("GET", f"{V1}/a"))[1]["spec"] == {"host": "there"}
    status, patched = await call("PATCH", f"{V2}/a", {"spec": {"size": 1}}, kind=MERGE)
    assert (status, patched["spec"]) == (200, {"address": "there", "size": 1})
    replaced = {**patched, "spec": {"address": "elsewhere"}}
    assert (await call("PUT", f"{V2}/a", replaced))[1]["spec"] == {"address": "elsewhere"}
    stored = msgspec.json.decode(call.server.verbs.store.list_objects("sites.example.com")[0].raw)
    assert (stored["apiVersion"], stored["spec"]) == ("example.com/v1", {"host": "elsewhere"})
    assert (await call("DELETE", f"{V2}/a"))[0] == 200


async def test_a_list_is_converted_in_one_call(call: Hand, hook: Hook) -> None:
    for number in range(5):
        await call.made(V1, a_site(f"s{number}", host=f"h{number}"))
    _, found = await call("GET", V2)
    assert [each["spec"]["address"] for each in found["items"]] == [f"h{number}" for number in range(5)]
    assert len(hook.asked) == 1


async def test_an_admission_webhook_sees_the_version_of_its_rule(call: Hand, hook: Hook, tmp_path: Path) -> None:
    rule = {"operations": ["*"], "apiGroups": ["example.com"], "apiVersions": ["v2"], "resources": ["sites"]}
    changing = patching({"op": "replace", "path": "/spec/address", "value": "moved"})
    async with listening(tmp_path / "pki", changing) as other:
        webhook = {
            "name": "one.example.com",
            "clientConfig": other.client,
            "rules": [rule],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        await call.made(configurations, {"metadata": {"name": "hooks"}, "webhooks": [webhook]})
        made = await call.made(V1, a_site("a", host="here"))
    assert made["spec"] == {"host": "moved"}
    [asked] = other.asked
    assert (asked["kind"]["version"], asked["requestKind"]["version"]) == ("v2", "v1")
    assert (asked["object"]["apiVersion"], asked["object"]["spec"]) == ("example.com/v2", {"address": "here"})


async def test_a_watcher_sees_its_own_version(call: Hand, hook: Hook) -> None:
    await call.made(V1, a_site("a", host="first"))
    watching = await call.answer("GET", V2, watch="true", timeoutSeconds="30")
    assert isinstance(watching, WatchResponse)
    chunks = watching.chunks()
    assert msgspec.json.decode(await anext(chunks))["object"]["spec"] == {"address": "first"}
    await call("PATCH", f"{V1}/a", {"spec": {"host": "then"}}, kind=MERGE)
    event = msgspec.json.decode(await anext(chunks))
    assert (event["type"], event["object"]["apiVersion"]) == ("MODIFIED", "example.com/v2")
    assert event["object"]["spec"] == {"address": "then"}
    await chunks.aclose()


async def test_objects_of_before_the_stored_version_changed_are_converted_too(call: Hand, hook: Hook) -> None:
    await call.made(V1, a_site("a", host="old"))
    _, definition = await call("GET", f"{CRDS}/sites.example.com")
    changed = {**definition, "spec": a_definition(hook, storage="v2")["spec"]}
    assert (await call("PUT", f"{CRDS}/sites.example.com", changed))[0] == 200
    assert (await call("GET", f"{V2}/a"))[1]["spec"] == {"address": "old"}
    assert (await call("GET", f"{V1}/a"))[1]["spec"] == {"host": "old"}


async def test_a_conversion_changes_labels_and_annotations_and_no_other_metadata(call: Hand, hook: Hook) -> None:
    def meddling(request: Object) -> Object:
        said = converting(request)
        for obj in said["convertedObjects"]:
            obj["metadata"] = {
                **obj["metadata"],
                "labels": {"new": "label"},
                "finalizers": ["example.com/mine"],
                "resourceVersion": "1",
            }
        return said

    made = await call.made(V1, a_site("a", host="here"))
    hook.say = meddling
    _, found = await call("GET", f"{V2}/a")
    assert found["metadata"] == {**made["metadata"], "labels": {"new": "label"}}


async def test_what_the_schema_does_not_know_is_pruned_from_a_conversion(call: Hand, hook: Hook) -> None:
    def adding(request: Object) -> Object:
        said = converting(request)
        for obj in said["convertedObjects"]:
            obj["spec"]["surprise"] = True
        return said

    await call.made(V1, a_site("a", host="here"))
    hook.say = adding
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


@given(metadata=METADATA | JSON_VALUES, kept=st.booleans())
def test_whatever_a_webhook_answers_an_object_stays_itself(metadata: Any, kept: bool) -> None:
    own = {"name": "a", "namespace": "default", "uid": "1", "resourceVersion": "7", "finalizers": ["x.com/y"]}
    old = {"apiVersion": "example.com/v1", "kind": "Site", "metadata": own}
    kept = kept and isinstance(metadata, dict)
    answered = {**metadata, **{key: own[key] for key in ("name", "namespace", "uid")}} if kept else metadata
    try:
        found = with_original_metadata(
            old, {**old, "apiVersion": "example.com/v2", "metadata": answered}, "example.com/v2"
        )
    except ConversionError:
        return
    assert {key: value for key, value in found["metadata"].items() if key not in ("labels", "annotations")} == own


def renaming(request: Object) -> Object:
    said = converting(request)
    for obj in said["convertedObjects"]:
        obj["metadata"] = {**obj["metadata"], "name": "another"}
    return said


@pytest.mark.parametrize(
    ("say", "why"),
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
        (renaming, "must have the same name: a != another"),
    ],
)
async def test_a_conversion_that_fails_is_an_error_of_the_server(
    call: Hand, hook: Hook, say: Callable[[Object], Object], why: str
) -> None:
    await call.made(V1, a_site("a", host="here"))
    hook.say = say
    status, found = await call("GET", f"{V2}/a")
    assert status == 500
    assert why in found["message"]


async def test_a_watch_whose_conversion_fails_ends_with_the_error(call: Hand, hook: Hook) -> None:
    await call.made(V1, a_site("a", host="here"))
    hook.say = lambda _: {"result": {"status": "Failure", "message": "cannot"}}
    watching = await call.answer("GET", V2, watch="true", timeoutSeconds="30")
    assert isinstance(watching, WatchResponse)
    [line] = [chunk async for chunk in watching.chunks()]
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
async def test_a_conversion_that_cannot_work_is_refused(
    call: Hand, hook: Hook, conversion: Object, message: str
) -> None:
    _, definition = await call("GET", f"{CRDS}/sites.example.com")
    changed = {**definition, "spec": {**definition["spec"], "conversion": conversion}}
    status, found = await call("PUT", f"{CRDS}/sites.example.com", changed)
    assert status == 422
    assert message in found["message"]
