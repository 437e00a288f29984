package rights

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/preflight"
	"belay.dev/belay/internal/testing/fixture"
)

// TestEventOfAKubeletIsNoWordOfRecovery: a kubelet may create Events about any Node. What it says in the name of recovery is not what "kubectl belay explain" says
// that recovery does, where the Node says otherwise.
func TestEventOfAKubeletIsNoWordOfRecovery(t *testing.T) {
	f := newFleet(t)
	evil, err := client.New(kubelet(t, "event-evil"), client.Options{})
	must(t, err)
	f.dead("event-victim")
	now := metav1.Now()
	detector := lease(metav1.NamespaceSystem, diagnosis.Recovery+"-detector")
	detector.Spec = coordinationv1.LeaseSpec{HolderIdentity: new("d"), LeaseDurationSeconds: new(int32(300)), RenewTime: &metav1.MicroTime{Time: now.Time}}
	create(t, detector)
	for i, reason := range []string{string(fencing.NodeUnderMaintenance), string(fencing.NodeOptedOut), string(fencing.NodeIdentityUnknown), string(fencing.NoSecondSignal)} {
		must(t, evil.Create(t.Context(), &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("event-victim.%d", i)}, Reason: reason, Type: corev1.EventTypeWarning, Message: "m",
			Source: corev1.EventSource{Component: diagnosis.Recovery}, ReportingController: diagnosis.Recovery, FirstTimestamp: now, LastTimestamp: now,
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "event-victim"},
		}))
	}
	for _, command := range [][]string{{"explain", "node/event-victim", "-o", "wide"}, {"evidence", "event-victim"}, {"fence", "event-victim"}, {"check"}} {
		for line := range strings.Lines(printedBy(t, command...)) {
			if lie := strings.Contains(line, "does not fence it"); lie || strings.Contains(line, "aintenance") {
				t.Errorf("%s: %s", command[0], line)
			}
		}
	}
}

// TestEventOfATenantStopsNoTakeOver: an Event that a tenant writes into its own namespace says nothing about who attaches volumes.
func TestEventOfATenantStopsNoTakeOver(t *testing.T) {
	config := tenant(t, "event-tenant")
	config.QPS, config.Burst = 5, 1
	edit, err := client.New(config, client.Options{})
	must(t, err)
	edit = client.WithFieldOwner(edit, "kube-controller-manager")
	run := func(phase preflight.Phase) preflight.Check {
		report := preflight.Run(t.Context(), preflight.Config{Clients: kubernetes.NewForConfigOrDie(server.Config()), Phase: phase, Observe: 3 * time.Second})
		i := slices.IndexFunc(report.Checks, func(c preflight.Check) bool { return c.Name == "attach/detach events" })
		return report.Checks[i]
	}
	if c := run(preflight.TakeOver); c.Result != preflight.OK {
		t.Fatalf("before: %+v", c)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { // as fast as the limit of the client lets it
		defer close(ended)
		for i := 0; ctx.Err() == nil; i++ {
			now := metav1.Now()
			_ = edit.Create(ctx, &corev1.Event{
				ObjectMeta: metav1.ObjectMeta{Namespace: "event-tenant", Name: fmt.Sprintf("e-%d", i)}, Reason: "SuccessfulAttachVolume", Type: corev1.EventTypeNormal, Message: "m",
				Source: corev1.EventSource{Component: "attachdetach-controller"}, FirstTimestamp: now, LastTimestamp: now,
				InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "event-tenant", Name: "p"},
			})
		}
	}()
	defer func() {
		stop()
		<-ended
	}()
	for _, phase := range []preflight.Phase{preflight.Prepare, preflight.TakeOver} {
		c := run(phase)
		if c.Result != preflight.OK {
			t.Errorf("%s: a tenant's Event: %s: %s", phase, c.Result, c.Message)
		}
		if phase == preflight.TakeOver && (len(c.Objects) == 0 || !strings.Contains(c.Message, "may write")) {
			t.Errorf("%s: no hint names the Event: %+v", phase, c)
		}
	}
}

// TestEventOfAKubeletDeletesNoPod: a kubelet may create Events about the pods of other nodes. explain, stuck and check take a volume for detached under a pod, which is
// then to be deleted, only where its VolumeAttachment is younger than its containers.
func TestEventOfAKubeletDeletesNoPod(t *testing.T) {
	evil, err := client.New(kubelet(t, "torn-evil"), client.Options{})
	must(t, err)
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "torn"}})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "torn-node"}}
	create(t, node)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	must(t, server.Client.Status().Update(t.Context(), node))
	boundVolume(t, "torn", fixture.PersistentVolume("torn-pv", "torn.example.com", "h"))
	va := fixture.Attachment(kube.AttachmentName("h", "torn.example.com", node.Name), "torn.example.com", node.Name, "torn-pv")
	create(t, va)
	va.Status.Attached = true
	must(t, server.Client.Status().Update(t.Context(), va))
	pod := fixture.Pod("torn", "db", node.Name, "torn-pv")
	create(t, pod)
	started := func(after time.Duration) {
		t.Helper()
		pod.Status.Phase = corev1.PodRunning
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(va.CreationTimestamp.Add(after))},
		}}}
		must(t, server.Client.Status().Update(t.Context(), pod))
	}
	must(t, evil.Create(t.Context(), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "torn", Name: "db.1"}, Reason: explain.VolumeDetachedInUse, Type: corev1.EventTypeWarning, Message: "m",
		Source: corev1.EventSource{Component: "attachdetach-controller"}, FirstTimestamp: va.CreationTimestamp, LastTimestamp: va.CreationTimestamp,
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "torn", Name: "db", UID: pod.UID},
	}))
	commands := [][]string{{"explain", "pod/db", "-n", "torn", "-o", "wide"}, {"stuck", "-A"}, {"check", "-o", "json"}}
	started(time.Minute)
	for _, command := range commands {
		if out := printedBy(t, command...); strings.Contains(out, string(explain.UsedWithoutAttachment)) {
			t.Errorf("%s believes the event:\n%s", command[0], out)
		}
	}
	started(-time.Minute)
	for _, command := range commands {
		if out := printedBy(t, command...); !strings.Contains(out, string(explain.UsedWithoutAttachment)) {
			t.Errorf("%s does not say that the VolumeAttachment is younger than the mount:\n%s", command[0], out)
		}
	}
}
