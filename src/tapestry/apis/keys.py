"""Every label, annotation, finalizer, taint and reason of ours, once."""

from typing import Final

PREFIX: Final = "tapestry.io/"

# Labels.
MANAGED_BY: Final = PREFIX + "managed-by"
TAPESTRY: Final = "tapestry"
CLUSTER_BINDING: Final = PREFIX + "cluster-binding"
CLUSTER_BINDING_UID: Final = PREFIX + "cluster-binding-uid"
PHYSICAL_CLUSTER_ID: Final = PREFIX + "physical-cluster-id"
PHYSICAL_NODE_NAME: Final = PREFIX + "physical-node-name"
VIRTUAL_CLUSTER: Final = PREFIX + "virtual-cluster"
VIRTUAL_NAMESPACE: Final = PREFIX + "virtual-namespace"
WORKLOAD_TYPE: Final = PREFIX + "workload-type"
WORKLOAD_NAME: Final = PREFIX + "workload-name"
NODE_TYPE: Final = PREFIX + "node-type"
VIRTUAL: Final = "virtual"
HOST_PORTS: Final = PREFIX + "host-ports"
OWNER_POLICY: Final = PREFIX + "owner-policy"
REQUIRED: Final = "required"

# Annotations.
PHYSICAL_NODE_UID: Final = PREFIX + "physical-node-uid"
LAST_SYNC_TIME: Final = PREFIX + "last-sync-time"
POLICIES_APPLIED: Final = PREFIX + "policies-applied"
EXPECTED_METADATA: Final = PREFIX + "expected-metadata"
LEASE_ENDS: Final = PREFIX + "lease-ends"
LAST_TERMS: Final = PREFIX + "last-terms"
HELD_TOLERATIONS: Final = PREFIX + "held-tolerations"
FORCE_UNBIND: Final = PREFIX + "force-unbind"
LEFT_BEHIND: Final = PREFIX + "left-behind"
APPROVE_IDENTITY: Final = PREFIX + "approve-identity"
RECLAIM: Final = PREFIX + "reclaim"
NOW: Final = "now"
RUNNING_DAEMONSET: Final = PREFIX + "running-daemonset"

# Annotations of pods: on the virtual one for people, on its twin for us.
PHYSICAL_POD_NAMESPACE: Final = PREFIX + "physical-pod-namespace"
PHYSICAL_POD_NAME: Final = PREFIX + "physical-pod-name"
PHYSICAL_POD_UID: Final = PREFIX + "physical-pod-uid"
VIRTUAL_POD_NAMESPACE: Final = PREFIX + "virtual-pod-namespace"
VIRTUAL_POD_NAME: Final = PREFIX + "virtual-pod-name"
VIRTUAL_POD_UID: Final = PREFIX + "virtual-pod-uid"
VIRTUAL_NODE_NAME: Final = PREFIX + "virtual-node-name"

# Annotations of whatever else is ours below: of what it is the copy.  Its namespace is the label `virtual-namespace`.
VIRTUAL_NAME: Final = PREFIX + "virtual-name"
VIRTUAL_UID: Final = PREFIX + "virtual-uid"
WRITTEN_DIGEST: Final = PREFIX + "written-digest"
TOKENS_RENEWAL: Final = PREFIX + "tokens-renewal"

# Conditions of virtual pods: in the status, which tenants cannot write.
MAPPED: Final = PREFIX + "Mapped"
ACCEPTED: Final = PREFIX + "Accepted"

# Finalizers: on ClusterBindings, in the virtual cluster only.
MANAGER_FINALIZER: Final = PREFIX + "clusterbinding-manager"
SYNCER_FINALIZER: Final = PREFIX + "clusterbinding-syncer"

# Taints.  NoExecute is never used: what is reclaimed is reclaimed by us, at its deadline.
VNODE_TAINT: Final = PREFIX + "vnode"
OUT_OF_TIME_WINDOWS: Final = PREFIX + "out-of-time-windows"
WITHDRAWING: Final = PREFIX + "withdrawing"
PHYSICAL_NODE_UNSCHEDULABLE: Final = PREFIX + "physical-node-unschedulable"
PROCESS_NODE: Final = PREFIX + "process-node"
"""Also a label: of nodes whose containers are processes of one machine; only our own run there, unless told so."""
NO_SCHEDULE: Final = "NoSchedule"

PRIORITY_CLASS: Final = "tapestry-leased"
PRIORITY_CLASS_MISSING: Final = "PriorityClassMissing"
"""The reason for which a binding is not Permitted that its syncer gives and takes back, and not the manager."""
SYSTEM_NAMESPACE: Final = "tapestry-system"
HOST_PORTS_NAMESPACE: Final = "tapestry-host-ports"
"""Of the pods that stand for host ports: apart from kubeconfigs, for every syncer may create pods there."""
