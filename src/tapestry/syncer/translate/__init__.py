"""What virtual objects look like below, and what comes back up: pure."""
