package simulation

import (
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"
)

// earlyOKFor is how long a publish may be late at a driver that answers OK to an unpublish before: its documented time.
const earlyOKFor = 2 * time.Minute

// drawEarly is how long a driver's publishes may be late in this seed.
func (s *sim) drawEarly() time.Duration {
	if s.tooEarly.IntN(3) > 0 {
		return 0
	}
	return earlyOKFor
}

// drawLate has such a driver not answer publishes more often than others do.
func (s *sim) drawLate(c *call) {
	if c.publish && !s.calm && c.by.driver.okTooEarly > 0 && c.fate != stuck && s.tooEarly.IntN(3) == 0 {
		c.fate = hangs
	}
}

// putOff takes the publishes that were abandoned from what such a driver is at work on: they take effect within its time, or not at all,
// whatever it answers to an unpublish before. After a restart it is not known that a publish of a volume that was recorded as attached had no
// answer (docs/not-guaranteed.md): those it carries out as other drivers do.
func (s *sim) putOff() {
	st := s.storage
	st.running = slices.DeleteFunc(st.running, func(c *call) bool {
		off := c.publish && c.by.driver.okTooEarly > 0 && c.gone.Load() && c.fate.acts() && !c.attached
		if off {
			s.say("driver: %s is put off", c)
			st.late = append(st.late, c)
		}
		return off
	})
}

// takeEffect carries out late publishes: those whose time is over before the given time, and now and then another one.
func (s *sim) takeEffect(before time.Time) {
	st := s.storage
	st.late = slices.DeleteFunc(st.late, func(c *call) bool {
		due := !before.Before(c.gaveUp.Add(c.by.driver.okTooEarly))
		if !due && s.tooEarly.IntN(40) > 0 {
			return false
		}
		if s.tooEarly.IntN(4) == 0 {
			s.say("driver: %s comes to nothing", c)
			return true
		}
		s.say("driver: %s: %s, after an answer to an unpublish", c, lateEffect)
		s.give(c)
		return true
	})
}

// give publishes a volume.
func (s *sim) give(c *call) {
	st := s.storage
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.published[c.volume] == nil {
		st.published[c.volume] = map[string]bool{}
	}
	st.published[c.volume][c.nodeID] = true
}

// underway are the calls that the driver works on, and those that may take effect late.
func (s *storage) underway() []*call { return slices.Concat(s.running, s.late) }

// pending: the driver mostly refuses to publish again while a late publish is pending. It refuses no other call for it.
func (s *sim) pending(c *call) bool {
	same := func(l *call) bool { return c.publish && l.volume == c.volume && l.nodeID == c.nodeID }
	return slices.ContainsFunc(s.storage.late, same) && s.tooEarly.IntN(4) > 0
}

// recordedAsAttached: an attachment for which a publish was sent says that it is attached.
func (s *sim) recordedAsAttached(c *call) bool {
	return slices.ContainsFunc(list[*storagev1.VolumeAttachment](s.api), func(va *storagev1.VolumeAttachment) bool {
		return va.Status.Attached && slices.Contains(c.protectedBy, va.UID)
	})
}
