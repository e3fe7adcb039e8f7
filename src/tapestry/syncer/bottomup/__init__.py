"""From the physical cluster up: nodes, their leases, their CSI drivers, and what policies came to."""
