package churn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/sidecars"
)

const (
	attacherVolumes = 24
	// Each attachment of a volume goes to a node of its own, so that a call identifies its attachment.
	attacherNodes = 2000
	// attacherLatency is long beside what the API server takes, so that most kills find calls in flight.
	attacherLatency = 60 * time.Millisecond
	// livesFor is how long a process works at most before it is killed; its start takes a part of that.
	livesFor = 3 * time.Second
)

// What may be in progress for an attachment when the attacher is killed.
const (
	momentBegun       = "made, no publish begun"
	momentPublish     = "publish in flight"
	momentPublished   = "publish answered, not recorded"
	momentAttached    = "attached"
	momentDeleted     = "deleted, no unpublish begun"
	momentUnpublish   = "unpublish in flight"
	momentUnpublished = "unpublish answered, finalizer on"
)

var moments = []string{
	momentBegun, momentPublish, momentPublished, momentAttached, momentDeleted, momentUnpublish, momentUnpublished,
}

// TestAttacherKilledWhileVolumesMove kills belay-attacher at random moments while volumes
// move from node to node, each to the next one before it has left the last one.
func TestAttacherKilledWhileVolumesMove(t *testing.T) {
	kills, lives := labtest.Number(t, "BELAY_CHURN_KILLS", 100), livesFor
	if testing.Short() {
		kills, lives = min(kills, 10), livesFor/2
	}
	seed := uint64(labtest.Number(t, "BELAY_CHURN_SEED", int(time.Now().UnixNano()%1_000_000)))
	t.Logf("seed %d; BELAY_CHURN_SEED chooses another", seed)
	ctx := t.Context()
	r := sidecars.Open(t, "churn-attacher")
	nodes := min(attacherNodes, 50*kills+100)
	if err := r.Make(ctx, nodes, attacherVolumes); err != nil {
		t.Fatal(err)
	}
	r.Driver.SetLatency(attacherLatency)
	r.Driver.FailUnpublish(10)
	start := func() {
		// It comes back at once, as a container does; with a lease it would wait for its own.
		if err := r.Start(cluster.PlaneBelay, "--leader-election=false", "--worker-threads=24", "--retry-interval-start=50ms", "--timeout=2m"); err != nil {
			t.Fatal(err)
		}
	}
	start()
	stop := make(chan struct{})
	group, groupCtx := errgroup.WithContext(ctx)
	for i := range attacherVolumes {
		m := attachmentMover{rig: r, volume: sidecars.Volume(i), nodes: nodes, random: rand.New(rand.NewPCG(seed, uint64(i)))}
		group.Go(func() error { return m.run(groupCtx, stop) })
	}
	began, random := time.Now(), rand.New(rand.NewPCG(seed, 1<<32))
	var killed []kill
	for range kills {
		select {
		case <-time.After(time.Duration(random.Int64N(int64(lives)))):
		case <-groupCtx.Done():
		}
		k := kill{from: time.Now(), found: underWay(r)}
		if err := r.Kill(); err != nil {
			t.Fatal(err)
		}
		k.until = time.Now()
		killed = append(killed, k)
		start()
	}
	close(stop)
	if err := group.Wait(); err != nil {
		t.Errorf("a volume is stuck: %v", err)
	}
	// No mover has waited for those that it left behind: the unpublish of one may have failed, and be repeated later.
	for name := range r.Attachments() {
		if err := r.Await(ctx, name, "gone", sidecars.Gone); err != nil {
			t.Errorf("an attachment is stuck: %v", err)
		}
	}
	t.Logf("%d kills in %.0f s; under way at a kill:\n%s", kills, time.Since(began).Seconds(), momentHistogram(killed))
	checkAttachments(t, r, killed)
}

// kill is one SIGKILL: the process ended between the two times.
type kill struct {
	from, until time.Time
	found       map[string]int // attachments by moment
}

// attachmentMover moves one volume from node to node.
type attachmentMover struct {
	rig    *sidecars.Rig
	volume string
	nodes  int
	random *rand.Rand
}

// run returns when the volume's last attachment is gone.
func (m attachmentMover) run(ctx context.Context, stop <-chan struct{}) error {
	name, err := m.rig.Attach(ctx, m.volume, sidecars.Node(0))
	for i := 1; i < m.nodes && err == nil; i++ {
		when := m.random.IntN(4)
		if when > 0 && m.random.IntN(6) > 0 { // else it is deleted at any moment
			if err := m.rig.Await(ctx, name, "attached", sidecars.Attached); err != nil {
				return err
			}
		}
		if err := m.pause(ctx); err != nil {
			return err
		}
		select {
		case <-stop:
			if err := m.rig.Detach(ctx, name); err != nil {
				return err
			}
			return m.rig.Await(ctx, name, "gone", sidecars.Gone)
		default:
			name, err = m.move(ctx, when, name, sidecars.Node(i))
		}
	}
	return errors.Join(err, fmt.Errorf("%s has no node left of %d", m.volume, m.nodes))
}

// move creates the next attachment: 0, before the last one is deleted; 1, after it is gone; else while it is being
// deleted.
func (m attachmentMover) move(ctx context.Context, when int, last, node string) (name string, err error) {
	if when == 0 { // as no controller should
		if name, err = m.rig.Attach(ctx, m.volume, node); err != nil {
			return "", err
		}
		if err := m.pause(ctx); err != nil {
			return "", err
		}
		return name, m.rig.Detach(ctx, last)
	}
	if err := m.rig.Detach(ctx, last); err != nil {
		return "", err
	}
	if when == 1 {
		if err := m.rig.Await(ctx, last, "gone", sidecars.Gone); err != nil {
			return "", err
		}
	}
	return m.rig.Attach(ctx, m.volume, node)
}

func (m attachmentMover) pause(ctx context.Context) error {
	select {
	case <-time.After(time.Duration(m.random.Int64N(int64(2 * attacherLatency)))):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// underWay counts the attachments by what is in progress for them.
func underWay(r *sidecars.Rig) map[string]int {
	last := map[string]labdisk.Call{}
	for _, c := range r.Driver.Calls() {
		last[c.Volume+" "+c.Node] = c
	}
	found := map[string]int{}
	for _, life := range r.Lives() {
		if !life.Ended.IsZero() {
			continue
		}
		call, called := last[life.Volume+" "+life.Node]
		switch {
		case called && call.Method == sidecars.Unpublish && call.End.IsZero():
			found[momentUnpublish]++
		case called && call.Method == sidecars.Unpublish:
			found[momentUnpublished]++
		case called && call.End.IsZero():
			found[momentPublish]++
		case !life.Deleted.IsZero():
			found[momentDeleted]++
		case !life.Attached.IsZero():
			found[momentAttached]++
		case called:
			found[momentPublished]++
		default:
			found[momentBegun]++
		}
	}
	return found
}

// momentHistogram tells how many kills found each moment, for how many attachments together.
func momentHistogram(killed []kill) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%-36s%8s%14s\n", "", "kills", "attachments")
	for _, moment := range moments {
		n, all := 0, 0
		for _, k := range killed {
			all += k.found[moment]
			n += min(k.found[moment], 1)
		}
		fmt.Fprintf(&out, "%-36s%8d%14d\n", moment, n, all)
	}
	return out.String()
}

// checkAttachments judges what the driver was asked, when all is over.
func checkAttachments(t *testing.T, r *sidecars.Rig, killed []kill) {
	t.Helper()
	calls := r.Driver.Calls()
	for i, line := range r.Driver.Wrong() {
		if i == 0 {
			tellCalls(t, calls, strings.Fields(line))
		}
		t.Error(line)
	}
	for volume, of := range (history{calls: calls}).controllerCalls() {
		for _, line := range doubles(volume, holdsOf(of)) {
			t.Error(line)
		}
	}
	if held := r.Driver.Held(); len(held) > 0 {
		t.Errorf("published, and no attachment says so: %v", slices.Sorted(maps.Keys(held)))
	}
	publishes := map[string][]time.Time{}
	for _, c := range calls {
		if c.Method == sidecars.Publish {
			publishes[c.Volume+" "+c.Node] = append(publishes[c.Volume+" "+c.Node], c.Start)
		}
	}
	attached, extra, repeated := 0, 0, 0
	for _, life := range r.Lives() {
		begun := publishes[life.Volume+" "+life.Node]
		inFlight := 0 // kills that found its publish begun and not recorded
		for _, k := range killed {
			if len(begun) > 0 && begun[0].Before(k.until) && (life.Attached.IsZero() || life.Attached.After(k.from)) &&
				(life.Ended.IsZero() || life.Ended.After(k.from)) {
				inFlight++
			}
		}
		if !life.Attached.IsZero() {
			attached++
		}
		if len(begun) > 1 {
			extra, repeated = extra+len(begun)-1, repeated+1
		}
		if len(begun) > 1+inFlight {
			t.Errorf("%s was published to %s %d times, with %d kills during its attach", life.Volume, life.Node, len(begun), inFlight)
			tellLife(t, life, calls, killed)
		}
	}
	t.Logf("%d attachments, %d attached; %d calls, %d more not begun at a kill; %d attachments published again, %d times together",
		len(r.Lives()), attached, len(calls), r.Driver.Late(), repeated, extra)
	if attached == 0 {
		t.Error("nothing was attached")
	}
}

// tellLife prints all that is known of an attachment.
func tellLife(t *testing.T, life sidecars.Life, calls []labdisk.Call, killed []kill) {
	t.Helper()
	t.Logf("attached %s, deleted %s, ended %s", stamp(life.Attached), stamp(life.Deleted), stamp(life.Ended))
	tellCalls(t, calls, []string{life.Volume, life.Node})
	for _, k := range killed {
		t.Logf("killed from %s until %s", stamp(k.from), stamp(k.until))
	}
}

// tellCalls prints the calls about the volume and the nodes that stand among some words.
func tellCalls(t *testing.T, calls []labdisk.Call, words []string) {
	t.Helper()
	for _, c := range calls {
		if slices.Contains(words, c.Volume) && slices.Contains(words, c.Node) {
			t.Logf("%s %s of %s on %s until %s", stamp(c.Start), c.Method, c.Volume, c.Node, stamp(c.End))
		}
	}
}
