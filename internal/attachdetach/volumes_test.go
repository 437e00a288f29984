package attachdetach

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// vaOf gives the attachment of any driver's volume; hold l.mu.
func (l *lab) vaOf(k key, node string) *storagev1.VolumeAttachment {
	return l.vas[kube.AttachmentName(k.Handle, k.Driver, l.name(node))]
}

// seenOf is vaOf once it was seen, which may be later than the Node that reports it; do not hold l.mu.
func (l *lab) seenOf(k key, node string) (va *storagev1.VolumeAttachment) {
	l.Helper()
	l.await(fmt.Sprintf("%v has an attachment to %s", k, node), func() bool {
		va = l.vaOf(k, node)
		return va != nil
	})
	return va
}

func (l *lab) listed(k key, node string) bool {
	n := l.nodes[l.name(node)]
	return n != nil && kube.Reported(n, kube.UniqueVolumeName(k.Driver, k.Handle))
}

func (l *lab) awaitListed(k key, node string) {
	l.Helper()
	l.await(fmt.Sprintf("%v reported on %s", k, node), func() bool { return l.listed(k, node) })
}

func (l *lab) awaitGone(k key, node string) {
	l.Helper()
	l.await(fmt.Sprintf("%v gone from %s", k, node), func() bool { return l.vaOf(k, node) == nil && !l.listed(k, node) })
}

// inUse plays kubelet: it reports the volumes that its node uses, by unique name.
func (l *lab) inUse(node string, keys ...key) {
	l.Helper()
	var list any
	var names []string
	for _, k := range keys {
		names = append(names, kube.UniqueVolumeName(k.Driver, k.Handle))
		list = names
	}
	l.patchStatus(&corev1.Node{}, "", l.name(node), map[string]any{"volumesInUse": list})
}

// volumeOf makes a PersistentVolume with that source and the claim bound to it.
func (l *lab) volumeOf(name string, source corev1.PersistentVolumeSource, modes ...corev1.PersistentVolumeAccessMode) {
	l.Helper()
	l.must(l.Create(l.ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: l.name(name)},
		Spec:       corev1.PersistentVolumeSpec{AccessModes: modes, Capacity: storage().Requests, PersistentVolumeSource: source},
	}))
	pvc := &corev1.PersistentVolumeClaim{}
	if err := l.Get(l.ctx, client.ObjectKey{Namespace: l.prefix, Name: name}, pvc); err != nil {
		l.claim(name)
	} else {
		l.bind(pvc)
	}
}

// drop deletes a PersistentVolume for good, in spite of its protection.
func (l *lab) drop(name string) {
	l.Helper()
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: l.name(name)}}
	l.must(l.Delete(l.ctx, pv))
	l.must(client.IgnoreNotFound(l.Patch(l.ctx, pv, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`)))))
}

// podWith makes a pod that names its volumes itself.
func (l *lab) podWith(name, node string, sources ...corev1.VolumeSource) *corev1.Pod {
	l.Helper()
	pod := aPod(name, l.name(node), sources...)
	pod.Namespace, pod.UID = l.prefix, ""
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	l.must(l.Create(l.ctx, pod))
	l.Cleanup(func() { _ = l.deletePod(name) })
	return pod
}

func csiSource(handle string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}}
}

func TestInTreeVolumes(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.node("b")
	ebs := key{Driver: "ebs.csi.aws.com", Handle: "vol-" + l.prefix}
	l.volumeOf("pv", corev1.PersistentVolumeSource{
		AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://eu-west-1a/" + ebs.Handle},
	}, corev1.ReadWriteOnce)
	l.run()
	l.pod("p", "a", "pv")
	l.awaitListed(ebs, "a")
	if va := l.seenOf(ebs, "a"); kube.SourceName(va) != l.name("pv") || va.Spec.Attacher != ebs.Driver {
		t.Errorf("the attachment is of %q by %q", kube.SourceName(va), va.Spec.Attacher)
	}
	// The same disk, named by a pod itself on another node, is the same volume.
	source := corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: ebs.Handle, FSType: "xfs", Partition: 1}}
	l.podWith("q", "b", source)
	l.await("the other has the event", func() bool { return len(l.messages("q", explain.FailedAttachVolume)) > 0 })
	l.gone("p")
	l.awaitGone(ebs, "a")
	l.awaitListed(ebs, "b")
	mode := corev1.PersistentVolumeFilesystem
	want := storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: &mode,
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: ebs.Driver, VolumeHandle: ebs.Handle, FSType: "xfs", VolumeAttributes: map[string]string{"partition": "1"},
		}},
	}}
	if diff := cmp.Diff(want, l.seenOf(ebs, "b").Spec.Source); diff != "" {
		t.Errorf("source of the pod's own volume (-want +got):\n%s", diff)
	}
	l.gone("q")
	l.awaitGone(ebs, "b")
}

// A volume of a pod that was deleted while no controller led is found by its attachment alone.
func TestPodsOwnVolumeIsDetachedAfterRestart(t *testing.T) {
	l := newLab(t)
	l.node("a")
	disk := key{Driver: "cinder.csi.openstack.org", Handle: l.prefix}
	stop := l.run()
	l.podWith("p", "a", corev1.VolumeSource{Cinder: &corev1.CinderVolumeSource{VolumeID: l.prefix}})
	l.awaitListed(disk, "a")
	l.awaitPodEvent("p", explain.SuccessfulAttachVolume, explain.AttachSucceeded("cinder.csi.openstack.org-"+l.prefix))
	stop()
	l.gone("p")
	l.run()
	l.awaitGone(disk, "a")
}

func TestVolumesThatNodesConnect(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.node("b")
	lun := corev1.VolumeSource{FC: &corev1.FCVolumeSource{WWIDs: []string{l.prefix}}}
	fc := key{Driver: kube.FibreChannelPlugin, Handle: "[" + l.prefix + "]"}
	iscsi := key{Driver: kube.ISCSIPlugin, Handle: "10.0.0.1:iqn.2001-04.com.example:" + l.prefix + ":3"}
	l.volumeOf("pv", corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{
		TargetPortal: "10.0.0.1", IQN: "iqn.2001-04.com.example:" + l.prefix, Lun: 3,
	}}, corev1.ReadWriteOnce)
	l.run()

	// Of a volume that a pod names itself it is unknown that it must not be shared (row 26).
	l.podWith("p", "a", lun)
	l.podWith("q", "b", lun)
	l.awaitListed(fc, "a")
	l.awaitListed(fc, "b")

	l.pod("r", "a", "pv")
	l.awaitListed(iscsi, "a")
	l.inUse("a", iscsi)
	l.pod("s", "b", "pv")
	l.await("refused on the other node", func() bool { return len(l.messages("s", explain.FailedAttachVolume)) > 0 })
	l.gone("r")
	l.await("the wait is noted", func() bool { return l.vaOf(iscsi, "a").Annotations[kube.DetachRequestedAnnotation] != "" })
	l.mu.Lock()
	if !l.listed(iscsi, "a") || l.listed(iscsi, "b") {
		t.Error("S2: withdrawn while in use, or reported on a second node")
	}
	l.mu.Unlock()
	l.inUse("a")
	l.awaitGone(iscsi, "a")
	l.awaitListed(iscsi, "b")

	l.gone("p")
	l.awaitGone(fc, "a")
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.listed(fc, "b") || l.vaOf(fc, "b") == nil {
		t.Errorf("reported on b: %v, attachments: %v", l.listed(fc, "b"), l.vas)
	}
}

func TestHandlesOfAnyCharacter(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.run()
	for name, handle := range map[string]string{
		"carets": "^a^^b^", "lines": "a\nb\r\n\tc", "unicode": "ä/磁盘/💾", "long": strings.Repeat("x", 4096),
		"longer": strings.Repeat("y", 200<<10), "braces": `{"a": "%s"}`,
	} {
		t.Run(name, func(t *testing.T) {
			k := key{Driver: driver, Handle: handle + l.prefix}
			l.volumeOf(name, csiSource(k.Handle), corev1.ReadWriteOnce)
			l.pod(name, "a", name)
			l.awaitListed(k, "a")
			l.inUse("a", k)
			l.gone(name)
			l.await("waits", func() bool { return l.vaOf(k, "a").Annotations[kube.DetachRequestedAnnotation] != "" })
			l.inUse("a")
			l.awaitGone(k, "a")
		})
	}
}

func TestTwoPersistentVolumesOfOneHandle(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.node("b")
	k := key{Driver: driver, Handle: "one-" + l.prefix}
	l.volumeOf("shared", csiSource(k.Handle), corev1.ReadWriteMany)
	l.volumeOf("single", csiSource(k.Handle), corev1.ReadWriteOnce)
	l.run()
	l.pod("p", "a", "shared")
	l.awaitListed(k, "a")
	l.pod("q", "b", "single")
	l.await("one of them is exclusive, so the volume is", func() bool { return len(l.messages("q", explain.FailedAttachVolume)) > 0 })
	l.gone("p")
	l.awaitGone(k, "a")
	l.awaitListed(k, "b")
	// The one that the attachment names goes, and the other is wanted on the same node:
	// the attacher could not read the first any more.
	uid := l.seenOf(k, "b").UID
	l.pod("r", "b", "shared")
	l.gone("q")
	l.drop("single")
	l.await("created again for the other", func() bool {
		va := l.vaOf(k, "b")
		return va != nil && va.UID != uid && kube.SourceName(va) == l.name("shared") && l.listed(k, "b")
	})
}

// A PersistentVolume is recreated under its name for another volume, while the attachment that upstream made of the
// first holds only that name.
func TestPersistentVolumeRecreatedForAnotherVolume(t *testing.T) {
	for _, made := range []string{"while nobody led", "while it ran"} {
		t.Run(made, func(t *testing.T) {
			l := newLab(t)
			l.node("a")
			first, second := key{Driver: driver, Handle: "1" + l.prefix}, key{Driver: driver, Handle: "2" + l.prefix}
			l.volumeOf("v", csiSource(first.Handle), corev1.ReadWriteOnce)
			l.pod("p", "a", "v")
			l.attachByHand("v", "a", kube.AttachmentName(first.Handle, driver, l.name("a")))
			if made == "while it ran" {
				l.run()
				l.awaitListed(first, "a")
			}
			l.drop("v")
			l.volumeOf("v", csiSource(second.Handle), corev1.ReadWriteOnce)
			if made != "while it ran" {
				l.run()
			}
			l.awaitGone(first, "a")
			l.awaitListed(second, "a")
		})
	}
}

// TestOrphans has attachments that upstream made and that no pod wants any more: their PersistentVolume is gone, so
// only the hash in their name identifies the volume.
func TestOrphans(t *testing.T) {
	l := newLab(t)
	l.options = Options{Policy: attachment.Policy{OutOfService: true}}
	for _, node := range []string{"idle", "using", "unmanaged"} {
		l.node(node)
	}
	l.manage("unmanaged", false)
	lost := func(name string) key { return key{Driver: driver, Handle: name + l.prefix} }
	make := func(name, node string) {
		l.attachByHand(name, node, kube.AttachmentName(lost(name).Handle, driver, l.name(node)))
	}
	make("a", "idle")
	make("b", "using")
	make("c", "unmanaged")
	make("d", "vanished")
	l.attachByHand("e", "idle", l.name("by-hand"))
	l.inUse("using", lost("b"))
	l.run()
	l.awaitGone(lost("a"), "idle")
	l.await("the one in use waits", func() bool {
		return l.vaOf(lost("b"), "using").Annotations[kube.DetachRequestedAnnotation] != ""
	})
	l.await("the one on the vanished node waits", func() bool {
		return l.vaOf(lost("d"), "vanished").Annotations[kube.DetachRequestedAnnotation] != ""
	})
	l.inUse("using")
	l.awaitGone(lost("b"), "using")
	l.mu.Lock()
	left := []string{l.name("by-hand"), l.vaOf(lost("c"), "unmanaged").Name, l.vaOf(lost("d"), "vanished").Name}
	for name, va := range l.vas {
		if !slices.Contains(left, name) || va.DeletionTimestamp != nil {
			t.Errorf("left of all attachments: %s, deleted at %v", name, va.DeletionTimestamp)
		}
	}
	l.mu.Unlock()

	// One that loses its PersistentVolume at run time (k/k#77324).
	l.volumeOf("f", csiSource(lost("f").Handle), corev1.ReadWriteOnce)
	l.drop("f")
	// It may be detached before the attacher has attached it.
	l.createByHand("f", "idle", kube.AttachmentName(lost("f").Handle, driver, l.name("idle")))
	l.awaitGone(lost("f"), "idle")
}

// An orphan blocks its volume elsewhere as soon as another PersistentVolume identifies that volume, and the volume
// continues when the orphan is gone.
func TestOrphanBlocksItsVolume(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.node("b")
	k := key{Driver: driver, Handle: l.prefix}
	l.attachByHand("lost", "a", kube.AttachmentName(k.Handle, driver, l.name("a")))
	l.inUse("a", k)
	l.attacher.set(func() { l.attacher.stalled = true })
	l.inUse("a") // no node lists it any more, and its detach hangs
	l.volumeOf("v", csiSource(k.Handle), corev1.ReadWriteOnce)
	l.pod("p", "b", "v")
	l.run()
	l.await("being detached", func() bool { return l.vaOf(k, "a").DeletionTimestamp != nil })
	l.never("S1: attached to b while a's attachment exists", long, func() bool { return l.vaOf(k, "b") != nil })
	l.attacher.set(func() { l.attacher.stalled = false })
	l.awaitGone(k, "a")
	l.awaitListed(k, "b")
}

// A driver that appears late, or is recreated, and does not require its volumes to be attached.
func TestDriverAppearsLate(t *testing.T) {
	l := newLab(t)
	l.node("a")
	name := l.prefix + ".test"
	csiDriver := func(required bool) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{AttachRequired: &required}}
	}
	k := key{Driver: name, Handle: "h"}
	l.volumeOf("v", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: name, VolumeHandle: "h"}}, corev1.ReadWriteOnce)
	l.run()
	l.pod("p", "a", "v")
	l.awaitListed(k, "a") // as long as no CSIDriver says otherwise
	l.must(l.Create(l.ctx, csiDriver(false)))
	l.mounted("p")
	l.awaitGone(k, "a")
	l.must(l.Delete(l.ctx, csiDriver(false)))
	l.must(l.Create(l.ctx, csiDriver(true)))
	l.awaitListed(k, "a")
	uid := l.seenOf(k, "a").UID
	l.must(l.Delete(l.ctx, csiDriver(true)))
	l.must(l.Create(l.ctx, csiDriver(true)))
	l.Cleanup(func() { _ = l.Delete(context.Background(), csiDriver(true)) })
	l.volume("other")
	l.pod("q", "a", "other")
	l.awaitReported("other", "a")
	l.mu.Lock()
	defer l.mu.Unlock()
	if va := l.vaOf(k, "a"); va == nil || va.UID != uid || !l.listed(k, "a") {
		t.Error("a CSIDriver that asks for what is done anyway disturbed the volume")
	}
}

// TestDeletionsMissedByTheWatch cuts the watches of pods, lets a pod go unseen, and
// answers the next watch with "too old", so that the deletion is only found by listing.
func TestDeletionsMissedByTheWatch(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.volume("v")
	cut := &cutWatch{path: "/api/v1/pods"}
	l.transport = cut.wrap
	l.run()
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	mend := cut.cut()
	l.gone("p")
	mend()
	l.awaitDetached("v", "a")
	if cut.refusals() == 0 {
		t.Error("no watch was refused: the test did not test what it says")
	}
}

// cutWatch ends the watches of a path, and refuses the first that is begun again.
type cutWatch struct {
	path string

	mu      sync.Mutex
	bodies  []io.Closer
	held    chan struct{} // closed when watches may be begun again
	refused int
	tooOld  bool
}

func (c *cutWatch) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path != c.path || r.URL.Query().Get("watch") == "" {
			return next.RoundTrip(r)
		}
		c.mu.Lock()
		held := c.held
		c.mu.Unlock()
		if held != nil {
			<-held
		}
		c.mu.Lock()
		tooOld := c.tooOld
		c.tooOld = false
		if tooOld {
			c.refused++
		}
		c.mu.Unlock()
		if tooOld {
			body := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old"}`
			return &http.Response{
				StatusCode: http.StatusGone, Status: "410 Gone", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
				Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)),
			}, nil
		}
		answer, err := next.RoundTrip(r)
		if err == nil {
			c.mu.Lock()
			c.bodies = append(c.bodies, answer.Body)
			c.mu.Unlock()
		}
		return answer, err
	})
}

func (c *cutWatch) cut() (mend func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held, c.tooOld = make(chan struct{}), true
	for _, body := range c.bodies {
		_ = body.Close()
	}
	held := c.held
	return func() { close(held) }
}

func (c *cutWatch) refusals() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused
}
