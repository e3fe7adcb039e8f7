"""RuntimeClass admission."""

from typing import Any

from tapestry.kube.objects import Object

from ..conftest import ServerClient

PODS = "/api/v1/namespaces/default/pods"
RUNTIMES = "/apis/node.k8s.io/v1/runtimeclasses"


def pod_body(**spec: Any) -> Object:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


async def forbidden_message(call: ServerClient, body: Object) -> str:
    status, response = await call("POST", PODS, body)
    assert status == 403, response
    message: str = response["message"]
    return message


async def test_runtime_class_sets_overhead_and_scheduling(call: ServerClient) -> None:
    runtime = {
        "metadata": {"name": "kata"},
        "handler": "kata",
        "overhead": {"podFixed": {"cpu": "250m"}},
        "scheduling": {
            "nodeSelector": {"kata": "yes"},
            "tolerations": [{"key": "kata", "operator": "Exists", "effect": "NoSchedule"}],
        },
    }
    await call.made(RUNTIMES, runtime)
    pod = await call.made(PODS, pod_body(runtimeClassName="kata", nodeSelector={"zone": "a"}))
    assert pod["spec"]["overhead"] == {"cpu": "250m"}
    assert pod["spec"]["nodeSelector"] == {"zone": "a", "kata": "yes"}
    assert "kata" in {each["key"] for each in pod["spec"]["tolerations"]}
    assert await forbidden_message(call, pod_body(runtimeClassName="kata", overhead={"cpu": "1"})) == (
        "pods \"p\" is forbidden: pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"
    )
    assert "conflict: runtimeClass.scheduling.nodeSelector[kata] = yes; pod.spec.nodeSelector[kata] = no" in (
        await forbidden_message(call, pod_body(runtimeClassName="kata", nodeSelector={"kata": "no"}))
    )


async def test_pod_with_unknown_runtime_class_is_forbidden(call: ServerClient) -> None:
    assert await forbidden_message(call, pod_body(runtimeClassName="kata")) == (
        'pods "p" is forbidden: pod rejected: RuntimeClass "kata" not found'
    )
    assert "Pod Overhead set without corresponding RuntimeClass" in await forbidden_message(
        call, pod_body(overhead={"cpu": "1"})
    )
