package nodeagent

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/containers"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/testing/wait"
)

// failedOften gives each step of a pod's volumes a last failure that holds them back for two minutes.
func (a *Agent) failedOften(uid types.UID) {
	a.volumes.mu.Lock()
	defer a.volumes.mu.Unlock()
	for _, v := range a.volumes.all {
		for _, p := range v.pods {
			if p.Key.PodUID == string(uid) {
				p.Failure = nodevolume.Failure{Count: 20, At: time.Now()}
			}
		}
	}
}

// TestWakeEndsBackOff: a wake means that the condition that the volume waited for has changed.
func TestWakeEndsBackOff(t *testing.T) {
	agent := idle(t)
	agent.volumes.mu.Lock()
	defer agent.volumes.mu.Unlock()
	v := agent.volumes.ensureVolume("v", "d", "h", false)
	held := nodevolume.Failure{Count: 20, At: time.Now()}
	v.state.Unstage, v.state.Growth.Failure = held, held
	p := v.ensurePod(nodevolume.PublishKey{PodUID: "u", SpecName: "s"})
	p.Failure = held
	agent.volumes.wake("v")
	tried := nodevolume.Failure{Count: 20} // immediately, and if it fails again the back-off continues
	want := map[string]nodevolume.Failure{"unstage": tried, "expansion": tried, "pod": tried}
	got := map[string]nodevolume.Failure{"unstage": v.state.Unstage, "expansion": v.state.Growth.Failure, "pod": p.Failure}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
	if agent.volumes.queue.Len() != 1 {
		t.Error("the volume is not looked at")
	}
}

// TestNewBlockerQueuesWhoWaitsForIt: an event that was sent before the error is known named no cause. Nothing has changed for the
// better, so back-offs stay.
func TestNewBlockerQueuesWhoWaitsForIt(t *testing.T) {
	agent := idle(t)
	m := agent.volumes
	key := nodevolume.PublishKey{PodUID: "u", SpecName: "s"}
	held := nodevolume.Failure{Count: 20, At: time.Now()}
	m.mu.Lock()
	for name, reason := range map[string]nodevolume.Reason{"waits": nodevolume.AttachabilityUnknown, "other": nodevolume.NotAttached} {
		v := m.ensureVolume(name, "d", "h", false)
		v.waits[key] = currentWait{reason: reason, since: time.Now()}
		v.ensurePod(key).Failure = held
	}
	m.mu.Unlock()
	queued := func() (names []string) {
		for m.queue.Len() > 0 {
			name, _ := m.queue.Get()
			m.queue.Done(name)
			names = append(names, name)
		}
		return names
	}
	for _, step := range []struct {
		err  error
		want []string
	}{
		{err: errors.New("forbidden"), want: []string{"waits"}},
		{err: errors.New("forbidden again")},
		{err: nil},
		{err: errors.New("no route to host"), want: []string{"waits"}},
	} {
		m.reports.setBlocker(step.err, nodevolume.NodeUnknown, nodevolume.AttachabilityUnknown)
		if diff := cmp.Diff(step.want, queued()); diff != "" {
			t.Errorf("queued after %v (-want +got):\n%s", step.err, diff)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if got := m.all["waits"].findPod(key).Failure; got != held {
		t.Errorf("the back-off has changed to %+v", got)
	}
}

// TestVolumeIsMountedWhenNodeGetsItsLabel: a pod's volume may only be used on nodes with a label, which this one gets
// later. It is mounted then, and not when the back-off ends.
func TestVolumeIsMountedWhenNodeGetsItsLabel(t *testing.T) {
	w := newWorld(t, noAttach)
	node := w.node()
	node.Labels = map[string]string{"zone": "a"}
	_, err := w.admin.CoreV1().Nodes().Update(w.ctx, node, metav1.UpdateOptions{})
	must(t, err)
	w.volume("data", func(pv *corev1.PersistentVolume) {
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}},
		}}}}
	})
	agent, _ := w.agent()
	w.driver.WantRegistered("")
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	wait.Until(w, "it has been refused", func() bool { return agent.failuresOf(pod.UID) > 0 })
	agent.failedOften(pod.UID)
	if calls := w.driver.Made(); len(calls) > 0 {
		t.Errorf("called for a volume that is not for this node: %v", calls)
	}
	w.changeNode(func(node *corev1.Node) { node.Labels["zone"] = "b" })
	w.mounted(agent, pod)
}

// TestAttachmentAppearsAfterItsReport: the node gets no event for it, so it is read again soon, however often it was
// missing.
func TestAttachmentAppearsAfterItsReport(t *testing.T) {
	w := newWorld(t)
	handle := w.volume("data")
	agent, _ := w.agent()
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilInUse(handle)
	must(t, w.report(handle, true))
	wait.Until(w, "the attachment was missed", func() bool { return agent.failuresOf(pod.UID) > 0 })
	agent.failedOften(pod.UID)
	agent.volumes.mu.Lock()
	agent.volumes.wake(string(w.unique(handle)))
	agent.volumes.mu.Unlock()
	wait.Until(w, "the attachment was missed again", func() bool { return agent.failuresOf(pod.UID) > 20 })
	pv := w.name + "-data"
	api := w.admin.StorageV1().VolumeAttachments()
	va, err := api.Create(w.ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: kube.AttachmentName(handle, w.driverName(), w.name)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: w.driverName(), NodeName: w.name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	va.Status.Attached = true
	_, err = api.UpdateStatus(w.ctx, va, metav1.UpdateOptions{})
	must(t, err)
	w.mounted(agent, pod)
}

// TestPodReplacedInOneEvent: an interrupted watch delivers one event for a pod that was deleted and another pod of the
// same name that was created.
func TestPodReplacedInOneEvent(t *testing.T) {
	agent := idle(t)
	locks, err := containers.NewLocks(t.TempDir())
	must(t, err)
	ends := newPodTerminations(agent, locks, testLogger(t))
	events := podEvents(agent, ends)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go ends.run(ctx)
	pod := func(uid types.UID) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: uid}}
	}
	events.OnAdd(pod("first"), true)
	events.OnUpdate(pod("first"), pod("second"))
	wait.Until(t, "the second pod alone is known", func() bool { return slices.Equal(agent.Pods(), []types.UID{"second"}) })
}
