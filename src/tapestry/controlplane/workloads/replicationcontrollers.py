"""ReplicationControllers: what there was before ReplicaSets, and the same but for its selector."""

from tapestry.controlplane.workloads.replicasets import installer
from tapestry.kube.resources import REPLICATION_CONTROLLERS

install = installer(REPLICATION_CONTROLLERS, "replicationcontrollers")
