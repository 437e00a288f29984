package cluster_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"belay.dev/belay/lab/audit"
	"belay.dev/belay/lab/cluster"
)

// TestBare starts the API server alone, then each controller by itself, and finds in the audit
// log that each was there and that none was refused anything.
func TestBare(t *testing.T) {
	lab := start(t, cluster.Options{Name: "bare", Bare: true, Audit: true})
	if got := strings.Join(lab.Components(), " "); got != "etcd kube-apiserver" {
		t.Errorf("a bare lab runs %s", got)
	}
	for plane, user := range map[string]string{
		cluster.PlaneBelay: cluster.UserController, cluster.PlaneUpstream: cluster.UserUpstreamManager,
	} {
		from := time.Now()
		name, err := lab.StartController(plane)
		if err != nil {
			t.Fatal(err)
		}
		// It leads, and so decides, only after it has listed everything.
		for !asked(t, lab, from, user, "watch volumeattachments") {
			state, err := lab.Component(name)
			if err != nil || state.PID == 0 || time.Since(from) > startWithin {
				t.Fatalf("%s does not watch: %+v, %v", name, state, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if err := lab.Stop(t.Context(), name); err != nil {
			t.Error(err)
		}
		if state, err := lab.Component(name); err != nil || state.PID != 0 {
			t.Errorf("after its stop, %s is %+v, %v", name, state, err)
		}
	}
	requests, err := lab.Requests(t.Context(), time.Time{}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if refused := audit.Refused(audit.Of(requests, cluster.UserController)); len(refused) > 0 {
		t.Errorf("refused: %v", refused)
	}
	dir := lab.Dir()
	if err := lab.Down(t.Context()); err != nil {
		t.Error(err)
	}
	assertNothingLeft(t, dir)
}

func asked(t *testing.T, lab *cluster.Cluster, from time.Time, user, right string) bool {
	t.Helper()
	requests, err := lab.Requests(t.Context(), from, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	return audit.Rights(audit.Of(requests, user))[right] > 0
}

func TestRequestsNeedAudit(t *testing.T) {
	_, err := (&cluster.Cluster{}).Requests(t.Context(), time.Time{}, time.Time{})
	if !errors.Is(err, cluster.ErrNotAudited) {
		t.Errorf("without an audit log: %v", err)
	}
}
