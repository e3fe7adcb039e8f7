"""A scheduler: pods find their nodes.  `asked` is what a pod wants, `rooms` what nodes have, `placing` decides."""
