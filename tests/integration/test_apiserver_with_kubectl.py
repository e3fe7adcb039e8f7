"""Common kubectl commands on our API server with data on disk."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

TAPESTRY = Path(sys.executable).with_name("tapestry")

Kubectl = Callable[..., str]

WIDGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget, shortNames: [wi]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns: [{name: Color, type: string, jsonPath: .spec.color}]
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {color: {type: string}}}}
"""
WIDGET = {
    "apiVersion": "example.com/v1",
    "kind": "Widget",
    "metadata": {"name": "w"},
    "spec": {"color": "red"},
}
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: nginx}]}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: c, image: nginx}]}
"""


@contextmanager
def served(folder: Path, *flags: str) -> Iterator[dict[str, Any]]:
    """Run a server.  Yield the log line with its addresses once it serves."""
    command = [TAPESTRY, "apiserver", "--file-rootpath", folder, "--bind-address", "127.0.0.1:0"]
    command += ["--authn-allow-localhost", "--local-address", "127.0.0.1:0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        yield next(line for line in map(json.loads, process.stderr) if line["message"] == "API server started")
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture
def kubectl(kube_assets: Path, tmp_path: Path) -> Iterator[Kubectl]:
    """kubectl connected to a new server on its plain HTTP port."""
    with served(tmp_path / "data") as addresses:
        yield at(kube_assets, tmp_path, f"http://{addresses['local']}")


def at(kube_assets: Path, folder: Path, server: str, *flags: str) -> Kubectl:
    def run(*arguments: str, input: str | None = None, fails: bool = False, shows: bool = False) -> str:
        """Return the output: stderr if the command `fails`, stdout if it also `shows` something."""
        command = [
            kube_assets / "kubectl",
            "--cache-dir",
            folder / "cache",
            "--kubeconfig",
            os.devnull,
            "-s",
            server,
            *flags,
        ]
        done = subprocess.run(
            [*command, *arguments], input=input, capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stderr if fails and not shows else done.stdout

    return run


def test_objects_are_applied_changed_printed_and_deleted(kubectl: Kubectl) -> None:
    assert kubectl("apply", "-f", "-", input=DEPLOYMENT) == "deployment.apps/web created\n"
    assert kubectl("apply", "-f", "-", input=DEPLOYMENT) == "deployment.apps/web unchanged\n"
    changed = DEPLOYMENT.replace("image: nginx", "image: nginx:2")
    assert kubectl("apply", "-f", "-", input=changed) == "deployment.apps/web configured\n"
    assert kubectl("scale", "deployment", "web", "--replicas=3") == "deployment.apps/web scaled\n"
    table = kubectl("get", "deployments", "-o", "wide")
    assert table.split("\n")[0].split()[:5] == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    assert "0/3" in table
    assert "nginx:2" in table
    assert kubectl("label", "deployment", "web", "tier=front") == "deployment.apps/web labeled\n"
    assert kubectl("get", "deployments", "-l", "tier=front", "-o", "name") == "deployment.apps/web\n"
    assert kubectl("delete", "deployment", "web").startswith('deployment.apps "web" deleted')
    assert kubectl("get", "deployments", "-o", "name") == ""


def test_custom_resources_are_served_once_defined(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=WIDGETS)
    kubectl("wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=30s")
    kubectl("apply", "-f", "-", input=yaml.safe_dump(WIDGET))
    assert kubectl("get", "wi").split("\n")[1].split()[:2] == ["w", "red"]
    unknown = {**WIDGET, "spec": {"colour": "red"}}
    assert 'unknown field "spec.colour"' in kubectl("apply", "-f", "-", input=yaml.safe_dump(unknown), fails=True)
    wrong = {**WIDGET, "spec": {"color": 1}}
    assert "spec.color" in kubectl("apply", "--validate=false", "-f", "-", input=yaml.safe_dump(wrong), fails=True)


def test_kubectl_explains_served_kinds(kubectl: Kubectl) -> None:
    assert "containerPort" in kubectl("explain", "pods.spec.containers.ports")
    assert "deployments" in kubectl("api-resources", "--api-group=apps")


def test_protobuf_requests_from_kubectl_are_accepted(kubectl: Kubectl) -> None:
    assert kubectl("create", "namespace", "x") == "namespace/x created\n"
    made = kubectl("create", "deployment", "web", "--image=nginx", "--replicas=2", "--port=80", "-n", "x")
    assert made == "deployment.apps/web created\n"
    assert "0/2" in kubectl("get", "deployment", "web", "-n", "x")
    kubectl("create", "secret", "generic", "s", "--from-literal=key=value", "-n", "x")
    assert kubectl("get", "secret", "s", "-n", "x", "-o", "jsonpath={.data.key}") == "dmFsdWU="
    kubectl("create", "service", "nodeport", "web", "--tcp=80:8080", "-n", "x")
    assert kubectl("get", "service", "web", "-n", "x", "-o", "jsonpath={.spec.ports[0].targetPort}") == "8080"
    kubectl("create", "serviceaccount", "robot", "-n", "x")
    assert kubectl("create", "token", "robot", "-n", "x", "--duration=1h").count(".") == 2
    assert kubectl("auth", "can-i", "create", "pods") == "yes\n"
    assert kubectl("delete", "deployment/web", "secret/s", "-n", "x").count(" deleted") == 2
    assert kubectl("get", "deployments,secrets", "-n", "x", "-o", "name") == ""


def test_deleting_a_namespace_deletes_its_contents(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=WIDGETS)
    kubectl("apply", "-f", "-", input="{apiVersion: v1, kind: Namespace, metadata: {name: x}}")
    kubectl("-n", "x", "apply", "-f", "-", input=POD)  # immediately: the service account may not exist yet
    kubectl("-n", "x", "apply", "-f", "-", input=yaml.safe_dump(WIDGET))
    kubectl("-n", "x", "apply", "-f", "-", input=DEPLOYMENT)
    pod = json.loads(kubectl("-n", "x", "get", "pod", "p", "-o", "json"))
    assert pod["spec"]["serviceAccountName"] == "default"
    assert "BEGIN CERTIFICATE" in kubectl("-n", "x", "get", "configmap", "kube-root-ca.crt", "-o", "yaml")
    kubectl("delete", "namespace", "x", "--timeout=30s")
    assert kubectl("get", "namespace", "x", "--ignore-not-found") == ""
    kubectl("delete", "crd", "widgets.example.com", "--timeout=30s")
    assert kubectl("get", "pods,deployments", "-A", "-o", "name") == ""


def test_objects_of_a_deleted_deployment_are_collected(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=DEPLOYMENT)
    owner = json.loads(kubectl("get", "deployment", "web", "-o", "json"))
    replica_set = yaml.safe_load(DEPLOYMENT.replace("kind: Deployment", "kind: ReplicaSet"))
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": owner["metadata"]["uid"]}
    replica_set["metadata"]["ownerReferences"] = [{**reference, "controller": True, "blockOwnerDeletion": True}]
    kubectl("apply", "-f", "-", input=yaml.safe_dump(replica_set))
    kubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=30s")
    assert kubectl("get", "replicasets", "-o", "name") == ""


def test_namespace_stays_terminating_without_controllers(kube_assets: Path, tmp_path: Path) -> None:
    with served(tmp_path / "data", "--controllers=none") as addresses:
        run = at(kube_assets, tmp_path, f"http://{addresses['local']}")
        run("apply", "-f", "-", input="{apiVersion: v1, kind: Namespace, metadata: {name: x}}")
        run("delete", "namespace", "x", "--wait=false")
        assert run("get", "namespace", "x", "-o", "jsonpath={.status.phase}") == "Terminating"


def test_objects_survive_a_restart_of_the_server(kube_assets: Path, tmp_path: Path) -> None:
    with served(tmp_path / "data") as addresses:
        run = at(kube_assets, tmp_path, f"http://{addresses['local']}")
        run("apply", "-f", "-", input=WIDGETS)
        run("create", "--validate=false", "-f", "-", input=yaml.safe_dump(WIDGET))
        version = run("get", "wi", "w", "-o", "jsonpath={.metadata.resourceVersion}")
    with served(tmp_path / "data") as addresses:
        run = at(kube_assets, tmp_path, f"http://{addresses['local']}")
        assert run("get", "wi", "w", "-o", "jsonpath={.metadata.resourceVersion}") == version


def test_tokens_authenticate_and_roles_authorize_over_tls(kube_assets: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.csv"
    tokens.touch(0o600)
    tokens.write_text('secret-of-ann,ann,1,"system:masters"\nsecret-of-bob,bob,2\n')
    with served(tmp_path / "data", "--token-auth-file", str(tokens)) as addresses:
        authority = str(tmp_path / "data" / "pki" / "ca.crt")
        server = f"https://{addresses['secure']}"
        ann = at(kube_assets, tmp_path, server, "--certificate-authority", authority, "--token", "secret-of-ann")
        bob = at(kube_assets, tmp_path, server, "--certificate-authority", authority, "--token", "secret-of-bob")
        eve = at(kube_assets, tmp_path, server, "--certificate-authority", authority, "--token", "guess")
        assert "default" in ann("get", "namespaces")
        assert 'User "bob" cannot list resource "namespaces"' in bob("get", "namespaces", fails=True)
        assert "Unauthorized" in eve("get", "--raw", "/api/v1/namespaces", fails=True)


def test_token_file_readable_by_others_is_refused(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.csv"
    tokens.write_text("a,b,c\n")
    tokens.chmod(0o644)
    command = [TAPESTRY, "apiserver", "--file-rootpath", tmp_path / "data", "--token-auth-file", tokens]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1
    assert "others may read it; `chmod 600" in done.stderr


def test_server_side_apply_shares_fields_between_managers(kubectl: Kubectl) -> None:
    def apply(manager: str, text: str, *flags: str, fails: bool = False) -> str:
        return kubectl(
            "apply", "--server-side", f"--field-manager={manager}", *flags, "-f", "-", input=text, fails=fails
        )

    scaled = DEPLOYMENT.replace("spec:\n  selector", "spec:\n  replicas: 2\n  selector")
    changed = scaled.replace("replicas: 2", "replicas: 3").replace("image: nginx", "image: nginx:2")
    assert apply("one", scaled) == "deployment.apps/web serverside-applied\n"
    assert apply("one", changed) == "deployment.apps/web serverside-applied\n"
    refused = apply("two", scaled, fails=True)
    assert 'conflicts with "one"' in refused
    assert "- .spec.replicas" in refused
    assert '- .spec.template.spec.containers[name="c"].image' in refused
    apply("two", scaled, "--force-conflicts")
    assert kubectl("get", "deployment", "web", "-o", "jsonpath={.spec.replicas}") == "2"
    labelled = DEPLOYMENT.replace("{name: web}", "{name: web, labels: {tier: front}}")
    apply("three", labelled)
    assert kubectl("get", "deployment", "web", "-o", "jsonpath={.metadata.labels.tier}") == "front"
    apply("three", DEPLOYMENT)
    assert kubectl("get", "deployment", "web", "-o", "jsonpath={.metadata.labels}") == ""
    deployment = json.loads(kubectl("get", "deployment", "web", "-o", "json", "--show-managed-fields"))
    assert {each["manager"] for each in deployment["metadata"]["managedFields"]} == {"one", "two", "three"}


NODE = """
apiVersion: v1
kind: Node
metadata: {name: n1}
status:
  conditions: [{type: Ready, status: "True"}]
  addresses: [{type: InternalIP, address: 10.0.0.1}]
"""
BUDGET = """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
"""
ON_A_NODE = POD.replace("{name: p}", "{name: p, labels: {app: web}}").replace("spec: {", "spec: {nodeName: n1, ")
RUNS = '{"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}'


def test_kubectl_watch_prints_changes_immediately(kube_assets: Path, tmp_path: Path) -> None:
    with served(tmp_path / "data") as addresses:
        server = f"http://{addresses['local']}"
        run = at(kube_assets, tmp_path, server)
        run("apply", "-f", "-", input=WIDGETS)
        run("create", "--validate=false", "-f", "-", input=yaml.safe_dump(WIDGET))
        command = [kube_assets / "kubectl", "--kubeconfig", os.devnull, "-s", server, "get", "widgets", "-w"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
            assert watching.stdout is not None
            assert watching.stdout.readline().split() == ["NAME", "COLOR"]
            assert watching.stdout.readline().split() == ["w", "red"]
            run("patch", "widget", "w", "--type=merge", "-p", '{"spec": {"color": "blue"}}')
            assert watching.stdout.readline().split() == ["w", "blue"]
            watching.terminate()


def test_kubectl_diff_prints_changes_before_they_are_applied(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl("apply", "-f", "-", input=DEPLOYMENT)
    assert kubectl("diff", "-f", "-", input=DEPLOYMENT) == ""
    changed = DEPLOYMENT.replace("image: nginx", "image: nginx:2")
    printed = kubectl("diff", "-f", "-", input=changed, fails=True, shows=True)
    assert "-      - image: nginx\n" in printed
    assert "+      - image: nginx:2\n" in printed
    assert kubectl("get", "deployment", "web", "-o", "jsonpath={..image}") == "nginx"


def test_list_is_validated_and_applied_item_by_item(kubectl: Kubectl) -> None:
    objects = [yaml.safe_load(DEPLOYMENT), yaml.safe_load(POD)]
    listed = {"apiVersion": "v1", "kind": "List", "items": objects}
    assert kubectl("apply", "-f", "-", input=json.dumps(listed)) == "deployment.apps/web created\npod/p created\n"
    output = kubectl("get", "deployments,pods", "-o", "yaml")
    assert kubectl("apply", "-f", "-", input=output).count(" ") == 2
    objects[1]["spec"]["mystery"] = 1
    refused = kubectl("apply", "-f", "-", input=json.dumps(listed), fails=True)
    assert 'unknown field "mystery" in io.k8s.api.core.v1.PodSpec' in refused


def test_kubectl_edit_changes_an_object(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl("apply", "-f", "-", input=DEPLOYMENT)
    monkeypatch.setenv("KUBE_EDITOR", "sed -i 's/image: nginx/image: nginx:3/'")
    assert kubectl("edit", "deployment", "web") == "deployment.apps/web edited\n"
    assert kubectl("get", "deployment", "web", "-o", "jsonpath={..image}") == "nginx:3"


def test_every_kind_of_patch_is_applied(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=DEPLOYMENT)
    patches = {
        "json": '[{"op": "replace", "path": "/spec/replicas", "value": 2}]',
        "merge": '{"spec": {"template": {"metadata": {"labels": {"tier": "front"}}}}}',
        "strategic": '{"spec": {"template": {"spec": {"containers": [{"name": "d", "image": "busybox"}]}}}}',
    }
    for kind, patch in patches.items():
        assert kubectl("patch", "deployment", "web", f"--type={kind}", "-p", patch) == "deployment.apps/web patched\n"
    found = json.loads(kubectl("get", "deployment", "web", "-o", "json"))["spec"]
    assert found["replicas"] == 2
    assert found["template"]["metadata"]["labels"] == {"app": "web", "tier": "front"}
    assert {each["name"] for each in found["template"]["spec"]["containers"]} == {"c", "d"}


def test_rollout_ends_when_the_status_is_complete(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=DEPLOYMENT)
    assert "Waiting for deployment spec update" in kubectl(
        "rollout", "status", "deployment/web", "--timeout=3s", fails=True, shows=True
    )
    assert kubectl("rollout", "restart", "deployment/web") == "deployment.apps/web restarted\n"
    counts = '"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1'
    done = f'{{"status": {{"observedGeneration": 2, {counts}}}}}'
    kubectl("patch", "deployment", "web", "--subresource=status", "--type=merge", "-p", done)
    output = kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    assert output == 'deployment "web" successfully rolled out\n'


def test_kubectl_wait_returns_when_the_condition_holds(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=NODE)
    kubectl("apply", "-f", "-", input=ON_A_NODE)
    assert "timed out" in kubectl("wait", "pod/p", "--for=condition=Ready", "--timeout=1s", fails=True)
    kubectl("patch", "pod", "p", "--subresource=status", "-p", RUNS)
    assert kubectl("wait", "pod/p", "--for=condition=Ready", "--timeout=30s") == "pod/p condition met\n"
    assert kubectl("wait", "pod/p", "--for=jsonpath={.status.phase}=Running").endswith("condition met\n")
    wide = kubectl("get", "pods,nodes", "-o", "wide")
    assert re.search(r"pod/p +0/1 +Running +0 +\S+ +<none> +n1 ", wide)
    assert re.search(r"node/n1 +Ready +<none> +\S+ +10\.0\.0\.1 ", wide)
    kubectl("delete", "pod", "p", "--force", "--grace-period=0", "--wait=false")
    kubectl("wait", "pod/p", "--for=delete", "--timeout=30s")


def test_drain_respects_disruption_budgets(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=NODE)
    kubectl("apply", "-f", "-", input=BUDGET)
    for name in ("p", "q"):
        kubectl("apply", "-f", "-", input=ON_A_NODE.replace("name: p,", f"name: {name},"))
        kubectl("patch", "pod", name, "--subresource=status", "-p", RUNS)
    kubectl("wait", "pdb/web", "--for=jsonpath={.status.disruptionsAllowed}=1", "--timeout=30s")
    refused = kubectl("drain", "n1", "--force", "--timeout=5s", fails=True)
    assert "Cannot evict pod as it would violate the pod's disruption budget." in refused
    deleting = kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.deletionTimestamp}").split()
    assert len(deleting) == 1
    assert "SchedulingDisabled" in kubectl("get", "nodes")


def test_quota_and_limit_range_are_described_and_enforced(kubectl: Kubectl) -> None:
    kubectl("create", "quota", "q", "--hard=pods=1,requests.cpu=1")
    kubectl("wait", "resourcequota/q", "--for=jsonpath={.status.used.pods}=0", "--timeout=30s")
    default = "{type: Container, defaultRequest: {cpu: 200m}}"
    limits = f"{{apiVersion: v1, kind: LimitRange, metadata: {{name: l}}, spec: {{limits: [{default}]}}}}"
    kubectl("apply", "-f", "-", input=limits)
    kubectl("apply", "-f", "-", input=POD)
    assert re.search(r"requests.cpu +200m +1\n", kubectl("describe", "quota", "q"))
    refused = kubectl("apply", "-f", "-", input=POD.replace("{name: p}", "{name: q}"), fails=True)
    assert 'pods "q" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1' in refused
