"""An unmodified metrics-server in a virtual cluster: it scrapes virtual nodes and verifies their certificates."""

import asyncio
import json
import re
import ssl
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tapestry.kube.quantity import parse_quantity

from .metrics_servers import metrics_server
from .worlds import TAPESTRY, TIMEOUT_SECONDS, running_world

pytestmark = pytest.mark.long
POLL_SECONDS = 1.0


async def wait_for(read: Callable[[], Any]) -> Any:
    """Repeat until the result is not empty."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            if found := await asyncio.to_thread(read):
                return found
            await asyncio.sleep(POLL_SECONDS)


@pytest.mark.timeout(600)
async def test_metrics_server_measures_virtual_nodes_and_leased_pods(kube_assets: Path, tmp_path: Path) -> None:
    with running_world(tmp_path / ".tapestry", "--clusters", "1", "--nodes", "2") as world:
        create = ["k", "create", "deployment", "used", "--image", "nginx", "--requests", "cpu=250m,memory=64Mi"]
        await asyncio.to_thread(subprocess.check_output, [TAPESTRY, *create, "--kubeconfig", world.kubeconfig])
        verification = f"--kubelet-certificate-authority={tmp_path / '.tapestry' / 'virtual' / 'pki' / 'ca.crt'}"
        token = yaml.safe_load(world.kubeconfig.read_text())["users"][0]["user"]["token"]

        def items(path: str) -> dict[str, Any]:
            url = f"https://127.0.0.1:{port}/apis/metrics.k8s.io/v1beta1/{path}"
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            try:
                with urllib.request.urlopen(request, timeout=10, context=context) as response:
                    return {each["metadata"]["name"]: each for each in json.load(response)["items"]}
            except OSError:  # not ready yet
                return {}

        with metrics_server(kube_assets, world.kubeconfig, tmp_path / "metrics", verification) as port:
            pods = await wait_for(lambda: items("namespaces/default/pods"))
            ((name, pod),) = pods.items()
            assert re.fullmatch(r"used-\S+", name)
            (container,) = pod["containers"]
            assert (container["name"], container["usage"]["memory"]) == ("used", "64Mi")
            assert 240 <= parse_quantity(container["usage"]["cpu"]).milli_value() <= 260
            nodes = await wait_for(
                lambda: {key: each for key, each in items("nodes").items() if key.startswith("vnode-")}
            )
            assert len(nodes) == 2  # also the one without pods
