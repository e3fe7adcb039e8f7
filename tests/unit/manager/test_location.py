"""Namespace of an installed manager."""

import pytest

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.controller.testing import InProcessApi, run, running_clock
from tapestry.kube.objects import Object
from tapestry.kube.resources import CLUSTER_ROLE_BINDINGS
from tapestry.manager.installation import installation_objects
from tapestry.manager.location import manager_namespace

RBAC = CLUSTER_ROLE_BINDINGS.group
INSTALLED = [each for each in installation_objects(namespace="grid") if each["kind"] == CLUSTER_ROLE_BINDINGS.kind]
OTHER: Object = {**INSTALLED[0], "subjects": [{"kind": "User", "name": "tapestry-manager", "apiGroup": RBAC}]}


@pytest.mark.parametrize(
    ("bindings", "expected"), [([], keys.SYSTEM_NAMESPACE), ([OTHER], keys.SYSTEM_NAMESPACE), (INSTALLED, "grid")]
)
def test_namespace_is_that_of_the_bound_account(bindings: list[Object], expected: str) -> None:
    async def main() -> None:
        client = Client(InProcessApi([CLUSTER_ROLE_BINDINGS], now=running_clock().now).connect())
        for each in bindings:
            await client.create(CLUSTER_ROLE_BINDINGS, each)
        assert await manager_namespace(client) == expected

    run(main())
