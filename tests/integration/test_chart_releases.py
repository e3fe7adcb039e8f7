"""Life of a release of the chart, in a virtual cluster whose node runs containers as processes."""

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
from tapestry.local.isolation import isolation_failure, machine_isolation

from ..conftest import Kubectl, kubectl_of, released_chart
from .helm import IMAGE, REUSE, run

TAPESTRY = Path(sys.executable).with_name("tapestry")
IN_SYSTEM = f"--namespace={keys.SYSTEM_NAMESPACE}"
RELEASE = "tapestry", "charts/tapestry", IN_SYSTEM
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

NAMED_BY_OTHERS = ("Pod", "ReplicaSet", "EndpointSlice", "Secret")
"""Kinds with objects that controllers and helm name."""


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

    released = ("tapestry", released_chart("tapestry"), IN_SYSTEM, "--create-namespace")
    run(helm, "install", *released, *ON_PROCESS_NODE, kubeconfig=process_cluster)
    of_last_release = release_objects(kubectl)
    upgrade = ("upgrade", *RELEASE, REUSE, "--set=syncer.replicas=4", *ON_PROCESS_NODE[2:])
    run(helm, *upgrade, kubeconfig=process_cluster)
    assert manager_config(kubectl)["syncer"]["replicas"] == 4
    assert leader(kubectl).startswith("tapestry-manager-")
    run(helm, "rollback", "tapestry", "1", IN_SYSTEM, *ON_PROCESS_NODE[2:], kubeconfig=process_cluster)
    assert release_objects(kubectl) == of_last_release
    assert manager_config(kubectl)["syncer"]["replicas"] == 2
    assert leader(kubectl).startswith("tapestry-manager-")
    run(helm, *upgrade, kubeconfig=process_cluster)

    kubectl("apply", "-f", "-", stdin=json.dumps(BINDING))
    kubectl("wait", "clusterbinding/east", "--for=condition=Ready=False", "--timeout=60s")  # the manager sees it
    uninstall = "uninstall", "tapestry", IN_SYSTEM, "--wait", "--timeout=120s"
    assert "tapestry-uninstall-check failed" in run(helm, *uninstall, kubeconfig=process_cluster, check=False)
    refusal = kubectl("logs", "job/tapestry-uninstall-check", IN_SYSTEM)
    assert "1 ClusterBindings exist: east; run `tapestry unjoin` for each first" in refusal
    assert leader(kubectl).startswith("tapestry-manager-")  # still installed

    kubectl("delete", "clusterbinding/east", "--timeout=60s")
    run(helm, *uninstall, kubeconfig=process_cluster)
    kubectl("wait", "pods", "--all", IN_SYSTEM, "--for=delete", "--timeout=60s")
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
    assert kubectl("get", "leases", IN_SYSTEM, "-o", "name") == ""

    run(helm, "install", *RELEASE, *ON_PROCESS_NODE, "--set=crds.keep=false", kubeconfig=process_cluster)
    run(helm, *uninstall, kubeconfig=process_cluster)
    assert {name for name in object_names(kubectl) - before if not name.endswith(keys.SYSTEM_NAMESPACE)} == {
        "Namespace tapestry-system "
    }


def object_names(kubectl: Kubectl) -> set[str]:
    """Return kind, name and namespace of all objects in the cluster."""
    kinds = kubectl("api-resources", "--verbs=list", "-o", "name", "--cached=false").split()
    wanted = ",".join(each for each in kinds if not each.startswith(UNRELATED_KINDS))
    fields = "{.kind} {.metadata.name} {.metadata.namespace}"
    return set(kubectl("get", wanted, "-A", "-o", f"jsonpath={{range .items[*]}}{fields}{{'\\n'}}{{end}}").splitlines())


def release_objects(kubectl: Kubectl) -> set[str]:
    """Return kind, name and namespace of all objects whose names a release determines."""
    return {name for name in object_names(kubectl) if name.split()[0] not in NAMED_BY_OTHERS}


def manager_config(kubectl: Kubectl) -> Any:
    name = ("configmap/tapestry-manager", IN_SYSTEM)
    return yaml.safe_load(kubectl("get", *name, "-o", r"jsonpath={.data.manager\.yaml}"))


def leader(kubectl: Kubectl) -> str:
    return kubectl("get", "lease/tapestry-manager", IN_SYSTEM, "-o", "jsonpath={.spec.holderIdentity}")
