package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// csi-provisioner prefers KUBECONFIG over its own flag: with the user's environment a component
// of the lab would work on the user's cluster.
func TestComponentsIgnoreUserKubeconfig(t *testing.T) {
	got := componentEnvironment([]string{
		"KUBECONFIG=/home/user/.kube/config", "KUBERNETES_SERVICE_HOST=10.0.0.1", "ETCD_NAME=production",
		"HOME=/root", "PATH=/usr/bin", "BELAY_CACHE=/cache", "HTTP2_PING_TIMEOUT_SECONDS=3", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317",
	})
	want := []string{"HOME=/root", "BELAY_CACHE=/cache", "HTTP2_PING_TIMEOUT_SECONDS=3", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317", "PATH=/usr/bin:/usr/local/sbin:/usr/sbin:/sbin"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got): %s", diff)
	}
}
