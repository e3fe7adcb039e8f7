"""A whole cluster in one process and on virtual time: server, controllers and simulated kubelets.

Which node a pod gets is not what stories here are about: the one that it names, or the one with the fewest.

    @in_a_world("deployments", "replicasets")
    async def test_something(client: Client) -> None: ...
"""

import asyncio
import functools
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tapestry.apiserver import bootstrap
from tapestry.apiserver.access.service_account_tokens import ServiceAccountTokens
from tapestry.apiserver.access.token_keys import TokenKeys, load_token_keys
from tapestry.apiserver.app import build_authenticators, build_server
from tapestry.apiserver.config import ApiServerConfig
from tapestry.apiserver.storage.local_store import LocalStore
from tapestry.apiserver.storage.memory_log import MemoryLog
from tapestry.client.client import Client
from tapestry.client.waiting import wait_for
from tapestry.controller import Manager, Result
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controller.testing import run, running_clock
from tapestry.controlplane.app import register_controllers
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.controlplane.workloads import owned_pods
from tapestry.controlplane.workloads.daemonset_steps import target_node
from tapestry.kube.errors import Conflict, NotFound
from tapestry.kube.objects import Object, is_deleting, name_of, value_at
from tapestry.kube.resources import NODES, PODS, SERVICE_ACCOUNTS, Resource
from tapestry.local import simulated_kubelet

AN_HOUR = 3600.0
ROOM = {"cpu": "8", "memory": "8Gi", "pods": "20"}
DEFAULTS = ("garbage", "binder", "kubelets")

Story = Callable[[Client], Awaitable[None]]


class AtOnce(ThreadPoolExecutor):
    """An executor that has done its work when it is given it."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*args, **options))
        return done


@functools.cache
def the_keys() -> TokenKeys:
    with tempfile.TemporaryDirectory() as directory:
        return load_token_keys(Path(directory) / "key")


@asynccontextmanager
async def a_world(*names: str, nodes: int = 3) -> AsyncIterator[Client]:
    """A client of a cluster with these controllers, beside those that every cluster has."""
    clock, config, store = running_clock(), ApiServerConfig(backend="memory"), LocalStore(MemoryLog())
    store._thread = AtOnce()  # time that costs nothing does not wait for threads
    accounts = ServiceAccountTokens(store, the_keys(), "https://here", clock.now)
    settings = ManagerConfig(
        name="world", controllers=[*DEFAULTS, *names], metrics=Metrics(address=""), probes=Probes(address="")
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(store.run())
        server = build_server(config, store, accounts, build_authenticators(config, accounts), clock.now)
        await bootstrap.install(server)
        client = Client(InProcessTransport(server, bootstrap.APISERVER_USER))
        await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": "default"}})
        for number in range(nodes):
            await client.create(NODES, simulated_kubelet.simulated_node(f"n{number}", ROOM))
        manager = Manager(
            settings,
            lambda: InProcessTransport(server, bootstrap.APISERVER_USER),
            identity="world",
            now=clock.now,
            monotonic=clock.monotonic,
        )
        register_controllers(manager, "")
        manager.register("kubelets", lambda each: simulated_kubelet.install(each, lambda: 0))
        manager.register("binder", binder)
        working = group.create_task(manager.run())
        yield client
        manager.stop()
        await asyncio.wait([working])
        running.cancel()
    store.close()


def binder(manager: Manager) -> None:
    nodes, pods = manager.informer(NODES), manager.informer(PODS)

    async def bind(key: str) -> Result | None:
        pod = pods.store.get(key)
        if pod is None or is_deleting(pod) or pod["spec"].get("nodeName"):
            return None
        held = Counter(value_at(each, "spec", "nodeName") for each in pods.store.list() if owned_pods.is_active(each))
        node = target_node(pod) or min((held[name_of(each)], name_of(each)) for each in nodes.store.list())[1]
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata}
        with suppress(NotFound, Conflict):
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            await manager.client.create(PODS, {**binding, "target": target}, subresource="binding")
        return None

    manager.controller("binder", bind).watch(pods)


def in_a_world(*names: str, nodes: int = 3) -> Callable[[Story], Callable[[], None]]:
    """Have a test run in a world of its own, as soon as its controllers are at work."""

    def decorate(story: Story) -> Callable[[], None]:
        async def told() -> None:
            async with a_world(*names, nodes=nodes) as client:
                await story(client)

        def test() -> None:
            run(told())

        test.__name__, test.__doc__ = story.__name__, story.__doc__
        return test

    return decorate


async def wait_until(
    client: Client, resource: Resource, name: str, holds: Callable[[Object], bool], timeout: float = AN_HOUR
) -> Object:
    """The object as soon as that holds for it, within an hour of virtual time."""
    found = await wait_for(
        client, resource, name, "default", until=lambda obj: obj is not None and holds(obj), timeout=timeout
    )
    assert found is not None
    return found


async def settled(seconds: float = 60) -> None:
    """Time enough for everybody to do what they are going to."""
    await asyncio.sleep(seconds)


async def live_pods(client: Client) -> list[Object]:
    return [pod for pod in await client.list(PODS, "default") if not is_deleting(pod)]
