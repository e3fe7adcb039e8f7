"""Subresources with more to them than a part of the object."""
