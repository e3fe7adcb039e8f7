"""Kinds that are synced between a plane and its host cluster, besides pods and what they refer to."""
