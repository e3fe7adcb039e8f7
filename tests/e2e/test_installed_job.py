"""The charts of the tree on real clusters, for one Job: the short part of test_installed_release.py.

The manager and the syncer are containers of our image on one node, and the Job is a container on another. In the long
test, the physical cluster is also the management cluster, so the syncer is a container there.
"""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tapestry.apis import keys
from tapestry.kube.objects import Object, is_deleting, uid_of
from tapestry.local.control_planes import kubelet_flags

from .clusters import Cluster, PhysicalCluster
from .conftest import control_plane_of
from .installation import SYSTEM, tapestry
from .nodes import Kit, RealNode, network
from .prometheus import wait_for
from .test_installed_release import (
    IN_SYSTEM,
    ROOT,
    InstalledClusters,
    install_chart,
    installed_objects,
    join,
    objects,
    prepare,
    run_job,
    unbind,
    uninstall_chart,
    virtual_cluster,
    wait_for_node,
)

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(450)]
SECRET = "secret/tapestry-syncer-east"
CREDENTIAL = "authentication.kubernetes.io/credential-id"
RENEWAL_SECONDS = 240
"""Time limit for a kubelet to update a mounted Secret, and for a syncer to read it again."""


@pytest.fixture
def clusters(node_kit: Kit, tmp_path: Path) -> Iterator[InstalledClusters]:
    with (
        network(),
        virtual_cluster(tmp_path, node_kit) as virtual,
        control_plane_of(tmp_path / "east", node_kit, kubelet_flags(tmp_path / "east")) as plane,
        RealNode("n1", 1, plane, tmp_path / "east-node", node_kit) as node,
    ):
        node.wait_until_ready()
        yield InstalledClusters(virtual, {"east": PhysicalCluster(plane, node_kit.assets, node)}, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_syncer_in_a_management_cluster_survives_a_renewed_token(clusters: InstalledClusters) -> None:
    east, renewal = clusters.physical["east"], f"--overwrite {keys.TOKENS_RENEWAL}=2026-01-01T00:00:00Z".split()
    try:
        install_in_management_cluster(clusters, east)
        prepare(clusters, "east", str(ROOT / "charts/tapestry-worker"))
        join(clusters, "east")
        wait_for_node(clusters, "east")
        run_job(clusters)
        [pod] = syncer_pods(east)
        assert syncer_pods(clusters.virtual) == []
        first = token_id(east)
        wait_until_used(clusters, first)
        east.kubectl("annotate", SECRET, IN_SYSTEM, *renewal)
        touch_binding(clusters)
        wait_until(lambda: token_id(east) != first)
        wait_until_used(clusters, token_id(east))  # after the kubelet has updated the mounted Secret
        run_job(clusters, "after-renewal", "east")
        [after] = syncer_pods(east)
        assert uid_of(after) == uid_of(pod)
        assert after["status"]["containerStatuses"][0]["restartCount"] == 0
        unbind(clusters)
        assert syncer_pods(east) == []
        uninstall_chart(clusters)
    except BaseException as error:
        error.add_note(clusters.diagnostics())
        raise


def install_in_management_cluster(clusters: InstalledClusters, east: PhysicalCluster) -> None:
    """Follow the guide: an account in the management cluster, and a Secret with access to it."""
    east.node.run("ctr", "--namespace=k8s.io", "images", "import", clusters.folder / "image.tar")
    clusters.apply(tapestry("manifests", "--management"), east)
    token, kubeconfig = clusters.folder / "token", clusters.folder / "kubeconfig"
    token.write_text(east.kubectl("create", "token", "tapestry-manager", IN_SYSTEM))
    config = json.loads(east.plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"tokenFile": "token"}
    kubeconfig.write_text(json.dumps(config))
    clusters.virtual.kubectl("create", "namespace", SYSTEM)
    files = (f"--from-file={kubeconfig}", f"--from-file={token}")
    clusters.virtual.kubectl("create", "secret", "generic", "management", IN_SYSTEM, *files)
    values = (
        f"managementCluster.kubeconfigSecret=management,managementCluster.virtualServer={clusters.virtual.plane.url}"
    )
    replicas = "manager.replicas=1,syncer.replicas=1"
    install_chart(clusters, str(ROOT / "charts/tapestry"), f"--set={replicas},{values}")


def syncer_pods(cluster: Cluster) -> list[Object]:
    found = objects(cluster, "pods", IN_SYSTEM, "--selector=app.kubernetes.io/name=tapestry-syncer")
    return [each for each in found if not is_deleting(each)]


def token_id(east: Cluster) -> str:
    """Return the ID of the token that the manager has issued for the syncer."""
    data = json.loads(east.kubectl("get", SECRET, IN_SYSTEM, "-o", "json"))["data"]
    _, claims, _ = base64.b64decode(data["token"]).decode().split(".")
    found: str = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["jti"]
    return found


def touch_binding(clusters: InstalledClusters) -> None:
    """Let the manager check the binding now. Otherwise it does so every five minutes."""
    patch = json.dumps({"spec": {"unbindGraceSeconds": 1}})
    clusters.virtual.kubectl("patch", "clusterbinding/east", "--type=merge", f"--patch={patch}")


def wait_until_used(clusters: InstalledClusters, token: str) -> None:
    """Wait until the syncer sends a request with a token, according to the audit log."""

    def is_used() -> bool:
        entries = clusters.virtual.plane.audit_log.read_text().split("\n")[:-1]  # without one that is being written
        users = (json.loads(each)["user"] for each in entries if f"JTI={token}" in each)
        return any(f"JTI={token}" in each.get("extra", {}).get(CREDENTIAL, ()) for each in users)

    wait_until(is_used)


def wait_until(is_done: Callable[[], bool]) -> None:
    wait_for(is_done, bool, RENEWAL_SECONDS)


def test_job_runs_in_a_prepared_cluster(clusters: InstalledClusters) -> None:
    before = installed_objects(clusters.virtual), installed_objects(clusters.physical["east"])
    try:
        install_chart(clusters, str(ROOT / "charts/tapestry"), "--set=manager.replicas=1,syncer.replicas=1")
        prepare(clusters, "east", str(ROOT / "charts/tapestry-worker"))
        join(clusters, "east")
        wait_for_node(clusters, "east")
        run_job(clusters)
        unbind(clusters)
        uninstall_chart(clusters)
    except BaseException as error:
        error.add_note(clusters.diagnostics())
        raise
    kinds = {each.split()[0] for each in installed_objects(clusters.virtual) - before[0]}
    assert kinds <= {"CustomResourceDefinition", "Namespace", "ServiceAccount"}  # the namespace of the release
    left = installed_objects(clusters.physical["east"]) - before[1]
    assert left == {"CustomResourceDefinition resourceleasingpolicies.cloud.tencent.com "}
