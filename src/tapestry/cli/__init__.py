"""Commands of the `tapestry` command line, one module each."""
