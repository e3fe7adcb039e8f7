"""What is measured, one side to a module: each runs in its own process, so none pays for the imports of another."""
