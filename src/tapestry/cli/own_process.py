"""The process of a single plane. Another process starts it, with the settings of the service and a file of its own."""

import gc
import socket
import sys
from pathlib import Path

import msgspec
import uvloop

from tapestry.cli.planes import admission_of, mounted_routes
from tapestry.controller.app import GC_THRESHOLDS
from tapestry.planes.app import run_planes
from tapestry.planes.own_processes import OwnProcessSettings, ParentListener
from tapestry.process import logs
from tapestry.process.system import return_large_blocks_to_system, stop_event
from tapestry.tenants.app import run_tenants
from tapestry.vclusters.config import ServiceConfig


async def hold_plane(settings: OwnProcessSettings, service: ServiceConfig) -> None:
    """Hold the plane until SIGTERM, or until the parent ends. Its connections come from standard input."""
    stopping, config = stop_event(), settings.planes
    parent = ParentListener(settings.port, Path(settings.pki), socket.socket(fileno=sys.stdin.fileno()), stopping.set)
    admission = admission_of(config, service)
    async with run_planes(config, mounted_routes, extension=run_tenants, admission=admission, parent=parent):
        await stopping.wait()


def run_own_process(service: str, file: str) -> None:
    settings = msgspec.json.decode(Path(file).read_bytes(), type=OwnProcessSettings)
    logs.configure(settings.planes.log_level, settings.planes.log_format)
    gc.set_threshold(*GC_THRESHOLDS)
    return_large_blocks_to_system()
    uvloop.run(hold_plane(settings, msgspec.json.decode(service, type=ServiceConfig)))


if __name__ == "__main__":
    run_own_process(*sys.argv[1:])
