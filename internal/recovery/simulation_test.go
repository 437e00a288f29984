package recovery

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// The simulation runs the detector, the fencer and the actor as they ship, in one process or apart and once or twice, against machines,
// power switches and an API server that fail as a seed chooses. Each reconcile runs in a synctest bubble and stops at each request; one
// scheduler chooses which request is carried out, which cache makes progress, what breaks, and how much time passes.
//
//	BELAY_SEED=17 go test -run TestRecoverySimulation ./internal/recovery        replays one seed and shows it
//	BELAY_SEEDS=1000 go test -run TestRecoverySimulation ./internal/recovery     runs that many

// process is one process of recovery.
type process struct {
	world *world
	name  string
	dead  bool
	// stalled: it is not scheduled before that time.
	stalled time.Time
	cache   map[string][]client.Object
	seen    map[string]int // versions of the caches
	ctx     context.Context
	cancel  context.CancelFunc
	ended   sync.WaitGroup
	proofs  *Proofs
	// everProven is the oracle's.
	everProven map[string]bool

	detector   *detector
	remediator *remediator
	fencer     *fencer
	actor      *actor

	mu      sync.Mutex
	due     map[string]time.Time // by part and name
	working map[string]bool
	failed  map[string]int
}

func (w *world) startProcess(roles Roles) {
	w.started++
	p := &process{
		world: w, name: fmt.Sprint("p", w.started), cache: map[string][]client.Object{}, seen: map[string]int{}, proofs: &Proofs{},
		everProven: map[string]bool{}, due: map[string]time.Time{}, working: map[string]bool{}, failed: map[string]int{},
	}
	p.ctx, p.cancel = context.WithCancel(log.IntoContext(context.Background(), logr.Discard()))
	shared := &parts{
		Options: Options{Roles: roles, Profile: w.profile, Brakes: fencing.DefaultBrakes(), Dial: p.dial, Proofs: p.proofs},
		client:  simClient{p: p}, live: liveReader{p}, events: &events.FakeRecorder{}, now: time.Now, identity: p.name,
	}
	if w.ports {
		shared.port = p.port
	}
	if w.nhc != nil {
		shared.NodeLeases = nodeLeases
		if roles.Detector {
			p.remediator = &remediator{parts: shared, looked: func(node string) decision.Reason { return p.detector.lookedAt(node) }}
		}
	}
	shared.BesideUpstream = w.plane.detaches == upstreams
	if w.plane.detaches != withProofs {
		shared.Proofs = nil // as belay-controller without its attach/detach controller
	}
	shared.Brakes.Fences = 20 // a seed has many deaths in a short time
	shared.ear = &listener{parts: shared}
	p.detector = &detector{parts: shared, held: map[string]hold{}, leases: map[string]time.Time{}}
	p.wake("detector", allNodes)
	if roles.Fencer {
		p.fencer = newFencer(shared)
	}
	if roles.Actor {
		p.actor = &actor{parts: shared, known: map[types.UID]*memory{}}
	}
	for _, kind := range w.watched() {
		p.catchUp(kind)
	}
	w.processes = append(w.processes, p)
	w.say("%s starts: %+v", p.name, roles)
}

func (w *world) startProcesses() {
	for range w.replicas {
		if !w.apart {
			w.startProcess(Roles{Detector: true, Fencer: true, Actor: true})
			continue
		}
		w.startProcess(Roles{Detector: true})
		w.startProcess(Roles{Fencer: true})
		w.startProcess(Roles{Actor: true})
	}
}

func (p *process) dial(feed fencingv1.Feed, _ map[string][]byte) (Switch, error) {
	return simSwitch{p, p.world.switches[string(feed.Options["ip"])], time.Now()}, nil
}

func (p *process) wake(part, name string) {
	if p.due[part+" "+name].IsZero() || p.due[part+" "+name].After(time.Now()) {
		p.due[part+" "+name] = time.Now()
	}
}

// catchUp shows a cache the newest state of a kind, and wakes what watches it.
func (p *process) catchUp(kind string) {
	w := p.world
	if p.seen[kind] == w.versions[kind] {
		return
	}
	p.seen[kind] = w.versions[kind]
	before := map[string]string{}
	for _, o := range p.cache[kind] {
		before[o.GetName()] = o.GetResourceVersion()
	}
	p.cache[kind] = w.stored(kind)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.cache[kind] {
		if before[o.GetName()] != o.GetResourceVersion() {
			p.wakeFor(kind, o)
		}
		delete(before, o.GetName())
	}
	for name := range before {
		p.wakeFor(kind, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
}

func (p *process) wakeFor(kind string, o client.Object) {
	var names []string
	switch x := o.(type) {
	case *corev1.Pod:
		names = []string{x.Spec.NodeName}
	case *storagev1.VolumeAttachment:
		names = []string{x.Spec.NodeName}
	case *fencingv1.NodeFence:
		names = []string{x.Spec.NodeName}
	case *storagev1.CSIDriver:
		return // it is there from the beginning
	case *fencingv1.BelayRemediation: // only the remediator watches them
	default:
		if names = []string{o.GetName()}; kind == "Pod" || kind == "VolumeAttachment" || kind == "NodeFence" {
			names = simNodes // it is gone, wherever it was
		}
	}
	if p.remediator != nil {
		p.wakeRemediations(kind, o)
	}
	for _, name := range names {
		if p.fencer != nil && (kind == "Node" || kind == "NodeFence" || kind == "FenceSource") {
			p.wake("fencer", name)
		}
		if p.actor != nil && kind != "FenceSource" && kind != "BelayRemediation" {
			p.wakeActor(name)
		}
	}
	if p.actor != nil && kind == "NodeFence" { // also one that is gone
		p.wake("actor", o.GetName())
	}
}

// wakeActor wakes the actor for each fence of a node that its cache has.
func (p *process) wakeActor(node string) {
	for _, o := range p.cache["NodeFence"] {
		if f := o.(*fencingv1.NodeFence); f.Spec.NodeName == node {
			p.wake("actor", f.Name)
		}
	}
}

// start begins the reconciles that are due.
func (p *process) start() {
	if time.Now().Before(p.stalled) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(p.due)) {
		if p.working[key] || time.Now().Before(p.due[key]) {
			continue
		}
		delete(p.due, key)
		p.working[key] = true
		p.ended.Go(func() { p.reconcile(key) })
		p.mu.Unlock()
		synctest.Wait()
		p.mu.Lock()
	}
}

func (p *process) reconcile(key string) {
	part, name, _ := strings.Cut(key, " ")
	ctx := context.WithValue(p.ctx, labelKey{}, key)
	r := map[string]reconcile.Reconciler{"detector": p.detector, "remediator": p.remediator, "fencer": p.fencer, "actor": p.actor}[part]
	q := request(name)[0]
	if part == "remediator" {
		q.Namespace = metav1.NamespaceDefault
	}
	result, err := r.Reconcile(ctx, q)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.working, key)
	after := result.RequeueAfter
	switch {
	case err != nil:
		p.failed[key]++
		after = min(firstRetry<<min(p.failed[key], 10), maxRetry)
	case after == 0:
		return
	default:
		delete(p.failed, key)
	}
	if at := time.Now().Add(after); p.due[key].IsZero() || p.due[key].After(at) {
		p.due[key] = at
	}
}

// settle lets every goroutine run until it waits for the scheduler.
func (w *world) settle() {
	synctest.Wait()
	w.judgeProofs()
}

// step is a moment: everybody may act, some requests end, and then time passes.
func (w *world) step() {
	if !w.calm && w.chance(w.troubles) {
		w.trouble()
	}
	if !w.calm && w.byStorage {
		w.storageTrouble()
	}
	if w.nhc != nil {
		w.nhc.turn()
	}
	if !w.calm && w.byName {
		w.nameTrouble()
	}
	if w.hostile.neverRegisters {
		w.vanishing()
	}
	for _, m := range w.machines {
		if w.calm || w.chance(80) {
			w.kubelet(m)
		}
	}
	w.carryOutQueues()
	w.lifecycle()
	w.plane.turn()
	w.deliver()
	for _, p := range w.processes {
		for _, kind := range w.watched() {
			if !w.outage() && time.Now().After(p.stalled) && (w.calm || w.chance(85)) {
				p.catchUp(kind)
			}
		}
		p.start()
	}
	w.settle()
	for range 60 {
		ready := w.ready()
		if len(ready) == 0 || w.broken != "" || !w.calm && w.chance(3) {
			break
		}
		w.serve(ready[w.rng.IntN(len(ready))])
		w.settle()
		if !w.calm && w.chance(4) { // the machines do not wait for recovery
			w.kubelet(w.machines[w.rng.IntN(len(w.machines))])
			w.plane.turn()
		}
		for _, p := range w.processes {
			p.start()
		}
	}
	d := 250 * time.Millisecond
	if !w.calm {
		d = time.Duration(50+w.rng.IntN(300)) * time.Millisecond
	}
	time.Sleep(d)
	w.settle()
}

// trouble is one thing that breaks, or is repaired.
func (w *world) trouble() {
	m := w.current(simNodes[w.rng.IntN(3)]) // two of the five stay well
	switch w.rng.IntN(19) {
	case 18:
		if !m.on && !m.gone {
			m.resume()
			w.count["resumed"]++
			w.say("%s is resumed from a snapshot of boot %d, and writes to %v", m, m.boot, m.runs)
		}
	case 0, 1:
		if m.on {
			m.powerOff()
			w.say("%s loses its power", m)
			if w.chance(40) {
				m.returns = time.Now().Add(time.Duration(w.rng.IntN(12000)) * time.Millisecond)
			}
		}
	case 2:
		m.frozen = m.on
		w.say("%s hangs", m)
	case 3:
		m.frozen = false
		w.say("%s does not hang", m)
	case 4, 5:
		m.cut = true
		w.say("%s is cut off", m)
	case 6:
		m.cut = false
		w.say("%s has network", m)
	case 7:
		if !m.on {
			w.boot(m)
		}
	case 8:
		if b := w.switches[m.name]; b != nil {
			if second := w.switches[m.name+secondLevel]; second != nil && w.chance(30) {
				b = second
			}
			b.mode, b.delay = switchModes[w.rng.IntN(len(switchModes))], time.Duration(1000+w.rng.IntN(8000))*time.Millisecond
			w.say("the switch %s is %s", b.address, b.mode)
		}
	case 9:
		w.swap()
	case 10:
		w.stall()
	case 11:
		w.kill()
	case 12:
		if w.chance(50) {
			w.backup()
		} else {
			w.restore()
		}
	case 13:
		w.noOutage = time.Now().Add(time.Duration(w.rng.IntN(8000)) * time.Millisecond)
		w.say("the API server is gone until %.2f", w.noOutage.Sub(w.begun).Seconds())
	case 14, 15:
		w.people(m)
	default:
		w.plane.forceDelete()
	}
}

// storageTrouble cuts off the machine that has v1, and no other one, and has a person delete the pods of nodes that are not Ready.
func (w *world) storageTrouble() {
	if pods := w.plane.podsOf("v1"); len(pods) > 0 && w.chance(2) {
		w.say("%s, which has v1, is cut off, and no other machine", pods[0].Spec.NodeName)
		for _, m := range w.machines {
			m.cut = m.name == pods[0].Spec.NodeName
		}
	}
	if w.chance(10) {
		w.plane.forceDelete()
	}
	w.hostileTrouble()
}

// swap exchanges the cables of two switches.
func (w *world) swap() {
	a, b := w.switches[simNodes[w.rng.IntN(3)]], w.switches[simNodes[w.rng.IntN(3)]]
	if a == nil || b == nil || a == b || len(a.queue)+len(b.queue) > 0 {
		return
	}
	a.wired, b.wired = b.wired, a.wired
	a.swapped, b.swapped = time.Now(), time.Now()
	w.say("the switches %s and %s are swapped", a.address, b.address)
}

func (w *world) stall() {
	p := w.processes[w.rng.IntN(len(w.processes))]
	p.stalled = time.Now().Add(time.Duration(w.rng.IntN(10000)) * time.Millisecond)
	w.say("%s is not scheduled until %.2f", p.name, p.stalled.Sub(w.begun).Seconds())
}

// kill ends a process, and starts another one in its place.
func (w *world) kill() {
	i := w.rng.IntN(len(w.processes))
	p := w.processes[i]
	w.disturbed = time.Now()
	w.processes = slices.Delete(w.processes, i, i+1)
	w.say("%s is killed", p.name)
	w.end(p)
	w.startProcess(p.detector.Roles)
}

// end cuts a process off: some of its requests are still in flight, and its agents end with it.
func (w *world) end(p *process) {
	p.cancel()
	w.net.mu.Lock()
	p.dead = true
	slices.SortStableFunc(w.net.waiting, inOrder)
	for _, c := range w.net.waiting {
		if c.by != p {
			continue
		}
		if !c.toSwitch && !w.calm && w.chance(50) {
			w.net.late = append(w.net.late, c)
		}
		c.reply <- answered{err: errLost}
	}
	w.net.waiting = slices.DeleteFunc(w.net.waiting, func(c *call) bool { return c.by == p })
	w.net.mu.Unlock()
	for _, deliver := range w.net.replies { // an answer that is stored is waited for even then
		deliver()
	}
	w.net.replies = nil
	p.ended.Wait()
}

// people are those with kubectl.
func (w *world) people(m *hardware) {
	node, f := w.node(m.name), w.anyFence(m.name)
	ctx := context.Background()
	switch w.rng.IntN(9) {
	case 8:
		w.ask(m)
	case 0:
		if node != nil {
			w.say("a person deletes node %s", m.name)
			must2(w.t, w.api.Delete(ctx, node))
			w.changed("Node")
		}
	case 1: // another machine in the place of one that is off, or cut off
		if !m.on || m.cut {
			w.replace(m)
		}
	case 2, 3:
		if f == nil || finished(f) { // one that is over takes nothing
			return
		}
		if of := w.byUUID(f.Spec.MachineID); !of.on { // who looked knows
			w.say("a person says that %s is off", f.Spec.MachineID)
			w.state(of, f)
		}
	case 4:
		if f != nil && f.DeletionTimestamp == nil {
			w.say("a person deletes the fence %s", f.Name)
			must2(w.t, w.api.Delete(ctx, f))
			w.changed("NodeFence")
		}
	case 5:
		if node != nil && node.Spec.Taints == nil {
			w.say("a person sets %s out of service", m.name)
			if !m.on {
				change(w, node, func(n *corev1.Node) {
					n.Spec.Taints = []corev1.Taint{{Key: kube.OutOfServiceTaint, Value: "by-hand", Effect: corev1.TaintEffectNoExecute}}
				})
			}
		}
	case 6:
		if node != nil {
			change(w, node, func(n *corev1.Node) {
				n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == kube.OutOfServiceTaint })
			})
			w.say("a person takes the taint out-of-service off %s", m.name)
		}
	case 7:
		if node != nil {
			change(w, node, func(n *corev1.Node) {
				if kube.FenceOptedOut(n) {
					delete(n.Annotations, kube.FenceOptOutAnnotation)
				} else {
					metav1.SetMetaDataAnnotation(&n.ObjectMeta, kube.FenceOptOutAnnotation, "")
				}
			})
			w.optedOut[m.name] = time.Now()
			w.say("a person changes whether %s is opted out", m.name)
		}
	}
}

// state adds a statement about a machine that is off, and stays off while it counts.
func (w *world) state(m *hardware, f *fencingv1.NodeFence) {
	if m.uuid != f.Spec.MachineID || !m.returns.IsZero() {
		return
	}
	m.returns = time.Time{}
	f.Spec.Statement = &fencingv1.Statement{By: "jo", Reason: "looked", MachineID: m.uuid, Expires: metav1.NewTime(time.Now().Add(time.Hour))}
	must2(w.t, w.api.Update(context.Background(), f))
	w.changed("NodeFence")
}

// heal ends all trouble: what hangs is thawed, what is cut off has network, switches work and are wired to their own machines.
func (w *world) heal() {
	w.calm, w.noOutage, w.disturbed = true, time.Time{}, time.Now()
	w.say("all trouble ends")
	w.darken(w.current("n1"))
	for _, name := range simNodes {
		m := w.current(name)
		m.frozen, m.cut, m.down = false, false, false
		if m.on && (m.lied[m.boot] || !m.resumed.IsZero()) { // Contradicted: it is for a person to decide
			w.say("a person restarts %s", m)
			m.powerOff()
		}
		for _, address := range []string{name, name + secondLevel} {
			if b := w.switches[address]; b != nil {
				b.mode, b.wired = "ok", m
			}
		}
		if !m.on && m.returns.IsZero() && !m.dark {
			m.returns = time.Now().Add(time.Duration(10+w.rng.IntN(30)) * time.Second)
		}
		if node := w.node(name); node != nil {
			change(w, node, func(n *corev1.Node) {
				n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return !strings.HasPrefix(t.Value, kube.FenceTaintPrefix) })
			})
		}
	}
	for _, m := range w.machines {
		if m.gone {
			m.powerOff()
			m.returns = time.Time{}
		}
	}
	for _, p := range w.processes {
		p.stalled = time.Time{}
	}
	for _, va := range storedAs[*storagev1.VolumeAttachment](w, "VolumeAttachment") {
		if w.byUUID(va.Labels["machine"]).gone { // whose name another has: no evidence about it is left in the cluster
			w.say("a person deletes %s, whose machine is gone", va.Name)
			must2(w.t, w.api.Delete(context.Background(), va))
			w.changed("VolumeAttachment")
		}
	}
}

// darken takes the power of a machine for good. Its volumes move, whatever its kubelet wrote before, and their tenant into the pods.
func (w *world) darken(m *hardware) {
	node := w.node(m.name)
	if node == nil || node.Status.NodeInfo.BootID != m.bootID() || len(w.open(m.name)) > 0 || m.lied[m.boot] || !m.resumed.IsZero() {
		return
	}
	w.say("%s loses its power for good", m)
	m.powerOff()
	m.returns, m.dark = time.Time{}, true
	w.count["dark"]++
	change(w, node, func(n *corev1.Node) { delete(n.Annotations, kube.FenceOptOutAnnotation) })
}

// speak has people say what they know about machines that are gone, and that no switch speaks for.
func (w *world) speak() {
	for _, name := range simNodes {
		for _, f := range w.open(name) {
			if m := w.byUUID(f.Spec.MachineID); f.Spec.Statement == nil && (m.gone || m.dark) {
				w.say("a person says that %s is off", m)
				w.state(m, f.DeepCopy())
			}
		}
	}
}

// anyFence is one of the fences of a node, nil for none.
func (w *world) anyFence(node string) *fencingv1.NodeFence {
	all := w.fencesOf(node)
	if len(all) == 0 {
		return nil
	}
	return all[w.rng.IntN(len(all))].DeepCopy()
}

const simSteps, calmSteps = 500, 1200

func simulate(t *testing.T, seed uint64) (w *world) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))    // a seed is the same run each time
	defer debug.SetGCPercent(debug.SetGCPercent(1000)) // and needs little memory
	uuid.SetRand(rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)}))
	defer uuid.SetRand(nil)
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(t, seed)
		w.startProcesses()
		for i := 0; i < simSteps && w.broken == ""; i++ {
			w.step()
		}
		if w.broken == "" && !w.hostile.on() {
			w.heal()
		}
		missing := "the end"
		for i := 0; i < calmSteps && w.broken == "" && missing != "" && !w.hostile.on(); i++ {
			w.step()
			if i%20 == 19 {
				w.speak()
				missing = w.settled()
			}
		}
		if w.broken == "" && missing != "" && !w.hostile.on() {
			w.breaks("liveness", "%s", missing)
		}
		w.calm = true
		for _, p := range w.processes {
			w.end(p)
		}
		time.Sleep(time.Hour)
	})
	return w
}

func TestRecoverySimulation(t *testing.T) {
	first, count := uint64(1), uint64(1000)
	if testing.Short() {
		count = 60
	}
	number := func(name string) (uint64, bool) {
		n, err := strconv.ParseUint(os.Getenv(name), 10, 64)
		return n, err == nil
	}
	if n, ok := number("BELAY_SEEDS"); ok {
		count = n
	}
	if n, ok := number("BELAY_SEED"); ok {
		first = n
		if os.Getenv("BELAY_SEEDS") == "" {
			count = 1
		}
	}
	begun, happened, failures := time.Now(), map[string]int{}, map[string][]uint64{}
	for seed := first; seed < first+count; seed++ {
		w := simulate(t, seed)
		for what, n := range w.count {
			happened[what] += n
		}
		if w.broken != "" && os.Getenv("BELAY_COLLECT") != "" {
			kind, _, _ := strings.Cut(w.broken, ":")
			failures[kind] = append(failures[kind], seed)
			continue
		}
		if w.broken != "" {
			t.Fatalf("seed %d: %s\nreplay with BELAY_SEED=%d\n%s", seed, w.broken, seed, strings.Join(w.log[max(0, len(w.log)-cmp.Or(lastLines(count), 80)):], "\n"))
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(failures)) {
		t.Errorf("%4d seeds: %s: %v", len(failures[kind]), kind, failures[kind][:min(len(failures[kind]), 12)])
	}
	t.Logf("seeds %d to %d in %v: %v", first, first+count-1, time.Since(begun).Round(time.Millisecond), happened)
}

func lastLines(count uint64) int {
	if count == 1 {
		return 10000
	}
	return 80
}
