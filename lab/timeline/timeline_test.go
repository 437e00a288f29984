package timeline

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

var update = flag.Bool("update", false, "write the golden files anew")

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

var volume = Volume{
	PV: "pv-1", Claim: "default/data", Unique: "kubernetes.io/csi/labdisk.belay.dev^vol-1",
	Handle: "vol-1", Driver: "labdisk.belay.dev",
}

// tape turns sights of objects, each some milliseconds after the start, into changes.
type tape struct {
	changes []Change
	pods    map[string]*corev1.Pod
	nodes   map[string]*corev1.Node
	vas     map[string]*storagev1.VolumeAttachment
}

func newTape() *tape {
	return &tape{
		pods: map[string]*corev1.Pod{}, nodes: map[string]*corev1.Node{},
		vas: map[string]*storagev1.VolumeAttachment{},
	}
}

func at(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }

func (tp *tape) note(ms int, changes []Change) {
	for _, c := range changes {
		c.At = at(ms)
		tp.changes = append(tp.changes, c)
	}
}

func (tp *tape) pod(ms int, uid string, edit func(*corev1.Pod)) {
	old := tp.pods[uid]
	now := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "writer-0", UID: types.UID(uid)}}
	now.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}
	if old != nil {
		now = old.DeepCopy()
	}
	edit(now)
	tp.note(ms, podChanges(old, now))
	tp.pods[uid] = now
}

func (tp *tape) podGone(ms int, uid string) { tp.note(ms, podChanges(tp.pods[uid], nil)) }

func (tp *tape) node(ms int, name string, edit func(*corev1.Node)) {
	old := tp.nodes[name]
	now := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if old != nil {
		now = old.DeepCopy()
	}
	edit(now)
	tp.note(ms, nodeChanges(old, now))
	tp.nodes[name] = now
}

func (tp *tape) va(ms int, node string, edit func(*storagev1.VolumeAttachment)) {
	old := tp.vas[node]
	now := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va-" + node, UID: types.UID("va-" + node)}}
	now.Spec.NodeName, now.Spec.Source.PersistentVolumeName = node, &volume.PV
	if old != nil {
		now = old.DeepCopy()
	}
	edit(now)
	tp.note(ms, attachmentChanges(old, now))
	tp.vas[node] = now
}

func (tp *tape) vaGone(ms int, node string) { tp.note(ms, attachmentChanges(tp.vas[node], nil)) }

func inUseOf(names ...corev1.UniqueVolumeName) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.VolumesInUse = names }
}

func reportOf(names ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.VolumesAttached = nil
		for _, name := range names {
			n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(name)})
		}
	}
}

func deletion(o interface{ SetDeletionTimestamp(*metav1.Time) }) {
	o.SetDeletionTimestamp(&metav1.Time{Time: start})
}

func containers(state corev1.ContainerState) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodRunning
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: state}}
	}
}

var (
	running = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	ended   = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
)

// settle puts the volume on node-1 before the start of the move.
func (tp *tape) settle() {
	tp.pod(-900, "old", func(p *corev1.Pod) { p.Spec.NodeName = "node-1" })
	tp.va(-890, "node-1", func(v *storagev1.VolumeAttachment) { v.Status.Attached = true })
	tp.node(-880, "node-1", func(n *corev1.Node) {
		inUseOf(corev1.UniqueVolumeName(volume.Unique))(n)
		reportOf(volume.Unique)(n)
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	})
	tp.pod(-800, "old", containers(running))
}

// arrive brings the volume to node-2, beginning at a time.
func (tp *tape) arrive(ms int) []Call {
	tp.va(ms, "node-2", func(*storagev1.VolumeAttachment) {})
	tp.va(ms+6, "node-2", func(v *storagev1.VolumeAttachment) {
		v.Finalizers = []string{"external-attacher/labdisk-belay-dev"}
		v.Annotations = map[string]string{"csi.alpha.kubernetes.io/node-id": "node-2"}
	})
	tp.va(ms+14, "node-2", func(v *storagev1.VolumeAttachment) { v.Status.Attached = true })
	tp.node(ms+20, "node-2", func(n *corev1.Node) {
		n.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(volume.Unique)}
	})
	tp.node(ms+22, "node-2", reportOf(volume.Unique))
	tp.pod(ms+300, "new", containers(running))
	return []Call{
		{Method: "ControllerPublishVolume", Volume: "vol-1", Node: "node-2", Start: at(ms + 8), End: at(ms + 9), Failed: true},
		{Method: "ControllerPublishVolume", Volume: "vol-1", Node: "node-2", Start: at(ms + 10), End: at(ms + 12)},
		{Method: "NodeStageVolume", Volume: "vol-1", Node: "node-2", Start: at(ms + 40), End: at(ms + 160)},
		{Method: "NodePublishVolume", Volume: "vol-1", Node: "node-2", Start: at(ms + 165), End: at(ms + 180)},
		// Another volume and another node do not belong to the move.
		{Method: "NodePublishVolume", Volume: "vol-2", Node: "node-2", Start: at(ms + 20), End: at(ms + 21)},
		{Method: "NodeStageVolume", Volume: "vol-1", Node: "node-3", Start: at(ms + 20), End: at(ms + 21)},
	}
}

func drainTape() ([]Change, []Call) {
	tp := newTape()
	tp.settle()
	tp.pod(2, "old", func(p *corev1.Pod) { deletion(p) })
	tp.pod(60, "old", containers(ended))
	tp.node(140, "node-1", inUseOf())
	tp.podGone(110, "old")
	tp.node(146, "node-1", reportOf())
	tp.va(151, "node-1", func(v *storagev1.VolumeAttachment) { deletion(v) })
	tp.vaGone(162, "node-1")
	tp.pod(115, "new", func(*corev1.Pod) {})
	tp.pod(120, "new", func(p *corev1.Pod) { p.Spec.NodeName = "node-2" })
	calls := tp.arrive(166)
	return tp.changes, append(calls,
		Call{Method: "NodeUnpublishVolume", Volume: "vol-1", Node: "node-1", Start: at(62), End: at(75)},
		Call{Method: "NodeUnstageVolume", Volume: "vol-1", Node: "node-1", Start: at(80), End: at(130)},
		Call{Method: "ControllerUnpublishVolume", Volume: "vol-1", Node: "node-1", Start: at(153), End: at(157)},
	)
}

func powerTape() ([]Change, []Call) {
	tp := newTape()
	tp.settle()
	tp.node(8000, "node-1", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })
	tp.node(8010, "node-1", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	})
	tp.pod(8150, "old", func(p *corev1.Pod) { deletion(p) })
	tp.podGone(9000, "old")
	tp.node(9006, "node-1", reportOf())
	tp.va(9010, "node-1", func(v *storagev1.VolumeAttachment) { deletion(v) })
	tp.vaGone(9020, "node-1")
	tp.pod(9005, "new", func(*corev1.Pod) {})
	tp.pod(9008, "new", func(p *corev1.Pod) { p.Spec.NodeName = "node-2" })
	calls := tp.arrive(9025)
	return tp.changes, append(calls,
		Call{Method: "ControllerUnpublishVolume", Volume: "vol-1", Node: "node-1", Start: at(9012), End: at(9015)})
}

func TestChart(t *testing.T) {
	for name, tc := range map[string]struct {
		record func() ([]Change, []Call)
		query  Query
		style  Style
	}{
		"drain": {record: drainTape, query: Query{Title: "move 1, drain", From: "node-1", To: "node-2"}},
		"drain in colour on a narrow terminal": {
			record: drainTape, query: Query{Title: "move 1, drain", From: "node-1", To: "node-2"},
			style: Style{Width: 72, Color: true, Unicode: true},
		},
		"power cut":       {record: powerTape, query: Query{Title: "move 3, power cut", From: "node-1", To: "node-2"}},
		"first placement": {record: drainTape, query: Query{Title: "placement", To: "node-2"}},
	} {
		t.Run(name, func(t *testing.T) {
			changes, calls := tc.record()
			tc.query.Volume, tc.query.Start = volume, start
			move := NewMove(tc.query, changes, calls)
			var got bytes.Buffer
			if err := Chart(&got, move, tc.style); err != nil {
				t.Fatal(err)
			}
			golden(t, strings.ReplaceAll(name, " ", "-")+".txt", got.Bytes())
		})
	}
}

func TestMoveAsJSON(t *testing.T) {
	changes, calls := drainTape()
	move := NewMove(Query{Title: "move", Volume: volume, From: "node-1", To: "node-2", Start: start}, changes, calls)
	got, err := json.MarshalIndent(move, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "drain.json", append(got, '\n'))
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got; run with -update if the change is meant):\n%s", path, diff)
	}
}

func TestEveryStepOfADrainIsSeen(t *testing.T) {
	changes, calls := drainTape()
	move := NewMove(Query{Volume: volume, From: "node-1", To: "node-2", Start: start}, changes, calls)
	for _, name := range StepNames() {
		step := move.Step(name)
		if name == StepNotReady || name == StepOutOfService {
			if step != nil {
				t.Errorf("step %q of a power cut is in a drain", name)
			}
			continue
		}
		if step == nil || !step.Seen {
			t.Errorf("step %q was not found in a complete record", name)
		}
	}
}

// TestOwnersOfAPowerCut: an operator and pod GC, or belay's recovery where it runs.
func TestOwnersOfAPowerCut(t *testing.T) {
	changes, calls := powerTape()
	for recovery, want := range map[bool][2]string{false: {"operator", "pod GC"}, true: {"recovery", "recovery"}} {
		move := NewMove(Query{Volume: volume, From: "node-1", To: "node-2", Start: start, Recovery: recovery}, changes, calls)
		for i, name := range []StepName{StepOutOfService, StepPodGone} {
			if step := move.Step(name); step == nil || step.Owner != want[i] {
				t.Errorf("with recovery %v: %+v, want owner %q", recovery, step, want[i])
			}
		}
	}
}

func TestStepRulesWaitOnlyForEarlierSteps(t *testing.T) {
	known := map[StepName]bool{}
	for _, rule := range stepRules {
		for _, cause := range rule.after {
			if !known[cause] {
				t.Errorf("step %q waits for %q, which does not come before it", rule.name, cause)
			}
		}
		known[rule.name] = true
	}
}

func TestCompareOmitsFiguresWithoutRatio(t *testing.T) {
	changes, calls := drainTape()
	q := Query{Title: "drain", Volume: volume, From: "node-1", To: "node-2", Start: start}
	belay := NewMove(q, changes, calls)
	slow := NewMove(q, changes, calls)
	slow.Step(StepReported).Ended += time.Second
	slow.Step(StepVAGone).Ended = slow.Step(StepPodGone).Ended - time.Millisecond
	want := Comparison{Rows: []ComparisonRow{
		{Move: "drain", Figure: FigureBoundReported, Upstream: 1068, Belay: 68, Ratio: 1068.0 / 68, Least: 1068.0 / 68, Moves: 1},
		{Move: "drain", Figure: FigureInUseReported, Upstream: 1048, Belay: 48, Ratio: 1048.0 / 48, Least: 1048.0 / 48, Moves: 1},
		{Move: "drain", Figure: FigureBoundRunning, Upstream: 346, Belay: 346, Ratio: 1, Least: 1, Moves: 1},
		{Move: "drain", Figure: FigureDeletedRunning, Upstream: 464, Belay: 464, Ratio: 1, Least: 1, Moves: 1},
	}}
	got := Compare([]*Move{belay}, []*Move{slow})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("comparison (-want +got):\n%s", diff)
	}
}

// TestMedian: of an even number it lies between the two in the middle.
func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		all  []float64
		want float64
	}{{nil, 0}, {[]float64{4}, 4}, {[]float64{9, 1}, 5}, {[]float64{7, 1, 2}, 2}, {[]float64{8, 1, 2, 3}, 2.5}} {
		if got := Median(tt.all); got != tt.want {
			t.Errorf("of %v it is %v, want %v", tt.all, got, tt.want)
		}
	}
	if got := Median([]time.Duration{3 * time.Second, time.Second}); got != 2*time.Second {
		t.Errorf("of 1 s and 3 s it is %v", got)
	}
}

func TestCompareMediansAndLeastRatio(t *testing.T) {
	moves := func(reported ...time.Duration) []*Move {
		var all []*Move
		for _, d := range reported {
			all = append(all, &Move{Title: "placement", Steps: []Step{
				{Name: StepBound, Seen: true, Ended: time.Second}, {Name: StepReported, Seen: true, Ended: time.Second + d},
			}})
		}
		return all
	}
	const ms = time.Millisecond
	got := Compare(moves(90*ms, 20*ms, 30*ms), moves(1200*ms, 600*ms, 630*ms))
	want := Comparison{Rows: []ComparisonRow{{
		Move: "placement", Figure: FigureBoundReported, Upstream: 630, Belay: 30, Ratio: 21, Least: 600.0 / 90, Moves: 3,
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("comparison (-want +got):\n%s", diff)
	}
	var table strings.Builder
	if err := got.Write(&table); err != nil {
		t.Fatal(err)
	}
	if line := "placement, median of 3       pod bound -> reported                630.0 ms      30.0 ms    21.0x     6.7x\n"; !strings.Contains(table.String(), line) {
		t.Errorf("the table lacks %q:\n%s", line, table.String())
	}
}

func TestRecorderSeesCreateUpdateDelete(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := fake.NewClientset()
	r, err := record(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	// The recorder has listed but may not watch yet: it then gets only what exists when the watch begins.
	created, stop := r.Next(func(c Change) bool { return c.Kind == AttachmentCreated })
	defer stop()
	gone, stop := r.Next(func(c Change) bool { return c.Kind == AttachmentGone })
	defer stop()
	pv := "pv-1"
	va := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "va", UID: "u1"},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "labdisk.belay.dev", NodeName: "node-1",
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		},
	}
	vas := client.StorageV1().VolumeAttachments()
	if _, err := vas.Create(ctx, va, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-created:
	case <-ctx.Done():
		t.Fatal("the recorder does not see what was created")
	}
	va = va.DeepCopy()
	va.Status.Attached = true
	if _, err := vas.UpdateStatus(ctx, va, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := vas.Delete(ctx, "va", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-gone:
	case <-ctx.Done():
	}
	var got []Change
	for _, c := range r.Changes() {
		c.At = time.Time{}
		got = append(got, c)
	}
	base := Change{Object: "va", UID: "u1", Node: "node-1", Volume: "pv-1"}
	var want []Change
	for _, kind := range []Kind{AttachmentCreated, AttachmentAttached, AttachmentGone} {
		want = append(want, with(base, kind)...)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}
