"""Limit ranges: what is not said is filled in, and what is said has bounds."""

from typing import Any

import pytest

from tapestry.apiserver.admission import core_plugins
from tapestry.kube.objects import Object

from .conftest import Hand

PODS = "/api/v1/namespaces/default/pods"
RANGES = "/api/v1/namespaces/default/limitranges"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"


def a_range(*limits: Object) -> Object:
    return {"metadata": {"name": "r"}, "spec": {"limits": list(limits)}}


def a_container(name: str = "c", **resources: Any) -> Object:
    return {"name": name, "image": "i", "resources": resources}


def a_pod(*containers: Object, **spec: Any) -> Object:
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers) or [a_container()], **spec}}


async def refusal(call: Hand, path: str, body: Object) -> str:
    status, found = await call("POST", path, body)
    assert (status, found["reason"]) == (403, "Forbidden")
    message: str = found["message"]
    return message


async def test_a_container_gets_the_defaults_that_it_does_not_state(call: Hand) -> None:
    defaults = {"default": {"cpu": "500m", "memory": "1Gi"}, "defaultRequest": {"cpu": "100m"}}
    await call.made(RANGES, a_range({"type": "Container", **defaults}))
    pod = await call.made(PODS, a_pod(a_container(limits={"cpu": "2"}), initContainers=[a_container("i")]))
    assert pod["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "2", "memory": "1Gi"},
        "requests": {"cpu": "2", "memory": "1Gi"},  # who states a limit asks for as much
    }
    assert pod["spec"]["initContainers"][0]["resources"]["requests"] == {"cpu": "100m", "memory": "1Gi"}
    assert pod["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
        "LimitRanger plugin set: memory request for container c; memory limit for container c; "
        "cpu, memory request for init container i; cpu, memory limit for init container i"
    )
    assert pod["status"]["qosClass"] == "Burstable"


async def test_a_range_says_itself_what_follows_from_it(call: Hand) -> None:
    made = await call.made(RANGES, a_range({"type": "Container", "max": {"cpu": "1"}, "min": {"memory": "1Mi"}}))
    assert made["spec"]["limits"] == [
        {
            "type": "Container",
            "max": {"cpu": "1"},
            "min": {"memory": "1Mi"},
            "default": {"cpu": "1"},
            "defaultRequest": {"cpu": "1", "memory": "1Mi"},
        }
    ]


@pytest.mark.parametrize(
    ("limit", "resources", "why"),
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
async def test_a_container_out_of_bounds_is_refused(call: Hand, limit: Object, resources: Object, why: str) -> None:
    await call.made(RANGES, a_range({"type": "Container", **limit}))
    assert await refusal(call, PODS, a_pod(a_container(**resources))) == f'pods "p" is forbidden: {why}'


async def test_the_containers_of_a_pod_count_together(call: Hand) -> None:
    await call.made(RANGES, a_range({"type": "Pod", "max": {"cpu": "1", "memory": "1Gi"}}))
    one = {"limits": {"cpu": "600m"}}
    assert await refusal(call, PODS, a_pod(a_container("a", **one), a_container("b", **one))) == (
        'pods "p" is forbidden: [maximum cpu usage per Pod is 1, but limit is 1200m, '
        "maximum memory usage per Pod is 1Gi.  No limit is specified]"
    )


async def test_init_containers_count_only_where_they_need_more(call: Hand) -> None:
    await call.made(RANGES, a_range({"type": "Pod", "max": {"cpu": "1"}}))
    fits = a_pod(a_container(limits={"cpu": "600m"}), initContainers=[a_container("i", limits={"cpu": "900m"})])
    await call.made(PODS, fits)
    sidecar = {**a_container("s", limits={"cpu": "500m"}), "restartPolicy": "Always"}
    too_much = a_pod(a_container(limits={"cpu": "600m"}), initContainers=[sidecar])
    assert "but limit is 1100m" in await refusal(call, PODS, too_much)


async def test_a_claim_has_bounds_as_well(call: Hand) -> None:
    await call.made(
        RANGES,
        a_range({"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}),
    )

    def a_claim(storage: str) -> Object:
        resources = {"requests": {"storage": storage}}
        return {"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources}}

    assert await refusal(call, CLAIMS, a_claim("5Gi")) == (
        'persistentvolumeclaims "v" is forbidden: '
        "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 5Gi"
    )
    assert "minimum storage usage" in await refusal(call, CLAIMS, a_claim("1Mi"))
    await call.made(CLAIMS, a_claim("2Gi"))


async def test_other_namespaces_have_their_own_ranges(call: Hand) -> None:
    await call.made(RANGES, a_range({"type": "Container", "max": {"cpu": "1"}}))
    there = await call.made("/api/v1/namespaces/kube-public/pods", a_pod(a_container(limits={"cpu": "3"})))
    assert there["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "3"}


@pytest.mark.parametrize(
    ("spec", "quality"),
    [
        ({"containers": [{"resources": {"requests": {"cpu": "0", "memory": "0"}}}]}, "BestEffort"),
        ({"containers": [{"resources": {"requests": {"example.com/dongle": "1"}}}]}, "BestEffort"),
        ({"containers": [{"resources": {"requests": {"cpu": "0", "memory": "1"}}}]}, "Burstable"),
        (
            {
                "containers": [
                    {"resources": {"requests": {"cpu": "1", "memory": "1"}, "limits": {"cpu": "1000m", "memory": "1"}}}
                ]
            },
            "Guaranteed",
        ),
        (
            {
                "resources": {"requests": {"cpu": "1", "memory": "1"}, "limits": {"cpu": "1", "memory": "1"}},
                "containers": [{}],
            },
            "Guaranteed",
        ),
    ],
)
def test_amounts_of_zero_do_not_count_for_the_qos_class(spec: Object, quality: str) -> None:
    assert core_plugins.qos_class(spec) == quality
