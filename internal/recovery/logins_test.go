package recovery

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// desk is a fencer over the source of n1, whose levels log in with a Secret each, on a clock of its own.
type desk struct {
	*fencer

	t      *testing.T
	clock  time.Time
	fence  *fencingv1.NodeFence
	levels []*machine
}

func newDesk(t *testing.T, levels ...*machine) *desk {
	t.Helper()
	d := &desk{t: t, clock: time.Now(), levels: levels, fence: &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}
	source, switches := sourceOf("n1"), map[string]Switch{}
	objects := []client.Object{nodeOf("n1", 0), source, d.fence}
	for i, m := range levels {
		name := fmt.Sprint("level-", i)
		switches[name] = m
		if m.uuid == "" {
			switches[name] = nameless{m}
		}
		source.Spec.Levels = append(source.Spec.Levels, fencingv1.FenceLevel{Feeds: []fencingv1.Feed{{
			Agent: "fence_test", Options: map[string]fencingv1.FeedOption{"ip": fencingv1.FeedOption(name)}, SecretRef: &fencingv1.SecretReference{Namespace: "default", Name: name},
		}}})
		objects = append(objects, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{kube.AddressesAnnotation: name + ",fence_test"}}})
	}
	source.Annotations = nil
	p := partsOver(dialing(switches), objects...)
	p.now = func() time.Time { return d.clock }
	d.fencer = newFencer(p)
	return d
}

func (d *desk) source() *fencingv1.FenceSource {
	d.t.Helper()
	s := &fencingv1.FenceSource{}
	must(d.t, d.client.Get(d.t.Context(), client.ObjectKey{Name: "n1"}, s))
	return s
}

func (d *desk) ready() string {
	d.t.Helper()
	c := meta.FindStatusCondition(d.source().Status.Conditions, conditionFenceReady)
	if c == nil {
		return ""
	}
	return c.Reason
}

// rotates writes the Secret of a level.
func (d *desk) rotates(level int) {
	d.t.Helper()
	s := &corev1.Secret{}
	must(d.t, d.client.Get(d.t.Context(), client.ObjectKey{Namespace: "default", Name: fmt.Sprint("level-", level)}, s))
	s.Data = map[string][]byte{"password": []byte(d.clock.String())}
	must(d.t, d.client.Update(d.t.Context(), s))
}

// lives exercises the switch each minute while its node lives, and returns how often each level was asked.
func (d *desk) lives(minutes int) []int {
	d.t.Helper()
	return d.counted(func() {
		for range minutes {
			now := d.source()
			d.check(d.t.Context(), now, nodeOf("n1", 0), false)
			must(d.t, d.client.Status().Update(d.t.Context(), now))
			d.clock = d.clock.Add(time.Minute)
		}
	})
}

// isFenced asks for a fence so often.
func (d *desk) isFenced(times int) []int {
	d.t.Helper()
	return d.counted(func() {
		for range times {
			d.asks(false)
			d.clock = d.clock.Add(refusedFor)
		}
	})
}

// asks stands for one question or command of a fence.
func (d *desk) asks(off bool) {
	d.t.Helper()
	must(d.t, d.client.Get(d.t.Context(), client.ObjectKey{Name: "n1"}, d.fence))
	r := fencing.Requested{Fence: fencing.Fence{Intent: fencing.Intent{NotAfter: time.Now().Add(fencing.IntentFor)}}}
	must(d.t, d.call(d.t.Context(), d.state("n1"), d.source(), d.fence, r, uuid.NewString(), off))
}

func (d *desk) counted(do func()) (asked []int) {
	d.t.Helper()
	for _, m := range d.levels {
		m.logins, m.asked = 0, 0
	}
	do()
	for _, m := range d.levels {
		asked = append(asked, max(m.logins, m.asked))
	}
	return asked
}

var errRefused = fmt.Errorf("%w: RAKP 2 HMAC is invalid", ErrRefused)

// TestLogins (hole 19): a level that refuses the login is asked three times with one version of its Secret, and again after the Secret was changed, whether its
// node lives or is being fenced.
func TestLogins(t *testing.T) {
	bmc := &machine{uuid: "hw-n1", failing: errRefused}
	d := newDesk(t, bmc)
	if n := d.lives(60); n[0] != maxLogins || d.ready() != reasonLocked {
		t.Errorf("asked %d times: %s", n[0], d.ready())
	}
	d.fencer = newFencer(d.parts) // another process
	if n := d.isFenced(5); n[0] != 0 {
		t.Errorf("asked %d times for a fence after the last attempt", n[0])
	}
	d.rotates(0)
	if n := d.isFenced(5); n[0] != maxLogins || d.ready() != reasonLocked {
		t.Errorf("asked %d times for a fence after the Secret was rotated: %s", n[0], d.ready())
	}
	bmc.failing, bmc.power = nil, fencing.PowerOn
	d.rotates(0)
	if d.isFenced(1); len(d.source().Status.Refused) > 0 {
		t.Errorf("%+v is left after an answer", d.source().Status.Refused)
	}
	bmc.failing = errRefused
	if n := d.isFenced(5); n[0] != maxLogins {
		t.Errorf("asked %d times after the login had worked once", n[0])
	}
}

// TestRestartOfABMCLocksNothing (hole 19): a BMC that starts again refuses each login for a while, as with the status 401, and a fence asks it once a second. No
// minute has two logins, it is not locked, and the next level is asked meanwhile. A command that could not be sent counts nowhere. With a wrong password there are
// three logins.
func TestRestartOfABMCLocksNothing(t *testing.T) {
	for _, lasts := range []time.Duration{5 * time.Second, 50 * time.Second, 110 * time.Second} {
		bmc := &machine{uuid: "hw-n1", failing: errRefused}
		d := newDesk(t, bmc)
		began := d.clock
		n := d.counted(func() {
			for d.clock.Sub(began) < lasts {
				d.asks(false)
				d.clock = d.clock.Add(time.Second)
			}
		})
		if most := 1 + int((lasts-time.Second)/refusedFor); n[0] != most {
			t.Errorf("a BMC that refuses for %v was asked %d times, want %d", lasts, n[0], most)
		}
		if d.asks(true); d.source().Status.Command != nil {
			t.Errorf("%v: a command that was not sent is recorded as sent", lasts)
		}
		bmc.failing, bmc.power = nil, fencing.PowerOn
		for range int(refusedFor / time.Second) {
			d.asks(false)
			d.clock = d.clock.Add(time.Second)
		}
		if last := lastOf(d.fence.Status.Evidence, 1)[0]; last.Power != powerOn || d.ready() == reasonLocked || len(d.source().Status.Refused) > 0 {
			t.Errorf("a minute after it refused for %v it says %s (%s), %s, %+v", lasts, last.Power, last.Raw, d.ready(), d.source().Status.Refused)
		}
	}
	wrong, pdu := &machine{uuid: "hw-n1", failing: errRefused}, &machine{uuid: "hw-n1", power: fencing.PowerOn}
	d := newDesk(t, wrong, pdu)
	var logins []time.Time
	n := d.counted(func() {
		for range 600 {
			before := wrong.logins
			if d.asks(false); wrong.logins > before {
				logins = append(logins, d.clock)
			}
			d.clock = d.clock.Add(time.Second)
		}
	})
	if n[0] != maxLogins || n[1] != 600 || logins[2].Sub(logins[0]) < 2*refusedFor {
		t.Errorf("asked %v times; the BMC that refuses at %v", n, logins)
	}
}

// TestNoAnswerLocksNothing: a BMC that is down for four minutes, or for a day, and a rack switch that starts again, are asked less and less often and are ready
// again at most that much later. A fence asks each time.
func TestNoAnswerLocksNothing(t *testing.T) {
	for _, minutes := range []int{4, 60, 24 * 60} {
		bmc := &machine{uuid: "hw-n1", power: fencing.PowerOn}
		d := newDesk(t, bmc)
		d.lives(1)
		bmc.failing = errors.New("no answer")
		if n := d.lives(minutes); n[0] < min(minutes, 3) || n[0] > 4+minutes/4 {
			t.Errorf("in %d minutes without an answer it was asked %d times", minutes, n[0])
		}
		if d.ready() != reasonNoAnswer {
			t.Errorf("after %d minutes without an answer: %s", minutes, d.ready())
		}
		if n := d.isFenced(5); n[0] != 5 {
			t.Errorf("asked %d of 5 times for a fence", n[0])
		}
		bmc.failing = nil
		if d.lives(5); d.ready() != reasonReady {
			t.Errorf("five minutes after the end of %d minutes without an answer: %s", minutes, d.ready())
		}
	}
}

// TestGuess (hole 19): a switch that never answered with these Secrets may refuse them, and its agent not say so.
func TestGuess(t *testing.T) {
	d := newDesk(t, &machine{uuid: "hw-n1", failing: errors.New("Unable to connect/login to fencing device")})
	if n := d.lives(24 * 60); n[0] < 24 || n[0] > 30 {
		t.Errorf("asked %d times in a day", n[0])
	}
	d.rotates(0)
	if n := d.lives(1); n[0] != 1 {
		t.Error("not asked after the Secret was changed")
	}
}

// TestLevelsCountForThemselves: what one level does counts against no other, and an answer forgets what was before it.
func TestLevelsCountForThemselves(t *testing.T) {
	bmc, pdu := &machine{uuid: "hw-n1", power: fencing.PowerOn}, &machine{power: fencing.PowerOn}
	d := newDesk(t, bmc, pdu)
	for range 6 { // lost three times among many
		d.lives(20)
		pdu.failing = errors.New("no answer")
		d.lives(1)
		pdu.failing = nil
	}
	if n := d.lives(10); n[1] != 10 || !slices.Equal(d.source().Status.Bound.Levels, []int32{0, 1}) {
		t.Errorf("the PDU was asked %d of 10 times; levels %v", n[1], d.source().Status.Bound.Levels)
	}
	pdu.failing = errRefused
	d.lives(20)
	if n := d.lives(10); n[0] != 10 || n[1] != 0 || d.ready() != reasonReady {
		t.Errorf("the PDU refuses: asked %v times, %s", n, d.ready())
	}
	pdu.failing = nil
	d.rotates(1)
	d.lives(1)
	bmc.failing = errors.New("no answer") // it hangs while the node lives, and for good
	if n := d.lives(60); n[1] != 60 || d.ready() != reasonReady || d.source().Status.Bound == nil {
		t.Errorf("the BMC hangs: the PDU was asked %d of 60 times, %s", n[1], d.ready())
	}
	if n := d.isFenced(5); n[1] != 5 {
		t.Errorf("the BMC hangs: the PDU was asked %d of 5 times for a fence", n[1])
	}
	if last := lastOf(d.fence.Status.Evidence, 1); last[0].Power != powerOn {
		t.Errorf("%+v", last)
	}
}

// TestNoAnswerTakesNothingBack: a level that said On under this boot is used for its fence, although the last exercise was while its rack switch started
// again. What contradicts it takes it back.
func TestNoAnswerTakesNothingBack(t *testing.T) {
	for name, c := range map[string]struct {
		change func(pdu *machine)
		want   []int32
	}{
		"no answer": {func(pdu *machine) { pdu.failing = errors.New("no answer") }, []int32{0, 1}},
		"Off":       {func(pdu *machine) { pdu.power = fencing.PowerOff }, []int32{0}},
	} {
		pdu := &machine{power: fencing.PowerOn}
		d := newDesk(t, &machine{uuid: "hw-n1", power: fencing.PowerOn}, pdu)
		d.lives(2)
		c.change(pdu)
		d.lives(5)
		if got := d.source().Status.Bound.Levels; !slices.Equal(got, c.want) {
			t.Errorf("%s: levels %v, want %v", name, got, c.want)
		}
	}
}
