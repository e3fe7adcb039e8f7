"""Rights in a host cluster: of the account that a process of planes has there, and of the account of each tenant.

`tapestry host add` creates roles from these tables. `host_policies` restricts what roles cannot: in which namespaces
the account of the process may write, and which objects. Add a right here when a controller of tenants needs one; the
test `test_host_rights` lists the rights that nothing has used.
"""

from tapestry.apis.permissions import LIST_WATCH, READ_WRITE, Permission
from tapestry.apis.policies import POLICIES
from tapestry.apis.priorities import PRIORITY_CLASSES
from tapestry.kube.resources import (
    CLUSTER_ROLES,
    CONFIGMAPS,
    DISRUPTION_BUDGETS,
    ENDPOINT_SLICES,
    EVENTS,
    INGRESSES,
    LIMIT_RANGES,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_METRICS,
    PODS,
    RESOURCE_QUOTAS,
    ROLE_BINDINGS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STORAGE_CLASSES,
)
from tapestry.tenants.host_connection import SHARED_NAMESPACE
from tapestry.tenants.host_objects import ACCOUNT

HOST_ACCOUNT = "tapestry-host"
"""ServiceAccount of the processes of planes, in the shared namespace, and the name of its roles."""
WRITE = ("create", "patch", "delete")

HOST_READS = (
    Permission(NODES, ("get", "list", "watch")),
    Permission(POLICIES, LIST_WATCH),
    Permission(NAMESPACES, ("get", "list", "watch")),
    Permission(PODS, LIST_WATCH),
    Permission(EVENTS, LIST_WATCH),
    Permission(CONFIGMAPS, LIST_WATCH),
    Permission(SERVICES, ("get", "list", "watch")),
    Permission(ENDPOINT_SLICES, ("get", "list", "watch")),
    Permission(PERSISTENT_VOLUME_CLAIMS, LIST_WATCH),
    Permission(PERSISTENT_VOLUMES, ("get", "list", "watch")),
    Permission(STORAGE_CLASSES, LIST_WATCH),
    Permission(INGRESSES, ("get", "list", "watch")),
    Permission(NETWORK_POLICIES, ("get", "list", "watch")),
    Permission(DISRUPTION_BUDGETS, LIST_WATCH),
    Permission(PRIORITY_CLASSES, ("list",)),
)
"""Reads of the caches that all tenants share. Most select our label, but a role cannot require that."""

HOST_WRITES = (
    Permission(NAMESPACES, WRITE),
    Permission(RESOURCE_QUOTAS, ("get", "list", *WRITE)),
    Permission(LIMIT_RANGES, ("get", "list", *WRITE)),
    Permission(NETWORK_POLICIES, WRITE),
    Permission(SERVICES, WRITE),
    Permission(ENDPOINT_SLICES, WRITE),
    Permission(INGRESSES, WRITE),
    Permission(SERVICE_ACCOUNTS, ("get", "list", *WRITE)),
    Permission(ROLE_BINDINGS, ("get", "list", *WRITE)),
    Permission(CLUSTER_ROLES, ("bind",), names=(ACCOUNT,)),
    Permission(SERVICE_ACCOUNTS, ("create",), names=(ACCOUNT,), subresource="token"),
)
"""The namespaces of tenants and their setup. Admission policies restrict the writes to these."""

HOST_RIGHTS = (*HOST_READS, *HOST_WRITES)
"""Rights of the account of the process in the whole host cluster: the ClusterRole `tapestry-host`."""

OWN_TOKEN_RIGHTS = (
    Permission(SERVICE_ACCOUNTS, ("create",), SHARED_NAMESPACE, names=(HOST_ACCOUNT,), subresource="token"),
)
"""Rights of that account in the shared namespace: it renews its own token."""

TENANT_RIGHTS = (
    Permission(PODS, READ_WRITE),
    Permission(PODS, ("get",), subresource="log"),
    Permission(PODS, ("create", "get"), subresource="exec"),
    Permission(PODS, ("create", "get"), subresource="attach"),
    Permission(PODS, ("create", "get"), subresource="portforward"),
    Permission(PODS, ("create", "get"), subresource="proxy"),
    Permission(PODS, ("patch",), subresource="ephemeralcontainers"),
    Permission(PODS, ("patch",), subresource="resize"),
    Permission(POD_METRICS, ("list",)),
    Permission(EVENTS, LIST_WATCH),
    Permission(CONFIGMAPS, READ_WRITE),
    Permission(SECRETS, READ_WRITE),
    Permission(SERVICES, READ_WRITE),
    Permission(SERVICES, ("create", "get", "update", "patch", "delete"), subresource="proxy"),
    Permission(ENDPOINT_SLICES, READ_WRITE),
    Permission(PERSISTENT_VOLUME_CLAIMS, READ_WRITE),
    Permission(INGRESSES, READ_WRITE),
    Permission(NETWORK_POLICIES, READ_WRITE),
    Permission(DISRUPTION_BUDGETS, READ_WRITE),
)
"""Rights of the account of a tenant in its namespace: the ClusterRole `tapestry-tenant`."""
