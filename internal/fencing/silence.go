package fencing

import (
	"slices"
	"time"
)

// Profile is how soon a silent node is suspected. Each assumes settings of the kubelet; a node whose lease lasts longer is given more time.
type Profile struct {
	Name string
	// Silence is the shortest time without a renewal of the node's lease after which it is suspected.
	Silence time.Duration
	// LeaseDuration is the kubelet's nodeLeaseDurationSeconds that the profile assumes. The kubelet renews its lease every quarter of it.
	LeaseDuration time.Duration
	// RequestTimeout bounds a request of the kubelet: the smaller of nodeStatusUpdateFrequency and the lease. One connection that hangs
	// delays a renewal by that much.
	RequestTimeout time.Duration
	// Chance is how long a silent node is given a chance, at most, because something speaks for it (Node.chance). Zero is without a bound, unless the cluster
	// gives the node up.
	Chance time.Duration
}

// The profiles.
var (
	// Default is for kubelets with default settings.
	Default = Profile{
		Name: "default", Silence: 25 * time.Second, LeaseDuration: 40 * time.Second, RequestTimeout: 10 * time.Second, Chance: 5 * time.Minute,
	}
	// Fast is for kubelets with nodeLeaseDurationSeconds: 10, nodeStatusUpdateFrequency: 1s and nodeStatusReportFrequency: 5m.
	Fast = Profile{Name: "fast", Silence: 10 * time.Second, LeaseDuration: 10 * time.Second, RequestTimeout: time.Second, Chance: 5 * time.Minute}
)

const (
	// renewalsMissed is how many renewals in a row a node must miss, at least. Half of one is for the time that a renewal takes.
	renewalsMissed = 2.5
	// renewInterval is the share of the lease after which the kubelet renews it.
	renewInterval = 0.25
	// MaxTickGap is the longest time between two ticks of the detector. After a longer one, the detector itself did not run: what it did
	// not hear then says nothing about the nodes.
	MaxTickGap = 2 * time.Second
)

// Limit returns the silence after which a node is suspected whose lease lasts this long; zero is a lease of unknown duration.
func (p Profile) Limit(lease time.Duration) time.Duration {
	if lease <= 0 {
		lease = max(p.LeaseDuration, Default.LeaseDuration)
	}
	missed := time.Duration(renewalsMissed * renewInterval * float64(lease))
	return max(p.Silence, missed, p.RequestTimeout+MaxTickGap)
}

// Silences measures how long each node has not renewed its lease, on the clock of the detector: the time in a lease is another machine's.
// The zero value knows no node.
type Silences struct {
	// Profile says which silence is too long, for AliveSince.
	Profile Profile

	tick  time.Time
	heard map[string]heard
}

type heard struct {
	renewal string // what the lease said; a change is a sign of life
	since   time.Time
	lease   time.Duration
	renewed time.Time // when the lease last changed under the eyes of this process; zero if it did not
	alive   time.Time // since when it has been renewed without a silence that is too long; zero if no such silence was heard
}

// Tick says that the detector runs and its watch of leases is connected. It must be called at least once in MaxTickGap; after a longer
// gap the silence of every node counts from now. It reports whether that was so.
func (s *Silences) Tick(now time.Time) (reset bool) {
	reset = !s.tick.IsZero() && now.Sub(s.tick) > MaxTickGap
	s.tick = now
	if !reset {
		return false
	}
	for name, h := range s.heard {
		h.since = now
		s.heard[name] = h
	}
	return true
}

// Renewed records the state of a node's lease: a text that changes with each renewal. The same text again is no sign of life.
func (s *Silences) Renewed(now time.Time, node, renewal string, lease time.Duration) {
	if s.heard == nil {
		s.heard = map[string]heard{}
	}
	h, known := s.heard[node]
	if known && h.renewal != renewal {
		h.renewed = now
		if now.Sub(h.since) >= s.Profile.Limit(h.lease) {
			h.alive = now
		}
	}
	h.lease = lease
	if !known || h.renewal != renewal {
		h.renewal, h.since = renewal, now
	}
	s.heard[node] = h
}

// AliveSince returns when the node was heard again after it had last been silent for its limit, whether that was noticed meanwhile or not; zero if this process knows no
// such silence.
func (s *Silences) AliveSince(node string) time.Time { return s.heard[node].alive }

// Missing returns the nodes that were heard and whose leases are not there any more.
func (s *Silences) Missing(there map[string]bool) (missing []string) {
	for name := range s.heard {
		if !there[name] {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	return missing
}

// Forget drops a node. While it has a Node object or a fence, its silence must be known, also if its lease is gone.
func (s *Silences) Forget(node string) { delete(s.heard, node) }

// Of returns how long a node has been silent, and how long it may be. A node whose lease was never seen is not
// known to be silent.
func (s *Silences) Of(now time.Time, p Profile, node string) (silent, limit time.Duration, known bool) {
	h, known := s.heard[node]
	if !known {
		return 0, 0, false
	}
	return now.Sub(h.since), p.Limit(h.lease), true
}
