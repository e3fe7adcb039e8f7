"""The official Kubernetes Python client on our API server."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from .servers import OwnServer

kubernetes = pytest.importorskip("kubernetes", reason="its client is not installed: make bench installs it")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Client of a new server, configured from its kubeconfig."""
    with (
        OwnServer(tmp_path_factory.mktemp("server") / "data") as server,
        kubernetes.config.new_client_from_config(str(server.kubeconfig)) as client,
    ):
        yield client


def new_pod(name: str) -> Any:
    models = kubernetes.client
    container = models.V1Container(
        name="c", image="nginx", resources=models.V1ResourceRequirements(limits={"cpu": "1"})
    )
    metadata = models.V1ObjectMeta(name=name, labels={"app": name})
    return models.V1Pod(metadata=metadata, spec=models.V1PodSpec(containers=[container]))


def test_objects_are_created_read_changed_and_deleted(api: Any) -> None:
    core = kubernetes.client.CoreV1Api(api)
    made = core.create_namespaced_pod("default", new_pod("life"))
    assert (made.status.phase, made.spec.containers[0].resources.requests) == ("Pending", {"cpu": "1"})
    assert made.metadata.creation_timestamp is not None
    changed = core.patch_namespaced_pod("life", "default", {"metadata": {"labels": {"tier": "front"}}})
    assert changed.metadata.labels == {"app": "life", "tier": "front"}
    listed = core.list_namespaced_pod("default", label_selector="tier=front")
    assert [each.metadata.name for each in listed.items] == ["life"]
    scaled = {"status": {"phase": "Running"}}
    assert core.patch_namespaced_pod_status("life", "default", scaled).status.phase == "Running"
    core.delete_namespaced_pod("life", "default")
    with pytest.raises(kubernetes.client.ApiException) as refused:
        core.read_namespaced_pod("life", "default")
    assert (refused.value.status, refused.value.reason) == (404, "Not Found")


def test_write_to_an_older_version_is_refused(api: Any) -> None:
    core = kubernetes.client.CoreV1Api(api)
    first = core.create_namespaced_config_map(
        "default", kubernetes.client.V1ConfigMap(metadata={"name": "m"}, data={"a": "1"})
    )
    first.data = {"a": "2"}
    core.replace_namespaced_config_map("m", "default", first)
    first.data = {"a": "3"}
    with pytest.raises(kubernetes.client.ApiException) as refused:
        core.replace_namespaced_config_map("m", "default", first)
    assert refused.value.status == 409


def test_watch_reports_changes(api: Any) -> None:
    core = kubernetes.client.CoreV1Api(api)
    version = core.list_namespaced_pod("default").metadata.resource_version
    threading.Thread(target=core.create_namespaced_pod, args=("default", new_pod("seen"))).start()
    watch = kubernetes.watch.Watch()
    events = watch.stream(core.list_namespaced_pod, "default", resource_version=version, timeout_seconds=20)
    event = next(event for event in events if event["object"].metadata.name == "seen")
    watch.stop()
    assert (event["type"], event["object"].kind) == ("ADDED", "Pod")


def test_deployments_scale_and_status_is_a_subresource(api: Any) -> None:
    apps, models = kubernetes.client.AppsV1Api(api), kubernetes.client
    labels = {"app": "web"}
    template = models.V1PodTemplateSpec(metadata=models.V1ObjectMeta(labels=labels), spec=new_pod("x").spec)
    spec = models.V1DeploymentSpec(selector=models.V1LabelSelector(match_labels=labels), template=template)
    made = apps.create_namespaced_deployment(
        "default", models.V1Deployment(metadata=models.V1ObjectMeta(name="web"), spec=spec)
    )
    assert (made.spec.replicas, made.spec.strategy.type) == (1, "RollingUpdate")
    apps.patch_namespaced_deployment_scale("web", "default", {"spec": {"replicas": 4}})
    assert apps.read_namespaced_deployment_scale("web", "default").spec.replicas == 4
    assert apps.read_namespaced_deployment("web", "default").metadata.generation == 2


def test_custom_objects_are_created_and_read_as_dicts(api: Any) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "widgets", "kind": "Widget", "singular": "widget"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }
    kubernetes.client.ApiextensionsV1Api(api).create_custom_resource_definition(definition)
    custom = kubernetes.client.CustomObjectsApi(api)
    widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 3}}
    place = ("example.com", "v1", "default", "widgets")
    assert custom.create_namespaced_custom_object(*place, widget)["spec"] == {"size": 3}
    assert custom.patch_namespaced_custom_object(*place, "w", {"spec": {"size": 4}})["spec"] == {"size": 4}
    assert [each["metadata"]["name"] for each in custom.list_namespaced_custom_object(*place)["items"]] == ["w"]


def test_dynamic_client_discovers_served_kinds(api: Any) -> None:
    dynamic = kubernetes.dynamic.DynamicClient(api)
    maps = dynamic.resources.get(api_version="v1", kind="ConfigMap")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dynamic"}, "data": {"a": "b"}}
    assert maps.create(body=body, namespace="default").data.a == "b"
    applied = maps.server_side_apply(body={**body, "data": {"c": "d"}}, namespace="default", field_manager="me")
    assert applied.data.to_dict() == {"a": "b", "c": "d"}


def test_token_identifies_its_service_account(api: Any) -> None:
    core, models = kubernetes.client.CoreV1Api(api), kubernetes.client
    request = models.AuthenticationV1TokenRequest(spec=models.V1TokenRequestSpec(audiences=[]))
    token = core.create_namespaced_service_account_token("default", "default", request).status.token
    review = models.V1TokenReview(spec=models.V1TokenReviewSpec(token=token))
    status = models.AuthenticationV1Api(api).create_token_review(review).status
    assert (status.authenticated, status.user.username) == (True, "system:serviceaccount:default:default")
