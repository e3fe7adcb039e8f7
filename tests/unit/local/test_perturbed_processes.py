"""Process kubelet with a perturbation at every API call and fake processes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.testing import Scenario, perturb
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import CONFIGMAPS, NODES, PODS, SECRETS
from tapestry.local import pod_worker, process_kubelet
from tapestry.local.container_commands import Launch, ProcessPolicy
from tapestry.local.container_processes import RunningContainer
from tapestry.local.process_kubelet import ProcessSettings, process_node

AN_HOUR = 3600.0


class FakeProcess:
    """Process that ends when it is stopped, or after some seconds."""

    pid = 1

    def __init__(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._code = 0
        self._timer = loop.call_later(seconds, self._end, 0)

    def _end(self, code: int) -> None:
        if not self.ended.done():
            self._code = code
            self.ended.set_result(None)

    async def wait(self) -> int:
        await self.ended
        return self._code

    async def stop(self, _: float) -> None:
        self._timer.cancel()
        self._end(143)


@asynccontextmanager
async def fake_child(
    launch: Launch, _: object, write: Callable[[bytes], None], __: object
) -> AsyncIterator[RunningContainer]:
    write(b"up\n")
    yield RunningContainer(FakeProcess(float(launch.command[1])), launch)  # type: ignore[arg-type]


def new_pod(name: str, command: list[str], **spec: object) -> Object:
    container = {"name": "c", "image": "i", "command": command, "volumeMounts": [{"name": "m", "mountPath": "/m"}]}
    volumes = [{"name": "m", "configMap": {"name": "m"}}]
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "n", "containers": [container], "volumes": volumes, **spec},
    }


async def create_and_delete_pods(client: Client) -> None:
    async def wait(name: str, until: Callable[[Object], bool]) -> Object:
        found = await wait_for(
            client, PODS, name, "default", until=lambda pod: pod is not None and until(pod), timeout=AN_HOUR
        )
        assert found is not None
        return found

    await client.create(NODES, process_node("n", {"cpu": "1"}))
    await client.create(PODS, new_pod("long", ["sleep", "1e9"]))
    await client.create(PODS, new_pod("job", ["sleep", "5"], restartPolicy="OnFailure"))
    await client.create(PODS, new_pod("refused", ["sleep", "1"], volumes=[{"name": "m", "hostPath": {"path": "/"}}]))
    await asyncio.sleep(3)
    await client.create(CONFIGMAPS, {"metadata": {"name": "m", "namespace": "default"}, "data": {"k": "v"}})
    await wait("job", lambda pod: value_at(pod, "status", "phase") == "Succeeded")
    await wait("long", lambda pod: is_condition_true(pod, "Ready"))
    await wait("refused", lambda pod: bool(value_at(pod, "status", "containerStatuses", 0, "state", "waiting")))
    for name in ("long", "job", "refused"):
        await client.delete(PODS, await client.get(PODS, name, "default"))
    for name in ("long", "job", "refused"):
        await wait_for(client, PODS, name, "default", until=lambda pod: pod is None, timeout=AN_HOUR)


async def run_inline(work: Callable[..., object], *arguments: object) -> object:
    """Run the work inline instead of in a thread, for which a virtual clock would not wait."""
    return work(*arguments)


def test_pods_run_and_end_under_perturbations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_worker, "container_process", fake_child)
    monkeypatch.setattr(asyncio, "to_thread", run_inline)

    def set_up(manager: Manager) -> None:
        settings = ProcessSettings(tmp_path, "https://nowhere", ProcessPolicy(Path("tapestry"), run_pods=True), {})
        process_kubelet.install(manager, lambda: 1, settings)

    def counts(call: str) -> bool:
        return ("/pods" in call or "/configmaps" in call) and not call.startswith("watch")

    resources = [NODES, PODS, CONFIGMAPS, SECRETS]
    report = perturb(Scenario("processes", resources, set_up, create_and_delete_pods, counts=counts))
    assert report.calls > 10, report
    assert not report.failures, "\n".join(map(str, report.failures))
