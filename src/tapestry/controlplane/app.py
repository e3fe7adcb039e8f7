"""The control plane beside an API server: which controllers there are, and a manager for a server in this process."""

import fnmatch
from collections.abc import Iterable
from functools import cache, partial

from tapestry.apiserver.bootstrap import SYSTEM
from tapestry.apiserver.server import Server
from tapestry.controller import Manager
from tapestry.controller.app import new_identity
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controlplane import accounts, definitions, garbage, namespaces
from tapestry.controlplane.direct import Direct
from tapestry.controlplane.everything import Everything

NAMES = ("namespaces", "garbage", "accounts")
NONE = "none"
ALWAYS = "definitions"
"""Kubernetes has this one in its API server: where a kube-controller-manager does all the rest, it must run still."""


def controllers(manager: Manager, authority: str) -> None:
    """Give `manager` all there are; `authority` are the certificates, in PEM, that pods know the server by."""
    everything = cache(partial(Everything, manager))  # made for the first who asks: it watches all there is
    manager.with_("definitions", definitions.install)
    manager.with_("namespaces", lambda each: namespaces.install(each, everything()))
    manager.with_("garbage", lambda each: garbage.install(each, everything()))
    manager.with_("accounts", lambda each: accounts.install(each, authority))


def check_patterns(patterns: Iterable[str]) -> None:
    """Raise ValueError for a pattern that chooses nothing: it is a slip of the pen."""
    for each in patterns:
        if each != NONE and not fnmatch.filter(NAMES, each.removeprefix("-")):
            raise ValueError(f"controllers: {each!r} matches none; there are {', '.join(NAMES)}, or {NONE} of them")


def manager_beside(server: Server, authority: str, patterns: list[str]) -> Manager:
    """A manager with the controllers that `patterns` choose, for a server in this process."""
    config = ManagerConfig(
        name="controlplane", controllers=[*patterns, ALWAYS], metrics=Metrics(address=""), probes=Probes(address="")
    )
    manager = Manager(config, lambda: Direct(server, SYSTEM), identity=new_identity())
    controllers(manager, authority)
    return manager
