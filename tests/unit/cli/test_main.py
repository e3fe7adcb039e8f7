"""Command line: the table of commands, and errors as one line."""

import dataclasses
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
from tapestry.apis.clusterbindings import CLUSTER_BINDING
from tapestry.cli import controllers
from tapestry.cli.cluster_access import error_message, run_async
from tapestry.cli.controllers import crd_files
from tapestry.cli.main import COMMANDS, main
from tapestry.cli.process_runner import FLAGS
from tapestry.controller.config import ManagerConfig
from tapestry.kube.errors import ApiError, NotFound
from tapestry.process.config import settings

Tapestry = Callable[..., Result]
EXAMPLES = Path(__file__).parents[3] / "examples"
OLD_BINDINGS = dataclasses.replace(CLUSTER_BINDING.resource, version="v1alpha1")

KUBECONFIG = """
current-context: here
clusters: [{name: here, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: me, user: {token: secret}}]
contexts: [{name: here, context: {cluster: here, user: me}}]
"""


@pytest.fixture
def tapestry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Tapestry]:
    """Run the command line with an empty home, and restore process-wide state."""
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


def error_line(result: Result) -> str:
    """Return the single line that a failed command printed."""
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    (line,) = result.output.splitlines()
    return line.removeprefix("Error: ")


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_every_command_with_summary(tapestry: Tapestry, option: str) -> None:
    result = tapestry(option)
    assert result.exit_code == 0
    for name, entry in COMMANDS.items():
        assert f"{name} " in result.output
        assert entry.summary in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_exists_with_help(tapestry: Tapestry, name: str) -> None:
    assert isinstance(main.get_command(click.Context(main), name), click.Command)
    result = tapestry(name, "--help")
    assert result.exit_code == 0
    assert f"{name} [OPTIONS]" in result.output


def test_version_is_printed(tapestry: Tapestry) -> None:
    assert tapestry("version").output == f"tapestry {__version__}\n"


def test_unknown_command_is_an_error(tapestry: Tapestry) -> None:
    result = tapestry("dance")
    assert result.exit_code == 2
    assert "No such command 'dance'" in result.output


def test_only_called_command_is_imported() -> None:
    code = "import sys, tapestry.cli.main; print({'aiohttp', 'tapestry.controller', 'yaml'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


KINDS = {
    "demo.wukong.com": "ats",
    "database.cloud.tencent.com": "redismigrations",
    "cloud.tencent.com": "clusterbindings resourceleasingpolicies",
}
NAMES = {f"{plural}.{group}" for group, plurals in KINDS.items() for plural in plurals.split()}


def test_crd_prints_definition_of_every_registered_kind(tapestry: Tapestry) -> None:
    found = {each["metadata"]["name"]: each for each in yaml.safe_load_all(tapestry("crd").output)}
    assert found.keys() >= NAMES
    for definition in found.values():
        assert (definition["apiVersion"], definition["kind"]) == (
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
        )
        (version,) = definition["spec"]["versions"]
        assert version["schema"]["openAPIV3Schema"]["properties"]["spec"]["type"] == "object"
        assert version["subresources"] == {"status": {}}


def test_crd_writes_the_same_files_on_each_call(tapestry: Tapestry, tmp_path: Path) -> None:
    folder = tmp_path / "manifests" / "crds"
    printed = tapestry("crd", "--output", folder).output
    files = {file.name: file.read_text() for file in folder.iterdir()}
    assert files.keys() >= {f"{group}_{plural}.yaml" for group, each in KINDS.items() for plural in each.split()}
    assert sorted(printed.split()) == sorted(str(folder / name) for name in files)
    assert tapestry("crd").output == "".join(files[Path(line).name] for line in printed.split())
    tapestry("crd", "--output", folder)
    assert {file.name: file.read_text() for file in folder.iterdir()} == files


@pytest.mark.parametrize("name", ["At", "at", "ats", "ats.demo.wukong.com"])
def test_crd_selects_kinds_by_name(tapestry: Tapestry, name: str) -> None:
    assert yaml.safe_load(tapestry("crd", name).output)["metadata"]["name"] == "ats.demo.wukong.com"


def test_crd_error_names_known_kinds(tapestry: Tapestry) -> None:
    line = error_line(tapestry("crd", "Nothing"))
    assert line.startswith("kind 'Nothing' is not registered; known kinds: At, ClusterBinding")


def test_versions_of_a_kind_are_one_definition() -> None:
    old = dataclasses.replace(CLUSTER_BINDING, resource=OLD_BINDINGS, storage=False)
    ((name, text),) = crd_files([CLUSTER_BINDING, old]).items()
    assert name == "cloud.tencent.com_clusterbindings.yaml"
    assert [each["name"] for each in yaml.safe_load(text)["spec"]["versions"]] == ["v1beta1", "v1alpha1"]


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ((), "info"),
        (("--zap-log-level=4",), "debug"),
        (("--zap-log-level", "error"), "error"),
        ((f"--zap-log-level={'9' * 5000}",), "debug"),
        (("--zap-log-level=panic",), "error"),
        (("--zap-log-level=4", "--log-level=warning"), "warning"),
    ],
)
def test_zap_log_level_sets_the_log_level(
    tapestry: Tapestry, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], level: str
) -> None:
    found = run_config(tapestry, monkeypatch, "run", "redismigration", "--kubeconfig", kubeconfig, *arguments)
    assert found.log.level == level


@pytest.mark.parametrize("level", ["0", "00", "-1", "loud", "1.5"])
def test_invalid_zap_log_level_is_a_usage_error(tapestry: Tapestry, level: str) -> None:
    result = tapestry("hub", f"--zap-log-level={level}")
    assert result.exit_code == 2
    assert f"'{level}' is neither a number above 0 nor one of debug, info, error, panic" in result.output


@pytest.mark.parametrize(
    ("arguments", "name", "level"),
    [
        (("run", "at", "-c", EXAMPLES / "at" / "config.yaml"), "at", "info"),
        (("hub", "--config", EXAMPLES / "hub.yaml"), "hub", "info"),
        (
            ("run", "redismigration", "--zap-log-level=4", f"--config={EXAMPLES}/redismigration/config.yaml"),
            "redismigration",
            "debug",
        ),
    ],
)
def test_command_lines_of_kubecontroller_are_accepted(
    tapestry: Tapestry, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], name: str, level: str
) -> None:
    """Those of the requirement document, with the names of its example files replaced by ours."""
    found = run_config(tapestry, monkeypatch, *arguments)
    assert (found.name, found.log.level, found.leader_election.enabled) == (name, level, True)


def run_config(tapestry: Tapestry, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> ManagerConfig:
    """Return the configuration with which a command would run controllers."""
    found: list[ManagerConfig] = []

    async def run_controllers(config: ManagerConfig, *_: object) -> None:
        found.append(config)

    monkeypatch.setattr(controllers, "run_controllers", run_controllers)
    result = tapestry(*arguments)
    assert result.exit_code == 0, result.output
    return found[0]


def test_hub_serves_the_rest_api_only_if_configured(tapestry: Tapestry, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_config(tapestry, monkeypatch, "hub").apiext is None
    assert run_config(tapestry, monkeypatch, "hub", "--apiext-listen", "127.0.0.1:1").apiext.listen == "127.0.0.1:1"
    result = tapestry("hub", "--apiext-listen", "0.0.0.0:6090")
    assert result.exit_code == 1
    assert "apiext: listen: 0.0.0.0:6090 is not on loopback, and tokens need TLS" in result.output


def test_every_option_sets_a_setting() -> None:
    assert {path for path, _ in FLAGS.values()} <= settings(ManagerConfig).keys()


# -- startup errors are one line


def test_unknown_controller_error_names_known_ones(tapestry: Tapestry, kubeconfig: Path) -> None:
    line = error_line(tapestry("run", "nobody", "--kubeconfig", kubeconfig))
    problem, _, known = line.partition("; known controllers: ")
    assert problem == "controller 'nobody' does not exist"
    assert {"at", "redismigration"} <= set(known.split(", "))


def test_run_fails_without_cluster(tapestry: Tapestry) -> None:
    assert error_line(tapestry("run", "at")).startswith("no kubeconfig: ")


def test_unknown_context_is_an_error(tapestry: Tapestry, kubeconfig: Path) -> None:
    line = error_line(tapestry("hub", "--kubeconfig", kubeconfig, "--context", "elsewhere"))
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
def test_invalid_configuration_is_one_line_error(
    tapestry: Tapestry, kubeconfig: Path, tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert reason in error_line(tapestry("run", "at", "--kubeconfig", kubeconfig, "--config", file))


def test_missing_configuration_file_is_one_line_error(tapestry: Tapestry, tmp_path: Path) -> None:
    line = error_line(tapestry("run", "at", "--config", tmp_path / "missing.yaml"))
    assert line.endswith("missing.yaml: cannot be read: No such file or directory")


def test_option_overrides_file(tapestry: Tapestry, kubeconfig: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"kubeconfig: {kubeconfig}\n")
    line = error_line(tapestry("run", "at", "--config", file, "--kubeconfig", tmp_path / "other"))
    assert line.endswith("other: no such file; name a kubeconfig that exists")


def test_used_address_is_one_line_error(tapestry: Tapestry, kubeconfig: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        addresses = ("--metrics-bind-address", "", "--health-probe-bind-address", f"127.0.0.1:{port}")
        options = ("--kubeconfig", kubeconfig, *addresses)
        result = tapestry("run", "at", "--log-level", "error", *options)
    assert f"Address already in use (while attempting to bind on address ('127.0.0.1', {port}))" in error_line(result)


@pytest.mark.parametrize("option", ["--bind-address", "--local-address"])
def test_api_server_with_used_address_prints_one_line(tmp_path: Path, option: str) -> None:
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


def test_misspelled_command_gets_suggestion(tapestry: Tapestry) -> None:
    result = tapestry("statsu")
    assert (result.exit_code, "'status'" in result.output) == (2, True)


def test_version_is_also_an_option(tapestry: Tapestry) -> None:
    assert tapestry("--version").output == tapestry("version").output


@pytest.mark.parametrize("command", ["crd", "manifests --image mine:1", "version"])
def test_unwritable_output_is_one_line_error(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", "from tapestry.cli.main import main; main()", *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (1, "Error: [Errno 28] No space left on device\n")


def test_stopped_world_is_not_replaced_by_another_cluster(
    tapestry: Tapestry, tmp_path: Path, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if ~/.kube/config exists, no other cluster is used."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".kube").mkdir()
    kubeconfig.rename(tmp_path / ".kube" / "config")
    (tmp_path / ".tapestry").mkdir()
    (tmp_path / ".tapestry" / "pid").touch()
    error = error_line(tapestry("k", "get", "pods"))
    assert error.startswith(f"the world in {tmp_path / '.tapestry'} is not running; `tapestry up` starts it")
    assert "127.0.0.1:1 cannot be reached" in error_line(tapestry("k", "get", "pods", "--kubeconfig", ".kube/config"))


def test_missing_kubeconfig_error_mentions_world(
    tapestry: Tapestry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = error_line(tapestry("status"))
    assert error.startswith("no kubeconfig: ")
    assert error.endswith("or go to the folder of a world that `tapestry up` runs")


@pytest.mark.parametrize("words", [["create", "--user", "ada"], ["list"], ["revoke", "x"]])
def test_token_needs_existing_server_folder(
    tapestry: Tapestry, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the token would be useless, without a message."""
    monkeypatch.chdir(tmp_path)
    result = tapestry("token", *words)
    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "'--file-rootpath': Directory 'tapestry-data' does not exist" in result.output


def test_unknown_time_zone_is_usage_error(tapestry: Tapestry, kubeconfig: Path) -> None:
    result = tapestry("policies", "--kubeconfig", kubeconfig, "--time-zone", "Mars/X")
    assert result.exit_code == 2
    assert "--time-zone: 'Mars/X' is not a time zone; give an IANA name" in result.output


def test_closed_pipe_is_no_error() -> None:
    async def write() -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(BrokenPipeError):  # click exits silently
        run_async(write())


def test_connection_error_refers_to_doctor(tapestry: Tapestry, kubeconfig: Path) -> None:
    error = error_line(tapestry("status", "--kubeconfig", kubeconfig))
    assert "https://127.0.0.1:1 cannot be reached" in error
    assert error.endswith("; `tapestry doctor` checks the connection")


def test_used_address_error_gives_advice(tapestry: Tapestry) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = tapestry("apiserver", "--backend", "memory", "--bind-address", address, "--local-address", "")
    assert done.exit_code == 1
    assert "address already in use" in done.output
    assert "choose another address" in done.output


def test_server_error_keeps_its_own_message() -> None:
    refusal = NotFound(404, "NotFound", 'pods "web" not found', action="GET /api/v1/namespaces/default/pods/web")
    assert error_message(refusal) == 'pods "web" not found (NotFound)'
    misspelt = ApiError(500, "Unknown", ".spec.replica: field not declared in schema", action="PATCH /apis/apps/v1")
    assert error_message(misspelt) == ".spec.replica: field not declared in schema"
