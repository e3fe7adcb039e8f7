"""Commands of the `tapestry` command line."""
