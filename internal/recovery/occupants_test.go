package recovery

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
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
	ofMachine := func(uuid string) client.Object {
		va := fixture.Attachment("va", "disk.test", "n1", "pv")
		va.Annotations = map[string]string{kube.BootIDAnnotation: "boot", kube.SystemUUIDAnnotation: uuid}
		return va
	}
	yes := true
	ofDaemonSet := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: "ds", Controller: &yes}}
	}
	spiffe := corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "csi.spiffe.io", ReadOnly: &yes}}
	nfs := corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "192.0.2.1", Path: "/", ReadOnly: true}}
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
		"one of an earlier machine":   {[]client.Object{ofMachine("hw-before")}, nil, fencing.Yes, false},
		"one that is recorded":        {[]client.Object{ofMachine("hw-n1")}, nil, fencing.No, false},
		"one of another node":         {[]client.Object{fixture.Attachment("va", "disk.test", "n2", "pv")}, nil, fencing.Yes, false},
		"it reports a volume in use":  {nil, func(n *corev1.Node) { n.Status.VolumesInUse = []corev1.UniqueVolumeName{"v"} }, fencing.No, false},
		"it reports one as attached":  {nil, func(n *corev1.Node) { n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v"}} }, fencing.No, false},
		"a pod was evicted":           {[]client.Object{with(claim, evicted)}, nil, fencing.No, true},
		"one without a volume was":    {[]client.Object{with(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, evicted)}, nil, fencing.Yes, false},
		"a pod terminates":            {[]client.Object{with(claim, terminating(time.Second))}, nil, fencing.No, false},
		"a DaemonSet's, inline CSI":   {[]client.Object{with(spiffe, ofDaemonSet)}, nil, fencing.Yes, false}, // kubectl drain leaves it
		"a DaemonSet's, NFS":          {[]client.Object{with(nfs, ofDaemonSet)}, nil, fencing.Yes, false},
		"a DaemonSet's is attached":   {[]client.Object{with(claim, ofDaemonSet), fixture.Attachment("va", "disk.test", "n1", "pv")}, nil, fencing.No, false},
		"a DaemonSet is rolled out":   {[]client.Object{with(spiffe, ofDaemonSet, terminating(2*time.Minute))}, nil, fencing.Yes, false},
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

// TestLeaving: what the Node or the object of its machine says before the machine stops. What cannot be read says nothing.
func TestLeaving(t *testing.T) {
	deleted := metav1.NewTime(time.Now().Truncate(time.Second))
	machine := func(kind schema.GroupVersionKind, namespace, name string, deleting bool) *metav1.PartialObjectMetadata {
		m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Finalizers: []string{"test/hold"}}}
		m.SetGroupVersionKind(kind)
		if deleting {
			m.DeletionTimestamp = &deleted
		}
		return m
	}
	capi, openshift := schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Machine"}, schema.GroupVersionKind{Group: "machine.openshift.io", Version: "v1beta1", Kind: "Machine"}
	ofCAPI := func(n *corev1.Node) {
		n.Annotations["cluster.x-k8s.io/machine"], n.Annotations["cluster.x-k8s.io/cluster-namespace"] = "m1", "capi"
	}
	ready := func(status corev1.ConditionStatus, message string) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, Reason: "KubeletNotReady", Message: message}}
		}
	}
	taint := func(key string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}} }
	}
	for name, c := range map[string]struct {
		change  func(*corev1.Node)
		machine *metav1.PartialObjectMetadata
		err     error
		want    bool
	}{
		"Ready":                        {ready(corev1.ConditionTrue, "kubelet is posting ready status"), nil, nil, false},
		"kubelet shuts down":           {ready(corev1.ConditionFalse, "[container runtime is down, node is shutting down]"), nil, nil, true},
		"not Ready for another reason": {ready(corev1.ConditionFalse, "container runtime is down"), nil, nil, false},
		"kured reboots it":             {func(n *corev1.Node) { n.Annotations["weave.works/kured-reboot-in-progress"] = "2026-11-30T08:00:00Z" }, nil, nil, true},
		"Karpenter disrupts it":        {taint("karpenter.sh/disrupted"), nil, nil, true},
		"cluster-autoscaler deletes":   {taint("ToBeDeletedByClusterAutoscaler"), nil, nil, true},
		"it is only a candidate":       {taint("DeletionCandidateOfClusterAutoscaler"), nil, nil, false},
		"the Node is being deleted": {func(n *corev1.Node) {
			n.DeletionTimestamp, n.Finalizers = &deleted, []string{"karpenter.sh/termination"}
		}, nil, nil, true},
		"its Machine is being deleted": {ofCAPI, machine(capi, "capi", "m1", true), nil, true},
		"its Machine is not":           {ofCAPI, machine(capi, "capi", "m1", false), nil, false},
		"another Machine is":           {ofCAPI, machine(capi, "capi", "m2", true), nil, false},
		"OpenShift's is": {func(n *corev1.Node) { n.Annotations["machine.openshift.io/machine"] = "openshift-machine-api/m1" },
			machine(openshift, "openshift-machine-api", "m1", true), nil, true},
		"it may not be read": {ofCAPI, machine(capi, "capi", "m1", true), errors.New("forbidden"), false},
	} {
		node := nodeOf("n1", 0)
		c.change(node)
		d := &detector{parts: machinesOver(c.machine, c.err)}
		if got := d.leaving(t.Context(), node); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestLeavingElsewhere: where Cluster API runs in another cluster, this one is not asked each half second whether it has Machines after all.
func TestLeavingElsewhere(t *testing.T) {
	asked := 0
	p := partsOver(nil)
	p.live = interceptor.NewClient(p.client.(client.WithWatch), interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
		asked++
		return &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "cluster.x-k8s.io", Kind: "Machine"}, SearchedVersions: []string{"v1beta2"}}
	}})
	clock := time.Now()
	p.now = func() time.Time { return clock }
	node := nodeOf("n1", 0)
	node.Annotations["cluster.x-k8s.io/machine"], node.Annotations["cluster.x-k8s.io/cluster-namespace"] = "m1", "capi"
	d := &detector{parts: p}
	for range 120 {
		if d.leaving(t.Context(), node) {
			t.Fatal("a machine that cannot be read is being deleted")
		}
		clock = clock.Add(500 * time.Millisecond)
	}
	if asked != 1 {
		t.Errorf("asked %d times in a minute", asked)
	}
	if d.leaving(t.Context(), node); asked != 2 {
		t.Errorf("asked %d times: a kind that is installed later counts", asked)
	}
}

// machinesOver are parts over a server that has one machine, of which it serves the metadata, or fails.
func machinesOver(machine *metav1.PartialObjectMetadata, err error) *parts {
	p := partsOver(nil)
	p.live = interceptor.NewClient(p.client.(client.WithWatch), interceptor.Funcs{Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
		kind := o.GetObjectKind().GroupVersionKind()
		switch {
		case err != nil:
			return err
		case machine == nil || machine.GroupVersionKind() != kind || client.ObjectKeyFromObject(machine) != key:
			return apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, key.Name)
		}
		machine.DeepCopyInto(o.(*metav1.PartialObjectMetadata))
		return nil
	}})
	return p
}
