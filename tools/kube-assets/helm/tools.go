//go:build tools

// Package tools pins helm; tools/kube_assets.py builds it.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
