"""Process-wide services: configuration, logging, metrics, probes, audit log and tracing."""
