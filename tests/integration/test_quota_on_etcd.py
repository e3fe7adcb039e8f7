"""Quota of virtual clusters with two management APIs on one etcd."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from tapestry.apis.projects import QUOTAS
from tapestry.apis.vclusters import VCLUSTERS
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.config import Etcd as Servers
from tapestry.apiserver.core.requests import APISERVER_USER, CallOrigin
from tapestry.client.client import Client
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import object_named
from tapestry.vclusters.admission import vcluster_plugin
from tapestry.vclusters.app import prepare_management_api
from tapestry.vclusters.validation import Provided

from .etcds import Etcd


async def test_two_servers_never_exceed_quota_together(kube_assets: Path, tmp_path: Path) -> None:
    plugin = partial(vcluster_plugin, provided=Provided("1.34.3"))
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(Etcd(kube_assets, tmp_path))
        clients = []
        for name in ("one", "two"):
            config = ApiServerConfig(
                backend="etcd",
                secure_address="",
                file_rootpath=str(tmp_path / name),
                etcd=Servers(servers=[etcd.url], prefix="/management"),
            )
            running = await stack.enter_async_context(run_apiserver(config, admission=plugin))
            clients.append(Client(InProcessTransport(running.request_handler, APISERVER_USER)))
            if name == "one":
                handler = running.request_handler
                await prepare_management_api(Client(InProcessTransport(handler, APISERVER_USER, CallOrigin.CONTROLLER)))
        quota = {**object_named("shop"), "spec": {"project": "shop", "limits": {"vclusters": 5}}}
        await clients[0].create(QUOTAS, quota)
        await clients[1].list(QUOTAS)
        reasons: list[str] = []

        async def create(number: int) -> None:
            content = {**object_named(f"v{number}", "default"), "spec": {"project": "shop"}}
            try:
                await clients[number % 2].create(VCLUSTERS, content)
            except ApiError as error:
                reasons.append(error.message)

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(create(number))
        assert len(await clients[0].list(VCLUSTERS)) == 5
        assert len([each for each in reasons if each.startswith("QUOTA_EXCEEDED")]) == 15
