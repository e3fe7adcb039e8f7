"""`tapestry apiext`: plain REST API in front of a Kubernetes API."""

import os
from pathlib import Path
from typing import Any

import click

from tapestry.apiext.config import ApiExtConfig
from tapestry.apiext.http import run_apiext
from tapestry.cli.controllers import load_registry
from tapestry.cli.help_text import STOPPED, command
from tapestry.cli.process_runner import (
    CONFIG,
    Flags,
    fault_message,
    settings_from_flags,
    single_exception,
    split_commas,
    with_options,
)
from tapestry.controller.app import run_app
from tapestry.process import logs
from tapestry.process.config import load_config

FLAGS: Flags = {
    "--kubeconfig": ("kubeconfig", "Kubeconfig file. [default: KUBECONFIG, ~/.kube/config, or in-cluster]"),
    "--context": ("context", "Context of the kubeconfig. [default: its current context]"),
    "--listen": ("listen", "Address to serve on. [default: 127.0.0.1:6090]"),
    "--kinds": ("kinds", "Comma-separated names or globs of kinds to serve: `users,*.example.com`. [default: *]"),
    "--tls-cert-file": ("tls.certificate", "PEM file of the server certificate; enables HTTPS."),
    "--tls-private-key-file": ("tls.key", "PEM file of the private key of the server certificate."),
    "--allow-origin": ("allowOrigins", "Origin whose web pages may call: https://example.com."),
    "--own-identity": ("ownIdentity", "Serve local callers with the credentials of the kubeconfig."),
    "--log-level": ("logLevel", "Log level: debug, info, warning or error."),
}


@command("tapestry apiext --kubeconfig kubeconfig", "tapestry apiext --kinds 'users,*.example.com'", zero=STOPPED)
@CONFIG
@with_options(FLAGS, {"allowOrigins": {"multiple": True}, "ownIdentity": {"is_flag": True, "default": None}})
def apiext(config: Path | None, **flags: Any) -> None:
    """Serve a plain REST API for the kinds of a Kubernetes API, with the credentials of each caller."""
    given = settings_from_flags(FLAGS, flags)
    given["kinds"] = split_commas(given["kinds"])
    try:
        settings = load_config(ApiExtConfig, file=config, environ=os.environ, flags=given)
        logs.configure(settings.log_level, settings.log_format)
        run_app(lambda: run_apiext(settings, os.environ, Path.home(), load_registry().kinds))
    except (ValueError, OSError, ExceptionGroup) as error:
        fault = single_exception(error)
        if not isinstance(fault, ValueError | OSError):
            raise
        raise click.ClickException(fault_message(fault)) from error
