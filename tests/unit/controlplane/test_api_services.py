"""Availability of aggregated APIs: pure checks, reported conditions, and perturbations."""

from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller.testing import Scenario, perturb
from tapestry.controlplane import api_services
from tapestry.controlplane.api_services import backend_problem
from tapestry.kube.conditions import find_condition, is_condition_false, is_condition_true
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import API_SERVICES, ENDPOINT_SLICES, SERVICES, Resource

from .conftest import RunControllers

AN_HOUR = 3600.0
ORDERS = Resource("shop.example.com", "v1", "Order", "orders")
REFERENCE = {"namespace": "default", "name": "orders", "port": 443}


def new_api_service(**spec: Any) -> Object:
    known = {"group": "shop.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10}
    return {"metadata": {"name": "v1.shop.example.com"}, "spec": {**known, "service": dict(REFERENCE), **spec}}


def new_service(port: int = 443, **spec: Any) -> Object:
    ports = [{"name": "https", "port": port}]
    return {"metadata": {"name": "orders", "namespace": "default"}, "spec": {"ports": ports, **spec}}


def new_slice(port_name: str = "https", *, ready: bool = True, addresses: bool = True) -> Object:
    endpoints = [{"addresses": ["192.0.2.7"], "conditions": {"ready": ready}}] if addresses else []
    return {
        "metadata": {"name": "orders-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "orders"}},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": port_name, "port": 8443, "protocol": "TCP"}],
    }


@pytest.mark.parametrize(
    ("service", "slices", "reason"),
    [
        (None, [], "ServiceNotFound"),
        (new_service(80), [new_slice()], "ServicePortError"),
        (new_service(), [], "EndpointsNotFound"),
        (new_service(), [new_slice(ready=False)], "MissingEndpoints"),
        (new_service(), [new_slice(addresses=False)], "MissingEndpoints"),
        (new_service(), [new_slice("http")], "MissingEndpoints"),
        (new_service(), [new_slice("http"), new_slice()], None),
        (new_service(80, type="ExternalName", externalName="x"), [], None),
    ],
)
def test_service_must_have_ready_endpoints(service: Object | None, slices: list[Object], reason: str | None) -> None:
    problem = backend_problem(REFERENCE, service, slices)
    assert (problem["reason"] if problem is not None else None) == reason


def reason_is(reason: str) -> Any:
    def check(obj: Object | None) -> bool:
        condition = find_condition(value_at(obj or {}, "status", "conditions"), "Available") or {}
        return bool(condition.get("reason") == reason)

    return check


async def test_condition_reports_the_reason(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("none"):
        await client.create(API_SERVICES, new_api_service())
        found = await wait_for(
            client, API_SERVICES, "v1.shop.example.com", until=reason_is("ServiceNotFound"), timeout=10
        )
        assert found is not None
        assert is_condition_false(found, "Available")
        service = {"metadata": {"name": "orders", "namespace": "default"}, "spec": {"type": "ExternalName"}}
        service["spec"]["externalName"] = "127.0.0.1"
        await client.create(SERVICES, service)
        await client.patch(API_SERVICES, found, {"metadata": {"labels": {"checked": "again"}}})
        found = await wait_for(
            client, API_SERVICES, "v1.shop.example.com", until=reason_is("FailedDiscoveryCheck"), timeout=10
        )
        condition = find_condition(value_at(found or {}, "status", "conditions"), "Available") or {}
        assert condition["message"].startswith("failing or missing response from /apis/shop.example.com/v1: ")
        assert "address not allowed: 127.0.0.1" in condition["message"]
        local = {"group": "local.example.com", "service": None}
        await client.create(API_SERVICES, {**new_api_service(**local), "metadata": {"name": "v1.local.example.com"}})
        found = await wait_for(client, API_SERVICES, "v1.local.example.com", until=reason_is("Local"), timeout=10)
        assert found is not None
        assert is_condition_true(found, "Available")


async def becoming_available(client: Client) -> None:
    """Other controllers create the Service and its endpoints later. The tested API serves the group itself."""
    await client.create(API_SERVICES, new_api_service())
    name = "v1.shop.example.com"
    await wait_for(client, API_SERVICES, name, until=reason_is("ServiceNotFound"), timeout=AN_HOUR)
    await client.create(SERVICES, new_service())
    await wait_for(client, API_SERVICES, name, until=reason_is("EndpointsNotFound"), timeout=AN_HOUR)
    await client.create(ENDPOINT_SLICES, new_slice())
    await wait_for(client, API_SERVICES, name, until=reason_is("Passed"), timeout=AN_HOUR)


def test_perturbed_api_service_becomes_available() -> None:
    resources = [API_SERVICES, SERVICES, ENDPOINT_SLICES, ORDERS]
    report = perturb(Scenario("apiservices", resources, api_services.install, becoming_available))
    assert report.calls > 0
    assert not report.failures, report
