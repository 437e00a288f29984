package attachment

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"belay.dev/belay/internal/testing/cputime"
)

// TestUse is the table of what an in-use entry, or its absence, means. Each of the
// combinations must be covered by exactly one row; "*" is any value, "a|b" either.
func TestUse(t *testing.T) {
	rows := []struct {
		node, record, run, listed, reported, wanted, vouched string
		use                                                  Use
	}{
		// A node that was never given the volume.
		{"*", "none", "*", "yes", "*", "*", "*", PreMount},
		{"*", "none", "*", "no|unknown", "*", "*", "*", Idle},
		// Nothing to go by.
		{"unknown", "object|doubt|again|never|implied", "*", "*", "*", "*", "*", MayUse},
		{"no|yes", "object|doubt|again|never|implied", "replaced|later boot", "*", "*", "*", "*", MayUse},
		// No Node object: its last version, if it could be believed.
		{"no", "object|doubt|again|never|implied", "same|restarted|maybe|silent", "yes|unknown", "*", "*", "*", MayUse},
		{"no", "object|again|never|implied", "same", "no", "*", "*", "*", Idle},
		{"no", "doubt", "same", "no", "*", "*", "*", MayUse},
		{"no", "object|doubt|again|never|implied", "restarted", "no", "*", "*", "*", Idle},
		{"no", "object|doubt|again|never|implied", "maybe|silent", "no", "*", "*", "*", MayUse},
		// A Node object: listed.
		{"yes", "object|doubt|again|never|implied", "same|restarted|maybe|silent", "yes", "yes", "*", "*", Using},
		{"yes", "object|doubt|again|implied", "maybe|silent", "yes", "no", "*", "*", Using},
		{"yes", "never", "maybe|silent", "yes", "no", "no", "*", Using},
		{"yes", "object|doubt|again|never|implied", "same|restarted", "yes", "no", "no", "*", Using},
		{"yes", "implied", "same|restarted", "yes", "no", "yes", "*", Using},
		{"yes", "object|doubt|again|never", "same|restarted", "yes", "no", "yes", "*", PreMount},
		{"yes", "never", "maybe|silent", "yes", "no", "yes", "*", PreMount},
		// A Node object: not listed.
		{"yes", "object|again|never|implied", "same", "no", "*", "*", "*", Idle},
		{"yes", "object|doubt|again|never|implied", "restarted", "no", "*", "*", "*", Idle},
		{"yes", "object|again|never|implied", "maybe", "no", "*", "*", "quiet", Idle},
		{"yes", "object|again|never|implied", "maybe", "no", "*", "*", "-|late|short|not wanted yet", MayUse},
		{"yes", "doubt", "same|maybe", "no", "*", "*", "quiet", Idle},
		{"yes", "doubt", "same|maybe", "no", "*", "*", "-|late|short|not wanted yet", MayUse},
		{"yes", "object|doubt|again|never|implied", "silent", "no", "*", "*", "*", MayUse},
		{"yes", "object|doubt|again|never|implied", "same|restarted|maybe|silent", "unknown", "*", "*", "*", MayUse},
	}
	known := map[string]Knowledge{"yes": Yes, "no": No, "unknown": Unknown}
	runs := map[string]func(*Node){"same": func(*Node) {}, "restarted": func(n *Node) { reborn(n); rebooted(n) }, "maybe": reborn, "later boot": unnamed, "silent": silenced, "replaced": replaced}
	records := map[string]*Attachment{"none": nil, "object": new(attached("a")), "doubt": new(attached("a", func(a *Attachment) { a.InDoubt = true })), "implied": new(implied("a")),
		"never": new(attached("a", unconfirmed)), "again": new(attached("a", unconfirmed, func(a *Attachment) { a.Recreated = true }))}
	at := func(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }
	windows := map[string][3]time.Time{ // when the detach was requested, and the kubelet quiet
		"-": {at(0)}, "quiet": {at(0), at(1), at(41)}, "short": {at(0), at(1), at(40)}, "late": {at(2), at(1), at(41)}, "not wanted yet": {{}, at(1), at(41)},
	}
	count := 0
	for c := range product(
		[]string{"yes", "no", "unknown"}, []string{"none", "object", "doubt", "again", "never", "implied"}, []string{"same", "restarted", "maybe", "later boot", "silent", "replaced"},
		[]string{"yes", "no", "unknown"}, []string{"yes", "no"}, []string{"yes", "no"}, slices.Collect(maps.Keys(windows)),
	) {
		count++
		n := node("a")
		runs[c[2]](&n)
		n.Exists, n.InUse, n.Reported = known[c[0]], known[c[3]], c[4] == "yes"
		a := records[c[1]]
		if window, ok := windows[c[6]]; ok && a != nil {
			a = new(*a)
			a.DetachRequested, n.QuietSince, n.QuietUntil = window[0], window[1], window[2]
		}
		var matched []Use
		for _, r := range rows {
			pattern := []string{r.node, r.record, r.run, r.listed, r.reported, r.wanted, r.vouched}
			if matches(pattern, c) {
				matched = append(matched, r.use)
			}
		}
		if len(matched) != 1 {
			t.Errorf("%v: %d rows", c, len(matched))
		} else if got := n.use(a, c[5] == "yes"); got != matched[0] {
			t.Errorf("%v: %v, want %v", c, got, matched[0])
		}
	}
	t.Logf("%d combinations", count)
}

// unnamed is a Node object of a later boot, and nothing says of which machine.
func unnamed(n *Node) {
	reborn(n)
	rebooted(n)
	n.Machine.SystemUUID, n.Machine.ProviderID = "", ""
}

// silenced is a Node object that another client created, without the identity of the machine.
func silenced(n *Node) {
	reborn(n)
	n.Machine.BootID, n.Machine.SystemUUID = "", ""
}

func matches(pattern, c []string) bool {
	for i := range c {
		if pattern[i] != "*" && !slices.Contains(strings.Split(pattern[i], "|"), c[i]) {
			return false
		}
	}
	return true
}

// product yields every combination of one value of each list.
func product(lists ...[]string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		total := 1
		for _, l := range lists {
			total *= len(l)
		}
		for i := range total {
			c, rest := make([]string, len(lists)), i
			for j, l := range lists {
				c[j], rest = l[rest%len(l)], rest/len(l)
			}
			if !yield(c) {
				return
			}
		}
	}
}

// TestRunSince covers every combination of what is known of two machines: equal, other,
// or missing on either side.
func TestRunSince(t *testing.T) {
	values := map[string][2]string{"equal": {"x", "x"}, "other": {"x", "y"}, "not recorded": {"", "x"}, "not known": {"x", ""}, "neither": {"", ""}}
	names := []string{"equal", "other", "not recorded", "not known", "neither"}
	for c := range product(names, names, names, names) {
		uid, boot, system, provider := c[0], c[1], c[2], c[3]
		a := &Attachment{Created: t0, Machine: Machine{values[uid][0], values[boot][0], values[system][0], values[provider][0]}}
		n := Node{Created: t0.Add(time.Second), Machine: Machine{values[uid][1], values[boot][1], values[system][1], values[provider][1]}}
		want := MayBeSameRun
		switch {
		case boot != "equal" && (system == "other" || provider == "other" && !n.Machine.unidentified(a.Machine)):
			want = Replaced
		case uid == "equal":
			want = SameObject
		case boot == "other" && (system == "equal" || provider == "equal"):
			want = Restarted
		}
		if got := n.runSince(a); got != want {
			t.Errorf("%v: %v, want %v", c, got, want)
		}
		// Without a record of the Node, one that is no younger than the attachment is the same.
		n.Created = t0
		if got := n.runSince(a); values[uid][0] == "" && want != Replaced && got != SameObject {
			t.Errorf("%v, Node not younger: %v, want %v", c, got, SameObject)
		}
	}
}

// TestManyNodes: the cost of a shared volume at rest is proportional to its nodes, with a factor for sorting and caches.
func TestManyNodes(t *testing.T) {
	cputime.AtMost(t, 40, atRest(t, 1000), atRest(t, 100))
}

// atRest decides about a shared volume at rest.
func atRest(t *testing.T, nodes int) func() {
	t.Helper()
	want, seen := shared(Desired{}), Observed{Nodes: map[NodeName]Node{}}
	for i := range nodes {
		name := NodeName(fmt.Sprintf("n%04d", i))
		want.Wants = append(want.Wants, Want{Node: name, PersistentVolume: "pv", Since: t0})
		seen.Attachments = append(seen.Attachments, attached(name))
		seen.Nodes[name] = node(name, reported, inUse)
	}
	return func() {
		if d := Decide(t0, want, seen, policy); len(d.Steps) != 0 {
			t.Fatalf("%d steps for a volume at rest", len(d.Steps))
		}
	}
}

// TestNoReportToAMachineThatNothingVouchesFor (S1): another Node object, with another boot ID and no other identity, has the name of the
// node. It may be the machine that has the volume mounted, or another one, and a report would let it mount the volume.
func TestNoReportToAMachineThatNothingVouchesFor(t *testing.T) {
	for name, is := range map[string]Machine{
		"another boot, nothing else": {NodeUID: "uid-new", BootID: "boot-2"},
		"it says nothing of itself":  {NodeUID: "uid-new"},
	} {
		t.Run(name, func(t *testing.T) {
			n := node("a", healthy)
			n.Machine, n.Created = is, t0
			n.InUse, n.Reported, n.Managed = No, false, true
			a := Attachment{
				Ref: Ref{Name: "csi-a", UID: "va-a", ResourceVersion: "7"}, Node: "a", PersistentVolume: "pv", Computed: true, Confirmed: Yes,
				Created: t0.Add(-1e12), Machine: Machine{NodeUID: "uid-old", BootID: "boot-1", SystemUUID: "hw-1"},
			}
			got := Decide(t0, Desired{}, Observed{Attachments: []Attachment{a}, Nodes: map[NodeName]Node{"a": n}}, Policy{})
			for _, s := range got.Steps {
				if _, ok := s.(Report); ok {
					t.Errorf("reported to a machine that may be another one: %v", got.Steps)
				}
			}
		})
	}
}
