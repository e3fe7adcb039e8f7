"""Run the commands of the Kueue guide with a real Kueue manager on the API server of `tapestry up`."""

import base64
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from smells import command_blocks
from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.kube.objects import Object

from .documents import ROOT, Reader, open_reader
from .test_guides import WORLD

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

GUIDE = ROOT / "docs" / "guides" / "kueue.md"
NAMESPACE = "kueue-system"
SECRET = "kueue-webhook-server-cert"
"""Secret for Kueue's own certificates. Kueue serves with ours instead, from `certDir`."""
USED = ("-kueue-x-k8s-io-", "-batch-v1-job")
"""Parts of webhook paths in use. Other webhooks are for kinds that the world does not have, or for plain pods."""
STARTING = 60.0


@pytest.fixture(scope="module")
def kueue(kube_assets: Path) -> Path:
    found = kube_assets / "kueue"
    if not found.exists():
        pytest.fail("kueue is missing: make queue-assets builds it", pytrace=False)  # `make test-long` requires it
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def kueue_objects(manifests: Path, authority: str, port: int) -> Iterator[Object]:
    """Yield the objects of Kueue except its Deployment, with webhooks at a port of this machine."""
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    yield {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": NAMESPACE}}
    for obj in yaml.safe_load_all(manifests.read_text()):
        if obj is None:
            continue
        if "webhooks" in obj:
            obj["webhooks"] = [with_local_url(port, authority, each) for each in obj["webhooks"] if is_used(each)]
        else:  # Kueue requires it; objects are stored as v1beta2 and never converted
            config = {"url": f"https://127.0.0.1:{port}/convert"}
            webhook = {"conversionReviewVersions": ["v1"], "clientConfig": config}
            obj["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
        yield obj


def path_of(webhook: Object) -> str:
    found: str = webhook["clientConfig"]["service"]["path"]
    return found


def is_used(webhook: Object) -> bool:
    return any(part in path_of(webhook) for part in USED)


def with_local_url(port: int, authority: str, webhook: Object) -> Object:
    bundle = base64.b64encode(authority.encode()).decode()
    config = {"url": f"https://127.0.0.1:{port}{path_of(webhook)}", "caBundle": bundle}
    return {**webhook, "clientConfig": config}


def configuration(port: int, certificates: Path) -> Object:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": "0"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": True, "webhookSecretName": SECRET},
        "integrations": {"frameworks": ["batch/job"]},
        "featureGates": {"VisibilityOnDemand": False},  # it needs to run in a cluster, and writes to /visibility
    }


@contextmanager
def running_kueue(program: Path, reader: Reader) -> Iterator[None]:
    """Install Kueue in the world and run its manager as a process."""
    folder = reader.folder / "kueue"
    authority, port = CertificateAuthority(folder), free_port()
    certificate, key = authority.server_certificate(["127.0.0.1"])
    for source, name in ((certificate, "tls.crt"), (key, "tls.key")):
        (folder / name).write_bytes(source.read_bytes())
    objects = list(kueue_objects(program.with_suffix(".yaml"), authority.certificate_pem(), port))
    (folder / "kinds.yaml").write_text(yaml.safe_dump_all(each for each in objects if "webhooks" not in each))
    (folder / "webhooks.yaml").write_text(yaml.safe_dump_all(each for each in objects if "webhooks" in each))
    (folder / "config.yaml").write_text(yaml.safe_dump(configuration(port, folder)))
    apply(reader, "kinds.yaml")
    environment: dict[str, Any] = {**os.environ, "KUBECONFIG": str(reader.folder / ".tapestry/virtual/kubeconfig")}
    with (folder / "log").open("w") as output:
        command = [program, "--config", folder / "config.yaml"]
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        wait_for_port(process, port, folder / "log")
        apply(reader, "webhooks.yaml")
        yield
    finally:
        process.terminate()
        process.wait(STARTING)


def apply(reader: Reader, name: str) -> None:
    succeeded, output = reader.type(
        f"kubectl --kubeconfig .tapestry/virtual/kubeconfig apply --server-side -f kueue/{name}\n"
    )
    assert succeeded, output


def wait_for_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + STARTING
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        threading.Event().wait(0.2)


def test_guide_commands_print_expected_output(tmp_path: Path, kube_assets: Path, kueue: Path) -> None:
    blocks = command_blocks(GUIDE.read_text())
    assert all(block.runner == "tests/e2e/test_kueue.py" for block in blocks)
    with open_reader(tmp_path) as reader:
        reader.follow(WORLD)
        reader.type(f'. .venv/bin/activate\nexport PATH="{kube_assets}:$PATH"\n')
        with running_kueue(kueue, reader):
            for block in blocks:
                reader.follow(block)
