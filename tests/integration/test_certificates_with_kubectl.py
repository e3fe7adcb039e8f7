"""Certificate signing requests by kubectl on `tapestry apiserver` and on a local cluster."""

import asyncio
import base64
import json
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tapestry.apiserver.access.certificates import CertificateAuthority, private_key_pem, subject_name
from tapestry.local.control_planes import tapestry_control_plane

from .servers import OwnServer

Kubectl = Callable[..., Awaitable[str]]
CLIENT = "kubernetes.io/kube-apiserver-client"


@asynccontextmanager
async def new_apiserver(folder: Path) -> AsyncIterator[Path]:
    server = OwnServer(folder)
    await asyncio.to_thread(server.start)
    try:
        yield server.kubeconfig
    finally:
        await asyncio.to_thread(server.stop)


@asynccontextmanager
async def new_cluster(folder: Path) -> AsyncIterator[Path]:
    """A cluster as `tapestry cluster` and `tapestry up` run it."""
    async with tapestry_control_plane(folder) as served, asyncio.TaskGroup() as group:
        group.create_task(served.manager.run())
        yield folder / "kubeconfig"
        served.manager.stop()


def by(kube_assets: Path, kubeconfig: Path, *flags: str) -> Kubectl:
    async def run(*arguments: str, fails: bool = False) -> str:
        command = [kube_assets / "kubectl", f"--kubeconfig={kubeconfig}", "--request-timeout=30s", *flags, *arguments]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    return run


def new_request(key: ec.EllipticCurvePrivateKey, name: str, *groups: str) -> str:
    made = x509.CertificateSigningRequestBuilder().subject_name(subject_name("jane", groups)).sign(key, hashes.SHA256())
    text = base64.b64encode(made.public_bytes(serialization.Encoding.PEM)).decode()
    return json.dumps(
        {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {"request": text, "signerName": CLIENT, "usages": ["client auth"], "expirationSeconds": 3600},
        }
    )


@pytest.mark.parametrize("serving", [new_apiserver, new_cluster])
async def test_approved_request_yields_a_working_certificate(
    kube_assets: Path, tmp_path: Path, serving: Callable[[Path], AbstractAsyncContextManager[Path]]
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    files = {name: tmp_path / name for name in ("good.json", "bad.json", "jane.crt", "jane.key")}
    files["good.json"].write_text(new_request(key, "jane", "devs"))
    files["bad.json"].write_text(new_request(key, "root", "system:masters"))
    files["jane.key"].write_bytes(private_key_pem(key))
    async with serving(tmp_path / "data") as kubeconfig:
        admin = by(kube_assets, kubeconfig)
        refused = await admin("apply", "-f", str(files["bad.json"]), fails=True)
        assert f"use of {CLIENT} signer with system:masters group is not allowed" in refused
        await admin("apply", "-f", str(files["good.json"]))
        await admin("certificate", "approve", "jane")
        await admin("wait", "csr/jane", "--for=jsonpath={.status.certificate}", "--timeout=30s")
        assert "Approved,Issued" in await admin("get", "csr", "jane")
        text = await admin("get", "csr", "jane", "-o", "jsonpath={.status.certificate}")
        files["jane.crt"].write_bytes(base64.b64decode(text))
        flags = f"--client-certificate={files['jane.crt']}", f"--client-key={files['jane.key']}"
        assert await who(by(kube_assets, bare(kubeconfig, tmp_path), *flags)) == "jane"
        untrusted = CertificateAuthority(tmp_path / "strangers").client_certificate("root", ["system:masters"])
        flags = f"--client-certificate={untrusted[0]}", f"--client-key={untrusted[1]}"
        unknown = by(kube_assets, bare(kubeconfig, tmp_path), *flags)
        assert "Unauthorized" in await unknown("get", "--raw", "/version", fails=True)
        assert await who(by(kube_assets, kubeconfig, *flags)) == "admin"  # authenticated by the token in the kubeconfig


def bare(kubeconfig: Path, folder: Path) -> Path:
    """Kubeconfig for the same server without credentials."""
    content = yaml.safe_load(kubeconfig.read_text())
    content["users"] = [{"name": each["name"], "user": {}} for each in content["users"]]
    file = folder / "bare.json"
    file.write_text(json.dumps(content))
    return file


async def who(kubectl: Kubectl) -> str:
    return await kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
