"""The example controllers as processes with their own configuration, sample objects and kubectl."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import aiohttp
import pytest
import yaml

from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.objects import Object, is_owned_by, value_at
from tapestry.kube.resources import JOBS, PODS, Resource
from tapestry.local.kubernetes import free_ports

EXAMPLES = Path(__file__).parents[2] / "examples"
CRDS = EXAMPLES.parent / "manifests" / "crds"
TAPESTRY = Path(sys.executable).with_name("tapestry")
ATS = Resource("demo.wukong.com", "v1alpha1", "At", "ats")
MIGRATIONS = Resource("database.cloud.tencent.com", "v1", "RedisMigration", "redismigrations")

Kubectl = Callable[..., str]


@pytest.fixture
def kinds(kubectl: Kubectl) -> None:
    """`kubectl apply -f manifests/crds`, without the kinds of Tapestry itself."""
    for resource in (ATS, MIGRATIONS):
        kubectl("apply", "-f", str(CRDS / f"{resource.group}_{resource.plural}.yaml"))
    kubectl("wait", "--for=condition=Established", f"crd/{ATS.name}", f"crd/{MIGRATIONS.name}")


@contextmanager
def running(name: str, kubeconfig: Path, namespace: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `tapestry run NAME` for one namespace."""
    with process(kubeconfig, namespace, "run", name, "--config", EXAMPLES / name / "config.yaml") as started:
        yield started


@contextmanager
def process(
    kubeconfig: Path, namespace: str, *arguments: str | Path, log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command for one namespace.  It must exit cleanly on SIGTERM."""
    command = [TAPESTRY, *arguments, "--kubeconfig", kubeconfig]
    environ = {
        **os.environ,
        "TAPESTRY_FILTER_NAMESPACES": json.dumps([namespace]),
        "TAPESTRY_LEADER_ELECTION_NAMESPACE": namespace,
    }
    with log.open("wb") if log is not None else nullcontext() as stderr:
        started = subprocess.Popen(command, env=environ, stderr=stderr)
    try:
        yield started
        started.terminate()
        assert started.wait(30) == 0
    finally:
        started.kill()
        started.wait()


def in_phase(phase: str) -> Callable[[Object | None], bool]:
    return lambda obj: value_at(obj, "status", "phase") == phase


async def test_at_runs_its_command_and_reports_the_result(
    kinds: None, client: Client, kubectl: Kubectl, kubeconfig: Path, namespace: str
) -> None:
    sample = (EXAMPLES / "at" / "sample.yaml").read_text().replace("namespace: default", f"namespace: {namespace}")
    with running("at", kubeconfig, namespace):
        kubectl("apply", "-f", "-", stdin=sample)
        pod = await wait_for(client, PODS, "hello", namespace, until=bool)
        at = await wait_for(client, ATS, "hello", namespace, until=in_phase("Pending"))
        assert pod is not None
        assert at is not None
        assert is_owned_by(pod, at)
        assert pod["spec"]["containers"][0]["command"] == ["sh", "-c", "echo hello"]

        await client.patch(PODS, pod, {"status": {"phase": "Succeeded"}}, subresource="status")
        await wait_for(client, ATS, "hello", namespace, until=in_phase("Succeeded"))

    table = kubectl("get", "at", "hello", "-n", namespace)
    assert table.split()[:4] == ["NAME", "SCHEDULE", "PHASE", "AGE"]
    assert "Succeeded" in table


async def test_redismigration_passes_its_phases_with_events(
    kinds: None, client: Client, kubectl: Kubectl, kubeconfig: Path, namespace: str
) -> None:
    sample = (EXAMPLES / "redismigration" / "sample.yaml").read_text()
    with running("redismigration", kubeconfig, namespace):
        kubectl("apply", "-f", "-", stdin=sample.replace("namespace: default", f"namespace: {namespace}"))
        job = await wait_for(client, JOBS, "rmtest", namespace, until=bool)
        await wait_for(client, MIGRATIONS, "rmtest", namespace, until=in_phase("Migrate"))
        assert job is not None
        now = job["metadata"]["creationTimestamp"]
        done = {
            "startTime": now,
            "completionTime": now,
            "succeeded": 1,
            "conditions": [
                {"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": now},
                {"type": "Complete", "status": "True", "lastTransitionTime": now},
            ],
        }
        await client.patch(JOBS, job, {"status": done}, subresource="status")
        migration = await wait_for(client, MIGRATIONS, "rmtest", namespace, until=in_phase("Succeeded"))

    history = {each["type"]: each["status"] for each in value_at(migration, "status", "conditions")}
    assert history == {"Pending": "False", "Precheck": "False", "Migrate": "False", "Succeeded": "True"}
    events = kubectl("get", "events", "-n", namespace, "-o", "jsonpath={.items[*].reason}")
    assert set(events.split()) == {"PhasePrecheck", "PhaseMigrate", "PhaseSucceeded"}


async def test_hub_runs_the_controllers_that_its_configuration_enables(
    kinds: None, client: Client, kubectl: Kubectl, kubeconfig: Path, namespace: str, tmp_path: Path
) -> None:
    shipped, without, log = EXAMPLES / "hub.yaml", tmp_path / "without.yaml", tmp_path / "log"
    address = f"127.0.0.1:{free_ports(1)[0]}"
    changes = {"controllers": ["*", "-redismigration"], "apiext": {"listen": address, "ownIdentity": True}}
    without.write_text(yaml.safe_dump({**yaml.safe_load(shipped.read_text()), **changes}))
    with process(kubeconfig, namespace, "hub", "--config", without, log=log):
        for name in ("redismigration", "at"):
            sample = (EXAMPLES / name / "sample.yaml").read_text()
            kubectl("apply", "-f", "-", stdin=sample.replace("namespace: default", f"namespace: {namespace}"))
        await wait_for(client, ATS, "hello", namespace, until=in_phase("Pending"))
        assert "status" not in await client.get(MIGRATIONS, "rmtest", namespace)
        async with (
            aiohttp.ClientSession(f"http://{address}") as session,
            session.get(f"/apiext/v1/ats/hello?namespace={namespace}") as response,
        ):
            assert (await response.json())["phase"] == "Pending"
    lines = map(json.loads, log.read_text().splitlines())
    selected = next(line for line in lines if line["message"] == "controllers selected")
    assert "at" in selected["enabled"]
    assert selected["disabled"] == ["redismigration"]

    with process(kubeconfig, namespace, "hub", "--config", shipped):
        await wait_for(client, MIGRATIONS, "rmtest", namespace, until=in_phase("Migrate"))
        pod = await client.get(PODS, "hello", namespace)
        await client.patch(PODS, pod, {"status": {"phase": "Succeeded"}}, subresource="status")
        await wait_for(client, ATS, "hello", namespace, until=in_phase("Succeeded"))


def test_spec_outside_the_schema_is_refused(kinds: None, kubectl: Kubectl, namespace: str) -> None:
    wrong = (EXAMPLES / "redismigration" / "sample.yaml").read_text().replace("ali-123", "ALI 123")
    with pytest.raises(AssertionError, match=r"spec\.source"):
        kubectl(
            "apply", "-n", namespace, "-f", "-", stdin=wrong.replace("namespace: default", f"namespace: {namespace}")
        )
