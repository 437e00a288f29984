package takeover

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/sidecars"
)

const (
	attacherNodes   = 20
	attacherLatency = 200 * time.Millisecond
	// restFor holds several times at which both attachers are given all objects again.
	restFor = 25 * time.Second
)

// Both run with settings for a busy cluster. Each resyncs everything every ten seconds.
var attacherFlags = []string{"--kube-api-qps=1000", "--kube-api-burst=1000", "--worker-threads=20", "--resync=10s"}

// attacherTurns is one live lab on which the attachers take turns.
type attacherTurns struct {
	*sidecars.Rig

	// standing are the VolumeAttachments that stay as they are, by name.
	standing []string
	next     int // the first volume that was not used yet
}

// TestAttachersTakeOver moves a live lab from csi-attacher to belay-attacher and back, at rest and while attaches and
// detaches are in progress.
func TestAttachersTakeOver(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: the take-over of a live lab belongs to the long tests")
	}
	attached := labtest.Number(t, "BELAY_TAKEOVER_ATTACHED", 200)
	moving := attached / 4
	r := &attacherTurns{Rig: sidecars.Open(t, "takeover-attacher")}
	if err := r.Make(t.Context(), attacherNodes, attached+2*moving+4); err != nil {
		t.Fatal(err)
	}
	r.Driver.SetLatency(attacherLatency)
	if err := r.Start(cluster.PlaneUpstream, attacherFlags...); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var err error
	if r.standing, err = r.attach(t.Context(), attached, true); err != nil {
		t.Fatal(err)
	}
	t.Logf("csi-attacher attached %d volumes in %.0f s, with %d calls", attached, time.Since(began).Seconds(), len(r.Driver.Calls()))
	for _, turn := range []struct {
		to   string
		turn func(t *testing.T, to string)
	}{
		{cluster.PlaneBelay, r.atRest},
		{cluster.PlaneUpstream, func(t *testing.T, to string) { t.Helper(); r.underWay(t, to, moving) }},
		{cluster.PlaneBelay, func(t *testing.T, to string) { t.Helper(); r.underWay(t, to, moving) }},
		{cluster.PlaneUpstream, r.atRest},
	} {
		name := fmt.Sprintf("to %s, %d attached", turn.to, len(r.standing))
		if !t.Run(name, func(t *testing.T) { turn.turn(t, turn.to) }) {
			return
		}
	}
	for _, line := range r.Driver.Wrong() {
		t.Error(line)
	}
}

// attach makes attachments of unused volumes, and waits for them if asked.
func (r *attacherTurns) attach(ctx context.Context, n int, wait bool) ([]string, error) {
	names := make([]string, n)
	group, ctx := errgroup.WithContext(ctx)
	for i := range n {
		volume := r.next + i
		group.Go(func() (err error) {
			if names[i], err = r.Attach(ctx, sidecars.Volume(volume), sidecars.Node(volume%attacherNodes)); err != nil || !wait {
				return err
			}
			return r.Await(ctx, names[i], "attached", sidecars.Attached)
		})
	}
	r.next += n
	return names, group.Wait()
}

// change replaces the running attacher with another one, and returns what was stored while none ran, and how many calls
// the driver had received by then.
func (r *attacherTurns) change(t *testing.T, to string) (stored map[string]storagev1.VolumeAttachment, calls int) {
	t.Helper()
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := r.Client.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stored = map[string]storagev1.VolumeAttachment{}
	for _, va := range list.Items {
		stored[va.Name] = va
	}
	calls = len(r.Driver.Calls())
	if err := r.Start(to, attacherFlags...); err != nil {
		t.Fatal(err)
	}
	return stored, calls
}

// atRest: the new attacher sends no call and no write for what is attached.
func (r *attacherTurns) atRest(t *testing.T, to string) {
	t.Helper()
	ctx, began := t.Context(), time.Now()
	before, asked := r.change(t, to)
	// A volume that is attached and detached shows that the new attacher acts.
	probe, err := r.attach(ctx, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the new attacher attached a volume %.1f s after the change began", time.Since(began).Seconds())
	if err := r.Detach(ctx, probe[0]); err != nil {
		t.Fatal(err)
	}
	if err := r.Await(ctx, probe[0], "gone", sidecars.Gone); err != nil {
		t.Fatal(err)
	}
	select {
	case <-time.After(restFor):
	case <-ctx.Done():
		t.Fatal(context.Cause(ctx))
	}
	r.checkStanding(t, before, asked)
}

// checkStanding: not a call, not a write about the attachments that stand.
func (r *attacherTurns) checkStanding(t *testing.T, before map[string]storagev1.VolumeAttachment, asked int) {
	t.Helper()
	standing := map[string]bool{}
	now := r.Attachments()
	for _, name := range r.standing {
		standing[name] = true
		va, was := now[name], before[name]
		switch {
		case va == nil:
			t.Errorf("the attachment %s is gone", name)
		case va.UID != was.UID || va.ResourceVersion != was.ResourceVersion || !va.Status.Attached || va.DeletionTimestamp != nil:
			t.Errorf("the attachment %s was written: %+v", name, va)
		}
	}
	others := map[string]int{}
	for _, c := range r.Driver.Calls()[asked:] {
		if standing[sidecars.Name(c.Volume, c.Node)] {
			t.Errorf("%s of %s on %s", c.Method, c.Volume, c.Node)
		} else {
			others[c.Method]++
		}
	}
	t.Logf("%d attachments stand untouched; calls about others: %v", len(r.standing), others)
}

// underWay changes the attacher while it attaches and detaches.
func (r *attacherTurns) underWay(t *testing.T, to string, moving int) {
	t.Helper()
	ctx := t.Context()
	gone := r.standing[:moving]
	r.standing = r.standing[moving:]
	asked := len(r.Driver.Calls())
	group, groupCtx := errgroup.WithContext(ctx)
	for _, name := range gone {
		group.Go(func() error { return r.Detach(groupCtx, name) })
	}
	come, err := r.attach(ctx, moving, false)
	if err != nil {
		t.Fatal(err)
	}
	for len(r.Driver.Calls()) < asked+moving { // about half of all
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	before, changed := r.change(t, to)
	for _, name := range come {
		if err := r.Await(ctx, name, "attached", sidecars.Attached); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range gone {
		if err := r.Await(ctx, name, "gone", sidecars.Gone); err != nil {
			t.Fatal(err)
		}
	}
	calls := r.Driver.Calls()
	r.checkChange(t, to, before, calls[asked:changed], calls[changed:], come, gone)
	r.checkStanding(t, before, asked)
	r.standing = append(r.standing, come...)
}

// checkChange: what was recorded before the change is not requested again after it, and what was not recorded is
// requested once. csi-attacher's own repetitions, of calls that it started itself, are only counted.
func (r *attacherTurns) checkChange(t *testing.T, to string, before map[string]storagev1.VolumeAttachment, first, second []labdisk.Call, come, gone []string) {
	t.Helper()
	earlier, later := map[string]int{}, map[string]int{}
	for _, c := range first {
		earlier[c.Method+" "+sidecars.Name(c.Volume, c.Node)]++
	}
	for _, c := range second {
		later[c.Method+" "+sidecars.Name(c.Volume, c.Node)]++
	}
	recorded, again, own := 0, 0, 0
	check := func(method, name string, done bool) {
		key := method + " " + name
		switch {
		case done:
			recorded++
			if later[key] > 0 {
				t.Errorf("%s was recorded before the change and asked for again", key)
			}
		case later[key] == 0:
			t.Errorf("%s was not recorded before the change, and no component requested it after", key)
		case later[key] > 1 && to == cluster.PlaneBelay:
			t.Errorf("%s was asked for %d times", key, later[key])
		default:
			own += later[key] - 1
		}
		if earlier[key] > 0 && later[key] > 0 {
			again++
			if to == cluster.PlaneUpstream { // belay-attacher ends and records what it began
				t.Errorf("%s was begun before the change and asked for again", key)
			}
		}
	}
	for _, name := range come {
		check(sidecars.Publish, name, before[name].Status.Attached)
		if n := earlier[sidecars.Unpublish+" "+name] + later[sidecars.Unpublish+" "+name]; n > 0 {
			t.Errorf("%s was detached", name)
		}
	}
	for _, name := range gone {
		_, there := before[name]
		check(sidecars.Unpublish, name, !there)
		if n := earlier[sidecars.Publish+" "+name] + later[sidecars.Publish+" "+name]; n > 0 {
			t.Errorf("%s was attached again", name)
		}
	}
	t.Logf("of %d attaches and %d detaches: %d recorded before the change, %d begun before and asked for again after it; %d more are csi-attacher's own",
		len(come), len(gone), recorded, again, own)
	if recorded == 0 || recorded == len(come)+len(gone) {
		t.Errorf("nothing was under way at the change")
	}
}
