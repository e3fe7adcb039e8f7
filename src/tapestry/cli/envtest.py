"""`tapestry apiserver envtest-assets`, and the programs it writes (`python -m tapestry.cli.envtest`)."""

import os
import shutil
import sys
from pathlib import Path

import click

from tapestry import __version__
from tapestry.cli.help_text import help_epilog
from tapestry.local.envtest import (
    IGNORED_FLAGS,
    SUPPORTED_FLAGS,
    data_folder,
    health_server,
    parse_flags,
    server_config,
    write_assets,
)
from tapestry.local.kubernetes import assets_folder
from tapestry.process import logs

log = logs.logger(__name__)


@click.command("envtest-assets", epilog=help_epilog("tapestry apiserver envtest-assets ./bin"))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def envtest_assets(folder: Path) -> None:
    """Write programs into FOLDER that start this server for the tests of kubebuilder projects (KUBEBUILDER_ASSETS)."""
    try:
        kubectl = shutil.which("kubectl") or shutil.which("kubectl", path=assets_folder(os.environ))
        written = write_assets(folder.absolute(), Path(kubectl) if kubectl else None)
    except OSError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{folder}: {', '.join(each.name for each in written)}")
    click.echo(f"export KUBEBUILDER_ASSETS={folder.absolute()}")


def main(name: str, *arguments: str) -> None:
    """Run as the program of that name."""
    flags = parse_flags(arguments, (*SUPPORTED_FLAGS, *IGNORED_FLAGS))
    if "help" in flags.values:
        click.echo(f"{name} of tapestry {__version__} supports:")
        click.echo("\n".join(f"      --{each} string" for each in SUPPORTED_FLAGS if name == "kube-apiserver"))
    elif "version" in flags.values:
        click.echo(f"{name} of tapestry {__version__}")
    elif name == "etcd":
        health_server(flags).serve_forever()
    else:
        from tapestry.cli.apiserver import run

        logs.configure()
        if flags.unknown:
            log.warning("unsupported kube-apiserver flags ignored", flags=list(flags.unknown))
        try:
            run(server_config(flags, data_folder(flags.get("etcd-servers"))))
        except click.ClickException as error:
            error.show()
            raise SystemExit(error.exit_code) from error


if __name__ == "__main__":
    main(*sys.argv[1:])
