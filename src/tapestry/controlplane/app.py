"""The control plane beside an API server: which controllers there are, and a manager for a server in this process."""

import fnmatch
import importlib
from collections.abc import Iterable
from functools import cache, partial

from tapestry.apiserver.access.certificates import Authority
from tapestry.apiserver.bootstrap import SYSTEM
from tapestry.apiserver.server import Answering
from tapestry.controller import Manager
from tapestry.controller.app import new_identity
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controlplane import (
    accounts,
    certificates,
    definitions,
    disruption,
    garbage,
    namespaces,
    protection,
    quota,
    roles,
)
from tapestry.controlplane.direct import Direct
from tapestry.controlplane.everything import Everything

NAMES = ("namespaces", "garbage", "accounts", "quota", "disruption", "protection", "roles", *certificates.NAMES)
WORKLOADS = {
    "scheduler": "scheduler.scheduler",
    "nodes": "nodes",
    "deployments": "workloads.deployments",
    "replicasets": "workloads.replicasets",
    "replicationcontrollers": "workloads.replicationcontrollers",
    "statefulsets": "workloads.statefulsets",
    "daemonsets": "workloads.daemonsets",
    "jobs": "workloads.jobs",
    "cronjobs": "workloads.cronjobs",
    "services": "services",
}
"""Where nodes run pods and nobody else sees to them: these run, and are imported, only if they are named."""
EVERY = "*"
NONE = "none"
ALWAYS = "definitions"
"""Kubernetes has this one in its API server: where a kube-controller-manager does all the rest, it must run still."""


def controllers(manager: Manager, authority: str, signing: Authority | None = None) -> None:
    """Give `manager` all there are.

    `authority` are the certificates, in PEM, that pods know the server by; `signing` is the CA that signs approved
    CertificateSigningRequests.
    """
    everything = cache(partial(Everything, manager))  # made for the first who asks: it watches all there is
    manager.with_("definitions", definitions.install)
    manager.with_("namespaces", lambda each: namespaces.install(each, everything()))
    manager.with_("garbage", lambda each: garbage.install(each, everything()))
    manager.with_("quota", lambda each: quota.install(each, everything()))
    manager.with_("disruption", lambda each: disruption.install(each, everything()))
    manager.with_("protection", lambda each: protection.install(each, everything()))
    manager.with_("roles", roles.install)
    manager.with_("accounts", lambda each: accounts.install(each, authority))
    manager.with_(certificates.APPROVING, certificates.install_approving)
    manager.with_(certificates.SIGNING, lambda each: certificates.install_signing(each, signing))
    manager.with_(certificates.CLEANING, certificates.install_cleaning)
    for name, module in WORKLOADS.items():
        manager.with_(name, partial(install, module))


def install(module: str, manager: Manager) -> None:
    importlib.import_module(f"tapestry.controlplane.{module}").install(manager)


def check_patterns(patterns: Iterable[str]) -> None:
    """Raise ValueError for a pattern that chooses nothing: it is a slip of the pen."""
    for each in patterns:
        known = (*NAMES, *WORKLOADS)
        if each != NONE and not fnmatch.filter(known, each.removeprefix("-")):
            raise ValueError(f"controllers: {each!r} matches none; there are {', '.join(known)}, or {NONE} of them")


def expanded(patterns: Iterable[str]) -> list[str]:
    """`*` are those that an API server needs; the others have to be asked for."""
    return [name for each in patterns for name in (NAMES if each == EVERY else (each,))]


def manager_beside(server: Answering, authority: str, patterns: list[str], signing: Authority | None = None) -> Manager:
    """A manager with the controllers that `patterns` choose, for a server in this process."""
    config = ManagerConfig(
        name="controlplane",
        controllers=[*expanded(patterns), ALWAYS],
        metrics=Metrics(address=""),
        probes=Probes(address=""),
    )
    manager = Manager(config, lambda: Direct(server, SYSTEM), identity=new_identity())
    controllers(manager, authority, signing)
    return manager
