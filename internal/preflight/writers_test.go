package preflight

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"belay.dev/belay/internal/kube"
)

// Managed fields of what an attach/detach controller writes.
const (
	reported = `{"f:status": {"f:volumesAttached": {}}}`
	created  = `{"f:spec": {"f:attacher": {}}}`
	emitted  = `{"f:source": {"f:component": {}}}`
)

func writtenBy(manager, fields string) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{Manager: manager, FieldsV1: metav1.NewFieldsV1(fields)}}
}

func attachmentBy(manager string, at time.Time) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{
		Name: kube.AttachmentName("h", "d", "n"), ManagedFields: writtenBy(manager, created), CreationTimestamp: metav1.NewTime(at),
	}}
}

func eventBy(manager string, at time.Time) *corev1.Event {
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e", ManagedFields: writtenBy(manager, emitted)},
		Source:     corev1.EventSource{Component: kube.EventComponent}, Reason: "SuccessfulAttachVolume",
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p"}, LastTimestamp: metav1.NewTime(at),
	}
}

// leaseOf is the lease of a kube-controller-manager that has led since then.
func leaseOf(holder string, since time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-controller-manager"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32(15)),
			AcquireTime: new(metav1.NewMicroTime(since)), RenewTime: new(metav1.NewMicroTime(time.Now())),
		},
	}
}

// What another controller wrote before is no obstacle. What it writes now is: no person
// can override a VolumeAttachment, as no node can create one. An Event alone is a hint.
func TestWriters(t *testing.T) {
	tests := map[string]struct {
		manager              string
		write                bool
		reports, attachments Result
	}{
		"quiet":                {"kube-controller-manager", false, OK, OK},
		"upstream is alive":    {"kube-controller-manager", true, Unconfirmed, Refused},
		"belay is alive":       {kube.FieldManager, true, OK, OK},
		"a person repairs":     {"kubectl-edit", true, Warning, Warning},
		"something unheard of": {"other", true, Unconfirmed, Refused},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", ManagedFields: writtenBy(tt.manager, reported)}}
				clients := fake.NewClientset(node, upstreamPod("kube-controller-manager", "--controllers=-attachdetach"))
				changed := node.DeepCopy()
				nodes, attachments, emits := events(clients, "nodes"), events(clients, "volumeattachments"), events(clients, "events")
				if tt.write {
					changed.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v"}}
					attachments.Add(attachmentBy(tt.manager, time.Now()))
					emits.Add(eventBy(tt.manager, time.Now()))
				}
				nodes.Modify(changed)
				r := Run(t.Context(), Config{Clients: clients, Observe: time.Second})
				for name, want := range map[string]Result{
					"node reports": tt.reports, "volume attachments": tt.attachments, "attach/detach events": OK,
				} {
					if c := check(t, r, name); c.Result != want {
						t.Errorf("%s: %+v, want %s", name, c, want)
					}
				}
				if want := tt.attachments != Refused; r.Ready != want {
					t.Errorf("ready: %v, want %v", r.Ready, want)
				}
			})
		})
	}
}

// What the watches delivered in time counts, even if the time is over before any of it is handled.
func TestEventsBeforeTheEndCount(t *testing.T) {
	for range 50 { // select picks at random
		clients := fake.NewClientset(upstreamPod("kube-controller-manager", "--controllers=-attachdetach"))
		events(clients, "volumeattachments").Add(attachmentBy("kube-controller-manager", time.Now()))
		r := Run(t.Context(), Config{Clients: clients, Observe: time.Nanosecond})
		if c := check(t, r, "volume attachments"); c.Result != Refused {
			t.Fatalf("%+v, want %s", c, Refused)
		}
	}
}

// The flags of a kube-controller-manager that is no pod cannot be read. What it did since
// it began to lead shows that the controller is on; that it did nothing shows nothing.
func TestUpstreamOutsideAPod(t *testing.T) {
	for name := range outsideAPod() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // in which no lease ages
				tt := outsideAPod()[name]
				clients := fake.NewClientset(tt.objects...)
				r := Run(t.Context(), Config{Clients: clients})
				if c := check(t, r, tt.check); c.Result != tt.want || !strings.Contains(c.Message, tt.says) || r.Ready {
					t.Errorf("%+v, ready %v; want %s with %q, and not ready", c, r.Ready, tt.want, tt.says)
				}
				if r := Run(t.Context(), Config{Clients: clients, Confirmed: true}); r.Ready != tt.readyIfConfirmed {
					t.Errorf("confirmed, it is ready: %v, want %v; %+v", r.Ready, tt.readyIfConfirmed, r.Checks)
				}
			})
		})
	}
}

// outside is what a kube-controller-manager that is no pod has done, and what preflight says about it.
type outside struct {
	objects          []runtime.Object
	check            string
	want             Result
	says             string
	readyIfConfirmed bool
}

func outsideAPod() map[string]outside {
	now := time.Now()
	since := now.Add(-time.Hour)
	const old, recent = -61 * time.Minute, -30 * time.Minute
	return map[string]outside{
		"no lease": {nil, "kube-controller-manager", Unconfirmed, "none holds its lease", true},
		"quiet": {
			[]runtime.Object{leaseOf("cp-1_u", since)}, "kube-controller-manager", Unconfirmed, "cp-1_u has held its lease since", true,
		},
		"expired lease": {
			[]runtime.Object{func() runtime.Object {
				l := leaseOf("cp-1_u", since)
				l.Spec.RenewTime = new(metav1.NewMicroTime(now.Add(-time.Minute)))
				return l
			}(), attachmentBy("kube-controller-manager", now.Add(recent))}, "volume attachments", OK, "1;", true,
		},
		"attached before": {
			[]runtime.Object{leaseOf("cp-1_u", since), attachmentBy("kube-controller-manager", now.Add(old))}, "volume attachments", OK, "1;", true,
		},
		"attached since": {
			[]runtime.Object{leaseOf("cp-1_u", since), attachmentBy("k3s", now.Add(recent))}, "volume attachments", Refused, "enabled in cp-1_u", false,
		},
		"belay attached": {
			[]runtime.Object{leaseOf("cp-1_u", since), attachmentBy(kube.FieldManager, now.Add(recent))}, "volume attachments", OK, "1;", true,
		},
		"lost every race since": {
			[]runtime.Object{leaseOf("cp-1_u", since), eventBy("k3s", now.Add(recent))}, "attach/detach events", OK, "another component", true,
		},
		"lost them before": {
			[]runtime.Object{leaseOf("cp-1_u", since), eventBy("k3s", now.Add(old))}, "attach/detach events", OK, "1;", true,
		},
	}
}

// Any node may create a static pod that claims to be a kube-controller-manager. It is
// believed on a control-plane node, and where the leader is.
func TestStaticPods(t *testing.T) {
	static := func(node string) *corev1.Pod {
		pod := upstreamPod("kube-controller-manager")
		pod.Spec.NodeName = node
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, Controller: new(true)}}
		return pod
	}
	labelled := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cp-1", Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}}}
	plain := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w-1"}}
	type placed struct {
		objects []runtime.Object
		refuses bool
		want    Result
	}
	tests := func() map[string]placed {
		return map[string]placed{
			"control-plane node":   {[]runtime.Object{static("cp-1"), labelled}, true, Refused},
			"worker":               {[]runtime.Object{static("w-1"), plain, leaseOf("cp-1_u", time.Now())}, false, Unconfirmed},
			"where the leader is":  {[]runtime.Object{static("w-1"), plain, leaseOf("W-1_u", time.Now())}, true, Refused},
			"no leader":            {[]runtime.Object{static("w-1"), plain}, false, Unconfirmed},
			"node that is gone":    {[]runtime.Object{static("w-2")}, false, Unconfirmed},
			"and one that is real": {[]runtime.Object{static("w-1"), plain, upstreamPodNamed("real")}, true, Refused},
		}
	}
	for name := range tests() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // in which no lease ages
				tt := tests()[name]
				clients := fake.NewClientset(tt.objects...)
				refusal, err := MayLead(t.Context(), clients)
				if err != nil || (refusal != nil) != tt.refuses {
					t.Errorf("refusal %v, error %v; want a refusal: %v", refusal, err, tt.refuses)
				}
				if c := check(t, Run(t.Context(), Config{Clients: clients}), "kube-controller-manager"); c.Result != tt.want {
					t.Errorf("%+v, want %s", c, tt.want)
				}
			})
		})
	}
}

func upstreamPodNamed(name string) *corev1.Pod {
	pod := upstreamPod("kube-controller-manager")
	pod.Name, pod.UID = name, "another"
	return pod
}
