"""A cluster in one process and on virtual time: server, controllers and simulated kubelets.

A simple binder replaces the scheduler: a pod gets the node that it names, or the one with the fewest pods.

    @in_cluster("deployments", "replicasets")
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
from tapestry.apiserver.assembly import build_authenticators, build_server
from tapestry.apiserver.ca_publisher import CaBundle
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.apiserver.storage.local_store import LocalStore
from tapestry.apiserver.storage.log import MemoryLog
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
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
NODE_CAPACITY = {"cpu": "8", "memory": "8Gi", "pods": "20"}
DEFAULTS = ("garbage", "binder", "kubelets")

ClusterTest = Callable[[Client], Awaitable[None]]


class ImmediateExecutor(ThreadPoolExecutor):
    """An executor that runs its work when it is submitted."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*args, **options))
        return done


@functools.cache
def token_keys() -> TokenKeys:
    with tempfile.TemporaryDirectory() as directory:
        return load_token_keys(Path(directory) / "key")


@asynccontextmanager
async def run_cluster(*names: str, nodes: int = 3) -> AsyncIterator[Client]:
    """Yield a client of a cluster that runs these controllers and the default ones."""
    clock, config = running_clock(), ApiServerConfig(backend="memory")
    store = LocalStore(MemoryLog(), ImmediateExecutor())  # virtual time does not wait for threads
    accounts = ServiceAccountTokens(store, token_keys, "https://here", clock.now)
    settings = ManagerConfig(
        name="world", controllers=[*DEFAULTS, *names], metrics=Metrics(address=""), probes=Probes(address="")
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(store.run())
        server = build_server(config, store, accounts, build_authenticators(config, accounts.now, accounts), clock.now)
        await bootstrap.install(server)
        client = Client(InProcessTransport(server, APISERVER_USER))
        await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": "default"}})
        for number in range(nodes):
            await client.create(NODES, simulated_kubelet.simulated_node(f"n{number}", NODE_CAPACITY))
        manager = Manager(
            settings,
            lambda: InProcessTransport(server, APISERVER_USER),
            identity="world",
            now=clock.now,
            monotonic=clock.monotonic,
        )
        register_controllers(manager, server, CaBundle())
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
        counts = Counter(value_at(each, "spec", "nodeName") for each in pods.store.list() if owned_pods.is_active(each))
        node = target_node(pod) or min((counts[name_of(each)], name_of(each)) for each in nodes.store.list())[1]
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata}
        with suppress(NotFound, Conflict):
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            await manager.client.create(PODS, {**binding, "target": target}, subresource="binding")
        return None

    manager.controller("binder", bind).watch(pods)


def in_cluster(*names: str, nodes: int = 3) -> Callable[[ClusterTest], Callable[[], None]]:
    """Run a test in its own cluster, once its controllers are running."""

    def decorate(test_body: ClusterTest) -> Callable[[], None]:
        async def run_test() -> None:
            async with run_cluster(*names, nodes=nodes) as client:
                await test_body(client)

        def test() -> None:
            run(run_test())

        test.__name__, test.__doc__ = test_body.__name__, test_body.__doc__
        return test

    return decorate


async def wait_until(
    client: Client, resource: Resource, name: str, holds: Callable[[Object], bool], timeout: float = AN_HOUR
) -> Object:
    """Wait until a condition holds for an object, at most `timeout` seconds of virtual time, and return it."""
    found = await wait_for(
        client, resource, name, "default", until=lambda obj: obj is not None and holds(obj), timeout=timeout
    )
    assert found is not None
    return found


async def pass_time(seconds: float = 60) -> None:
    """Let virtual time pass, so that the controllers can finish their work."""
    await asyncio.sleep(seconds)


async def live_pods(client: Client) -> list[Object]:
    return [pod for pod in await client.list(PODS, "default") if not is_deleting(pod)]
