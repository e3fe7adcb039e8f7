"""Kubernetes' conformance tests that need streams, on virtual nodes over real kubelets."""

import asyncio
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from conformance import LISTS, PASSED, names_in, run
from tapestry.apiserver.access.certificates import CertificateAuthority

from .clusters import Cluster, PhysicalCluster
from .images import IDLE, Contents, write_images
from .installation import running_installation, tapestry
from .nodes import Kit

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]

REGISTRY = "tapestry.invalid"
PAGES = "usr/local/apache2/htdocs"
FILES = {
    "agnhost": '#!/bin/sh\nexec /bin/agnhost "$@"\n',
    "bin/curl": '#!/bin/sh\nfor url; do :; done\nexec wget -q -O - "$url"\n',  # used to get pages
    f"{PAGES}/index.html": "it works\n",
    f"{PAGES}/data.json": '{"image": "nautilus.jpg"}',
}
HTTPD = {"Cmd": ["httpd", "-f", "-p", "80", "-h", f"/{PAGES}"]}
IMAGES = {
    "agnhost:2.56": {"Entrypoint": ["/agnhost"], "Cmd": ["pause"]},
    "busybox:1.37.0-1": {"Cmd": IDLE},
    "httpd:2.4.38-4": HTTPD,
    "httpd:2.4.39-4": HTTPD,
    "nautilus:1.7": HTTPD,
}
"""Images of the tests in Kubernetes 1.34, with what they need of them."""


@pytest.fixture(scope="module")
def node_kit(node_kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """Files for real nodes, with the images of the tests."""
    if not (node_kit.assets / "agnhost").exists():
        pytest.skip(f"no agnhost in {node_kit.assets}: run make conformance-assets")
    image = tmp_path_factory.mktemp("image") / "images.tar"
    programs = node_kit.assets / "kubectl", node_kit.assets / "agnhost"
    names = {f"{REGISTRY}/{name}": config for name, config in IMAGES.items()}
    key_pair = CertificateAuthority(image.parent / "pki").server_certificate(["localhost"])
    files = FILES | {f"localhost{each.suffix}": each.read_text() for each in key_pair}  # agnhost serves with them
    write_images(image, Contents(Path(shutil.which("busybox") or ""), programs, files, names))
    return replace(node_kit, image=image)


async def test_conformance_tests_that_need_streams_pass(
    virtual_cluster: Cluster,
    physical_clusters: dict[str, PhysicalCluster],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    virtual, registries = virtual_cluster, tmp_path / "registries.yaml"
    registries.write_text(f"promoterE2eRegistry: {REGISTRY}\n")
    monkeypatch.setenv("KUBE_TEST_REPO_LIST", str(registries))
    names = names_in(LISTS / "needs-streams.txt")
    config = virtual.plane.kubeconfig
    async with running_installation(virtual.plane, virtual.assets, tmp_path):
        for name, cluster in physical_clusters.items():
            access = ("--kubeconfig", config, "--cluster-kubeconfig", cluster.plane.kubeconfig)
            await asyncio.to_thread(tapestry, "join", name, *access, "--lease=100%")
            for state in ("create", "condition=Ready"):
                wait = ("wait", f"node/vnode-{name}-n1", f"--for={state}", "--timeout=60s")
                await asyncio.to_thread(virtual.kubectl, *wait)
        report = tmp_path / "report"
        found = await asyncio.to_thread(run, names, lambda *_: nullcontext(config), virtual.assets, report)
    passed = sum(status == PASSED for status in found.values())
    record_property("figure", f"conformance tests that need streams, on virtual nodes: {passed} of {len(names)} pass")
    assert {name: status for name, status in found.items() if status != PASSED} == {}
