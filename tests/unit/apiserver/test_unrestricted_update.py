"""`--unrestricted-update`: writes to an object also set its status, but never approve a certificate."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.kube.objects import Object

from .conftest import ServerClient
from .handlers.test_server import DEFINITIONS, MERGE, PODS, WIDGETS, new_definition, new_pod
from .subresources.test_subresources import CSRS, request_body

APPLY = "application/apply-patch+yaml"
APPROVED = {"conditions": [{"type": "Approved", "status": "True", "reason": "Mine"}]}


@pytest.fixture
async def unrestricted(tmp_path: Path) -> AsyncIterator[ServerClient]:
    config = ApiServerConfig(
        backend="memory", secure_address="", pod_accounts=False, file_rootpath=str(tmp_path), unrestricted_update=True
    )
    async with run_apiserver(config) as running:
        yield ServerClient(running.server, running.account_tokens)


def new_widget(**status: object) -> Object:
    definition = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    return {**definition, "spec": {"color": "red"}, "status": status}


def new_open_definition() -> Object:
    """Return a definition whose status keeps any field."""
    definition = new_definition()
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["status"] = {
        "type": "object",
        "properties": {"phase": {"type": "string"}, "size": {"type": "integer"}},
    }
    return definition


async def test_create_and_update_set_the_status(unrestricted: ServerClient) -> None:
    call = unrestricted
    await call.made(DEFINITIONS, new_open_definition())
    assert (await call.made(WIDGETS, new_widget(phase="Ready")))["status"] == {"phase": "Ready"}
    change = {"spec": {"color": "blue"}, "status": {"size": 2}}
    _, changed = await call("PATCH", f"{WIDGETS}/w", change, kind=MERGE)
    assert (changed["spec"]["color"], changed["status"]) == ("blue", {"phase": "Ready", "size": 2})


async def test_apply_that_creates_sets_the_status(unrestricted: ServerClient) -> None:
    await unrestricted.made(DEFINITIONS, new_open_definition())
    options = {"fieldManager": "test"}
    status, created = await unrestricted("PATCH", f"{WIDGETS}/w", new_widget(phase="Ready"), kind=APPLY, **options)
    assert (status, created["status"]) == (201, {"phase": "Ready"})


async def test_status_of_a_new_object_is_validated(unrestricted: ServerClient) -> None:
    await unrestricted.made(DEFINITIONS, new_open_definition())
    status, refused = await unrestricted("POST", WIDGETS, new_widget(size="large"))
    assert (status, "status.size: Invalid value" in refused["message"]) == (422, True)


async def test_given_status_is_merged_into_the_initial_one(unrestricted: ServerClient) -> None:
    pod = await unrestricted.made(PODS, {**new_pod(), "status": {"phase": "Running", "podIP": "10.0.0.9"}})
    assert (pod["status"]["phase"], pod["status"]["podIP"]) == ("Running", "10.0.0.9")


async def test_certificate_is_approved_only_by_approval_path(unrestricted: ServerClient) -> None:
    created = await unrestricted.made(CSRS, {**request_body(), "status": APPROVED})
    assert not created.get("status")
    _, changed = await unrestricted("PUT", f"{CSRS}/r", {**created, "status": APPROVED})
    assert not changed.get("status")
    status, _ = await unrestricted("PATCH", f"{CSRS}/r/status", {"status": APPROVED}, kind=MERGE)
    assert status == 422
    _, approved = await unrestricted("PATCH", f"{CSRS}/r/approval", {"status": APPROVED}, kind=MERGE)
    assert approved["status"]["conditions"][0]["type"] == "Approved"


async def test_status_is_dropped_without_the_option(call: ServerClient) -> None:
    await call.made(DEFINITIONS, new_open_definition())
    assert "status" not in await call.made(WIDGETS, new_widget(phase="Ready"))
