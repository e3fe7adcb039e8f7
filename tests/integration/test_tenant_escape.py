"""Attempts of a plane's cluster-admin on the host cluster in which its pods run, and on its other tenants.

The host cluster has two tenants and objects of its owner. Some attempts are requests that must be refused, by the plane
or, with a stolen token, by the host cluster. The others are objects that the plane accepts; afterwards, none of the
attacker's objects in the host cluster reaches anything of others, and nothing of others has changed.
"""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import aiohttp

from tapestry.kube.resources import (
    DISRUPTION_BUDGETS,
    INGRESSES,
    NETWORK_POLICIES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SERVICES,
)

from .escape_actions import ACTIONS, holds_on_to_nodes
from .escape_checks import violations, wait_for_no_changes
from .escape_dns import DNS_ATTEMPTS, learned_names
from .escape_objects import ATTEMPTS, Attempt
from .escape_requests import REFUSED, Refused
from .escape_rights import PLAIN_OBJECTS, PROCESS, PROCESS_OBJECTS, STOLEN, TENANT
from .escaping_tenant import EscapingTenant, escaping_tenant

AT_ONCE = 8
LEAST_TWINS = {
    PODS: 10,
    SERVICES: 10,
    INGRESSES: 15,
    NETWORK_POLICIES: 15,
    DISRUPTION_BUDGETS: 3,
    PERSISTENT_VOLUME_CLAIMS: 2,
}
"""Objects that the attacker must have in the host cluster after its attempts, so that these are checked."""


async def not_refused(tenant: EscapingTenant, requests: Iterable[Refused]) -> list[str]:
    """Send the requests, and return those that were not refused."""
    slots, found = asyncio.Semaphore(AT_ONCE), []

    async def send(request: Refused) -> None:
        async with slots:
            try:
                await request.act(tenant)
            except (AssertionError, aiohttp.ClientError, TimeoutError) as error:
                found.append(f"{request.name}: {error!r}")

    async with asyncio.TaskGroup() as group:
        for each in requests:
            group.create_task(send(each))
    return found


async def allow_plain_objects(tenant: EscapingTenant) -> None:
    """Check that stolen tokens may write objects without what the attempts add to them."""
    for target, objects in ((TENANT, PLAIN_OBJECTS), (PROCESS, PROCESS_OBJECTS)):
        for path, body in objects:
            status, text = await tenant.request("POST", f"{path}?dryRun=All", body, target=target)
            assert status == 201, f"{path}: {status}: {text[:300]}"


async def unexpected_answers(tenant: EscapingTenant, attempts: Iterable[Attempt]) -> list[str]:
    """Write the objects in order, and return those whose write had another status than expected."""
    found = []
    for each in attempts:
        status, text = await tenant.request("POST", each.path, each.body)
        if status not in each.statuses:
            found.append(f"{each.name}: {status}: {text[:300]}")
    return found


async def succeeded_actions(tenant: EscapingTenant) -> list[str]:
    """Take the attempts of several steps in order, and return those that were not refused."""
    found = []
    for name, act in ACTIONS.items():
        try:
            await act(tenant)
        except (AssertionError, aiohttp.ClientError, TimeoutError) as error:
            found.append(f"{name}: {error!r}")
    return found


async def test_no_attempt_of_a_tenant_escapes(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    async with escaping_tenant(tmp_path) as tenant:
        before = await tenant.state_of_others()
        await allow_plain_objects(tenant)
        found = await not_refused(tenant, [*REFUSED, *STOLEN])
        found += await unexpected_answers(tenant, ATTEMPTS)
        found += await succeeded_actions(tenant)
        found += await learned_names(tenant)
        await wait_for_no_changes(tenant)
        found += await violations(tenant)
        after = await tenant.state_of_others()
        found += [
            f"changed: {key}" for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)
        ]
        assert not found, "\n".join(found)
        assert tenant.calls == []
        for resource, least in LEAST_TWINS.items():
            twins = await tenant.host_objects(resource, tenant.own_namespace)
            assert len(twins) >= least, f"the checks need twins of {resource.plural}"
        await holds_on_to_nodes(tenant)
    count = len(REFUSED) + len(STOLEN) + len(ATTEMPTS) + len(ACTIONS) + len(DNS_ATTEMPTS) + 1
    record_property("figure", f"tenant escape: {count} attempts, {len(found)} succeeded")
    assert count >= 100
