package fencing

import "time"

// NoNewsFor is how long nothing may have changed until a fence asks its switch as seldom as that of a deleted Node. Each question is two writes and a login, and a
// machine that ignores its command, or a switch that is silent, may stay so for weeks.
const NoNewsFor = time.Hour

// commandSeldomEvery is how often a fence without news commands its switch: as much more seldom as it asks, which is AskDeletedEvery in place of AskEvery.
const commandSeldomEvery = 10 * IntentFor

// sight is what is news when it changes. That the node renews its lease is; each renewal is not.
type sight struct {
	phase                                                      Phase
	exists, ready                                              Knowledge
	shown, saidOn                                              Boot
	silent, renewed, optedOut, maintenance, deleting, released bool
	isolated, outOfService, foreignTaint                       bool
	stated                                                     int64
	source, hardware, machine                                  string
	shared, locked, held                                       bool
	power                                                      Power
}

// News is when a process last saw something change about a fence. The zero value has seen nothing.
type News struct {
	last sight
	at   time.Time
}

// Since returns when what is seen now was first seen.
func (n *News) Since(now time.Time, f Fence, seen Observed) time.Time {
	s := seen.Source
	is := sight{
		phase: f.Phase, exists: seen.Exists, ready: seen.Ready, shown: seen.Now, saidOn: s.SaidOn, silent: seen.Silent, renewed: seen.Renewed,
		optedOut: seen.OptedOut, maintenance: seen.Maintenance, deleting: f.Deleting, released: f.ManualRelease,
		isolated: seen.Isolated, outOfService: seen.OutOfService, foreignTaint: seen.ForeignTaint,
		source: s.Name, hardware: s.Machine, machine: s.Status.Machine, shared: s.Shared, locked: s.Locked, held: s.Held, power: s.Status.Power,
	}
	if f.Statement != nil {
		is.stated = f.Statement.Expires.UnixNano()
	}
	if n.at.IsZero() || is != n.last {
		n.last, n.at = is, now
	}
	return n.at
}

// stale reports whether the fence has had no news for NoNewsFor. An Off is never old news: it authorizes for five seconds (FreshFor), in which the next
// question has to be answered.
func (d *decider) stale() bool {
	return !d.seen.News.IsZero() && d.now.Sub(d.seen.News) >= NoNewsFor && d.seen.Source.Status.Power != PowerOff
}

// commandsSeldom reports whether the next command has time. One that the fencer holds back is no login, and is sent once it may be.
func (d *decider) commandsSeldom() bool {
	source, intent := d.seen.Source, d.fence.Intent
	soon := d.now.Before(intent.NotAfter.Add(commandSeldomEvery-IntentFor)) || d.now.Sub(source.Status.Asked) < AskDeletedEvery
	return d.stale() && d.fence.offSent() && !source.Held && soon
}
