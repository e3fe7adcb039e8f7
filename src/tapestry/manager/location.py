"""Name and namespace of an installed manager."""

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import value_at
from tapestry.kube.resources import CLUSTER_ROLE_BINDINGS, SERVICE_ACCOUNTS

MANAGER_NAME = "tapestry-manager"
"""Name of the manager's Deployment, account, roles and Lease."""


async def manager_namespace(client: Client) -> str:
    """Return the namespace of the manager, from its ClusterRoleBinding; by default the one of `tapestry manifests`.

    Only administrators write cluster-scoped objects.  A Deployment might belong to a tenant, who would get the token.
    """
    try:
        binding = await client.find(CLUSTER_ROLE_BINDINGS, MANAGER_NAME)
    except Forbidden:
        return keys.SYSTEM_NAMESPACE
    subjects = value_at(binding, "subjects", default=[])
    accounts = [each for each in subjects if (each["kind"], each["name"]) == (SERVICE_ACCOUNTS.kind, MANAGER_NAME)]
    return accounts[0]["namespace"] if accounts else keys.SYSTEM_NAMESPACE
