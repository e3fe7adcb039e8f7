"""Pure translation of objects between the virtual and the physical cluster."""
