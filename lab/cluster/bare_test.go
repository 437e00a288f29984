package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/lab/audit"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
)

// TestBare starts the API server alone, then each controller by itself, and finds in the audit
// log that each was there and that none was refused anything.
func TestBare(t *testing.T) {
	lab := start(t, labtest.Steady(cluster.Options{Name: "bare", Bare: true, Audit: true}))
	if got := strings.Join(lab.Components(), " "); got != "etcd kube-apiserver" {
		t.Errorf("a bare lab runs %s", got)
	}
	awaitRights(t, lab)
	for plane, user := range map[string]string{
		cluster.PlaneBelay: cluster.UserController, cluster.PlaneUpstream: cluster.UserUpstreamManager,
	} {
		name := startWatching(t, lab, plane, user)
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

// awaitRights waits until the API server has read the rights of belay-controller, which the lab has just written. It asks as the
// administrator: a question of the controller's own could be refused like any other of its requests.
func awaitRights(t *testing.T, lab *cluster.Cluster) {
	t.Helper()
	client, err := kubernetes.NewForConfig(lab.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, right := range []authorizationv1.ResourceAttributes{
		{Verb: "watch", Group: "storage.k8s.io", Resource: "volumeattachments"},
		{Verb: "create", Group: "coordination.k8s.io", Resource: "leases", Namespace: metav1.NamespaceSystem},
	} {
		labtest.Until(t, time.Minute, "the right to "+right.Verb+" "+right.Resource, func() error {
			review, err := client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: cluster.UserController, ResourceAttributes: &right},
			}, metav1.CreateOptions{})
			if err == nil && !review.Status.Allowed {
				err = fmt.Errorf("refused: %+v", review.Status)
			}
			return err
		})
	}
}

// startWatching starts the controller of a plane and returns its name when it watches: it leads, and so decides, only after it has listed
// everything. One that has lost its lease exits, and a cluster would start it again.
func startWatching(t *testing.T, lab *cluster.Cluster, plane, user string) string {
	t.Helper()
	from, lost := time.Now(), 0
	name, err := lab.StartController(plane)
	if err != nil {
		t.Fatal(err)
	}
	for !asked(t, lab, from, user, "watch volumeattachments") {
		state, err := lab.Component(name)
		if err != nil || time.Since(from) > startWithin {
			t.Fatalf("%s does not watch: %+v, %v", name, state, err)
		}
		if state.PID == 0 {
			log, err := os.ReadFile(lab.LogOf(name))
			if lost++; err != nil || strings.Count(string(log), "lection lost") < lost {
				t.Fatalf("%s ended, and not because it lost its lease: %+v, %v\n%s", name, state, err, log)
			}
			if _, err := lab.StartController(plane); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return name
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
