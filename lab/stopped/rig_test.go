package stopped

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

const (
	// fleet is how many nodes a lab has: one for the writer, and one that is free while two are being released.
	fleet = 4
	// evictedAfter is how long the writer tolerates a node that does not answer, where it is to be evicted. Without it, it would be five minutes.
	evictedAfter = int64(1)
	// givenUpAfter is the grace period of the writer and a minute: before that, no pod that was evicted gives its node up (fencing.Occupant), and none is
	// suspected whose machine refuses connections.
	givenUpAfter = 65 * time.Second
	// backWithin bounds the wait for a node whose kubelet runs again: a command that is open, another silence and another fence.
	backWithin = 5 * time.Minute
)

// rig is a lab whose nodes have a BMC, and a writer.
type rig struct {
	*labtest.Site
	profile fencing.Profile
	fences  *chronicle
}

func open(t *testing.T, name, kind string, profile fencing.Profile) *rig {
	t.Helper()
	s := labtest.OpenSite(t, cluster.Options{
		Name: name, Nodes: fleet, NodeKind: kind, Recovery: profile.Name,
		RecoveryArgs: []string{"--recovery-max-fences=1000"}, // many nodes are switched off in a row
	})
	return &rig{Site: s, profile: profile, fences: chronicleOf(t, s.API)}
}

// of is the same rig for a subtest.
func (r *rig) of(t *testing.T) *rig {
	t.Helper()
	return &rig{Site: r.Of(t), profile: r.profile, fences: r.fences}
}

// tolerates has the writer's pod tolerate a node that does not answer for so many seconds; without an end if seconds is nil.
func (r *rig) tolerates(seconds *int64) {
	r.Helper()
	r.Must(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		pod := r.WriterPod()
		for i := range pod.Spec.Tolerations {
			if t := &pod.Spec.Tolerations[i]; t.Effect == corev1.TaintEffectNoExecute {
				t.TolerationSeconds = seconds
			}
		}
		_, err := r.Scene.Client.CoreV1().Pods(scenario.Namespace).Update(r.Context(), pod, metav1.UpdateOptions{})
		return err
	}))
}

var acknowledgement = regexp.MustCompile(`acknowledged (\d+)`)

// acknowledged is the highest record that a pod has confirmed, read from its log on the disk of its machine: without a kubelet, the API server reaches no
// log. Zero if there is none, as when its kubelet has removed it.
func (r *rig) acknowledged(node string, pod types.UID) (highest int64) {
	r.Helper()
	dir := r.Scene.Cluster.Node(node).Config.Dir
	for _, pattern := range []string{
		filepath.Join(dir, "pod-logs", scenario.Namespace+"_"+scenario.WriterPod+"_"+string(pod), "*", "*.log"), // kubelet
		filepath.Join(dir, "containers", string(pod), "c", "*", "*", "log"),                                     // belay's agent
	} {
		files, err := filepath.Glob(pattern)
		r.Must(err)
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				continue // it was removed a moment ago
			}
			for _, match := range acknowledgement.FindAllSubmatch(raw, -1) {
				n, err := strconv.ParseInt(string(match[1]), 10, 64)
				r.Must(err)
				highest = max(highest, n)
			}
		}
	}
	return highest
}

var beginning = regexp.MustCompile(`found (\d+) records`)

// complete checks that the writer's container found all records that the one before it had acknowledged, unless it is the same one.
func (r *rig) complete(before *corev1.Pod, acknowledged int64) {
	r.Helper()
	now := r.WriterPod()
	if containerOf(now) == containerOf(before) {
		return
	}
	var found int64
	labtest.Until(r.T, labtest.FenceLimit, "the log of the writer on "+now.Spec.NodeName, func() error {
		log, err := r.Scene.Client.CoreV1().Pods(now.Namespace).GetLogs(now.Name, &corev1.PodLogOptions{}).DoRaw(r.Context())
		if err != nil {
			return err
		}
		match := beginning.FindSubmatch(log)
		if match == nil {
			return fmt.Errorf("it does not say how many records it found: %.100s", log)
		}
		found, err = strconv.ParseInt(string(match[1]), 10, 64)
		return err
	})
	r.Logf("%d records were acknowledged on the lost machine; the writer on %s found %d", acknowledged, now.Spec.NodeName, found)
	if acknowledged == 0 || found < acknowledged {
		r.Errorf("record %d was acknowledged, and the next writer found %d", acknowledged, found)
	}
}

// containerOf names the run of the writer's container.
func containerOf(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		return string(pod.UID) + " " + c.ContainerID
	}
	return string(pod.UID)
}

// oneWriter checks the record of the storage: no node has written to the volume after the first write of the next one.
func (r *rig) oneWriter() {
	r.Helper()
	writes := r.Writes()
	for i := 1; i < len(writes); i++ {
		if before, after := writes[i-1], writes[i]; before.Last.After(after.First) {
			r.Errorf("two writers: %s wrote until %v, and %s from %v", before.Node, before.Last, after.Node, after.First)
		}
	}
}

// renewed is an error unless the lease of a node was renewed after a time: a Node may be Ready for a while after its kubelet has stopped.
func (r *rig) renewed(node string, since time.Time) error {
	lease, err := r.Scene.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(r.Context(), node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if lease.Spec.RenewTime == nil || !lease.Spec.RenewTime.After(since) {
		return fmt.Errorf("the lease of %s was renewed at %v", node, lease.Spec.RenewTime)
	}
	return nil
}

// takesPods is an error unless a node is Ready, and nothing keeps pods away from it.
func (r *rig) takesPods(name string) error {
	if err := r.IsReady(name); err != nil {
		return err
	}
	if node := r.Node(name); node.Spec.Unschedulable || len(node.Spec.Taints) > 0 {
		return fmt.Errorf("%s has the taints %v, unschedulable %t", name, node.Spec.Taints, node.Spec.Unschedulable)
	}
	return nil
}

// finished waits until nothing is left of a fence.
func (r *rig) finished(node string) {
	r.Helper()
	r.Released(node)
	labtest.Until(r.T, labtest.FenceLimit, node+" to take pods", func() error { return r.takesPods(node) })
}

// nodes are all nodes.
func (r *rig) nodes() (names []string) {
	for i := range fleet {
		names = append(names, fmt.Sprintf("node-%d", i+1))
	}
	return names
}
