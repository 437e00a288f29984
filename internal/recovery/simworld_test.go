package recovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// storageSeeds: one seed in so many is about storage that cuts at unpublish. Without it few of them come to use that.
const storageSeeds = 6

// nameSeeds: one seed in so many is about machines that take the name of one whose fence waits for evidence.
const nameSeeds = 5

var simNodes = []string{"n1", "n2", "n3", "n4", "n5"}

// world is one seed.
type world struct {
	t    fataler
	rng  *rand.Rand
	api  client.Client
	uids int
	// leases change too often for the fake API server.
	leases map[string]*coordinationv1.Lease
	// versions count the changes of each kind.
	versions map[string]int
	listed   map[string]listing

	net       network
	processes []*process
	started   int
	machines  []*hardware
	switches  map[string]*bmc // by address, which is the name of the node that it was bought for
	plane     *plane
	backups   []backup
	restores  int
	forgotten []span // what the restores of etcd forgot

	// What the seed has drawn once for all.
	losses, troubles int // percent
	apart            bool
	replicas         int
	byName           bool      // machines are replaced under their names while their fences wait
	byStorage        bool      // the switches are dead, and people delete pods by force: volumes move on evidence of class B
	noOutage         time.Time // until when the API server does not answer

	calm   bool
	broken string
	// hostile has the faults of TestHostileSimulation.
	hostile faults
	// nhc is NodeHealthCheck, where it is installed. Where ports is set, the kubelets' ports can be asked, and profile bounds the chance of a stopped one.
	nhc     *simNHC
	ports   bool
	profile fencing.Profile
	// disturbed is when a part of recovery was last kept from its work.
	disturbed time.Time
	log       []string
	begun     time.Time
	// asked is what the oracle knows of the questions of each process, by nonce.
	asked map[string]*question
	// optedOut is when a person, or a restore, last changed whether a node is opted out.
	optedOut map[string]time.Time
	count    map[string]int
	// epochs has the highest epoch of each machine of a node, and numbered the fence that had each epoch of a node.
	epochs   map[string]int64
	numbered map[string]types.UID
}

type fataler interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// hardware is a machine with a kubelet.
type hardware struct {
	name, uuid string
	on, frozen bool
	cut        bool // it has no network, but for its power switch
	down       bool // its kubelet is stopped, and its containers are not
	gone       bool // another machine has its name
	dark       bool // it has no power any more
	boot       int
	renewed    time.Time
	// heardFirst is when the renewals began that have not been interrupted since.
	heardFirst time.Time
	// runs has the volumes that the pods of this boot write to, by the UIDs of the pods.
	runs map[string]string
	// refused has the pods of runs whose storage refuses what they write, and since when: their volumes were unpublished.
	refused map[string]time.Time
	// downSince is when its kubelet was last stopped, and away when it was last seen to be cut off, or to hang (the oracle of simNHC).
	downSince, away time.Time
	// returns is when the power comes back by itself; zero for never.
	returns time.Time
	// lied has the boots that a switch called Off while they ran.
	lied map[int]bool
	// stopped has the volumes that the boot wrote to when it lost its power, and resumed when it runs again from a snapshot of its memory.
	stopped map[string]string
	resumed time.Time
	// flaps is set while the machine has network for one renewal, and hung while its unmounts hang for good (TestHostileSimulation).
	flaps time.Time
	hung  bool
}

func (m *hardware) bootID() string { return fmt.Sprintf("%s-boot-%d", m.uuid, m.boot) }

func (m *hardware) String() string { return m.uuid }

// powerOff takes the machine's power.
func (m *hardware) powerOff() {
	if m.on {
		m.stopped = maps.Clone(m.runs)
	}
	m.on, m.frozen, m.down = false, false, false
	clear(m.runs)
	clear(m.refused)
}

// resume continues the boot that has ended from a snapshot of its memory, as a hypervisor can. The switch was right when it said Off.
func (m *hardware) resume() {
	m.on, m.returns, m.resumed = true, time.Time{}, time.Now()
	maps.Copy(m.runs, m.stopped)
}

// cameBack reports whether the boot was resumed, at most so long ago. What was proven before that is not true any more, and recovery cannot
// know it before the kubelet renews its lease (docs/not-guaranteed.md).
func (m *hardware) cameBack(within time.Duration) bool {
	return !m.resumed.IsZero() && time.Since(m.resumed) <= within
}

// bmc is the power switch at an address.
type bmc struct {
	address string
	wired   *hardware
	// swapped is when it was last wired to another machine.
	swapped time.Time
	mode    string
	// delay is what an answer takes while it is slow.
	delay time.Duration
	// queue has the times at which commands are carried out that were answered before.
	queue []time.Time
}

// The ways in which a switch behaves.
var switchModes = []string{"ok", "ok", "ok", "dead", "hangs", "ignores", "lies", "late", "always on", "slow", "slow", "silent"}

// silentFor is how long ipmitool takes to report that a BMC does not answer.
const silentFor = 20900 * time.Millisecond

// node is the name of the node that the switch was bought for.
func (b *bmc) node() string {
	name, _, _ := strings.Cut(b.address, "/")
	return name
}

func nowSeconds() metav1.Time { return metav1.NewTime(time.Now().Truncate(time.Second)) }

func newWorld(t fataler, seed uint64) *world {
	w := &world{
		t: t, rng: rand.New(rand.NewPCG(seed, 7)), api: newAPI(guardOf(requestPolicy)...), leases: map[string]*coordinationv1.Lease{}, versions: map[string]int{}, listed: map[string]listing{},
		hostile: hostileFaults, switches: map[string]*bmc{}, asked: map[string]*question{}, optedOut: map[string]time.Time{}, count: map[string]int{}, epochs: map[string]int64{}, numbered: map[string]types.UID{}, begun: time.Now(),
	}
	w.losses, w.troubles = []int{0, 3, 10, 25}[w.rng.IntN(4)], []int{1, 2, 4, 8}[w.rng.IntN(4)]
	w.apart, w.replicas = w.chance(40), 1+w.rng.IntN(2)
	w.plane, w.profile = newPlane(w), quick
	if !w.hostile.on() {
		w.opensDoors(seed)
	}
	for _, name := range simNodes {
		m := &hardware{name: name, uuid: "m-" + name, on: true, boot: 1, runs: map[string]string{}, refused: map[string]time.Time{}, lied: map[int]bool{}}
		w.machines = append(w.machines, m)
		w.kubeletRegisters(m)
		if !w.chance(15) {
			w.addSource(m)
		}
	}
	if seed%storageSeeds == 0 {
		w.byStorage, w.troubles = true, 8
		w.plane.detaches, w.plane.boots, w.plane.lies = withProofs, true, false
		for _, b := range w.switches {
			b.mode = "dead"
		}
	}
	if seed%nameSeeds == 1 {
		w.byName, w.troubles, w.plane.boots = true, 4, true
	}
	return w
}

func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

func (w *world) say(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%7.2f ", time.Since(w.begun).Seconds())+fmt.Sprintf(format, args...))
}

func (w *world) changed(kind string) { w.versions[kind]++ }

func (w *world) outage() bool { return time.Now().Before(w.noOutage) }

// current is the machine that has a name now.
func (w *world) current(name string) *hardware {
	i := slices.IndexFunc(w.machines, func(m *hardware) bool { return m.name == name && !m.gone })
	return w.machines[i]
}

func (w *world) byUUID(uuid string) *hardware {
	i := slices.IndexFunc(w.machines, func(m *hardware) bool { return m.uuid == uuid })
	return w.machines[i]
}

func (w *world) addSource(m *hardware) {
	w.switches[m.name] = &bmc{address: m.name, wired: m, mode: "ok"}
	addresses := []string{m.name}
	if w.chance(50) { // a second level
		addresses = append(addresses, m.name+secondLevel)
		w.switches[m.name+secondLevel] = &bmc{address: m.name + secondLevel, wired: m, mode: "ok"}
	}
	s := sourceOf(m.name, addresses...)
	s.Annotations = nil
	_, err := w.create(nil, s)
	must2(w.t, err)
}

func must2(t fataler, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// change lets a part of the world other than recovery change an object.
func change[T client.Object](w *world, object T, with func(T)) {
	ctx := context.Background()
	object = object.DeepCopyObject().(T)
	status := object.DeepCopyObject().(T)
	with(object)
	must2(w.t, client.IgnoreNotFound(w.api.Update(ctx, object)))
	with(status)
	status.SetResourceVersion(object.GetResourceVersion())
	if _, isNode := any(object).(*corev1.Node); isNode {
		must2(w.t, client.IgnoreNotFound(w.api.Status().Update(ctx, status)))
	}
	w.changed(kindOf(object))
}

func (w *world) node(name string) *corev1.Node { return storedCopy[*corev1.Node](w, "Node", name) }

func (w *world) fence(name string) *fencingv1.NodeFence {
	return storedCopy[*fencingv1.NodeFence](w, "NodeFence", name)
}

// Kubelets.

func setReady(node *corev1.Node, ready corev1.ConditionStatus) {
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
}

func (w *world) kubeletRegisters(m *hardware) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name}}
	_, err := w.create(nil, node)
	must2(w.t, err)
	change(w, node, func(n *corev1.Node) { w.introduce(m, n) })
}

func (w *world) introduce(m *hardware, n *corev1.Node) {
	n.Status.NodeInfo = corev1.NodeSystemInfo{BootID: m.bootID(), SystemUUID: m.uuid}
	setReady(n, corev1.ConditionTrue)
	switch m.name { // what a kubelet may write about itself
	case "n1":
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, kube.FenceEpochAnnotation, "9223372036854775807")
	case "n2":
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, kube.FenceEpochAnnotation, strconv.FormatInt(time.Now().Add(fencing.EpochAhead).Unix(), 10))
	}
}

const simRenew = time.Second

// renews: the lease of the machine's node.
func (w *world) renews(m *hardware) {
	if time.Since(m.renewed) < simRenew {
		return
	}
	if time.Since(m.renewed) > 2*simRenew {
		m.heardFirst = time.Now()
	}
	m.renewed = time.Now()
	old := w.leases[m.name]
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: m.name, UID: "lease-1"}}
	if old != nil {
		n, _ := strconv.Atoi(old.ResourceVersion)
		l.ResourceVersion = strconv.Itoa(n + 1)
	}
	at := metav1.NowMicro()
	l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &m.name, LeaseDurationSeconds: new(int32(4)), RenewTime: &at}
	w.leases[m.name] = l
	w.changed("Lease")
}

// kubelet is one round of a machine's kubelet.
func (w *world) kubelet(m *hardware) {
	if !m.on && !m.returns.IsZero() && !time.Now().Before(m.returns) {
		w.boot(m)
	}
	if !m.on || m.frozen || m.cut || m.down || m.gone || w.outage() {
		return
	}
	node := w.node(m.name)
	if node == nil {
		if w.hostile.neverRegisters {
			return
		}
		if w.calm || w.chance(5) {
			w.say("%s registers", m)
			w.kubeletRegisters(m)
		}
		return
	}
	w.renews(m)
	if !m.flaps.IsZero() { // one renewal, and silence again
		m.cut, m.flaps = true, time.Time{}
		return
	}
	steps := []func(){
		func() {
			if node.Status.NodeInfo.BootID != m.bootID() || node.Status.NodeInfo.SystemUUID != m.uuid || ready(node) != fencing.Yes {
				w.say("%s reports its boot %d", m, m.boot)
				change(w, w.node(m.name), func(n *corev1.Node) { w.introduce(m, n) })
			}
		},
		func() { w.plane.kubeletPods(m, node) },
	}
	if w.chance(50) { // a kubelet that has just started may run pods before its status is sent
		slices.Reverse(steps)
	}
	for _, s := range steps {
		if w.calm || w.chance(80) {
			s()
		}
	}
}

func (w *world) boot(m *hardware) {
	m.boot++
	m.on, m.frozen, m.returns, m.resumed = true, false, time.Time{}, time.Time{}
	clear(m.runs)
	clear(m.refused)
	w.say("%s has power and boots: %d", m, m.boot)
}

// lifecycle is the node lifecycle controller.
func (w *world) lifecycle() {
	if w.outage() {
		return
	}
	for _, node := range storedAs[*corev1.Node](w, "Node") {
		l := w.leases[node.Name]
		if l != nil && time.Since(l.Spec.RenewTime.Time) > 3*simRenew && ready(node) == fencing.Yes {
			change(w, node, func(n *corev1.Node) { setReady(n, corev1.ConditionUnknown) })
			w.say("%s is not ready", node.Name)
		}
	}
}

// Power switches.

var errSwitch = errors.New("no answer")

// secondLevel ends the address of the switch of the second level of a node.
const secondLevel = "/pdu"

// simSwitch is a process's way to a switch, and when it was taken.
type simSwitch struct {
	p     *process
	b     *bmc
	begun time.Time
}

func (s simSwitch) ask(ctx context.Context, what string, do func() (any, error)) (any, error) {
	switch s.b.mode {
	case "slow":
		if err := takes(ctx, s.b.delay); err != nil {
			return nil, err
		}
	case "silent":
		if err := takes(ctx, silentFor); err != nil {
			return nil, err
		}
		return nil, errSwitch
	}
	return s.p.send(ctx, what+" "+s.b.address, true, func() (any, error) {
		switch s.b.mode {
		case "dead", "hangs": // one that hangs ends with a timeout of the agent
			return nil, errSwitch
		}
		return do()
	})
}

func (s simSwitch) Status(ctx context.Context) (fencing.Power, string, error) {
	w := s.p.world
	v, err := s.ask(ctx, "STATUS", func() (any, error) {
		m, said := s.b.wired, fencing.PowerOff
		switch {
		case s.b.mode == "always on", s.b.mode != "lies" && m.on:
			said = fencing.PowerOn
		case s.b.mode == "lies" && m.on:
			m.lied[m.boot] = true
			w.count["lies"]++
		}
		if said == fencing.PowerOff {
			w.judgeOffAnswer(s)
		}
		return said, nil
	})
	if err != nil {
		return fencing.PowerUnknown, "", err
	}
	return v.(fencing.Power), "Status: " + powerName(v.(fencing.Power)), nil
}

func (s simSwitch) Off(ctx context.Context) error {
	w := s.p.world
	label, _ := ctx.Value(labelKey{}).(string)
	w.judgeOffSent(s.p, s.b, label)
	_, err := s.ask(ctx, "OFF", func() (any, error) {
		w.say("%s commands the switch %s of %s, which is %s", s.p.name, s.b.address, s.b.wired, s.b.mode)
		switch s.b.mode {
		case "ignores", "always on":
		case "late":
			s.b.queue = append(s.b.queue, time.Now().Add(time.Duration(1+w.rng.IntN(14))*time.Second))
		default:
			w.switchesOff(s.b)
		}
		return nil, nil
	})
	return err
}

func (s simSwitch) Identity(ctx context.Context) (string, error) {
	v, err := s.ask(ctx, "IDENTITY", func() (any, error) { return s.b.wired.uuid, nil })
	if err != nil {
		return "", err
	}
	return v.(string), nil
}

func (w *world) switchesOff(b *bmc) {
	m := b.wired
	w.judgeOff(b)
	w.say("the switch %s turns %s off, which was on: %t", b.address, m, m.on)
	m.powerOff()
	if w.chance(25) { // its policy is to come back
		m.returns = time.Now().Add(time.Duration(w.rng.IntN(6000)) * time.Millisecond)
	}
}

// carryOutQueues lets commands take effect that were answered before.
func (w *world) carryOutQueues() {
	for _, address := range slices.Sorted(maps.Keys(w.switches)) {
		b := w.switches[address]
		for len(b.queue) > 0 && !time.Now().Before(b.queue[0]) {
			b.queue = b.queue[1:]
			w.switchesOff(b)
		}
	}
}

// backup is a snapshot of what etcd holds about nodes and fences. The pods and VolumeAttachments stay as they are: an older list of
// pods starts two writers without any help of recovery.
type backup struct {
	at      time.Time
	objects []client.Object
}

// span is the time between two moments.
type span struct{ from, to time.Time }

// forgot reports whether a backup was restored since a moment that was made before it.
func (w *world) forgot(at time.Time) bool {
	return slices.ContainsFunc(w.forgotten, func(s span) bool { return !at.Before(s.from) && !at.After(s.to) })
}

func (w *world) backup() {
	b := backup{at: time.Now()}
	for _, kind := range []string{"Node", "NodeFence", "FenceSource", "BelayRemediation"} {
		b.objects = append(b.objects, w.stored(kind)...)
	}
	w.backups = append(w.backups, b)
}

// restore puts a backup back, with versions that were never used, as etcd's documentation asks for.
func (w *world) restore() {
	if len(w.backups) == 0 {
		return
	}
	w.restores, w.disturbed = w.restores+1, time.Now()
	for _, name := range simNodes {
		w.optedOut[name] = time.Now()
	}
	b := w.backups[w.rng.IntN(len(w.backups))]
	w.forgotten = append(w.forgotten, span{b.at, time.Now()})
	all := guardOf(requestPolicy) // what was never changed is in each backup
	for _, kind := range []string{"CSIDriver", "Pod", "VolumeAttachment"} {
		all = append(all, w.stored(kind)...)
	}
	for _, o := range b.objects {
		all = append(all, o.DeepCopyObject().(client.Object))
	}
	for _, o := range all {
		n, _ := strconv.Atoi(o.GetResourceVersion())
		o.SetResourceVersion(strconv.Itoa(n%1_000_000 + w.restores*1_000_000))
	}
	w.api = newAPI(all...)
	for _, kind := range w.watched() {
		w.changed(kind)
	}
	w.say("etcd is restored to %.2f", b.at.Sub(w.begun).Seconds())
}
