"""Pod Security admission: levels by namespace labels, in the wording of Kubernetes."""

from typing import Any

import pytest

from tapestry.apiserver.admission.pod_security import LevelVersion, levels_from_labels
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.kube.objects import Object

from ..conftest import ServerClient

NAMESPACES = "/api/v1/namespaces"
LABEL = "pod-security.kubernetes.io/"
MERGE = "application/merge-patch+json"


async def create_namespace(call: ServerClient, **labels: str) -> str:
    """Create a namespace with Pod Security labels and return the path of its pods."""
    full_labels = {LABEL + mode.replace("_", "-"): value for mode, value in labels.items()}
    await call.made(NAMESPACES, {"metadata": {"name": "x", "labels": full_labels}})
    return f"{NAMESPACES}/x/pods"


def pod_body(name: str = "p", context: Object | None = None, **spec: Any) -> Object:
    container = {"name": "c", "image": "i", **({"securityContext": context} if context is not None else {})}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


async def warning_of_create(call: ServerClient, path: str, body: Object) -> str:
    response = await call.answer("POST", path, body)
    assert isinstance(response, ApiResponse)
    assert response.status == 201, response.body
    return response.headers.get("Warning", "").replace('\\"', '"')


async def test_violating_pod_is_forbidden(call: ServerClient) -> None:
    path = await create_namespace(call, enforce="baseline")
    status, response = await call("POST", path, pod_body(context={"privileged": True}, hostNetwork=True))
    assert status == 403
    assert response["message"] == (
        'pods "p" is forbidden: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true), '
        'privileged (container "c" must not set securityContext.privileged=true)'
    )
    await call.made(path, pod_body())


async def test_restricted_violations_have_kubernetes_wording(call: ServerClient) -> None:
    path = await create_namespace(call, enforce="restricted", enforce_version="v1.30")
    status, response = await call("POST", path, pod_body())
    assert status == 403
    assert response["message"] == (
        'pods "p" is forbidden: violates PodSecurity "restricted:v1.30": '
        'allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false), '
        'unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"]), '
        'runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true), '
        'seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" '
        'or "Localhost")'
    )


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        (pod_body(hostPID=True, hostIPC=True), "host namespaces (hostPID=true, hostIPC=true)"),
        (
            pod_body(context={"capabilities": {"add": ["SYS_ADMIN", "NET_RAW"]}}),
            'non-default capabilities (container "c" must not include "NET_RAW", "SYS_ADMIN" '
            "in securityContext.capabilities.add)",
        ),
        (
            pod_body(volumes=[{"name": "a", "hostPath": {"path": "/"}}, {"name": "b", "hostPath": {"path": "/"}}]),
            'hostPath volumes (volumes "a", "b")',
        ),
        (
            pod_body(containers=[{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 8080}]}]),
            'hostPort (container "c" uses hostPort 8080)',
        ),
        (
            pod_body(securityContext={"seLinuxOptions": {"type": "spc_t", "user": "u"}}),
            'seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type "spc_t"; user may not be set)',
        ),
        (
            pod_body(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
            "forbidden sysctls (kernel.msgmax)",
        ),
        (
            pod_body(context={"seccompProfile": {"type": "Unconfined"}}),
            'seccompProfile (container "c" must not set securityContext.seccompProfile.type to "Unconfined")',
        ),
        (
            pod_body(context={"procMount": "Unmasked"}, hostUsers=False),
            'procMount (container "c" must not set securityContext.procMount to "Unmasked")',
        ),
    ],
)
async def test_each_violation_has_kubernetes_wording(call: ServerClient, pod: Object, message: str) -> None:
    path = await create_namespace(call, enforce="baseline")
    status, response = await call("POST", path, pod)
    assert (status, response["message"].partition('"baseline:latest": ')[2]) == (403, message)


async def test_warn_level_admits_with_warning(call: ServerClient) -> None:
    path = await create_namespace(call, warn="baseline")
    message = await warning_of_create(call, path, pod_body(hostNetwork=True))
    assert 'would violate PodSecurity "baseline:latest": host namespaces (hostNetwork=true)' in message
    assert await warning_of_create(call, path, pod_body("q")) == ""


async def test_violating_template_causes_warning(call: ServerClient) -> None:
    await create_namespace(call, enforce="restricted")
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": pod_body(hostNetwork=True)["spec"]}
    deployment = {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    message = await warning_of_create(call, "/apis/apps/v1/namespaces/x/deployments", deployment)
    assert 'would violate PodSecurity "restricted:latest": host namespaces' in message


async def test_stricter_level_warns_about_existing_pods(call: ServerClient) -> None:
    path = await create_namespace(call)
    for name in ("a", "b", "c"):
        await call.made(path, pod_body(name, hostNetwork=True))
    await call.made(path, pod_body("d", hostPID=True, context={"privileged": True}))
    patch = {"metadata": {"labels": {f"{LABEL}enforce": "baseline"}}}
    response = await call.answer("PATCH", f"{NAMESPACES}/x", patch, kind=MERGE)
    assert isinstance(response, ApiResponse)
    message = response.headers["Warning"].replace('\\"', '"')
    assert 'existing pods in namespace "x" violate the new PodSecurity enforce level "baseline:latest"' in message
    assert "a (and 2 other pods): host namespaces" in message
    assert "d: host namespaces, privileged" in message


async def test_unknown_level_is_rejected(call: ServerClient) -> None:
    labels = {f"{LABEL}enforce": "strict"}
    status, response = await call("POST", NAMESPACES, {"metadata": {"name": "x", "labels": labels}})
    assert status == 422
    assert response["message"] == (
        f'Namespace "x" is invalid: metadata.labels[{LABEL}enforce]: Invalid value: "strict": '
        "must be one of privileged, baseline, restricted"
    )


async def test_existing_violating_pod_can_be_relabeled(call: ServerClient) -> None:
    path = await create_namespace(call)
    await call.made(path, pod_body(hostNetwork=True))
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
def test_labels_select_levels(labels: dict[str, str], enforce: str, warn: str) -> None:
    policy = levels_from_labels({LABEL + mode: value for mode, value in labels.items()})
    assert (str(policy.enforce), str(policy.warn)) == (enforce, warn)
    assert levels_from_labels({"app": "web"}).enforce == LevelVersion()
