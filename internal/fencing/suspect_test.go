package fencing

import (
	"fmt"
	"testing"
	"time"

	"belay.dev/belay/internal/decision"
)

// quietNode is a node that is to be suspected.
func quietNode(name, zone string) Node {
	return Node{
		Boot: Boot{Node: name, NodeUID: "uid-" + name, ID: "boot-" + name, Machine: "machine-" + name}, Zone: zone,
		Silent: 26 * time.Second, Limit: 25 * time.Second, Heard: true, Ready: No, ReadAt: start,
	}
}

func heardNode(name, zone string) Node {
	n := quietNode(name, zone)
	n.Silent, n.Ready = time.Second, Yes
	return n
}

// fleet has a number of nodes of which the first are silent.
func fleet(silent, all int, zone func(int) string) Fleet {
	f := Fleet{Fenced: map[string]bool{}}
	for i := range all {
		name := fmt.Sprintf("node-%d", i)
		if i < silent {
			f.Nodes = append(f.Nodes, quietNode(name, zone(i)))
		} else {
			f.Nodes = append(f.Nodes, heardNode(name, zone(i)))
		}
	}
	return f
}

func noZone(int) string { return "" }

// forever gives a node a chance for as long as the cluster does.
var forever = func() Profile { p := Default; p.Chance = 0; return p }()

// TestSuspicion: two signals, and no sign of life.
func TestSuspicion(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*Node)
		profile Profile
		want    decision.Reason
	}{
		"silent and not Ready":                 {func(*Node) {}, Default, Settled},
		"silent, Ready, power off":             {func(n *Node) { n.Ready, n.PowerOff = Yes, Yes }, Default, Settled},
		"silent, Ready, port silent":           {func(n *Node) { n.Ready, n.Endpoint = Yes, No }, Default, Settled},
		"silent and nothing else":              {func(n *Node) { n.Ready = Yes }, Default, NoSecondSignal},
		"Ready unknown and nothing else":       {func(n *Node) { n.Ready = Unknown }, Default, NoSecondSignal},
		"silent, the port answers":             {func(n *Node) { n.Endpoint = Yes }, Default, SignOfLife},
		"silent, refuses connections":          {func(n *Node) { n.Refused = true }, Default, SignOfLife},
		"it refuses, and is switched off":      {func(n *Node) { n.Refused, n.PowerOff = true, Yes }, Default, Settled},
		"the fast profile on refusal":          {func(n *Node) { n.Refused = true }, Fast, SignOfLife},
		"its own key answers, given up":        {func(n *Node) { n.Endpoint, n.Own, n.GivenUp, n.Silent = Yes, true, true, time.Hour }, Default, SignOfLife},
		"its own key answers, switched off":    {func(n *Node) { n.Endpoint, n.Own, n.PowerOff = Yes, true, Yes }, Default, SignOfLife},
		"an unknown key answers, switched off": {func(n *Node) { n.Endpoint, n.PowerOff = Yes, Yes }, Default, Settled},
		"an unknown key answers, given up":     {func(n *Node) { n.Endpoint, n.GivenUp = Yes, true }, Default, Settled},
		"it refuses, and is given up":          {func(n *Node) { n.Refused, n.GivenUp = true, true }, Default, Settled},
		"it refuses, is given up and Ready":    {func(n *Node) { n.Refused, n.GivenUp, n.Ready = true, true, Yes }, Default, SignOfLife},
		"it refuses, a moment too short":       {func(n *Node) { n.Refused, n.Silent = true, 5*time.Minute-time.Millisecond }, Default, SignOfLife},
		"it refuses for the chance":            {func(n *Node) { n.Refused, n.Silent = true, 5*time.Minute }, Default, Settled},
		"it refuses for ever":                  {func(n *Node) { n.Refused, n.Silent = true, time.Hour }, forever, SignOfLife},
		"for ever, and is given up":            {func(n *Node) { n.Refused, n.Silent, n.GivenUp = true, time.Hour, true }, forever, Settled},
		"its stop was announced":               {func(n *Node) { n.Leaving = true }, Fast, SignOfLife},
		"its stop was announced long ago":      {func(n *Node) { n.Leaving, n.Silent = true, 5*time.Minute }, Fast, Settled},
		"it stops, and is switched off":        {func(n *Node) { n.Leaving, n.PowerOff = true, Yes }, Default, Settled},
		"nothing to lose":                      {func(n *Node) { n.Idle = Yes }, Default, NothingToLose},
		"nothing to lose, switched off":        {func(n *Node) { n.Idle, n.PowerOff = Yes, Yes }, Default, NothingToLose},
		"nothing to lose, refuses":             {func(n *Node) { n.Idle, n.Refused = Yes, true }, Default, NothingToLose},
		"nothing to lose, its own key answers": {func(n *Node) { n.Idle, n.Endpoint, n.Own = Yes, Yes, true }, Default, NothingToLose},
		"something to lose":                    {func(n *Node) { n.Idle = No }, Default, Settled},
		"heard a moment ago, not Ready":        {func(n *Node) { n.Silent = time.Second }, Default, NodeAlive},
		"a moment too early":                   {func(n *Node) { n.Silent = 24 * time.Second }, Default, SilenceTooShort},
		"never heard":                          {func(n *Node) { n.Heard = false }, Default, NodeAlive},
		"opted out":                            {func(n *Node) { n.OptedOut = true }, Default, NodeOptedOut},
		"under maintenance":                    {func(n *Node) { n.Maintenance = true }, Default, NodeUnderMaintenance},
		"of the control plane":                 {func(n *Node) { n.ControlPlane = true }, Default, ControlPlaneNode},
		"opted out, and alive":                 {func(n *Node) { n.OptedOut, n.Silent = true, time.Second }, Default, NodeAlive},
		"a control plane that is alive":        {func(n *Node) { n.ControlPlane, n.Silent = true, time.Second }, Default, NodeAlive},
		"under maintenance, and alive":         {func(n *Node) { n.Maintenance, n.Silent = true, time.Second }, Default, NodeAlive},
		"without a boot ID":                    {func(n *Node) { n.Boot.ID = "" }, Default, NodeIdentityUnknown},
		"without a system UUID":                {func(n *Node) { n.Boot.Machine = "" }, Default, NodeIdentityUnknown},
		"read a moment too long ago":           {func(n *Node) { n.ReadAt = start.Add(-LiveFor - time.Millisecond) }, Default, NotReadLive},
		"never read from the API server":       {func(n *Node) { n.ReadAt = time.Time{} }, Default, NotReadLive},
		"opted out, power off, not Ready":      {func(n *Node) { n.OptedOut, n.PowerOff = true, Yes }, Default, NodeOptedOut},
	} {
		all := fleet(1, 3, noZone)
		test.change(&all.Nodes[0])
		got := Suspect(start, test.profile, DefaultBrakes(), all.Count(), all.Nodes[0])
		if got.Reason != test.want || got.Suspected != (test.want == Settled) {
			t.Errorf("%s: %+v, want %s", name, got, test.want)
		}
	}
}

// TestReadyNodeIsNeverSuspected is S8: a node whose condition Ready is True and whose lease is renewed, whatever else is known.
func TestReadyNodeIsNeverSuspected(t *testing.T) {
	n := heardNode("node-0", "")
	n.PowerOff, n.Endpoint, n.Refused = Yes, No, true
	all := fleet(0, 3, noZone)
	for _, p := range []Profile{Default, Fast} {
		if got := Suspect(start, p, DefaultBrakes(), all.Count(), n); got.Suspected {
			t.Errorf("%s: %+v", p.Name, got)
		}
	}
}

// TestBrakes: a fault of the network or the control plane does not fence a fleet (holes 16, 17).
func TestBrakes(t *testing.T) {
	zones := func(i int) string { return fmt.Sprintf("zone-%d", i/4) }
	for name, test := range map[string]struct {
		fleet Fleet
		want  decision.Reason
	}{
		"one of three":                      {fleet(1, 3, noZone), Settled},
		"one of two":                        {fleet(1, 2, noZone), Settled},
		"the only node":                     {fleet(1, 1, noZone), DetectorCutOff},
		"all of three":                      {fleet(3, 3, noZone), DetectorCutOff},
		"six of ten":                        {fleet(6, 10, noZone), TooManySilent},
		"four of ten":                       {fleet(4, 10, noZone), Settled},
		"three of four in a zone":           {fleet(3, 12, zones), ZoneSilent},
		"two of four in a zone":             {fleet(2, 12, zones), Settled},
		"five commanded lately":             {fleet(1, 40, noZone).commanded("a", 1, "b", 2, "c", 3, "d", 4, "e", 9), TooManyFenced},
		"five commanded, one of them early": {fleet(1, 40, noZone).commanded("a", 1, "b", 2, "c", 3, "d", 4, "e", 10), Settled},
		"four others, and itself":           {fleet(1, 40, noZone).commanded("a", 1, "b", 1, "c", 2, "d", 2, "node-0", 3), Settled},
		"two in flight":                     {fleet(1, 40, noZone).flying(2), TooManyInFlight},
		"one in flight":                     {fleet(1, 40, noZone).flying(1), Settled},
		"fenced nodes count as silent":      {fleet(1, 10, noZone).fenced("node-9", "node-8", "node-7", "node-6"), TooManySilent},
	} {
		if got := Suspect(start, Default, DefaultBrakes(), test.fleet.Count(), test.fleet.Nodes[0]); got.Reason != test.want {
			t.Errorf("%s: %s, want %s", name, got.Reason, test.want)
		}
	}
	// Nodes that went silent together are seen together, before the first of them is suspected.
	together := fleet(6, 10, noZone)
	for i := 1; i < 6; i++ {
		together.Nodes[i].Silent = 13 * time.Second
	}
	if got := Suspect(start, Default, DefaultBrakes(), together.Count(), together.Nodes[0]); got.Reason != TooManySilent {
		t.Errorf("six nodes that go silent within a renewal: %s", got.Reason)
	}
}

func minutes(n int) time.Duration { return time.Duration(n) * time.Minute }

// ago are nodes that were commanded, each with the minutes since.
func ago(nodes ...any) map[string]time.Time {
	at := map[string]time.Time{}
	for i := 0; i < len(nodes); i += 2 {
		at[nodes[i].(string)] = start.Add(-minutes(nodes[i+1].(int)))
	}
	return at
}

// TestBrakesCountWhoMayBeFenced: nodes that recovery never fences count neither as silent nor in the total, so that no node holds back the
// fence of another by what it says about itself. A fault that silences half of all Nodes begins no fence, whichever they are.
func TestBrakesCountWhoMayBeFenced(t *testing.T) {
	optOut := func(n *Node) { n.OptedOut = true }
	maintenance := func(n *Node) { n.Maintenance = true }
	controlPlane := func(n *Node) { n.ControlPlane = true }
	one := func(int) string { return "zone" }
	spare := func(f Fleet, change func(*Node), nodes ...int) Fleet {
		for _, i := range nodes {
			change(&f.Nodes[i])
		}
		return f
	}
	most := Brakes{Share: 0.6, ZoneShare: 1, Window: time.Minute, Fences: 9, InFlight: 9}
	for name, test := range map[string]struct {
		fleet  Fleet
		brakes Brakes
		want   decision.Reason
	}{
		"one of four":                             {fleet(1, 4, noZone), DefaultBrakes(), Settled},
		"two of four":                             {fleet(2, 4, noZone), DefaultBrakes(), TooManySilent},
		"two of five, one opted out":              {spare(fleet(2, 5, noZone), optOut, 1), DefaultBrakes(), Settled},
		"two of five, one under maintenance":      {spare(fleet(2, 5, noZone), maintenance, 1), DefaultBrakes(), Settled},
		"two of five, one of the control plane":   {spare(fleet(2, 5, noZone), controlPlane, 1), DefaultBrakes(), Settled},
		"two of two that may be fenced":           {spare(fleet(2, 5, noZone), controlPlane, 2, 3, 4), DefaultBrakes(), TooManySilent},
		"two of a zone of three, one opted out":   {spare(spare(fleet(2, 7, noZone), func(n *Node) { n.Zone = "zone" }, 0, 1, 2), optOut, 1), DefaultBrakes(), Settled},
		"two of a zone of three":                  {spare(fleet(2, 7, noZone), func(n *Node) { n.Zone = "zone" }, 0, 1, 2), DefaultBrakes(), ZoneSilent},
		"half of all, most of them opted out":     {spare(fleet(5, 10, one), optOut, 1, 2, 3, 4), DefaultBrakes(), TooManySilent},
		"less than half, most of them opted out":  {spare(fleet(9, 20, one), optOut, 1, 2, 3, 4, 5, 6, 7, 8), DefaultBrakes(), Settled},
		"one of two":                              {spare(fleet(1, 2, noZone), controlPlane, 1), DefaultBrakes(), Settled},
		"no other is heard but the control plane": {spare(fleet(1, 4, noZone), controlPlane, 1, 2, 3), DefaultBrakes(), Settled},
		"six of ten, as the administrator allows": {fleet(6, 10, noZone), most, Settled},
		"seven of ten":                            {fleet(7, 10, noZone), most, TooManySilent},
	} {
		if got := Suspect(start, Default, test.brakes, test.fleet.Count(), test.fleet.Nodes[0]); got.Reason != test.want {
			t.Errorf("%s: %s, want %s", name, got.Reason, test.want)
		}
	}
}

func (f Fleet) commanded(nodes ...any) Fleet { f.Commanded = ago(nodes...); return f }
func (f Fleet) flying(n int) Fleet           { f.InFlight = n; return f }
func (f Fleet) fenced(names ...string) Fleet {
	for _, name := range names {
		f.Fenced[name] = true
	}
	return f
}

// TestLimit: a lease that lasts longer than the profile assumes gives the node more time, one that lasts shorter does not take any.
func TestLimit(t *testing.T) {
	for _, test := range []struct {
		profile     Profile
		lease, want time.Duration
	}{
		{Default, 40 * time.Second, 25 * time.Second},
		{Default, 10 * time.Second, 25 * time.Second},
		{Default, 80 * time.Second, 50 * time.Second},
		{Default, 0, 25 * time.Second},
		{Fast, 10 * time.Second, 10 * time.Second},
		{Fast, 40 * time.Second, 25 * time.Second},
		{Fast, 0, 25 * time.Second},
		{Profile{RequestTimeout: 20 * time.Second}, 10 * time.Second, 22 * time.Second},
	} {
		if got := test.profile.Limit(test.lease); got != test.want {
			t.Errorf("%s, lease %v: %v, want %v", test.profile.Name, test.lease, got, test.want)
		}
	}
}

// TestSilences: what counts is when this process heard the node, and that it listened all the time.
func TestSilences(t *testing.T) {
	var s Silences
	now := start
	tick := func(d time.Duration) bool { now = now.Add(d); return s.Tick(now) }
	silent := func() time.Duration { d, _, _ := s.Of(now, Default, "a"); return d }
	if _, _, known := s.Of(now, Default, "a"); known {
		t.Error("a node is known before its lease was seen")
	}
	tick(0)
	s.Renewed(now, "a", "1", 40*time.Second)
	for range 10 {
		if tick(time.Second) {
			t.Error("ticks in time reset the silence")
		}
		s.Renewed(now, "a", "1", 40*time.Second) // the same renewal again
	}
	if silent() != 10*time.Second {
		t.Errorf("silent for %v, want 10s", silent())
	}
	if !tick(MaxTickGap+time.Millisecond) || silent() != 0 {
		t.Errorf("after a gap of the detector: silent for %v", silent())
	}
	tick(time.Second)
	s.Renewed(now, "a", "2", 40*time.Second)
	if silent() != 0 {
		t.Errorf("after a renewal: silent for %v", silent())
	}
	s.Forget("a")
	if _, _, known := s.Of(now, Default, "a"); known {
		t.Error("a node is known without a lease")
	}
}

// TestAliveSince: a node that flaps lives since it was heard again, also if its silence was over before anything looked at it.
func TestAliveSince(t *testing.T) {
	const lease = 40 * time.Second
	s := Silences{Profile: Default}
	now := start
	renews := func(after time.Duration) time.Time {
		now = now.Add(after)
		s.Renewed(now, "a", now.String(), lease)
		return s.AliveSince("a")
	}
	if got := renews(0); !got.IsZero() {
		t.Errorf("a node that was seen once: %v", got)
	}
	for range 20 {
		if got := renews(Default.Limit(lease) - time.Millisecond); !got.IsZero() {
			t.Fatalf("a node that is slow: %v", got)
		}
	}
	again := renews(Default.Limit(lease))
	if again != now {
		t.Errorf("heard again at %v: %v", now, again)
	}
	if got := renews(10 * time.Second); got != again {
		t.Errorf("it lives on since %v: %v", again, got)
	}
	if got := renews(5 * time.Minute); got != now {
		t.Errorf("it flaps: heard again at %v: %v", now, got)
	}
	if s.Forget("a"); !s.AliveSince("a").IsZero() {
		t.Error("it was forgotten")
	}
}

// TestDecisionsOnASilentFleetAreLinear: a fault that silences a third of a large fleet is decided on within a tick: after a longer one the silence of all
// nodes would count from the beginning (MaxTickGap). Ten times the nodes cost each of them ten times as much if each decision counts them all: both
// sides are the best of several.
func TestDecisionsOnASilentFleetAreLinear(t *testing.T) {
	perNode := func(size int) (least float64) {
		f := fleet(size/3, size, func(i int) string { return fmt.Sprint("zone-", i%3) })
		for range 7 {
			began := time.Now()
			counts := f.Count()
			for _, n := range f.Nodes {
				if s := Suspect(start, Default, DefaultBrakes(), counts, n); s.Suspected != (n.Ready == No) {
					t.Fatalf("%s of %d: %+v", n.Boot.Node, size, s)
				}
			}
			if took := float64(time.Since(began)) / float64(size); least == 0 || took < least {
				least = took
			}
		}
		return least
	}
	if few, many := perNode(1_000), perNode(10_000); many > 5*few {
		t.Errorf("a decision takes %.0f ns among 1,000 nodes and %.0f among 10,000", few, many)
	}
}
