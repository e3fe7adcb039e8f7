"""Pod Security: a namespace's labels decide which pods come in, in Kubernetes' words."""

from typing import Any

import pytest

from tapestry.apiserver.admission.pod_security import LevelVersion, levels_from_labels
from tapestry.apiserver.server import ApiResponse
from tapestry.kube.objects import Object

from .conftest import Hand

NAMESPACES = "/api/v1/namespaces"
LABEL = "pod-security.kubernetes.io/"
MERGE = "application/merge-patch+json"


async def a_namespace(call: Hand, **labels: str) -> str:
    """Where pods of a new namespace are made."""
    named = {LABEL + mode.replace("_", "-"): value for mode, value in labels.items()}
    await call.made(NAMESPACES, {"metadata": {"name": "x", "labels": named}})
    return f"{NAMESPACES}/x/pods"


def a_pod(name: str = "p", context: Object | None = None, **spec: Any) -> Object:
    container = {"name": "c", "image": "i", **({"securityContext": context} if context is not None else {})}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


async def warning(call: Hand, path: str, body: Object) -> str:
    answer = await call.answer("POST", path, body)
    assert isinstance(answer, ApiResponse)
    assert answer.status == 201, answer.body
    return answer.headers.get("Warning", "").replace('\\"', '"')


async def test_what_is_against_the_standard_is_refused(call: Hand) -> None:
    path = await a_namespace(call, enforce="baseline")
    status, found = await call("POST", path, a_pod(context={"privileged": True}, hostNetwork=True))
    assert status == 403
    assert found["message"] == (
        'pods "p" is forbidden: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true), '
        'privileged (container "c" must not set securityContext.privileged=true)'
    )
    await call.made(path, a_pod())


async def test_what_is_missing_for_restricted_is_said_word_for_word(call: Hand) -> None:
    path = await a_namespace(call, enforce="restricted", enforce_version="v1.30")
    status, found = await call("POST", path, a_pod())
    assert status == 403
    assert found["message"] == (
        'pods "p" is forbidden: violates PodSecurity "restricted:v1.30": '
        'allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false), '
        'unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"]), '
        'runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true), '
        'seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" '
        'or "Localhost")'
    )


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        (a_pod(hostPID=True, hostIPC=True), "host namespaces (hostPID=true, hostIPC=true)"),
        (
            a_pod(context={"capabilities": {"add": ["SYS_ADMIN", "NET_RAW"]}}),
            'non-default capabilities (container "c" must not include "NET_RAW", "SYS_ADMIN" '
            "in securityContext.capabilities.add)",
        ),
        (
            a_pod(volumes=[{"name": "a", "hostPath": {"path": "/"}}, {"name": "b", "hostPath": {"path": "/"}}]),
            'hostPath volumes (volumes "a", "b")',
        ),
        (
            a_pod(containers=[{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 8080}]}]),
            'hostPort (container "c" uses hostPort 8080)',
        ),
        (
            a_pod(securityContext={"seLinuxOptions": {"type": "spc_t", "user": "u"}}),
            'seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type "spc_t"; user may not be set)',
        ),
        (
            a_pod(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
            "forbidden sysctls (kernel.msgmax)",
        ),
        (
            a_pod(context={"seccompProfile": {"type": "Unconfined"}}),
            'seccompProfile (container "c" must not set securityContext.seccompProfile.type to "Unconfined")',
        ),
        (
            a_pod(context={"procMount": "Unmasked"}, hostUsers=False),
            'procMount (container "c" must not set securityContext.procMount to "Unmasked")',
        ),
    ],
)
async def test_each_check_has_its_words(call: Hand, pod: Object, said: str) -> None:
    path = await a_namespace(call, enforce="baseline")
    status, found = await call("POST", path, pod)
    assert (status, found["message"].partition('"baseline:latest": ')[2]) == (403, said)


async def test_a_warning_lets_the_pod_in(call: Hand) -> None:
    path = await a_namespace(call, warn="baseline")
    said = await warning(call, path, a_pod(hostNetwork=True))
    assert 'would violate PodSecurity "baseline:latest": host namespaces (hostNetwork=true)' in said
    assert await warning(call, path, a_pod("q")) == ""


async def test_what_would_make_such_pods_is_warned_of(call: Hand) -> None:
    await a_namespace(call, enforce="restricted")
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": a_pod(hostNetwork=True)["spec"]}
    deployment = {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    said = await warning(call, "/apis/apps/v1/namespaces/x/deployments", deployment)
    assert 'would violate PodSecurity "restricted:latest": host namespaces' in said


async def test_a_stricter_level_tells_of_the_pods_that_are_there(call: Hand) -> None:
    path = await a_namespace(call)
    for name in ("a", "b", "c"):
        await call.made(path, a_pod(name, hostNetwork=True))
    await call.made(path, a_pod("d", hostPID=True, context={"privileged": True}))
    patch = {"metadata": {"labels": {f"{LABEL}enforce": "baseline"}}}
    answer = await call.answer("PATCH", f"{NAMESPACES}/x", patch, kind=MERGE)
    assert isinstance(answer, ApiResponse)
    said = answer.headers["Warning"].replace('\\"', '"')
    assert 'existing pods in namespace "x" violate the new PodSecurity enforce level "baseline:latest"' in said
    assert "a (and 2 other pods): host namespaces" in said
    assert "d: host namespaces, privileged" in said


async def test_a_label_that_means_nothing_is_refused(call: Hand) -> None:
    labels = {f"{LABEL}enforce": "strict"}
    status, found = await call("POST", NAMESPACES, {"metadata": {"name": "x", "labels": labels}})
    assert status == 422
    assert found["message"] == (
        f'Namespace "x" is invalid: metadata.labels[{LABEL}enforce]: Invalid value: "strict": '
        "must be one of privileged, baseline, restricted"
    )


async def test_a_pod_that_was_there_before_may_still_change_what_nobody_asks_about(call: Hand) -> None:
    path = await a_namespace(call)
    await call.made(path, a_pod(hostNetwork=True))
    await call("PATCH", f"{NAMESPACES}/x", {"metadata": {"labels": {f"{LABEL}enforce": "baseline"}}}, kind=MERGE)
    patch = {"metadata": {"labels": {"a": "b"}}}
    assert (await call("PATCH", f"{path}/p", patch, kind=MERGE))[0] == 200


@pytest.mark.parametrize(
    ("labels", "enforce", "warn"),
    [
        ({}, "privileged:latest", "privileged:latest"),
        ({"enforce": "baseline", "enforce-version": "v1.20"}, "baseline:v1.20", "baseline:v1.20"),
        ({"enforce": "restricted", "warn": "baseline"}, "restricted:latest", "baseline:latest"),
        ({"enforce": "nonsense", "warn": "nonsense"}, "restricted:latest", "privileged:latest"),
    ],
)
def test_labels_say_what_is_asked(labels: dict[str, str], enforce: str, warn: str) -> None:
    policy = levels_from_labels({LABEL + mode: value for mode, value in labels.items()})
    assert (str(policy.enforce), str(policy.warn)) == (enforce, warn)
    assert levels_from_labels({"app": "web"}).enforce == LevelVersion()
