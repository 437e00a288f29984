package simulation

import (
	"regexp"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// The oracle finds what it is there for.

// disorderlySeeds is how many seeds may pass before the oracle finds the driver that breaks its promise.
const disorderlySeeds = 60

// lateSeeds is how many seeds run with a driver that carries out abandoned calls late.
const lateSeeds = 60

// TestLateDriver: a driver that refuses no call for what it is at work on, and carries out all in the order in which they came, also those
// that were abandoned. The invariants hold, and all comes to rest.
func TestLateDriver(t *testing.T) {
	if _, err := realController(); err != nil {
		t.Fatal(err)
	}
	first, count := numbers(t, lateSeeds)
	for seed := first; seed < first+count; seed++ {
		if s := run(t, seed, func(s *sim) { s.storage.queues = true }); s.broken != "" {
			t.Fatalf("seed %d: %s\nreplay with BELAY_SEED=%d\n%s", seed, s.broken, seed, strings.Join(s.log[max(0, len(s.log)-lines(count)):], "\n"))
		}
	}
}

// TestDisorderlyDriver: a driver that carries out calls in another order than it answers them gives a volume to two nodes, whatever the
// plane does. That the oracle finds it shows that late effects are there, and that the promise of docs/drivers.md is needed.
func TestDisorderlyDriver(t *testing.T) {
	if _, err := realController(); err != nil {
		t.Fatal(err)
	}
	for seed := uint64(1); seed <= disorderlySeeds; seed++ {
		s := run(t, seed, func(s *sim) { s.storage.queues, s.storage.disorderly = true, true })
		if s.broken == "" {
			continue
		}
		if !regexp.MustCompile(`^(S1|S5): `).MatchString(s.broken) {
			continue
		}
		t.Logf("seed %d: %s", seed, s.broken)
		return
	}
	t.Fatalf("%d seeds did not find it", disorderlySeeds)
}

// TestOracleComparesUIDs: a report, and the record of an attach, rest on the attachment of the same UID and not on an earlier one with
// its name (S9, S10).
func TestOracleComparesUIDs(t *testing.T) {
	const node = "n0"
	setUp := func(t *testing.T) (*sim, *disk, *storagev1.VolumeAttachment) {
		t.Helper()
		s := newSim(1)
		d := &disk{handle: "a^1", exclusive: true}
		s.disks = []*disk{d}
		va := &storagev1.VolumeAttachment{}
		va.Name, va.Spec.Attacher, va.Spec.NodeName = kube.AttachmentName(d.handle, driverName, node), driverName, node
		va.Finalizers = []string{kube.AttacherFinalizer(driverName)}
		va.Annotations = map[string]string{kube.NodeIDAnnotation: "id-" + node}
		made := s.mustCreate(va).(*storagev1.VolumeAttachment)
		return s, d, made
	}
	confirm := func(s *sim, va *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
		return change(s.api, va, func(va *storagev1.VolumeAttachment) { va.Status.Attached = true })
	}
	for name, test := range map[string]struct {
		again bool
		want  string
	}{"the same": {}, "recreated since": {true, "S9: "}} {
		t.Run("S9 "+name, func(t *testing.T) {
			s, d, va := setUp(t)
			va = confirm(s, va)
			sent := s.api.version
			if test.again {
				s.api.drop(va)
				again := va.DeepCopy()
				again.ResourceVersion, again.UID, again.Status = "", "", storagev1.VolumeAttachmentStatus{}
				confirm(s, s.mustCreate(again).(*storagev1.VolumeAttachment))
			}
			s.judgeReport(write{request: &request{sent: sent, looks: map[string]int{d.handle: sent}}}, d, bareNode(node))
			if !startsWith(s.broken, test.want) {
				t.Errorf("%q, want %q", s.broken, test.want)
			}
		})
		t.Run("S10 "+name, func(t *testing.T) {
			s, d, va := setUp(t)
			at := [2]string{d.handle, "id-" + node}
			s.storage.answered[at] = s.protecting(d, at[1])
			want := test.want
			if test.again {
				va.UID, want = "another", "S10: "
			}
			s.judgeConfirmed(va)
			if !startsWith(s.broken, want) {
				t.Errorf("%q, want %q", s.broken, want)
			}
		})
	}
}

// TestPolicyTakesUntilThePublish: what a policy took from a machine counts again once it is published there, or is about to be, and an
// attachment stays; not as soon as there is another attachment (S2).
func TestPolicyTakesUntilThePublish(t *testing.T) {
	for name, test := range map[string]struct {
		published, underway bool
		fate                fate
		another             bool // attachment of the node, being deleted
		want                string
	}{
		"not published":             {},
		"published":                 {published: true, want: "S2: "},
		"published, beside another": {published: true, another: true, want: "S2: "},
		"publish is underway":       {underway: true, fate: hangs, want: "S2: "},
		"publish will fail":         {underway: true, fate: fails},
	} {
		t.Run(name, func(t *testing.T) {
			s, d := newSim(1), &disk{handle: "shared"}
			s.disks, s.policy = []*disk{d}, attachment.Policy{}
			m := s.machines[machineNames[0]]
			v, id := m.of(d.handle), s.nodeID(m, d.handle)
			v.mounted, v.forced = true, true
			va := &storagev1.VolumeAttachment{}
			va.Name, va.Spec.Attacher, va.Spec.NodeName = kube.AttachmentName(d.handle, driverName, m.name), driverName, m.name
			va.Finalizers = []string{kube.AttacherFinalizer(driverName)}
			va.Annotations = map[string]string{kube.NodeIDAnnotation: id}
			made := s.mustCreate(va).(*storagev1.VolumeAttachment)
			s.judgeAttach(write{}, made)
			if test.another {
				byHand := va.DeepCopy()
				byHand.Name, s.byHand["by-hand"] = "by-hand", d
				if err := s.api.remove(nil, nil, attachments, s.mustCreate(byHand).GetName(), nil); err != nil {
					t.Fatal(err)
				}
			}
			if test.published {
				s.storage.published[d.handle] = map[string]bool{id: true}
			}
			if test.underway {
				s.storage.running = []*call{{publish: true, volume: d.handle, nodeID: id, fate: test.fate}}
			}
			s.judgeDetach(write{request: &request{}}, made)
			if !startsWith(s.broken, test.want) {
				t.Errorf("%q, want %q", s.broken, test.want)
			}
		})
	}
}

func startsWith(broken, want string) bool {
	return broken == want || want != "" && strings.HasPrefix(broken, want)
}
