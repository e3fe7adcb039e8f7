"""The application: a process that runs several managers and shuts them down gracefully."""

import asyncio
import gc
import os
import secrets
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol

import uvloop

from tapestry import __version__
from tapestry.client.access import Access
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import default_access
from tapestry.controller.config import DEFAULT_NAME, ManagerConfig
from tapestry.controller.manager import Manager
from tapestry.process import logs, metrics, tracing
from tapestry.process.metrics import watch_loop_lag

GC_THRESHOLDS = (50_000, 20, 50)
"""Kubernetes objects are trees without cycles: frequent collections find nothing and cost more than decoding."""


class Runnable(Protocol):
    """A part of a process that an App runs: a Manager, a server, or a manager of another framework."""

    @property
    def name(self) -> str: ...

    async def run(self) -> None:
        """Run until stopped.  An exception stops the App, and so the other parts."""

    def stop(self) -> None:
        """Start a graceful shutdown, after which `run` returns.  May be called again."""


class App:
    """Run managers until SIGTERM or SIGINT, or until one of them fails."""

    def __init__(self, *managers: Runnable) -> None:
        self.managers = managers

    async def run(self) -> None:
        """Run every manager.  The first signal starts a graceful shutdown, the second one kills the process."""
        loop = asyncio.get_running_loop()
        logs.install_level_signals(loop)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        async with asyncio.TaskGroup() as group:
            lag = group.create_task(watch_loop_lag(), name="loop-lag")
            running = []
            for manager in self.managers:
                if isinstance(manager, Manager):  # only its caches hold many objects for long
                    manager.after_sync(freeze_heap)
                running.append(group.create_task(manager.run(), name=f"manager-{manager.name}"))
            await asyncio.wait(running)
            lag.cancel()

    def stop(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        for manager in self.managers:
            manager.stop()


def freeze_heap() -> None:
    """Exclude the objects of the initial lists from garbage collection: they stay for the life of the process."""
    gc.collect()
    gc.freeze()


def run_app(start: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `start()` to completion on uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(start())


def manager_for(config: ManagerConfig, environ: Mapping[str, str], home: Path) -> Manager:
    """Return a manager for the configured cluster."""
    access = configured_access(config, environ, home)
    return Manager(config, lambda: HttpTransport(access), identity=new_identity())


def configured_access(config: ManagerConfig, environ: Mapping[str, str], home: Path) -> Access:
    """Return access to the cluster in the configuration, the environment or the pod's service account."""
    kubeconfig = Path(config.kubeconfig) if config.kubeconfig else None
    return default_access(kubeconfig, config.context or None, environ=environ, home=home)


def new_identity() -> str:
    """Return a process identity that is unique across restarts."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def configure_process(config: ManagerConfig, component: str = "") -> None:
    """Configure logs, metrics, tracing and the garbage collector.  Call once, before anything runs.

    `component` is the default name of the process.
    """
    name = component if component and config.name == DEFAULT_NAME else config.name
    gc.set_threshold(*GC_THRESHOLDS)
    metrics.set_build_info(name, __version__)
    logs.configure(config.log.level, config.log.format)
    if config.tracing.endpoint:
        tracing.configure(config.tracing.endpoint, config.tracing.sample_ratio, name)
