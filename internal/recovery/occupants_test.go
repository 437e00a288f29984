package recovery

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/testing/fixture"
)

// TestOccupants: what is bound to a silent node says whether it has anything to lose, and whether the cluster has given it up.
func TestOccupants(t *testing.T) {
	with := func(source corev1.VolumeSource, change ...func(*corev1.Pod)) client.Object {
		pod := fixture.Pod("default", "db-0", "n1")
		pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: source}}
		for _, c := range change {
			c(pod)
		}
		return pod
	}
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}
	evicted := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager", LastTransitionTime: metav1.Now()}}
	}
	terminating := func(since time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			at, grace := metav1.NewTime(time.Now().Add(-since)), int64(30)
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds, p.Finalizers = &at, &grace, []string{"test/hold"}
		}
	}
	for name, c := range map[string]struct {
		objects []client.Object
		node    func(*corev1.Node)
		idle    fencing.Knowledge
		givenUp bool
	}{
		"nothing":                     {nil, nil, fencing.Yes, false},
		"a pod of another node":       {[]client.Object{fixture.Pod("default", "db-0", "n2")}, nil, fencing.Yes, false},
		"a claim":                     {[]client.Object{with(claim)}, nil, fencing.No, false},
		"a claim, and the pod failed": {[]client.Object{with(claim, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}, nil, fencing.Yes, false},
		"NFS":                         {[]client.Object{with(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}})}, nil, fencing.No, false},
		"inline CSI":                  {[]client.Object{with(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}})}, nil, fencing.No, false},
		"an ephemeral claim":          {[]client.Object{with(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}})}, nil, fencing.No, false},
		"what is the node's own":      {[]client.Object{with(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}})}, nil, fencing.Yes, false},
		"a ConfigMap":                 {[]client.Object{with(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}})}, nil, fencing.Yes, false},
		"a VolumeAttachment":          {[]client.Object{fixture.Attachment("va", "disk.test", "n1", "pv")}, nil, fencing.No, false},
		"one of another node":         {[]client.Object{fixture.Attachment("va", "disk.test", "n2", "pv")}, nil, fencing.Yes, false},
		"it reports a volume in use":  {nil, func(n *corev1.Node) { n.Status.VolumesInUse = []corev1.UniqueVolumeName{"v"} }, fencing.No, false},
		"it reports one as attached":  {nil, func(n *corev1.Node) { n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v"}} }, fencing.No, false},
		"a pod was evicted":           {[]client.Object{with(claim, evicted)}, nil, fencing.No, true},
		"one without a volume was":    {[]client.Object{with(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, evicted)}, nil, fencing.Yes, false},
		"a pod terminates":            {[]client.Object{with(claim, terminating(time.Second))}, nil, fencing.No, false},
		"it does for two minutes":     {[]client.Object{with(claim, terminating(2*time.Minute))}, nil, fencing.No, true},
	} {
		p := partsOver(nil, c.objects...)
		node := nodeOf("n1", 0)
		if c.node != nil {
			c.node(node)
		}
		n := fencing.Node{Boot: bootOf(node), Silent: time.Hour}
		must(t, (&detector{parts: p}).occupants(t.Context(), &n, node))
		if n.Idle != c.idle || n.GivenUp != c.givenUp {
			t.Errorf("%s: idle %v, given up %t", name, n.Idle, n.GivenUp)
		}
	}
}

// TestOccupantsUnread: what could not be read is not known to be empty, and a node about which it is not known is not suspected.
func TestOccupantsUnread(t *testing.T) {
	p := partsOver(nil, nodeOf("n1", 0))
	p.live = interceptor.NewClient(p.client.(client.WithWatch), interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
		return errors.New("the API server is busy")
	}})
	n := fencing.Node{Boot: bootOf(nodeOf("n1", 0)), Deleted: false}
	if err := (&detector{parts: p}).inspect(t.Context(), &n); err == nil || n.Idle != fencing.Unknown || !n.ReadAt.IsZero() {
		t.Errorf("%v: %+v", err, n)
	}
}

// TestLeaving: what kubelet and kured write before the machine stops.
func TestLeaving(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		want   bool
	}{
		"Ready": {func(n *corev1.Node) { setReady(n, corev1.ConditionTrue) }, false},
		"kubelet shuts down": {func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "[container runtime is down, node is shutting down]"}}
		}, true},
		"not Ready for another reason": {func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "container runtime is down"}}
		}, false},
		"kured reboots it": {func(n *corev1.Node) { n.Annotations["weave.works/kured-reboot-in-progress"] = "2026-11-30T08:00:00Z" }, true},
	} {
		node := nodeOf("n1", 0)
		if c.change(node); leaving(node) != c.want {
			t.Errorf("%s: %t", name, !c.want)
		}
	}
}
