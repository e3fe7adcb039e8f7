"""`tapestry vc diagnose`: what is wrong with a virtual cluster, and what to do about it."""

from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from tapestry.cli.help_text import command
from tapestry.cli.service_access import VCLUSTER_NAMESPACE, phase_of, with_service
from tapestry.cli.vc_state import NAME
from tapestry.client.client import Client
from tapestry.client.transport import Request, Response, Stream, Transport
from tapestry.inspect.virtual_clusters import (
    RUNNING,
    Fault,
    cluster_faults,
    host_faults,
    operation_faults,
    pod_faults,
)
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import PODS

if TYPE_CHECKING:
    from tapestry.vclusters.client import ServiceClient

LAST_OPERATIONS = 5


@command(
    "tapestry vc diagnose blue",
    zero="nothing is wrong",
    one="something is wrong, or error with a one-line message",
)
@NAME
@VCLUSTER_NAMESPACE
@with_service
async def diagnose(client: "ServiceClient", name: str, namespace: str) -> None:
    """Say what is wrong with the virtual cluster NAME, and what to do: its conditions, operations, host and pods."""
    found = (await client.call("GetVCluster", name=name, namespace=namespace))["vcluster"]
    operations = await client.call("ListOperations", namespace=namespace, vcluster_name=name, page_size=LAST_OPERATIONS)
    faults = [
        *cluster_faults(found),
        *operation_faults(operations.get("operations", [])),
        *await faults_of_host(client, found),
        *await faults_of_pods(client, found),
    ]
    click.echo(f"virtual cluster {namespace}/{name} is {phase_of(found)}")
    for each in faults:
        click.echo(f"  {' '.join(each.text.split())}\n    advice: {each.advice}")
    if faults:
        raise click.exceptions.Exit(1)
    click.echo("  nothing is wrong")


async def faults_of_host(client: "ServiceClient", vcluster: Object) -> list[Fault]:
    """Return what is wrong with the host cluster, which only platform admins may see."""
    from tapestry.vclusters.errors import ServiceError

    with suppress(ServiceError):
        if host := vcluster.get("hostCluster"):
            return list(host_faults(await client.call("GetHostCluster", name=host)))
    return []


async def faults_of_pods(client: "ServiceClient", vcluster: Object) -> list[Fault]:
    """Return why pods do not run, if the cluster runs and has a host."""
    if value_at(vcluster, "status", "phase") != RUNNING or not vcluster.get("hostCluster"):
        return []
    api = Client(PrefixedTransport(client.transport, f"/v1/vclusters/{vcluster['id']}/k8s"))
    try:
        return list(pod_faults(await api.list(PODS, fields="status.phase!=Succeeded")))
    except KubeError as error:
        return [
            Fault(f"the pods were not read: {error}", "repeat the command; it needs the role operator to read pods")
        ]


@dataclass(frozen=True)
class PrefixedTransport:
    """Send requests to paths below a prefix, by a transport that the caller closes."""

    transport: Transport
    prefix: str

    async def send(self, request: Request) -> Response:
        return await self.transport.send(self._prefixed(request))

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        return self.transport.stream(self._prefixed(request))

    def _prefixed(self, request: Request) -> Request:
        return replace(request, path=self.prefix + request.path)

    def abort(self) -> None:
        self.transport.abort()

    async def close(self) -> None:
        """Do nothing: the transport has another owner."""


COMMANDS = (diagnose,)
