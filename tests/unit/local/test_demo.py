"""What the demo types; that it plays is for tests/e2e/test_demo.py."""

from pathlib import Path

from smells import command_blocks
from tapestry.local.demo import STEPS

README = Path(__file__).parents[3] / "README.md"


def test_demo_matches_readme() -> None:
    _, _, told = README.read_text().partition("\n## A story")
    story, _, _ = told.partition("\n## ")
    typed = [line for block in command_blocks(story) for line in block.script.splitlines()]
    assert typed[0] == "source .venv/bin/activate"
    assert [command for scene in STEPS for command in scene.commands] == typed[1:]
