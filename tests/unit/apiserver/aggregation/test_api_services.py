"""Validation of APIServices, with the messages of Kubernetes."""

from typing import Any

import pytest

from tapestry.kube.objects import Object

from ..conftest import ServerClient

PATH = "/apis/apiregistration.k8s.io/v1/apiservices"


def new_api_service(name: str = "v1.example.com", **spec: Any) -> Object:
    known = {"group": "example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10}
    return {"metadata": {"name": name}, "spec": {**known, "service": {"namespace": "a", "name": "b"}, **spec}}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            new_api_service("v2.example.com"),
            'metadata.name: Invalid value: "v2.example.com": must be `spec.version+"."+s',
        ),
        (new_api_service("v2.", group="", version="v2"), "spec.group: Required value: only v1 may have an empty group"),
        (new_api_service("v1.A", group="A"), 'spec.group: Invalid value: "A": a lowercase RFC 1123 subdomain'),
        (new_api_service("1.example.com", version="1"), 'spec.version: Invalid value: "1": a DNS-1035 label'),
        (
            new_api_service(groupPriorityMinimum=0),
            "groupPriorityMinimum: Invalid value: 0: must be positive and less tha",
        ),
        (
            new_api_service(versionPriority=1001),
            "spec.versionPriority: Invalid value: 1001: must be positive and less th",
        ),
        (new_api_service(service={"name": "b"}), "spec.service.namespace: Required value"),
        (
            new_api_service(service={"namespace": "a", "name": "b", "port": 70000}),
            "spec.service.port: Invalid value: 70000",
        ),
        (
            new_api_service(service=None, insecureSkipTLSVerify=True),
            "local APIServices may not have insecureSkipTLSVerify",
        ),
        (
            new_api_service(service=None, caBundle="QUJD"),
            'spec.caBundle: Invalid value: "3 bytes": local APIServices may',
        ),
        (new_api_service(caBundle="QUJD", insecureSkipTLSVerify=True), "may not be true if caBundle is present"),
    ],
)
async def test_invalid_api_service_is_rejected(call: ServerClient, body: Object, message: str) -> None:
    status, result = await call("POST", PATH, body)
    assert status == 422, result
    assert message in result["message"]


async def test_valid_api_service_has_default_port(call: ServerClient) -> None:
    created = await call.made(PATH, new_api_service())
    assert created["spec"]["service"]["port"] == 443
    created["status"] = {"conditions": [{"type": "Available", "status": "Maybe"}]}
    assert (await call("PUT", f"{PATH}/v1.example.com/status", created))[0] == 422
