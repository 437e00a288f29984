package install

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/cluster"
)

// TestRecovery installs recovery with its fencer in a lab whose nodes have BMCs, cuts the power of the node that a StatefulSet's pod writes on, and waits until it writes
// elsewhere. The pods of recovery run on the nodes too, also on the one that dies.
func TestRecovery(t *testing.T) {
	long(t)
	rootfs(t)
	r := open(t, cluster.Options{
		Name: "install-recovery", Nodes: 3, BMC: true,
		NodeLeaseDuration: fencing.Fast.LeaseDuration, NodeStatusUpdateFrequency: fencing.Fast.RequestTimeout, NodeMonitorGrace: 20 * time.Second,
	})
	r.loadImages(oldVersion, "belay-controller", "belay-controller-fencer")
	must(t, r.scene.Cluster.SwitchController(t.Context(), cluster.PlaneNone))
	r.helm(oldVersion, map[string]any{"recovery": map[string]any{"enabled": true, "profile": fencing.Fast.Name, "secrets": []any{map[string]any{"name": "bmc"}}}})
	must(t, r.scene.Cluster.ApplyFenceSources(t.Context(), namespace))
	r.until("the fencer to find each power switch usable", func(context.Context) (bool, error) {
		out, err := r.run("kubectl", "get", "fencesources", "-o", `jsonpath={range .items[*]}{.status.conditions[?(@.type=="FenceReady")].status} {end}`)
		return out == "True True True ", err
	})
	if _, err := r.scene.Place(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.move("before the power cut")
	writer, err := r.scene.WriterNode()
	must(t, err)
	for _, part := range []string{"belay-controller", "belay-recovery-detector", "belay-recovery-fencer"} {
		t.Logf("%s leads on %s; the writer is on %s", part, r.leader(part).Spec.NodeName, writer)
	}
	// A person does nothing.
	took, err := r.scene.Replay(t.Context(), within, func(context.Context, string) error { return nil })
	if err != nil {
		r.say()
		t.Fatal(err)
	}
	t.Logf("the writer runs elsewhere %.1f s after the power cut", took.Seconds())
	if out := r.do("kubectl", "get", "nodefence", writer, "-o", `jsonpath={.status.conditions[?(@.type=="Proven")].reason}`); out != "PoweredOff" {
		t.Errorf("the fence says that it is proven by %q", out)
	}
	must(t, r.scene.Cluster.PowerOn(writer))
	r.until("the node to be ready, without a taint", func(ctx context.Context) (bool, error) {
		node, err := r.scene.Client.CoreV1().Nodes().Get(ctx, writer, metav1.GetOptions{})
		return err == nil && len(node.Spec.Taints) == 0 && ready(node), err
	})
	// As docs/recovery/README.md says.
	r.do("kubectl", "-n", namespace, "delete", "deployment", "belay-recovery-detector")
	r.do("kubectl", "delete", "nodefences", "--all", "--timeout="+within.String())
	r.uninstall()
	must(t, r.scene.Cluster.SwitchController(t.Context(), cluster.PlaneUpstream))
	r.move("through upstream's controller again")
	r.finish()
}

func ready(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// rootfs sees to it that the files of the fencer's image are there. They are made once, in the cache.
func rootfs(t *testing.T) {
	t.Helper()
	if os.Getenv("BELAY_FENCER_ROOTFS") != "" {
		return
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Skipf("NOT RUN: %v; `apt-get install mmdebstrap`", err)
	}
	cache, err := os.UserCacheDir()
	must(t, err)
	dir := filepath.Join(cache, "belay", "fencer-rootfs")
	if _, err := os.Stat(filepath.Join(dir, "amd64.tar")); err != nil {
		command := exec.CommandContext(t.Context(), "../../hack/fencer-rootfs", "amd64", dir)
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("make the files of the fencer's image: %v\n%s", err, out)
		}
	}
	t.Setenv("BELAY_FENCER_ROOTFS", dir)
}
