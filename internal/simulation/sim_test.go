package simulation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/testing/excuse"
)

var machineNames = []string{"n0", "n1", "n2"}

// steps is how many things happen in one seed before all trouble ends.
const steps = 550

// sim is one seed.
type sim struct {
	rng *rand.Rand
	// others draws what other clients do to the storage, separate from rng.
	others *rand.Rand
	// forms draws when a driver gives its nodes IDs of another form, separate from both.
	forms *rand.Rand
	// tooEarly draws which drivers answer OK to an unpublish too early, and what becomes of a publish then.
	tooEarly *rand.Rand
	// lists draws when a kubelet sends the list of what it has in use.
	lists *rand.Rand
	// tools draws what a restore tool does, separate from them.
	tools *rand.Rand
	// besides draws when an attachment is made beside another one of a node, or ends; nil in seeds without such.
	besides *rand.Rand
	// boxes draws which machines are alike, separate from both.
	boxes *rand.Rand
	// alike: machines show one system UUID.
	alike bool
	// swapIn is how many steps are left until a machine is swapped for another that is like it; never if it is not positive.
	swapIn int
	// calm: nothing goes wrong any more.
	calm bool
	// What the seed has drawn once for all. Restless: kubelets are late with their status.
	restless bool
	losses   int // percent of requests that are lost, or whose answer is
	// Percent of the chances to crash, and to make trouble, that are taken.
	crashes, troubles int
	meddler           bool
	// rival: another client attaches exclusive volumes to several nodes at once, as another controller may. The attacher has to
	// keep them apart.
	rival  bool
	policy attachment.Policy
	// skewed: the clocks of the processes are apart, and are set now and then.
	skewed bool
	// loses: Nodes of machines that use volumes are deleted, and made again.
	loses bool
	// hangs: of 1,000 steps, those in which a driver begins to hang.
	hangs int

	api       *server
	net       *network
	storage   *storage
	machines  map[string]*machine // by the name of their Node
	cutOffs   []*machine          // whose names others have, and that still run
	left      map[*machine]int    // the versions at which those lost their names
	takenOver map[*machine]bool
	leases    map[string]bool // that exist, by the name of their Node
	identity  identity
	disks     []*disk
	slots     []*slot
	byHand    map[string]*disk   // of attachments under names that another client chose
	restored  map[*disk]*machine // that has it, and a restored backup does not know
	remade    map[*disk]bool     // whose PersistentVolume was deleted by force
	// strips: of the attachments that are made some do not say what they are of, nor which
	// machine they were made for: those of another controller, or after a webhook that takes
	// annotations off. Which ones is drawn beforehand, so that the order in which the processes
	// run does not matter.
	strips    bool
	anonymous [8]bool
	remakes   bool              // PersistentVolumes are recreated under their names
	missing   [][]client.Object // that the administrator has not made yet
	begun     bool
	podsMade  int

	started    int // processes
	controller *controller
	drivers    []*driver // one or two
	old        []*controller
	dead       []func() // waits for what is left of a process

	requests *requests
	makers   map[types.UID]*actor // of attachments

	excused map[excuse.Name]int
	broken  string
	log     []string
}

func newSim(seed uint64) *sim {
	s := &sim{
		rng: rand.New(rand.NewPCG(seed, 1)), others: rand.New(rand.NewPCG(seed, 2)), boxes: rand.New(rand.NewPCG(seed, 3)),
		forms: rand.New(rand.NewPCG(seed, 5)), tooEarly: rand.New(rand.NewPCG(seed, 13)), lists: rand.New(rand.NewPCG(seed, 17)), tools: rand.New(rand.NewPCG(seed, 19)), api: newServer(), net: &network{}, storage: newStorage(),
		machines: map[string]*machine{}, left: map[*machine]int{}, takenOver: map[*machine]bool{}, leases: map[string]bool{},
		byHand: map[string]*disk{}, remade: map[*disk]bool{}, restored: map[*disk]*machine{},
	}
	s.api.judge, s.api.changed, s.requests = s.judge, s.observe, newRequests()
	s.net.version = s.api.now
	s.makers, s.excused = map[types.UID]*actor{}, map[excuse.Name]int{}
	for _, name := range []string{driverName, otherDriver}[:1+s.rng.IntN(2)] {
		honesty := []honesty{honest, honest, honest, forgetful, sparse, shouting}[s.others.IntN(6)]
		if honesty == honest && seed%5 == 2 {
			honesty = untidy
		}
		s.drivers = append(s.drivers, &driver{name: name, honesty: honesty, upgrades: s.forms.IntN(3) == 0, okTooEarly: s.drawEarly()})
	}
	if seed%4 == 1 {
		s.besides = rand.New(rand.NewPCG(seed, 23))
	}
	s.hangs = []int{0, 2, 5}[s.others.IntN(3)]
	s.losses = []int{0, 5, 12, 30}[s.rng.IntN(4)]
	s.crashes, s.troubles = []int{0, 3, 10, 40}[s.rng.IntN(4)], []int{5, 20, 60}[s.rng.IntN(3)]
	s.restless, s.alike = seed%4 == 3, seed%3 == 0
	s.meddler, s.rival, s.skewed = s.chance(15), s.chance(30), s.chance(40)
	s.loses = s.chance(40)
	s.policy = attachment.Policy{OutOfService: !s.chance(15)}
	if s.skewed || s.chance(50) {
		s.policy.UnmountTimeout = 6 * time.Minute
	}
	if s.chance(30) {
		s.policy.DeletedNode = attachment.DeletedNodeDetach
	}
	s.drawIdentity()
	s.remakes = s.chance(50)
	s.strips = s.chance(20) || s.remakes && s.chance(50)
	for i := range s.anonymous {
		s.anonymous[i] = s.chance(50)
	}
	s.drawDisks()
	s.missing = s.objects()
	for _, name := range machineNames {
		if m := s.newMachine(name); s.chance(70) {
			s.register(m, s.newNode(m))
		}
	}
	for s.chance(50) {
		s.administer()
	}
	return s
}

func (s *sim) say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	s.log = append(s.log, fmt.Sprintf("%4d %s", s.api.version-firstVersion, line))
	interrupt()
}

func (s *sim) chance(percent int) bool { return s.rng.IntN(100) < percent }

func (s *sim) pickMachine() *machine { return s.machines[machineNames[s.rng.IntN(len(machineNames))]] }

func (s *sim) pickDisk() *disk { return s.disks[s.rng.IntN(len(s.disks))] }

func (s *sim) disk(handle string) *disk {
	i := slices.IndexFunc(s.disks, func(d *disk) bool { return d.handle == handle })
	return s.disks[i]
}

// step lets one thing happen, and what follows from it without a choice. An actor without work skips its turn.
func (s *sim) step() {
	if s.swapIn--; s.swapIn == 0 {
		s.swap()
	}
	for tries := 0; tries < 20 && !s.try(s.rng.IntN(100)); tries++ {
		continue
	}
	s.beside()
	s.hangOrAnswer()
	s.takeEffect(time.Now())
	s.settleDown()
}

func (s *sim) try(n int) (did bool) {
	switch {
	case s.createUnderway() && s.chance(10):
		s.user()
	case n < 14:
		return s.controller.work()
	case n < 42:
		return s.serveOne()
	case n < 50:
		return s.controller.catchUp(false)
	case n < 56:
		return s.pickDriver().attacher.catchUp(false)
	case n < 62:
		return s.landOne()
	case n < 84:
		for range 1 + s.rng.IntN(3) {
			did = s.kubelet(s.pickMachine(), s.pickDisk().handle) || did
		}
		return did
	case n < 87:
		s.user()
	case n < 90:
		if !s.chance(s.troubles) {
			return false
		}
		s.trouble(s.pickMachine())
	case n < 92:
		s.pass()
	default:
		return s.interrupt(n)
	}
	return true
}

// interrupt is what comes out of turn.
func (s *sim) interrupt(n int) (did bool) {
	switch {
	case n < 95:
		if len(s.net.late) == 0 || s.createUnderway() && s.chance(70) {
			return false
		}
		s.arrive(s.rng.IntN(len(s.net.late)))
	case n < 97:
		s.begun = true
		return s.administer()
	case !s.chance(s.crashes):
		return false
	case n < 98:
		d := s.pickDriver()
		s.kill(d.attacher)
		s.startAttacher(d)
	default:
		s.changeLeader()
	}
	return true
}

func (s *sim) landOne() (did bool) {
	running := s.storage.running
	if len(running) == 0 {
		return false
	}
	c := running[s.rng.IntN(len(running))]
	if s.storage.disorderly && c.gone.Load() && !s.chance(10) {
		return false // late, if at all
	}
	return s.land(c)
}

// settleDown lets every goroutine run until it waits for the scheduler.
func (s *sim) settleDown() {
	synctest.Wait()
	s.receive()
	s.giveUp()
	synctest.Wait()
	s.controller.sleepers()
	for _, d := range s.drivers {
		s.checkAttacher(d.attacher)
	}
}

// serveOne ends one of the requests that wait.
func (s *sim) serveOne() (did bool) {
	waiting := s.net.waiting()
	if len(waiting) > 0 {
		s.serve(waiting[s.rng.IntN(len(waiting))])
		s.settleDown()
	}
	return len(waiting) > 0
}

// pass lets time pass: mostly seconds, in which requests in flight stay there, now and then minutes, in which they make progress.
func (s *sim) pass() {
	if s.others.IntN(5) == 0 {
		s.steal()
	}
	if s.restless {
		s.silence()
	}
	s.upgrade()
	s.noteNowhere()
	d := time.Duration(1+s.rng.IntN(6)) * time.Second
	s.say("%s pass", d)
	s.sleep(d)
	s.controller.sleepers() // a look may have ended in that time
	s.controller.checkSleepers("time")
	if !s.chance(15) {
		return
	}
	s.passBusily(time.Duration(1+s.rng.IntN(8)) * time.Minute)
}

// passBusily lets time pass in which requests make progress.
func (s *sim) passBusily(d time.Duration) {
	s.say("%s pass", d)
	for ; d > 0; d -= tick {
		s.controller.catchUp(true)
		for _, d := range s.drivers {
			d.attacher.catchUp(true)
		}
		s.settleDown()
		for len(s.net.waiting()) > 0 {
			s.serveOne()
		}
		s.noteNowhere()
		s.sleep(tick)
	}
}

// changeLeader ends the leader, or pauses it until its lease has run out: then it
// writes no more, but what it has sent may still arrive.
func (s *sim) changeLeader() {
	before := s.controller
	if s.chance(50) {
		s.crash(before.actor)
		before.cancel()
		s.dead = append(s.dead, before.ended.Wait)
		s.say("%s crashes", before.name)
	} else {
		s.net.mu.Lock()
		before.deposed = true
		s.net.mu.Unlock()
		s.old = append(s.old, before)
		s.say("%s is paused and deposed", before.name)
	}
	if len(s.old) > 1 || len(s.old) > 0 && s.chance(50) { // the manager of an old one notices, and ends it
		old := s.old[0]
		s.old = s.old[1:]
		s.crash(old.actor)
		old.cancel()
		s.dead = append(s.dead, old.ended.Wait)
		s.say("%s ends", old.name)
	}
	s.controller = s.startController()
	s.settleDown()
}

// heal ends all trouble: what is late arrives, people leave, machines that are not well
// are started again.
func (s *sim) heal() {
	s.say("all trouble ends")
	s.calm = true
	for _, d := range s.drivers {
		s.hang(d, not)
	}
	s.registerDrivers()
	for len(s.missing) > 0 {
		s.administer()
	}
	for len(s.net.late) > 0 {
		s.arrive(0)
	}
	s.settleDown()
	s.collectPods()
	if s.remakes && s.chance(60) {
		s.remake(s.slots[s.rng.IntN(len(s.slots))])
	}
	s.completeSlots()
	s.freshPods()
	for _, va := range list[*storagev1.VolumeAttachment](s.api) {
		if strings.HasPrefix(va.Name, "by-hand") {
			_ = s.api.remove(nil, nil, attachments, va.Name, nil)
		}
	}
	for _, m := range s.cutOffs {
		s.powerOff(m)
	}
	for _, name := range machineNames {
		s.recover(s.machines[name])
	}
	for s.handOver() || s.chance(40) {
		s.changeLeader()
	}
	for _, old := range s.old {
		s.crash(old.actor)
		old.cancel()
		s.dead = append(s.dead, old.ended.Wait)
	}
	s.old = nil
}
