"""NamespaceLifecycle admission."""

import pytest

from ..conftest import ServerClient

NAMESPACES = "/api/v1/namespaces"


async def test_missing_namespace_is_rejected(call: ServerClient) -> None:
    status, result = await call("POST", "/api/v1/namespaces/nowhere/configmaps", {"metadata": {"name": "a"}})
    assert (status, result["message"]) == (404, 'namespaces "nowhere" not found')


async def test_terminating_namespace_rejects_new_objects_only(call: ServerClient) -> None:
    maps = f"{NAMESPACES}/old/configmaps"
    await call.made(NAMESPACES, {"metadata": {"name": "old"}})
    await call.made(maps, {"metadata": {"name": "before"}})
    assert (await call("DELETE", f"{NAMESPACES}/old"))[0] == 200
    status, result = await call("POST", maps, {"metadata": {"name": "after"}})
    assert (status, result["message"]) == (
        403,
        'configmaps "after" is forbidden: unable to create new content in namespace old because it is being terminated',
    )
    assert result["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    assert (await call("PUT", f"{maps}/before", {"metadata": {"name": "before"}, "data": {"a": "b"}}))[0] == 200


@pytest.mark.parametrize("name", ["default", "kube-system"])
async def test_system_namespaces_cannot_be_deleted(call: ServerClient, name: str) -> None:
    status, result = await call("DELETE", f"/api/v1/namespaces/{name}")
    assert (status, result["message"]) == (
        403,
        f'namespaces "{name}" is forbidden: this namespace may not be deleted',
    )
