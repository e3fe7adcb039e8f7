"""Storage of objects: an in-memory cache for reads and watches, and durable backends."""
