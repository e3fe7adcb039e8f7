"""The Tapestry side of an event stream: a Manager with one Controller that does nothing."""

import asyncio

from benchmarks.sides.api import WIDGETS
from benchmarks.sides.rounds import Rounds
from tapestry.client.access import Access
from tapestry.client.http_transport import HttpTransport
from tapestry.controller.app import App, configure_process, run_app
from tapestry.controller.config import Logs, ManagerConfig, Metrics, Probes
from tapestry.controller.manager import Manager


def reconciled(url: str, objects: str, rounds: str) -> dict[str, float]:
    config = ManagerConfig(metrics=Metrics(address=""), probes=Probes(address=""), log=Logs(level="warning"))
    configure_process(config)
    measured: dict[str, float] = {}

    async def run() -> None:
        clock = Rounds(url, int(objects), int(rounds))

        async def reconcile(_: str) -> None:
            clock.handled()

        def setup(manager: Manager) -> None:
            manager.controller("widgets", reconcile).watch(manager.informer(WIDGETS))

        app = App(Manager(config, lambda: HttpTransport(Access(url)), identity="benchmark").register("widgets", setup))
        async with asyncio.TaskGroup() as group:
            group.create_task(app.run())
            measured.update(await clock.measured())
            app.stop()

    run_app(run)
    return measured
