"""From the virtual cluster to the physical one."""
