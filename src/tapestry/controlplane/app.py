"""The control plane beside an API server: which controllers there are, and a manager for a server in this process."""

import fnmatch
import importlib
from collections.abc import Iterable
from functools import cache, partial

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.bootstrap import APISERVER_USER
from tapestry.apiserver.server import CallHandler
from tapestry.controller import Manager
from tapestry.controller.app import new_identity
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controlplane import (
    certificates,
    cluster_role_aggregation,
    crd_finalizer,
    disruption,
    garbage_collector,
    namespaces,
    quota,
    service_accounts,
    volume_protection,
)
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.controlplane.metadata_informers import MetadataInformers

DEFAULT_CONTROLLERS = (
    "namespaces",
    "garbage",
    "accounts",
    "quota",
    "disruption",
    "protection",
    "roles",
    *certificates.CONTROLLER_NAMES,
)
OPTIONAL_CONTROLLERS = {
    "scheduler": "scheduler.scheduler",
    "nodes": "node_lifecycle",
    "deployments": "workloads.deployments",
    "replicasets": "workloads.replicasets",
    "replicationcontrollers": "workloads.replicationcontrollers",
    "statefulsets": "workloads.statefulsets",
    "daemonsets": "workloads.daemonsets",
    "jobs": "workloads.jobs",
    "cronjobs": "workloads.cronjobs",
    "services": "service_endpoints",
}
"""Where nodes run pods and nobody else sees to them: these run, and are imported, only if they are named."""
WILDCARD = "*"
NONE = "none"
ALWAYS_ENABLED = "definitions"
"""Kubernetes has this one in its API server: where a kube-controller-manager does all the rest, it must run still."""


def register_controllers(manager: Manager, ca_bundle: str, signing_ca: CertificateAuthority | None = None) -> None:
    """Give `manager` all there are.

    `authority` are the certificates, in PEM, that pods know the server by; `signing` is the CA that signs approved
    CertificateSigningRequests.
    """
    everything = cache(partial(MetadataInformers, manager))  # made for the first who asks: it watches all there is
    manager.register("definitions", crd_finalizer.install)
    manager.register("namespaces", lambda each: namespaces.install(each, everything()))
    manager.register("garbage", lambda each: garbage_collector.install(each, everything()))
    manager.register("quota", lambda each: quota.install(each, everything()))
    manager.register("disruption", lambda each: disruption.install(each, everything()))
    manager.register("protection", lambda each: volume_protection.install(each, everything()))
    manager.register("roles", cluster_role_aggregation.install)
    manager.register("accounts", lambda each: service_accounts.install(each, ca_bundle))
    manager.register(certificates.APPROVING, certificates.install_approving)
    manager.register(certificates.SIGNING, lambda each: certificates.install_signing(each, signing_ca))
    manager.register(certificates.CLEANING, certificates.install_cleaning)
    for name, module in OPTIONAL_CONTROLLERS.items():
        manager.register(name, partial(import_and_install, module))


def import_and_install(module: str, manager: Manager) -> None:
    importlib.import_module(f"tapestry.controlplane.{module}").install(manager)


def check_patterns(patterns: Iterable[str]) -> None:
    """Raise ValueError for a pattern that chooses nothing: it is a slip of the pen."""
    for each in patterns:
        known = (*DEFAULT_CONTROLLERS, *OPTIONAL_CONTROLLERS)
        if each != NONE and not fnmatch.filter(known, each.removeprefix("-")):
            raise ValueError(f"controllers: {each!r} matches none; there are {', '.join(known)}, or {NONE} of them")


def expanded_patterns(patterns: Iterable[str]) -> list[str]:
    """`*` are those that an API server needs; the others have to be asked for."""
    return [name for each in patterns for name in (DEFAULT_CONTROLLERS if each == WILDCARD else (each,))]


def control_plane_manager(
    server: CallHandler, ca_bundle: str, patterns: list[str], signing_ca: CertificateAuthority | None = None
) -> Manager:
    """A manager with the controllers that `patterns` choose, for a server in this process."""
    config = ManagerConfig(
        name="controlplane",
        controllers=[*expanded_patterns(patterns), ALWAYS_ENABLED],
        metrics=Metrics(address=""),
        probes=Probes(address=""),
    )
    manager = Manager(config, lambda: InProcessTransport(server, APISERVER_USER), identity=new_identity())
    register_controllers(manager, ca_bundle, signing_ca)
    return manager
