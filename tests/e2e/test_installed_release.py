"""Tapestry installed with its charts on real clusters: from installation to uninstallation.

The virtual cluster and two physical clusters have kube-apiserver, etcd, controllers, scheduler and a real kubelet each.
The manager and the syncers are containers of the image that tools/image.py builds. The owners of the physical clusters
install the worker chart. The test uses helm, kubectl and the command line, as an operator and the owners do.
The kubelets mount volumes of a CSI driver that both physical clusters share.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import image
import monitoring
from tapestry.apis import keys
from tapestry.kube.objects import Object, is_deleting, name_of
from tapestry.kube.times import timestamp
from tapestry.local.control_planes import kubelet_flags
from tapestry.local.kubernetes import ControlPlane

from ..conftest import program, released_chart
from ..integration.planes import kubeconfig_with
from .clusters import Cluster, PhysicalCluster
from .csi_driver import DRIVER, running_csi_driver
from .images import IMAGE
from .installation import SYSTEM, tapestry
from .nodes import MACHINE, Kit, RealNode, run
from .prometheus import running_prometheus
from .test_image import build

pytestmark = [pytest.mark.long, pytest.mark.kubernetes, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
MOUNT = "tapestry-leased"
IN_SYSTEM = f"--namespace={SYSTEM}"
IN_MOUNT = f"--namespace={MOUNT}"
TIMEOUT = "--timeout=180s"
REUSE = "--reset-then-reuse-values"
OURS = f"--selector={keys.CLUSTER_BINDING_UID}"
LEASE_ENDS = r"{.metadata.annotations.tapestry\.io/lease-ends}"
SYNCED_KINDS = "pods,configmaps,secrets,services,persistentvolumeclaims,persistentvolumes"
VOLUME = "shared-data"
NAMES = ("east", "west")
WORKLOAD = f"""
apiVersion: v1
kind: ConfigMap
metadata: {{name: page}}
data: {{text: hello}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {VOLUME}}}
spec:
  accessModes: [ReadWriteMany]
  capacity: {{storage: 1Gi}}
  storageClassName: ""
  claimRef: {{namespace: default, name: data}}
  csi: {{driver: {DRIVER}, volumeHandle: {VOLUME}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data}}
spec:
  accessModes: [ReadWriteMany]
  resources: {{requests: {{storage: 1Gi}}}}
  storageClassName: ""
  volumeName: {VOLUME}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 1
      automountServiceAccountToken: false
      nodeSelector: {{tapestry.io/node-type: virtual}}
      topologySpreadConstraints:
      - topologyKey: kubernetes.io/hostname
        maxSkew: 1
        whenUnsatisfiable: ScheduleAnyway
        labelSelector: {{matchLabels: {{app: web}}}}
      volumes:
      - {{name: page, configMap: {{name: page}}}}
      - {{name: data, persistentVolumeClaim: {{claimName: data}}}}
      containers:
      - name: web
        image: {IMAGE}
        command: [sh, -c, "cat /page/text > /data/$HOSTNAME; exec sleep 100000"]
        resources: {{requests: {{cpu: 10m, memory: 16Mi}}}}
        readinessProbe: {{exec: {{command: [sh, -c, "test -s /data/$HOSTNAME"]}}, periodSeconds: 1}}
        volumeMounts:
        - {{name: page, mountPath: /page}}
        - {{name: data, mountPath: /data}}
"""
CSI_DRIVER = f"""
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {{name: {DRIVER}}}
spec: {{attachRequired: false}}
"""
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: %s}
spec:
  template:
    spec:
      restartPolicy: Never
      automountServiceAccountToken: false
      nodeSelector: {kubernetes.io/hostname: %s}
      containers:
      - name: c
        image: %s
        command: [sh, -c, "echo done by $HOSTNAME"]
        resources: {requests: {cpu: 10m, memory: 16Mi}}
"""


@dataclass(frozen=True)
class InstalledClusters:
    """A virtual cluster, its physical clusters and a folder for files."""

    virtual: PhysicalCluster
    physical: dict[str, PhysicalCluster]
    folder: Path

    def helm(self, cluster: Cluster, *arguments: str) -> str:
        return run(
            cluster.assets / "helm", f"--kubeconfig={cluster.plane.kubeconfig}", *arguments, *("--timeout", "180s")
        )

    def tapestry(self, *arguments: object) -> str:
        return tapestry(arguments[0], "--kubeconfig", self.virtual.plane.kubeconfig, *arguments[1:])

    def apply(self, manifest: str, cluster: Cluster | None = None) -> None:
        """Apply a manifest, by default in the virtual cluster."""
        (self.folder / "manifest.yaml").write_text(manifest)
        (cluster or self.virtual).kubectl("apply", "-f", self.folder / "manifest.yaml")

    def pods(self) -> list[Object]:
        """Return the pods of the Deployment that are not being deleted."""
        found = objects(self.virtual, "pods", "--selector=app=web")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def twins(self, name: str) -> list[Object]:
        return objects(self.physical[name], "pods", IN_MOUNT, OURS)

    def diagnostics(self) -> str:
        clusters = {"virtual": self.virtual, **self.physical}
        return "\n".join(f"{name}:\n{cluster.diagnostics()}" for name, cluster in clusters.items())


def objects(cluster: Cluster, *arguments: str) -> list[Object]:
    found: list[Object] = json.loads(cluster.kubectl("get", *arguments, "-o", "json"))["items"]
    return found


@pytest.fixture(scope="module")
def clusters(
    physical_clusters: dict[str, PhysicalCluster], node_kit: Kit, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InstalledClusters]:
    folder = tmp_path_factory.mktemp("release")
    (folder / "volumes").mkdir()
    with virtual_cluster(folder, node_kit) as virtual, ExitStack() as drivers:
        for cluster in physical_clusters.values():
            drivers.enter_context(running_csi_driver(cluster.node, folder / "volumes"))
        yield InstalledClusters(virtual, physical_clusters, folder)


@contextmanager
def virtual_cluster(folder: Path, node_kit: Kit) -> Iterator[PhysicalCluster]:
    """Run a cluster with an audit log, and with a node that has the image of Tapestry."""
    program(node_kit.assets, "helm", "client-assets")
    build(folder / "image", "--architecture", image.native_architecture())
    plane = ControlPlane(
        folder / "virtual",
        node_kit.assets,
        controller_manager=True,
        scheduler=True,
        audit=True,
        fsync=False,
        address=MACHINE,
        flags=kubelet_flags(folder / "virtual"),
    )
    with plane, RealNode("v1", 3, plane, folder / "node", node_kit) as node:
        node.wait_until_ready()
        node.run("ctr", "--namespace=k8s.io", "images", "import", folder / "image.tar")
        yield PhysicalCluster(plane, node_kit.assets, node)


def test_release_from_installation_to_uninstallation(
    clusters: InstalledClusters, record_property: Callable[[str, object], None]
) -> None:
    before = installed_objects(clusters.virtual)
    steps = (
        *(install, prepare_and_join, run_job, run_deployment, scrape, drain_syncer, upgrade_while_pods_run),
        *(rotate_credential, close_window, use_kill_switch, unbind, uninstall),
    )
    try:
        for step in steps:
            step(clusters)
            if step is run_deployment:
                record_property("figure", f"memory: {memory(clusters)}")
    except BaseException as error:
        error.add_note(clusters.diagnostics())
        raise
    left = installed_objects(clusters.virtual) - before
    assert {each for each in left if SYSTEM not in each} == {
        "CustomResourceDefinition clusterbindings.cloud.tencent.com ",
        "CustomResourceDefinition resourceleasingpolicies.cloud.tencent.com ",
    }


def installed_objects(cluster: Cluster) -> set[str]:
    """Return kind, name and namespace of the objects that an installation can consist of."""
    kinds = (
        *("customresourcedefinitions", "clusterroles", "clusterrolebindings", "roles", "rolebindings", "namespaces"),
        *("validatingadmissionpolicies", "validatingadmissionpolicybindings", "deployments", "jobs", "services"),
        *("poddisruptionbudgets", "networkpolicies", "secrets", "nodes", "serviceaccounts"),
    )
    fields = "{.kind} {.metadata.name} {.metadata.namespace}"
    text = cluster.kubectl("get", ",".join(kinds), "-A", "-o", f"jsonpath={{range .items[*]}}{fields}{{'\\n'}}{{end}}")
    return set(text.splitlines())


def install(clusters: InstalledClusters) -> None:
    install_chart(clusters, released_chart("tapestry"))


def install_chart(clusters: InstalledClusters, path: str, *options: str) -> None:
    repository, _, tag = image.NAME.partition(":")
    values = f"image.repository={repository},image.tag={tag}"
    values += ",syncer.kubeletService=false"  # kube-apiserver runs beside the nodes, where Services have no addresses
    chart = ("tapestry", path, IN_SYSTEM, "--create-namespace")
    clusters.helm(clusters.virtual, "install", *chart, f"--set={values}", *options, "--wait")


def prepare_and_join(clusters: InstalledClusters) -> None:
    """Each owner installs the worker chart. Joining then creates nothing in the physical cluster."""
    for name in clusters.physical:
        lease = "--set=lease.forceReclaim=true,lease.gracefulReclaimPeriodSeconds=2,quota.pods=20"
        volumes = f"--set=allowedVolumes.drivers={{{DRIVER}}},allowedVolumes.volumeHandles={{{VOLUME}}}"
        prepare(clusters, name, released_chart("tapestry-worker"), lease, volumes)
        join(clusters, name)
        allowed = {"spec": {"allowedVolumes": {"drivers": [DRIVER], "volumeHandles": [VOLUME]}}}
        clusters.virtual.kubectl("patch", f"clusterbinding/{name}", "--type=merge", f"--patch={json.dumps(allowed)}")
    for each in (clusters.virtual, *clusters.physical.values()):
        clusters.apply(CSI_DRIVER, each)
    for name in clusters.physical:
        wait_for_node(clusters, name)


def prepare(clusters: InstalledClusters, name: str, chart: str, *options: str) -> None:
    values = clusters.folder / f"{name}.yaml"
    values.write_text(clusters.tapestry("join", name, "--print-worker-values"))
    clusters.helm(clusters.physical[name], "install", "worker", chart, f"--values={values}", *options)


def wait_for_node(clusters: InstalledClusters, name: str) -> None:
    for state in ("create", "condition=Ready"):
        clusters.virtual.kubectl("wait", f"node/vnode-{name}-n1", f"--for={state}", TIMEOUT)


def join(clusters: InstalledClusters, name: str) -> None:
    kubeconfig = clusters.physical[name].plane.kubeconfig
    assert "permissions, checked as the syncer" in clusters.tapestry(
        "join", name, "--cluster-kubeconfig", kubeconfig, "--prepared"
    )


def run_job(clusters: InstalledClusters, name: str = "first", cluster: str = "east") -> None:
    clusters.apply(JOB % (name, f"vnode-{cluster}-n1", IMAGE))
    clusters.virtual.kubectl("wait", f"job/{name}", "--for=condition=Complete", TIMEOUT)
    assert clusters.virtual.kubectl("logs", f"job/{name}").startswith(f"done by {name}-")
    clusters.virtual.kubectl("delete", f"job/{name}", TIMEOUT)


def run_deployment(clusters: InstalledClusters) -> None:
    clusters.apply(WORKLOAD)
    wait_for_rollout(clusters)
    assert sorted(map(cluster_of, clusters.pods())) == ["east", "west"]
    for pod in clusters.pods():
        assert clusters.virtual.kubectl("exec", name_of(pod), "--", "cat", f"/data/{name_of(pod)}") == "hello"


def files_in_volume(clusters: InstalledClusters) -> set[str]:
    """Return the names in the volume, as a pod sees them: those of all pods that have mounted it."""
    return set(clusters.virtual.kubectl("exec", name_of(clusters.pods()[0]), "--", "ls", "/data").split())


def memory(clusters: InstalledClusters) -> str:
    """Return the working sets of the containers of Tapestry, as the kubelet measures them."""
    page = clusters.virtual.kubectl("get", "--raw", "/api/v1/nodes/v1/proxy/metrics/resource")
    pattern = rf'container_memory_working_set_bytes{{container="(\w+)",namespace="{SYSTEM}",.*}} (\S+) '
    return ", ".join(f"{name} {float(size) / 1e6:.0f} MB" for name, size in re.findall(pattern, page))


def wait_for_rollout(clusters: InstalledClusters) -> None:
    clusters.virtual.kubectl("rollout", "status", "deployment/web", TIMEOUT)


def cluster_of(pod: Object) -> str:
    """Return the physical cluster of a pod, from the name of its virtual node."""
    _, cluster, _ = pod["spec"]["nodeName"].split("-")
    return cluster


def scrape(clusters: InstalledClusters) -> None:
    """Prometheus has no access to the metrics of the release until its account has the role for readers."""
    kubectl, account = clusters.virtual.kubectl, ("monitoring", "prometheus")
    kubectl("create", "namespace", account[0])
    kubectl("create", "serviceaccount", account[1], f"--namespace={account[0]}")
    kubectl("create", "role", "prometheus", IN_SYSTEM, "--verb=list,watch", "--resource=pods")
    subject = f"--serviceaccount={':'.join(account)}"
    kubectl("create", "rolebinding", "prometheus", IN_SYSTEM, "--role=prometheus", subject)
    token = clusters.folder / "prometheus.token"
    token.write_text(kubectl("create", "token", account[1], f"--namespace={account[0]}"))
    kubeconfig = kubeconfig_with(clusters.virtual.plane, token.read_text(), clusters.folder / "prometheus.kubeconfig")
    path = program(clusters.virtual.assets, "prometheus", "monitoring-assets")
    with running_prometheus(path, clusters.folder / "prometheus", kubeconfig, token) as server:
        server.wait_for('up{job="tapestry"} == 0')
        assert server.query("tapestry_build_info") == []
        reader = "--clusterrole=tapestry-metrics-reader"
        kubectl("create", "clusterrolebinding", "prometheus-tapestry", reader, subject)
        names = sorted(map(name_of, objects(clusters.virtual, "pods", IN_SYSTEM)))
        assert len(names) == 3 + 2 * len(NAMES)  # the default numbers of replicas
        server.wait_for(f'count(up{{job="tapestry"}} == 1) == {len(names)}')
        series = server.query('up{job="tapestry"}')
        assert sorted(each["metric"]["pod"] for each in series) == names
        assert sorted(each["metric"]["instance"] for each in series) == sorted(metrics_endpoints(clusters))
        elections = len(("manager", *NAMES))
        server.wait_for(f"count(sum by (election) (tapestry_is_leader) == 1) == {elections}")
        for name in NAMES:
            server.wait_for(f'tapestry_leased{{binding="{name}", resource="cpu"}} > 0')
            server.wait_for(f'tapestry_used{{binding="{name}", resource="cpu"}} > 0')
        assert len(server.evaluated_rules()) == len(monitoring.ALERTS)
        assert server.query('ALERTS{alertstate="firing"}') == []
        server.evaluate_dashboard()
    kubectl("delete", "clusterrolebinding/prometheus-tapestry")
    kubectl("delete", "role/prometheus", "rolebinding/prometheus", IN_SYSTEM)
    kubectl("delete", f"namespace/{account[0]}", TIMEOUT)


def metrics_endpoints(clusters: InstalledClusters) -> list[str]:
    """Return the addresses behind the Services that a ServiceMonitor of the chart selects."""
    selector = "--selector=app.kubernetes.io/part-of=tapestry,app.kubernetes.io/component=metrics"
    return [
        f"{address}:{port['port']}"
        for service in objects(clusters.virtual, "services", IN_SYSTEM, selector)
        for each in objects(
            clusters.virtual,
            "endpointslices",
            IN_SYSTEM,
            f"--selector=kubernetes.io/service-name={name_of(service)}",
        )
        for port in each["ports"]
        for endpoint in each["endpoints"]
        for address in endpoint["addresses"]
    ]


def drain_syncer(clusters: InstalledClusters) -> None:
    """A drain evicts the only replica of a syncer: its disruption budget allows that."""
    syncer, node = "tapestry-syncer-east", clusters.virtual.node.name
    clusters.virtual.kubectl("scale", f"deployment/{syncer}", "--replicas=1", IN_SYSTEM)
    budget = (f"poddisruptionbudget/{syncer}", IN_SYSTEM, TIMEOUT)
    clusters.virtual.kubectl("wait", *budget, "--for=jsonpath={.status.expectedPods}=1")
    pods = "app.kubernetes.io/name=tapestry-syncer,app.kubernetes.io/instance=east"
    [evicted] = [
        each for each in objects(clusters.virtual, "pods", IN_SYSTEM, f"--selector={pods}") if not is_deleting(each)
    ]
    clusters.virtual.kubectl("drain", node, f"--pod-selector={pods}", "--timeout=120s")
    clusters.virtual.kubectl("wait", f"pod/{name_of(evicted)}", IN_SYSTEM, "--for=delete", TIMEOUT)
    clusters.virtual.kubectl("uncordon", node)
    clusters.virtual.kubectl("rollout", "status", f"deployment/{syncer}", IN_SYSTEM, TIMEOUT)
    run_job(clusters, "after-drain", "east")


def upgrade_while_pods_run(clusters: InstalledClusters) -> None:
    """From the last released charts to those of the tree, back, and to them again: no pod changes.

    Each step replaces the manager and all syncers.
    """
    before = versions(clusters)
    chart = ("tapestry", str(ROOT / "charts/tapestry"), IN_SYSTEM)
    values = "--set=syncer.resources.requests.cpu=150m,manager.resources.requests.cpu=150m"
    upgrade = ("upgrade", *chart, REUSE, values)
    for command, cpu in ((upgrade, "150m"), (("rollback", "tapestry", "1", IN_SYSTEM), "100m"), (upgrade, "150m")):
        clusters.helm(clusters.virtual, *command, "--wait")
        wait_for_syncers(clusters, cpu)
        assert versions(clusters) == before
    for name in clusters.physical:
        set_values(clusters, name)
    assert versions(clusters) == before
    run_job(clusters, "after-upgrade", "west")


def versions(clusters: InstalledClusters) -> dict[str, str]:
    """Return the UIDs and versions of all pods of the Deployment and of their twins."""
    pods = [*clusters.pods(), *(twin for name in clusters.physical for twin in clusters.twins(name))]
    return {pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"] for pod in pods}


def wait_for_syncers(clusters: InstalledClusters, cpu: str) -> None:
    """Wait until the manager has changed all syncers and their new pods are ready."""
    for name in clusters.physical:
        deployment = (f"deployment/tapestry-syncer-{name}", IN_SYSTEM, TIMEOUT)
        request = "{.spec.template.spec.containers[0].resources.requests.cpu}"
        clusters.virtual.kubectl("wait", *deployment, f"--for=jsonpath={request}={cpu}")
        clusters.virtual.kubectl("rollout", "status", *deployment)


def rotate_credential(clusters: InstalledClusters) -> None:
    """A new account invalidates the old token. Joining again takes a token of the new one."""
    east = clusters.physical["east"]
    before = versions(clusters)
    account = east.kubectl(
        "get", "serviceaccounts", IN_MOUNT, "--selector=tapestry.io/cluster-binding=east", "-o", "name"
    )
    east.kubectl("delete", account.strip(), IN_MOUNT)
    set_values(clusters, "east")
    join(clusters, "east")
    clusters.virtual.kubectl("wait", "clusterbinding/east", "--for=condition=Ready", TIMEOUT)
    run_job(clusters, "after-rotation", "east")
    assert versions(clusters) == before


def close_window(clusters: InstalledClusters) -> None:
    """The owner sets a window that is open. Pods run until its end, and then in the other cluster."""
    before = versions(clusters)
    edge = (datetime.now(UTC) + timedelta(minutes=2)).replace(second=0, microsecond=0)
    window = {"start": f"{edge - timedelta(hours=1):%H:%M}", "end": f"{edge:%H:%M}"}
    set_values(clusters, "east", f"--set-json=lease.windows={json.dumps([window])}", "--set=lease.timeZone=UTC")
    clusters.virtual.kubectl("wait", "node/vnode-east-n1", f"--for=jsonpath={LEASE_ENDS}={timestamp(edge)}", TIMEOUT)
    assert versions(clusters) == before
    written = files_in_volume(clusters)
    wait_until_gone(clusters, "east")
    assert datetime.now(UTC) >= edge
    wait_for_rollout(clusters)
    assert list(map(cluster_of, clusters.pods())) == ["west", "west"]
    assert files_in_volume(clusters) > written  # also of the pod that ran in the other cluster


def set_values(clusters: InstalledClusters, name: str, *values: str) -> None:
    chart = ("worker", str(ROOT / "charts/tapestry-worker"))
    clusters.helm(clusters.physical[name], "upgrade", *chart, REUSE, *values)


def wait_until_gone(clusters: InstalledClusters, name: str) -> None:
    twins = [f"pod/{name_of(twin)}" for twin in clusters.twins(name)]
    if twins:
        clusters.physical[name].kubectl("wait", *twins, IN_MOUNT, "--for=delete", TIMEOUT)


def use_kill_switch(clusters: InstalledClusters) -> None:
    reclaimed = [f"pod/{name_of(pod)}" for pod in clusters.pods()]
    set_values(clusters, "west", "--set=reclaimNow=true")
    wait_until_gone(clusters, "west")
    clusters.virtual.kubectl("wait", *reclaimed, "--for=delete", TIMEOUT)
    assert clusters.twins("west") == []
    set_values(clusters, "west", "--set=reclaimNow=false")
    wait_for_rollout(clusters)


def unbind(clusters: InstalledClusters) -> None:
    for name in clusters.physical:
        if name == list(clusters.physical)[-1]:
            with pytest.raises(RuntimeError, match="tapestry-uninstall-check failed"):
                clusters.helm(clusters.virtual, "uninstall", "tapestry", IN_SYSTEM)
        clusters.tapestry("unjoin", name)
        assert objects(clusters.physical[name], SYNCED_KINDS, "--all-namespaces", OURS) == []
        assert objects(clusters.virtual, "nodes", f"--selector={keys.CLUSTER_BINDING}={name}") == []
        clusters.helm(clusters.physical[name], "uninstall", "worker", "--wait")
        clusters.physical[name].kubectl("wait", f"namespace/{MOUNT}", "--for=delete", TIMEOUT)


def uninstall(clusters: InstalledClusters) -> None:
    clusters.virtual.kubectl("delete", "deployment/web", "configmap/page", TIMEOUT)
    uninstall_chart(clusters)


def uninstall_chart(clusters: InstalledClusters) -> None:
    clusters.helm(clusters.virtual, "uninstall", "tapestry", IN_SYSTEM, "--wait")
    clusters.virtual.kubectl("wait", "pods", "--all", IN_SYSTEM, "--for=delete", TIMEOUT)
