"""Reconcilers that write virtual objects to the physical cluster."""
