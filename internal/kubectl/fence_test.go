package kubectl

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/inspect"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/hostile"
)

// fenceOn is the NodeFence of a node, which waits for evidence.
func fenceOn(node string, epoch int64) *fencingv1.NodeFence {
	return &fencingv1.NodeFence{
		ObjectMeta: metav1.ObjectMeta{Name: node, Finalizers: []string{kube.FenceFinalizer}},
		Spec:       fencingv1.NodeFenceSpec{NodeName: node, NodeUID: "u", BootID: bootOfA, MachineID: uuidOfA, Epoch: epoch},
		Status:     fencingv1.NodeFenceStatus{Phase: fencingv1.Phase(fencing.Suspected)},
	}
}

func sourceOf(node, namespace, secret string) *fencingv1.FenceSource {
	return &fencingv1.FenceSource{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: fencingv1.FenceSourceSpec{Levels: []fencingv1.FenceLevel{{Feeds: []fencingv1.Feed{{
			Agent: "fence_ipmilan", SecretRef: &fencingv1.SecretReference{Namespace: namespace, Name: secret},
		}}}}},
		Status: fencingv1.FenceSourceStatus{Conditions: []metav1.Condition{{
			Type: kube.ConditionFenceReady, Status: metav1.ConditionFalse, Reason: "SecretUnreadable", LastTransitionTime: metav1.Now(),
			Message: "read Secret " + namespace + "/" + secret + `: secrets "` + secret + `" not found`,
		}}},
	}
}

// lost makes a node that is not Ready and has not renewed its lease for a minute.
func lost(t *testing.T, name string) {
	t.Helper()
	n := node(name)
	n.Status.Conditions[0].Status = corev1.ConditionUnknown
	n.Status.NodeInfo.BootID, n.Status.NodeInfo.SystemUUID = bootOfA, uuidOfA
	create(t, n)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}}
	lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now().Add(-time.Minute)}
	create(t, lease)
}

// confirmer may state that machines are off, as the shipped ClusterRole allows.
func confirmer(t *testing.T, name string) (kubeconfig string) {
	t.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "belay-fence-confirm"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: name}},
	}
	create(t, binding)
	role := rbacv1.ClusterRole{}
	if err := server.Client.Get(t.Context(), client.ObjectKey{Name: binding.RoleRef.Name}, &role); err != nil {
		t.Fatal(err)
	}
	server.AwaitRights(t, []rbacv1.ClusterRole{role}, name)
	return apiserver.Kubeconfig(t, server.User(t, name))
}

func stored(t *testing.T, name string) *fencingv1.NodeFence {
	t.Helper()
	f := &fencingv1.NodeFence{}
	if err := server.Client.Get(t.Context(), client.ObjectKey{Name: name}, f); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestFence: the statement is shown, checked, and written only with --confirm, by a user who may confirm, in the user's own name.
func TestFence(t *testing.T) {
	server.Start(t)
	lost(t, "stated")
	create(t, node("well"))
	create(t, fenceOn("stated", 1))
	carol := confirmer(t, "carol")
	say := []string{"fence", "stated", "--confirm-powered-off", "--machine", strings.ToUpper(uuidOfA), "--reason", "pulled both plugs"}
	for name, tc := range map[string]struct {
		args   []string
		status int
		says   string
	}{
		"nothing confirmed":    {[]string{"fence", "stated"}, StatusBlocked, "confirmation, machine, reason"},
		"another machine":      {[]string{"fence", "node/stated", "--confirm-powered-off", "--machine", "x", "--reason", "r", "--confirm"}, StatusBlocked, "machine, NOT MET"},
		"a node that is well":  {[]string{"fence", "well", "--confirm-powered-off", "--machine", uuidOfA, "--reason", "r", "--confirm"}, StatusBlocked, "has no NodeFence"},
		"too long":             {append(say, "--expires", "25h"), StatusError, "at most 24h"},
		"never":                {append(say, "--expires", "-1s"), StatusError, "more than 0"},
		"another kind":         {[]string{"fence", "pod/x"}, StatusError, "name a node"},
		"only shown":           {say, StatusClear, "the API server accepts the request"},
		"only shown, for JSON": {append(say, "-o", "json"), StatusClear, `"action": "StatePoweredOff"`},
	} {
		got := run(t, carol, tc.args...)
		if got.status != tc.status || !strings.Contains(got.out+got.err, tc.says) {
			t.Errorf("%s: exit status %d, want %d and %q:\n%s%s", name, got.status, tc.status, tc.says, got.out, got.err)
		}
		if strings.Contains(got.out, "You lack permission") {
			t.Errorf("%s: the ClusterRole lacks what the command reads:\n%s", name, got.out)
		}
		if stored(t, "stated").Spec.Statement != nil {
			t.Fatalf("%s: a statement was written", name)
		}
	}
	if got := run(t, carol, append(say, "--confirm")...); got.status != StatusClear {
		t.Fatalf("exit status %d:\n%s%s", got.status, got.out, got.err)
	}
	s := stored(t, "stated").Spec.Statement
	if s == nil || s.By != "carol" || s.Reason != "pulled both plugs" || s.MachineID != uuidOfA || time.Until(s.Expires.Time) > time.Hour {
		t.Errorf("the statement is %+v", s)
	}
	if got := run(t, carol, "evidence", "stated"); got.status != StatusClear || !strings.Contains(got.out, "Statement by carol: pulled both plugs") || !strings.Contains(got.out, "counts until") {
		t.Errorf("exit status %d:\n%s%s", got.status, got.out, got.err)
	}
}

// TestEvidenceOfALongStatement: what was written by other means, and expires too late, is shown as what it is.
func TestEvidenceOfALongStatement(t *testing.T) {
	server.Start(t)
	lost(t, "stated-long")
	f := fenceOn("stated-long", 1)
	f.Spec.Statement = &fencingv1.Statement{By: "admin", Reason: "r" + hostile.Text, MachineID: uuidOfA, Expires: metav1.NewTime(time.Now().Add(48 * time.Hour))}
	create(t, f)
	kubeconfig := apiserver.Kubeconfig(t, server.Config())
	got := run(t, kubeconfig, "evidence", "stated-long")
	if !strings.Contains(got.out, "expires too late: no evidence") || !strings.Contains(got.out, "Statement by admin: r") || !strings.Contains(got.out, hostile.Shown) {
		t.Errorf("exit status %d:\n%s%s", got.status, got.out, got.err)
	}
	hostile.Check(t, "a person's statement", got.out)
	if got := run(t, kubeconfig, "evidence", "stated-long", "-o", "json"); !strings.Contains(got.out, `"statementTooLong": true`) {
		t.Errorf("exit status %d:\n%s%s", got.status, got.out, got.err)
	}
}

// TestFenceWithoutPermission: a user who may write NodeFences, and not confirm, is refused before anything is written.
func TestFenceWithoutPermission(t *testing.T) {
	server.Start(t)
	lost(t, "unconfirmed")
	create(t, fenceOn("unconfirmed", 1))
	server.Grant(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "mallory"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"fencing.belay.dev"}, Resources: []string{"nodefences", "fencesources"}, Verbs: []string{"get", "list", "patch"}},
		{APIGroups: []string{"", "coordination.k8s.io"}, Resources: []string{"nodes", "leases"}, Verbs: []string{"get", "list"}},
	}}, "mallory")
	kubeconfig := apiserver.Kubeconfig(t, server.User(t, "mallory"))
	got := run(t, kubeconfig, "fence", "unconfirmed", "--confirm-powered-off", "--machine", uuidOfA, "--reason", "r", "--confirm")
	if got.status != StatusBlocked || !strings.Contains(got.out, "permission, NOT MET: you may not confirm") || stored(t, "unconfirmed").Spec.Statement != nil {
		t.Errorf("exit status %d, want 2:\n%s%s", got.status, got.out, got.err)
	}
	if got := run(t, kubeconfig, "unfence", "unconfirmed", "--confirm"); got.status != StatusBlocked || stored(t, "unconfirmed").DeletionTimestamp != nil {
		t.Errorf("unfence: exit status %d, want 2:\n%s%s", got.status, got.out, got.err)
	}
}

// TestFenceOfAnotherVersion: what changed since it was looked at is not written to.
func TestFenceOfAnotherVersion(t *testing.T) {
	server.Start(t)
	lost(t, "changed")
	create(t, fenceOn("changed", 1))
	reader, err := inspect.New(server.Config())
	if err != nil {
		t.Fatal(err)
	}
	request := diagnosis.StatementRequest{PoweredOff: true, Machine: uuidOfA, Reason: "r", Expires: time.Hour}
	author := reader.Author(t.Context(), verbConfirm, "changed")
	plan, err := diagnosis.PlanStatement(reader.Evidence(t.Context(), "changed"), "changed", request, author)
	if err != nil || plan.Refusal != "" {
		t.Fatalf("%v %+v", err, plan)
	}
	release, err := diagnosis.PlanUnfence(reader.Evidence(t.Context(), "changed"), "changed", "", diagnosis.Author{Name: "x", May: decision.Yes})
	if err != nil || release.Refusal != "" {
		t.Fatalf("%v %+v", err, release)
	}
	changed := stored(t, "changed")
	changed.Annotations = map[string]string{"a": "b"}
	if err := server.Client.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	for _, p := range []diagnosis.FencePlan{plan, release} {
		if err := reader.Fence(t.Context(), p, false); err == nil {
			t.Errorf("%s was carried out on another version", p.Action)
		}
	}
	if f := stored(t, "changed"); f.Spec.Statement != nil || f.DeletionTimestamp != nil {
		t.Errorf("%+v", f)
	}
}

// TestUnfence: the NodeFence is deleted only with --confirm, and its finalizer and the taints stay for recovery to remove.
func TestUnfence(t *testing.T) {
	server.Start(t)
	lost(t, "released")
	create(t, fenceOn("released", 1))
	n := &corev1.Node{}
	if err := server.Client.Get(t.Context(), client.ObjectKey{Name: "released"}, n); err != nil {
		t.Fatal(err)
	}
	n.Spec.Taints = []corev1.Taint{{Key: kube.IsolationTaint, Value: "belay-1", Effect: corev1.TaintEffectNoSchedule}}
	if err := server.Client.Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	dave := confirmer(t, "dave")
	got := run(t, dave, "unfence", "released")
	if got.status != StatusClear || !strings.Contains(got.out, "recovery suspects it again") || !strings.Contains(got.out, "nothing happens until") || stored(t, "released").DeletionTimestamp != nil {
		t.Errorf("exit status %d:\n%s%s", got.status, got.out, got.err)
	}
	if got := run(t, dave, "unfence", "node/released", "--confirm"); got.status != StatusClear {
		t.Errorf("exit status %d:\n%s%s", got.status, got.out, got.err)
	}
	if f := stored(t, "released"); f.DeletionTimestamp == nil || len(f.Finalizers) == 0 {
		t.Errorf("%+v", f.ObjectMeta)
	}
	if err := server.Client.Get(t.Context(), client.ObjectKey{Name: "released"}, n); err != nil || len(n.Spec.Taints) == 0 {
		t.Errorf("%v: the taints are %v", err, n.Spec.Taints)
	}
	if got := run(t, dave, "unfence", "released", "--confirm"); got.status != StatusBlocked || !strings.Contains(got.out, "being deleted already") {
		t.Errorf("exit status %d:\n%s%s", got.status, got.out, got.err)
	}
	if got := run(t, dave, "unfence", "no-such-node"); got.status != StatusBlocked || !strings.Contains(got.out, "has no NodeFence") {
		t.Errorf("exit status %d:\n%s%s", got.status, got.out, got.err)
	}
}

// TestEvidenceHidesSecrets: no output names a Secret or its namespace, also in the message of a condition.
func TestEvidenceHidesSecrets(t *testing.T) {
	server.Start(t)
	lost(t, "hiding")
	create(t, fenceOn("hiding", 1))
	create(t, sourceOf("hiding", "hushed-bmcs", "hushed-login"))
	erin := confirmer(t, "erin")
	for _, args := range [][]string{
		{"evidence", "hiding"}, {"evidence", "hiding", "-o", "wide"}, {"evidence", "hiding", "-o", "json"}, {"evidence", "hiding", "-o", "yaml"},
		{"fence", "hiding"}, {"fence", "hiding", "-o", "json"}, {"unfence", "hiding"}, {"unfence", "hiding", "-o", "yaml"}, {"explain", "node/hiding"}, {"explain", "node/hiding", "-o", "json"}, {"check", "-o", "json"}, {"stuck", "-A", "-o", "json"},
	} {
		got := run(t, erin, args...)
		if strings.Contains(got.out+got.err, "hushed-") {
			t.Errorf("%v names a Secret:\n%s%s", args, got.out, got.err)
		}
		if args[0] == "evidence" && (got.status != StatusClear || !strings.Contains(got.out, "fence_ipmilan") || !strings.Contains(got.out, "SecretUnreadable")) {
			t.Errorf("%v: exit status %d:\n%s%s", args, got.status, got.out, got.err)
		}
	}
	stranger := apiserver.Kubeconfig(t, server.User(t, "stranger-to-fences"))
	for _, args := range [][]string{{"evidence", "hiding"}, {"fence", "hiding"}, {"unfence", "hiding"}} {
		if got := run(t, stranger, args...); got.status != StatusError || !strings.Contains(got.err, "permission") {
			t.Errorf("%v: exit status %d, want 1 and the missing permission:\n%s%s", args, got.status, got.out, got.err)
		}
	}
}

// TestFailingReadsOfRecovery: whatever the API server answers for one resource, no node seems to be fenceable, and explain works as without
// recovery.
func TestFailingReadsOfRecovery(t *testing.T) {
	server.Start(t)
	lost(t, "shaky")
	create(t, fenceOn("shaky", 1))
	sound := sourceOf("shaky", "a", "b")
	sound.Status.Conditions[0].Status = metav1.ConditionTrue
	create(t, sound)
	for name, code := range map[string]int{"403": 403, "404": 404, "500": 500} {
		for _, resource := range []string{"nodefences", "fencesources", "nodes", "leases"} {
			t.Run(name+"/"+resource, func(t *testing.T) {
				kubeconfig := through(t, broken{resource: resource, fail: status(code, map[int]string{403: "Forbidden", 404: "NotFound", 500: "InternalError"}[code])}) //nolint:bodyclose // the proxy closes them
				got := run(t, kubeconfig, "evidence", "shaky", "--request-timeout", "2m")
				if strings.Contains(got.out, "COULD BE FENCED") || resource == "nodefences" && got.status != StatusError {
					t.Errorf("exit status %d:\n%s%s", got.status, got.out, got.err)
				}
				if resource == "nodefences" && name == "404" && !strings.Contains(got.err, "recovery is not installed") {
					t.Errorf("it does not say that recovery is not installed: %s", got.err)
				}
				about := run(t, kubeconfig, "explain", "node/shaky", "--request-timeout", "2m")
				if said := strings.Contains(about.out+about.err, "list nodefences"); resource == "nodefences" && said == (name == "404") {
					t.Errorf("says that NodeFences could not be read: %v\n%s%s", said, about.out, about.err)
				}
			})
		}
	}
}

// TestExplainAsksLittleMoreWithRecovery: a command asks the API server for NodeFences, and for what recovery reported only where a node is lost.
func TestExplainAsksLittleMoreWithRecovery(t *testing.T) {
	server.Start(t)
	lost(t, "counted")
	create(t, node("counted-well"))
	for name, tc := range map[string]struct {
		node   string
		events int
	}{"lost": {"counted", 1}, "well": {"counted-well", 0}} {
		var fences, events, discovery atomic.Int64
		config := server.Config()
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/nodefences"):
					fences.Add(1)
				case strings.HasSuffix(r.URL.Path, "/fencing.belay.dev/v1alpha1"):
					discovery.Add(1)
				case strings.Contains(r.URL.RawQuery, "reportingComponent"):
					events.Add(1)
				}
				return next.RoundTrip(r)
			})
		})
		reader, err := inspect.New(config)
		if err != nil {
			t.Fatal(err)
		}
		reader.About(t.Context(), diagnosis.Ref{Resource: diagnosis.Nodes, Name: tc.node})
		if fences.Load() != 1 || events.Load() != int64(tc.events) || discovery.Load() != 0 {
			t.Errorf("%s: %d requests for NodeFences, %d for events, %d for the API", name, fences.Load(), events.Load(), discovery.Load())
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestHeldNodeIsExplained: what the detector reported about a node, which it does not fence, is in the answers.
func TestHeldNodeIsExplained(t *testing.T) {
	server.Start(t)
	lost(t, "braked")
	create(t, heldLease("kube-system", "belay-recovery-detector", "d"))
	n := &corev1.Node{}
	if err := server.Client.Get(t.Context(), client.ObjectKey{Name: "braked"}, n); err != nil {
		t.Fatal(err)
	}
	create(t, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "braked.1"}, Type: corev1.EventTypeWarning, Reason: string(fencing.TooManySilent), Message: explain.NotFenced(fencing.TooManySilent),
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "braked", UID: n.UID}, ReportingController: diagnosis.Recovery, ReportingInstance: "d", Action: "Fence", EventTime: metav1.NowMicro(),
	})
	kubeconfig := apiserver.Kubeconfig(t, server.Config())
	for _, tc := range []struct {
		args   []string
		status int
	}{
		{[]string{"explain", "node/braked"}, StatusBlocked},
		{[]string{"evidence", "braked"}, 0}, // it has been silent for a minute
		{[]string{"fence", "braked"}, StatusBlocked},
	} {
		if got := run(t, kubeconfig, tc.args...); !strings.Contains(got.out, "TooManySilent") || got.status != tc.status {
			t.Errorf("%v: exit status %d:\n%s%s", tc.args, got.status, got.out, got.err)
		}
	}
}
