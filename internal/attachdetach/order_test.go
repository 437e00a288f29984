package attachdetach

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
)

// TestLastObjectToArriveWakesItsVolume delivers the objects behind one volume in every order. Only the last one that is
// needed may lead to an attach, and it has to wake the volume itself: no later event would.
func TestLastObjectToArriveWakesItsVolume(t *testing.T) {
	disk := key{Driver: driver, Handle: "h"}
	ephemeral := aPod("p", "n", corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}})
	owned := aClaim("p-v0")
	owned.OwnerReferences = []metav1.OwnerReference{{UID: ephemeral.UID, Controller: new(true), Kind: "Pod", Name: "p"}}
	ebs := corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}
	fc := corev1.VolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"5006"}, Lun: new(int32(1))}}
	gce := aVolume("c", "")
	gce.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "d"}}
	iscsi := aVolume("c", "")
	iscsi.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
		ISCSI: &corev1.ISCSIPersistentVolumeSource{TargetPortal: "10.0.0.1", IQN: "iqn.x", Lun: 2},
	}
	required := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(true)}}

	for name, tt := range map[string]struct {
		key    key
		needed []client.Object
		also   []client.Object // whatever the order, the attach does not wait for these
	}{
		"claim": {disk, []client.Object{aPod("p", "n", byClaimOf("c")), aNode("n"), aClaim("c"), aVolume("c", "h")}, []client.Object{required}},
		"generic ephemeral volume": {
			disk, []client.Object{ephemeral, aNode("n"), owned, aVolume("p-v0", "h")}, []client.Object{required},
		},
		"in-tree volume": {
			key{Driver: "pd.csi.storage.gke.io", Handle: "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"},
			[]client.Object{aPod("p", "n", byClaimOf("c")), aNode("n"), aClaim("c"), gce}, nil,
		},
		"iSCSI volume": {
			key{Driver: kube.ISCSIPlugin, Handle: "10.0.0.1:iqn.x:2"},
			[]client.Object{aPod("p", "n", byClaimOf("c")), aNode("n"), aClaim("c"), iscsi}, nil,
		},
		"in-tree volume of the pod": {key{Driver: "ebs.csi.aws.com", Handle: "vol-1"}, []client.Object{aPod("p", "n", ebs), aNode("n")}, nil},
		"Fibre Channel volume of the pod": {
			key{Driver: kube.FibreChannelPlugin, Handle: "[5006]:1"}, []client.Object{aPod("p", "n", fc), aNode("n")}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			all := slices.Concat(tt.needed, tt.also)
			permutations(len(all), func(order []int) {
				m := newModel(t)
				left := len(tt.needed)
				var arrived []string
				for _, i := range order {
					arrived = append(arrived, fmt.Sprintf("%T", all[i]))
					woken := m.put(all[i])
					needed := i < len(tt.needed)
					if needed {
						left--
					}
					d := m.decide(tt.key)
					acts := len(attaches(d)) > 0 || reports(d)
					switch {
					case left > 0 && acts:
						t.Fatalf("after %v: acts before all is there: %+v", arrived, d.Steps)
					case left == 0 && !acts:
						t.Fatalf("after %v: does nothing: %+v", arrived, d.Steps)
					case left == 0 && needed && !slices.Contains(woken, tt.key):
						t.Fatalf("after %v: woke %v, not %v", arrived, woken, tt.key)
					}
				}
			})
		})
	}
}

// permutations calls f with each order of n numbers.
func permutations(n int, f func(order []int)) {
	var next func(done []int)
	next = func(done []int) {
		if len(done) == n {
			f(done)
			return
		}
		for i := range n {
			if !slices.Contains(done, i) {
				next(append(slices.Clone(done), i))
			}
		}
	}
	next(nil)
}

// TestEveryOrderEndsInTheSameDecision makes random objects, some of them twice with
// changes and some removed again, in random order. Whatever is decided at the end must
// have been reachable: the last event that changed the decision woke the volume.
func TestEveryOrderEndsInTheSameDecision(t *testing.T) {
	random := seeded(t)
	for round := range 300 {
		m := newModel(t)
		volumes := []key{{Driver: driver, Handle: "h0"}, {Driver: driver, Handle: "h1"}}
		events := randomObjects(random.IntN)
		random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		before := map[key]string{}
		for i, e := range events {
			woken := e(m)
			for _, k := range volumes {
				now := fmt.Sprint(m.decide(k).Steps)
				// An attachment that nothing tells the volume of is woken by its own name.
				wakes := func(w key) bool { return w == k || w.Driver == orphanDriver }
				if now != before[k] && before[k] != "" && !slices.ContainsFunc(woken, wakes) {
					t.Fatalf("round %d, event %d: the decision on %v changed from %s to %s, and only %v were woken",
						round, i, k, before[k], now, woken)
				}
				before[k] = now
			}
		}
	}
}

// randomObjects are puts and removals of a few objects that share two volumes.
func randomObjects(intN func(int) int) []func(*model) []key {
	var events []func(*model) []key
	add := func(obj client.Object) {
		events = append(events, func(m *model) []key { return m.put(obj) })
		if intN(3) == 0 {
			events = append(events, func(m *model) []key { return m.remove(obj) })
		}
	}
	handle := func() string { return fmt.Sprintf("h%d", intN(2)) }
	for i := range 3 {
		name := fmt.Sprintf("c%d", i)
		pv := aVolume(name, handle())
		add(pv)
		if intN(2) == 0 { // recreated for another volume
			again := aVolume(name, handle(), corev1.ReadWriteMany)
			again.UID = "again"
			add(again)
		}
		add(aClaim(name))
		for _, node := range []string{"a", "b"} {
			add(aPod(fmt.Sprintf("p%d%s", i, node), node, byClaimOf(name)))
			k := key{Driver: driver, Handle: handle()}
			if intN(2) == 0 {
				va := anAttachment(k, node, name, intN(2) == 0)
				va.UID = types.UID("for-" + name) // what it names never changes
				add(va)
			}
		}
	}
	for _, node := range []string{"a", "b"} {
		add(aNode(node))
		unique := []string{kube.UniqueVolumeName(driver, handle())}
		add(aNode(node, listing(unique, unique)))
		add(aNode(node, listing(nil, unique)))
	}
	add(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)}})
	return events
}

// A pod that was deleted and recreated between two events of the watch counts as both (k/k#111327): the volume of the
// first is detached, that of the second is attached.
func TestPodRecreatedBetweenWatchEvents(t *testing.T) {
	m := newModel(t)
	m.put(aNode("n"))
	for _, name := range []string{"old", "new"} {
		m.put(aVolume(name, name))
		m.put(aClaim(name))
	}
	first, second := aPod("p", "n", byClaimOf("old")), aPod("p", "n", byClaimOf("new"))
	first.UID, second.UID = "first", "second"
	m.put(first)
	woken := m.put(second)
	for _, handle := range []string{"old", "new"} {
		if k := (key{Driver: driver, Handle: handle}); !slices.Contains(woken, k) {
			t.Errorf("woke %v, not %v", woken, k)
		}
	}
	if got := attaches(m.decide(key{Driver: driver, Handle: "old"})); len(got) > 0 {
		t.Errorf("the volume of a pod that is gone is attached to %v", got)
	}
}

// An attachment that does not identify its volume blocks that volume once it is identified, and wakes it when it is
// deleted.
func TestNamelessAttachmentWakesItsVolume(t *testing.T) {
	m := newModel(t)
	k := key{Driver: driver, Handle: "h"}
	va := anAttachment(k, "a", "lost", false)
	m.put(aNode("a"))
	m.put(aNode("b"))
	if woken := m.put(va); !slices.Contains(woken, orphanKey(va)) {
		t.Fatalf("woke %v", woken)
	}
	m.put(aVolume("c", "h"))
	m.put(aClaim("c"))
	m.put(aPod("p", "b", byClaimOf("c")))
	if got := attaches(m.decide(k)); len(got) > 0 {
		t.Fatalf("S1: attaches to %v while an attachment to a exists", got)
	}
	if woken := m.remove(va); !slices.Contains(woken, k) {
		t.Errorf("its going woke %v, not %v", woken, k)
	}
	if got := attaches(m.decide(k)); len(got) != 1 {
		t.Errorf("attaches to %v after it went", got)
	}
}
