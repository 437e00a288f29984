package churn

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/hollow"
	"belay.dev/belay/lab/labdisk"
)

// detach is a VolumeAttachment that the controller deleted: between Sent and Answered
// the API server did it.
type detach struct {
	volume, node   string // unique name of the volume
	sent, answered time.Time
}

// history is all that is known of what happened to volumes, all of which are exclusive.
type history struct {
	calls    []labdisk.Call
	mounts   []hollow.Mount
	detaches []detach
}

// held is one time that a node had, or may have had, a volume at the driver.
type held struct {
	node string
	// From the begin of the first publish until the end of an unpublish that succeeded.
	from, until time.Time
	// Certainly published from the end of a publish that succeeded until the begin of the
	// first unpublish; zero where that never was, or is not over.
	sureFrom, sureUntil time.Time
}

// breaches lists each broken invariant, one line each.
func (h history) breaches() []string {
	var all []string
	holds := map[string][]held{}
	for volume, calls := range h.controllerCalls() {
		holds[volume] = holdsOf(calls)
		all = append(all, overlaps(volume, calls)...)
		all = append(all, doubles(volume, holds[volume])...)
	}
	for _, m := range h.mounts {
		if !slices.ContainsFunc(holds[m.Volume], func(o held) bool { return o.covers(m) }) {
			all = append(all, fmt.Sprintf("%s was mounted on %s from %s to %s, but not published all that time",
				m.Volume, m.Node, stamp(m.Began), stamp(m.Ended)))
		}
	}
	mounts := map[string][]hollow.Mount{}
	for _, m := range h.mounts {
		mounts[m.Volume] = append(mounts[m.Volume], m)
	}
	for _, d := range h.detaches {
		for _, m := range mounts[d.volume] {
			if m.Node == d.node && m.Began.Before(d.sent) && (m.Ended.IsZero() || m.Ended.After(d.answered)) {
				all = append(all, fmt.Sprintf("the attachment of %s to %s was deleted at %s while it was mounted there",
					d.volume, d.node, stamp(d.sent)))
			}
		}
	}
	slices.Sort(all)
	return all
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "now"
	}
	return t.Format("15:04:05.000")
}

// controllerCalls are the publishes and unpublishes by volume, by their begin.
func (h history) controllerCalls() map[string][]labdisk.Call {
	of := map[string][]labdisk.Call{}
	for _, c := range h.calls {
		if c.Method == methodPublish || c.Method == methodUnpublish {
			name := kube.UniqueVolumeName(c.Driver, c.Volume)
			of[name] = append(of[name], c)
		}
	}
	for _, calls := range of {
		slices.SortFunc(calls, func(a, b labdisk.Call) int {
			return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.Sequence, b.Sequence))
		})
	}
	return of
}

const (
	methodPublish   = "ControllerPublishVolume"
	methodUnpublish = "ControllerUnpublishVolume"
)

// holdsOf are the times that nodes had the volume.
func holdsOf(calls []labdisk.Call) []held {
	var all []held
	open := map[string]int{}
	for _, c := range calls {
		at, holding := open[c.Node]
		switch {
		case c.Method == methodPublish:
			if !holding {
				at = len(all)
				open[c.Node] = at
				all = append(all, held{node: c.Node, from: c.Start})
			}
			if c.Code == "OK" && all[at].sureFrom.IsZero() {
				all[at].sureFrom = c.End
			}
		case holding:
			if all[at].sureUntil.IsZero() {
				all[at].sureUntil = c.Start
			}
			if c.Code == "OK" {
				all[at].until = c.End
				delete(open, c.Node)
			}
		}
	}
	return all
}

func (o held) covers(m hollow.Mount) bool {
	return o.node == m.Node && !o.sureFrom.IsZero() && !m.Began.Before(o.sureFrom) &&
		(o.sureUntil.IsZero() || !m.Ended.IsZero() && !m.Ended.After(o.sureUntil))
}

// doubles are the times that two nodes had the volume at once.
func doubles(volume string, all []held) []string {
	var found []string
	for i, a := range all {
		for _, b := range all[i+1:] {
			if a.node != b.node && (a.until.IsZero() || b.from.Before(a.until)) {
				found = append(found, fmt.Sprintf("%s was published to %s at %s while %s had it since %s until %s",
					volume, b.node, stamp(b.from), a.node, stamp(a.from), stamp(a.until)))
			}
		}
	}
	return found
}

// overlaps are the calls about one volume that were in flight at the same time. A call that ended in an error may have
// been abandoned when its caller was killed.
func overlaps(volume string, calls []labdisk.Call) []string {
	var found []string
	for i, a := range calls {
		for _, b := range calls[i+1:] {
			if !a.End.IsZero() && b.Start.Before(a.End) {
				found = append(found, fmt.Sprintf("%s: %s on %s began at %s while %s on %s was in flight",
					volume, b.Method, b.Node, stamp(b.Start), a.Method, a.Node))
			}
		}
	}
	return found
}

// at is a moment of the stories below, in milliseconds.
func at(ms int) time.Time {
	if ms < 0 {
		return time.Time{}
	}
	return time.Date(2026, 1, 2, 3, 4, 5, ms*int(time.Millisecond), time.UTC)
}

func publish(node string, from, to int) labdisk.Call {
	return labdisk.Call{Method: methodPublish, Driver: "d", Volume: "v", Node: node, Start: at(from), End: at(to), Code: "OK"}
}

func unpublish(node string, from, to int) labdisk.Call {
	c := publish(node, from, to)
	c.Method = methodUnpublish
	return c
}

func failed(c labdisk.Call) labdisk.Call { c.Code = "Internal"; return c }

func mount(node string, from, to int) hollow.Mount {
	return hollow.Mount{Node: node, Volume: kube.UniqueVolumeName("d", "v"), Exclusive: true, Began: at(from), Ended: at(to)}
}

func deleted(node string, from, to int) detach {
	return detach{volume: kube.UniqueVolumeName("d", "v"), node: node, sent: at(from), answered: at(to)}
}

func TestOracleFindsBreaches(t *testing.T) {
	for name, tc := range map[string]struct {
		history
		want string // part of the one breach; empty for none
	}{
		"a life as it should be": {history: history{
			calls:    []labdisk.Call{publish("a", 10, 20), unpublish("a", 60, 70), publish("b", 80, 90)},
			mounts:   []hollow.Mount{mount("a", 30, 40), mount("b", 95, -1)},
			detaches: []detach{deleted("a", 50, 55)},
		}},
		"published twice in a row to one node": {history: history{
			calls:  []labdisk.Call{publish("a", 10, 20), publish("a", 30, 40)},
			mounts: []hollow.Mount{mount("a", 25, -1)},
		}},
		"two nodes": {
			history: history{calls: []labdisk.Call{publish("a", 10, 20), publish("b", 30, 40)}},
			want:    "was published to b",
		},
		"two nodes, the first of which only may have it": {
			history: history{calls: []labdisk.Call{failed(publish("a", 10, 20)), publish("b", 30, 40)}},
			want:    "was published to b",
		},
		"two nodes after an unpublish that failed": {
			history: history{calls: []labdisk.Call{publish("a", 10, 20), failed(unpublish("a", 30, 40)), publish("b", 50, 60)}},
			want:    "was published to b",
		},
		"calls at the same time": {
			history: history{calls: []labdisk.Call{publish("a", 10, 30), unpublish("a", 20, 40)}},
			want:    "was in flight",
		},
		"mounted before it was published": {
			history: history{calls: []labdisk.Call{publish("a", 10, 20)}, mounts: []hollow.Mount{mount("a", 15, -1)}},
			want:    "not published all that time",
		},
		"unpublished from under a mount": {
			history: history{calls: []labdisk.Call{publish("a", 10, 20), unpublish("a", 40, 50)}, mounts: []hollow.Mount{mount("a", 25, 45)}},
			want:    "not published all that time",
		},
		"attachment deleted from under a mount": {
			history: history{
				calls: []labdisk.Call{publish("a", 10, 20)}, mounts: []hollow.Mount{mount("a", 25, 60)}, detaches: []detach{deleted("a", 30, 35)},
			},
			want: "deleted at",
		},
		"attachment deleted while another node mounts": {history: history{
			calls:    []labdisk.Call{publish("a", 10, 12), unpublish("a", 14, 16), publish("b", 18, 20)},
			mounts:   []hollow.Mount{mount("b", 25, 60)},
			detaches: []detach{deleted("a", 30, 35)},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.breaches()
			switch {
			case tc.want == "" && len(got) > 0:
				t.Errorf("breaches: %v", got)
			case tc.want != "" && (len(got) != 1 || !strings.Contains(got[0], tc.want)):
				t.Errorf("breaches: %v, want one with %q", got, tc.want)
			}
		})
	}
}
