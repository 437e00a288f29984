package simulation

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"belay.dev/belay/internal/attachdetach"
	"belay.dev/belay/internal/attachment"
)

// A volume that nothing is left to do for sleeps until an event or a time wakes it. Whatever
// changes what would be decided on it must wake it; else it waits for the resync of the
// caches, ten hours.

// sleep is what a volume sleeps on.
type sleep struct {
	at       time.Time // by the clock of its process
	decision string
	recheck  time.Time
	// changed is the event after which another decision was due, empty while none was.
	changed string
	news    string // that decision
}

// acting are the steps that are more than to wait.
func acting(d attachment.Decision) (did bool) {
	return slices.ContainsFunc(d.Steps, func(s attachment.Step) bool {
		_, waits := s.(attachment.Wait)
		return !waits
	})
}

// sleepers notes what the volumes sleep on whose turn has ended since the last time.
func (c *controller) sleepers() {
	for _, key := range c.queue.takeEnded() {
		delete(c.asleep, key)
		if c.sleeps(key) {
			at := c.clock.Now()
			d := c.real.DecisionFor(key, at)
			c.asleep[key] = &sleep{at: at, decision: words(d), recheck: d.RecheckAt}
		}
	}
}

// sleeps: nothing but an event or a time will have the volume looked at.
func (c *controller) sleeps(key volumeKey) bool {
	return c.queue.asleep(key) && !c.real.Unanswered(key)
}

// keys are the volumes that may be asleep: those that anything ever woke, and those that pods
// want. The others are not looked at: to look is also to remember what was found.
func (c *controller) keys() []volumeKey {
	keys := c.queue.known()
	for _, d := range c.sim.disks {
		if key := d.key(); !slices.Contains(keys, key) && len(c.demands(key)) > 0 {
			keys = append(keys, key)
		}
	}
	return keys
}

// checkSleepers looks, after an event, for volumes that should have been woken by it. What
// the process has heard in answers to its own writes may run ahead of its caches, so a
// change is held against it only once they have caught up.
func (c *controller) checkSleepers(what string) {
	if !c.leads.Load() || c.sim.broken != "" {
		return
	}
	caughtUp := !slices.ContainsFunc(allKinds, func(k kind) bool { return c.caches.informers[k].behind() > 0 })
	steady := !c.sim.skewed || c.clock != attachdetach.Clock(c.wall) // what was now may be to come again
	for _, key := range c.keys() {
		interrupt()
		s := c.asleep[key]
		switch {
		case !c.sleeps(key):
			delete(c.asleep, key)
			continue
		case s == nil:
			s = &sleep{at: c.clock.Now()}
			c.asleep[key] = s
		}
		d := c.real.DecisionFor(key, s.at)
		now := words(d)
		if now == "" && !slices.ContainsFunc(c.sim.disks, func(d *disk) bool { return d.key() == key }) {
			continue // an orphan whose volume was found
		}
		sooner := !d.RecheckAt.IsZero() && (s.recheck.IsZero() || d.RecheckAt.Before(s.recheck))
		switch {
		case now == s.decision && !sooner:
			s.changed = ""
		case s.changed == "":
			s.changed = what
		}
		if sooner {
			now += fmt.Sprint(" again in ", d.RecheckAt.Sub(s.at))
		}
		s.news = now
		if caughtUp && s.changed != "" {
			c.sim.breaks("wake", "%s of %s is not woken by %s, which makes of\n\t%s\nthis:\n\t%s", handleOf(key), c.name, s.changed, s.decision, s.news)
		}
		if caughtUp && steady && acting(d) {
			c.sim.breaks("wake", "%s of %s sleeps with work to do: %s", handleOf(key), c.name, now)
		}
		if at := c.clock.Now(); caughtUp && steady && (s.recheck.IsZero() || at.Before(s.recheck)) {
			if later := words(c.real.DecisionFor(key, at)); later != s.decision {
				c.sim.breaks("wake", "%s of %s does not ask to be woken by the time, which makes of\n\t%s\nthis:\n\t%s", handleOf(key), c.name, s.decision, later)
			}
		}
	}
}

// words puts a decision into words, without what tells one look from the next: the versions
// of objects.
func words(d attachment.Decision) string {
	var out []string
	for _, step := range d.Steps {
		var b strings.Builder
		describe(&b, reflect.ValueOf(step))
		out = append(out, b.String())
	}
	return strings.Join(out, ", ")
}

func describe(b *strings.Builder, v reflect.Value) {
	if at, ok := reflect.TypeAssert[time.Time](v); ok {
		b.WriteString(at.UTC().Round(0).Format(time.RFC3339Nano))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		b.WriteString(v.Type().Name() + "{")
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if field.Name == "ResourceVersion" || v.Field(i).IsZero() {
				continue
			}
			b.WriteString(" " + field.Name + ":")
			describe(b, v.Field(i))
		}
		b.WriteString("}")
	case reflect.Slice:
		for i := range v.Len() {
			describe(b, v.Index(i))
		}
	case reflect.Pointer, reflect.Interface:
		describe(b, v.Elem())
	default:
		fmt.Fprint(b, v.Interface())
	}
}

// heldBack is how long a call is held back at most because of what the driver said of another
// one. Its key is looked at when that time is over, although the hold may have ended before.
const heldBack = 2 * time.Second

// checkAttacher looks for what the attacher has not been woken for, at times when its caches
// show all there is and the API server has answered all that it asked.
func (s *sim) checkAttacher(p *attacherProcess) {
	if s.broken != "" || p.behind() || len(s.net.waiting()) > 0 {
		return
	}
	overlooked := map[string]time.Time{}
	for _, what := range p.real.Overlooked() {
		since, known := p.overlooked[what]
		if !known {
			since = time.Now()
		}
		overlooked[what] = since
		if time.Since(since) > heldBack {
			s.breaks("wake", "%s has overlooked %s", p.name, what)
		}
	}
	p.overlooked = overlooked
}
