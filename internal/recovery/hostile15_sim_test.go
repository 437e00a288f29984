package recovery

import (
	"cmp"
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
)

// faults are those that the simulation does not have, each of which a real cluster has.
type faults struct {
	// registersAgain: a person deletes the Node of a machine whose volumes were cut, which gets network again, and restarts its kubelet.
	registersAgain bool
	// flapsOptedOut: the owner of a node whose volumes were cut opts it out; its network comes back for one renewal, and later for good.
	flapsOptedOut bool
	// neverRegisters: a kubelet that runs does not register a Node that was deleted, and the Node's lease goes with it.
	neverRegisters bool
}

func (f faults) on() bool { return f != faults{} }

var hostileFaults faults

var hostileLines, _ = strconv.Atoi(os.Getenv("BELAY_LINES"))

// hostileTrouble follows each step of a seed that is about storage.
func (w *world) hostileTrouble() {
	for _, m := range w.machines {
		node := w.node(m.name)
		if len(m.refused) == 0 || !m.on || m.frozen || m.gone || node == nil {
			continue
		}
		switch {
		case w.hostile.registersAgain && m.cut && w.chance(5):
			m.hung = true
			w.say("a person deletes node %s, which has network again, and restarts its kubelet, whose unmounts hang", m.name)
			w.vanish(node)
			m.cut = false
			w.kubeletRegisters(m)
		case w.hostile.flapsOptedOut && m.cut && kube.FenceOptedOut(node) && w.chance(10):
			m.cut, m.flaps = false, time.Now()
			w.say("%s has network for one renewal", m)
		case w.hostile.flapsOptedOut && m.cut && kube.FenceOptedOut(node) && !isolated(node):
			m.cut = false
			w.say("%s has network", m)
		case w.hostile.flapsOptedOut && m.cut && !kube.FenceOptedOut(node) && w.chance(10):
			m.hung = true
			change(w, node, func(n *corev1.Node) { metav1.SetMetaDataAnnotation(&n.ObjectMeta, kube.FenceOptOutAnnotation, "") })
			w.optedOut[m.name] = time.Now()
			w.say("a person opts %s out; its unmounts hang", m.name)
		}
	}
}

// vanish deletes a Node and its lease, as the garbage collector does.
func (w *world) vanish(node client.Object) {
	must2(w.t, client.IgnoreNotFound(w.api.Delete(context.Background(), node)))
	w.changed("Node")
	delete(w.leases, node.GetName())
	w.changed("Lease")
}

// vanishing is the trouble of neverRegisters: a silent node's Node is deleted while it is fenced, and then the network and the switch heal.
func (w *world) vanishing() {
	for _, m := range w.machines {
		node, f, b := w.node(m.name), w.anyFence(m.name), w.switches[m.name]
		switch {
		case f == nil || finished(f) || b == nil || !m.on || m.frozen || m.gone:
		case node != nil && m.cut && f.Status.Phase == "Fencing" && w.chance(10):
			w.say("a person deletes node %s", m.name)
			w.vanish(node)
		case node == nil && m.cut && w.chance(5):
			m.cut, b.mode = false, "ok"
			w.say("%s has network, and its switch answers", m)
		}
	}
}

// The simulation with faults that it does not have. Each seed runs without the end in calm: what is looked for is "stale mount",
// "writers" and "off".
// Expected: none breaks.
func TestHostileSimulation(t *testing.T) {
	defer func() { hostileFaults = faults{} }()
	first, last := hostileSeeds()
	for name, f := range map[string]faults{
		"a kubelet that was restarted after its Node was deleted":   {registersAgain: true},
		"a node that is opted out, and has network for one renewal": {flapsOptedOut: true},
		"a machine that runs, and whose Node was deleted meanwhile": {neverRegisters: true},
	} {
		t.Run(name, func(t *testing.T) {
			hostileFaults = f
			ran, happened := 0, map[string]int{}
			for seed := first; seed <= last; seed++ {
				if (seed%storageSeeds == 0) == f.neverRegisters { // what is about storage has switches that are bound to nothing
					continue
				}
				w := simulate(t, seed)
				if w.broken != "" {
					t.Fatalf("seed %d: %s\n%s", seed, w.broken, strings.Join(w.log[max(0, len(w.log)-cmp.Or(hostileLines, 40)):], "\n"))
				}
				ran++
				for what, n := range w.count {
					happened[what] += n
				}
			}
			t.Logf("%d of the seeds %d to %d: %v", ran, first, last, happened)
		})
	}
}

// hostileSeeds are the seeds that run: from BELAY_SEED on, as many as BELAY_SEEDS says.
func hostileSeeds() (first, last uint64) {
	number := func(name string, otherwise uint64) uint64 {
		if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
			return n
		}
		return otherwise
	}
	count := uint64(40 * storageSeeds)
	if testing.Short() {
		count = 10 * storageSeeds
	}
	first = number("BELAY_SEED", 1)
	return first, first + number("BELAY_SEEDS", count) - 1
}
