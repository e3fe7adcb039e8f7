"""`tapestry new controller`: a folder with a working controller to start from."""

import keyword
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from string import Template

import click
import yaml

from tapestry.cli.help_text import command

NAME = re.compile("[a-z][a-z0-9-]{0,38}[a-z0-9]")
FOLDERS = ("tests", "deploy", "wheels")
DNS_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z]([a-z0-9-]*[a-z0-9])?)+")
MAX_GROUP_LENGTH = 150


@click.group("new")
def new() -> None:
    """Create the files of a new controller."""


@command(
    "tapestry new controller backup --group storage.example.com",
    "tapestry new controller proxy --plural proxies",
    parent=new,
    name="controller",
)
@click.argument("name")
@click.option("--group", default="example.com", show_default=True, help="API group of the new kind: a DNS domain.")
@click.option("--plural", help="Plural of the kind in lower case. [default: NAME with an s]")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Parent directory of the new folder. [default: the working directory]",
)
def controller(name: str, group: str, plural: str | None, directory: Path) -> None:
    """Create the folder NAME: a kind, its reconciler, tests, RBAC, a Deployment and a README.

    Its tests pass unchanged. Existing folders are not overwritten.
    """
    values = template_values(name, group, plural or f"{name.replace('-', '')}s")
    folder = directory / name
    if folder.exists():
        raise click.ClickException(f"{folder} exists; choose another name, or delete it")
    if find_spec(values["package"]) is not None:
        raise click.ClickException(f"a Python module {values['package']!r} is installed; choose another name")
    texts = dict(rendered(files("tapestry.cli") / "templates" / "controller", Path(), values))
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")
    click.echo(f"Created {folder} with {len(texts)} files. Test it:\n\n    cd {folder} && python -m pytest")


def template_values(name: str, group: str, plural: str) -> dict[str, str]:
    """Return the values of the placeholders.  Raise UsageError for names that Kubernetes or Python would reject."""
    package = name.replace("-", "_")
    if not NAME.fullmatch(name) or "--" in name:
        raise click.UsageError(f"NAME: {name!r} is not a name: use 2 to 40 lower-case letters, digits and dashes")
    if keyword.iskeyword(package) or name in FOLDERS or not isinstance(yaml.safe_load(name), str):
        raise click.UsageError(f"NAME: {name!r} means something else in Python, YAML or the new folder; choose another")
    if not DNS_DOMAIN.fullmatch(group) or len(group) > MAX_GROUP_LENGTH:
        raise click.UsageError(f"--group: {group!r} is not a DNS domain like example.com")
    kind = "".join(word.capitalize() for word in name.split("-"))
    if not re.fullmatch("[a-z][a-z0-9]{0,62}", plural) or not isinstance(yaml.safe_load(plural), str):
        raise click.UsageError(f"--plural: {plural!r} is not a plural: use lower-case letters and digits")
    return {
        "name": name,
        "package": package,
        "kind": kind,
        "plural": plural,
        "group": group,
        "constant": f"{package.upper()}_KIND",
        "resource": f"{package.upper()}_RESOURCE",
    }


def rendered(folder: Traversable, path: Path, values: dict[str, str]) -> list[tuple[Path, str]]:
    """Return the path and text of each file of a template.  The folder `package` has the name of the package."""
    found = []
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        name = values["package"] if entry.name == "package" else entry.name.removesuffix(".tmpl")
        if entry.is_dir():
            found += rendered(entry, path / name, values)
        else:
            found.append((path / name, Template(entry.read_text("utf-8")).substitute(values)))
    return found
