"""Warnings about accepted writes, sent in the `Warning` header."""
