"""Reconcilers that write physical state to the virtual cluster: nodes, node leases, CSINodes, status."""
