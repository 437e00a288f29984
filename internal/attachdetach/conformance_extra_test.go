package attachdetach

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/wait"
)

// TestUpstreamLacks plays behaviour of upstream that has no upstream test, and upstream's faults.
// testdata/conformance.yaml lists the row that each belongs to.
func TestUpstreamLacks(t *testing.T) {
	enact(t, upstream(), lackingCases()...)
	disabled := upstream()
	disabled.Policy.UnmountTimeout = 0
	enact(t, disabled, lackingWithoutForce()...)
	deleted := upstream()
	deleted.Policy.DeletedNode = attachment.DeletedNodeDetach
	enact(t, deleted, lackingDeletedNode()...)
	t.Run("pod replaced within a watch gap", podReplacedInGap)
	t.Run("node deleted within a watch gap", nodeDeletedInGap)
}

func lackingWithoutForce() []scenario {
	return []scenario{play("node deleted in use, never by force", nodeDeletedNeverForced)}
}

func lackingDeletedNode() []scenario {
	return []scenario{play("node deleted in use, detached by policy", nodeDeletedDetached)}
}

func lackingCases() []scenario {
	return []scenario{
		play("managed by any value of the annotation", managedByAnyValue),
		play("no longer managed", noLongerManaged),
		play("terminated pods", terminatedPods),
		play("pod on no node", podOnNoNode),
		play("keep-terminated-pod-volumes has no effect", keepTerminated),
		play("volume bound to another claim", boundToAnotherClaim),
		prepared("attachRequired turned on", func(l *lab) { l.driverObject("d", new(false)) }, attachRequiredTurnedOn),
		play("CSIDriver without attach deployed late", driverDeployedLate),
		play("pod made anew under its name", podMadeAnew),
		play("claim and volume gone before the pod", claimGoneFirst),
		play("all volumes of a pod at once", allVolumesAtOnce),
		play("handle with any character", anyHandle),
		play("report wiped", reportWiped),
		play("attachment no longer attached", noLongerAttached),
		play("attachment vanishes while its attach fails", vanishesWhileFailing),
		play("node deleted in use, by the timeout", nodeDeletedTimeout),
		play("pod of a dead kubelet keeps its volume", deadKubelet),
		play("status of the attachment left alone", statusLeftAlone),
		play("out-of-service taint of any effect and value", taintOfAnyEffect),
		play("out-of-service taint taken off meanwhile", taintTakenOff),
		play("out-of-service taint on a Ready node", taintOnReadyNode),
		play("access modes", accessModes),
		play("Fibre Channel and iSCSI are reported", unattachedReported),
		play("Fibre Channel is exclusive", unattachedExclusive),
		play("attaches and detaches are measured", operationsMetric),
		restarted("clock of a detach outlives the controller", clockOutlives),
		restarted("driver turned to no attach while nobody led", driverTurnedWhileDown),
		restarted("inline attachment without its pod", inlineWithoutPod),
		restarted("detach under way at the restart", detachUnderWay),
	}
}

func (l *lab) annotate(node, key, value string) {
	l.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: l.name(node)}}
	body := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %q}}}`, key, value)
	l.must(l.Patch(l.ctx, n, client.RawPatch(types.MergePatchType, body)))
}

func managedByAnyValue(l *lab) {
	l.readyNode("a")
	l.annotate("a", kube.ManagedAttachAnnotation, "false")
	l.volume("v")
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
}

// A kubelet that attaches by itself from now on: its volumes are left alone.
func noLongerManaged(l *lab) {
	l.readyNode("a", "b")
	l.volume("v")
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	uid := l.read("v", "a").UID
	l.manage("a", false)
	l.gone("p")
	l.settled("b")
	l.kept("v", "a", uid)
	l.manage("a", true)
	l.awaitDetached("v", "a")
}

// status is a container's state as kubelet writes it.
func status(state string) map[string]any {
	return map[string]any{
		"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
		"state": map[string]any{state: map[string]any{}},
	}
}

// ending deletes the pod with time to end: kubelet is to confirm.
func (l *lab) ending(pod string) {
	l.Helper()
	l.must(l.Delete(l.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: l.prefix, Name: pod}}, client.GracePeriodSeconds(300)))
}

func terminatedPods(l *lab) {
	ended := map[string]any{"exitCode": 0}
	terminated := status("terminated")
	terminated["state"] = map[string]any{"terminated": ended}
	pods := map[string]struct {
		delete bool
		status map[string]any
		keeps  bool
	}{
		"failed":       {status: map[string]any{"phase": corev1.PodFailed}},
		"succeeded":    {status: map[string]any{"phase": corev1.PodSucceeded}},
		"running":      {status: map[string]any{"containerStatuses": []any{status("running")}}, keeps: true},
		"ended":        {status: map[string]any{"containerStatuses": []any{terminated}}, keeps: true},
		"del-running":  {delete: true, status: map[string]any{"containerStatuses": []any{status("running")}}, keeps: true},
		"del-ended":    {delete: true, status: map[string]any{"containerStatuses": []any{terminated}}},
		"del-waiting":  {delete: true, status: map[string]any{"containerStatuses": []any{status("waiting")}}},
		"del-nothing":  {delete: true, status: map[string]any{}},
		"del-init-run": {delete: true, status: map[string]any{"initContainerStatuses": []any{status("running")}}, keeps: true},
	}
	l.readyNode("a")
	for name := range pods {
		l.volume(name)
		l.pod(name, "a", name)
	}
	for name := range pods {
		l.awaitReported(name, "a")
	}
	for name, p := range pods {
		l.patchStatus(&corev1.Pod{}, l.prefix, name, p.status)
		if p.delete {
			l.ending(name)
		}
	}
	for name, p := range pods {
		if !p.keeps {
			l.awaitDetached(name, "a")
		}
	}
	l.settled("a")
	for name, p := range pods {
		if p.keeps && !l.onServer(name, "a") {
			l.Errorf("pod %s lost its volume", name)
		}
	}
}

func podOnNoNode(l *lab) {
	l.readyNode("a")
	l.volume("v")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.prefix, Name: "p"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes:    []corev1.Volume{{Name: "v", VolumeSource: ofClaim("v")}},
		},
	}
	l.must(l.Create(l.ctx, pod))
	l.settled("a")
	if l.read("v", "a") != nil {
		l.Fatal("attached for a pod that is not scheduled")
	}
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: l.name("a")}}
	l.must(l.SubResource("binding").Create(l.ctx, pod, binding))
	l.awaitReported("v", "a")
}

func keepTerminated(l *lab) {
	l.readyNode("a")
	l.annotate("a", "volumes.kubernetes.io/keep-terminated-pod-volumes", "true")
	l.volume("v")
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	l.patchStatus(&corev1.Pod{}, l.prefix, "p", map[string]any{"phase": corev1.PodSucceeded})
	l.awaitDetached("v", "a")
}

// A claim is bound to a volume whose claimRef names another claim.
func boundToAnotherClaim(l *lab) {
	l.readyNode("a")
	l.volume("v")
	thief := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.prefix, Name: "thief"},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: l.name("v"), StorageClassName: new(""), Resources: storage(),
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		},
	}
	l.must(l.Create(l.ctx, thief))
	l.patchStatus(&corev1.PersistentVolumeClaim{}, l.prefix, "thief", map[string]any{"phase": corev1.ClaimBound})
	l.pod("p", "a", "thief")
	l.settled("a")
	if l.read("v", "a") != nil {
		l.Fatal("attached by way of a claim that the volume does not know")
	}
	l.pod("q", "a", "v")
	l.awaitReported("v", "a")
}

func attachRequiredTurnedOn(l *lab) {
	name := l.name("d")
	l.readyNode("a")
	l.pvOf("v", csiPV(name, l.name("v")))
	l.pod("p", "a", "v")
	l.settled("a")
	l.lived("a made", "a attached")
	l.turn(name, true)
	l.awaitAt(name, l.name("v"), "a")
}

// Upstream's e2e "should bringup pod after deploying CSIDriver attach=false".
func driverDeployedLate(l *lab) {
	name := l.name("d")
	l.attacher.set(func() {
		l.attacher.mood = func(va *storagev1.VolumeAttachment) (bool, string) { return va.Spec.Attacher == name, "" }
	})
	l.readyNode("a")
	l.pvOf("v", csiPV(name, l.name("v")))
	l.pod("p", "a", "v")
	l.await("attach begun", func() bool { return l.at(name, l.name("v"), "a") != nil })
	l.driverObject("d", new(false))
	l.mounted("p")
	l.awaitNotAt(name, l.name("v"), "a")
}

func podMadeAnew(l *lab) {
	l.readyNode("a", "b")
	l.volume("v")
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	l.gone("p")
	l.pod("p", "b", "v")
	l.awaitReported("v", "b")
	l.lived("a made", "a attached", "a deleting", "a gone", "b made", "b attached")
}

// k/k#29262: the claim of a pod is deleted before the pod.
func claimGoneFirst(l *lab) {
	l.attachedOnA()
	uid := l.read("v", "a").UID
	l.use("a", "v")
	for _, obj := range []client.Object{
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: l.prefix, Name: "v"}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: l.name("v")}},
	} {
		body := []byte(`{"metadata": {"finalizers": null}}`)
		l.must(l.Patch(l.ctx, obj, client.RawPatch(types.MergePatchType, body)))
		l.must(client.IgnoreNotFound(l.Delete(l.ctx, obj)))
	}
	l.awaitWaiting("v", "a")
	l.kept("v", "a", uid)
	l.gone("p")
	l.settled("a")
	l.kept("v", "a", uid)
	l.use("a")
	l.awaitDetached("v", "a")
}

// Upstream's populator releases one volume of a pod per minute.
func allVolumesAtOnce(l *lab) {
	l.readyNode("a")
	names := []string{"v", "w", "x"}
	for _, name := range names {
		l.volume(name)
	}
	l.pod("p", "a", names...)
	for _, name := range names {
		l.awaitReported(name, "a")
	}
	start := time.Now()
	l.gone("p")
	for _, name := range names {
		l.awaitDetached(name, "a")
	}
	if took := time.Since(start); took > wait.Timeout/2 {
		l.Errorf("%d detaches took %v", len(names), took)
	}
}

func anyHandle(l *lab) {
	l.readyNode("a", "b")
	for i, handle := range []string{"with^caret", "^", "a^b^c", "sp ace/slash:colon", "ünïcode#{}", strings.Repeat("x", 500)} {
		name := fmt.Sprintf("v%d", i)
		handle = l.prefix + handle
		l.pvOf(name, csiPV(driver, handle))
		l.pod(name, "a", name)
		l.awaitAt(driver, handle, "a")
		l.uses("a", kube.UniqueVolumeName(driver, handle))
		l.gone(name)
		l.await("the detach waits for the node", func() bool {
			return l.at(driver, handle, "a").Annotations[kube.DetachRequestedAnnotation] != ""
		})
		l.uses("a")
		l.awaitNotAt(driver, handle, "a")
		l.pod(name, "b", name)
		l.awaitAt(driver, handle, "b")
	}
}

// uses sets the node's in-use list by unique names.
func (l *lab) uses(node string, unique ...string) {
	l.Helper()
	l.patchStatus(&corev1.Node{}, "", l.name(node), map[string]any{"volumesInUse": unique})
}

// k/k#37586, k/k#122413: the list lost an attached volume.
func reportWiped(l *lab) {
	l.attachedOnA()
	uid := l.read("v", "a").UID
	wiped := l.lists("a")
	l.await("reported again", func() bool {
		return after(l.nodes[l.name("a")].ResourceVersion, wiped) && l.isReported("v", "a")
	})
	l.kept("v", "a", uid)
}

// The attacher finds out that the volume is not attached any more.
func noLongerAttached(l *lab) {
	l.attachedOnA()
	uid := l.read("v", "a").UID
	l.attacher.set(func() {
		l.attacher.mood = func(*storagev1.VolumeAttachment) (bool, string) { return true, "" }
	})
	l.patchStatus(&storagev1.VolumeAttachment{}, "", l.read("v", "a").Name, map[string]any{"attached": false})
	l.await("S9: no longer reported", func() bool { return !l.isReported("v", "a") })
	l.attacher.set(func() { l.attacher.mood = nil })
	l.awaitReported("v", "a")
	l.kept("v", "a", uid)
}

func vanishesWhileFailing(l *lab) {
	l.readyNode("a")
	l.volume("v")
	l.attacher.set(func() { l.attacher.refusal = "not now" })
	l.pod("p", "a", "v")
	l.awaitPodEvent("p", explain.FailedAttachVolume, explain.AttachFailed(l.name("v"), "not now"))
	before := l.read("v", "a")
	l.must(l.Delete(l.ctx, before))
	l.await("created again", func() bool {
		va := l.attachment("v", "a")
		return va != nil && va.UID != before.UID && va.Status.AttachError != nil
	})
	l.attacher.set(func() { l.attacher.refusal = "" })
	l.awaitReported("v", "a")
}

// Kubelet reads the error's code to fail a pod whose node is full (KEP-4876).
func statusLeftAlone(l *lab) {
	l.readyNode("a")
	l.volume("v")
	l.attacher.set(func() { l.attacher.stalled = true })
	l.pod("p", "a", "v")
	l.await("attach begun", func() bool { return l.attachment("v", "a") != nil })
	writes := l.counts(func(r *http.Request) bool {
		return r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/volumeattachments/") && strings.HasSuffix(r.URL.Path, "/status")
	})
	l.patchStatus(&storagev1.VolumeAttachment{}, "", l.read("v", "a").Name, map[string]any{
		"attachError": map[string]any{"message": "full", "errorCode": 8},
	})
	l.awaitPodEvent("p", explain.FailedAttachVolume, explain.AttachFailed(l.name("v"), "full"))
	l.settledQuietly()
	e := l.read("v", "a").Status.AttachError
	if e == nil || e.ErrorCode == nil || *e.ErrorCode != 8 || e.Message != "full" {
		l.Errorf("the error became %+v", e)
	}
	if n := writes.count(); n != 0 {
		l.Errorf("%d writes to the status, which is the attacher's", n)
	}
}

// settledQuietly is settled, where the scenario's attacher is silent.
func (l *lab) settledQuietly() {
	l.Helper()
	name := fmt.Sprintf("mark%d", runs.Add(1))
	l.volume(name)
	l.pod(name, "a", name)
	l.await("another attach begun", func() bool { return l.attachment(name, "a") != nil })
}

// accessModes are exclusive where none of them allows several nodes (S1).
func accessModes(l *lab) {
	const (
		rwo, rwop = corev1.ReadWriteOnce, corev1.ReadWriteOncePod
		rox, rwx  = corev1.ReadOnlyMany, corev1.ReadWriteMany
	)
	l.readyNode("a", "b")
	cases := []struct {
		name   string
		modes  []corev1.PersistentVolumeAccessMode
		shared bool
	}{
		{"rwo", []corev1.PersistentVolumeAccessMode{rwo}, false},
		{"rwop", []corev1.PersistentVolumeAccessMode{rwop}, false},
		{"rwo-rox", []corev1.PersistentVolumeAccessMode{rwo, rox}, true},
		{"rwo-rwx", []corev1.PersistentVolumeAccessMode{rwo, rwx}, true},
		{"rox", []corev1.PersistentVolumeAccessMode{rox}, true},
		{"rwx", []corev1.PersistentVolumeAccessMode{rwx}, true},
	}
	for _, c := range cases {
		l.volume(c.name, c.modes...)
		l.pod(c.name+"-a", "a", c.name)
		l.awaitReported(c.name, "a")
		l.pod(c.name+"-b", "b", c.name)
	}
	for _, c := range cases {
		if c.shared {
			l.awaitReported(c.name, "b")
			continue
		}
		l.refused(c.name+"-b", c.name, "b")
	}
}

// fcVolume and iscsiVolume are volumes that the node connects by itself, and the
// unique names that kubelet looks for.
func (l *lab) fcVolume() (corev1.FCVolumeSource, string) {
	wwn := "wwn-" + l.prefix
	return corev1.FCVolumeSource{TargetWWNs: []string{wwn}, Lun: new(int32(3))}, "kubernetes.io/fc/[" + wwn + "]:3"
}

func unattachedReported(l *lab) {
	l.readyNode("a")
	fc, fcName := l.fcVolume()
	iqn := "iqn.2026-01.test:" + l.prefix
	iscsiName := "kubernetes.io/iscsi/10.0.0.1:3260:" + iqn + ":1"
	wwid := "wwid-" + l.prefix
	wwidName := "kubernetes.io/fc/[" + wwid + "]"
	l.pvOf("v", corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{
		TargetPortal: "10.0.0.1:3260", IQN: iqn, Lun: 1,
	}})
	l.podOf("p", "a",
		corev1.Volume{VolumeSource: corev1.VolumeSource{FC: &fc}},
		corev1.Volume{VolumeSource: corev1.VolumeSource{FC: &corev1.FCVolumeSource{WWIDs: []string{wwid}}}},
		corev1.Volume{VolumeSource: ofClaim("v")})
	all := []string{fcName, iscsiName, wwidName}
	l.await("all reported", func() bool {
		return l.reports("a", fcName) && l.reports("a", iscsiName) && l.reports("a", wwidName)
	})
	l.uses("a", all...)
	l.gone("p")
	l.never("S2: withdrawn while in use", long, func() bool {
		return !l.reports("a", fcName) || !l.reports("a", iscsiName) || !l.reports("a", wwidName)
	})
	l.uses("a")
	l.await("all withdrawn", func() bool { return len(l.nodes[l.name("a")].Status.VolumesAttached) == 0 })
	l.await("the attachments are gone", func() bool { return len(l.vas) == 0 })
}

func unattachedExclusive(l *lab) {
	l.readyNode("a", "b")
	fc, unique := l.fcVolume()
	l.pvOf("v", corev1.PersistentVolumeSource{FC: &fc})
	l.pod("p", "a", "v")
	l.await("reported", func() bool { return l.reports("a", unique) })
	l.uses("a", unique)
	l.pod("q", "b", "v")
	l.await("q has the event", func() bool {
		return l.reports("b", unique) || len(l.messages("q", explain.FailedAttachVolume)) > 0
	})
	l.gone("p")
	l.never("S1: reported to a second node while the first uses it", time.Second, func() bool { return l.reports("b", unique) })
	l.uses("a")
	l.await("attached to the other node", func() bool { return l.reports("b", unique) && !l.reports("a", unique) })
}
