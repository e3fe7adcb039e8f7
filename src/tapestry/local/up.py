"""`tapestry up`: what exists of Tapestry, running on this machine for somebody to try.

Today that is one real control plane and every registered controller; its objects are there again the next time.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tapestry.client.client import Client
from tapestry.client.connection import HttpTransport
from tapestry.client.kubeconfig import Access, load
from tapestry.client.waiting import wait_for
from tapestry.controller.app import App, configure_process, new_identity, run_app
from tapestry.controller.config import Logs, ManagerConfig, Metrics, Probes
from tapestry.controller.manager import Manager
from tapestry.controller.registry import Registry
from tapestry.kube.conditions import is_true
from tapestry.kube.crds import Kind, crd
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, name_of
from tapestry.kube.resources import CRDS
from tapestry.local.kubernetes import ControlPlane, find_assets

Say = Callable[[str], None]

LINES = """
  export KUBECONFIG={kubeconfig}
  {kubectl} apply -f examples/at/sample.yaml -f examples/redismigration/sample.yaml
  {kubectl} get ats,redismigrations,pods,jobs
  {kubectl} describe redismigration rmtest
"""


def up(registry: Registry, folder: Path, environ: Mapping[str, str], say: Say) -> None:
    """Run until Ctrl-C or SIGTERM; raises AssetsMissing where there is no Kubernetes to run."""
    assets = find_assets(environ)
    say("Clusters to lease from are still to come here; this runs one real control plane and the example controllers.")
    plane = ControlPlane(folder.resolve(), assets, controller_manager=True)
    with step(say, "kube-apiserver, etcd and kube-controller-manager"):
        plane.start()
    try:
        access = load([plane.kubeconfig], environ=environ)
        config = ManagerConfig(
            name="tapestry-up",
            log=Logs(level="warning"),
            metrics=Metrics(address="127.0.0.1:0"),
            probes=Probes(address="127.0.0.1:0"),
        )
        configure_process(config)
        run_app(lambda: run_controllers(registry, config, access, say, in_words(plane, assets)))
    finally:
        with step(say, "stopping"):
            plane.stop()


def in_words(plane: ControlPlane, assets: Path) -> str:
    return LINES.format(kubeconfig=plane.kubeconfig, kubectl=assets / "kubectl")


async def run_controllers(
    registry: Registry, config: ManagerConfig, access: Access, say: Say, instructions: str
) -> None:
    client = Client(HttpTransport(access))
    try:
        with step(say, f"kinds {', '.join(kind.resource.kind for kind in registry.kinds)}"):
            for kind in registry.kinds:
                await install(client, kind)
    finally:
        await client.close()
    manager = Manager(config, lambda: HttpTransport(access), identity=new_identity())
    registry.add_to_manager(manager)
    say(f"  ... controllers {', '.join(registry.names())} are running; Ctrl-C stops everything.\n\nTry:{instructions}")
    await App(manager).run()


async def install(client: Client, kind: Kind[Any]) -> None:
    """Tell the cluster about a kind, and wait until it serves it."""
    definition = crd(kind)
    name = name_of(definition)
    try:
        known: Object | None = await client.get(CRDS, name)
    except NotFound:
        known = None
    await client.converge(CRDS, known, definition)
    await wait_for(client, CRDS, name, until=lambda found: found is not None and is_true(found, "Established"))


@contextmanager
def step(say: Say, what: str) -> Iterator[None]:
    """Say what is being done when it is done, and how long it took."""
    started = time.monotonic()
    yield
    say(f"  ... {what}: {time.monotonic() - started:.1f} s")
