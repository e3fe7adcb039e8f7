"""The lifecycle service for virtual clusters."""
