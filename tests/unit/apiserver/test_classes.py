"""Classes: what objects get from them."""

from typing import Any

import pytest

from tapestry.kube.objects import Object

from .conftest import Hand

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
INGRESSES = "/apis/networking.k8s.io/v1/namespaces/default/ingresses"
RUNTIMES = "/apis/node.k8s.io/v1/runtimeclasses"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
STORAGE = "/apis/storage.k8s.io/v1/storageclasses"
INGRESS_CLASSES = "/apis/networking.k8s.io/v1/ingressclasses"
DEFAULT = "is-default-class"


def a_pod(**spec: Any) -> Object:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def a_claim(name: str, **spec: Any) -> Object:
    resources = {"requests": {"storage": "1Gi"}}
    return {"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources, **spec}}


async def refusal(call: Hand, body: Object) -> str:
    status, found = await call("POST", PODS, body)
    assert status == 403, found
    message: str = found["message"]
    return message


async def test_a_pod_gets_what_its_runtime_needs(call: Hand) -> None:
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
    pod = await call.made(PODS, a_pod(runtimeClassName="kata", nodeSelector={"zone": "a"}))
    assert pod["spec"]["overhead"] == {"cpu": "250m"}
    assert pod["spec"]["nodeSelector"] == {"zone": "a", "kata": "yes"}
    assert "kata" in {each["key"] for each in pod["spec"]["tolerations"]}
    assert await refusal(call, a_pod(runtimeClassName="kata", overhead={"cpu": "1"})) == (
        "pods \"p\" is forbidden: pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"
    )
    assert "conflict: runtimeClass.scheduling.nodeSelector[kata] = yes; pod.spec.nodeSelector[kata] = no" in (
        await refusal(call, a_pod(runtimeClassName="kata", nodeSelector={"kata": "no"}))
    )


async def test_a_pod_that_is_replaced_keeps_its_priority(call: Hand) -> None:
    await call.made(PRIORITIES, {"metadata": {"name": "urgent"}, "value": 7, "preemptionPolicy": "Never"})
    await call.made(PODS, a_pod(priorityClassName="urgent"))
    body = a_pod(priorityClassName="urgent", activeDeadlineSeconds=60)
    status, pod = await call("PUT", f"{PODS}/p", body)
    assert (status, pod["spec"]["priority"], pod["spec"]["preemptionPolicy"]) == (200, 7, "Never")
    status, _ = await call("PUT", f"{PODS}/p", {**body, "spec": {**body["spec"], "priority": 8}})
    assert status == 422


async def test_a_pod_without_a_priority_class_gets_the_default_one(call: Hand) -> None:
    for name, value, default in (("high", 9, True), ("low", 5, True), ("lowest", 1, False)):
        await call.made(PRIORITIES, {"metadata": {"name": name}, "value": value, "globalDefault": default})
    pod = await call.made(PODS, a_pod())
    assert (pod["spec"]["priorityClassName"], pod["spec"]["priority"]) == ("low", 5)


@pytest.mark.parametrize(
    ("version", "kind", "complaint"),
    [
        ("v1", "ReplicationController", ""),
        ("", "ReplicationController", ""),
        ("apps/v1", "Deployment", ""),
        ("v1", "Deployment", "apiVersion must specify API group"),
        ("a/b/c", "ReplicationController", "unexpected GroupVersion string: a/b/c"),
    ],
)
async def test_what_an_autoscaler_may_scale(call: Hand, version: str, kind: str, complaint: str) -> None:
    target = {"apiVersion": version, "kind": kind, "name": "x"}
    body = {"metadata": {"name": "h"}, "spec": {"maxReplicas": 2, "scaleTargetRef": target}}
    status, found = await call("POST", "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", body)
    assert status == (422 if complaint else 201)
    assert complaint in found.get("message", "")


async def test_a_runtime_that_is_not_there_runs_nothing(call: Hand) -> None:
    assert await refusal(call, a_pod(runtimeClassName="kata")) == (
        'pods "p" is forbidden: pod rejected: RuntimeClass "kata" not found'
    )
    assert "Pod Overhead set without corresponding RuntimeClass" in await refusal(call, a_pod(overhead={"cpu": "1"}))


async def test_a_claim_without_a_class_gets_the_default(call: Hand) -> None:
    assert "storageClassName" not in (await call.made(CLAIMS, a_claim("before")))["spec"]
    mark = {f"storageclass.kubernetes.io/{DEFAULT}": "true"}
    await call.made(STORAGE, {"metadata": {"name": "slow"}, "provisioner": "x"})
    await call.made(STORAGE, {"metadata": {"name": "fast", "annotations": mark}, "provisioner": "x"})
    assert (await call.made(CLAIMS, a_claim("after")))["spec"]["storageClassName"] == "fast"
    assert (await call.made(CLAIMS, a_claim("own", storageClassName="slow")))["spec"]["storageClassName"] == "slow"
    assert (await call.made(CLAIMS, a_claim("none", storageClassName="")))["spec"]["storageClassName"] == ""


async def test_an_ingress_without_a_class_gets_the_default(call: Hand) -> None:
    mark = {f"ingressclass.kubernetes.io/{DEFAULT}": "true"}
    await call.made(INGRESS_CLASSES, {"metadata": {"name": "edge", "annotations": mark}, "spec": {"controller": "x/y"}})
    backend = {"service": {"name": "s", "port": {"number": 80}}}
    plain = {"metadata": {"name": "a"}, "spec": {"defaultBackend": backend}}
    assert (await call.made(INGRESSES, plain))["spec"]["ingressClassName"] == "edge"
    old = {"metadata": {"name": "b", "annotations": {"kubernetes.io/ingress.class": "old"}}, "spec": plain["spec"]}
    assert "ingressClassName" not in (await call.made(INGRESSES, old))["spec"]


@pytest.mark.parametrize(
    ("path", "body", "finalizer"),
    [
        (CLAIMS, a_claim("v"), "kubernetes.io/pvc-protection"),
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
async def test_storage_is_protected_from_the_first_moment(call: Hand, path: str, body: Object, finalizer: str) -> None:
    assert (await call.made(path, body))["metadata"]["finalizers"] == [finalizer]
    await call("DELETE", f"{path}/v")
    assert "deletionTimestamp" in (await call("GET", f"{path}/v"))[1]["metadata"]
