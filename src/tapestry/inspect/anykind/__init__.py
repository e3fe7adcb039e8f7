"""Objects of any kind, for people who have no kubectl: what `tapestry k` shows, makes, ends and waits for."""
