//go:build tools

// Package tools pins metrics-server; tools/kube_assets.py builds it.
package tools

import _ "sigs.k8s.io/metrics-server/cmd/metrics-server"
