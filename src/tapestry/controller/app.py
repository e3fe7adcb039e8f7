"""The application: one process, several managers, one orderly end."""

import asyncio
import gc
import os
import secrets
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import uvloop

from tapestry import __version__
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import default_access
from tapestry.controller.config import DEFAULT_NAME, ManagerConfig
from tapestry.controller.manager import Manager
from tapestry.process import logs, metrics, tracing
from tapestry.process.metrics import watch_loop_lag

GC_THRESHOLDS = (50_000, 20, 50)
"""Objects of Kubernetes are trees: collecting them often finds nothing and costs more than decoding them."""


class App:
    """Runs managers until SIGTERM or SIGINT, or until one of them fails."""

    def __init__(self, *managers: Manager) -> None:
        self.managers = managers

    async def run(self) -> None:
        """Run every manager.  The first signal asks for an orderly end, the second ends at once."""
        loop = asyncio.get_running_loop()
        logs.install_level_signals(loop)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        async with asyncio.TaskGroup() as group:
            lag = group.create_task(watch_loop_lag(), name="loop-lag")
            running = []
            for manager in self.managers:
                manager.after_sync(freeze_heap)
                running.append(group.create_task(manager.run(), name=f"manager-{manager.config.name}"))
            await asyncio.wait(running)
            lag.cancel()

    def stop(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        for manager in self.managers:
            manager.stop()


def freeze_heap() -> None:
    """What the first lists brought is here to stay: the collector need not walk it again."""
    gc.collect()
    gc.freeze()


def run_app(start: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `start()` to its end on the fastest event loop there is here."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(start())


def manager_for(config: ManagerConfig, environ: Mapping[str, str], home: Path) -> Manager:
    """A manager for the cluster that the configuration, the environment or the pod we run in names."""
    access = default_access(
        Path(config.kubeconfig) if config.kubeconfig else None, config.context or None, environ=environ, home=home
    )
    return Manager(config, lambda: HttpTransport(access), identity=new_identity())


def new_identity() -> str:
    """A name for this process that no other ever had."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def configure_process(config: ManagerConfig, component: str = "") -> None:
    """Logs, metrics, traces and the collector, as the configuration says; once, before anything runs.

    `component` is what runs here, where the configuration gives the process no name of its own.
    """
    name = component if component and config.name == DEFAULT_NAME else config.name
    gc.set_threshold(*GC_THRESHOLDS)
    metrics.set_build_info(name, __version__)
    logs.configure(config.log.level, config.log.format)
    if config.tracing.endpoint:
        tracing.configure(config.tracing.endpoint, config.tracing.sample_ratio, name)
