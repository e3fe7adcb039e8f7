"""Request path: routing, reads, and writes through a pipeline of steps, over the packages for each concern."""
