package preflight

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"belay.dev/belay/internal/kube"
)

// phase is a step of a migration, and what preflight says in it.
type phase struct {
	phase   Phase
	objects []runtime.Object
	ready   bool
	says    []string
}

func phases() map[string]phase {
	const on, off = "--controllers=*", "--controllers=*,-persistentvolume-attach-detach-controller"
	first := func(controllers string) *corev1.Pod { return upstreamPod("kube-controller-manager", controllers) }
	recent := attachmentBy(upstreamProgram, time.Now().Add(-time.Minute))
	lead := leaseOf("cp-1_u", time.Now().Add(-time.Hour))
	own := heldLease("kube-system", kube.FieldManager, "belay-0_u")
	gone := heldLease("kube-system", kube.FieldManager, "")
	pod := runs("belay-system", "belay-0", "belay-controller:v1")
	pod.Labels = map[string]string{"app.kubernetes.io/name": kube.FieldManager}
	flex := flexVolume("pv", "x/attaches")
	return map[string]phase{
		"before: it attaches":            {Prepare, []runtime.Object{first(on), lead, recent}, true, []string{"its attach/detach controller is on\n", "Next: disable persistentvolume-attach-detach-controller in every"}},
		"before: one is off":             {Prepare, []runtime.Object{first(on), second(off), lead}, true, []string{"WARNING", "on in 1 of 2 pods", "cp-1_u has held"}},
		"before: no pod":                 {Prepare, []runtime.Object{lead, attachmentBy("k3s", time.Now())}, true, []string{"WARNING", "you have to confirm", "program that contains it (k3s)"}},
		"before: FlexVolumes":            {Prepare, []runtime.Object{first(on), flex}, false, []string{"leave the attach/detach controller", "Next: resolve what is not OK"}},
		"between: still on":              {TakeOver, []runtime.Object{first(on), lead, recent}, false, []string{"REFUSED", "Next: disable persistentvolume-attach-detach-controller in the"}},
		"between: on in one of two":      {TakeOver, []runtime.Object{first(on), second(off), lead}, false, []string{"still on in 1 of 2 pods; cp-1_u has held its lease"}},
		"between: off":                   {"", []runtime.Object{first(off), second(off)}, true, []string{"READY: belay-controller may start.", "Next: install belay-controller now"}},
		"between: no pod":                {TakeOver, []runtime.Object{leaseOf("cp-1_u", time.Now())}, false, []string{"Next: look at every control-plane host", "--" + ConfirmFlag}},
		"between: no pod, FlexVolumes":   {TakeOver, []runtime.Object{flex}, false, []string{"Next: resolve what is not OK"}},
		"back: it leads":                 {RollBack, []runtime.Object{first(off), own}, false, []string{"lease kube-system/belay-controller: held by belay-0_u", "Next: scale belay-controller to 0"}},
		"back: it leads elsewhere":       {RollBack, []runtime.Object{first(off), heldLease("other", kube.FieldManager, "x"), attacherRole(), bindingIn("other")}, false, []string{"lease other/belay-controller"}},
		"back: a tenant says it leads":   {RollBack, []runtime.Object{first(off), heldLease("other", kube.FieldManager, "x"), attacherRole(), bindingIn("csi")}, true, nil},
		"back: a standby is left":        {RollBack, []runtime.Object{first(off), gone, pod}, false, []string{"pod belay-system/belay-0"}},
		"back: gone":                     {RollBack, []runtime.Object{first(off), gone}, true, []string{"its attach/detach controller is off", "Next: enable persistentvolume-attach-detach-controller in every"}},
		"back: gone, upstream is no pod": {RollBack, nil, true, []string{"cannot be read", "may be enabled"}},
	}
}

// TestPhases walks through a migration and back: at each step preflight is ready for that step only, and names the next one.
func TestPhases(t *testing.T) {
	for name := range phases() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // in which no lease ages
				tt := phases()[name]
				report := Run(t.Context(), Config{Clients: fake.NewClientset(tt.objects...), Phase: tt.phase})
				var out bytes.Buffer
				if err := report.Text(&out); err != nil {
					t.Fatal(err)
				}
				if report.Ready != tt.ready {
					t.Errorf("ready: %v, want %v:\n%s", report.Ready, tt.ready, &out)
				}
				for _, want := range tt.says {
					if !strings.Contains(out.String(), want) {
						t.Errorf("it does not say %q:\n%s", want, &out)
					}
				}
			})
		})
	}
}

// TestRollBackExpiredLease: a leader that ended without releasing its lease, as after a power cut, blocks nothing once the lease has expired.
func TestRollBackExpiredLease(t *testing.T) {
	l := heldLease("kube-system", kube.FieldManager, "belay-0_u")
	l.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(-time.Minute)))
	if r := Run(t.Context(), Config{Clients: fake.NewClientset(l), Phase: RollBack}); !r.Ready {
		t.Errorf("not ready: %+v", r.Checks)
	}
}

// attacherRole allows to patch VolumeAttachments, and bindingIn gives it to a ServiceAccount of the namespace.
func attacherRole() *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "attacher"}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"patch"}, APIGroups: []string{"storage.k8s.io"}, Resources: []string{"volumeattachments"}},
	}}
}

func bindingIn(namespace string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "attacher"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "attacher"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "attacher"}},
	}
}
