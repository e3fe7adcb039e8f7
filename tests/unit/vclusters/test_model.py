"""Messages of objects."""

from typing import Any

from google.protobuf import json_format

from tapestry.kube.objects import Object
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.model import VClusterMessages, ended_operation, spec_fields, vcluster_message

STATUS = {
    "phase": "Suspending",
    "message": "draining",
    "hostCluster": "east",
    "apiServerEndpoint": "https://here",
    "conditions": [
        {"type": "Healthy", "status": "True", "reason": "Healthy", "lastTransitionTime": "2031-05-01T00:00:00Z"}
    ],
    "lastOperation": "op-1",
}


def new_vcluster(version: str = "7", **status: Any) -> Object:
    return {
        "metadata": {
            "name": "blue",
            "namespace": "shop",
            "uid": "u1",
            "resourceVersion": version,
            "generation": 2,
            "creationTimestamp": "2031-05-01T00:00:00Z",
            "labels": {"team": "a"},
        },
        "spec": {
            "project": "shop",
            "owner": "alice",
            "resources": {"cpuLimit": "2"},
            "plugins": [],
            "operation": {"id": "op-2"},
        },
        "status": {**STATUS, **status},
    }


def test_message_of_a_vcluster() -> None:
    fields = json_format.MessageToDict(vcluster_message(new_vcluster()))
    assert fields["spec"] == {"resources": {"cpuLimit": "2"}}
    assert (fields["id"], fields["project"], fields["owner"]) == ("u1", "shop", "alice")
    assert (fields["status"]["phase"], fields["currentOperation"]) == ("PHASE_SUSPENDING", "op-2")
    assert (fields["resourceVersion"], fields["generation"], fields["hostCluster"]) == ("7", "2", "east")
    assert fields["status"]["conditions"][0]["lastTransitionTime"] == "2031-05-01T00:00:00Z"


def test_compatible_client_sees_a_known_phase() -> None:
    message = vcluster_message(new_vcluster(), is_compatible=True)
    assert message.status.phase == api.PHASE_RUNNING


def test_etag_changes_with_what_the_message_shows() -> None:
    first, written, changed = (
        vcluster_message(each).etag
        for each in (new_vcluster(), new_vcluster("8", lastSequence=3), new_vcluster("9", phase="Suspended"))
    )
    assert first == written != changed


def test_message_is_made_once_for_each_version() -> None:
    messages = VClusterMessages()
    assert messages.of(new_vcluster()) is messages.of(new_vcluster())
    assert messages.of(new_vcluster("8")) is not messages.of(new_vcluster())


def test_persistence_of_a_spec() -> None:
    storage = api.StorageConfig
    cases = {
        "none": (api.VClusterSpec(), None),
        "memory": (api.VClusterSpec(storage=storage()), False),
        "size": (api.VClusterSpec(storage=storage(persistence_size="5Gi")), True),
        "requested": (api.VClusterSpec(storage=storage(enable_persistence=True)), True),
    }
    for name, (message, expected) in cases.items():
        assert (spec_fields(message).get("storage") or {}).get("enablePersistence") is expected, name


def test_message_of_an_operation_that_has_failed() -> None:
    error = {"code": "FAILED_PRECONDITION", "reason": "NO_HOST_CAPACITY", "message": "no nodes"}
    spec = {"verb": "Create", "vcluster": "blue", "vclusterUid": "u1", "project": "shop", "principal": "alice"}
    record = {
        "metadata": {"name": "op-1", "namespace": "shop", "creationTimestamp": "2031-05-01T00:00:00Z"},
        "spec": spec,
        "status": {"result": "Failed", "phaseFrom": "Pending", "phaseTo": "Error", "error": error},
    }
    message = ended_operation(record)
    assert (message.done, message.error.code, message.error.reason) == (True, 9, "NO_HOST_CAPACITY")
    assert (message.phase_from, message.phase_to) == (api.PHASE_PENDING, api.PHASE_ERROR)
