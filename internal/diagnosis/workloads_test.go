package diagnosis

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
)

// owned makes both pods those of an owner.
func (s scene) owned(resource Resource, kind string, wanted, made int32) *Workload {
	w := &Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "owner"}, Resource: resource, Wanted: wanted, Made: made}
	s.Snapshot.Workloads = append(s.Snapshot.Workloads, w)
	for _, pod := range []*corev1.Pod{s.holder, s.waiter} {
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "db", UID: "owner", Controller: new(true)}}
	}
	return w
}

// cannotCreate adds the event of an owner.
func (s scene) cannotCreate(uid, message string, ago time.Duration) {
	s.Snapshot.Events = append(s.Snapshot.Events, &corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: "StatefulSet", Namespace: "ns", Name: "db", UID: types.UID(uid)}, Reason: explain.FailedCreate, Type: corev1.EventTypeWarning, Message: message, LastTimestamp: metav1.NewTime(s.Now.Add(-ago)),
	})
}

// TestWorkloads: the owner's own error, then what its pods wait for. The texts are those of k/k v1.36.3 pkg/controller/statefulset/stateful_pod_control.go:341,358
// and pkg/controller/controller_utils.go:600.
func TestWorkloads(t *testing.T) {
	for name, one := range map[string]struct {
		make     func(scene)
		resource Resource
		want     decision.Reason
		text     string
		findings int
	}{
		"a quota of claims": {func(s scene) {
			s.owned(StatefulSets, "StatefulSet", 3, 0)
			s.Pods = nil
			s.cannotCreate("owner", `create Claim data-db-0 for Pod db-0 in StatefulSet db failed error: persistentvolumeclaims "data-db-0" is forbidden: exceeded quota: storage, requested: requests.storage=10Gi, used: requests.storage=95Gi, limited: requests.storage=100Gi`, time.Minute)
		}, StatefulSets, explain.PodNotCreated, "kubectl describe resourcequota -n ns", 1},
		"a webhook": {func(s scene) {
			s.owned(Jobs, "Job", 1, 0)
			s.Pods = nil
			s.cannotCreate("owner", `Error creating: admission webhook "policy.example.com" denied the request: no`, time.Minute)
		}, Jobs, explain.PodNotCreated, "job/db cannot create its pods: Error creating: admission webhook", 1},
		"the ReplicaSet of a Deployment": {func(s scene) {
			s.owned(Deployments, "Deployment", 2, 0)
			s.Pods = nil
			s.Workloads = append(s.Workloads, &Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db-1", UID: "rs", OwnerReferences: []metav1.OwnerReference{{UID: "owner", Controller: new(true)}}}, Resource: ReplicaSets})
			s.cannotCreate("rs", `Error creating: pods "db-1-x" is forbidden: exceeded quota: pods`, time.Minute)
		}, Deployments, explain.PodNotCreated, "deployment/db cannot create its pods", 1},
		"the pods of a ReplicaSet of a Deployment": {func(s scene) {
			s.owned(Deployments, "Deployment", 2, 2)
			s.Workloads = append(s.Workloads, &Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db-1", UID: "rs", OwnerReferences: []metav1.OwnerReference{{UID: "owner", Controller: new(true)}}}, Resource: ReplicaSets})
			for _, pod := range s.Pods {
				pod.OwnerReferences[0].UID = "rs"
			}
		}, Deployments, explain.HeldByRunningPod, "holder", 1},
		"an error, and a pod that waits": {func(s scene) {
			s.owned(StatefulSets, "StatefulSet", 3, 2)
			s.cannotCreate("owner", "create Pod db-2 in StatefulSet db failed error: no", time.Minute)
		}, StatefulSets, explain.HeldByRunningPod, "cannot create its pods", 2},
		"an error that is over": {func(s scene) {
			s.owned(ReplicaSets, "ReplicaSet", 2, 2)
			s.Pods = s.Pods[:1]
			s.cannotCreate("owner", "Error creating: no", time.Minute)
		}, ReplicaSets, attachment.Settled, "", 0},
		"an error of last night": {func(s scene) {
			s.owned(ReplicaSets, "ReplicaSet", 2, 1)
			s.Pods = s.Pods[:1]
			s.cannotCreate("owner", "Error creating: no", time.Hour)
		}, ReplicaSets, attachment.Settled, "", 0},
		"all is well":             {func(s scene) { s.owned(DaemonSets, "DaemonSet", 1, 1); s.Pods = s.Pods[:1] }, DaemonSets, attachment.Settled, "daemonset/db has 1 of 1 pods, and none waits for a volume", 0},
		"a Job that is suspended": {func(s scene) { s.owned(Jobs, "Job", 1, 0).Suspended = true; s.Pods = nil }, Jobs, attachment.Settled, "job/db is suspended", 0},
		"the pods of another":     {func(s scene) { s.owned(DaemonSets, "DaemonSet", 1, 1); s.waiter.OwnerReferences[0].UID = "another" }, DaemonSets, attachment.Settled, "", 0},
		"many pods wait for the same": {func(s scene) {
			s.owned(StatefulSets, "StatefulSet", 3, 3)
			s.unbound()
			s.Claims, s.Pods = nil, nil
			for _, name := range []string{"db-0", "db-1", "db-2"} {
				pod := s.waiter.DeepCopy()
				pod.Name, pod.UID = name, types.UID(name)
				pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "data-" + name
				s.Snapshot.Pods = append(s.Snapshot.Pods, pod)
			}
		}, StatefulSets, explain.ClaimMissing, "pod db-0 uses the claim data-db-0", 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			one.make(s)
			e, err := Explain(s.Snapshot, Ref{one.resource, "ns", "db"})
			if err != nil || e.Reason != one.want || !says(&e, one.text) || len(e.Findings) != one.findings {
				t.Errorf("%s: %s %v (%v), want %s and %q in %d findings", e.Reason, e.Summary, e.Findings, err, one.want, one.text, one.findings)
			}
		})
	}
}

// TestReplacedAfterCorrection: a StatefulSet does not replace a pod that never was Ready, so a corrected template alone helps only the pods of others.
func TestReplacedAfterCorrection(t *testing.T) {
	const step = "kubectl delete pod app-0 -n ns"
	missing := setUp(`configmap "app" not found`)
	for name, one := range map[string]struct {
		kind, message string
		want          bool
	}{
		"a StatefulSet":                          {"StatefulSet", missing, true},
		"a ReplicaSet":                           {"ReplicaSet", missing, false},
		"a StatefulSet, and no template's fault": {"StatefulSet", setUp("failed to sync configmap cache: timed out waiting for the condition"), false},
	} {
		t.Run(name, func(t *testing.T) {
			c := kubeletText{volume: configMap("app"), reason: "FailedMount", message: one.message, also: func(_ *Snapshot, pod *corev1.Pod) {
				pod.OwnerReferences = []metav1.OwnerReference{{Kind: one.kind, Name: "app", Controller: new(true)}}
			}}
			s, _ := c.snapshot()
			e, err := Explain(s, Ref{Pods, "ns", "app-0"})
			if err != nil {
				t.Fatal(err)
			}
			if has := slices.ContainsFunc(e.Findings[0].Next, func(s explain.Step) bool { return s.Command == step }); has != one.want {
				t.Errorf("the steps are %+v", e.Findings[0].Next)
			}
		})
	}
}

// TestStuckOwners: a StatefulSet that cannot create a claim is in the list while the error is recent, and the claim does not exist.
func TestStuckOwners(t *testing.T) {
	refused := `create Claim data-db-1 for Pod db-1 in StatefulSet db failed error: persistentvolumeclaims "data-db-1" is forbidden: exceeded quota: storage`
	for name, one := range map[string]struct {
		make func(scene)
		want int
	}{
		"a quota": {func(s scene) { s.cannotCreate("owner", refused, time.Minute) }, 1},
		"the claim exists": {func(s scene) {
			s.cannotCreate("owner", refused, time.Minute)
			s.Claims = append(s.Claims, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data-db-1"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}})
		}, 0},
		"long ago": {func(s scene) { s.cannotCreate("owner", refused, time.Hour) }, 0},
		"a pod, for a cause of its own": {func(s scene) {
			s.cannotCreate("owner", "create Pod db-1 in StatefulSet db failed error: exceeded quota: pods", time.Minute)
		}, 0},
		"the claims could not be read": {func(s scene) { s.cannotCreate("owner", refused, time.Minute); s.Whole = []Resource{Pods} }, 0},
		"another kind with these words": {func(s scene) {
			s.cannotCreate("owner", refused, time.Minute)
			s.Events[0].InvolvedObject.Kind = "Widget"
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.Pods, s.Attachments, s.a.Status.VolumesInUse, s.a.Status.VolumesAttached = nil, nil, nil, nil
			one.make(s)
			found := 0
			for _, f := range Stuck(s.Snapshot, "ns", 0).Items {
				if f.Reason == explain.PodNotCreated && f.Subject == (Ref{StatefulSets, "ns", "db"}) {
					found++
				}
			}
			if found != one.want {
				t.Errorf("%d findings, want %d", found, one.want)
			}
		})
	}
}

// TestDriverWithoutObject: a driver that no attacher serves, of which no CSIDriver says that it needs none.
func TestDriverWithoutObject(t *testing.T) {
	waits := func(s scene) {
		s.mounts()
		s.va.Status.Attached, s.va.Finalizers = false, nil
		s.Nodes[1].Status.VolumesAttached, s.Nodes[1].Status.VolumesInUse = nil, nil
	}
	for name, one := range map[string]struct {
		make func(scene)
		want decision.Reason
	}{
		"no object, no attacher":  {func(scene) {}, explain.CSIDriverMissing},
		"an object":               {func(s scene) { s.Drivers = []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: oneDriver}}} }, explain.AttacherNotRunning},
		"an attacher's finalizer": {func(s scene) { s.va.Finalizers = []string{"external-attacher/disk-example-com"} }, attachment.AttachUnanswered},
		"another that is attached": {func(s scene) {
			va := s.va.DeepCopy()
			va.Name, va.Spec.NodeName, va.Spec.Source.PersistentVolumeName, va.Status.Attached = "x", "a", new("x"), true
			s.Snapshot.Attachments = append(s.Snapshot.Attachments, va)
		}, explain.AttacherNotRunning},
		"the objects are not read": {func(s scene) { s.Whole = []Resource{Pods, Claims, Volumes, Attachments, Nodes, CSINodes, Leases} }, explain.AttacherNotRunning},
		"the driver is on no node": {func(s scene) { s.CSINodes = []*storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: "b"}}} }, explain.DriverNotOnNode},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			waits(s)
			s.va.CreationTimestamp = metav1.NewTime(s.Now.Add(-10 * time.Minute))
			one.make(s)
			e, err := Explain(s.Snapshot, Ref{Pods, "ns", "waiter"})
			if err != nil || e.Reason != one.want {
				t.Errorf("%s: %s (%v), want %s", e.Reason, e.Summary, err, one.want)
			}
		})
	}
}

// TestCause: findings that differ in nothing but what waits have one cause, whatever names their sentences have.
func TestCause(t *testing.T) {
	of := func(pod, claim, node string) *Finding {
		return &Finding{
			Verdict: Blocked, Reason: explain.HeldByRunningPod, Summary: "pod " + pod + " needs claim " + claim + ", which node " + node + " has",
			Subject: Ref{Pods, "ns", pod}, Volume: &Volume{Claim: claim},
		}
	}
	if a, b := of("db-0", "data-db-0", "n1").Cause(), of("db-1", "data-db-1", "n1").Cause(); a != b {
		t.Errorf("%q, %q", a, b)
	}
	other := of("db-0", "data-db-0", "n1")
	other.Reason = explain.MountFailing
	for _, f := range []*Finding{other, of("db-1", "data-db-1", "n2")} {
		if f.Cause() == of("db-0", "data-db-0", "n1").Cause() {
			t.Errorf("%q is of another cause", f.Cause())
		}
	}
}
