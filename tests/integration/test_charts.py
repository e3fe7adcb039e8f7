"""The Helm charts: rendered objects equal those of `tapestry manifests` and `tapestry join`; life of both releases."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.mount_labels import safeguards_of
from tapestry.kube.objects import Object, name_of, namespace_of
from tapestry.kube.resources import NAMESPACES, SECRETS, SERVICE_ACCOUNTS
from tapestry.local.isolation import isolation_failure, machine_isolation
from tapestry.manager.installation import installation_objects

from ..conftest import Kubectl, kubectl_of
from .bound_clusters import client_of
from .forked import completed
from .planes import Plane, Start

ROOT = Path(__file__).parents[2]
TAPESTRY = Path(sys.executable).with_name("tapestry")
HASH = "0123456789abcdef0123456789abcdef"
IMAGE = "--set=image.repository=registry.example/tapestry,image.tag=v1"


@pytest.fixture(scope="session")
def helm(kube_assets: Path) -> Path:
    program = kube_assets / "helm"
    if not program.exists():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
            "helm is not there: make client-assets builds it"
        )
    return program


def run(helm: Path, *arguments: str, kubeconfig: Path | None = None, check: bool = True) -> str:
    environ = {**os.environ, **({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {})}
    done = subprocess.run([helm, *arguments], capture_output=True, text=True, env=environ, cwd=ROOT, check=False)
    assert (done.returncode == 0) == check, done.stderr
    return done.stdout if check else done.stderr


def rendered(helm: Path, chart: str, *options: str) -> dict[tuple[str, str, str], Object]:
    """Return the objects of a release by kind, namespace and name."""
    text = run(
        helm,
        "template",
        "t",
        f"charts/{chart}",
        "--kube-version=1.34",
        "--namespace=tapestry-system",
        "--api-versions=admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy",
        *options,
    )
    return by_key(each for each in yaml.safe_load_all(text) if each)


def by_key(objects: Any) -> dict[tuple[str, str, str], Object]:
    return {(each["kind"], namespace_of(each) or "", name_of(each)): each for each in objects}


@pytest.mark.parametrize(
    ("chart", "values"), [("tapestry", IMAGE), ("tapestry-worker", f"--set=virtualCluster={HASH},binding=east")]
)
def test_chart_passes_lint(helm: Path, chart: str, values: str) -> None:
    assert "0 chart(s) failed" in run(helm, "lint", "--strict", f"charts/{chart}", values)


def test_chart_installs_what_manifests_prints(helm: Path) -> None:
    found = rendered(helm, "tapestry", IMAGE, "--set=kubeconfigNamespaces={tenant}")
    expected = by_key(
        installation_objects(image="registry.example/tapestry:v1", kubeconfig_namespaces=["tenant"], replicas=3)
    )
    del expected["Namespace", "", keys.SYSTEM_NAMESPACE]  # helm creates it
    for key, wanted in expected.items():
        if key[0] in ("Deployment", "CustomResourceDefinition"):
            found[key]["metadata"].pop("annotations", None)  # helm's
        if key[0] != "Deployment":
            assert found[key] == wanted, key
    manager, wanted = (each["Deployment", keys.SYSTEM_NAMESPACE, "tapestry-manager"] for each in (found, expected))
    container, plain = (each["spec"]["template"]["spec"]["containers"][0] for each in (manager, wanted))
    assert {**container, "args": None, "env": None, "volumeMounts": None} == {
        **plain,
        "args": None,
        "env": None,
        "volumeMounts": None,
    }
    assert container["args"][: len(plain["args"])] == plain["args"]
    assert [each for each in container["env"] if each in plain["env"]] == plain["env"]


@pytest.mark.parametrize(
    ("option", "kinds"),
    [
        ("metrics.serviceMonitor.enabled=true", {"ServiceMonitor"}),
        ("verticalPodAutoscaler.enabled=true", {"VerticalPodAutoscaler"}),
    ],
)
def test_optional_objects_are_off_by_default(helm: Path, option: str, kinds: set[str]) -> None:
    default = {kind for kind, _, _ in rendered(helm, "tapestry", IMAGE)}
    assert {kind for kind, _, _ in rendered(helm, "tapestry", IMAGE, f"--set={option}")} - default == kinds


@pytest.mark.parametrize(
    ("chart", "options", "message"),
    [
        ("tapestry", [], "image.repository is required"),
        ("tapestry", [IMAGE, "--set=profile=huge"], "profile"),
        ("tapestry", [IMAGE, "--set=manager.replicas=0"], "replicas"),
        ("tapestry", [IMAGE, "--set=managers.replicas=1"], "managers"),
        ("tapestry-worker", [], "virtualCluster"),
        ("tapestry-worker", [f"--set=virtualCluster={HASH},binding=East"], "binding"),
        ("tapestry-worker", [f"--set=virtualCluster={HASH},binding=e,lease.percent=101"], "percent"),
        ("tapestry-worker", [f"--set=virtualCluster={HASH},binding=e,allowedVolumes.drivers={{a'b}}"], "drivers"),
    ],
)
def test_invalid_values_are_rejected_by_name(helm: Path, chart: str, options: list[str], message: str) -> None:
    assert message in run(helm, "template", "t", f"charts/{chart}", "--kube-version=1.34", *options, check=False)


def test_volume_policies_contain_drivers_and_handles(helm: Path) -> None:
    volumes = "allowedVolumes.drivers={disk.example},allowedVolumes.volumeHandles={shared/*}"
    found = rendered(helm, "tapestry-worker", f"--set=virtualCluster={HASH},binding=east,{volumes}")
    text = json.dumps([each for (kind, _, _), each in found.items() if kind == "ValidatingAdmissionPolicy"])
    assert r"driver in [\"disk.example\"]" in text
    assert r"matches(\"(?s)^shared/.*$\")" in text


@pytest.mark.parametrize("allowed", [True, False])
def test_owner_decides_about_exec(helm: Path, allowed: bool) -> None:
    values = f"--set=virtualCluster={HASH},binding=east,exec={str(allowed).lower()}"
    found = rendered(helm, "tapestry-worker", values)
    rules = [rule for (kind, _, _), each in found.items() if kind == "Role" for rule in each["rules"]]
    assert ("pods/exec" in {name for rule in rules for name in rule["resources"]}) == allowed
    (namespace,) = [each for (kind, _, _), each in found.items() if kind == "Namespace"]
    assert ("no-exec" in safeguards_of(namespace)) != allowed


# -- releases on real servers


@pytest.fixture
def worker(start: Start, helm: Path, virtual_plane: Plane, tmp_path: Path) -> Iterator[Plane]:
    """A physical cluster in which its owner has installed the worker chart."""
    values = tmp_path / "values.yaml"
    with start("worker") as plane:
        values.write_text(tapestry(virtual_plane, "join", "charted", "--print-worker-values"))
        install = "install", "worker", "charts/tapestry-worker", "-f", str(values), "--set=quota.pods=5"
        run(helm, *install, kubeconfig=plane.kubeconfig)
        yield plane


def tapestry(plane: Plane, *arguments: object, check: bool = True) -> str:
    done = completed(arguments, {**os.environ, "KUBECONFIG": str(plane.kubeconfig)})
    assert (done.returncode == 0) == check, done.stderr
    return done.stdout if check else done.stderr


def test_prepared_cluster_joins_without_writes_below(virtual_plane: Plane, worker: Plane, helm: Path) -> None:
    before = asyncio.run(versions(worker))
    output = tapestry(virtual_plane, "join", "charted", "--cluster-kubeconfig", worker.kubeconfig, "--prepared")
    assert "permissions, checked as the syncer" in output
    assert asyncio.run(versions(worker)) == before
    assert asyncio.run(joined_cluster(virtual_plane)) == "tapestry-leased"
    again = tapestry(virtual_plane, "join", "charted", "--cluster-kubeconfig", worker.kubeconfig, "--prepared")
    assert "created" not in again
    run(
        helm,
        "upgrade",
        "worker",
        "charts/tapestry-worker",
        "--reuse-values",
        "--set=reclaimNow=true",
        kubeconfig=worker.kubeconfig,
    )
    assert asyncio.run(reclaim_mark(worker)) == "now"
    assert "charted" in tapestry(virtual_plane, "uninstall-check", check=False)
    tapestry(virtual_plane, "unjoin", "charted", "--force")


async def versions(plane: Plane) -> dict[str, str]:
    async with client_of(plane) as client:
        return {
            f"{kind.kind} {name_of(each)}": each["metadata"]["resourceVersion"]
            for kind in (NAMESPACES, SERVICE_ACCOUNTS, SECRETS)
            for each in await client.list(kind)
        }


async def joined_cluster(plane: Plane) -> str:
    async with client_of(plane) as client:
        binding = await client.get(CLUSTER_BINDINGS, "charted")
        assert await client.get(SECRETS, "charted", keys.SYSTEM_NAMESPACE)
        mount: str = binding["spec"]["mountNamespace"]
        return mount


async def reclaim_mark(plane: Plane) -> str | None:
    async with client_of(plane) as client:
        namespace = await client.get(NAMESPACES, "tapestry-leased")
        mark: str | None = namespace["metadata"]["annotations"].get(keys.RECLAIM)
        return mark


def test_unprepared_cluster_is_named(virtual_plane: Plane, start: Start) -> None:
    with start("unprepared") as plane:
        message = tapestry(
            virtual_plane, "join", "other", "--cluster-kubeconfig", plane.kubeconfig, "--prepared", check=False
        )
    assert "is not prepared for this binding" in message
    assert "--print-worker-values" in message


# -- the release in a virtual cluster whose node runs containers as processes

RELEASE = "tapestry", "charts/tapestry", f"--namespace={keys.SYSTEM_NAMESPACE}"
ON_PROCESS_NODE = (
    IMAGE,
    '--set-json=manager.tolerations=[{"key":"process.tapestry.io/node","operator":"Exists"}]',
    "--wait",
    "--timeout=120s",
)
BINDING = {
    "apiVersion": CLUSTER_BINDINGS.api_version,
    "kind": CLUSTER_BINDINGS.kind,
    "metadata": {"name": "east"},
    "spec": {
        "secretRef": {"name": "none", "namespace": keys.SYSTEM_NAMESPACE},
        "clusterID": "east",
        "mountNamespace": "leased",
    },
}
UNRELATED_KINDS = ("events", "nodes.metrics", "pods.metrics", "leases.coordination.k8s.io")
"""Kinds with objects that come and go by themselves."""


@pytest.fixture
def process_cluster(kube_assets: Path, tmp_path: Path) -> Iterator[Path]:
    """Kubeconfig of a cluster with a node that runs containers as processes, in namespaces."""
    if failure := asyncio.run(isolation_failure(machine_isolation(tmp_path, os.environ), tmp_path)):
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(failure)
    folder, log, is_ready = tmp_path / "virtual", tmp_path / "log", threading.Event()

    def read_log(lines: Iterable[str]) -> None:
        with log.open("w") as file:
            for line in lines:
                print(line, end="", file=file, flush=True)
                if '"cluster ready"' in line:
                    is_ready.set()

    command = [TAPESTRY, "cluster", "--data", folder, "--run-pods"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        reader = threading.Thread(target=read_log, args=(process.stderr,))
        reader.start()
        try:
            assert is_ready.wait(120), log.read_text()
            yield folder / "kubeconfig"
            assert process.poll() is None, log.read_text()
        finally:
            process.terminate()
            reader.join()


@pytest.mark.timeout(300)
def test_release_is_upgraded_rolled_back_and_uninstalled(helm: Path, kube_assets: Path, process_cluster: Path) -> None:
    kubectl = kubectl_of(kube_assets, process_cluster)
    kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=60s")
    before = object_names(kubectl)

    run(helm, "install", *RELEASE, "--create-namespace", *ON_PROCESS_NODE, kubeconfig=process_cluster)
    assert manager_config(kubectl)["syncer"]["replicas"] == 2
    more = "--set=syncer.replicas=4,manager.replicas=1"
    run(helm, "upgrade", *RELEASE, "--reuse-values", more, *ON_PROCESS_NODE[2:], kubeconfig=process_cluster)
    assert manager_config(kubectl)["syncer"]["replicas"] == 4
    run(helm, "rollback", "tapestry", "1", *RELEASE[2:], *ON_PROCESS_NODE[2:], kubeconfig=process_cluster)
    assert manager_config(kubectl)["syncer"]["replicas"] == 2
    assert leader(kubectl).startswith("tapestry-manager-")

    kubectl("apply", "-f", "-", stdin=json.dumps(BINDING))
    kubectl("wait", "clusterbinding/east", "--for=condition=Ready=False", "--timeout=60s")  # the manager sees it
    uninstall = "uninstall", "tapestry", RELEASE[2], "--wait", "--timeout=120s"
    assert "tapestry-uninstall-check failed" in run(helm, *uninstall, kubeconfig=process_cluster, check=False)
    refusal = kubectl("logs", "job/tapestry-uninstall-check", RELEASE[2])
    assert "1 ClusterBindings exist: east; run `tapestry unjoin` for each first" in refusal
    assert leader(kubectl).startswith("tapestry-manager-")  # still installed

    kubectl("delete", "clusterbinding/east", "--timeout=60s")
    run(helm, *uninstall, kubeconfig=process_cluster)
    kubectl("wait", "pods", "--all", RELEASE[2], "--for=delete", "--timeout=60s")
    left = object_names(kubectl) - before
    assert {name for name in left if not name.endswith(keys.SYSTEM_NAMESPACE)} == {
        "CustomResourceDefinition clusterbindings.cloud.tencent.com ",
        "CustomResourceDefinition resourceleasingpolicies.cloud.tencent.com ",
        "Namespace tapestry-system ",  # helm creates it, but never deletes it
    }
    assert {name for name in left if name.endswith(keys.SYSTEM_NAMESPACE)} == {
        "ConfigMap kube-root-ca.crt tapestry-system",
        "ServiceAccount default tapestry-system",
    }
    assert kubectl("get", "leases", RELEASE[2], "-o", "name") == ""


def object_names(kubectl: Kubectl) -> set[str]:
    """Return kind, name and namespace of all objects in the cluster."""
    kinds = kubectl("api-resources", "--verbs=list", "-o", "name", "--cached=false").split()
    wanted = ",".join(each for each in kinds if not each.startswith(UNRELATED_KINDS))
    fields = "{.kind} {.metadata.name} {.metadata.namespace}"
    return set(kubectl("get", wanted, "-A", "-o", f"jsonpath={{range .items[*]}}{fields}{{'\\n'}}{{end}}").splitlines())


def manager_config(kubectl: Kubectl) -> Any:
    name = ("configmap/tapestry-manager", RELEASE[2])
    return yaml.safe_load(kubectl("get", *name, "-o", r"jsonpath={.data.manager\.yaml}"))


def leader(kubectl: Kubectl) -> str:
    return kubectl("get", "lease/tapestry-manager", RELEASE[2], "-o", "jsonpath={.spec.holderIdentity}")
