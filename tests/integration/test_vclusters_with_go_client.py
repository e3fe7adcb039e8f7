"""A Go client of the lifecycle API that behaves like the published example, with stubs from our contract.

Compiling it with Go takes half a minute, and seconds in later runs.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from grpc import channel_ready_future, insecure_channel

from tapestry.local.kubernetes import free_ports
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.rest_routes import RPCS

from .servers import PlanesProcess

ROOT = Path(__file__).parents[2]
CLIENT = Path(__file__).parent / "goclient"
CONTRACT = "vcluster/api/v1/vcluster_api.proto"
MODULE = "tapestry.invalid/goclient"
GENERATORS = ("google.golang.org/protobuf/cmd/protoc-gen-go", "google.golang.org/grpc/cmd/protoc-gen-go-grpc")


@pytest.fixture(scope="module")
def go_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled client."""
    if shutil.which("go") is None and os.environ.get("CI") != "true":
        pytest.skip("Go is not installed, so the Go client cannot be compiled")
    folder = tmp_path_factory.mktemp("goclient")
    shutil.copytree(CLIENT, folder, dirs_exist_ok=True)
    programs = folder / "bin"
    environ = {**os.environ, "CGO_ENABLED": "0", "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    build = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o"]
    subprocess.run([*build, f"{programs}{os.sep}", *GENERATORS], cwd=folder, env=environ, check=True)
    options = f"module={MODULE},M{CONTRACT}={MODULE}/api"
    outputs = [f"--{each}_out={folder}" for each in ("go", "go-grpc")]
    outputs += [f"--{each}_opt={options}" for each in ("go", "go-grpc")]
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", *outputs, CONTRACT]
    subprocess.run(protoc, env=environ, check=True)
    subprocess.run([*build, programs / "client", "."], cwd=folder, env=environ, check=True)
    return programs / "client"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("delete_pause", "phases"),
    [("2s", {api.PHASE_RUNNING}), ("0s", {api.PHASE_RESUMING, api.PHASE_SUSPENDED})],
    ids=["later", "while-resuming"],
)
def test_published_example_completes(go_client: Path, tmp_path: Path, delete_pause: str, phases: set[int]) -> None:
    """A deletion that comes first of all ends the resume, or prevents its start."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    flags = ("--compat-plaintext", "--grpc-address", address)
    with PlanesProcess(tmp_path / "planes", *flags), insecure_channel(address) as channel:
        channel_ready_future(channel).result(30)  # the process begins to serve planes before virtual clusters
        command = [go_client, "-server", address, "-delete-pause", delete_pause]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        results = dict(line.split(" ", 1) for line in done.stdout.splitlines())
        assert results["create"] == results["get"] == "PHASE_RUNNING"
        assert results["list"] == "1 of 1"
        wait = api.WaitOperationRequest(id=results["delete"], timeout_seconds=30)
        rpc = channel.unary_unary(
            f"/{RPCS['WaitOperation'].containing_service.full_name}/WaitOperation",
            request_serializer=api.WaitOperationRequest.SerializeToString,
            response_deserializer=api.Operation.FromString,
        )
        deletion = rpc(wait)
    assert (deletion.done, deletion.error.code) == (True, 0), deletion
    assert deletion.phase_from in phases
