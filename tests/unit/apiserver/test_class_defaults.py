"""Defaults from RuntimeClasses, PriorityClasses, StorageClasses and IngressClasses."""

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


def pod_body(**spec: Any) -> Object:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def claim_body(name: str, **spec: Any) -> Object:
    resources = {"requests": {"storage": "1Gi"}}
    return {"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources, **spec}}


async def forbidden_message(call: Hand, body: Object) -> str:
    status, response = await call("POST", PODS, body)
    assert status == 403, response
    message: str = response["message"]
    return message


async def test_runtime_class_sets_overhead_and_scheduling(call: Hand) -> None:
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


async def test_replaced_pod_keeps_its_priority(call: Hand) -> None:
    await call.made(PRIORITIES, {"metadata": {"name": "urgent"}, "value": 7, "preemptionPolicy": "Never"})
    await call.made(PODS, pod_body(priorityClassName="urgent"))
    body = pod_body(priorityClassName="urgent", activeDeadlineSeconds=60)
    status, pod = await call("PUT", f"{PODS}/p", body)
    assert (status, pod["spec"]["priority"], pod["spec"]["preemptionPolicy"]) == (200, 7, "Never")
    status, _ = await call("PUT", f"{PODS}/p", {**body, "spec": {**body["spec"], "priority": 8}})
    assert status == 422


async def test_pod_gets_default_priority_class(call: Hand) -> None:
    for name, value, default in (("high", 9, True), ("low", 5, True), ("lowest", 1, False)):
        await call.made(PRIORITIES, {"metadata": {"name": name}, "value": value, "globalDefault": default})
    pod = await call.made(PODS, pod_body())
    assert (pod["spec"]["priorityClassName"], pod["spec"]["priority"]) == ("low", 5)


@pytest.mark.parametrize(
    ("version", "kind", "error"),
    [
        ("v1", "ReplicationController", ""),
        ("", "ReplicationController", ""),
        ("apps/v1", "Deployment", ""),
        ("v1", "Deployment", "apiVersion must specify API group"),
        ("a/b/c", "ReplicationController", "unexpected GroupVersion string: a/b/c"),
    ],
)
async def test_autoscaler_target_reference_is_validated(call: Hand, version: str, kind: str, error: str) -> None:
    target = {"apiVersion": version, "kind": kind, "name": "x"}
    body = {"metadata": {"name": "h"}, "spec": {"maxReplicas": 2, "scaleTargetRef": target}}
    status, response = await call("POST", "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", body)
    assert status == (422 if error else 201)
    assert error in response.get("message", "")


async def test_pod_with_unknown_runtime_class_is_forbidden(call: Hand) -> None:
    assert await forbidden_message(call, pod_body(runtimeClassName="kata")) == (
        'pods "p" is forbidden: pod rejected: RuntimeClass "kata" not found'
    )
    assert "Pod Overhead set without corresponding RuntimeClass" in await forbidden_message(
        call, pod_body(overhead={"cpu": "1"})
    )


async def test_claim_gets_default_storage_class(call: Hand) -> None:
    assert "storageClassName" not in (await call.made(CLAIMS, claim_body("before")))["spec"]
    annotations = {f"storageclass.kubernetes.io/{DEFAULT}": "true"}
    await call.made(STORAGE, {"metadata": {"name": "slow"}, "provisioner": "x"})
    await call.made(STORAGE, {"metadata": {"name": "fast", "annotations": annotations}, "provisioner": "x"})
    assert (await call.made(CLAIMS, claim_body("after")))["spec"]["storageClassName"] == "fast"
    assert (await call.made(CLAIMS, claim_body("own", storageClassName="slow")))["spec"]["storageClassName"] == "slow"
    assert (await call.made(CLAIMS, claim_body("none", storageClassName="")))["spec"]["storageClassName"] == ""


async def test_ingress_gets_default_ingress_class(call: Hand) -> None:
    annotations = {f"ingressclass.kubernetes.io/{DEFAULT}": "true"}
    await call.made(
        INGRESS_CLASSES, {"metadata": {"name": "edge", "annotations": annotations}, "spec": {"controller": "x/y"}}
    )
    backend = {"service": {"name": "s", "port": {"number": 80}}}
    plain = {"metadata": {"name": "a"}, "spec": {"defaultBackend": backend}}
    assert (await call.made(INGRESSES, plain))["spec"]["ingressClassName"] == "edge"
    old = {"metadata": {"name": "b", "annotations": {"kubernetes.io/ingress.class": "old"}}, "spec": plain["spec"]}
    assert "ingressClassName" not in (await call.made(INGRESSES, old))["spec"]


@pytest.mark.parametrize(
    ("path", "body", "finalizer"),
    [
        (CLAIMS, claim_body("v"), "kubernetes.io/pvc-protection"),
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
async def test_new_storage_has_protection_finalizer(call: Hand, path: str, body: Object, finalizer: str) -> None:
    assert (await call.made(path, body))["metadata"]["finalizers"] == [finalizer]
    await call("DELETE", f"{path}/v")
    assert "deletionTimestamp" in (await call("GET", f"{path}/v"))[1]["metadata"]
