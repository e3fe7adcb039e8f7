"""ReplicationController controller: the ReplicaSet controller with a map as selector."""

from tapestry.controlplane.workloads.replicasets import installer
from tapestry.kube.resources import REPLICATION_CONTROLLERS

install = installer(REPLICATION_CONTROLLERS, "replicationcontrollers")
