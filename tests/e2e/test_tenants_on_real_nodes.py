"""Tenants of a host cluster with a real kubelet: the pods of planes are containers.

One process holds the planes. Pods of tenants reach the API of their planes at the address of this machine.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tapestry.kube.objects import Object, name_of, uid_of

from .clusters import PhysicalCluster
from .metrics_servers import aggregated_metrics
from .tenants import Planes, Tenant, restricted_pod, running_planes

pytestmark = pytest.mark.timeout(450)  # includes waiting until another worker has finished with its nodes

LABELS = {"app": "web"}
SERVE = "echo $HOSTNAME > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"


@pytest.fixture(scope="module")
def planes(host_cluster: PhysicalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planes]:
    with running_planes(tmp_path_factory.mktemp("planes"), east=host_cluster) as running:
        running.add_host("east")
        yield running


@pytest.fixture(scope="module")
def tenant(planes: Planes) -> Tenant:
    """A tenant with a Deployment of two pods and their Service."""
    made = planes.create_tenant("blue", "east")
    made.apply(*web())
    try:
        made.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    except RuntimeError as error:
        error.add_note(made.diagnostics())
        raise
    return made


def web() -> list[Object]:
    probe = {"httpGet": {"port": 8080}, "periodSeconds": 1}
    pod = restricted_pod("sh", "-c", SERVE, readinessProbe=probe)
    template = {"metadata": {"labels": LABELS}, "spec": pod}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {"replicas": 2, "selector": {"matchLabels": LABELS}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": LABELS, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    ]


def pod_names(tenant: Tenant) -> list[str]:
    return sorted(name_of(each) for each in tenant.get("pods", "--selector=app=web")["items"])


def test_service_leads_to_pods_by_cluster_ip(tenant: Tenant) -> None:
    tenant.kubectl("wait", "--for=jsonpath={.spec.clusterIP}", "service/web", "--timeout=30s")
    address = tenant.get("service", "web")["spec"]["clusterIP"]
    names, (client, _) = set(pod_names(tenant)), pod_names(tenant)
    wanted = f'until [ "$(sort -u /tmp/seen | wc -l)" = {len(names)} ]'
    script = f"touch /tmp/seen; {wanted}; do wget -qO- http://{address} >> /tmp/seen; done"
    tenant.kubectl("exec", client, "--", "timeout", "30", "sh", "-c", script)
    assert set(tenant.kubectl("exec", client, "--", "sort", "-u", "/tmp/seen").split()) == names


def test_job_completes(tenant: Tenant) -> None:
    spec = {**restricted_pod("sh", "-c", "echo sum $((20 + 22))"), "restartPolicy": "Never"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sum"}, "spec": {"template": {"spec": spec}}}
    tenant.apply(job)
    tenant.kubectl("wait", "job/sum", "--for=condition=Complete", "--timeout=60s")
    assert tenant.kubectl("logs", "job/sum") == "sum 42\n"


def test_pod_calls_api_of_plane_with_its_token(tenant: Tenant) -> None:
    (pod, _) = pod_names(tenant)
    fields = "{.status.userInfo.username} {.status.userInfo.extra.authentication\\.kubernetes\\.io/pod-name[0]}"
    whoami = ("kubectl", "auth", "whoami", "-o", f"jsonpath={fields}")
    assert tenant.kubectl("exec", pod, "--", *whoami) == f"system:serviceaccount:default:default {pod}"


def test_streams_work_through_port_of_plane(tenant: Tenant, tmp_path: Path) -> None:
    (first, second), streams = pod_names(tenant), tenant.streams()
    streams.check_exec(first)
    streams.with_spdy().check_exec(second)
    streams.check_terminal(second)
    streams.check_copy(first, tmp_path)
    streams.check_port_forward(second, 8080)
    streams.with_spdy().check_port_forward(first, 8080)


def test_top_shows_usage_of_pods_and_nodes(tenant: Tenant, tmp_path: Path) -> None:
    (pod, _) = pod_names(tenant)
    with aggregated_metrics(tenant.host, tmp_path):
        tenant.streams().check_top(pod, "n1")


@pytest.mark.long
def test_all_verbs_work_with_lite_isolation(planes: Planes) -> None:
    """These checks create pods that the level `restricted` does not allow."""
    tenant = planes.create_tenant("green", "east", "--isolation", "lite")
    streams = tenant.streams()
    streams.check_logs("talk")
    streams.check_attach("parrot")
    tenant.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": restricted_pod("sh", "-c", SERVE)}
    )
    tenant.kubectl("wait", "pod/web", "--for=condition=Ready", "--timeout=60s")
    streams.check_debug("web")
    planes.tapestry("tenant", "delete", "green")


def test_drained_pods_run_again(planes: Planes, tenant: Tenant) -> None:
    before = {name: uid_of(twin) for name, twin in tenant.twins().items()}
    planes.tapestry("tenant", "drain", "blue")
    assert tenant.twins() == {}
    assert len(pod_names(tenant)) == 2
    planes.tapestry("tenant", "run", "blue")
    tenant.kubectl("wait", "pod", "--selector=app=web", "--for=condition=Ready", "--timeout=60s")
    after = {name: uid_of(twin) for name, twin in tenant.twins().items()}
    assert set(after) == set(pod_names(tenant)) <= set(before)
    assert not set(after.values()) & set(before.values())


def test_pods_survive_kill_of_their_process(planes: Planes, tenant: Tenant, host_cluster: PhysicalCluster) -> None:
    """The same containers run while no process holds the plane, and after another has adopted them."""
    containers, twins = running_containers(tenant), {uid_of(each) for each in tenant.twins().values()}
    planes.process.kill()
    assert containers <= set(host_cluster.node.containers())
    planes.start_again(tenant)
    tenant.kubectl("scale", "deployment/web", "--replicas=3")
    tenant.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    assert containers < running_containers(tenant)
    assert twins < {uid_of(each) for each in tenant.twins().values()}


def running_containers(tenant: Tenant) -> set[str]:
    """Return the ids of the containers of the Deployment, as the plane shows them."""
    pods = tenant.get("pods", "--selector=app=web")["items"]
    return {each["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://") for each in pods}


@pytest.mark.long
def test_pods_survive_silent_kubelet(tenant: Tenant, host_cluster: PhysicalCluster) -> None:
    """The plane shows that the node and its pods are not ready, and no pod is replaced."""
    containers, node = running_containers(tenant), host_cluster.node
    node.kill_kubelet()
    tenant.kubectl("wait", "node/n1", "--for=condition=Ready=Unknown", "--timeout=120s")
    tenant.kubectl("wait", "pod", "--selector=app=web", "--for=condition=Ready=False", "--timeout=30s")
    assert containers <= set(node.containers())
    node.start_kubelet()
    tenant.kubectl("wait", "node/n1", "--for=condition=Ready", "--timeout=60s")
    tenant.kubectl("wait", "pod", "--selector=app=web", "--for=condition=Ready", "--timeout=60s")
    assert running_containers(tenant) == containers


def test_deleted_tenant_leaves_nothing_in_its_host(planes: Planes, tenant: Tenant) -> None:
    assert tenant.inventory() != ""
    planes.tapestry("tenant", "delete", "blue")
    assert tenant.inventory() == ""
    assert json.loads(tenant.kubectl("get", "deployment", "web", "--output=json"))["kind"] == "Deployment"
    planes.tapestry("host", "remove", "east")
