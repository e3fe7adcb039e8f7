//go:build tools

// Package tools pins kwok; tools/kube_assets.py builds it.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwok"
