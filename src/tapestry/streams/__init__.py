"""Upgraded HTTP connections and the protocols on them: exec, attach and port-forward."""
