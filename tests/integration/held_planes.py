"""The command `tapestry`, whose operations of virtual clusters stop at boundaries, so that a test can kill it there.

The first argument is a JSON file: `{"NAME": {"operation": ..., "hold": BOUNDARY, "fail": STEP}}`. The virtual cluster
waits forever at the boundary, and prints `held OPERATION NAME BOUNDARY`. The step fails after it has had its effect.
Without the file, nothing stops. There are no rate limits.
"""

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from tapestry.apis.vclusters import Journal, Phase
from tapestry.cli.main import main
from tapestry.controller import Result
from tapestry.kube.objects import Object, name_of
from tapestry.vclusters.access import rate_limits
from tapestry.vclusters.contract import Contract
from tapestry.vclusters.engines import StepFailed
from tapestry.vclusters.engines.native import NativeEngine
from tapestry.vclusters.gateway import AdmittedCall
from tapestry.vclusters.orchestrator import Orchestrator, is_deletion_requested, waiting_request
from tapestry.vclusters.plans import Step
from tapestry.vclusters.service import VERBS

BROKEN = "BROKEN"
"""Reason of a step that fails."""
CALL, NEXT, RECORD = Contract.call, Orchestrator._next, Orchestrator._record
RUN, UNDO = NativeEngine.run, NativeEngine.undo


def boundaries(steps: Sequence[str], undone: Sequence[str] = ()) -> Iterator[str]:
    """Yield all boundaries of an operation, in their order."""
    yield from ("Request", "Answer", "Start")
    for each in (*steps, *(f"undo {step}" for step in undone)):
        yield from (f"before {each}", f"after {each}")
    yield "Recorded"


def faults_of(name: str) -> Mapping[str, str]:
    try:
        found: Mapping[str, str] = json.loads(Path(sys.argv[1]).read_text()).get(name, {})
    except FileNotFoundError:
        return {}
    return found


async def reach(name: str, boundary: str) -> None:
    """Wait forever if a virtual cluster is to be held at this boundary."""
    faults = faults_of(name)
    if faults.get("hold") == boundary:
        sys.stdout.write(f"held {faults['operation']} {name} {boundary}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


async def call(self: Contract, call: AdmittedCall) -> Message:
    if call.method not in VERBS:
        return await CALL(self, call)
    name = getattr(call.request, "new_name", "") or call.request.name
    await reach(name, "Request")
    response = await CALL(self, call)
    await reach(name, "Answer")
    return response


async def start(self: Orchestrator, vcluster: Object, phase: Phase) -> Result | None:
    if is_deletion_requested(vcluster) or waiting_request(vcluster) is not None:
        await reach(name_of(vcluster), "Start")
    return await NEXT(self, vcluster, phase)


async def record(self: Orchestrator, vcluster: Object, *arguments: Any) -> None:
    await RECORD(self, vcluster, *arguments)
    await reach(name_of(vcluster), "Recorded")


async def run(self: NativeEngine, step: Step, vcluster: Object, journal: Journal) -> Mapping[str, Any]:
    name = name_of(vcluster)
    await reach(name, f"before {step}")
    result = await RUN(self, step, vcluster, journal)
    await reach(name, f"after {step}")
    if faults_of(name).get("fail") == step:
        raise StepFailed(BROKEN, f"{step} is broken")
    return result


async def undo(self: NativeEngine, step: Step, vcluster: Object, journal: Journal) -> None:
    await reach(name_of(vcluster), f"before undo {step}")
    await UNDO(self, step, vcluster, journal)
    await reach(name_of(vcluster), f"after undo {step}")


if __name__ == "__main__":
    Contract.call, Orchestrator._next, Orchestrator._record = call, start, record  # type: ignore[method-assign]
    NativeEngine.run, NativeEngine.undo = run, undo  # type: ignore[method-assign]
    fast = rate_limits.Rate(1e6, 10**6)
    rate_limits.ADDRESS_RATE = fast
    rate_limits.RATES.update(dict.fromkeys(rate_limits.RATES, fast))
    main(sys.argv[2:])
