"""Commands of the demo; tests/e2e/test_demo.py runs them."""

from pathlib import Path

from smells import command_blocks
from tapestry.local.demo import STEPS

README = Path(__file__).parents[3] / "README.md"


def test_demo_matches_readme() -> None:
    _, _, rest = README.read_text().partition("\n## Example")
    section, _, _ = rest.partition("\n## ")
    typed = [line for block in command_blocks(section) for line in block.script.splitlines()]
    assert typed[0] == "source .venv/bin/activate"
    assert [command for step in STEPS for command in step.commands] == typed[1:]
