"""Releases of the charts in this folder in tenants, and the image of the operator."""

import shutil
import sys
from pathlib import Path

from tapestry.kube.objects import Object

from ..integration.helm import run
from .images import Contents, python_paths, write_images
from .nodes import RealNode
from .tenants import Tenant

CHARTS = Path(__file__).with_name("charts")
OPERATOR = "tapestry.invalid/operator:1"
PAGES, OLD_PAGES = "pages.v1.example.com", "pages.v1alpha1.example.com"


def install(tenant: Tenant, chart: str, *values: str, command: str = "install", has_services: bool = True) -> None:
    """Install a chart as the release of its name, and wait until all that it creates is ready.

    Helm also waits for addresses of Services. Without them, only the Deployment is waited for.
    """
    options = [*(f"--set={each}" for each in values), *(["--wait", "--timeout=60s"] if has_services else [])]
    try:
        run(
            tenant.host.assets / "helm",
            *(command, chart, str(CHARTS / chart), *options),
            kubeconfig=tenant.kubeconfig,
        )
        if not has_services:
            tenant.kubectl("rollout", "status", f"deployment/{chart}", "--timeout=60s")
    except (AssertionError, RuntimeError) as error:
        error.add_note(tenant.diagnostics())
        raise


def uninstall(tenant: Tenant, chart: str) -> None:
    run(tenant.host.assets / "helm", "uninstall", chart, "--wait", kubeconfig=tenant.kubeconfig)


def install_operator(tenant: Tenant, node: RealNode, folder: Path, *, has_services: bool = True) -> None:
    """Install the operator, whose image is only on this node."""
    archive, program = folder / "operator.tar", (CHARTS / "operator" / "pages.py").read_text()
    entrypoint = {"Entrypoint": [str(Path(sys.executable).resolve()), "-B", "/pages.py"]}
    files, busybox = {"pages.py": program}, Path(shutil.which("busybox") or "")
    write_images(archive, Contents(busybox, (), files, paths=python_paths(), others={OPERATOR: entrypoint}))
    node.run("ctr", "--namespace=k8s.io", "images", "import", archive)
    install(tenant, "operator", f"image={OPERATOR}", has_services=has_services)


def new_page(version: str, **spec: object) -> Object:
    return {"apiVersion": f"example.com/{version}", "kind": "Page", "metadata": {"name": version}, "spec": spec}
