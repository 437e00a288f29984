package nodeagent

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodeagent/nodestatus"
	"belay.dev/belay/internal/nodeagent/plugins"
	"belay.dev/belay/internal/nodevolume"
)

// podWorld is a podManager without an Agent, and what its handlers got.
type podWorld struct {
	*podManager
	api  *fake.Clientset
	told []string
	sure bool
}

func newPodWorld(t *testing.T) *podWorld {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "default", UID: "claim"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
		ClaimRef:               &corev1.ObjectReference{UID: "claim"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}},
	}}
	w := &podWorld{api: fake.NewClientset(claim, pv), sure: true}
	tell := func(what string, uid types.UID) {
		w.uids() // no lock is held: this would wait forever
		w.told = append(w.told, what+" "+string(uid))
	}
	config := Config{NodeName: "n", RESTConfig: nil, Logger: logr.Discard()}
	w.podManager = newPodManager(config, w.api, record.NewFakeRecorder(10), newSchedule(), func() bool { return w.sure }, podHandlers{
		wanted: func(uid types.UID, wants []*volumeToMount) {
			for _, want := range wants {
				w.addVolume(uid, want.name())
			}
			tell("wanted", uid)
		},
		released:  func(uid types.UID, _ []string) { tell("released", uid) },
		changed:   func(names []string) { tell("changed", types.UID(slices.Compact(names)[0])) },
		mayExpand: func(*volumeToMount) bool { return false },
		readSize:  func(context.Context, *volumeToMount, string) error { return nil },
	})
	t.Cleanup(w.queue.ShutDown)
	return w
}

func podWithClaim(uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: string(uid), Namespace: "default", UID: uid}, Spec: corev1.PodSpec{
		Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}},
		Containers: []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
	}}
}

const volumeOfClaim = "kubernetes.io/csi/d^h"

// TestPodLifecycleInPodManager: the pod is resolved, its volumes are handed to the handlers, and it is forgotten.
func TestPodLifecycleInPodManager(t *testing.T) {
	w := newPodWorld(t)
	w.set(podWithClaim("p"))
	must(t, w.lookUp(t.Context(), "p"))
	if p, known := w.snapshot("p"); !known || !p.resolved || len(p.toMount) != 1 {
		t.Errorf("known: %v; it is %+v", known, p)
	}
	w.ending("p", errRuntimeNotQueried)
	w.remove("p")
	w.remove("p")
	w.removeVolume("p", volumeOfClaim)
	want := []string{"wanted p", "changed " + volumeOfClaim, "changed " + volumeOfClaim, "released p"}
	if diff := cmp.Diff(want, w.told); diff != "" {
		t.Errorf("handler calls (-want +got):\n%s", diff)
	}
	if left := w.uids(); len(left) > 0 {
		t.Errorf("known forever: %v", left)
	}
}

// TestFirstAnswerOfTheRuntimeWakesVolumes: an event that was sent before names no cause. Later answers wake nothing.
func TestFirstAnswerOfTheRuntimeWakesVolumes(t *testing.T) {
	w := newPodWorld(t)
	w.recorded("p", volumeOfClaim)
	for _, why := range []error{errRuntimeNotQueried, errRuntimeNotQueried, errors.New("c1 and c2 run"), errors.New("c2 runs"), errRuntimeNotQueried} {
		w.ending("p", why)
	}
	if diff := cmp.Diff([]string{"changed " + volumeOfClaim, "changed " + volumeOfClaim}, w.told); diff != "" {
		t.Errorf("handler calls (-want +got):\n%s", diff)
	}
	if p, _ := w.snapshot("p"); p.ending.Error() != "c2 runs" {
		t.Errorf("cause: %v", p.ending)
	}
}

// TestRefusalWakesWaiters of the pod, although another of its claims cannot be read.
func TestRefusalWakesWaiters(t *testing.T) {
	w := newPodWorld(t)
	pod := podWithClaim("p")
	missing := *pod.Spec.Volumes[0].DeepCopy()
	missing.Name, missing.PersistentVolumeClaim.ClaimName = "missing", "missing"
	pod.Spec.Volumes = append(pod.Spec.Volumes, missing)
	pod.Spec.Containers[0].VolumeMounts[0].Name = "missing"
	pod.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/data"}} // it has a file system
	w.set(pod)
	before, _ := w.snapshot("p")
	err := w.lookUp(t.Context(), "p")
	if after, _ := w.snapshot("p"); err == nil || after.refused == nil {
		t.Fatalf("the claim: %v; the pod: %v", err, after.refused)
	}
	select {
	case <-before.changed:
	default:
		t.Error("who waits for the pod's mounts is not woken")
	}
}

// TestPodRemovedDuringLookup leaves nothing behind, whether it is removed before or after its volumes are known.
func TestPodRemovedDuringLookup(t *testing.T) {
	w := newPodWorld(t)
	w.api.PrependReactor("get", "persistentvolumes", func(k8stesting.Action) (bool, runtime.Object, error) {
		w.remove("p")
		return false, nil, nil
	})
	w.set(podWithClaim("p"))
	must(t, w.lookUp(t.Context(), "p"))
	if diff := cmp.Diff([]string{"released p"}, w.told); diff != "" {
		t.Errorf("handler calls (-want +got):\n%s", diff)
	}
	if w.addVolume("p", volumeOfClaim) || len(w.uids()) > 0 {
		t.Errorf("the pod came back: %v", w.uids())
	}
}

// TestRecordedPodsWaitUntilPodsAreSynced, and until the records are known to be this node's.
func TestRecordedPodsWaitUntilPodsAreSynced(t *testing.T) {
	w := newPodWorld(t)
	w.sure = false
	w.recorded("gone", volumeOfClaim)
	w.recorded("lives", volumeOfClaim)
	w.set(podWithClaim("lives"))
	if state := w.state("gone"); state != (nodevolume.PodState{}) {
		t.Errorf("before its owner has spoken: %+v", state)
	}
	w.setPodsSynced()
	if state := w.state("gone"); state.Removed || state.PodsSynced {
		t.Errorf("while the records may be another node's: %+v", state)
	}
	w.sure = true
	w.removeOrphans()
	if got := []bool{w.state("gone").Removed, w.state("lives").Removed}; !got[0] || got[1] {
		t.Errorf("removed: %v, want [true false]", got)
	}
	if diff := cmp.Diff([]string{"released gone"}, w.told); diff != "" {
		t.Errorf("handler calls (-want +got):\n%s", diff)
	}
}

// TestVolumeOfUnknownPodIsIgnored: a volume is kept only for a pod that is set.
func TestVolumeOfUnknownPodIsIgnored(t *testing.T) {
	w := newPodWorld(t)
	root, err := mount.OpenRoot(t.TempDir(), func() ([]string, error) { return nil, nil })
	must(t, err)
	defer root.Close()
	m := newVolumeManager(surroundings{
		config: w.config, client: w.api, root: root, events: record.NewFakeRecorder(10), schedule: newSchedule(), volumes: newVolumeSet(), pods: w.podManager,
		plugins: plugins.New(plugins.Config{NodeName: "n", Root: root, Client: w.api}, plugins.Handlers{}),
		status:  nodestatus.New(nodestatus.Config{NodeName: "n", Client: w.api}, nodestatus.Handlers{}),
	})
	defer m.shutDown()
	defer m.plugins.Close()
	here := &volumeToMount{specName: "pv", driver: "d", handle: "h", pod: podIdentity{UID: "p"}}
	m.addVolumes("p", []*volumeToMount{here})
	if len(m.all) > 0 {
		t.Errorf("volumes of a pod that was not set: %v", m.all)
	}
	w.set(podWithClaim("p"))
	m.addVolumes("p", []*volumeToMount{here})
	if m.all[volumeOfClaim] == nil || m.queue.Len() != 1 {
		t.Errorf("volumes: %v, %d to look at", m.all, m.queue.Len())
	}
	w.remove("p")
	m.reconcile(t.Context(), volumeOfClaim)
	if p, known := w.snapshot("p"); known || len(m.all[volumeOfClaim].pods) > 0 {
		t.Errorf("after it was removed: %+v, %v", p, m.all)
	}
}
