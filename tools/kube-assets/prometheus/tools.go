//go:build tools

// Package tools pins Prometheus; tools/kube_assets.py builds it.
package tools

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
	_ "github.com/prometheus/prometheus/cmd/promtool"
)
