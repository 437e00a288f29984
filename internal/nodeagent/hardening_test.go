package nodeagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/testing/wait"
)

// within says whether something comes about within a time in which it would have long ago.
func within(limit time.Duration, is func() bool) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if is() {
			return true
		}
	}
	return is()
}

// mountedForPod are the driver's mounts below a pod's directory.
func (w *world) mountedForPod(uid types.UID) []string {
	points, _ := w.driver.MountPoints()
	return slices.DeleteFunc(points, func(path string) bool { return !strings.Contains(path, "/pods/"+string(uid)+"/") })
}

// TestWaitUnmountedOfTwoPersistentVolumesOfOneHandle: WaitUnmounted returns while the second one is published.
func TestWaitUnmountedOfTwoPersistentVolumesOfOneHandle(t *testing.T) {
	w := newWorld(t, noAttach)
	handle := w.volume("one")
	w.volume("two", handleOf(handle))
	agent, _ := w.agent()
	pod := w.pod("p", "one", "two")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	hold := make(chan struct{})
	defer close(hold)
	w.driver.SetBefore(func(method, _ string, attempt int) error {
		if method == "Unpublish" && attempt == 2 {
			<-hold
		}
		return nil
	})
	agent.RemovePod(pod.UID)
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
	defer cancel()
	err := agent.WaitUnmounted(ctx, pod.UID)
	if left := w.mountedForPod(pod.UID); err == nil && len(left) > 0 {
		t.Errorf("WaitUnmounted says that nothing of the pod is published, and the driver has %v", left)
	}
}

// TestSecondPersistentVolumeOfOneHandleIsNeverUnpublished: one of the two is dropped while the pod is there; nothing wakes
// the volume when the pod is removed.
func TestSecondPersistentVolumeOfOneHandleIsNeverUnpublished(t *testing.T) {
	w := newWorld(t, noAttach)
	handle := w.volume("one")
	w.volume("two", handleOf(handle))
	w.driver.Intercept(func(_ string, request any, do func() (any, error)) (any, error) {
		if r, ok := request.(*csispec.NodePublishVolumeRequest); ok && strings.Contains(r.TargetPath, w.name+"-two") {
			return nil, status.Error(codes.InvalidArgument, "not this one")
		}
		return do()
	})
	agent, _ := w.agent(func(c *Config) { c.waitEventDelay = time.Second })
	pod := w.pod("p", "one", "two")
	agent.SetPod(pod)
	wait.Until(w, "the second one was refused", func() bool {
		agent.volumes.mu.Lock()
		defer agent.volumes.mu.Unlock()
		v := agent.volumes.all[string(w.unique(handle))]
		if v == nil || len(v.pods) != 2 {
			return false
		}
		return v.pods[1].Failure.Count > 0 && len(w.mountedForPod(pod.UID)) == 1
	})
	deleted := pod.DeepCopy()
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	agent.SetPod(deleted)
	wait.Until(w, "the second one was dropped", func() bool {
		agent.volumes.mu.Lock()
		defer agent.volumes.mu.Unlock()
		return len(agent.volumes.all[string(w.unique(handle))].pods) == 1
	})
	time.Sleep(3 * time.Second) // until the volume is not to be looked at any more because of what was before
	agent.RemovePod(pod.UID)
	err := agent.WaitUnmounted(w.ctx, pod.UID)
	if !within(wait.Timeout, func() bool { return len(w.mountedForPod(pod.UID)) == 0 }) {
		t.Errorf("long after the pod was removed (WaitUnmounted: %v) it is still published: %v; calls %v", err, w.mountedForPod(pod.UID), w.driver.Made())
	}
}

// TestPodThatEndsBeforeItsMountAndComesBackWaitsForever: its volume is forgotten while the pod is terminated, and is
// not looked up again.
func TestPodThatEndsBeforeItsMountAndComesBackWaitsForever(t *testing.T) {
	w := newWorld(t)
	handle := w.volume("data")
	agent, _ := w.agent()
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilInUse(handle)
	agent.PodEnding(pod.UID, errors.New("its object says that it is over"))
	w.untilNotInUse(handle)
	agent.SetPod(pod) // it is not, after all
	if !within(wait.Timeout, func() bool { return len(w.node().Status.VolumesInUse) > 0 }) {
		ctx, cancel := context.WithTimeout(w.ctx, time.Second)
		defer cancel()
		_, err := agent.WaitMounted(ctx, pod.UID)
		t.Errorf("long after the pod was set again its volume is not listed in use; WaitMounted: %v", err)
	}
}

// lateAnswer is a runtime that reports that the pod runs, and an agent that gets this answer while the informer sets
// the pod again.
type lateAnswer struct {
	ends    *podTerminations
	mu      sync.Mutex
	over    bool
	stale   bool
	running sync.WaitGroup
}

func (l *lateAnswer) PodEnding(_ types.UID, why error) bool {
	if !errors.Is(why, errRuntimeNotQueried) && !l.stale {
		l.stale = true
		l.running.Go(func() { // the informer
			l.ends.cancel("p")
			l.mu.Lock()
			defer l.mu.Unlock()
			l.over = false // SetPod
		})
		time.Sleep(100 * time.Millisecond) // in which it comes between, if it can
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	return true
}
func (l *lateAnswer) RemovePod(types.UID)                            {}
func (l *lateAnswer) WaitUnmounted(context.Context, types.UID) error { return nil }
func (l *lateAnswer) Ended(context.Context, string) (func(), error) {
	return nil, errors.New("containers run")
}

// TestLateRuntimeAnswerDoesNotEndCanceledPod: the pod would stay Ending until its object changes again, because its end
// was canceled and no component would query the runtime.
func TestLateRuntimeAnswerDoesNotEndCanceledPod(t *testing.T) {
	l := &lateAnswer{}
	l.ends = newPodTerminations(l, l, logr.Discard())
	defer l.ends.queue.ShutDown()
	l.ends.begin("p")
	l.ends.check(t.Context(), "p")
	l.running.Wait()
	if l.over {
		t.Error("the pod was called off, and is over")
	}
}

// TestPublishAfterWaitUnmounted: the pod is removed while the record of its publish goes to the disk.
func TestPublishAfterWaitUnmounted(t *testing.T) {
	w := newWorld(t, noAttach)
	w.volume("data")
	writing, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	agent, _ := w.agent(func(c *Config) {
		c.writeRecord = func(root *mount.Root, name string, content []byte, must mount.Durability) error {
			if strings.HasSuffix(name, ".publish.json") {
				once.Do(func() {
					close(writing)
					<-goOn // a slow disk
				})
			}
			return root.Write(name, content, must)
		}
	})
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	wait.For(t, "the write", writing)
	agent.RemovePod(pod.UID)
	ctx, cancel := context.WithTimeout(w.ctx, 3*time.Second)
	defer cancel()
	err := agent.WaitUnmounted(ctx, pod.UID)
	close(goOn)
	if err == nil && within(5*time.Second, func() bool { return w.driver.Count("Publish", "") > 0 }) {
		t.Errorf("published after WaitUnmounted has said that nothing of the removed pod is: %v", w.driver.Made())
	}
}

// withDebugger is the pod with an ephemeral container that uses a volume.
func withDebugger(pod *corev1.Pod, volume string) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debugger", Image: "none", VolumeMounts: []corev1.VolumeMount{{Name: volume, MountPath: "/x"}},
	}}}
	return pod
}

// TestRestartWithALostClaimBesideARefusedOne: a claim that cannot be used at the moment counts as not wanted, because
// another claim of the pod is refused permanently. The running pod loses its volume.
func TestRestartWithALostClaimBesideARefusedOne(t *testing.T) {
	w := newWorld(t, noAttach)
	w.volume("data")
	w.volume("bad", blockVolume)
	agent, stop := w.agent()
	pod := w.podWith("p", func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts = p.Spec.Containers[0].VolumeMounts[:1] }, "data", "bad")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	pod = withDebugger(pod, "bad")
	agent.SetPod(pod)
	wait.Until(w, "the pod was refused", func() bool {
		p, _ := agent.pods.snapshot(pod.UID)
		return p.refused != nil
	})
	stop()
	claim, err := w.admin.CoreV1().PersistentVolumeClaims(w.name).Get(w.ctx, "data", metav1.GetOptions{})
	must(t, err)
	claim.Status.Phase = corev1.ClaimLost // or any error of the API server
	_, err = w.admin.CoreV1().PersistentVolumeClaims(w.name).UpdateStatus(w.ctx, claim, metav1.UpdateOptions{})
	must(t, err)
	agent, _ = w.agent()
	agent.SetPod(pod)
	if within(2*time.Second, func() bool { return w.driver.Count("Unpublish", "data") > 0 }) {
		t.Errorf("the volume was taken from a pod that is set and runs: %v", w.driver.Made())
	}
}

// TestRestartDestroysTheInlineVolumeOfARunningPod: an ephemeral container came that uses a PersistentVolume of the inline volume's
// name. The agent that was there then kept what runs; the next one wants nothing of the pod, and destroys its data.
func TestRestartDestroysTheInlineVolumeOfARunningPod(t *testing.T) {
	w := newWorld(t, noAttach, modes(ephemeral, persistent))
	w.volume("x")
	scratch := w.name + "-x"
	agent, stop := w.agent()
	pod := w.podWith("p", func(p *corev1.Pod) {
		p.Spec.Containers[0].VolumeMounts = nil
		w.addInline(nil, scratch)(p)
	}, "x")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	pod = withDebugger(pod, "x")
	agent.SetPod(pod)
	wait.Until(w, "the pod was refused", func() bool {
		p, _ := agent.pods.snapshot(pod.UID)
		return p.refused != nil
	})
	if w.driver.Count("Unpublish", "") > 0 {
		t.Fatal("not even the first agent kept it")
	}
	stop()
	agent, _ = w.agent()
	agent.SetPod(pod)
	if within(2*time.Second, func() bool { return w.driver.Count("Unpublish", "") > 0 }) {
		t.Errorf("the inline volume of a running pod was destroyed: %v", w.driver.Made())
	}
}

// TestRestartAfterClaimWasRecreated: the claim's name refers to another volume now; the volume that the pod runs on is
// taken from it.
func TestRestartAfterClaimWasRecreated(t *testing.T) {
	w := newWorld(t, noAttach)
	w.driver.NodeServices = nil // it does not stage: the unpublish is the last call
	w.volume("data")
	agent, stop := w.agent()
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	stop()
	claims := w.admin.CoreV1().PersistentVolumeClaims(w.name)
	_, err := claims.Patch(w.ctx, "data", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	must(t, err)
	must(t, claims.Delete(w.ctx, "data", metav1.DeleteOptions{}))
	was, err := w.admin.CoreV1().PersistentVolumes().Get(w.ctx, w.name+"-data", metav1.GetOptions{})
	must(t, err)
	other := w.name + "-other"
	claim, err := claims.Create(w.ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: w.name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: was.Spec.AccessModes, VolumeName: other, StorageClassName: new(string),
			Resources: corev1.VolumeResourceRequirements{Requests: was.Spec.Capacity},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: other}, Spec: *was.Spec.DeepCopy()}
	pv.Spec.CSI.VolumeHandle = "h-" + other
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: w.name, Name: "data", UID: claim.UID}
	_, err = w.admin.CoreV1().PersistentVolumes().Create(w.ctx, pv, metav1.CreateOptions{})
	must(t, err)
	claim.Status.Phase = corev1.ClaimBound
	_, err = claims.UpdateStatus(w.ctx, claim, metav1.UpdateOptions{})
	must(t, err)
	agent, _ = w.agent()
	agent.SetPod(pod)
	if within(2*time.Second, func() bool { return w.driver.Count("Unpublish", "data") > 0 }) {
		t.Errorf("the volume was taken from a pod that is set and runs: %v", w.driver.Made())
	}
}

// TestUnconfirmedRecordAndAnotherLabel: the confirmation was not recorded (the disk was full), the CSIDriver stops
// asking for labels, and the agent is restarted: the volume is taken from the running pod without a check which pods
// use it.
func TestUnconfirmedRecordAndAnotherLabel(t *testing.T) {
	w := newWorld(t, noAttach, func(d *storagev1.CSIDriver) { d.Spec.SELinuxMount = new(true) })
	w.driver.NodeServices = nil // it does not stage: the unpublish is the last call
	w.volume("data", accessModes(corev1.ReadWriteOncePod))
	full := func(c *Config) {
		withSELinux(c)
		c.writeRecord = func(root *mount.Root, name string, content []byte, must mount.Durability) error {
			if must == mount.InPlace {
				return syscall.ENOSPC
			}
			return root.Write(name, content, must)
		}
	}
	agent, stop := w.agent(full)
	pod := w.podWith("p", labelled("s0:c1,c2"), "data")
	agent.SetPod(pod)
	if label := w.mounted(agent, pod)[0].SELinuxLabel; label == "" {
		t.Fatal("mounted without a label")
	}
	stop()
	_, err := w.admin.StorageV1().CSIDrivers().Patch(w.ctx, w.driverName(), types.MergePatchType, []byte(`{"spec":{"seLinuxMount":false}}`), metav1.PatchOptions{})
	must(t, err)
	agent, _ = w.agent(full)
	agent.SetPod(pod)
	if within(2*time.Second, func() bool { return w.driver.Count("Unpublish", "data") > 0 }) {
		t.Errorf("the volume was taken from a pod that is set and runs: %v", w.driver.Made())
	}
}

// TestInlineFieldIsReadUnderLock can fail only with -race: another pod comes to want the volume while it is
// unpublished.
func TestInlineFieldIsReadUnderLock(t *testing.T) {
	w := newWorld(t, noAttach)
	w.volume("data")
	var agent *Agent
	second := w.pod("second", "data")
	var once sync.Once
	set := make(chan struct{})
	agent, _ = w.agent(func(c *Config) {
		c.Logger = funcr.New(func(_, line string) {
			if strings.Contains(line, `"Called NodeUnpublishVolume"`) { // between the reply and what is made of it
				once.Do(func() {
					agent.SetPod(second)
					close(set)
					time.Sleep(time.Second)
				})
			}
		}, funcr.Options{})
	})
	first := w.pod("first", "data")
	agent.SetPod(first)
	w.mounted(agent, first)
	agent.RemovePod(first.UID)
	wait.Until(w, "the second pod was set", func() bool {
		select {
		case <-set:
			return true
		default:
			return false
		}
	})
	w.mounted(agent, second)
}

// TestEtcdRestoredWhileRecordIsWritten: when the Node's history starts again, volumes without a record are removed from
// the list, including one whose record is just being written to disk. It is staged while the Node does not list it.
func TestEtcdRestoredWhileRecordIsWritten(t *testing.T) {
	w := newWorld(t)
	wire := &histories{ahead: 1_000_000}
	cleared, staged := make(chan struct{}), make(chan struct{})
	var once sync.Once
	handle := w.volume("data")
	w.nodeID.Wrap(func(next http.RoundTripper) http.RoundTripper {
		wire.next = roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodPatch || r.Body == nil {
				return next.RoundTrip(r)
			}
			raw, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			r.Body = io.NopCloser(bytes.NewReader(raw))
			wire.mu.Lock()
			turned := wire.ahead == 0
			wire.mu.Unlock()
			if !turned || !bytes.Contains(raw, []byte("volumesInUse")) {
				return next.RoundTrip(r)
			}
			if bytes.Contains(raw, []byte(handle)) {
				select { // the write that lists it again is slow
				case <-staged:
				case <-time.After(2 * time.Second):
				}
				return next.RoundTrip(r)
			}
			reply, err := next.RoundTrip(r)
			once.Do(func() { close(cleared) })
			return reply, err
		})
		return wire
	})
	writing := make(chan struct{})
	var written sync.Once
	agent, _ := w.agent(func(c *Config) {
		c.writeRecord = func(root *mount.Root, name string, content []byte, must mount.Durability) error {
			if strings.HasSuffix(name, ".stage.json") {
				written.Do(func() {
					close(writing)
					select { // a slow disk
					case <-cleared:
					case <-time.After(3 * time.Second):
					}
				})
			}
			return root.Write(name, content, must)
		}
	})
	var problem atomic.Pointer[string]
	w.driver.SetBefore(func(method, _ string, attempt int) error {
		if method == "Stage" && attempt == 1 {
			if !slices.Contains(w.node().Status.VolumesInUse, w.unique(handle)) {
				problem.Store(new(fmt.Sprintf("S7: NodeStageVolume, and the Node lists %v in use", w.node().Status.VolumesInUse)))
			}
			close(staged)
		}
		return nil
	})
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilInUse(handle)
	w.attach(handle)
	wait.For(t, "the write", writing)
	wire.putBack(func() {})
	w.mounted(agent, pod)
	if said := problem.Load(); said != nil {
		t.Error(*said)
	}
}

// TestRecordThatWasNotSyncedIsLeftBehind: the file is in place but its directory could not be synced. The agent counts
// the call as not started and forgets the volume; the record stays, and is not removed before a restart.
func TestRecordThatWasNotSyncedIsLeftBehind(t *testing.T) {
	w := newWorld(t, noAttach)
	w.volume("data")
	failed := make(chan struct{})
	var once sync.Once
	agent, _ := w.agent(func(c *Config) {
		c.writeRecord = func(root *mount.Root, name string, content []byte, must mount.Durability) error {
			err := root.Write(name, content, must)
			if must == mount.PowerCut {
				once.Do(func() { close(failed) })
				err = errors.Join(err, syscall.EIO) // as from syncDir, after the rename
			}
			return err
		}
	})
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	wait.For(t, "the failure", failed)
	agent.RemovePod(pod.UID)
	w.unmounted(agent, pod)
	wait.Until(w, "the agent has forgotten the volume", func() bool {
		agent.volumes.mu.Lock()
		defer agent.volumes.mu.Unlock()
		return len(agent.volumes.all) == 0
	})
	var left []string
	if !within(wait.Timeout, func() bool { left = w.leftovers(); return len(left) == 0 }) {
		t.Errorf("the volume is forgotten, but there is %v", left)
	}
}

// TestCSIDriverSeenWhileASecretIsRead: the step was decided while the CSIDriver required no attachment. By the time of
// the call the agent has seen that it does, and still stages without the handshake.
func TestCSIDriverSeenWhileASecretIsRead(t *testing.T) {
	w := newWorld(t, noAttach)
	_, err := w.admin.CoreV1().Secrets(w.name).Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"}}, metav1.CreateOptions{})
	must(t, err)
	handle := w.volume("data", func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: w.name, Name: "key"}
	})
	reading, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.nodeID.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if strings.Contains(r.URL.Path, "/secrets/") {
				once.Do(func() {
					close(reading)
					<-goOn
				})
			}
			return next.RoundTrip(r)
		})
	})
	var problem atomic.Pointer[string]
	w.driver.Before = func(method, _ string, _ int) error {
		if method == "Stage" && !slices.Contains(w.node().Status.VolumesInUse, w.unique(handle)) {
			problem.Store(new("S7: NodeStageVolume without the handshake, though the agent has seen the CSIDriver"))
		}
		return nil
	}
	agent, _ := w.agent()
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	wait.For(t, "the read", reading)
	drivers := w.admin.StorageV1().CSIDrivers()
	must(t, drivers.Delete(w.ctx, w.driverName(), metav1.DeleteOptions{}))
	_, err = drivers.Create(w.ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: w.driverName()}}, metav1.CreateOptions{})
	must(t, err)
	wait.Until(w, "the agent has seen the CSIDriver", func() bool {
		return agent.plugins.Rules(w.driverName()).AttachRequired == nodevolume.Yes
	})
	close(goOn)
	w.untilInUse(handle)
	w.attach(handle)
	w.mounted(agent, pod)
	if said := problem.Load(); said != nil {
		t.Error(*said)
	}
}
