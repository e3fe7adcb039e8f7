"""Controller that checks the servers of APIServices and reports the condition Available, as kube-aggregator does.

It reads the document of the group version through the API server, so the check covers the whole path of a request.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tapestry.client.client import Client
from tapestry.client.transport import SMALL_RESPONSE_BYTES, Request
from tapestry.controller import Manager, Result
from tapestry.controller.store import Store
from tapestry.kube.conditions import new_condition, with_condition
from tapestry.kube.errors import NotFound, TransportError, error_from_body
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import API_SERVICES, ENDPOINT_SLICES, SERVICES

AVAILABLE = "Available"
CHECK_INTERVAL, RETRY_INTERVAL = 30.0, 5.0
"""Seconds between the checks of an available and of an unavailable server."""
CHECK_SECONDS = 5.0
SERVICE_LABEL = "kubernetes.io/service-name"
WORKERS = 4
"""Number of servers that are checked at the same time."""


def backend_problem(reference: Object, service: Object | None, slices: Sequence[Object]) -> Object | None:
    """Return the condition of an APIService whose Service cannot serve it, or None if it can be called."""
    name, namespace, port = reference["name"], reference["namespace"], reference.get("port") or 443
    if service is None:
        return unavailable("ServiceNotFound", f'service/{name} in "{namespace}" is not present')
    spec = service.get("spec") or {}
    if spec.get("type", "ClusterIP") != "ClusterIP":
        return None
    service_port = next((each for each in spec.get("ports") or () if each.get("port") == port), None)
    if service_port is None:
        message = f'service/{name} in "{namespace}" is not listening on port {port}'
        return unavailable("ServicePortError", message)
    if not slices:
        return unavailable("EndpointsNotFound", f'cannot find endpointslices for service/{name} in "{namespace}"')
    port_name = service_port.get("name") or ""
    if not any(has_ready_endpoint(each, port_name) for each in slices):
        why = f'endpointslices for service/{name} in "{namespace}" have no addresses with port name "{port_name}"'
        return unavailable("MissingEndpoints", why)
    return None


def has_ready_endpoint(endpoint_slice: Object, port_name: str) -> bool:
    if all((port.get("name") or "") != port_name for port in endpoint_slice.get("ports") or ()):
        return False
    endpoints = endpoint_slice.get("endpoints") or ()
    return any(value_at(each, "conditions", "ready", default=True) for each in endpoints)


def unavailable(reason: str, message: str) -> Object:
    return new_condition(AVAILABLE, False, reason, message)


@dataclass(frozen=True)
class ApiServiceReconciler:
    """Report whether the servers of APIServices can be called."""

    api_services: Store
    client: Client
    now: Callable[[], datetime]

    async def reconcile(self, name: str) -> Result | None:
        api_service = self.api_services.get(name)
        if api_service is None:
            return None
        reference = value_at(api_service, "spec", "service")
        if reference is None:
            local = new_condition(AVAILABLE, True, "Local", "Local APIServices are always available")
            await self.report(api_service, local)
            return None
        condition = await self.check(api_service, reference)
        await self.report(api_service, condition)
        return Result(requeue_after=CHECK_INTERVAL if condition["status"] == "True" else RETRY_INTERVAL)

    async def check(self, api_service: Object, reference: Object) -> Object:
        """Return the condition of an APIService that names a Service."""
        service = await self.client.find(SERVICES, reference["name"], reference["namespace"])
        selector = f"{SERVICE_LABEL}={reference['name']}"
        slices = await self.client.list(ENDPOINT_SLICES, reference["namespace"], labels=selector)
        if (problem := backend_problem(reference, service, slices)) is not None:
            return problem
        spec = api_service["spec"]
        path = f"/apis/{spec['group']}/{spec['version']}"
        request = Request("GET", path, timeout=CHECK_SECONDS, max_body=SMALL_RESPONSE_BYTES)
        try:
            response = await self.client.transport.send(request)
        except TransportError as error:
            return unavailable("FailedDiscoveryCheck", f"failing or missing response from {path}: {error}")
        if not 200 <= response.status < 300:
            why = error_from_body(response.status, response.body)
            return unavailable("FailedDiscoveryCheck", f"failing or missing response from {path}: {why}")
        return new_condition(AVAILABLE, True, "Passed", "all checks passed")

    async def report(self, api_service: Object, condition: Object) -> None:
        before = value_at(api_service, "status", "conditions", default=[])
        conditions = with_condition(before, condition, self.now())
        if conditions is before:
            return
        try:
            await self.client.patch(
                API_SERVICES, api_service, {"status": {"conditions": conditions}}, subresource="status"
            )
        except NotFound:
            return


def install(manager: Manager) -> None:
    informer = manager.informer(API_SERVICES)
    reconciler = ApiServiceReconciler(informer.store, manager.client, manager.now)
    manager.controller("apiservices", reconciler.reconcile, workers=WORKERS).watch(informer)
