"""One physical cluster and the virtual cluster: what is lent, what runs there, and what comes back."""
