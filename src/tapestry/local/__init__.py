"""The world on one machine."""
