//go:build tools

// Package tools pins Kueue; tools/kube_assets.py builds it.
package tools

import _ "sigs.k8s.io/kueue/cmd/kueue"
