"""Go projects that use envtest, run on our programs in place of etcd and kube-apiserver.

Compiling them with Go takes one minute after `make kube-assets`, two minutes without it, and seconds in later runs.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent / "envtest"
TAPESTRY = Path(sys.executable).with_name("tapestry")
CONTROLLER_RUNTIME = "sigs.k8s.io/controller-runtime/pkg"
NOT_YET = "should install the unserved CRDs"
"""A deleted definition without a served version is never removed."""

GoTest = Callable[..., str]


@pytest.fixture
def go_test(kube_assets: Path, tmp_path: Path) -> GoTest:
    """Run the tests of a package on our programs.  Return their output if they pass."""
    if shutil.which("go") is None and os.environ.get("CI") != "true":
        pytest.skip("Go is not installed, so the tests of Go projects cannot be compiled")
    folder = tmp_path / "assets"
    command = [TAPESTRY, "apiserver", "envtest-assets", folder]
    written = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"export KUBEBUILDER_ASSETS={folder}" in written.stdout
    environ = {**os.environ, "KUBEBUILDER_ASSETS": str(folder), "CGO_ENABLED": "0", "TMPDIR": str(tmp_path)}

    def run(package: str, *flags: str) -> str:
        # The first flags are those of tools/kube_assets.py: with other flags Go compiles client-go again.
        command = ["go", "test", "-mod=readonly", "-trimpath", "-buildvcs=false", "-count=1", "-v", package, *flags]
        done = subprocess.run(command, cwd=PROJECT, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
        assert list(tmp_path.glob("k8s_test_framework_*")) == []  # nothing is left behind
        return done.stdout

    return run


@pytest.mark.timeout(480)
def test_envtest_project_passes_on_our_programs(go_test: GoTest) -> None:
    assert go_test("./...").count("--- PASS: ") == 2


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("package", "at_least"),
    [
        ("client", 270),
        *(
            pytest.param(package, at_least, marks=pytest.mark.long)
            for package, at_least in (
                *(("cache", 270), ("manager", 80), ("builder", 40), ("controller/controllerutil", 50)),
                *(("handler", 40), ("controller", 30), ("source", 15), ("webhook", 8), ("envtest", 25)),
            )
        ),
    ],
)
def test_controller_runtime_tests_pass_on_our_programs(go_test: GoTest, package: str, at_least: int) -> None:
    output = go_test(f"{CONTROLLER_RUNTIME}/{package}", "-ginkgo.no-color", "-ginkgo.skip", NOT_YET)
    passed = re.search(r"SUCCESS! -- (\d+) Passed", output)
    assert passed is not None
    assert int(passed[1]) >= at_least
