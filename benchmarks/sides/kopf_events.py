"""The kopf side of an event stream: an operator with one `on.event` handler that does nothing.

It runs as kopf's command line does, on uvloop, but without peering and posting, which this handler does not need.
"""

import asyncio
import logging
from typing import Any

import kopf
import uvloop

from benchmarks.sides.api import WIDGETS
from benchmarks.sides.rounds import Rounds


def handled(url: str, objects: str, rounds: str) -> dict[str, float]:
    logging.basicConfig(level=logging.WARNING)
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    registry = kopf.OperatorRegistry()
    measured: dict[str, float] = {}

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=url)

    async def run() -> None:
        clock = Rounds(url, int(objects), int(rounds))

        @kopf.on.event(WIDGETS.group, WIDGETS.version, WIDGETS.plural, registry=registry)
        async def on_event(**_: Any) -> None:
            clock.handled()

        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(
                kopf.operator(registry=registry, settings=settings, standalone=True, clusterwide=True, stop_flag=stop)
            )
            measured.update(await clock.measured())
            stop.set()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    return measured
