import errno
import gc
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from tapestry import __version__
from tapestry.cli.cluster_access import error_message, run_async
from tapestry.cli.main import COMMANDS, main
from tapestry.cli.process_runner import FLAGS
from tapestry.controller.config import ManagerConfig
from tapestry.kube.errors import ApiError, NotFound
from tapestry.process.config import settings

Tapestry = Callable[..., Result]

KUBECONFIG = """
current-context: here
clusters: [{name: here, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: me, user: {token: secret}}]
contexts: [{name: here, context: {cluster: here, user: me}}]
"""


@pytest.fixture
def tapestry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Tapestry]:
    """Runs the command line, in a home with nothing in it; what belongs to the whole process is put back."""
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    root, thresholds = logging.getLogger(), gc.get_threshold()
    handlers, level = root.handlers, root.level
    yield lambda *args: CliRunner().invoke(main, [str(arg) for arg in args])
    root.handlers = handlers
    root.setLevel(level)
    gc.set_threshold(*thresholds)


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG)
    return file


def complaint(result: Result) -> str:
    """The one line that a command that failed has printed."""
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    (line,) = result.output.splitlines()
    return line.removeprefix("Error: ")


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_every_command_with_a_summary(tapestry: Tapestry, option: str) -> None:
    result = tapestry(option)
    assert result.exit_code == 0
    for name, entry in COMMANDS.items():
        assert f"{name} " in result.output
        assert entry.summary in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_is_there_and_has_help(tapestry: Tapestry, name: str) -> None:
    assert isinstance(main.get_command(click.Context(main), name), click.Command)
    result = tapestry(name, "--help")
    assert result.exit_code == 0
    assert f"{name} [OPTIONS]" in result.output


def test_the_version_is_printed(tapestry: Tapestry) -> None:
    assert tapestry("version").output == f"tapestry {__version__}\n"


def test_a_command_that_is_not_there_is_an_error(tapestry: Tapestry) -> None:
    result = tapestry("dance")
    assert result.exit_code == 2
    assert "No such command 'dance'" in result.output


def test_only_the_command_that_is_called_is_imported() -> None:
    code = "import sys, tapestry.cli.main; print({'aiohttp', 'tapestry.controller', 'yaml'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_crd_prints_a_definition_for_every_registered_kind(tapestry: Tapestry) -> None:
    found = {each["metadata"]["name"]: each for each in yaml.safe_load_all(tapestry("crd").output)}
    assert {"ats.demo.wukong.com", "redismigrations.database.cloud.tencent.com"} <= found.keys()
    for definition in found.values():
        assert (definition["apiVersion"], definition["kind"]) == (
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
        )
        (version,) = definition["spec"]["versions"]
        assert version["schema"]["openAPIV3Schema"]["properties"]["spec"]["type"] == "object"
        assert version["subresources"] == {"status": {}}


def test_every_option_stands_for_a_setting() -> None:
    assert {path for path, _ in FLAGS.values()} <= settings(ManagerConfig).keys()


# -- what cannot run says why, in one line


def test_a_controller_that_is_not_there_is_an_error_that_names_those_that_are(
    tapestry: Tapestry, kubeconfig: Path
) -> None:
    line = complaint(tapestry("run", "nobody", "--kubeconfig", kubeconfig))
    problem, _, known = line.partition("; known controllers: ")
    assert problem == "controller 'nobody' does not exist"
    assert {"at", "redismigration"} <= set(known.split(", "))


def test_without_a_cluster_there_is_nothing_to_run_against(tapestry: Tapestry) -> None:
    assert complaint(tapestry("run", "at")).startswith("no kubeconfig: ")


def test_a_context_that_is_not_there_is_an_error(tapestry: Tapestry, kubeconfig: Path) -> None:
    line = complaint(tapestry("hub", "--kubeconfig", kubeconfig, "--context", "elsewhere"))
    assert "elsewhere" in line


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("worker: 3\n", "worker: unknown; did you mean workers?"),
        ("workers: many\n", "workers: expected a whole number, got 'many'"),
        ("- a\n- list\n", "expected a mapping, got ['a', 'list']"),
        ("workers: [1\n", "line 2: "),
        ("metrics: {address: nowhere}\n", "metrics: 'nowhere': expected HOST:PORT"),
        ("controllers: [other]\n", "controllers: ['other'] enables no controller; known: at"),
        ("leaderElection: {enabled: true, deadlineSeconds: 20}\n", "deadline 20 < lease 15 must hold"),
        ("audit: /nowhere/at/all\n", "No such file or directory: '/nowhere/at/all'"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_one_clear_line(
    tapestry: Tapestry, kubeconfig: Path, tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert reason in complaint(tapestry("run", "at", "--kubeconfig", kubeconfig, "--config", file))


def test_a_configuration_file_that_is_not_there_is_one_clear_line(tapestry: Tapestry, tmp_path: Path) -> None:
    line = complaint(tapestry("run", "at", "--config", tmp_path / "missing.yaml"))
    assert line.endswith("missing.yaml: cannot be read: No such file or directory")


def test_an_option_wins_over_the_file(tapestry: Tapestry, kubeconfig: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"kubeconfig: {kubeconfig}\n")
    line = complaint(tapestry("run", "at", "--config", file, "--kubeconfig", tmp_path / "other"))
    assert line.endswith("other: no such file; name a kubeconfig that exists")


def test_an_address_that_is_taken_is_one_clear_line(tapestry: Tapestry, kubeconfig: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        addresses = ("--metrics-bind-address", "", "--health-probe-bind-address", f"127.0.0.1:{port}")
        options = ("--kubeconfig", kubeconfig, *addresses)
        result = tapestry("run", "at", "--log-level", "error", *options)
    assert f"Address already in use (while attempting to bind on address ('127.0.0.1', {port}))" in complaint(result)


@pytest.mark.parametrize("option", ["--bind-address", "--local-address"])
def test_an_api_server_whose_address_is_taken_says_so_in_one_line(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        free = {"--bind-address": "127.0.0.1:0", "--local-address": "127.0.0.1:0", option: address}
        command = [Path(sys.executable).with_name("tapestry"), "apiserver", "--file-rootpath", tmp_path]
        options = ["--authn-allow-localhost", *(part for pair in free.items() for part in pair)]
        result = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert "address already in use" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(tapestry: Tapestry) -> None:
    result = tapestry("statsu")
    assert (result.exit_code, "'status'" in result.output) == (2, True)


def test_the_version_is_an_option_too(tapestry: Tapestry) -> None:
    assert tapestry("--version").output == tapestry("version").output


@pytest.mark.parametrize("command", ["crd", "manifests", "version"])
def test_output_that_nobody_can_take_is_one_clear_line(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", "from tapestry.cli.main import main; main()", command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (1, "Error: [Errno 28] No space left on device\n")


def test_a_world_that_is_not_running_is_not_taken_for_another_cluster(
    tapestry: Tapestry, tmp_path: Path, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though there is a ~/.kube/config: what is meant for a world here is not done to somebody's cluster."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".kube").mkdir()
    kubeconfig.rename(tmp_path / ".kube" / "config")
    (tmp_path / ".tapestry").mkdir()
    (tmp_path / ".tapestry" / "pid").touch()
    said = complaint(tapestry("k", "get", "pods"))
    assert said.startswith(f"the world in {tmp_path / '.tapestry'} is not running; `tapestry up` starts it")
    assert "127.0.0.1:1 cannot be reached" in complaint(tapestry("k", "get", "pods", "--kubeconfig", ".kube/config"))


def test_who_asks_from_nowhere_is_told_where_a_world_is_found(
    tapestry: Tapestry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = complaint(tapestry("status"))
    assert said.startswith("no kubeconfig: ")
    assert said.endswith("or go to the folder of a world that `tapestry up` runs")


@pytest.mark.parametrize("words", [["create", "--user", "ada"], ["list"], ["revoke", "x"]])
def test_a_token_is_of_a_server_that_is_there(
    tapestry: Tapestry, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is worth nothing, and nobody says so."""
    monkeypatch.chdir(tmp_path)
    result = tapestry("token", *words)
    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "'--file-rootpath': Directory 'tapestry-data' does not exist" in result.output


def test_policies_are_not_blamed_for_a_zone_that_was_mistyped(tapestry: Tapestry, kubeconfig: Path) -> None:
    result = tapestry("policies", "--kubeconfig", kubeconfig, "--time-zone", "Mars/X")
    assert result.exit_code == 2
    assert "--time-zone: 'Mars/X' is not a time zone; give an IANA name" in result.output


def test_a_reader_that_has_enough_is_no_reason_to_complain() -> None:
    async def telling() -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(BrokenPipeError):  # which click ends without a word
        run_async(telling())


def test_who_cannot_reach_a_cluster_is_told_who_looks_further(tapestry: Tapestry, kubeconfig: Path) -> None:
    said = complaint(tapestry("status", "--kubeconfig", kubeconfig))
    assert "https://127.0.0.1:1 cannot be reached" in said
    assert said.endswith("; `tapestry doctor` looks further")


def test_an_address_that_is_taken_is_named_with_what_to_do(tapestry: Tapestry) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = tapestry("apiserver", "--backend", "memory", "--bind-address", address, "--local-address", "")
    assert done.exit_code == 1
    assert "address already in use" in done.output
    assert "choose another address" in done.output


def test_an_error_of_the_server_is_told_in_its_own_words() -> None:
    refusal = NotFound(404, "NotFound", 'pods "web" not found', action="GET /api/v1/namespaces/default/pods/web")
    assert error_message(refusal) == 'pods "web" not found (NotFound)'
    misspelt = ApiError(500, "Unknown", ".spec.replica: field not declared in schema", action="PATCH /apis/apps/v1")
    assert error_message(misspelt) == ".spec.replica: field not declared in schema"
