package diagnosis

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// ends makes the holder one that was deleted, and whose container ended, some time ago.
func (s scene) ends(ago time.Duration) {
	s.holder.DeletionTimestamp, s.holder.DeletionGracePeriodSeconds = &metav1.Time{Time: s.Now.Add(30*time.Second - ago)}, new(int64(30))
	s.holder.Status.ContainerStatuses = []corev1.ContainerStatus{terminated(s.Now.Add(-ago))}
}

func terminated(at time.Time) corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(at)}}}
}

// waits makes the waiter wait for some time.
func (s scene) waits(ago time.Duration) {
	since := metav1.NewTime(s.Now.Add(-ago))
	s.waiter.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: since}}
}

// TestPodsOfLastNight: a pod that is left of last night does not say since when a volume is not needed that was attached ten minutes ago: the last pod
// is gone, and may have ended just now.
func TestPodsOfLastNight(t *testing.T) {
	for name, tc := range map[string]struct {
		make    func(scene)
		subject Ref
	}{
		"deleted, and a finalizer keeps it": {func(s scene) {
			s.ends(9 * time.Hour)
			s.holder.Finalizers = []string{"example.com/keep"}
		}, Ref{Pods, "ns", "waiter"}},
		"a Job, and no pod waits": {func(s scene) {
			s.holder.Status = corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{terminated(s.Now.Add(-9 * time.Hour))}}
			s.Pods = s.Pods[:1]
		}, Ref{Resource: Volumes, Name: "pv"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.waits(5 * time.Second)
			s.holder.CreationTimestamp = metav1.NewTime(s.Now.Add(-10 * time.Hour))
			tc.make(s)
			e, err := Explain(s.Snapshot, tc.subject)
			if err != nil || e.Reason != attachment.StillInUse {
				t.Errorf("%s since %v: %s (%v), want %s", e.Reason, e.Findings[0].Since, e.Summary, err, attachment.StillInUse)
			}
		})
	}
}

// TestEndThatNoStatusHas: what a kubelet writes without a time, and what it does not write into containerStatuses.
func TestEndThatNoStatusHas(t *testing.T) {
	lost := corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		Reason: "ContainerStatusUnknown", ExitCode: 137, // k/k v1.36.3 pkg/kubelet/kubelet_pods.go: convertToAPIContainerStatuses leaves FinishedAt empty
	}}}
	for name, tc := range map[string]struct {
		make func(scene)
		want decision.Reason
	}{
		"the kubelet has restarted, and lost the container": {func(s scene) { // deleted 200 s ago, with a grace period of 300 s: it may have ended just now
			s.holder.Status.ContainerStatuses = []corev1.ContainerStatus{lost}
		}, attachment.StillInUse},
		"a debug container ended last": {func(s scene) {
			s.holder.Status.ContainerStatuses = []corev1.ContainerStatus{terminated(s.Now.Add(-198 * time.Second))}
			s.holder.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{terminated(s.Now.Add(-3 * time.Second))}
		}, attachment.StillInUse},
		// So the API server gave it no grace period (k/k v1.36.3 pkg/registry/core/pod/strategy.go: CheckGracefulDelete).
		"a Job had ended before it was deleted": {func(s scene) {
			s.holder.DeletionTimestamp, s.holder.DeletionGracePeriodSeconds = &metav1.Time{Time: s.Now.Add(-4 * time.Second)}, new(int64(0))
			s.holder.Finalizers = []string{"example.com/keep"}
			s.holder.Spec.RestartPolicy, s.holder.Status.Phase = corev1.RestartPolicyNever, corev1.PodSucceeded
			s.holder.Status.ContainerStatuses = []corev1.ContainerStatus{terminated(s.Now.Add(-10 * time.Minute))}
		}, explain.UnmountFailing},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.waits(time.Hour)
			s.holder.DeletionTimestamp, s.holder.DeletionGracePeriodSeconds = &metav1.Time{Time: s.Now.Add(100 * time.Second)}, new(int64(300))
			tc.make(s)
			e, err := Explain(s.Snapshot, Ref{Pods, "ns", "waiter"})
			if err != nil || e.Reason != tc.want {
				t.Errorf("%s since %v: %s (%v), want %s", e.Reason, e.Findings[0].Since, e.Summary, err, tc.want)
			}
		})
	}
	m := newMoved("belay-controller", "belay-attacher")
	m.leaves(40, 35)
	m.old().Status.ContainerStatuses = []corev1.ContainerStatus{lost}
	if h := hopOf(t, m.Snapshot, HopEnded); h.State != HopUnknown {
		t.Errorf("containers ended: %s at %v (%s), although no status has the end of a container that ran", h.State, h.At.Sub(begin), h.Source)
	}
}

// second gives the holder another volume on node a.
func (s scene) second() *storagev1.VolumeAttachment {
	claim, pv, va := s.Claims[0].DeepCopy(), s.Volumes[0].DeepCopy(), s.va.DeepCopy()
	claim.Name, claim.Spec.VolumeName, pv.Name, pv.Spec.CSI.VolumeHandle, pv.Spec.ClaimRef.Name = "claim2", "pv2", "pv2", "h2", "claim2"
	va.Name, va.Spec.Source.PersistentVolumeName = kube.AttachmentName("h2", oneDriver, "a"), new("pv2")
	s.Claims, s.Volumes, s.Attachments = append(s.Claims, claim), append(s.Volumes, pv), append(s.Attachments, va)
	s.holder.Spec.Volumes = append(s.holder.Spec.Volumes, corev1.Volume{Name: "w", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim2"},
	}})
	return va
}

// TestSecondVolumeOfADeletedPod: what is wrong with the second volume of a pod that has ended is not hidden by the first one.
func TestSecondVolumeOfADeletedPod(t *testing.T) {
	t.Run("its detach fails", func(t *testing.T) { // and the unmount of the first one
		s := newScene()
		s.Pods = s.Pods[:1]
		s.ends(3 * time.Minute)
		va := s.second()
		s.Drivers = []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: oneDriver}}}
		va.DeletionTimestamp, va.Finalizers = &metav1.Time{Time: s.Now.Add(-10 * time.Minute)}, []string{"external-attacher/disk"}
		va.Status.DetachError = &storagev1.VolumeError{Message: "rpc error: code = Internal desc = the array refuses"}
		e, err := Explain(s.Snapshot, Ref{Resource: Attachments, Name: va.Name})
		if err != nil || !stuck(&e.Findings[0]) {
			t.Fatalf("explain: %s (%v)", e.Reason, err)
		}
		for _, f := range Stuck(s.Snapshot, "", 0).Items {
			if f.Reason == e.Reason {
				return
			}
		}
		t.Errorf("explain says %s %s of VolumeAttachment %s, and stuck does not list it", e.Verdict, e.Reason, va.Name)
	})
	t.Run("its unmount hangs", func(t *testing.T) { // and another pod that used the first one has just ended
		s := newScene()
		s.ends(10 * time.Minute)
		s.second()
		s.a.Status.VolumesInUse = append(s.a.Status.VolumesInUse, corev1.UniqueVolumeName(kube.UniqueVolumeName(oneDriver, "h2")))
		late := s.waiter
		late.Spec.NodeName, late.DeletionTimestamp, late.DeletionGracePeriodSeconds = "a", &metav1.Time{Time: s.Now.Add(26 * time.Second)}, new(int64(30))
		late.Status.ContainerStatuses = []corev1.ContainerStatus{terminated(s.Now.Add(-3 * time.Second))}
		e, err := Explain(s.Snapshot, Ref{Pods, "ns", "holder"})
		if list := Stuck(s.Snapshot, "", 0); err != nil || e.Reason != explain.UnmountFailing || len(list.Items) == 0 {
			t.Errorf("explain: %s since %v (%v), stuck: %d; claim2 is in use for ten minutes, and no pod needs it", e.Reason, e.Findings[0].Since, err, len(list.Items))
		}
	})
}

// TestDeletedPodOnANodeThatIsFenced: recovery fences a node that still counts as Ready. The pod that ended there, and the one that waits for its volume, wait
// for the same.
func TestDeletedPodOnANodeThatIsFenced(t *testing.T) {
	s := newScene()
	s.waits(3 * time.Minute)
	s.ends(3 * time.Minute)
	s.a.UID, s.a.Status.NodeInfo = "uid", corev1.NodeSystemInfo{BootID: "boot", SystemUUID: "machine"}
	f := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "a", Finalizers: []string{kube.FenceFinalizer}}}
	f.CreationTimestamp = metav1.NewTime(s.Now.Add(-10 * time.Second))
	f.Spec = fencingv1.NodeFenceSpec{NodeName: "a", NodeUID: "uid", BootID: "boot", MachineID: "machine"}
	f.Status.Phase = fencingv1.Phase(fencing.Fencing)
	s.Fences, s.Whole = append(s.Fences, f), append(s.Whole, Fences)
	waiter, holder := reasonFor(t, s, Ref{Pods, "ns", "waiter"}), reasonFor(t, s, Ref{Pods, "ns", "holder"})
	if waiter != holder {
		t.Errorf("of the pod that waits: %s; of the pod that has ended: %s", waiter, holder)
	}
}

// departs is db-0 being deleted on n2, where its containers ended at 53.
func departs() *moved {
	m := newMoved("belay-controller", "belay-attacher")
	m.belayEvents()
	m.pod.DeletionTimestamp, m.pod.DeletionGracePeriodSeconds = new(at(80)), new(int64(30))
	m.pod.Status.ContainerStatuses = []corev1.ContainerStatus{terminated(begin.Add(53 * time.Second))}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	node.Status.VolumesInUse = []corev1.UniqueVolumeName{uniqueName}
	m.Nodes = append(m.Nodes, node)
	return m
}

// TestDepartureThatMayNotBeRead: for who may read a namespace, and neither Nodes nor VolumeAttachments, nothing claims that a VolumeAttachment is gone.
func TestDepartureThatMayNotBeRead(t *testing.T) {
	m := departs()
	m.Nodes, m.Attachments, m.Whole, m.AllNamespaces, m.Namespaces = nil, nil, []Resource{Drivers}, false, []string{"prod"}
	for _, h := range moveOf(t, m).Hops {
		if strings.Contains(h.Why, "VolumeAttachment is gone") {
			t.Errorf("%s: %s: %s, although VolumeAttachments could not be read", h.Name, h.State, h.Why)
		}
	}
}

// TestWhichDeparture: a departure is that of the pod that has the volume, whatever other pods of the claim are left.
func TestWhichDeparture(t *testing.T) {
	db, volume := Ref{Resource: Pods, Namespace: "prod", Name: "db-0"}, Ref{Resource: Volumes, Name: "pv-1"}
	backup := func(m *moved, node string, created int) *corev1.Pod {
		pod := podOf("backup", node, created)
		pod.Name = "backup"
		m.Pods = append(m.Pods, pod)
		return pod
	}
	completed := func(m *moved) {
		ended := []corev1.ContainerStatus{terminated(begin.Add(-400 * time.Second))}
		backup(m, "n3", -500).Status = corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: ended}
	}
	for name, tc := range map[string]struct {
		make     func(*moved)
		subject  Ref
		from, to string // the node that has the volume is n2
	}{
		"a Job that ended long ago, by the pod":    {completed, db, "n2", ""},
		"a Job that ended long ago, by the volume": {completed, volume, "n2", ""},
		"asked about another pod that is deleted": {func(m *moved) {
			pod := backup(m, "n3", -500)
			pod.DeletionTimestamp, pod.Finalizers = new(at(-400)), []string{"example.com/keep"}
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{terminated(begin.Add(-390 * time.Second))}
		}, Ref{Resource: Pods, Namespace: "prod", Name: "backup"}, "n3", ""},
		"a pod that was deleted before it had the volume": {func(m *moved) {
			m.Pods = nil // db-0 is gone, and its volume is attached to n2
			backup(m, "n3", 55).DeletionTimestamp = new(at(58))
		}, volume, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := departs()
			tc.make(m)
			answer, err := Timelines(m.Snapshot, tc.subject)
			if err != nil {
				t.Fatal(err)
			}
			v := &answer.Moves[0]
			came := tc.from == "" && v.To == "n2" // how the volume came to where it is will do too
			if !came && (v.From != tc.from || v.To != tc.to) {
				t.Errorf("from %q to %q: %v\nwant from %q to %q", v.From, v.To, lines(v), tc.from, tc.to)
			}
		})
	}
}
