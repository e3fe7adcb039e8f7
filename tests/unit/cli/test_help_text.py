"""`--help` of every command."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tapestry.cli.help_text import INTERRUPTED, USAGE_ERROR
from tapestry.cli.main import GROUPS, main, plugin

KUBECONFIG = """
current-context: c
clusters: [{name: c, cluster: {server: "http://127.0.0.1:%d"}}]
users: []
contexts: [{name: c, context: {cluster: c}}]
"""


def commands(command: click.Command = main, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield every executable command by its words."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*words, name))
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield " ".join(words), command


ALL = dict(commands())


def options(command: click.Command) -> dict[str, click.Option]:
    return {name: each for each in command.params if isinstance(each, click.Option) for name in each.opts}


def examples(command: click.Command) -> list[str]:
    _, _, rest = (command.epilog or "").partition("Examples:\n")
    return [line.strip() for line in rest.partition("\n\n")[0].splitlines()]


def test_help_groups_commands() -> None:
    help_output = CliRunner().invoke(main, ["--help"]).output
    positions = [help_output.index(f"\n{title}:\n") for title in GROUPS]
    assert positions == sorted(positions)
    assert help_output.index("\n  up ") < help_output.index("Physical clusters") < help_output.index("\n  join ")
    assert "Exit codes: 0" in help_output


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_help_examples_and_exit_codes(name: str) -> None:
    command = ALL[name]
    assert command.help
    assert [opts for opts, each in options(command).items() if not each.help] == []
    assert examples(command)
    assert f"{INTERRUPTED}, " in (command.epilog or "").partition("Exit codes: 0, ")[2]


@pytest.mark.parametrize("name", ALL)
def test_every_example_parses(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("backup.tar").touch()
    Path("tapestry-data").mkdir()
    for example in examples(ALL[name]):
        parts = [part.strip() for part in re.split(r"[|>]|<\(|\)", example)]
        typed = [shlex.split(part) for part in parts if part.startswith("tapestry ")]
        assert typed, example
        for words in typed:
            command, rest = resolve(main, words[1:])
            command.make_context(name, rest)


def resolve(command: click.Command, words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the called command and its remaining words."""
    if isinstance(command, click.Group) and words:
        found = command.get_command(click.Context(command), words[0])
        if found is not None:
            return resolve(found, words[1:])
    return command, words


def test_same_options_have_same_names() -> None:
    short = {"--kubeconfig": None, "--namespace": "-n", "--output": "-o", "--all-namespaces": "-A"}
    for name, command in ALL.items():
        found = options(command)
        for long, letter in short.items():
            if long in found and letter:
                assert found.get(letter) is found[long], name
        assert ("--kubeconfig" in found) == ("--context" in found), name


@pytest.mark.parametrize(
    "name", ["status", "nodes", "pods", "policies", "tree", "top", "explain pod", "doctor", "repair"]
)
def test_query_commands_take_same_optional_options(name: str) -> None:
    assert {"--kubeconfig", "--context", "--output"} <= options(ALL[name]).keys()
    assert not [each for each in options(ALL[name]).values() if each.required]


def test_incompatible_options_are_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG % 1)
    monkeypatch.setenv("KUBECONFIG", str(file))
    done = CliRunner().invoke(main, ["top", "nodes", "-n", "team-a"])
    assert done.exit_code == USAGE_ERROR
    assert "-n and -A select pods; nodes have no namespace" in done.output


@pytest.mark.parametrize("words", [["version"], ["--help"], ["completion", "--help"], ["dance"]])
def test_fast_commands_import_nothing_heavy(words: list[str]) -> None:
    heavy = {"aiohttp", "asyncio", "cryptography", "msgspec", "rich", "tapestry.client", "tapestry.kube", "yaml"}
    code = (
        "import sys\nfrom tapestry.cli.main import main\n"
        f"try:\n    main(sys.argv[1:])\nfinally:\n    print('imported', {heavy} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("imported set()\n"), done.stdout + done.stderr


def test_plugin_help_names_kubectl_tapestry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl-tapestry", "status", "--help"])
    with pytest.raises(SystemExit) as ended:
        plugin()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: kubectl tapestry status [OPTIONS]\n")


def test_ctrl_c_exits_with_130(tmp_path: Path) -> None:
    """Interrupt a command that waits for a server that accepts connections but never responds."""
    code = (
        "import os, signal, socket, sys, threading\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "def interrupt():\n    server.accept()\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt, daemon=True).start()\n"
        "open('kubeconfig', 'w').write(sys.argv[1] % server.getsockname()[1])\n"
        "from tapestry.cli.main import main\nmain(['status', '--kubeconfig', 'kubeconfig'])\n"
    )
    command = [sys.executable, "-c", code, KUBECONFIG]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (INTERRUPTED, "", "")
    assert INTERRUPTED == 128 + signal.SIGINT
