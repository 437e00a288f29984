package main

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/wait"
)

// bind grants a user the shipped permissions, except those on the leases of nodes, and returns once the API server does.
func bind(t *testing.T, user string) {
	t.Helper()
	subject := []rbacv1.Subject{{Kind: "User", Name: user, APIGroup: rbacv1.GroupName}}
	must(t, cluster.Client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user}, Subjects: subject,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "belay-controller"},
	}))
	must(t, cluster.Client.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: user}, Subjects: subject,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "belay-controller"},
	}))
	roles := apiserver.Decode[rbacv1.ClusterRole](t, apiserver.Manifests(t, manifest), "ClusterRole", "Role")
	bound := slices.DeleteFunc(roles, func(r rbacv1.ClusterRole) bool { return r.Namespace == "kube-node-lease" })
	cluster.AwaitRights(t, bound, user)
}

// SIGTERM and Ctrl-C end it at once, and the lease is free.
func TestEndsAtOnce(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "Ctrl-C": syscall.SIGINT} {
		t.Run(name, func(t *testing.T) {
			p := start(t, "one")
			p.leads()
			if code, _ := p.ask(p.health, "/healthz"); code != http.StatusOK {
				t.Errorf("/healthz says %d", code)
			}
			sent := time.Now()
			p.Signal(signal)
			if code := p.Wait(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			// A second is a long time, but not on a busy machine. A part that does not end is cut off after 30 s, with an
			// exit code other than 0, and the process ends after abandonStop at the latest.
			if took := time.Since(sent); took > 35*time.Second {
				t.Errorf("it took %v", took)
			}
			if holder := lease(t).Spec.HolderIdentity; holder != nil && *holder != "" {
				t.Errorf("the lease is still held by %s", *holder)
			}
		})
	}
}

// A leader that another has deposed ends, and says why.
func TestLostLeaseEndsTheProcess(t *testing.T) {
	p := startWith(t, "one", shipped)
	p.WaitLog("Successfully acquired lease")
	wait.Until(t, "the lease is taken away", func() bool {
		l := lease(t)
		now := metav1.NowMicro()
		l.Spec.HolderIdentity, l.Spec.RenewTime = new("somebody"), &now
		return cluster.Client.Update(t.Context(), l) == nil
	})
	if code := p.Wait(); code == 0 {
		t.Error("exit code 0")
	}
	p.WaitLog("leader election lost")
}

// A standby is ready, and takes over when the leader leaves or is killed, although it asks for the lease by itself every
// ten minutes.
func TestStandbyTakesOver(t *testing.T) {
	for _, tt := range []struct {
		name   string
		signal syscall.Signal
	}{
		{"leaves", syscall.SIGTERM},
		{"killed", syscall.SIGKILL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newNamedSite(t, "hand-over-"+tt.name, 2)
			leader := start(t, "leader")
			leader.leads()
			standby := start(t, "standby")
			standby.ready()
			s.pod(0)
			wait.Until(t, "the leader attaches", func() bool { return s.attachment(0) != nil })

			sent := time.Now()
			leader.Signal(tt.signal)
			leader.Wait()
			s.pod(1)
			if tt.signal == syscall.SIGKILL {
				if w := standby.writes(); len(w) > 0 {
					t.Errorf("it wrote although the lease of the leader had not run out: %+v", w)
				}
				runsOut(t)
			}
			wait.Until(t, "the standby attaches", func() bool { return s.attachment(1) != nil })
			t.Logf("failover after %v: first write of the standby after %v", tt.signal, time.Since(sent).Round(time.Millisecond))
		})
	}
}

// A leader that was frozen for longer than its lease, and thawed with work at hand,
// sends nothing and ends.
func TestPausedLeaderSendsNothing(t *testing.T) {
	const volumes = 40
	s := newSite(t, volumes)
	// It must renew its lease until it is frozen, on a busy machine too.
	old := startWith(t, "old", leaseTimes{45 * time.Second, 30 * time.Second, time.Second})
	old.leads()
	s.pod(0)
	wait.Until(t, "it attaches", func() bool { return s.attachment(0) != nil })
	old.pause() // before the next one starts, because it must renew its lease until then
	next := startWith(t, "next", lasting)
	next.leads()
	// The new leader is frozen too, so that the old one finds all the work undone.
	next.pause()
	for n := 1; n < volumes; n++ {
		s.pod(n)
	}
	thawed := time.Now()
	old.resume()
	if code := old.Wait(); code == 0 {
		t.Error("exit code 0")
	}
	for _, w := range old.writes() {
		if w.At.After(thawed) {
			t.Errorf("the deposed leader sent %s %s %s", w.Verb, w.ObjectRef.Resource, w.ObjectRef.Name)
		}
	}
	if old.Logged("the leader lease was not renewed in time") == 0 {
		t.Log("it ended before it tried")
	}
	next.resume()
	wait.Until(t, "the new leader does the work", func() bool { return s.attachment(volumes-1) != nil })
}

// The process refuses to lead beside upstream's controller, and writes nothing.
func TestRefusesBesideUpstream(t *testing.T) {
	s := newSite(t, 1)
	s.pod(0)
	upstream := upstreamPod("--controllers=*")
	must(t, cluster.Client.Create(t.Context(), upstream))
	t.Cleanup(func() { _ = cluster.Client.Delete(context.Background(), upstream, client.GracePeriodSeconds(0)) })
	p := start(t, "one")
	if code := p.Wait(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	p.WaitLog("start it with --controllers=*,-persistentvolume-attach-detach-controller")
	if w := p.writes(); len(w) > 0 {
		t.Errorf("it wrote all the same: %+v", w)
	}
}

// Another controller that is always slower is found by its events. Then one attach is held
// back, the other controller makes that attachment, and belay halts: readiness, metrics,
// the log and an event report it.
func TestHaltsBesideAnotherController(t *testing.T) {
	const volumes = 20
	s := newSite(t, volumes)
	other := upstreamClient(t)
	t.Setenv(settleVariable, "1ms")
	p := startWith(t, "one", leaseTimes{5 * time.Minute, 4 * time.Minute, 500 * time.Millisecond})
	p.leads()
	s.pod(0)
	wait.Until(t, "it attaches", func() bool { return s.attachment(0) != nil })
	answered := false
	for n := 1; n < volumes-1 && !answered; n++ { // a machine that is busy may answer too late
		s.foreignEvents(other, n, func() bool { return p.Logged("Another component acts as an attach/detach controller") > 0 })
		s.pod(n)
		made := s.foreignAttachment(other, n)
		held := time.Now().Add(10 * time.Second)
		wait.Until(t, "it halts, or it is too late for that", func() bool {
			code, _ := p.ask(p.health, "/readyz")
			answered = code == http.StatusInternalServerError
			return answered || !made || time.Now().After(held)
		})
	}
	if !answered {
		t.Fatal("it never halted")
	}
	p.WaitLog("Halted attach and detach until restart")
	if code, _ := p.ask(p.health, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz says %d: it would be restarted, and continue", code)
	}
	if _, metrics := p.ask(p.metrics, "/metrics"); !strings.Contains(metrics, "\nattachdetach_halted 1\n") {
		t.Error("the metrics do not show it")
	}
	s.awaitEvent("belay-controller has halted")
	s.pod(volumes - 1)
	stopped := lease(t).Spec.RenewTime
	wait.Until(t, "it keeps its lease: its successor would continue", func() bool {
		return lease(t).Spec.RenewTime.Sub(stopped.Time) > 2*time.Second
	})
	if va := s.attachment(volumes - 1); va != nil {
		t.Error("it attached all the same")
	}
}

// A node may write its own status, and events about any pod, under any name. That never
// halts attach and detach, and the report is restored.
func TestNodeCredentialsDoNotHalt(t *testing.T) {
	s := newSite(t, 3)
	node := s.nodeClient()
	t.Setenv(settleVariable, "1ms")
	p := start(t, "one")
	p.leads()
	s.pod(0)
	wait.Until(t, "it attaches", func() bool { return s.attachment(0) != nil })
	s.attached(0)
	restored := func() bool { return len(s.node().Status.VolumesAttached) == 1 }
	wait.Until(t, "it reports", restored)
	for _, volume := range []string{"a", "b", "c"} {
		s.foreignReport(node, volume)
		wait.Until(t, "the report is restored", restored)
	}
	s.awaitEvent("changed status.volumesAttached of the node")
	wait.Until(t, "the foreign writes are counted", func() bool {
		return strings.Contains(p.metric("attachdetach_foreign_writes_total"), `{resource="nodes/status"} 3`)
	})
	s.foreignEvent(node, "forged")
	p.WaitLog(`resource="events"`)
	for n := 1; n < 3; n++ {
		s.pod(n)
		wait.Until(t, "it attaches on", func() bool { return s.attachment(n) != nil })
	}
	if !strings.Contains(p.metric("attachdetach_halted"), " 0") {
		t.Error("it has halted")
	}

	// The halt relies on this: a node creates no VolumeAttachment, and writes to no other Node.
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: s.name}}
	if err := node.Create(t.Context(), va); !apierrors.IsForbidden(err) {
		t.Errorf("a node may create a VolumeAttachment: %v", err)
	}
	second := newNamedSite(t, s.name+"-2", 0)
	patch := client.RawPatch(types.MergePatchType, []byte(`{"status": {"volumesAttached": [{"name": "x", "devicePath": ""}]}}`))
	if err := node.Status().Patch(t.Context(), second.node(), patch); !apierrors.IsForbidden(err) {
		t.Errorf("a node may write to another: %v", err)
	}
}

// metric gives the lines of one metric.
func (p *controller) metric(name string) string {
	p.t.Helper()
	_, body := p.ask(p.metrics, "/metrics")
	var found []string
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, name) {
			found = append(found, line)
		}
	}
	return strings.Join(found, "")
}
