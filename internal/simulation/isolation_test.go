package simulation

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A driver that hangs delays only its own volumes (docs/invariants.md, liveness).

// hang is what a driver does instead of its work.
type hang int

const (
	not     hang = iota
	mute         // it answers nothing, also no list; what it has begun it may carry out when it answers again
	failing      // it answers with errors, and does nothing
)

func (h hang) String() string { return [...]string{"answers", "hangs", "fails"}[h] }

const (
	// restoreTime is how long the plane may take to attach and detach everything once all trouble has ended, but for a driver that hangs:
	// the unmount timeout, the longest back-off of the attacher, and a minute.
	restoreTime = (6 + 5 + 1) * time.Minute
	// moveTime is how long it may take to move a volume then, if no replaced machine may still have one.
	moveTime = time.Minute
	// moves is how many volumes move in a check.
	moves = 2
)

// hang has the driver hang, or answer again.
func (s *sim) hang(d *driver, as hang) {
	s.storage.mu.Lock()
	defer s.storage.mu.Unlock()
	d.hangs = as
	s.say("driver %s: %s", as, d.name)
}

// hangOrAnswer has a driver hang now and then, for a while.
func (s *sim) hangOrAnswer() {
	switch d := s.drivers[s.others.IntN(len(s.drivers))]; {
	case d.hangs == not && s.others.IntN(1000) < s.hangs:
		s.hang(d, []hang{mute, mute, failing}[s.others.IntN(3)])
	case d.hangs != not && s.others.IntN(50) == 0:
		s.hang(d, not)
	}
}

// hangList is what becomes of a list while the driver hangs.
func (p *attacherProcess) hangList(ctx context.Context) error {
	p.sim.storage.mu.Lock()
	hangs := p.driver.hangs
	p.sim.storage.mu.Unlock()
	switch hangs {
	case mute:
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	case failing:
		return status.Error(codes.Unavailable, "the driver said no")
	}
	return nil
}

// answers reports whether the volume is none of a driver that hangs.
func (s *sim) answers(d *disk) bool {
	of := s.driverOf(d)
	return of == nil || of.hangs == not
}

// isolate has one of two drivers hang when all other trouble has ended. What is of the other one, or of none, has to be attached and
// detached within the same time as without that, first what trouble has left, and then what moves.
func (s *sim) isolate() {
	if len(s.drivers) == 1 || !s.chance(60) {
		return
	}
	d := s.pickDriver()
	s.hang(d, []hang{mute, failing}[s.rng.IntN(2)])
	s.restore()
	s.move()
	s.hang(d, not)
}

// restore waits until all volumes are as they have to be, but for those of a driver that hangs. People help where no policy does.
func (s *sim) restore() {
	missing := s.within(restoreTime)
	for n := 0; n < handOvers && missing != "" && s.broken == "" && s.handOver(); n++ {
		s.changeLeader()
		missing = s.within(restoreTime)
	}
	s.late(missing, restoreTime)
}

// move moves volumes from node to node.
func (s *sim) move() {
	for range moves {
		movable := slices.DeleteFunc(slices.Clone(s.slots), func(o *slot) bool { return !s.answers(o.disk) })
		if len(movable) == 0 || s.broken != "" {
			return
		}
		o, m := movable[s.rng.IntN(len(movable))], s.pickMachine()
		s.say("%s moves to %s", o.disk.handle, m)
		for _, pod := range list[*corev1.Pod](s.api) {
			if slices.Contains(claimsOf(pod), o.claim) && pod.DeletionTimestamp == nil {
				change(s.api, pod, func(p *corev1.Pod) { now := metav1.Now().Rfc3339Copy(); p.DeletionTimestamp = &now })
			}
		}
		s.comePodTo(m, o.claim)
		limit := moveTime
		switch {
		case s.replacedHolds():
			limit = restoreTime
		case s.laterNode():
			limit = recreateTime
		}
		s.late(s.within(limit), limit)
	}
}

// late notes what was not done in time.
func (s *sim) late(missing string, limit time.Duration) {
	i := slices.IndexFunc(s.drivers, func(d *driver) bool { return d.hangs != not })
	switch {
	case missing == "" || s.broken != "":
		return
	case i < 0:
		s.breaks("liveness", "after %v: %s", limit, missing)
	default:
		s.breaks("isolation", "while %s %s, after %v: %s", s.drivers[i].name, s.drivers[i].hangs, limit, missing)
	}
	s.sayDecisions()
}

// leftOver finds an attachment that another client made, and that is still being detached: it blocks its volume, which nothing may want yet.
func (s *sim) leftOver() string {
	for _, va := range list[*storagev1.VolumeAttachment](s.api) {
		if d := s.byHand[va.Name]; d != nil && s.answers(d) {
			return va.Name + " is still there"
		}
	}
	return ""
}

// within lets everybody act for that long at most, and returns what is still missing.
func (s *sim) within(limit time.Duration) (missing string) {
	for begun := time.Now(); ; {
		for s.calmTurn() && s.broken == "" {
			continue
		}
		if missing = cmp.Or(s.settled(), s.leftOver()); missing == "" || time.Since(begun) >= limit || s.broken != "" {
			return missing
		}
		s.sleep(tick)
		s.settleDown()
		s.controller.checkSleepers("time")
	}
}
