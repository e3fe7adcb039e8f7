"""The kubelet API of virtual nodes."""
