package attacher

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/telemetry"
)

// early is a driver that answers OK to unpublish while a publish to node a is pending that its caller abandoned, as GCE PD's and Hetzner's
// do. Its storage refuses nothing.
type early struct {
	b *bubble

	mu  sync.Mutex
	onA bool
	// code is the driver's answer to a publish to node a; OK for none.
	code codes.Code
	// after is when the publish to node a takes effect, from when it was sent; zero for never.
	after time.Duration
	// blind: the list never has the volume at a node.
	blind bool
}

func newEarly(b *bubble, code codes.Code, after time.Duration) *early {
	e := &early{b: b, code: code, after: after}
	b.answers(e.answer)
	b.driver.ControllerServices = canList
	b.driver.SetList(e.list)
	return e
}

func (e *early) answer(ctx context.Context, c call) error {
	e.mu.Lock()
	publishesA := c.Method == "Publish" && c.Node == "id-a"
	switch {
	case c.Method == "Publish" && c.Node == "id-b" && e.onA:
		e.b.t.Errorf("S1: published to b while the volume is at a: %v", e.b.received("vol"))
	case c.Method == "Unpublish" && c.Node == "id-a":
		e.onA = false
	case publishesA && e.after > 0:
		time.AfterFunc(e.after, func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.onA = true
		})
	}
	code := e.code
	e.mu.Unlock()
	switch {
	case publishesA && code == codes.OK:
		return unanswered(ctx)
	case publishesA:
		return status.Error(code, "not now")
	}
	return nil
}

func (e *early) list(context.Context, *csispec.ListVolumesRequest) (*csispec.ListVolumesResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var at []string
	if e.onA && !e.blind {
		at = []string{"id-a"}
	}
	return &csispec.ListVolumesResponse{Entries: []*csispec.ListVolumesResponse_Entry{listed("vol", at...)}}, nil
}

func (e *early) isOnA() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.onA
}

// unpublishes is how often the driver was asked to unpublish the volume from node a.
func (e *early) unpublishes() int {
	return len(slices.DeleteFunc(e.b.received("vol"), func(c string) bool { return c != "Unpublish id-a" }))
}

// trusted is how many detaches were counted after an attach without a final answer.
func trusted(t *testing.T, registry *prometheus.Registry) float64 {
	t.Helper()
	families, err := registry.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == "attacher_detaches_after_unanswered_attach_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("there is no such metric")
	return 0
}

// GCE PD's and Hetzner's drivers answer OK to unpublish while an attach is pending that their caller abandoned. The volume is not given
// away, and the finalizer stays, until that attach can no longer take effect and the driver has confirmed an unpublish since, also if the
// attacher restarts. The publish is not repeated. With other drivers the first OK is the end, which is counted.
func TestPublishInDoubt(t *testing.T) {
	gce, unknown := earlyOKFor("pd.csi.storage.gke.io"), earlyOKFor("unknown.example.com")
	for name, tt := range map[string]struct {
		early   time.Duration
		code    codes.Code
		restart bool
		cut     bool // the node, whose CSINode is gone too
		shared  bool
		waits   bool
		counted float64
	}{
		"no answer":                           {early: gce, waits: true},
		"no final answer":                     {early: gce, code: codes.Internal, waits: true},
		"no answer, the attacher restarts":    {early: gce, restart: true, waits: true},
		"no answer, the node is cut":          {early: gce, cut: true, waits: true},
		"no answer, a shared volume":          {early: gce, shared: true, waits: true},
		"a final answer":                      {early: gce, code: codes.InvalidArgument},
		"a driver that is not in the facts":   {early: unknown, counted: 1},
		"the same, no final answer":           {early: unknown, code: codes.Internal, counted: 1},
		"the same, a final answer":            {early: unknown, code: codes.InvalidArgument},
		"the same, no answer, a cut node":     {early: unknown, cut: true, counted: 1},
		"the same, and the attacher restarts": {early: unknown, restart: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t)
				late := 2 * time.Minute
				if !tt.waits {
					late = 0
				}
				e := newEarly(b, tt.code, late)
				registry := prometheus.NewRegistry()
				start := func() func() {
					registry = prometheus.NewRegistry()
					return b.start(func(c *Config) { c.EarlyOKFor, c.Metrics = tt.early, telemetry.NewAttacher(registry) })
				}
				stop := start()
				defer func() { stop() }()
				b.pass(time.Second)
				mode := corev1.ReadWriteOnce
				if tt.shared {
					mode = corev1.ReadWriteMany
				}
				b.volume("vol", mode)
				b.attach("vol", "a")
				b.pass(time.Second)
				if tt.cut {
					b.api.remove("csinodes", "a")
				}
				if tt.restart {
					stop()
				}
				b.detach("vol", "a")
				if !tt.shared {
					b.attach("vol", "b")
				}
				published := len(b.received("vol"))
				if tt.restart {
					stop = start()
				}
				b.pass(time.Minute)
				if !tt.shared && b.isAttached("vol", "b") == tt.waits || b.isGone("vol", "a") == tt.waits {
					t.Errorf("attached elsewhere: %v, released: %v; calls %v", b.isAttached("vol", "b"), b.isGone("vol", "a"), b.received("vol"))
				}
				if va := b.attachment("vol", "a"); tt.waits && va != nil && (va.Status.DetachError == nil || !strings.Contains(va.Status.DetachError.Message, "detached again")) {
					t.Errorf("the status does not say why: %+v", va.Status)
				}
				b.within(5*time.Minute, "released", func() bool { return (tt.shared || b.isAttached("vol", "b")) && b.isGone("vol", "a") })
				if e.isOnA() {
					t.Error("the volume was left at a")
				}
				if slices.Contains(b.received("vol")[published:], "Publish id-a") {
					t.Errorf("the publish was repeated: %v", b.received("vol"))
				}
				if n := e.unpublishes(); n > 3 {
					t.Errorf("the driver was asked %d times", n)
				}
				if got := trusted(t, registry); got != tt.counted {
					t.Errorf("%v detaches are counted, want %v", got, tt.counted)
				}
			})
		})
	}
}

// The doubt ends before its time where the driver's list has shown the volume at the node and then no longer. A list that never showed it proves
// nothing, nor does one that showed it when the volume may have been there before, or when more than one publish may be pending.
func TestListEndsPublishInDoubt(t *testing.T) {
	for name, tt := range map[string]struct {
		arrange func(b *bubble, e *early)
		ends    bool
	}{
		"listed, and then no longer": {ends: true},
		"never listed":               {arrange: func(_ *bubble, e *early) { e.blind = true }},
		"another publish had no answer": {arrange: func(b *bubble, _ *early) {
			b.pass(20 * time.Second)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t)
				e := newEarly(b, codes.OK, 30*time.Second)
				defer b.start(func(c *Config) { c.EarlyOKFor, c.ReconcileSync = 5*time.Minute, 20*time.Second })()
				b.pass(time.Second)
				b.attach("vol", "a")
				b.pass(time.Second)
				if tt.arrange != nil {
					tt.arrange(b, e)
				}
				b.detach("vol", "a")
				b.attach("vol", "b")
				b.pass(15 * time.Second)
				if b.isGone("vol", "a") || b.isAttached("vol", "b") {
					t.Errorf("S1: released while the attach is pending: %v", b.received("vol"))
				}
				b.pass(75 * time.Second)
				if b.isGone("vol", "a") != tt.ends || b.isAttached("vol", "b") != tt.ends {
					t.Errorf("released: %v, attached elsewhere: %v, want %v; calls %v", b.isGone("vol", "a"), b.isAttached("vol", "b"), tt.ends, b.received("vol"))
				}
				b.within(5*time.Minute, "attached elsewhere", func() bool { return b.isGone("vol", "a") && b.isAttached("vol", "b") && !e.isOnA() })
			})
		})
	}
}

func TestWhichDriversAreDoubted(t *testing.T) {
	for driver, want := range map[string]bool{
		"pd.csi.storage.gke.io": true, "csi.hetzner.cloud": true, "ebs.csi.aws.com": false, "unknown.example.com": false,
	} {
		if got := earlyOKFor(driver); got > 0 != want {
			t.Errorf("%s: %v, want a doubt: %v", driver, got, want)
		}
	}
}
