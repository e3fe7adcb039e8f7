"""Table rendering for `kubectl get`: the printed columns of every kind."""
