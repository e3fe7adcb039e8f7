//go:build tools

// Package tools pins etcd; tools/kube_assets.py builds it.
package tools

import _ "go.etcd.io/etcd/server/v3"
