"""`tapestry phases` with the examples, which `make setup` installs."""

import pytest
from click.testing import CliRunner

from redismigration import controller as redismigration
from tapestry.cli import phases
from tapestry.cli.main import main
from tapestry.controller import Manager, Registry


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["phases", *arguments])
    return result.exit_code, result.output


def test_every_machine_is_drawn() -> None:
    code, output = run()
    assert code == 0
    assert output.splitlines()[:4] == [
        "redismigration",
        "created ─▶ Pending",
        " └─▶ Precheck  (60 s, then PreFailed)",
        "     ├─▶ Migrate  (3600 s, then Failed)",
    ]


def test_one_machine_is_drawn_as_mermaid() -> None:
    code, output = run("redismigration", "-o", "mermaid")
    assert code == 0
    assert output.startswith("---\ntitle: redismigration\n---\nstateDiagram-v2\n    [*] --> Pending: created\n")
    assert "    Precheck --> PreFailed: 60 s\n" in output


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("at", "Error: controller 'at' has no phases"),
        ("nobody", "Error: controller 'nobody' does not exist; known controllers: at, redismigration"),
    ],
)
def test_controller_without_machine_is_an_error(name: str, message: str) -> None:
    assert run(name) == (1, f"{message}\n")


def test_setup_that_needs_configuration_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def setup(manager: Manager) -> None:
        manager.options("picky")["url"]

    registry = Registry()
    registry.register("picky", setup)
    monkeypatch.setattr(phases, "load_registry", lambda: registry)
    assert run("picky") == (1, "Error: controller 'picky': its setup failed: KeyError('url'); it may need --config\n")


def test_machine_is_drawn_if_added_after_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    registry.register("late", redismigration.setup, after_sync=True)
    monkeypatch.setattr(phases, "load_registry", lambda: registry)
    assert run("late")[1].startswith("redismigration\ncreated ─▶ Pending\n")
