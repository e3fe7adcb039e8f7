"""What is measured, one side to a module: each runs in a process of its own, so that none pays for another's imports."""
