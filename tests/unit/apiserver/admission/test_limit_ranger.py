"""LimitRanger: default resources and limits of containers, pods and claims."""

from typing import Any

import pytest

from tapestry.kube.objects import Object

from ..conftest import ServerClient

PODS = "/api/v1/namespaces/default/pods"
RANGES = "/api/v1/namespaces/default/limitranges"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"


def range_body(*limits: Object) -> Object:
    return {"metadata": {"name": "r"}, "spec": {"limits": list(limits)}}


def container_body(name: str = "c", **resources: Any) -> Object:
    return {"name": name, "image": "i", "resources": resources}


def pod_body(*containers: Object, **spec: Any) -> Object:
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers) or [container_body()], **spec}}


async def forbidden_message(call: ServerClient, path: str, body: Object) -> str:
    status, response = await call("POST", path, body)
    assert (status, response["reason"]) == (403, "Forbidden")
    message: str = response["message"]
    return message


async def test_container_gets_missing_defaults(call: ServerClient) -> None:
    defaults = {"default": {"cpu": "500m", "memory": "1Gi"}, "defaultRequest": {"cpu": "100m"}}
    await call.made(RANGES, range_body({"type": "Container", **defaults}))
    pod = await call.made(PODS, pod_body(container_body(limits={"cpu": "2"}), initContainers=[container_body("i")]))
    assert pod["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "2", "memory": "1Gi"},
        "requests": {"cpu": "2", "memory": "1Gi"},  # requests default to the limits
    }
    assert pod["spec"]["initContainers"][0]["resources"]["requests"] == {"cpu": "100m", "memory": "1Gi"}
    assert pod["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
        "LimitRanger plugin set: memory request for container c; memory limit for container c; "
        "cpu, memory request for init container i; cpu, memory limit for init container i"
    )
    assert pod["status"]["qosClass"] == "Burstable"


async def test_limit_range_gets_derived_defaults(call: ServerClient) -> None:
    created = await call.made(RANGES, range_body({"type": "Container", "max": {"cpu": "1"}, "min": {"memory": "1Mi"}}))
    assert created["spec"]["limits"] == [
        {
            "type": "Container",
            "max": {"cpu": "1"},
            "min": {"memory": "1Mi"},
            "default": {"cpu": "1"},
            "defaultRequest": {"cpu": "1", "memory": "1Mi"},
        }
    ]


@pytest.mark.parametrize(
    ("limit", "resources", "reason"),
    [
        (
            {"min": {"cpu": "1"}},
            {"requests": {"cpu": "500m"}},
            "minimum cpu usage per Container is 1, but request is 500m",
        ),
        (
            {"max": {"cpu": "1"}},
            {"limits": {"cpu": "1500m"}},
            "maximum cpu usage per Container is 1, but limit is 1500m",
        ),
        (
            {"max": {"memory": "1Gi"}},
            {"requests": {"memory": "2Gi"}, "limits": {"memory": "2Gi"}},
            "maximum memory usage per Container is 1Gi, but limit is 2Gi",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {"requests": {"cpu": "1"}, "limits": {"cpu": "3"}},
            "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {},
            "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
        ),
    ],
)
async def test_container_outside_limits_is_forbidden(
    call: ServerClient, limit: Object, resources: Object, reason: str
) -> None:
    await call.made(RANGES, range_body({"type": "Container", **limit}))
    assert (
        await forbidden_message(call, PODS, pod_body(container_body(**resources))) == f'pods "p" is forbidden: {reason}'
    )


async def test_pod_limit_sums_containers(call: ServerClient) -> None:
    await call.made(RANGES, range_body({"type": "Pod", "max": {"cpu": "1", "memory": "1Gi"}}))
    one = {"limits": {"cpu": "600m"}}
    assert await forbidden_message(call, PODS, pod_body(container_body("a", **one), container_body("b", **one))) == (
        'pods "p" is forbidden: [maximum cpu usage per Pod is 1, but limit is 1200m, '
        "maximum memory usage per Pod is 1Gi.  No limit is specified]"
    )


async def test_pod_limit_uses_largest_init_container(call: ServerClient) -> None:
    await call.made(RANGES, range_body({"type": "Pod", "max": {"cpu": "1"}}))
    fits = pod_body(
        container_body(limits={"cpu": "600m"}), initContainers=[container_body("i", limits={"cpu": "900m"})]
    )
    await call.made(PODS, fits)
    sidecar = {**container_body("s", limits={"cpu": "500m"}), "restartPolicy": "Always"}
    too_much = pod_body(container_body(limits={"cpu": "600m"}), initContainers=[sidecar])
    assert "but limit is 1100m" in await forbidden_message(call, PODS, too_much)


async def test_claim_outside_limits_is_forbidden(call: ServerClient) -> None:
    await call.made(
        RANGES,
        range_body({"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}),
    )

    def claim_body(storage: str) -> Object:
        resources = {"requests": {"storage": storage}}
        return {"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources}}

    assert await forbidden_message(call, CLAIMS, claim_body("5Gi")) == (
        'persistentvolumeclaims "v" is forbidden: '
        "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 5Gi"
    )
    assert "minimum storage usage" in await forbidden_message(call, CLAIMS, claim_body("1Mi"))
    await call.made(CLAIMS, claim_body("2Gi"))


async def test_limit_range_applies_to_its_namespace_only(call: ServerClient) -> None:
    await call.made(RANGES, range_body({"type": "Container", "max": {"cpu": "1"}}))
    pod = await call.made("/api/v1/namespaces/kube-public/pods", pod_body(container_body(limits={"cpu": "3"})))
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "3"}
