"""Programs that `tapestry apiserver envtest-assets` writes: `python -m tapestry.cli.envtest NAME FLAGS...`."""

import sys

import click

from tapestry import __version__
from tapestry.local.envtest import (
    IGNORED_FLAGS,
    SUPPORTED_FLAGS,
    data_folder,
    health_server,
    parse_flags,
    server_config,
)
from tapestry.process import logs

log = logs.logger(__name__)


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
