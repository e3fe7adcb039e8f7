"""Objects of any kind for users without kubectl: the operations of `tapestry k`."""
