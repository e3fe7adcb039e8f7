"""Comparison of admission and conversion webhooks on our API server and on a kube-apiserver."""

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tapestry.kube.objects import Object

from ..unit.apiserver.hooks import Hook, Say, allowing, denying, listening, patching
from .sides import JSON, Ours, Theirs

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
NAMESPACE = "webhooks-beside"
MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
CRDS, SITES = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "sites.beside.example.com"
MERGE = "application/merge-patch+json"
ABOUT_THE_CALL = ("uid", "userInfo", "object", "oldObject")
UID = re.compile("[0-9a-f]{8}-[0-9a-f-]{27}")

Side = Ours | Theirs


@pytest.fixture
async def hook(tmp_path: Path) -> AsyncIterator[Hook]:
    async with listening(tmp_path / "pki", allowing) as hook:
        yield hook


def new_configuration(hook: Hook) -> Object:
    rule = {"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}
    webhook = {
        "name": "one.example.com",
        "clientConfig": hook.client,
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return {"metadata": {"name": "beside"}, "webhooks": [webhook]}


async def configure(side: Side, kind: str, hook: Hook) -> None:
    """Register the webhook and wait until the server calls it."""
    await side("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}, JSON, {})
    status, found = await side(
        "POST", f"{CONFIGURATIONS}/{kind}webhookconfigurations", new_configuration(hook), JSON, {}
    )
    assert status == 201, found
    hook.say = allowing
    hook.requests.clear()
    async with asyncio.timeout(30):
        while not hook.requests:
            await side("POST", MAPS, {"metadata": {"name": "probe"}}, JSON, {"dryRun": "All"})
    hook.requests.clear()


async def remove(side: Side, kind: str) -> None:
    await side("DELETE", f"{CONFIGURATIONS}/{kind}webhookconfigurations/beside", None, JSON, {})


def comparable(status: int, found: Any) -> tuple[int, str, str]:
    return status, found.get("reason", ""), UID.sub("UID", found.get("message", ""))


ANSWERS: dict[str, Say] = {
    "denied": denying("not today"),
    "denied with a code": denying("no", 403),
    "denied without a word": denying(),
    "denied with a reason": lambda _: {"allowed": False, "status": {"reason": "Forbidden", "code": 403}},
    "not found": lambda _: web.Response(status=404, text="nobody"),
    "broken": lambda _: web.Response(status=500, text="oh no"),
    "busy": lambda _: web.Response(status=503, text="later"),
    "of another question": lambda _: {"uid": "another", "allowed": True},
    "empty": lambda _: web.json_response({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}),
    "of no kind": lambda request: web.json_response({"response": {"uid": request["uid"], "allowed": True}}),
}
PATCHES: dict[str, Say] = {
    "of a type that there is not": lambda _: {
        "allowed": True,
        "patchType": "Merge",
        "patch": base64.b64encode(b"[{}]").decode(),
    },
    "without its type": lambda _: {"allowed": True, "patch": base64.b64encode(b"[]").decode()},
    "to another namespace": patching({"op": "replace", "path": "/metadata/namespace", "value": "kube-system"}),
}


@pytest.mark.parametrize(("kind", "answers"), [("validating", ANSWERS), ("mutating", PATCHES)])
async def test_both_servers_report_webhook_answers_alike(
    ours: Ours, theirs: Theirs, hook: Hook, kind: str, answers: dict[str, Say]
) -> None:
    found: dict[str, list[Any]] = {}
    for side in (ours, theirs):
        await configure(side, kind, hook)
        for what, say in answers.items():
            hook.say = say
            answer = await side("POST", MAPS, {"metadata": {"name": "a"}}, JSON, {})
            found.setdefault(what, []).append(comparable(*answer))
        await remove(side, kind)
    assert {what: pair[0] for what, pair in found.items()} == {what: pair[1] for what, pair in found.items()}


async def test_both_servers_send_webhooks_the_same_reviews(ours: Ours, theirs: Theirs, hook: Hook) -> None:
    reviews = []
    for side in (ours, theirs):
        await configure(side, "mutating", hook)
        await side("POST", MAPS, {"metadata": {"generateName": "g-"}}, JSON, {"fieldManager": "me", "dryRun": "All"})
        await side("POST", MAPS, {"metadata": {"name": "b"}, "data": {"k": "v"}}, JSON, {"fieldValidation": "Strict"})
        await side("PATCH", f"{MAPS}/b", {"data": {"k": "w"}}, MERGE, {"fieldManager": "me"})
        await side("DELETE", f"{MAPS}/b", {"propagationPolicy": "Background"}, JSON, {})
        received = [each for each in hook.requests if each.get("name") != "kube-root-ca.crt"]
        reviews.append([{key: value for key, value in each.items() if key not in ABOUT_THE_CALL} for each in received])
        await remove(side, "mutating")
        hook.requests.clear()
    assert len(reviews[0]) == 4
    assert reviews[0] == reviews[1]


@pytest.mark.parametrize("kind", ["mutating", "validating"])
async def test_both_servers_call_webhooks_for_unchanged_updates(
    ours: Ours, theirs: Theirs, hook: Hook, kind: str
) -> None:
    reviews = []
    for side in (ours, theirs):
        await side("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}, JSON, {})
        _, made = await side("POST", MAPS, {"metadata": {"name": "same"}, "data": {"k": "v"}}, JSON, {})
        await configure(side, kind, hook)
        for verb, body, form in (("PATCH", {"data": {"k": "v"}}, MERGE), ("PATCH", {}, MERGE), ("PUT", made, JSON)):
            status, found = await side(verb, f"{MAPS}/same", body, form, {})
            assert (status, found["metadata"]["resourceVersion"]) == (200, made["metadata"]["resourceVersion"])
        received = [each for each in hook.requests if each.get("name") == "same"]
        reviews.append([(each["operation"], each["object"]["data"], each["oldObject"]["data"]) for each in received])
        await remove(side, kind)
        await side("DELETE", f"{MAPS}/same", None, JSON, {})
    assert reviews[0] == reviews[1] == [("UPDATE", {"k": "v"}, {"k": "v"})] * 3


def new_definition(hook: Hook) -> Object:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    versions = [
        {"name": name, "served": True, "storage": name == "v1", "schema": {"openAPIV3Schema": schema}}
        for name in ("v1", "v2")
    ]
    webhook = {"clientConfig": hook.client, "conversionReviewVersions": ["v1"]}
    names = {"plural": "sites", "kind": "Site", "singular": "site", "listKind": "SiteList"}
    spec = {
        "group": "beside.example.com",
        "scope": "Cluster",
        "names": names,
        "versions": versions,
        "conversion": {"strategy": "Webhook", "webhook": webhook},
    }
    return {"metadata": {"name": SITES}, "spec": spec}


CONVERSIONS: dict[str, Say] = {
    "failed": lambda _: {"result": {"status": "Failure", "message": "cannot"}},
    "failed without a word": lambda _: {"result": {"status": "Failure"}},
    "nothing": lambda _: {"result": {"status": "Success"}, "convertedObjects": []},
    "the same": lambda request: {"result": {"status": "Success"}, "convertedObjects": request["objects"]},
    "renamed": lambda request: {
        "result": {"status": "Success"},
        "convertedObjects": [
            {**each, "apiVersion": request["desiredAPIVersion"], "metadata": {**each["metadata"], "name": "other"}}
            for each in request["objects"]
        ],
    },
}


async def test_both_servers_report_failed_conversions_alike(ours: Ours, theirs: Theirs, hook: Hook) -> None:
    found: dict[str, list[Any]] = {}
    for side in (ours, theirs):
        status, made = await side("POST", CRDS, new_definition(hook), JSON, {})
        assert status == 201, made
        async with asyncio.timeout(30):
            body = {"apiVersion": "beside.example.com/v1", "kind": "Site", "metadata": {"name": "a"}}
            while (await side("POST", "/apis/beside.example.com/v1/sites", body, JSON, {}))[0] == 404:
                pass
        for what, say in CONVERSIONS.items():
            hook.say = say
            answer = await side("GET", "/apis/beside.example.com/v2/sites/a", None, JSON, {})
            found.setdefault(what, []).append(comparable(*answer))
        await side("DELETE", f"{CRDS}/{SITES}", None, JSON, {})
    assert {what: pair[0] for what, pair in found.items()} == {what: pair[1] for what, pair in found.items()}
