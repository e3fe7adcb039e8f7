"""Control planes for scenarios: Kubernetes with etcd, or our API server in its place.

A scenario that requests a cluster runs on both and must have the same result.  Scenarios that need Kubernetes are
marked `only_on_kubernetes` with one of the reasons below.  Controllers run only if a test requests them.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import pytest

from tapestry.local.control_planes import kubelet_flags
from tapestry.local.kubernetes import ControlPlane

from .servers import OwnServer

KUBERNETES = pytest.param("kubernetes", id="kubernetes", marks=pytest.mark.kubernetes)
OWN = pytest.param("own", id="own")
OWN_ABOVE = pytest.param("own above", id="own-above", marks=pytest.mark.kubernetes)
"""The virtual cluster is our API server.  All other clusters are Kubernetes."""
also_mixed = pytest.mark.parametrize("flavour", [KUBERNETES, OWN, OWN_ABOVE], indirect=True)
"""Also run a scenario with our API server as the virtual cluster and Kubernetes as the physical one."""


class Plane(Protocol):
    """A cluster without nodes.  `kubeconfig` and `token` are those of the administrator."""

    kubeconfig: Path
    url: str
    token: str

    def restart(self) -> None:
        """Kill the API server and start it again at the same address."""

    def pause(self) -> None:
        """Stop the API server with SIGSTOP.  Its connections stay open and silent until `resume`."""

    def resume(self) -> None: ...


def kubeconfig_with(plane: Plane, token: str, file: Path) -> Path:
    """Write the kubeconfig of a cluster with another token to a file, and return it."""
    config = msgspec.json.decode(plane.kubeconfig.read_bytes())
    config["users"][0]["user"] = {"token": token}
    file.write_bytes(msgspec.json.encode(config))
    return file


Start = Callable[..., AbstractContextManager[Plane]]
"""`start("physical", controllers=True)` runs a cluster until the context exits."""


def starts_kubernetes(assets: Path, folders: pytest.TempPathFactory) -> Start:
    def start(name: str, *, controllers: bool = False) -> ControlPlane:
        folder = folders.mktemp(name)
        flags = kubelet_flags(folder)
        return ControlPlane(folder, assets, controller_manager=controllers, fsync=False, flags=flags)

    return start


def starts_own(folders: pytest.TempPathFactory) -> Start:
    @contextmanager
    def start(name: str, *, controllers: bool = False) -> Iterator[OwnServer]:
        flags = ("--service-cluster-ip-range", "10.96.0.0/16", "--controllers", "*,volumes" if controllers else "none")
        # As in `ControlPlane`: without controllers no service accounts exist, so pods must not need one.
        with OwnServer(folders.mktemp(name), *flags, pod_accounts=str(controllers).lower()) as server:
            yield server

    return start


def only_on_kubernetes(reason: str) -> pytest.MarkDecorator:
    assert reason in REASONS
    return pytest.mark.parametrize("flavour", [KUBERNETES], indirect=True)


NODE_LIFECYCLE = "kube-controller-manager evicts pods from nodes that are silent; no controller of ours does"
PROCESSES = "it is about the processes of Kubernetes"
FORGETTING = "etcd can be told to forget what was; a server of ours forgets by itself, in time"
WHOLE_MINUTES = "it waits for whole minutes, and is about clocks more than about servers"
REASONS = (NODE_LIFECYCLE, PROCESSES, FORGETTING, WHOLE_MINUTES)
