"""Objects whose served form differs from the stored one: other groups, versions and new defaults."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver.core.storage_versions import STORAGE_VERSIONS
from tapestry.apiserver.handlers.watches import WatchResponse
from tapestry.kube.objects import Object

from ..conftest import ServerClient
from ..documents.test_documents import DEFINITIONS, definition_body

OLD, NEW = "/api/v1/namespaces/default/events", "/apis/events.k8s.io/v1/namespaces/default/events"
SCALERS = "/apis/autoscaling/{}/namespaces/default/horizontalpodautoscalers"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}


def new_event(name: str = "e") -> Object:
    return {
        "metadata": {"name": name},
        "regarding": {"kind": "Pod", "name": "web", "namespace": "default"},
        "reason": "Tried",
        "action": "Trying",
        "note": "It was tried.",
        "type": "Normal",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "example.com/trier",
        "reportingInstance": "trier-0",
    }


async def test_event_is_one_object_in_both_groups(call: ServerClient) -> None:
    created = await call.made(NEW, new_event())
    assert (created["apiVersion"], created["note"]) == ("events.k8s.io/v1", "It was tried.")
    _, old = await call("GET", f"{OLD}/e")
    assert (old["apiVersion"], old["message"], old["involvedObject"]["name"]) == ("v1", "It was tried.", "web")
    assert old["metadata"]["uid"] == created["metadata"]["uid"]
    assert (await call("PUT", f"{OLD}/e", {**old, "count": 7}))[0] == 200
    _, new = await call("GET", f"{NEW}/e")
    assert (new["deprecatedCount"], new["regarding"]) == (7, created["regarding"])
    assert "involvedObject" not in new


@pytest.mark.parametrize(
    ("path", "selector", "found"),
    [
        (OLD, "source=example.com/trier", 1),
        (OLD, "involvedObject.kind=Pod", 1),
        (OLD, "involvedObject.kind=Node", 0),
        (NEW, "reportingController=example.com/trier", 1),
        (NEW, "regarding.name=web", 1),
        (NEW, "regarding.name=db", 0),
    ],
)
async def test_events_are_selected_by_fields_of_their_group(
    call: ServerClient, path: str, selector: str, found: int
) -> None:
    await call.made(NEW, new_event())
    status, listed = await call("GET", path, fieldSelector=selector)
    assert (status, len(listed["items"])) == (200, found)


async def test_watch_shows_events_of_requested_group(call: ServerClient) -> None:
    watching = await call.answer("GET", NEW, watch="true", resourceVersion="0", timeoutSeconds="1")
    assert isinstance(watching, WatchResponse)
    await call.made(OLD, {"metadata": {"name": "old"}, "involvedObject": {"namespace": "default"}, "message": "So."})
    async for chunk in watching.chunks():
        if b'"ADDED"' in chunk:
            seen = msgspec.json.decode(chunk.splitlines()[0])["object"]
            assert (seen["apiVersion"], seen["note"]) == ("events.k8s.io/v1", "So.")
            break
    else:
        pytest.fail("the event was not seen")


async def test_autoscaler_is_one_object_in_both_versions(call: ServerClient) -> None:
    spec = {"scaleTargetRef": TARGET, "maxReplicas": 5, "targetCPUUtilizationPercentage": 70}
    await call.made(SCALERS.format("v1"), {"metadata": {"name": "web"}, "spec": spec})
    _, second = await call("GET", SCALERS.format("v2") + "/web")
    assert second["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"] == 70
    target = {"type": "AverageValue", "averageValue": "1Gi"}
    memory = {"type": "Resource", "resource": {"name": "memory", "target": target}}
    changed = {**second, "spec": {**second["spec"], "metrics": [*second["spec"]["metrics"], memory]}}
    assert (await call("PUT", SCALERS.format("v2") + "/web", changed))[0] == 200
    _, first = await call("GET", SCALERS.format("v1") + "/web")
    assert first["spec"]["targetCPUUtilizationPercentage"] == 70
    first["spec"]["maxReplicas"] = 9
    assert (await call("PUT", SCALERS.format("v1") + "/web", first))[0] == 200
    _, third = await call("GET", SCALERS.format("v2") + "/web")
    assert (third["spec"]["maxReplicas"], third["spec"]["metrics"]) == (9, changed["spec"]["metrics"])


async def test_autoscaler_without_target_uses_default(call: ServerClient) -> None:
    spec = {"scaleTargetRef": TARGET, "maxReplicas": 5}
    await call.made(SCALERS.format("v1"), {"metadata": {"name": "web"}, "spec": spec})
    _, first = await call("GET", SCALERS.format("v1") + "/web")
    assert first["spec"]["targetCPUUtilizationPercentage"] == 80


VALUES = st.one_of(st.integers(0, 9), st.text(max_size=3))
KEYS = st.sampled_from(["regarding", "note", "reason", "deprecatedCount", "series", "reportingController"])


@given(st.dictionaries(KEYS, VALUES))
def test_event_conversion_is_lossless(event: dict[str, Any]) -> None:
    conversion = STORAGE_VERSIONS["events.k8s.io/v1"]
    assert conversion.from_storage(conversion.to_storage(event)) == event


async def test_new_default_applies_to_stored_objects(call: ServerClient) -> None:
    schema = {"type": "object", "properties": {"size": {"type": "integer"}}}
    definition = await call.made(DEFINITIONS, definition_body(schema))
    await call.made(WIDGETS, {"metadata": {"name": "w"}})
    assert "size" not in (await call("GET", f"{WIDGETS}/w"))[1]
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["size"]["default"] = 3
    assert (await call("PUT", f"{DEFINITIONS}/widgets.example.com", definition))[0] == 200
    assert (await call("GET", f"{WIDGETS}/w"))[1]["size"] == 3
    assert [each["size"] for each in (await call("GET", WIDGETS))[1]["items"]] == [3]


async def test_list_kind_comes_from_definition(call: ServerClient) -> None:
    definition = definition_body()
    definition["spec"]["names"]["listKind"] = "Assortment"
    await call.made(DEFINITIONS, definition)
    assert (await call("GET", WIDGETS))[1]["kind"] == "Assortment"
