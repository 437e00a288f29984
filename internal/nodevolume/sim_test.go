package nodevolume

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"belay.dev/belay/internal/testing/excuse"
)

// The simulation: one node, one volume, two pods; a controller that withdraws and checks; a watch that lags; writes that are
// carried out late, twice or never and whose replies are lost; a driver that fails in every way, asks for republish, and may carry
// out abandoned calls later; and an agent that dies between any two steps, leaving records that may be unreadable. The machine
// reboots, the driver comes and goes, the CSIDriver changes between attach and no attach, which the agent learns later, and a
// VolumeAttachment is recreated while the volume is mounted, also during a driver call. Some pods have a final phase before their
// containers have ended. Of some pods a container still runs when the pod is gone, with its own mounts. In some worlds the driver
// does not stage. In some worlds the pods have SELinux labels, and the CSIDriver changes seLinuxMount. After each step S7 is
// checked against the store and the driver, that whatever is published has a record, and that nothing is mounted with two labels.

const simVolume = "v"

// plant is a fault put in on purpose: the simulation must find it.
type plant string

const (
	noPlant         plant = ""
	believeStale    plant = "an in-use list is believed while a write that changes it may be carried out"
	noStartGuard    plant = "a write that an earlier agent left in flight is forgotten at start"
	recordAfterCall plant = "the record is written after the driver was called"
	believeRefusal  plant = "a refusal is believed though an earlier call has had no answer"
	wishOnlyNews    plant = "an older wish to clear the volume is left standing because the list says already what is wanted"
	dropUncertain   plant = "an unstage without an answer counts as done"
	skipHandshake   plant = "the volume is staged without being listed in use"
	believeRenewal  plant = "a renewal that is refused counts as a publish that is refused"
	forgetRenewal   plant = "a publish that is to be renewed is not looked at again"
	renewLeaving    plant = "the publish of a pod that is being deleted is renewed"
	forgetInline    plant = "a torn record of an inline volume is taken for that of a persistent one"
	forgetLabels    plant = "what is mounted counts as mounted with the label that a pod wants"
	believeOldBoot  plant = "a record of an earlier boot is believed"
	believeOldVA    plant = "a stage that belongs to an earlier attachment is used"
	forgetUnread    plant = "a record that cannot be read counts as none"
	keepAttachment  plant = "an attachment that was read before the CSIDriver changed is used"
	keepRecorded    plant = "a write that an earlier agent left in flight cannot mean a volume that was staged without an attachment"
	driverStays     plant = "a driver that went counts as there"
	publishFreely   plant = "a driver that does not stage publishes without the volume being listed in use"
	ignoreUsers     plant = "what runs on with a mount of its own is not looked for"
	keepLookup      plant = "an attachment that was read before a call is used after it"
	believeGuess    plant = "a write that an earlier agent left in flight cannot mean a volume whose record is torn"
	believeSilence  plant = "a call without an answer counts as refused"
	endingIsOver    plant = "a pod that is over by its object counts as ended"
	labelsOverMount plant = "a pod that runs with a label which is no more its own is taken down"
)

// simWorld is what is true, whatever the agent believes.
type simWorld struct {
	rng   *rand.Rand
	plant plant
	trace []string
	now   time.Time
	// inline: the volume is the pods' own.
	inline bool
	// labels are those that the pods want; labelled, the CSIDriver says that its driver mounts with them.
	labels   map[string]string
	labelled bool
	// stages: the driver stages. attached: its CSIDriver says that its volumes are attached.
	stages, attaches bool
	// restless: that changes often.
	restless bool
	// registered: the driver is there.
	registered bool
	boot       int

	// The API server: all versions of the Node; the last one is true.
	versions []NodeStatus
	writes   []Write // sent and neither landed nor failed yet
	vaUID    int     // of the VolumeAttachment; 0 if there is none
	nextUID  int
	// withdrawn: the controller's delete of the VolumeAttachment is in flight.
	withdrawn bool

	// The owner of the pods, and those that are being deleted.
	owned, leaving map[string]bool
	// started are the pods that got their mount since the machine booted.
	started map[string]bool

	// lingering are the pods that are gone and of which a container still has the volume.
	lingering map[string]bool
	// running are the pods that are over by their objects and whose containers run, as the owner knows.
	running map[string]bool
	// settling: the owner makes no more changes.
	settling bool
	// justRead: the attachment was read and the agent has not come to its next step.
	justRead bool

	// The driver.
	staged    bool
	published map[string]bool
	// stagedAs and publishedAs are with which labels.
	stagedAs    string
	stagedBy    string // the VolumeAttachment that was read for the stage
	publishedAs map[string]string
	begun       []begun // abandoned calls that may still be carried out

	// The disk.
	records map[string]Record
	// unreadable are those of which nothing but the name is left.
	unreadable map[string]bool
	// handshakes are the records, readable or not, that were made for an attached volume.
	handshakes map[string]bool

	agent   *simAgent
	excused map[excuse.Name]int
}

func newSimWorld(seed uint64, p plant) *simWorld {
	w := &simWorld{
		rng: rand.New(rand.NewPCG(seed, 7)), plant: p, now: now, inline: seed%5 == 4, stages: seed%7 != 3, attaches: true, registered: true,
		versions: []NodeStatus{{UID: "n", ResourceVersion: "1000"}},
		started:  map[string]bool{}, owned: map[string]bool{}, leaving: map[string]bool{}, lingering: map[string]bool{}, running: map[string]bool{}, published: map[string]bool{}, publishedAs: map[string]string{}, records: map[string]Record{},
		unreadable: map[string]bool{}, handshakes: map[string]bool{}, excused: map[excuse.Name]int{},
	}
	w.restless = seed%3 == 2 && !w.inline
	if seed%3 == 1 && !w.inline {
		w.labels, w.labelled = map[string]string{"a": "x", "b": "y"}, true
	}
	w.start()
	return w
}

func (w *simWorld) log(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

func (w *simWorld) node() NodeStatus { return w.versions[len(w.versions)-1] }

func (w *simWorld) inUse() bool { return slices.Contains(w.node().InUse, simVolume) }

func (w *simWorld) change(edit func(*NodeStatus)) {
	n := w.node()
	version, _ := strconv.Atoi(n.ResourceVersion)
	n.ResourceVersion = strconv.Itoa(version + 1)
	n.InUse, n.Attached = slices.Clone(n.InUse), slices.Clone(n.Attached)
	edit(&n)
	w.versions = append(w.versions, n)
}

func (w *simWorld) mountedFor(record string) bool {
	if record == StageKind {
		return w.staged
	}
	return w.published[record]
}

func otherPod(uid string) string { return map[string]string{"a": "b", "b": "a"}[uid] }

// label is with which one the pod would get the volume now.
func (w *simWorld) label(uid string) string {
	if w.labelled {
		return w.labels[uid]
	}
	return ""
}

// owner sets and removes pods; a new agent gets everything again.
func (w *simWorld) owner() {
	if w.labels != nil && w.rng.IntN(10) == 0 {
		w.labelled = !w.labelled
		w.log("the driver mounts with labels: %v", w.labelled)
	}
	uid := []string{"a", "b"}[w.rng.IntN(2)]
	switch {
	case w.running[uid] && w.rng.IntN(4) == 0: // its object says after all that it is not over
		delete(w.running, uid)
		w.own(uid)
	case w.running[uid]:
		w.ended(uid)
	case w.owned[uid] && !w.leaving[uid] && w.rng.IntN(3) == 0:
		w.leaving[uid] = true
	case w.owned[uid] && w.published[uid] && w.agent.phase(uid) == Confirmed && w.rng.IntN(2) == 0:
		delete(w.owned, uid)
		delete(w.leaving, uid)
		w.running[uid] = true
		w.agent.say(uid, PodState{Ending: true})
	case w.owned[uid]:
		w.lingering[uid] = w.published[uid] && w.agent.phase(uid) == Confirmed && w.rng.IntN(2) == 0
		delete(w.owned, uid)
		delete(w.leaving, uid)
		w.agent.say(uid, PodState{Removed: true})
	case w.agent.phase(uid) == Absent && !w.lingering[uid]:
		w.own(uid)
	}
	w.log("owner: %v, leaving %v, over and running %v", w.owned, w.leaving, w.running)
}

// own has a pod want the volume.
func (w *simWorld) own(uid string) {
	w.owned[uid] = true
	if !w.running[uid] && w.agent.phase(uid) == Absent {
		delete(w.started, uid)
	}
	w.agent.set(w, uid)
}

func (w *simWorld) syncPods() {
	if w.agent.allSet {
		return
	}
	for _, uid := range slices.Sorted(maps.Keys(w.owned)) {
		w.agent.set(w, uid)
	}
	for uid := range w.running {
		w.agent.pods[uid] = PodState{Ending: true}
	}
	w.agent.allSet = true
	w.log("owner tells the agent of %v", w.owned)
}

// controller attaches what pods want, and withdraws and checks what they do not.
func (w *simWorld) controller() {
	attached := slices.Contains(w.node().Attached, simVolume)
	wanted := len(w.owned) > 0 && w.attaches
	switch {
	case w.inline, w.justRead: // of no concern to it, or too late to be noticed
	case w.withdrawn:
		w.withdrawn, w.vaUID = false, 0
		w.log("controller: detached")
	case wanted && w.vaUID == 0:
		w.nextUID++
		w.vaUID = w.nextUID
		w.log("controller: attached as %d", w.vaUID)
	case w.vaUID != 0 && !attached && (wanted || w.inUse()):
		w.change(func(n *NodeStatus) { n.Attached = []string{simVolume} })
		w.log("controller: reported")
	case !wanted && attached && !w.inUse():
		w.change(func(n *NodeStatus) { n.Attached = nil })
		w.withdrawn = !w.inUse() // and the delete is in flight
		w.log("controller: withdrawn")
	case w.rng.IntN(8) == 0:
		w.change(func(*NodeStatus) {}) // another writer of the Node
	}
}

// land lets a write that is under way reach the store. It names a version and
// lands on no other.
func (w *simWorld) land(i int) (NodeStatus, bool) {
	write := w.writes[i]
	w.writes = slices.Delete(w.writes, i, i+1)
	if write.ResourceVersion != w.node().ResourceVersion {
		w.log("write of %v at %s fails", write.InUse, write.ResourceVersion)
		return NodeStatus{}, false
	}
	w.change(func(n *NodeStatus) { n.InUse = slices.Clone(write.InUse) })
	w.log("write of %v lands as %s", write.InUse, w.node().ResourceVersion)
	return w.node(), true
}

// begun is a call, and the attachment with which it was made.
type begun struct {
	step Step
	by   string
}

func (w *simWorld) carryOut(call begun) {
	switch step := call.step.(type) {
	case StageVolume:
		w.staged, w.stagedAs, w.stagedBy = true, step.Label, call.by
	case Unstage:
		w.staged = false
	case Publish:
		w.published[step.Key.PodUID], w.publishedAs[step.Key.PodUID] = true, step.Label
	case Republish:
		w.published[step.Key.PodUID] = true
	case Unpublish:
		delete(w.published, step.Key.PodUID)
	}
}

// step is one step of one of the actors.
func (w *simWorld) step() error {
	switch n := w.rng.IntN(100); {
	case n < 8:
		w.owner()
	case n < 12:
		w.syncPods()
	case n < 30:
		w.controller()
	case n < 45:
		w.write()
	case n < 60:
		w.see()
	case n < 65:
		if len(w.writes) > 0 {
			w.land(w.rng.IntN(len(w.writes)))
		}
	case n < 68:
		w.crash()
	case n < 72:
		w.accident()
	case n < 73:
		w.containersEnd()
	case n < 75:
		w.endCalls()
	case n < 76:
		w.person()
	case n < 81 && w.restless:
		w.changeCSIDriver()
	default:
		return w.turn()
	}
	return nil
}

func (w *simWorld) run(steps int) error {
	for range steps {
		if err := w.step(); err != nil {
			return err
		}
		if err := w.check(); err != nil {
			return err
		}
	}
	return nil
}

// simulate is the lives of one seed, up to the first that went wrong.
func simulate(seed uint64, p plant) (*simWorld, error) {
	var w *simWorld
	for life := range uint64(lives) {
		w = newSimWorld(seed*lives+life, p)
		err := w.run(400)
		if err == nil {
			err = w.settle()
		}
		if err != nil {
			return w, err
		}
	}
	return w, nil
}

// lives are in one seed; seeds are how many are run, or what BELAY_SIM_SEEDS says; BELAY_SIM_SEED replays one of
// them. A planted fault is found within plantedSeeds.
const lives, seeds, plantedSeeds = 500, 15, 10

func number(t *testing.T, variable string) (uint64, bool) {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q is no number", variable, text)
	}
	return n, true
}

func TestSimulationKeepsS7ThroughCrashes(t *testing.T) {
	first, last := uint64(0), uint64(seeds)
	if n, ok := number(t, "BELAY_SIM_SEEDS"); ok {
		last = n
	}
	if seed, ok := number(t, "BELAY_SIM_SEED"); ok {
		first, last = seed, seed+1
	}
	excused := map[excuse.Name]int{}
	for seed := first; seed < last; seed++ {
		w, err := simulate(seed, noPlant)
		if err != nil {
			t.Fatalf("seed %d (replay with BELAY_SIM_SEED=%d): %v\n%s", seed, seed, err, strings.Join(w.trace, "\n"))
		}
		for name, n := range w.excused {
			excused[name] += n
		}
	}
	t.Logf("seeds %d to %d hold, excused %v", first, last-1, excused)
}

func TestSimulationFindsPlantedFaults(t *testing.T) {
	for _, p := range []plant{ignoreUsers, believeStale, noStartGuard, recordAfterCall, believeRefusal, wishOnlyNews, dropUncertain, skipHandshake, believeRenewal, forgetRenewal, renewLeaving, forgetInline, forgetLabels, labelsOverMount,
		believeOldBoot, believeOldVA, keepLookup, believeGuess, believeSilence, endingIsOver, forgetUnread, keepAttachment, keepRecorded, driverStays, publishFreely} {
		t.Run(string(p), func(t *testing.T) {
			for seed := range uint64(plantedSeeds) {
				if _, err := simulate(seed, p); err != nil {
					t.Logf("found by seed %d: %v", seed, err)
					return
				}
			}
			t.Errorf("not found by %d seeds", plantedSeeds)
		})
	}
}
