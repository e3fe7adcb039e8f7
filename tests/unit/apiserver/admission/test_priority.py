"""Priority admission."""

from typing import Any

from tapestry.kube.objects import Object

from ..conftest import ServerClient

PODS = "/api/v1/namespaces/default/pods"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def pod_body(**spec: Any) -> Object:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


async def test_replaced_pod_keeps_its_priority(call: ServerClient) -> None:
    await call.made(PRIORITIES, {"metadata": {"name": "urgent"}, "value": 7, "preemptionPolicy": "Never"})
    await call.made(PODS, pod_body(priorityClassName="urgent"))
    body = pod_body(priorityClassName="urgent", activeDeadlineSeconds=60)
    status, pod = await call("PUT", f"{PODS}/p", body)
    assert (status, pod["spec"]["priority"], pod["spec"]["preemptionPolicy"]) == (200, 7, "Never")
    status, _ = await call("PUT", f"{PODS}/p", {**body, "spec": {**body["spec"], "priority": 8}})
    assert status == 422


async def test_pod_gets_default_priority_class(call: ServerClient) -> None:
    for name, value, default in (("high", 9, True), ("low", 5, True), ("lowest", 1, False)):
        await call.made(PRIORITIES, {"metadata": {"name": name}, "value": value, "globalDefault": default})
    pod = await call.made(PODS, pod_body())
    assert (pod["spec"]["priorityClassName"], pod["spec"]["priority"]) == ("low", 5)
