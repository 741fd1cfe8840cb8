//go:build tools

// Names the test binary that `go test -c` builds, so that its dependencies stay in go.sum.
package tools

import _ "k8s.io/kubernetes/test/e2e"
