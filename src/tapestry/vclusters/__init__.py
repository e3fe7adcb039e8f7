"""The lifecycle service of virtual clusters: its model and rules, its orchestrator and its APIs."""
