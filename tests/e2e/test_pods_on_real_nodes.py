"""Lifecycle of a Deployment that runs in containers of two physical clusters.

The virtual cluster has its own controllers and scheduler. Each physical cluster has a real kubelet, containers and
kube-proxy. Tapestry is installed from its manifests, with the permissions of `tapestry join`. The test uses only
kubectl, also for exec.
"""

import asyncio
import json
import ssl
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from tapestry.apis import keys
from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.kube.objects import Object, annotations_of, name_of
from tapestry.local.control_planes import KUBELET_CLIENT

from .clusters import Cluster, PhysicalCluster
from .images import IMAGE
from .installation import Installation, running_installation, tapestry
from .streams import Streams

MOUNT = "tapestry-leased"
SHOP = "shop"
OURS = f"--selector={keys.CLUSTER_BINDING_UID}"
"""Selector of all synced objects in physical clusters."""
SYNCED_KINDS = "pods,configmaps,secrets,services,endpointslices.discovery.k8s.io,persistentvolumeclaims"

WORKLOAD = f"""
apiVersion: v1
kind: Namespace
metadata: {{name: {SHOP}}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: clerk, namespace: {SHOP}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: clerk, namespace: {SHOP}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}}
subjects: [{{kind: ServiceAccount, name: clerk, namespace: {SHOP}}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: sign, namespace: {SHOP}}}
data: {{text: open}}
---
apiVersion: v1
kind: Secret
metadata: {{name: till, namespace: {SHOP}}}
stringData: {{code: "1234"}}
---
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: {SHOP}}}
spec:
  selector: {{app: web}}
  ports: [{{port: 80, targetPort: 8080}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: {SHOP}}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      serviceAccountName: clerk
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - topologyKey: kubernetes.io/hostname
        maxSkew: 1
        whenUnsatisfiable: DoNotSchedule
        nodeTaintsPolicy: Honor
        labelSelector: {{matchLabels: {{app: web}}}}
        matchLabelKeys: [pod-template-hash]
      volumes:
      - {{name: sign, configMap: {{name: sign}}}}
      - {{name: till, secret: {{secretName: till}}}}
      containers:
      - name: web
        image: {IMAGE}
        command: [sh, -c, "mkdir /page; echo $POD > /page/index.html; exec httpd -f -p 8080 -h /page"]
        env:
        - {{name: POD, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}
        - {{name: NODE, valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}}}
        - {{name: EDITION, value: first}}
        resources: {{requests: {{cpu: 10m, memory: 16Mi}}}}
        readinessProbe: {{httpGet: {{port: 8080}}, periodSeconds: 1}}
        volumeMounts:
        - {{name: sign, mountPath: /sign}}
        - {{name: till, mountPath: /till}}
"""


@dataclass(frozen=True)
class World:
    """A virtual cluster and its physical clusters."""

    virtual: Cluster
    physical: dict[str, PhysicalCluster]

    def pods(self) -> list[Object]:
        """Return the pods of the Deployment that are not being deleted."""
        found = json.loads(self.virtual.kubectl("get", "pods", f"--namespace={SHOP}", "-o", "json"))["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def pods_per_cluster(self) -> dict[str, int]:
        """Return the number of pods in each physical cluster."""
        return Counter(map(cluster_of, self.pods()))

    def exec_in(self, pod: Object, *command: str) -> str:
        """Return the output of a command in the container of a pod."""
        return self.virtual.kubectl("exec", f"--namespace={SHOP}", name_of(pod), "--", *command)

    def diagnostics(self) -> str:
        """Return pods and events of all clusters, to explain failures."""
        clusters = {"virtual": self.virtual, **self.physical}
        return "\n".join(f"{name}:\n{cluster.diagnostics()}" for name, cluster in clusters.items())

    def wait_for_rollout(self) -> None:
        self.virtual.kubectl("rollout", "status", "deployment/web", f"--namespace={SHOP}", "--timeout=90s")

    def join(self, name: str, *options: str) -> None:
        above, below = self.virtual.plane.kubeconfig, self.physical[name].plane.kubeconfig
        tapestry("join", name, "--kubeconfig", above, "--cluster-kubeconfig", below, *options)

    def unjoin(self, name: str) -> None:
        above, below = self.virtual.plane.kubeconfig, self.physical[name].plane.kubeconfig
        tapestry("unjoin", name, "--kubeconfig", above, "--cluster-kubeconfig", below)


def cluster_of(pod: Object) -> str:
    """Return the physical cluster of a pod, from the name of its virtual node."""
    _, cluster, _ = pod["spec"]["nodeName"].split("-")
    return cluster


def twin_of(pod: Object) -> str:
    return annotations_of(pod)[keys.PHYSICAL_POD_NAME]


@pytest.fixture(scope="module")
def world(virtual_cluster: Cluster, physical_clusters: dict[str, PhysicalCluster]) -> World:
    return World(virtual_cluster, physical_clusters)


@pytest.mark.timeout(450)
async def test_deployment_runs_in_two_clusters_and_is_cleaned_up(world: World, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    settings = {"audit": str(audit)}
    async with running_installation(world.virtual.plane, world.virtual.assets, tmp_path, syncer=settings) as installed:
        try:
            await asyncio.to_thread(run_deployment_lifecycle, world, installed, tmp_path)
            check_session_records(audit)
        except Exception as error:
            error.add_note(await asyncio.to_thread(world.diagnostics))
            raise
    assert world.virtual.kubectl("get", "nodes", "-o", "name") == ""


def run_deployment_lifecycle(world: World, installed: Installation, folder: Path) -> None:
    for name in world.physical:
        join_cluster(world, name)
    apply(world, WORKLOAD, folder)
    world.wait_for_rollout()
    assert world.pods_per_cluster() == {"east": 1, "west": 1}
    for pod in world.pods():
        check_volumes_and_environment(world, pod)
        check_api_access(world, pod)
        check_service(world, pod)
    check_streams(world, folder)
    check_isolation_of_bindings(world)
    check_owner_control(world)
    scale(world)
    update(world)
    close_window(world)
    delete_namespace(world)
    assert installed.denials() == []  # before unjoining: a terminating syncer loses its permissions
    for name in world.physical:
        world.unjoin(name)
        assert synced_objects(world.physical[name]) == []


def apply(world: World, manifest: str, folder: Path) -> None:
    (folder / "manifest.yaml").write_text(manifest)
    world.virtual.kubectl("apply", "-f", folder / "manifest.yaml")


def join_cluster(world: World, name: str) -> None:
    """Join a cluster, and set the API endpoint and the Service namespaces of its pods."""
    world.join(name, "--lease=50%", "--force-reclaim")
    reach = {
        "virtualEndpoints": {"api": world.virtual.plane.url.removeprefix("https://")},
        "serviceNamespaces": [SHOP],
    }
    binding = f"clusterbinding/{name}"
    world.virtual.kubectl("patch", binding, "--type=merge", "--patch", json.dumps({"spec": reach}))
    for state in ("create", "condition=Ready"):
        world.virtual.kubectl("wait", f"node/vnode-{name}-n1", f"--for={state}", "--timeout=60s")


def check_volumes_and_environment(world: World, pod: Object) -> None:
    assert world.exec_in(pod, "cat", "/sign/text") == "open"
    assert world.exec_in(pod, "cat", "/till/code") == "1234"
    assert world.exec_in(pod, "sh", "-c", "echo $POD $NODE").split() == [name_of(pod), pod["spec"]["nodeName"]]


def check_api_access(world: World, pod: Object) -> None:
    """Check that in-cluster configuration works for kubectl in the container."""
    fields = "{.status.userInfo.username} {.status.userInfo.extra.authentication\\.kubernetes\\.io/pod-name[0]}"
    username = world.exec_in(pod, "kubectl", "auth", "whoami", "-o", f"jsonpath={fields}")
    assert username == f"system:serviceaccount:{SHOP}:clerk {name_of(pod)}"
    assert world.exec_in(pod, "kubectl", "get", "configmap", "sign", "-o", "jsonpath={.data.text}") == "open"


def check_service(world: World, pod: Object) -> None:
    """Check that the Service answers to all its names with the pods of both clusters."""
    pod_names = {name_of(each) for each in world.pods()}
    for name in ("web", f"web.{SHOP}", f"web.{SHOP}.svc.cluster.local"):
        command = f'until [ "$(sort -u /tmp/{name} | wc -l)" = 2 ]; do wget -qO- http://{name} >> /tmp/{name}; done'
        world.exec_in(pod, "timeout", "30", "sh", "-c", f"touch /tmp/{name}; {command}")
        assert set(world.exec_in(pod, "cat", f"/tmp/{name}").split()) == pod_names


def check_streams(world: World, folder: Path) -> None:
    """Check every verb that needs a stream, each with one of the protocols of kubectl."""
    streams = Streams(world.virtual.plane.kubeconfig, world.virtual.assets, SHOP)
    first, second = map(name_of, world.pods())
    streams.check_exec(first)
    streams.with_spdy().check_exec(second)
    streams.check_terminal(second)
    streams.with_spdy().check_copy(first, folder)
    streams.check_port_forward(second, 8080)
    streams.with_spdy().check_port_forward(first, 8080)
    streams.check_attach("parrot")
    streams.with_spdy().check_debug(second)
    streams.check_logs("talk")
    streams.check_websocket_client(world.virtual.plane, first)


def check_isolation_of_bindings(world: World) -> None:
    """Check that the syncer of a binding serves no pods of another, and nobody without a certificate."""
    (other,) = [pod for pod in world.pods() if cluster_of(pod) == "east"]
    status = json.loads(world.virtual.kubectl("get", "node", "vnode-west-n1", "-o", "json"))["status"]
    address, port = status["addresses"][0]["address"], status["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    authority = CertificateAuthority(world.virtual.plane.folder / "pki")
    path = f"/exec/{SHOP}/{name_of(other)}/web?command=id&output=1"
    headers = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}
    for certificate, code in ((authority.client_certificate(KUBELET_CLIENT, ["system:masters"]), 404), (None, 401)):
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        if certificate is not None:
            tls.load_cert_chain(*certificate)
        connection = HTTPSConnection(address, port, context=tls, timeout=30)
        connection.request("POST", path, headers=headers)
        assert connection.getresponse().status == code
        connection.close()


def check_owner_control(world: World) -> None:
    """Check that an owner can decline exec, that users see why it fails, and that the binding stays ready."""
    (pod,) = [pod for pod in world.pods() if cluster_of(pod) == "west"]
    streams = Streams(world.virtual.plane.kubeconfig, world.virtual.assets, SHOP)
    world.join("west", "--no-exec")
    reason = "the owner of the physical cluster of node vnode-west-n1 does not allow it"
    streams.wait_for_exec(name_of(pod), lambda done: reason.encode() in done.stderr)
    ready = world.virtual.kubectl("get", "clusterbinding/west", "-o", "jsonpath={.status.conditions}")
    assert {each["type"]: each["status"] for each in json.loads(ready)}["Ready"] == "True"
    world.join("west", "--exec")
    streams.wait_for_exec(name_of(pod), lambda done: done.returncode == 0)


def check_session_records(audit: Path) -> None:
    """Check the audit records of the sessions: kube-apiserver translates WebSockets of kubectl to SPDY."""
    records = [each for each in map(json.loads, audit.read_text().splitlines()) if each["verb"] == "connect"]
    protocols = Counter((each["subresource"], each["protocol"]) for each in records)
    assert protocols["exec", "websocket v4.channel.k8s.io"] == 1
    assert protocols["exec", "SPDY/3.1 v4.channel.k8s.io"] > 10
    assert protocols["attach", "SPDY/3.1 v4.channel.k8s.io"] == 2
    assert protocols["portforward", "SPDY/3.1 portforward.k8s.io"] == 2
    (by_hand,) = [each for each in records if each["protocol"].startswith("websocket")]
    assert (by_hand["user"], by_hand["command"], by_hand["container"]) == (KUBELET_CLIENT, ["hostname"], "web")
    assert by_hand["sent"] > 0


def scale(world: World) -> None:
    world.virtual.kubectl("scale", "deployment/web", f"--namespace={SHOP}", "--replicas=4")
    world.wait_for_rollout()
    assert world.pods_per_cluster() == {"east": 2, "west": 2}


def update(world: World) -> None:
    """Change the ConfigMap and roll out new pods, which see it. The old twins are deleted."""
    before = world.pods()
    sign = {"data": {"text": "sale"}}
    world.virtual.kubectl("patch", "configmap/sign", f"--namespace={SHOP}", "--patch", json.dumps(sign))
    for cluster in world.physical.values():
        [copy] = [name for name in synced_objects(cluster) if name.startswith("configmap/sign-")]
        follows = ("--for=jsonpath={.data.text}=sale", "--timeout=30s")
        cluster.kubectl("wait", copy, f"--namespace={MOUNT}", *follows)
    world.virtual.kubectl("set", "env", "deployment/web", f"--namespace={SHOP}", "EDITION=second")
    world.wait_for_rollout()
    assert world.pods_per_cluster() == {"east": 2, "west": 2}
    for pod in world.pods():
        assert world.exec_in(pod, "sh", "-c", "echo $EDITION; cat /sign/text").split() == ["second", "sale"]
    for pod in before:
        wait_until_gone(world.physical[cluster_of(pod)], MOUNT, [twin_of(pod)])


def close_window(world: World) -> None:
    reclaimed = [pod for pod in world.pods() if cluster_of(pod) == "east"]
    opening = datetime.now(UTC) + timedelta(hours=12)
    window = f"{opening:%H:00}-{opening:%H:59}"
    world.join("east", f"--window={window}", "--time-zone=UTC", "--force-reclaim", "--grace=2")
    wait_until_gone(world.virtual, SHOP, [name_of(pod) for pod in reclaimed])
    world.wait_for_rollout()
    assert world.pods_per_cluster() == {"west": 4}
    wait_until_gone(world.physical["east"], MOUNT, [twin_of(pod) for pod in reclaimed])
    reasons = world.virtual.kubectl("get", "events", f"--namespace={SHOP}", "-o", "jsonpath={.items[*].reason}")
    assert "Reclaimed" in reasons.split()


def delete_namespace(world: World) -> None:
    world.virtual.kubectl("delete", "namespace", SHOP, "--timeout=60s")
    for cluster in world.physical.values():
        wait_until_gone(cluster, MOUNT, synced_objects(cluster))
        assert cluster.node.containers() == []


def synced_objects(cluster: Cluster) -> list[str]:
    return cluster.kubectl("get", SYNCED_KINDS, "--all-namespaces", OURS, "-o", "name").split()


def wait_until_gone(cluster: Cluster, namespace: str, names: list[str]) -> None:
    """Wait for deletion. A name without a kind, as in `configmap/a`, is a pod."""
    wanted = [name if "/" in name else f"pod/{name}" for name in names]
    if wanted:
        cluster.kubectl("wait", *wanted, f"--namespace={namespace}", "--for=delete", "--timeout=60s")
