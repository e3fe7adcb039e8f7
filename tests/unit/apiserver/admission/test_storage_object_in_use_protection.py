"""StorageObjectInUseProtection admission."""

import pytest

from tapestry.kube.objects import Object

from ..conftest import ServerClient

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
CLAIM: Object = {
    "metadata": {"name": "v"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


@pytest.mark.parametrize(
    ("path", "body", "finalizer"),
    [
        (CLAIMS, CLAIM, "kubernetes.io/pvc-protection"),
        (
            "/api/v1/persistentvolumes",
            {
                "metadata": {"name": "v"},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "hostPath": {"path": "/tmp"},
                },
            },
            "kubernetes.io/pv-protection",
        ),
    ],
)
async def test_new_storage_has_protection_finalizer(
    call: ServerClient, path: str, body: Object, finalizer: str
) -> None:
    assert (await call.made(path, body))["metadata"]["finalizers"] == [finalizer]
    await call("DELETE", f"{path}/v")
    assert "deletionTimestamp" in (await call("GET", f"{path}/v"))[1]["metadata"]
