"""`tapestry vc`: creating, showing, changing and deleting virtual clusters."""

import json
from pathlib import Path

import pytest
import yaml

from tapestry.cli.vc import field_value, update_mask

from .service_commands import Commands, commands

__all__ = ["commands"]

MANIFEST = """
apiVersion: tapestry.io/v1alpha1
kind: VCluster
metadata: {name: green, namespace: other, labels: {team: web}}
spec: {project: other, distro: k8s, resources: {cpuLimit: "1"}}
"""


async def test_create_shows_steps_and_the_phase(commands: Commands) -> None:
    result = await commands.run("vc", "create", "blue", "--set", "resources.cpuLimit=2", "--label", "team=web")
    assert result.stdout == "virtual cluster shop/blue is Running\n"
    assert result.stderr.splitlines() == ["    0% CheckHost: Running", "  100% CheckHost: Done"]
    made = commands.service.clusters["blue"]
    assert (made.spec.resources.cpu_limit, made.labels["team"]) == ("2", "web")


async def test_create_takes_the_file_of_kubectl(commands: Commands, tmp_path: Path) -> None:
    file = tmp_path / "vcluster.yaml"
    file.write_text(MANIFEST)
    output = await commands.output("vc", "create", "-f", str(file), "--set", "resources.cpuLimit=3", "-o", "json")
    assert json.loads(output)["status"]["phase"] == "PHASE_RUNNING"
    request = next(each.request for each in commands.service.calls if each.method == "CreateVCluster")
    assert (request.name, request.namespace, request.project, request.spec.distro) == ("green", "other", "other", "k8s")
    assert (request.spec.resources.cpu_limit, request.labels["team"]) == ("3", "web")
    assert "one object of the kind VCluster" in await commands.error("vc", "create", "-f", "/dev/null")


async def test_create_without_waiting_names_the_operation(commands: Commands) -> None:
    result = await commands.run("vc", "create", "blue", "--no-wait")
    assert result.stdout == "virtual cluster shop/blue is Creating\n"
    assert "`tapestry op wait op-0` waits for it" in result.stderr


async def test_failed_create_names_the_reason(commands: Commands) -> None:
    commands.service.failure = "no room"
    assert await commands.error("vc", "create", "blue") == "Error: no room (STEP_FAILED)"
    assert await commands.error("vc", "create") == "Error: give NAME, or a file with --file"


async def test_list_shows_all_pages(commands: Commands) -> None:
    assert "there are no virtual clusters" in await commands.output("vc", "list")
    for name in ("a", "b", "c"):
        await commands.output("vc", "create", name, "--no-wait")
    lines = (await commands.output("vc", "list")).splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [["shop", name, "Creating"] for name in ("a", "b", "c")]
    assert "OWNER" in (await commands.output("vc", "list", "-o", "wide")).splitlines()[0]
    assert len(yaml.safe_load(await commands.output("vc", "list", "-A", "-o", "yaml"))) == 3
    await commands.output("vc", "list", "--phase", "error", "--phase", "running", "-l", "team=web")
    request = commands.service.calls[-1].request
    assert (list(request.phases), request.label_selector, request.namespace) == ([6, 2], "team=web", "shop")


async def test_get_shows_one_cluster(commands: Commands) -> None:
    await commands.output("vc", "create", "blue")
    assert (await commands.output("vc", "get", "blue")).splitlines()[1].split()[:3] == ["shop", "blue", "Running"]
    assert yaml.safe_load(await commands.output("vc", "get", "blue", "-o", "yaml"))["name"] == "blue"
    assert await commands.error("vc", "get", "red") == "Error: VCluster red was not found (RESOURCE_NOT_FOUND)"


async def test_update_changes_only_named_fields(commands: Commands) -> None:
    await commands.output("vc", "create", "blue", "--set", "resources.cpuLimit=2", "--label", "team=web")
    await commands.output("vc", "update", "blue", "--set", "resources.memoryLimit=1Gi", "--label", "tier=front")
    found = commands.service.clusters["blue"]
    assert (found.spec.resources.cpu_limit, found.spec.resources.memory_limit) == ("2", "1Gi")
    assert dict(found.labels) == {"team": "web", "tier": "front"}
    assert "give a field to change" in await commands.error("vc", "update", "blue")


async def test_dry_run_prints_the_difference(commands: Commands) -> None:
    output = await commands.output("vc", "create", "blue", "--set", "distro=k8s", "--dry-run")
    assert output.splitlines()[:2] == ["--- shop/blue now", "+++ shop/blue after"]
    assert "+  distro: k8s" in output
    assert not commands.service.clusters
    await commands.output("vc", "create", "blue", "--set", "resources.cpuLimit=2")
    output = await commands.output("vc", "update", "blue", "--set", "resources.cpuLimit=3", "--dry-run")
    assert "-    cpuLimit: '2'\n+    cpuLimit: '3'" in output
    assert commands.service.clusters["blue"].spec.resources.cpu_limit == "2"
    output = await commands.output("vc", "update", "blue", "--set", "resources.cpuLimit=2", "--dry-run")
    assert output == "nothing would change in shop/blue\n"


async def test_dry_run_names_immutable_fields(commands: Commands) -> None:
    await commands.output("vc", "create", "blue")
    error = await commands.error("vc", "update", "blue", "--set", "distro=k3s", "--dry-run")
    assert error == "Error: spec.distro: is immutable (FIELD_INVALID)"
    text = MANIFEST.replace("green", "blue").replace("namespace: other", "namespace: shop")
    result = await commands.run("vc", "update", "blue", "-f", "-", "--dry-run", input=text)
    assert result.stderr == "Error: immutable: spec.project cannot change\n"


async def test_scale_needs_a_resource(commands: Commands) -> None:
    await commands.output("vc", "create", "blue")
    await commands.output("vc", "scale", "blue", "--cpu-limit", "4")
    assert commands.service.clusters["blue"].spec.resources.cpu_limit == "4"
    assert "give at least one resource" in await commands.error("vc", "scale", "blue")


async def test_delete_waits_until_it_is_gone(commands: Commands) -> None:
    await commands.output("vc", "create", "blue")
    assert await commands.output("vc", "delete", "blue", "--force") == "virtual cluster shop/blue deleted\n"
    assert not commands.service.clusters
    assert commands.service.calls[-2].method == "WaitOperation"


@pytest.mark.parametrize(
    ("changes", "fields", "mask"),
    [
        ({"spec": {"resources": {"cpuLimit": 2}}}, {"resources.cpuLimit": "2"}, ["spec.resources.cpuLimit"]),
        ({"spec": {"distro": "k8s", "sync": {}}, "labels": {}}, {}, ["labels", "spec.distro", "spec.sync"]),
        ({"deletion_protection": False}, {}, ["deletionProtection"]),
    ],
)
def test_mask_has_only_changed_fields(changes: dict[str, object], fields: dict[str, str], mask: list[str]) -> None:
    assert update_mask(changes, fields) == mask


@pytest.mark.parametrize(
    ("text", "value"), [("1.30", "1.30"), ("2", "2"), ("true", True), ("[a, b]", ["a", "b"]), ("", ""), ("{", "{")]
)
def test_numbers_in_options_stay_text(text: str, value: object) -> None:
    assert field_value(text) == value
