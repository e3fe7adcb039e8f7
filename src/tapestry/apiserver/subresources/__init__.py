"""Handlers of subresources that do not just read or write a part of the object."""
