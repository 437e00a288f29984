package simulation

import (
	"cmp"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// tick is shorter than any timeout of a request or a call.
	tick = 5 * time.Second
	// quietTicks is longer than any back-off, and than the unmount timeout.
	quietTicks = 80
	// calmTicks bounds how long the plane may take to bring everything to its end.
	calmTicks = 1000
	// handOvers is how often people check whether such a volume is left.
	handOvers = 3
)

// run runs one seed to its end, in a world that is changed before.
func run(t *testing.T, seed uint64, changes ...func(*sim)) (s *sim) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		s = newSim(seed)
		for _, change := range changes {
			change(s)
		}
		s.controller = s.startController()
		for _, d := range s.drivers {
			s.startAttacher(d)
		}
		time.Sleep(time.Second)
		s.settleDown()
		for i := 0; i < steps && s.broken == ""; i++ {
			s.step()
		}
		if s.broken == "" {
			s.heal()
			s.calmDown()
		}
		s.shutDown()
	})
	return s
}

// calmDown lets everybody act until nothing is left to do.
func (s *sim) calmDown() {
	s.isolate()
	s.restore()
	s.swapLast()
	s.move()
	if s.broken == "" {
		s.restoreEtcd()
	}
	s.recreate()
	s.restoreBackup()
	s.comeToRest()
	if missing := cmp.Or(s.settled(), s.leftOver(), s.unmended()); missing != "" && s.broken == "" {
		s.breaks("liveness", "%s", missing)
		s.sayDecisions()
	}
}

// sayDecisions shows what the controller makes of each volume.
func (s *sim) sayDecisions() {
	for _, key := range s.controller.keys() {
		s.say("%s: %s", handleOf(key), words(s.controller.real.DecisionFor(key, s.controller.clock.Now())))
	}
}

func (s *sim) comeToRest() {
	for n, quiet := 0, 0; n < calmTicks && quiet < quietTicks && s.broken == ""; n++ {
		quiet++
		s.controller.checkSleepers("time")
		for s.calmTurn() && s.broken == "" {
			quiet = 0
		}
		s.sleep(tick)
		s.settleDown()
	}
}

// calmTurn reports whether any actor had something to do.
func (s *sim) calmTurn() bool {
	before, busy := s.api.version, s.completeSlots()
	s.recordSameMachines()
	s.controller.catchUp(true)
	for _, d := range s.drivers {
		d.attacher.catchUp(true)
	}
	s.settleDown()
	for s.controller.leads.Load() && len(s.controller.queue.ready()) > 0 && s.controller.queue.working() < workersAtOnce {
		s.controller.work()
		busy = true
		s.settleDown()
	}
	for waiting := s.net.waiting(); len(waiting) > 0; waiting = s.net.waiting() {
		s.serve(waiting[0])
		busy = true
		s.settleDown()
	}
	for _, c := range slices.Clone(s.storage.running) {
		busy = s.land(c) || busy
		s.settleDown()
	}
	for _, name := range machineNames {
		for _, d := range s.disks {
			busy = s.kubelet(s.machines[name], d.handle) || busy
		}
	}
	return busy || s.api.version != before
}

// shutDown ends every process, so that the bubble can.
func (s *sim) shutDown() {
	for _, c := range append(s.old, s.controller) {
		s.crash(c.actor)
		c.cancel()
		s.dead = append(s.dead, c.ended.Wait)
	}
	for _, d := range s.drivers {
		s.kill(d.attacher)
	}
	for _, wait := range s.dead {
		wait()
	}
	time.Sleep(time.Hour) // timers that are left over
}

func TestMain(m *testing.M) {
	// Two goroutines of one process that run at the same time may go either way, and
	// then a seed would not be the same run each time.
	runtime.GOMAXPROCS(1)
	withoutPreemption()
	debug.SetGCPercent(1000) // a seed needs little memory, and a quarter of its time went into collections
	if os.Getenv("BELAY_TEST_LOG") == "" {
		klog.SetLogger(logr.Discard())
		klog.SetOutput(io.Discard)
		log.SetLogger(logr.Discard())
	}
	os.Exit(m.Run())
}

// withoutPreemption starts the tests again with a runtime that does not interrupt a goroutine anywhere because it has run for 10 ms, which
// depends on the load of the machine. It still asks it to let others run at its next call of a function.
func withoutPreemption() {
	const setting = "asyncpreemptoff=1"
	if set := os.Getenv("GODEBUG"); !strings.Contains(set, setting) {
		program, err := os.Executable()
		if err == nil {
			err = syscall.Exec(program, os.Args, append(os.Environ(), "GODEBUG="+strings.Trim(set+","+setting, ",")))
		}
		panic(err)
	}
}

// numbers reads the seeds to run: the one of BELAY_SEED, or as many as BELAY_SEEDS says, from
// that one on if both are set.
func numbers(t *testing.T, otherwise uint64) (first, count uint64) {
	t.Helper()
	read := func(name string) (uint64, bool) {
		text := os.Getenv(name)
		if text == "" {
			return 0, false
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return n, true
	}
	seed, one := read("BELAY_SEED")
	n, several := read("BELAY_SEEDS")
	switch {
	case one && several:
		return seed, n
	case one:
		return seed, 1
	case several:
		return 1, n
	}
	return 1, otherwise
}

// TestSimulation runs the seeds. A seed that fails shows its end and how to replay it. With
// BELAY_COLLECT set, the seeds after it run too, and the failures are listed by kind.
func TestSimulation(t *testing.T) {
	otherwise := uint64(1000)
	if testing.Short() {
		otherwise = 200
	}
	first, count := numbers(t, otherwise)
	if _, err := realController(); err != nil { // outside of all bubbles
		t.Fatal(err)
	}
	begun, happened, failures := time.Now(), map[string]int{}, map[string][]uint64{}
	for seed := first; seed < first+count; seed++ {
		s := run(t, seed)
		s.count(happened)
		if s.broken != "" && os.Getenv("BELAY_COLLECT") != "" {
			first, _, _ := strings.Cut(s.broken, "\n")
			kind := particulars.ReplaceAllString(first, "_")
			failures[kind] = append(failures[kind], seed)
			continue
		}
		if s.broken != "" {
			t.Fatalf("seed %d: %s\nreplay with BELAY_SEED=%d\n%s", seed, s.broken, seed, strings.Join(s.log[max(0, len(s.log)-lines(count)):], "\n"))
		}
		if count == 1 {
			t.Log(strings.Join(s.log, "\n"))
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(failures)) {
		t.Errorf("%4d seeds: %s: %v", len(failures[kind]), kind, failures[kind][:min(len(failures[kind]), 12)])
	}
	if len(failures) > 0 {
		t.FailNow()
	}
	t.Logf("seeds %d to %d hold, in %v: %v", first, first+count-1, time.Since(begun).Round(time.Millisecond), happened)
}

// particulars are what tells two failures of one kind apart: names, and times.
var particulars = regexp.MustCompile(`\b(?:other[/-])?(?:(?:id-)?n\d(?:-\d+)?|a\^1|twin|shared|csi-[0-9a-f]+|\d[\w.]*)\b|\[50\]:1`)

// notable are words that show what a run contained.
var notable = []string{
	"CREATE", "DELETE", "volumesAttached", "arrives", "busy", "mounts", "unmounts", "late, from", "answer lost", "modified", "crashes", "deposed", "killed",
	"loses its power", "out of service", "not ready", "online: false", "is deleted by force", "registers, ", "restarts", "a person", "another client", "nothing recorded", "comes in the place", "caller gone true",
	forces, lateEffect, hides, tooEarly, returns, isMadeFor, "driver hangs", "driver fails", "etcd is restored", "a restore tool makes", "moves to", " and claim-",
}

// Words of the log for the rare things that a run is there for.
const (
	forces     = "a policy forces"
	lateEffect = "late effect"
	hides      = "leaves the list with its last pod"
	tooEarly   = "after an answer to an unpublish"
	returns    = "is back, with volumes"
	isMadeFor  = "is made for"
)

// called is what they are counted as.
var called = map[string]string{
	forces: "forced detach of a used volume", lateEffect: "late effect of an abandoned call", tooEarly: "publish after an OK that came too early", returns: "node returned with volumes",
	isMadeFor: "PersistentVolume recreated", " and claim-": "pod with two volumes", "moves to": "volume moved after all trouble",
}

func (s *sim) count(happened map[string]int) {
	for name, n := range s.excused {
		happened["excuse "+string(name)] += n
	}
	for _, line := range s.log {
		for _, word := range notable {
			if strings.Contains(line, word) {
				happened[cmp.Or(called[word], word)]++
			}
		}
	}
}

func lines(count uint64) int {
	if count == 1 {
		return 10000
	}
	return 80
}

// interrupt is called where the runtime might let another goroutine run.
var interrupt = func() {}

// interrupted has goroutines interrupted there, as on a busy machine, while it runs a seed.
func interrupted(t *testing.T, seed uint64) *sim {
	t.Helper()
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 3))
	interrupt = func() {
		mu.Lock()
		times := rng.IntN(4)
		mu.Unlock()
		for range times {
			runtime.Gosched()
		}
	}
	defer func() { interrupt = func() {} }()
	return run(t, seed)
}

// replaySeeds is how many seeds are run twice.
const replaySeeds = 35

// A seed is the same run each time, also where goroutines are interrupted: or a failure could not be looked at. So whatever makes a
// goroutine runnable lets it run until it waits before anything else happens, and what one event makes runnable in a process is done in
// an order that the process has chosen. `make replay` interrupts them anywhere. Two workers of a controller that one answer wakes may still
// go either way (seed 233).
func TestReplay(t *testing.T) {
	if _, err := realController(); err != nil {
		t.Fatal(err)
	}
	first, count := numbers(t, replaySeeds)
	for seed := first; seed < first+count; seed++ {
		one, other := run(t, seed).log, interrupted(t, seed).log
		for i := range one {
			if i >= len(other) || one[i] != other[i] {
				t.Errorf("seed %d differs: once\n%s\nand once\n%s", seed, around(one, i), around(other, i))
				break
			}
		}
	}
}

func around(log []string, i int) string {
	return strings.Join(log[min(max(0, i-8), len(log)):min(i+2, len(log))], "\n")
}
