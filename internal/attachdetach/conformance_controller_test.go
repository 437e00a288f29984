package attachdetach

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
)

// The cases of upstream's attach_detach_controller_test.go, of its caches, of its
// populator, and of test/integration/volume/attach_detach_test.go, by their names.

// makeAttachment makes an attachment under the computed name, as the controller before
// us did.
func (l *lab) makeAttachment(driver, handle, node, pv string) *storagev1.VolumeAttachment {
	l.Helper()
	va := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: kube.AttachmentName(handle, driver, l.name(node))},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver, NodeName: l.name(node), Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		},
	}
	l.must(l.Create(l.ctx, va))
	return va
}

func (l *lab) attached(va *storagev1.VolumeAttachment) {
	l.Helper()
	l.await("attached by the controller before", func() bool { return l.vas[va.Name] != nil && l.vas[va.Name].Status.Attached })
}

// statesPopulated starts from what the previous controller left: volumes that are listed are adopted, not attached
// again, and volumes in use are respected.
func statesPopulated() scenario {
	var wanted, busy types.UID
	var attaches *tally
	return prepared("Test_AttachDetachControllerStateOfWorldPopulators_Positive", func(l *lab) {
		l.readyNode("a")
		for _, name := range []string{"wanted", "busy", "idle"} {
			l.volume(name)
			l.attached(l.makeAttachment(driver, l.name(name), "a", l.name(name)))
		}
		wanted, busy = l.read("wanted", "a").UID, l.read("busy", "a").UID
		l.lists("a", l.unique("wanted"), l.unique("busy"), l.unique("idle"))
		l.use("a", "wanted", "busy")
		l.pod("p", "a", "wanted")
		attaches = l.counts(isAttach)
	}, func(l *lab) {
		l.awaitDetached("idle", "a")
		l.awaitWaiting("busy", "a")
		l.kept("wanted", "a", wanted)
		l.kept("busy", "a", busy)
		if !l.onServer("wanted", "a") || !l.onServer("busy", "a") {
			l.Error("withdrew the report of a volume in use")
		}
		l.use("a", "wanted")
		l.awaitDetached("busy", "a")
		if n := attaches.count(); n != 0 {
			l.Errorf("%d attaches of volumes that were attached", n)
		}
	})
}

// recovery starts with volumes that only the Node and an attachment know, which go,
// and pods from before and from during the start, which get theirs.
func recovery(name string, early, late bool) scenario {
	return prepared("Test_AttachDetachControllerRecovery/"+name, func(l *lab) {
		l.readyNode("a", "b")
		for _, name := range []string{"old", "stale", "v", "w", "x"} {
			l.volume(name)
		}
		l.attached(l.makeAttachment(driver, l.name("old"), "a", l.name("old")))
		l.lists("a", l.unique("old"), l.unique("stale"))
		l.pod("p", "b", "v")
		if early {
			l.pod("newpod-1", "a", "w")
		}
	}, func(l *lab) {
		if late {
			l.pod("newpod-2", "b", "x")
		}
		l.awaitReported("v", "b")
		l.awaitDetached("old", "a")
		l.await("stale report withdrawn", func() bool { return !l.isReported("stale", "a") })
		if early {
			l.awaitReported("w", "a")
		}
		if late {
			l.awaitReported("x", "b")
		}
	})
}

// danglingAttachment is an attachment without a pod, confirmed or not.
func danglingAttachment(name string, confirmed bool) scenario {
	return prepared("Test_ADC_VolumeAttachmentRecovery/"+name, func(l *lab) {
		l.readyNode("a")
		l.volume("v")
		if !confirmed {
			l.attacher.set(func() {
				l.attacher.mood = func(va *storagev1.VolumeAttachment) (bool, string) { return va.DeletionTimestamp == nil, "" }
			})
		}
		va := l.makeAttachment(driver, l.name("v"), "a", l.name("v"))
		if confirmed {
			l.attached(va)
		}
		l.await("seen", func() bool { return l.vas[va.Name] != nil })
	}, func(l *lab) {
		l.awaitDetached("v", "a")
	})
}

// podTombstone: a pod is deleted while the watch of pods is interrupted, and its resource version is too old to resume
// the watch.
func podTombstone(t *testing.T) {
	l := newLab(t)
	l.options = upstream()
	gap := &gap{path: "/api/v1/pods"}
	l.transport = gap.wrap
	l.readyNode("a")
	l.volume("v")
	l.run()
	l.pod("pod1", "a", "v")
	l.awaitReported("v", "a")
	gap.open()
	l.gone("pod1")
	gap.close()
	l.awaitDetached("v", "a")
	gap.check(t)
}

// gap breaks the watch of one resource. When it is over, the version that the watch
// had reached is too old.
type gap struct {
	path string

	mu      sync.Mutex
	broken  bool
	expired bool
	cancel  []context.CancelFunc // of what is being watched
	reads   sync.WaitGroup       // answers that are still read
}

// open returns when nothing that happens from then on is seen by a watch that was begun before.
func (g *gap) open() {
	g.mu.Lock()
	g.broken, g.expired = true, true
	for _, cancel := range g.cancel {
		cancel()
	}
	g.mu.Unlock()
	g.reads.Wait()
}

// check fails where no watch was broken, or none was resumed behind the gap.
func (g *gap) check(t *testing.T) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.cancel) == 0 || g.expired {
		t.Errorf("no watch of %s was broken and resumed", g.path)
	}
}

func (g *gap) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.broken = false
}

func (g *gap) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet || r.URL.Path != g.path {
			return next.RoundTrip(r)
		}
		g.mu.Lock()
		broken, expired := g.broken, g.expired
		if broken {
			g.mu.Unlock()
			return nil, errors.New("the watch is broken")
		}
		g.expired = false
		ctx, cancel := context.WithCancel(r.Context())
		g.cancel = append(g.cancel, cancel)
		g.reads.Add(1)
		g.mu.Unlock()
		if q := r.URL.Query(); expired && q.Get("watch") != "" && q.Get("sendInitialEvents") == "" {
			g.reads.Done()
			body := `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410}`
			return &http.Response{
				StatusCode: http.StatusGone, Status: "410 Gone", Header: http.Header{"Content-Type": {"application/json"}},
				Body: io.NopCloser(strings.NewReader(body)), Request: r,
			}, nil
		}
		resp, err := next.RoundTrip(r.WithContext(ctx))
		if err != nil {
			g.reads.Done()
			return nil, err
		}
		resp.Body = &readBody{ReadCloser: resp.Body, closed: sync.OnceFunc(g.reads.Done)}
		return resp, nil
	})
}

// readBody is the body of an answer whose end is noted.
type readBody struct {
	io.ReadCloser

	closed func()
}

func (b *readBody) Close() error {
	defer b.closed()
	return b.ReadCloser.Close()
}

func podsComeAndGo(l *lab) {
	l.readyNode("a")
	l.volume("v")
	l.pod("dswp-test-pod", "a", "v")
	l.awaitReported("v", "a")
	l.gone("dswp-test-pod")
	l.awaitDetached("v", "a")
	l.pod("dswp-test-pod", "a", "v")
	l.awaitReported("v", "a")
	l.gone("dswp-test-pod")
	l.awaitDetached("v", "a")
	l.lived("a made", "a attached", "a deleting", "a gone", "a made", "a attached", "a deleting", "a gone")
}

// nonattachable: volumes of a driver that stops requiring attach are detached.
func nonattachable(l *lab) {
	name := l.driverObject("turns", nil)
	l.readyNode("a")
	l.pvOf("v", csiPV(name, l.name("v")))
	l.pod("p", "a", "v")
	l.awaitAt(name, l.name("v"), "a")
	l.turn(name, false)
	l.mounted("p")
	l.awaitNotAt(name, l.name("v"), "a")
}

// turn changes whether a driver attaches. The field cannot be changed in place.
func (l *lab) turn(name string, attachRequired bool) {
	l.Helper()
	d := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}}
	l.must(client.IgnoreNotFound(l.Delete(l.ctx, d)))
	d = &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{AttachRequired: &attachRequired}}
	l.must(l.Create(l.ctx, d))
	l.Cleanup(func() { _ = l.Delete(l.background(), d) })
}

// The cases of Test_CreateVolumeSpec: what a volume of a pod is resolved to.

func inlineNotMigrated(l *lab) {
	l.readyNode("a")
	l.podOf("p", "a", corev1.Volume{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}}})
	l.settled("a")
	l.lived("a made", "a attached")
}

// pvNotMigrated: a PersistentVolume of a plugin that does not attach.
func pvNotMigrated(l *lab) {
	l.readyNode("a")
	l.pvOf("v", corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}})
	l.pod("p", "a", "v")
	l.settled("a")
	l.lived("a made", "a attached")
}

// The caches.

func twoDevicePaths(l *lab) {
	l.readyNode("a", "b")
	l.volume("v", corev1.ReadWriteMany)
	l.pod("p", "a", "v")
	l.pod("q", "b", "v")
	l.awaitReported("v", "a")
	l.awaitReported("v", "b")
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, node := range []string{"a", "b"} {
		for _, v := range l.nodes[l.name(node)].Status.VolumesAttached {
			if v.DevicePath != "" {
				l.Errorf("node %s reports the device path %q, which CSI does not have", node, v.DevicePath)
			}
		}
	}
}

func mountedSet(l *lab) {
	l.attachedOnA()
	uid := l.read("v", "a").UID
	l.use("a", "v")
	l.gone("p")
	l.awaitWaiting("v", "a")
	l.kept("v", "a", uid)
}

func mountedUnset(l *lab) {
	mountedSet(l)
	l.use("a")
	l.awaitDetached("v", "a")
}

// neverMounted: nothing was in use at any time.
func neverMounted(l *lab) {
	l.attachedOnA()
	l.gone("p")
	l.awaitDetached("v", "a")
}

// unmountedStays: a second pod at the node does not mark the unmounted volume as in use again.
func unmountedStays(l *lab) {
	l.attachedOnA()
	l.use("a", "v")
	l.use("a")
	l.pod("q", "a", "v")
	l.gone("q")
	l.gone("p")
	l.awaitDetached("v", "a")
}

// requestTimeKept: the clock of a detach that waits runs on while the node says
// other things.
func requestTimeKept(l *lab) {
	mountedSet(l)
	requested := l.read("v", "a").Annotations[kube.DetachRequestedAnnotation]
	l.use("a", "v", "other")
	l.settled("a")
	l.use("a", "v")
	l.settled("a")
	if now := l.read("v", "a").Annotations[kube.DetachRequestedAnnotation]; now != requested {
		l.Errorf("detach requested at %s became %s", requested, now)
	}
}

// nodeWithVolumesDeleted: pods still want their volumes at a node that goes and
// comes back.
func nodeWithVolumesDeleted(l *lab) {
	l.readyNode("a", "b")
	l.volume("v")
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	l.use("a", "v")
	uid := l.read("v", "a").UID
	l.shut("a")
	l.await("the Node is gone", func() bool { return l.nodes[l.name("a")] == nil })
	l.settled("b")
	l.kept("v", "a", uid)
	l.readyNode("a")
	l.awaitReported("v", "a")
	l.kept("v", "a", uid)
}

// The integration tests.

func podTerminationWithOOS(l *lab) {
	l.attachedOnA()
	l.use("a", "v")
	l.running("p")
	l.must(l.Delete(l.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: l.prefix, Name: "p"}}, client.GracePeriodSeconds(300)))
	l.health("a", corev1.ConditionUnknown)
	l.taint("a")
	l.readyNode("b")
	l.settled("b")
	if va := l.read("v", "a"); va == nil || va.DeletionTimestamp != nil {
		l.Fatal("detached while the pod object says that its containers run")
	}
	l.gone("p") // as the pod garbage collector does for that taint
	l.awaitDetached("v", "a")
	l.forced("out-of-service")
}

// running is kubelet: the pod's container runs.
func (l *lab) running(pod string) {
	l.Helper()
	l.patchStatus(&corev1.Pod{}, l.prefix, pod, map[string]any{
		"phase": corev1.PodRunning,
		"containerStatuses": []map[string]any{{
			"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
			"state": map[string]any{"running": map[string]any{}},
		}},
	})
}

// podDeletionMissed: the pod was deleted while no controller led.
func podDeletionMissed(l *lab) acts {
	return acts{
		before: func() {
			l.readyNode("a")
			l.volume("v")
			l.pod("p", "a", "v")
			l.awaitReported("v", "a")
		},
		down:  func() { l.gone("p") },
		after: func() { l.awaitDetached("v", "a") },
	}
}

// podAdditionMissed: the second pod was created while no controller led.
func podAdditionMissed(l *lab) acts {
	return acts{
		before: func() {
			l.readyNode("a")
			l.volume("v")
			l.volume("w")
			l.pod("p", "a", "v")
			l.awaitReported("v", "a")
		},
		down:  func() { l.pod("newfakepod", "a", "w") },
		after: func() { l.awaitReported("w", "a"); l.awaitReported("v", "a") },
	}
}

func podSucceeds(l *lab) {
	l.attachedOnA()
	l.running("p")
	l.patchStatus(&corev1.Pod{}, l.prefix, "p", map[string]any{"phase": corev1.PodSucceeded})
	l.awaitDetached("v", "a")
}

func claimsBoundLate(l *lab) {
	l.readyNode("a")
	l.volume("v")
	names := []string{"fakepvc-0", "fakepvc-1", "fakepvc-2"}
	for _, name := range names {
		l.must(l.Create(l.ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: l.prefix, Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: new(""), Resources: storage(),
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			},
		}))
		l.pod("pod-"+name, "a", name)
	}
	l.pod("fakepod", "a", "v")
	l.awaitReported("v", "a")
	l.mu.Lock()
	if n := len(l.vas); n != 1 {
		l.Errorf("%d attachments before the claims are bound, want 1", n)
	}
	l.mu.Unlock()
	for _, name := range names {
		l.persistentVolume(name, driver)
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: l.prefix, Name: name}}
		body := `{"spec": {"volumeName": "` + l.name(name) + `"}}`
		l.must(l.Patch(l.ctx, claim, client.RawPatch(types.MergePatchType, []byte(body))))
		l.bindLate(name)
		l.patchStatus(&corev1.PersistentVolumeClaim{}, l.prefix, name, map[string]any{"phase": corev1.ClaimBound})
	}
	for _, name := range names {
		l.awaitReported(name, "a")
	}
}

func controllerCases() []scenario {
	return []scenario{
		statesPopulated(),
		recovery("No extra pods", false, false),
		recovery("Add a new pod between ASW and DSW ppoulators", true, false),
		recovery("Add a new pod between DSW ppoulator and reconciler run", false, true),
		recovery("Add a new pod between ASW and DSW ppoulators and another between DSW ppoulator and reconciler run", true, true),
		danglingAttachment("VA status is attached", true),
		danglingAttachment("VA status is unattached", false),
		play("TestFindAndAddActivePods_FindAndRemoveDeletedPods", podsComeAndGo),
		play("TestFindAndRemoveNonattachableVolumes", nonattachable),
		play("Test_CreateVolumeSpec/inline volume type that does not support csi migration", inlineNotMigrated),
		play("Test_CreateVolumeSpec/pv type that does not support csi migration", pvNotMigrated),
		play("Test_OneVolumeTwoNodes_TwoDevicePaths", twoDevicePaths),
		play("Test_SetVolumesMountedByNode_Positive_Set", mountedSet),
		play("Test_SetVolumesMountedByNode_Positive_UnsetWithInitialSet", mountedUnset),
		play("Test_SetVolumesMountedByNode_Positive_UnsetWithoutInitialSet", neverMounted),
		play("Test_SetVolumesMountedByNode_Positive_UnsetWithInitialSetAddVolumeNodeNotReset", unmountedStays),
		play("Test_SetVolumesMountedByNode_Positive_UnsetWithInitialSetVerifyDetachRequestedTimePerserved", requestTimeKept),
		play("Test_DeleteNode_Negative_NodeExistsHasChildVolumes", nodeWithVolumesDeleted),
		play("TestPodTerminationWithNodeOOSDetach", podTerminationWithOOS),
		play("TestPodUpdateWithADC", podSucceeds),
		play("TestPVCBoundWithADC", claimsBoundLate),
		play("TestVolumesInUseMetricCollection", volumesInUseMetric),
		play("TestTotalVolumesMetricCollection", totalVolumesMetric),
	}
}

func restartCases() []scenario {
	return []scenario{
		restarted("TestPodDeletionWithDswp", podDeletionMissed),
		restarted("TestPodAddedByDswp", podAdditionMissed),
	}
}
