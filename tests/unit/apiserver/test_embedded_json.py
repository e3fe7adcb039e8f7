"""JSON within headers, annotations and other texts: malformed JSON is rejected without internal errors."""

import base64
from typing import Any

import pytest

from tapestry.apiserver.access.authentication import Credentials

from .conftest import ServerClient

DEEP = "[" * 100_000
DEFAULT = "/api/v1/namespaces/default"
SCALERS = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers"
TEXTS = [
    DEEP,
    '{"a":' * 40_000,
    "x",
    "9" * 5000,
    "null",
    '"a"',
    "1",
    '[1, "a", {}]',
    "\ud800".encode("utf-8", "replace").decode(),
]


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize("text", TEXTS)
def test_token_with_malformed_json_is_rejected(call: ServerClient, text: str) -> None:
    for token in (f"{encoded(text)}.e30.AAAA", f"e30.{encoded(text)}.AAAA", f"{text}.{text}.{text}"):
        assert call.accounts(Credentials(bearer_token=token)) is None


def scaler(**annotations: str) -> Any:
    prefixed = {f"autoscaling.alpha.kubernetes.io/{name}": text for name, text in annotations.items()}
    target = {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}
    return {"metadata": {"name": "h", "annotations": prefixed}, "spec": {"maxReplicas": 1, "scaleTargetRef": target}}


@pytest.mark.parametrize("name", ["metrics", "current-metrics", "conditions", "behavior"])
async def test_autoscaler_annotations_are_parsed_or_rejected(call: ServerClient, name: str) -> None:
    for text in TEXTS:
        status, result = await call("POST", SCALERS, scaler(**{name: text}))
        assert status in (201, 400, 422), result
        if status == 201:
            assert (await call("DELETE", f"{SCALERS}/h"))[0] == 200


@pytest.mark.parametrize("text", TEXTS)
async def test_last_applied_configuration_is_parsed_or_ignored(call: ServerClient, text: str) -> None:
    last = {"kubectl.kubernetes.io/last-applied-configuration": text}
    created = await call.made(f"{DEFAULT}/configmaps", {"metadata": {"name": "m", "annotations": last}})
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "b"}}
    fields = [
        {**each, "manager": "kubectl-client-side-apply", "operation": "Update"}
        for each in created["metadata"]["managedFields"]
    ]
    await call(
        "PATCH", f"{DEFAULT}/configmaps/m", {"metadata": {"managedFields": fields}}, kind="application/merge-patch+json"
    )
    kind = "application/apply-patch+yaml"
    status, result = await call(
        "PATCH", f"{DEFAULT}/configmaps/m", body, kind=kind, fieldManager="kubectl", force="true"
    )
    assert status in (200, 400, 422), result


@pytest.mark.parametrize("text", TEXTS)
async def test_registry_credentials_are_parsed_or_rejected(call: ServerClient, text: str) -> None:
    for kind, key in (
        ("kubernetes.io/dockerconfigjson", ".dockerconfigjson"),
        ("kubernetes.io/dockercfg", ".dockercfg"),
    ):
        data = {key: base64.b64encode(text.encode()).decode()}
        status, result = await call(
            "POST", f"{DEFAULT}/secrets", {"metadata": {"name": key.strip(".")}, "type": kind, "data": data}
        )
        assert status in (201, 422), result


@pytest.mark.parametrize("head", ["k", "v", "i", "f", "x"])
async def test_managed_fields_are_parsed_or_rejected(call: ServerClient, head: str) -> None:
    await call.made(f"{DEFAULT}/configmaps", {"metadata": {"name": "n"}})
    for text in TEXTS:
        owned: Any = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
        owned["fieldsV1"] = {f"{head}:{text}": {}}
        for method, path in (("POST", f"{DEFAULT}/configmaps"), ("PUT", f"{DEFAULT}/configmaps/n")):
            name = "m" if method == "POST" else "n"
            body = {"metadata": {"name": name, "managedFields": [owned]}, "data": {"a": text[:9]}}
            status, result = await call(method, path, body, **({"dryRun": "All"} if method == "POST" else {}))
            assert status in (200, 201, 400, 422), result


@pytest.mark.parametrize("text", TEXTS)
async def test_malformed_continue_token_is_rejected(call: ServerClient, text: str) -> None:
    for token in (encoded(text), text[:5000]):
        status, result = await call("GET", f"{DEFAULT}/configmaps", **{"continue": token})
        assert status in (400, 410), result
