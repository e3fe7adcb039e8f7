"""`tapestry planes`: each command against a process that holds planes."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from tests.unit.planes.plane_processes import client_with, running_planes, wait_for_phase

from tapestry.apis.planes import PLANES
from tapestry.cli.main import main
from tapestry.client.client import Client
from tapestry.client.kubeconfig import load_access
from tapestry.kube.errors import Unauthorized
from tapestry.kube.objects import object_named, value_at
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES


@pytest.fixture
async def management(tmp_path: Path) -> AsyncIterator[Client]:
    async with running_planes(tmp_path / "data") as (_, management):
        yield management


async def invoke(folder: Path, *arguments: str) -> Result:
    """Run a command in a thread, because the planes are served by this one."""
    command = [*arguments, "--data", str(folder / "data")]
    return await asyncio.to_thread(CliRunner().invoke, main, ["planes", *command])


async def run(folder: Path, *arguments: str) -> str:
    """Return the output of a command that succeeds."""
    result = await invoke(folder, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


async def error_of(folder: Path, *arguments: str) -> str:
    result = await invoke(folder, *arguments)
    assert result.exit_code != 0
    return result.stderr


async def kubeconfig(folder: Path, name: str, *options: str) -> Path:
    """Write the kubeconfig that a command prints, and return the file."""
    text = await run(folder, "kubeconfig", name, *options)
    file = folder / f"{name}{''.join(options)}".replace("/", "-")
    file.write_text(text)
    return file


async def test_create_writes_the_record_and_waits(management: Client, tmp_path: Path) -> None:
    limits = ("--max-objects", "700", "--max-bytes", "3Mi", "--max-watches", "0", "--max-requests", "9")
    others = ("--process", "here", "--sleep-after", "10m", "--controllers", "namespaces,jobs")
    assert await run(tmp_path, "create", "one", *limits, *others) == "plane one created\n"
    plane = await management.get(PLANES, "one")
    assert plane["status"]["phase"] == "Open"
    assert plane["spec"]["limits"] == {"objects": 700, "bytes": "3Mi", "watches": 0, "requestsInFlight": 9}
    assert (plane["spec"]["process"], plane["spec"]["idleSeconds"]) == ("here", 600)
    assert plane["spec"]["controllers"] == ["namespaces", "jobs"]
    await run(tmp_path, "create", "two", "--controllers", "none")
    assert (await management.get(PLANES, "two"))["spec"]["limits"]["objects"] == 50_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--max-objects", "-1"), "spec.limits.objects"),
        (("--max-requests", "0"), "spec.limits.requestsInFlight"),
        (("--sleep-after", "soon"), "--sleep-after"),
        (("--backend", "paper"), "--backend"),
    ],
)
async def test_create_explains_invalid_values(
    management: Client, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    assert message in await error_of(tmp_path, "create", "one", *options)
    assert await management.list(PLANES) == []


async def test_create_tells_why_the_plane_does_not_open(management: Client, tmp_path: Path) -> None:
    error = await error_of(tmp_path, "create", "one", "--process", "elsewhere", "--timeout", "0.1s")
    assert "plane one is not Open after 0.1s" in error
    assert "already exists" in await error_of(tmp_path, "create", "one")
    assert name_and_phase(await run(tmp_path, "list")) == [("one", "-")]


def name_and_phase(text: str) -> list[tuple[str, ...]]:
    return [tuple(line.split()[:2]) for line in text.splitlines()[1:]]


async def test_list_shows_planes_in_each_format(management: Client, tmp_path: Path) -> None:
    assert await run(tmp_path, "list") == "there are no planes; `tapestry planes create NAME` creates one\n"
    await run(tmp_path, "create", "one", "--controllers", "none")
    status = (await management.get(PLANES, "one"))["status"]
    header, row = (await run(tmp_path, "list", "-o", "wide")).splitlines()
    assert header.split() == ["NAME", "PHASE", "ID", "OBJECTS", "HOLDER", "ADDRESS", "PORT", "MESSAGE"]
    assert row.split()[:6] == ["one", "Open", status["id"], str(status["objects"]), "here", status["address"]]
    assert max(map(len, (await run(tmp_path, "list")).splitlines())) <= 80
    for output, load in (("json", json.loads), ("yaml", yaml.safe_load)):
        [plane] = load(await run(tmp_path, "list", "-o", output))
        assert plane["status"]["id"] == status["id"]


async def test_suspend_and_resume_wait_for_the_phase(management: Client, tmp_path: Path) -> None:
    await run(tmp_path, "create", "one", "--controllers", "none")
    assert await run(tmp_path, "suspend", "one", "--reason", "over budget") == "plane one suspended\n"
    status = (await management.get(PLANES, "one"))["status"]
    assert (status["phase"], status["message"]) == ("Suspended", "over budget")
    assert await run(tmp_path, "resume", "one") == "plane one resumed\n"
    plane = await management.get(PLANES, "one")
    assert (plane["status"]["phase"], plane["spec"]["suspendReason"]) == ("Open", "")
    assert "not found" in await error_of(tmp_path, "suspend", "other")


async def test_move_waits_for_the_release(management: Client, tmp_path: Path) -> None:
    await run(tmp_path, "create", "one", "--controllers", "none")
    assert await run(tmp_path, "move", "one", "--to", "there") == "plane one released for there\n"
    plane = await management.get(PLANES, "one")
    assert plane["spec"]["process"] == "there"
    assert (plane["status"]["phase"], value_at(plane, "status", "holder")) == ("Released", None)
    await run(tmp_path, "move", "one", "--to", "here", "--no-wait")
    await wait_for_phase(management, "one", "Open")


async def test_copy_creates_a_plane_with_the_objects(management: Client, tmp_path: Path) -> None:
    await run(tmp_path, "create", "one", "--max-objects", "900")
    async with client_with(await kubeconfig(tmp_path, "one")) as client:
        await client.create(CONFIGMAPS, object_named("mine", "default"))
    assert await run(tmp_path, "copy", "one", "two") == "plane two created as a copy of one\n"
    async with client_with(await kubeconfig(tmp_path, "two")) as client:
        assert await client.get(CONFIGMAPS, "mine", "default")
    assert (await management.get(PLANES, "two"))["spec"]["limits"]["objects"] == 900


async def test_delete_waits_until_the_record_is_gone(management: Client, tmp_path: Path) -> None:
    await run(tmp_path, "create", "one", "--controllers", "none")
    assert await run(tmp_path, "delete", "one") == "plane one deleted\n"
    assert await management.list(PLANES) == []


@pytest.mark.parametrize("options", [(), ("--by-path",), ("--client-certificate",)])
async def test_kubeconfig_works(management: Client, tmp_path: Path, options: tuple[str, ...]) -> None:
    await run(tmp_path, "create", "one", "--controllers", "none")
    async with client_with(await kubeconfig(tmp_path, "one", *options)) as client:
        assert await client.list(NAMESPACES)
    assert await management.list(PLANES)


async def test_kubeconfig_explains_what_is_impossible(management: Client, tmp_path: Path) -> None:
    await management.create(PLANES, object_named("one") | {"spec": {"controllers": ["none"]}})
    await wait_for_phase(management, "one", "Open")
    assert "byPath" in await error_of(tmp_path, "kubeconfig", "one", "--by-path", "--client-certificate")
    assert "--port-range" in await error_of(tmp_path, "kubeconfig", "one", "--own-port")
    assert "--ttl" in await error_of(tmp_path, "kubeconfig", "one", "--ttl", "long")
    assert "not found" in await error_of(tmp_path, "kubeconfig", "two")


async def test_credentials_are_listed_and_revoked(management: Client, tmp_path: Path) -> None:
    await run(tmp_path, "create", "one", "--controllers", "none")
    result = await invoke(tmp_path, "kubeconfig", "one", "--user", "ada", "--group", "system:masters", "--ttl", "12h")
    word, id, *_ = result.stderr.splitlines()[-1].split()
    assert word == "token"
    (tmp_path / "ada").write_text(result.stdout)
    listed = await run(tmp_path, "credentials", "one")
    assert [line.split()[:4] for line in listed.splitlines()[1:]] == [["token", id, "ada", "system:masters"]]
    assert await run(tmp_path, "revoke", "one", "--token", id) == f"token {id} in plane one is revoked\n"
    assert "there is no token" in await error_of(tmp_path, "revoke", "one", "--token", id)
    async with client_with(tmp_path / "ada") as client:
        with pytest.raises(Unauthorized):
            await client.list(NAMESPACES)
    await run(tmp_path, "revoke", "one", "--serial", "5F:3B")
    await run(tmp_path, "revoke", "one", "--user", "eve")
    found = json.loads(await run(tmp_path, "credentials", "one", "-o", "json"))
    assert found["tokens"] == []
    assert [each.get("serial", each.get("user")) for each in found["revokedCertificates"]] == ["5F3B", "eve"]
    assert "give one of" in await error_of(tmp_path, "revoke", "one")
    assert await management.list(PLANES)


async def test_keys_are_rotated(management: Client, tmp_path: Path) -> None:
    await run(tmp_path, "create", "one", "--controllers", "none")
    assert (await run(tmp_path, "rotate-ca", "one")).startswith("the CA of plane one is CN=tapestry-ca-")
    assert load_access([await kubeconfig(tmp_path, "one")], environ={})
    assert "are signed with the key" in await run(tmp_path, "rotate-signing-key", "one", "--overlap", "0s")
    assert "overlapSeconds" in await error_of(tmp_path, "rotate-ca", "one", "--overlap", "10000h")
    assert "--overlap" in await error_of(tmp_path, "rotate-ca", "one", "--overlap", "tomorrow")
    assert await management.list(PLANES)


async def test_missing_data_folder_is_explained(tmp_path: Path) -> None:
    assert "tapestry planes run --data" in await error_of(tmp_path, "list")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--egress-denied-cidrs", "10.0.0.0/8,10.0.0.1/8"), "egressDeniedCidrs"),
        (("--egress-allowed-cidrs", "all"), "egressAllowedCidrs"),
        (("--port-range", "7000"), "portRange"),
        (("--port-range", "6000-7000", "--bind-address", "127.0.0.1:6444"), "portRange"),
        (("--dns-port-range", "7000"), "dnsPortRange"),
        (("--dns-port-range", "7000-7100", "--port-range", "7100-7200"), "dnsPortRange"),
    ],
)
async def test_run_explains_invalid_settings(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    assert message in await error_of(tmp_path, "run", *options)


async def test_names_of_planes_are_completed(management: Client, tmp_path: Path) -> None:
    for name in ("pr-41", "pr-42", "main"):
        await management.create(PLANES, object_named(name) | {"spec": {"process": "elsewhere"}})
    shell = ShellComplete(main, {}, "tapestry", "_TAPESTRY_COMPLETE")
    for command in ("suspend", "copy", "revoke"):
        arguments = ["planes", command, "--data", str(tmp_path / "data")]
        found = await asyncio.to_thread(shell.get_completions, arguments, "pr")
        assert [each.value for each in found] == ["pr-41", "pr-42"]
