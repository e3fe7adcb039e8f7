"""ReplicationControllers: what there was before ReplicaSets, and the same but for its selector."""

from tapestry.controlplane.workloads.replicasets import keeping
from tapestry.kube.resources import REPLICATION_CONTROLLERS

install = keeping(REPLICATION_CONTROLLERS, "replicationcontrollers")
