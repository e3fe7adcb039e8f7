import asyncio
import gc
import logging
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvloop
import yaml
from prometheus_client import REGISTRY

from tapestry import __version__
from tapestry.client.transport import Request
from tapestry.controller.app import App, configure_process, manager_for, new_identity, run_app
from tapestry.controller.config import LeaderElection, Logs, ManagerConfig, Metrics, Probes, Tracing
from tapestry.controller.manager import Manager
from tapestry.controller.testing.api import InProcessApi
from tapestry.kube.errors import TransportError
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import CONFIGMAPS, LEASES
from tapestry.process import tracing

QUIET = {"metrics": Metrics(address=""), "probes": Probes(address="")}


@pytest.fixture(autouse=True)
def process() -> Iterator[None]:
    """Restore process-wide state."""
    root, thresholds = logging.getLogger(), gc.get_threshold()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


class Observed(Manager):
    """A manager that lets a test wait until it is stopped."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stop_requested = asyncio.Event()

    def stop(self) -> None:
        super().stop()
        self.stop_requested.set()


class OneReconcile:
    """A manager with one controller, and the outcome of its only reconcile."""

    def __init__(self, api: InProcessApi, name: str, **settings: Any) -> None:
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self.outcome = ""
        config = ManagerConfig(name=name, **{**QUIET, **settings})
        self.manager = Observed(config, api.connect, identity=name).register("only", self.setup)

    def setup(self, manager: Manager) -> None:
        controller = manager.controller("only", self.reconcile)
        controller.queue.add("key")

    async def reconcile(self, key: str) -> None:
        self.started.set()
        try:
            await self.go_on.wait()
            self.outcome = "finished"
        except asyncio.CancelledError:
            self.outcome = "cancelled"
            raise


@pytest.fixture
def api() -> InProcessApi:
    return InProcessApi([CONFIGMAPS, LEASES], now=lambda: datetime.now(UTC))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_stops_managers_after_their_work(api: InProcessApi, number: signal.Signals) -> None:
    election = LeaderElection(enabled=True)
    first, second = OneReconcile(api, "first", leader_election=election), OneReconcile(api, "second")
    app = App(first.manager, second.manager)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(app.run())
        await first.started.wait()
        await second.started.wait()
        os.kill(os.getpid(), number)
        for each in (first, second):
            await each.manager.stop_requested.wait()
            each.go_on.set()
        await running
    assert (first.outcome, second.outcome) == ("finished", "finished")
    (lease,) = api.dump()
    assert lease["spec"]["holderIdentity"] == ""


async def test_second_signal_kills_the_process(api: InProcessApi) -> None:
    working = OneReconcile(api, "only")
    app = App(working.manager)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(app.run())
        await working.started.wait()
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        app.stop()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        working.go_on.set()
        await running


async def test_failed_manager_stops_the_others(api: InProcessApi) -> None:
    def broken(manager: Manager) -> None:
        manager.informer(CONFIGMAPS).on_change(fail)
        manager.controller("idle", OneReconcile(api, "idle").reconcile)

    def fail(old: Object | None, new: Object | None) -> None:
        raise RuntimeError("cannot go on")

    working = OneReconcile(api, "first")
    failing = Manager(ManagerConfig(**QUIET), api.connect, identity="second").register("broken", broken)

    async def create_object() -> None:
        await working.started.wait()
        await working.manager.client.create(CONFIGMAPS, object_named("c", "default"))

    creation = asyncio.create_task(create_object())
    with pytest.raises(ExceptionGroup) as caught:
        await App(working.manager, failing).run()
    await creation
    assert caught.group_contains(RuntimeError, match="cannot go on")
    assert working.outcome == "cancelled"


async def test_objects_of_first_lists_are_frozen(api: InProcessApi) -> None:
    working = OneReconcile(api, "only")
    gc.unfreeze()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(App(working.manager).run())
        await working.started.wait()
        assert gc.get_freeze_count() > 0
        working.go_on.set()
        working.manager.stop()
        await running


def test_process_runs_on_uvloop() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def start() -> None:
        loops.append(asyncio.get_running_loop())

    run_app(start)
    assert isinstance(loops[0], uvloop.Loop)
    assert loops[0].is_closed()


def new_kubeconfig(folder: Path, **servers: str) -> Path:
    """Write a kubeconfig with a context per server.  The first one is current."""
    document = {
        "current-context": next(iter(servers)),
        "clusters": [{"name": name, "cluster": {"server": url}} for name, url in servers.items()],
        "users": [{"name": "me", "user": {"token": "secret"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "me"}} for name in servers],
    }
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(document))
    return file


async def test_manager_uses_the_configured_cluster(tmp_path: Path) -> None:
    file = new_kubeconfig(tmp_path, east="https://127.0.0.1:1", west="https://127.0.0.1:2")
    for settings, environ, server in (
        ({"kubeconfig": str(file)}, {}, "https://127.0.0.1:1"),
        ({"kubeconfig": str(file), "context": "west"}, {}, "https://127.0.0.1:2"),
        ({"context": "west"}, {"KUBECONFIG": str(file)}, "https://127.0.0.1:2"),
    ):
        manager = manager_for(ManagerConfig(**QUIET, **settings), environ, tmp_path)
        for client in (manager.reads, manager.client):
            with pytest.raises(TransportError, match=f"{server} cannot be reached"):
                await client.transport.send(Request("GET", "/version"))
            await client.close()


def test_identities_are_unique() -> None:
    assert len({new_identity() for _ in range(100)}) == 100


def test_configure_process_sets_logs_metrics_and_gc(capfd: pytest.CaptureFixture[str]) -> None:
    config = ManagerConfig(name="hub", log=Logs(level="warning", format="json"))
    configure_process(config)
    logging.getLogger("somebody").info("not shown")
    logging.getLogger("somebody").warning("shown")
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert '"message":"shown"' in lines[0]
    assert gc.get_threshold()[0] > 10_000
    assert REGISTRY.get_sample_value("tapestry_build_info", {"component": "hub", "version": __version__}) == 1


@pytest.mark.parametrize(("name", "component"), [("tapestry", "syncer"), ("mine", "mine")])
def test_build_info_names_the_component_by_default(name: str, component: str) -> None:
    configure_process(ManagerConfig(name=name), "syncer")
    assert REGISTRY.get_sample_value("tapestry_build_info", {"component": component, "version": __version__}) == 1


def test_tracing_is_on_with_an_endpoint() -> None:
    configure_process(ManagerConfig())
    with tracing.span("nothing") as nothing:
        assert nothing is None
    configure_process(ManagerConfig(tracing=Tracing(endpoint="http://127.0.0.1:9", sample_ratio=0)))
    try:
        with tracing.span("something") as something:
            assert something is not None
            assert not something.is_recording()  # sample ratio 0
    finally:
        tracing.stop()
