package diagnosis

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
)

// FuzzOverview makes the lists and the map of clusters that chance made. None may panic, have a finding without a reason or a summary,
// or a name from the namespace that the reader may not read; and nothing is an orphan that was not looked for everywhere.
func FuzzOverview(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		s := chance{rand.New(rand.NewPCG(seed, 2))}.snapshot()
		for _, namespace := range []string{"", "mine"} {
			list := Stuck(s, namespace, 0)
			checkItems(t, seed, list, list.Items)
		}
		for _, all := range []bool{false, true} {
			list := Orphans(s, all)
			if len(list.Items) > 0 {
				t.Fatalf("seed %d: the pods of a namespace could not be read, and these are called orphans: %+v", seed, list.Items)
			}
			// What a reader who may read all would see.
			s := *s
			s.AllNamespaces, s.Whole = true, []Resource{Pods, Claims, Volumes, Attachments}
			list = Orphans(&s, all)
			items := make([]Finding, 0, len(list.Items))
			for i := range list.Items {
				items = append(items, list.Items[i].Finding)
			}
			checkItems(t, seed, nil, items)
		}
		m := Map(s, "", "")
		checkItems(t, seed, m, nil)
		for i := range m.Items {
			for _, d := range m.Items[i].Drivers {
				if taken := d.Used + d.Uncounted; taken < d.Attached+d.Attaching+d.Detaching {
					t.Errorf("seed %d: node %s has %d slots taken, and more VolumeAttachments: %+v", seed, m.Items[i].Node.Name, taken, d)
				}
			}
		}
	})
}

func checkItems(t *testing.T, seed uint64, answer any, items []Finding) {
	t.Helper()
	for i := range items {
		if f := &items[i]; f.Reason == "" || f.Summary == "" || f.Runbook == "" {
			t.Errorf("seed %d: a finding lacks reason, summary or page: %+v", seed, f)
		}
	}
	text, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "secretns") {
		t.Errorf("seed %d: the answer has a hidden name: %s", seed, text)
	}
}

const disk = "disk.example.com"

// town is a cluster that was read whole, an hour after its objects were created.
type town struct{ *Snapshot }

var built = metav1.NewTime(begin.Add(-time.Hour))

func newTown() town {
	return town{&Snapshot{
		Now: begin, AllNamespaces: true, Whole: []Resource{Pods, Claims, Volumes, Attachments, Nodes, CSINodes, Drivers, Leases},
		Drivers: []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: disk}}},
	}}
}

// node adds a node with a limit. Volumes that begin with "+" are in use too, all others are only reported.
func (t town) node(name string, ready corev1.ConditionStatus, limit int32, volumes ...string) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: built, Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastTransitionTime: built}}
	for _, v := range volumes {
		handle, used := strings.CutPrefix(v, "+")
		unique := corev1.UniqueVolumeName(kube.UniqueVolumeName(disk, handle))
		n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: unique})
		if used {
			n.Status.VolumesInUse = append(n.Status.VolumesInUse, unique)
		}
	}
	t.Nodes = append(t.Nodes, n)
	csi := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: disk}}}}
	if limit > 0 {
		csi.Spec.Drivers[0].Allocatable = &storagev1.VolumeNodeResources{Count: &limit}
	}
	t.CSINodes = append(t.CSINodes, csi)
}

// volume adds a volume with its claim in the namespace.
func (t town) volume(namespace, name string, modes ...corev1.PersistentVolumeAccessMode) {
	pv := fixture.PersistentVolume(name, disk, name, modes...)
	claim := fixture.Claim(namespace, "claim-"+name, pv)
	claim.CreationTimestamp = built
	t.Volumes, t.Claims = append(t.Volumes, fixture.Bind(pv, claim)), append(t.Claims, claim)
}

func (t town) attach(volume, node string) *storagev1.VolumeAttachment {
	va := fixture.Attachment(kube.AttachmentName(volume, disk, node), disk, node, volume)
	va.CreationTimestamp, va.Status.Attached = built, true
	t.Attachments = append(t.Attachments, va)
	return va
}

// pod adds a pod that runs on the node with the volumes.
func (t town) pod(namespace, name, node string, volumes ...string) *corev1.Pod {
	var claims []string
	for _, v := range volumes {
		claims = append(claims, "claim-"+v)
	}
	pod := fixture.Pod(namespace, name, node, claims...)
	pod.UID, pod.CreationTimestamp, pod.Status.Phase = types.UID(namespace+name), built, corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	t.Pods = append(t.Pods, pod)
	return pod
}

func (t town) waits(namespace, name, node string, volumes ...string) *corev1.Pod {
	pod := t.pod(namespace, name, node, volumes...)
	pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodPending, nil
	return pod
}

func minutesAgo(n int) *metav1.Time {
	return new(metav1.NewTime(begin.Add(-time.Duration(n) * time.Minute)))
}

// stuckTown has something stuck of each kind, and the same that is not.
func stuckTown() town {
	t := newTown()
	t.node("a", corev1.ConditionTrue, 3, "+held", "+fine")
	t.node("b", corev1.ConditionTrue, 3, "leaving")
	t.node("dead", corev1.ConditionUnknown, 3, "+lost")
	for _, v := range []string{"held", "fine", "leaving", "lost", "unwanted"} {
		t.volume("prod", v)
	}
	t.pod("prod", "holder", "a", "held")
	t.attach("held", "a")
	t.waits("prod", "waiter", "b", "held").CreationTimestamp = *minutesAgo(10)
	t.pod("prod", "fine", "a", "fine")
	t.attach("fine", "a")
	leaving := t.attach("leaving", "b")
	leaving.DeletionTimestamp = minutesAgo(30)
	leaving.Status.DetachError = &storagev1.VolumeError{Time: *minutesAgo(1), Message: "rpc error: code = Internal desc = no"}
	t.attach("lost", "dead")
	lost := t.pod("prod", "lost", "dead", "lost")
	lost.DeletionTimestamp, lost.DeletionGracePeriodSeconds = minutesAgo(20), new(int64(30))
	gone := fixture.Claim("test", "gone", fixture.PersistentVolume("none-such", disk, "none-such"))
	gone.CreationTimestamp = *minutesAgo(40)
	waitsForItsPod := fixture.Claim("test", "first-consumer", &corev1.PersistentVolume{})
	waitsForItsPod.Spec.StorageClassName = new("first-consumer")
	t.Classes = append(t.Classes, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "first-consumer"}, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)})
	t.Claims = append(t.Claims, gone, waitsForItsPod)
	return t
}

func TestStuck(t *testing.T) {
	for name, test := range map[string]struct {
		namespace string
		olderThan time.Duration
		want      string
		verdict   Verdict
	}{
		"all":                       {"", 0, "persistentvolumeclaims/gone PersistentVolumeMissing; volumeattachments/ DetachFailed; pods/lost PodOnLostNode; pods/waiter HeldByRunningPod", Unsafe},
		"a namespace":               {"test", 0, "persistentvolumeclaims/gone PersistentVolumeMissing", Blocked},
		"attachments of its claims": {"prod", 0, "volumeattachments/ DetachFailed; pods/lost PodOnLostNode; pods/waiter HeldByRunningPod", Unsafe},
		"older":                     {"", 25 * time.Minute, "persistentvolumeclaims/gone PersistentVolumeMissing; volumeattachments/ DetachFailed", Blocked},
		"another namespace":         {"none", 0, "", Clear},
	} {
		t.Run(name, func(t *testing.T) {
			list := Stuck(stuckTown().Snapshot, test.namespace, test.olderThan)
			var got []string
			for i := range list.Items {
				f := &list.Items[i]
				if f.Subject.Resource == Attachments {
					f.Subject.Name = ""
				}
				got = append(got, f.Subject.String()+" "+string(f.Reason))
			}
			if text := strings.Join(got, "; "); text != test.want || list.Verdict != test.verdict {
				t.Errorf("%s: %s\nwant %s: %s", list.Verdict, text, test.verdict, test.want)
			}
		})
	}
}

// TestStuckUnread: without the pods nothing can be said not to wait.
func TestStuckUnread(t *testing.T) {
	s := newTown().Snapshot
	s.Whole, s.AllNamespaces = []Resource{Attachments}, false
	s.Unread = []Unread{{Ref: Ref{Resource: Pods}, Verb: "list", Forbidden: true}}
	if list := Stuck(s, "", 0); list.Verdict != Unknown {
		t.Errorf("verdict %s, want Unknown", list.Verdict)
	}
}

func TestOrphans(t *testing.T) {
	s := newTown()
	s.node("a", corev1.ConditionTrue, 0, "+needed", "reported-only", "twice", "+shared")
	s.node("b", corev1.ConditionTrue, 0, "+used-only", "twice", "+shared")
	for _, v := range []string{"needed", "reported-only", "used-only", "twice", "unneeded", "fresh"} {
		s.volume("prod", v)
	}
	s.volume("prod", "shared", corev1.ReadWriteMany)
	s.pod("prod", "p", "a", "needed", "twice", "shared")
	s.pod("prod", "q", "b", "twice", "shared")
	for _, at := range [][2]string{{"needed", "a"}, {"twice", "a"}, {"twice", "b"}, {"shared", "a"}, {"shared", "b"}, {"unneeded", "a"}, {"fresh", "a"}} {
		va := s.attach(at[0], at[1])
		if at[0] == "fresh" {
			va.CreationTimestamp = metav1.NewTime(begin.Add(-time.Second))
		}
	}
	foreign := fixture.Attachment("by-hand", disk, "b", "none-such")
	foreign.CreationTimestamp = built
	s.Attachments = append(s.Attachments, foreign)
	describe := func(list OrphanList) string {
		var got []string
		for i := range list.Items {
			o := &list.Items[i]
			got = append(got, fmt.Sprintf("%s %s %s", o.Kind, o.Volume.PersistentVolume, o.Reason))
		}
		slices.Sort(got)
		return strings.Join(got, "\n")
	}
	want := `NoVolumeAttachment reported-only ReportedWithoutAttachment
NoVolumeAttachment used-only UsedWithoutAttachment
Several twice TwoAttachments
Unneeded none-such ForeignAttachment
Unneeded unneeded OrphanAttachment`
	list := Orphans(s.Snapshot, false)
	if got := describe(list); got != want || list.Verdict != Unsafe {
		t.Errorf("%s:\n%s\nwant\n%s", list.Verdict, got, want)
	}
	want = strings.Replace(want, "Unneeded none-such", "Shared shared SharedAttachments\nUnneeded fresh OtherWriterDetaching\nUnneeded none-such", 1)
	if got := describe(Orphans(s.Snapshot, true)); got != want {
		t.Errorf("with all:\n%s\nwant\n%s", got, want)
	}
	for _, missing := range neededForOrphans {
		partly := *s.Snapshot
		partly.Whole = slices.DeleteFunc(slices.Clone(partly.Whole), func(r Resource) bool { return r == missing })
		if list := Orphans(&partly, true); len(list.Items) > 0 || !slices.Equal(list.Missing, []Resource{missing}) || list.Verdict != Unknown {
			t.Errorf("without %s: %+v", missing, list)
		}
	}
}

// TestMapCountsAsTheScheduler: pods' volumes and VolumeAttachments together, each volume once per node.
func TestMapCountsAsTheScheduler(t *testing.T) {
	s := newTown()
	s.node("a", corev1.ConditionTrue, 4, "+both", "only-attached")
	s.node("b", corev1.ConditionTrue, 2)
	for _, v := range []string{"both", "only-attached", "only-pod", "ended"} {
		s.volume("prod", v)
	}
	s.attach("both", "a")
	s.attach("only-attached", "a").DeletionTimestamp = minutesAgo(1)
	s.attach("deleted-volume", "a")
	s.pod("prod", "p1", "a", "both")
	s.pod("prod", "p2", "a", "both")
	s.waits("prod", "p3", "a", "only-pod")
	s.pod("prod", "p4", "a", "ended").Status.Phase = corev1.PodSucceeded
	unbound := fixture.Claim("prod", "claim-new", &corev1.PersistentVolume{})
	unbound.Annotations = map[string]string{ProvisionerAnnotation: disk}
	s.Claims = append(s.Claims, unbound)
	s.waits("prod", "p5", "b", "new")
	m := Map(s.Snapshot, "", "")
	var got []string
	for i := range m.Items {
		n := &m.Items[i]
		d := &n.Drivers[0]
		got = append(got, fmt.Sprintf("%s %d+%d/%d attached %d, detaching %d, in use %d, reported %d", n.Node.Name, d.Used, d.Uncounted, *d.Limit, d.Attached, d.Detaching, d.InUse, d.Reported))
		for _, v := range n.Volumes {
			got = append(got, fmt.Sprintf("  %s: %s", v.PersistentVolume, strings.Join(v.States, ", ")))
		}
	}
	want := `a 3+1/4 attached 2, detaching 1, in use 1, reported 2
  both: attached, in use, reported
  deleted-volume: attached
  only-attached: detaching, reported
  only-pod: wanted
b 1+0/2 attached 0, detaching 0, in use 0, reported 0`
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	if m := Map(s.Snapshot, "b", "other.example.com"); len(m.Items) != 1 || len(m.Items[0].Drivers) > 0 {
		t.Errorf("another driver on node b: %+v", m.Items)
	}
}
