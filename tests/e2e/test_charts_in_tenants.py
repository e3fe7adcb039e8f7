"""Charts of three common kinds in a tenant of a host cluster with a real kubelet, installed by Helm."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tapestry.kube.objects import Object, name_of

from .chart_releases import OLD_PAGES, PAGES, install, install_operator, new_page, uninstall
from .clusters import PhysicalCluster
from .images import IMAGE
from .tenants import Planes, Tenant, running_planes

pytestmark = [pytest.mark.long, pytest.mark.timeout(450)]


STANDARD: Object = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "kubernetes.io/host-path",
}
"""Class of the host cluster."""


@pytest.fixture(scope="module")
def planes(host_cluster: PhysicalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planes]:
    folder = tmp_path_factory.mktemp("planes")
    manifest = folder / "class.json"
    manifest.write_text(json.dumps(STANDARD))
    host_cluster.kubectl("apply", "--filename", manifest)
    with running_planes(folder, east=host_cluster) as planes:
        planes.add_host("east", "--storage-class", "standard")
        yield planes


@pytest.fixture(scope="module")
def tenant(planes: Planes) -> Tenant:
    return planes.create_tenant("blue", "east")


def page_of(tenant: Tenant) -> str:
    """Return what the Service `web` answers to a pod."""
    address = tenant.get("service", "web")["spec"]["clusterIP"]
    return tenant.kubectl("exec", "deployment/web", "--", "wget", "-qO-", f"http://{address}")


def test_deployment_with_service_works(tenant: Tenant) -> None:
    install(tenant, "web", f"image={IMAGE}", "text=first")
    assert page_of(tenant) == "first"
    install(tenant, "web", f"image={IMAGE}", "text=second", "replicas=3", command="upgrade")
    assert page_of(tenant) == "second"
    uninstall(tenant, "web")
    tenant.kubectl("wait", "pod", "--all", "--for=delete", "--timeout=60s")
    assert tenant.twins() == {}


def test_operator_with_webhooks_and_conversion_works(
    tenant: Tenant, host_cluster: PhysicalCluster, tmp_path: Path
) -> None:
    install_operator(tenant, host_cluster.node, tmp_path)
    tenant.apply(new_page("v1", lines=["one"]), new_page("v1alpha1", text="one\ntwo"))
    assert tenant.get(PAGES, "v1")["spec"] == {"lines": ["one"], "owner": "admin"}
    assert tenant.get(OLD_PAGES, "v1")["spec"] == {"text": "one"}
    assert tenant.get(PAGES, "v1alpha1")["spec"] == {"lines": ["one", "two"]}
    tenant.kubectl("wait", "page/v1alpha1", "--for=jsonpath={.status.observed}=one\ntwo", "--timeout=30s")
    assert tenant.get("configmap", "v1alpha1")["data"] == {"text": "one\ntwo"}
    with pytest.raises(RuntimeError, match="a page needs lines"):
        tenant.kubectl("patch", PAGES, "v1", "--type=merge", "--patch", json.dumps({"spec": {"lines": []}}))
    tenant.kubectl("wait", "apiservice/v1.statistics.example.com", "--for=condition=Available", "--timeout=30s")
    callers = tenant.kubectl("get", "--raw", "/apis/statistics.example.com/v1/callers")
    assert json.loads(callers) == {"user": "admin"}
    tenant.kubectl("delete", "page", "v1alpha1")
    tenant.kubectl("wait", "configmap/v1alpha1", "--for=delete", "--timeout=30s")


def test_webhooks_are_called_directly_in_listed_ranges(planes: Planes, tenant: Tenant) -> None:
    """The operator of the test before is called, although the tenant has lost the right to port-forward."""
    role = json.loads(tenant.host.kubectl("get", "clusterrole", "tapestry-tenant", "--output=json"))
    rules = [each for each in role["rules"] if "pods/portforward" not in each["resources"]]
    assert len(rules) < len(role["rules"])
    patch = json.dumps({"rules": rules})
    tenant.host.kubectl("patch", "clusterrole", "tapestry-tenant", "--type=merge", "--patch", patch)
    planes.process.kill()  # closes connections by port-forward
    planes.start_again(tenant)
    page = new_page("v1", lines=["one", "two"])
    with pytest.raises(RuntimeError, match=r"failed calling webhook"):
        tenant.apply(page)
    patch = json.dumps({"spec": {"podRanges": ["198.18.0.0/15"]}})
    planes.manage("patch", "hostcluster", "east", "--type=merge", "--patch", patch)
    tenant.apply(page)
    assert tenant.get(OLD_PAGES, "v1")["spec"] == {"text": "one\ntwo"}


def open_volumes(tenant: Tenant) -> None:
    """Let all users write to the volumes in the host cluster: its provisioner sets no permissions."""
    volumes = json.loads(tenant.host.kubectl("get", "persistentvolumes", "--output=json"))["items"]
    for each in volumes:
        Path(each["spec"]["hostPath"]["path"]).chmod(0o777)


def test_stateful_set_with_claims_works(tenant: Tenant) -> None:
    install(tenant, "database", f"image={IMAGE}")
    open_volumes(tenant)
    for pod in ("database-0", "database-1"):
        tenant.kubectl("exec", pod, "--", "sh", "-c", "echo $HOSTNAME > /data/index.html")
    tenant.kubectl("delete", "pod", "database-0", "--timeout=60s")
    tenant.kubectl("rollout", "status", "statefulset/database", "--timeout=60s")
    for pod in ("database-0", "database-1"):
        assert tenant.kubectl("exec", pod, "--", "cat", "/data/index.html") == f"{pod}\n"
    claims = tenant.get("persistentvolumeclaims")["items"]
    assert [(name_of(each), each["status"]["phase"]) for each in claims] == [
        ("data-database-0", "Bound"),
        ("data-database-1", "Bound"),
    ]
    assert tenant.inventory().count("persistentvolumeclaim/") == len(claims)
    uninstall(tenant, "database")
    tenant.kubectl("delete", "persistentvolumeclaims", "--all", "--timeout=60s")
    tenant.kubectl("wait", "persistentvolumes", "--all", "--for=delete", "--timeout=60s")
    assert "persistentvolumeclaim/" not in tenant.inventory()
