package attachdetach

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/wait"
)

// TestShippedRights: a volume is attached, reported, kept while it is in use and detached with the rights that are shipped. They do not
// include the status of VolumeAttachments, by which only the attacher confirms.
func TestShippedRights(t *testing.T) {
	l := newLab(t)
	l.runAttachedOnA()
	l.use("a", "v")
	l.gone("p")
	wait.Until(t, "the detach waits for the node", func() bool {
		requests, err := cluster.Requests(controllerUser)
		l.must(err)
		for _, r := range requests {
			if right := r.Right(); r.Refused() || !granted[right] {
				t.Fatalf("the controller needs %q, which is not granted", right)
			}
		}
		return l.read("v", "a").Annotations[kube.DetachRequestedAnnotation] != ""
	})
	l.use("a")
	l.awaitDetached("v", "a")
}

// checkRights compares the requests of the controller in all tests with the rights that it is shipped with: none was refused,
// and no right is granted that was not used.
func checkRights() error {
	requests, err := cluster.Requests(controllerUser)
	if err != nil {
		return err
	}
	used := maps.Clone(rare)
	var refused, unused []string
	for _, r := range requests {
		if used[r.Right()] = true; r.Refused() {
			refused = append(refused, r.Right())
		}
	}
	for right := range granted {
		if !used[right] {
			unused = append(unused, right)
		}
	}
	slices.Sort(unused)
	if len(refused) > 0 || len(unused) > 0 {
		return fmt.Errorf("rights: refused %v, granted but never used %v", refused, unused)
	}
	return nil
}

// rare are rights that the tests need not use.
var rare = map[string]bool{
	"patch /events": true, // only when an event repeats
	// Only where lists cannot be streamed, or a watch fails; TestRights of the lab covers both.
	"list storage.k8s.io/csidrivers": true, "list storage.k8s.io/csinodes": true, "list /persistentvolumeclaims": true, "list /persistentvolumes": true,
}
