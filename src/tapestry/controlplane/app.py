"""Registry of the control plane controllers, and a manager for an API server in this process."""

import fnmatch
import importlib
from collections.abc import Iterable
from functools import cache, partial
from typing import Any

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.ca_publisher import CaBundle
from tapestry.apiserver.core.requests import APISERVER_USER, CallOrigin
from tapestry.apiserver.handlers.server import Server
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.controller import Manager
from tapestry.controller.app import new_identity
from tapestry.controller.config import LeaderElection, ManagerConfig, Metrics, Probes
from tapestry.controller.manager import is_enabled
from tapestry.controlplane import (
    api_services,
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
from tapestry.controlplane.metadata_cache import MetadataCache

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
NODE_LIFECYCLE, SCHEDULER = "nodes", "scheduler"
OPTIONAL_CONTROLLERS = {
    SCHEDULER: "scheduler.scheduler",
    NODE_LIFECYCLE: "node_lifecycle",
    "deployments": "workloads.deployments",
    "replicasets": "workloads.replicasets",
    "replicationcontrollers": "workloads.replicasets:install_replication_controllers",
    "statefulsets": "workloads.statefulsets",
    "daemonsets": "workloads.daemonsets",
    "jobs": "workloads.jobs",
    "cronjobs": "workloads.cronjobs",
    "services": "service_endpoints",
    "horizontalpodautoscalers": "autoscaling.horizontal_pod_autoscalers",
    "volumes": "volume_binder",
    "ephemeralvolumes": "ephemeral_volumes",
}
"""Modules of controllers for clusters with nodes. They are imported and run only if their name is given."""
WILDCARD = "*"
NONE = "none"
ALWAYS_ENABLED = ("definitions", "apiservices")
"""Kubernetes runs these controllers in its API server. They must run beside a kube-controller-manager, too."""


def register_controllers(
    manager: Manager, server: Server, ca_bundle: CaBundle, signing_ca: CertificateAuthority | None = None
) -> None:
    """Register all controllers with `manager`, whose clients must be those of `server`.

    `ca_bundle` contains the certificates by which pods verify the API server. `signing_ca` signs approved
    CertificateSigningRequests.
    """
    metadata = cache(partial(MetadataCache, manager, server.verbs.store, server.registry))  # created on first use
    manager.register("definitions", crd_finalizer.install)
    manager.register("apiservices", api_services.install)
    manager.register("namespaces", lambda each: namespaces.install(each, metadata()))
    manager.register("garbage", lambda each: garbage_collector.install(each, metadata()))
    manager.register("quota", lambda each: quota.install(each, metadata()))
    manager.register("disruption", lambda each: disruption.install(each, metadata()))
    manager.register("protection", lambda each: volume_protection.install(each, metadata()))
    manager.register("roles", cluster_role_aggregation.install)
    manager.register("accounts", lambda each: service_accounts.install(each, ca_bundle))
    manager.register(certificates.APPROVING, certificates.install_approving)
    manager.register(certificates.SIGNING, lambda each: certificates.install_signing(each, signing_ca))
    manager.register(certificates.CLEANING, certificates.install_cleaning)
    restriction = server.syncer_restriction
    arguments: dict[str, tuple[Any, ...]] = {
        NODE_LIFECYCLE: (lambda: not restriction.is_enabled,),
        SCHEDULER: (lambda: not restriction.schedules_pods,),
    }
    for name, place in OPTIONAL_CONTROLLERS.items():
        manager.register(name, partial(import_and_install, place, arguments=arguments.get(name, ())))


def import_and_install(place: str, manager: Manager, arguments: tuple[Any, ...] = ()) -> None:
    module, _, function = place.partition(":")
    getattr(importlib.import_module(f"tapestry.controlplane.{module}"), function or "install")(manager, *arguments)


def check_patterns(patterns: Iterable[str]) -> None:
    """Raise ValueError for a pattern that matches no controller."""
    for each in patterns:
        known = (*DEFAULT_CONTROLLERS, *OPTIONAL_CONTROLLERS)
        if each != NONE and not fnmatch.filter(known, each.removeprefix("-")):
            raise ValueError(f"controllers: {each!r} matches no controller; choose from {', '.join(known)}, or {NONE}")


def expanded_patterns(patterns: Iterable[str]) -> list[str]:
    """Replace `*` with the names of the default controllers. Optional controllers must be named."""
    return [name for each in patterns for name in (DEFAULT_CONTROLLERS if each == WILDCARD else (each,))]


def has_workload_controllers(patterns: Iterable[str]) -> bool:
    """Return whether a controller that creates pods matches `patterns`."""
    names = [name for name, place in OPTIONAL_CONTROLLERS.items() if place.startswith("workloads.")]
    return any(is_enabled(name, expanded_patterns(patterns)) for name in names)


def control_plane_manager(
    handler: RequestHandler,
    ca_bundle: CaBundle,
    patterns: list[str],
    signing_ca: CertificateAuthority | None = None,
    leader_election: LeaderElection | None = None,
) -> Manager:
    """Return a manager with the controllers that match `patterns`, for a server in this process.

    If several processes serve the same objects, `leader_election` selects the one whose controllers work.
    """
    config = ManagerConfig(
        name="controlplane",
        controllers=[*expanded_patterns(patterns), *ALWAYS_ENABLED],
        leader_election=leader_election or LeaderElection(),
        metrics=Metrics(address=""),
        probes=Probes(address=""),
    )
    manager = Manager(
        config, lambda: InProcessTransport(handler, APISERVER_USER, CallOrigin.CONTROLLER), identity=new_identity()
    )
    register_controllers(manager, handler.server, ca_bundle, signing_ca)
    return manager
