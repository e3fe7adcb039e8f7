"""`tapestry run`, `tapestry hub` and `tapestry crd`: controllers of installed packages and their kinds."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from tapestry.apiext.config import ServerConfig
from tapestry.apiext.http import ApiExtServer
from tapestry.apis.clusterbindings import CLUSTER_BINDING
from tapestry.apis.policies import POLICY
from tapestry.cli.help_text import STOPPED, command
from tapestry.cli.process_runner import Flags, run_process, with_options, with_process_flags
from tapestry.controller.app import App, configured_access, manager_for
from tapestry.controller.config import ManagerConfig
from tapestry.controller.registry import Registry
from tapestry.kube.crds import Kind
from tapestry.kube.crds import crd as definition_of


def load_registry() -> Registry:
    registry = Registry()
    registry.load_entry_points()
    return registry


def controller_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in load_registry().names() if name.startswith(incomplete)]


@command("tapestry run at --kubeconfig kubeconfig", "tapestry run at --config at.yaml", zero=STOPPED)
@click.argument("name", shell_complete=controller_names)
@with_process_flags
def run(name: str, **flags: Any) -> None:
    """Run the controller NAME until stopped."""
    run_process(ManagerConfig, flags, {}, lambda config: run_controllers(config, name))


class HubConfig(ManagerConfig, frozen=True):
    """Configuration of `tapestry hub`."""

    apiext: ServerConfig | None = None
    """Plain REST API to serve beside the controllers.  Without this section, it is not served."""


HUB_FLAGS: Flags = {"--apiext-listen": ("apiext.listen", "Address to serve the plain REST API on. [default: none]")}


@command(
    "tapestry hub --config hub.yaml --leader-elect",
    "tapestry hub --kubeconfig kubeconfig --apiext-listen 127.0.0.1:6090",
    zero=STOPPED,
)
@with_options(HUB_FLAGS)
@with_process_flags
def hub(**flags: Any) -> None:
    """Run every installed controller that the configuration enables.

    With --apiext-listen, also serve the plain REST API of `tapestry apiext`, in every replica.
    """
    run_process(HubConfig, flags, HUB_FLAGS, lambda config: run_controllers(config, None, config.apiext))


async def run_controllers(config: ManagerConfig, name: str | None, apiext: ServerConfig | None = None) -> None:
    """Run the controller `name`, or all that are enabled, and the plain REST API if it is configured."""
    environ, home, registry = os.environ, Path.home(), load_registry()
    manager = manager_for(config, environ, home)
    registry.add_to_manager(manager, only=name)
    manager.setup()
    servers = [] if apiext is None else [ApiExtServer(apiext, configured_access(config, environ, home), registry.kinds)]
    await App(manager, *servers).run()


@command("tapestry crd | kubectl apply -f -", "tapestry crd At", "tapestry crd --output manifests/crds")
@click.argument("names", nargs=-1, metavar="[KIND]...")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path, file_okay=False), help="Folder to write a file per kind to."
)
def crd(names: tuple[str, ...], output: Path | None) -> None:
    """Print the CustomResourceDefinitions of Tapestry's kinds and of the kinds of installed controllers.

    KIND selects some of them, by kind or plural.
    """
    try:
        files = crd_files(selected_kinds([*load_registry().kinds, CLUSTER_BINDING, POLICY], names))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if output is None:
        click.echo("".join(files.values()), nl=False)
        return
    output.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (output / name).write_text(text)
        click.echo(output / name)


def selected_kinds(kinds: Sequence[Kind[Any]], names: Sequence[str]) -> list[Kind[Any]]:
    """Return the kinds whose kind, plural or full name is in `names`, or all.  Raise ValueError for unknown names."""
    found: dict[str, list[Kind[Any]]] = {}
    for kind in kinds:
        for name in {kind.resource.kind.lower(), kind.resource.plural, kind.resource.name}:
            found.setdefault(name, []).append(kind)
    for name in names:
        if name.lower() not in found:
            known = ", ".join(sorted({kind.resource.kind for kind in kinds}))
            raise ValueError(f"kind {name!r} is not registered; known kinds: {known}")
    return [kind for name in names for kind in found[name.lower()]] if names else list(kinds)


def crd_files(kinds: Iterable[Kind[Any]]) -> dict[str, str]:
    """Return the CustomResourceDefinitions of the kinds, each with all its versions, by controller-gen's file name."""
    versions: dict[str, list[Kind[Any]]] = {}
    for kind in kinds:
        versions.setdefault(f"{kind.resource.group}_{kind.resource.plural}.yaml", []).append(kind)
    return {
        name: yaml.safe_dump(definition_of(*each), sort_keys=False, allow_unicode=True, explicit_start=True)
        for name, each in versions.items()
    }
