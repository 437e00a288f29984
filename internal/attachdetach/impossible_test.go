package attachdetach

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/testing/wait"
)

// TestThousandImpossiblePods has 1,000 pods whose volumes can never attach: no claim, no
// PersistentVolume, no driver, and a driver that refuses. Once each was looked at nothing
// happens any more, and another volume is attached as if they were not there.
func TestThousandImpossiblePods(t *testing.T) {
	l := newLab(t)
	l.node("a")
	answers := func(silent bool, refusal string) {
		l.attacher.set(func() {
			l.attacher.mood = func(va *storagev1.VolumeAttachment) (bool, string) {
				if va.DeletionTimestamp != nil || strings.HasPrefix(*va.Spec.Source.PersistentVolumeName, l.name("mark")) {
					return false, ""
				}
				return silent, refusal
			}
		})
	}
	answers(true, "") // no driver
	l.run()
	const withVolume = 300
	inParallel(l, 350, func(i int) { l.pod(fmt.Sprintf("noclaim-%d", i), "a", fmt.Sprintf("noclaim-%d", i)) })
	inParallel(l, 350, func(i int) {
		name := fmt.Sprintf("novolume-%d", i)
		l.claim(name)
		l.pod(name, "a", name)
	})
	inParallel(l, withVolume, func(i int) {
		name := fmt.Sprintf("refused-%d", i)
		l.volume(name)
		l.pod(name, "a", name)
	})
	l.await("all attachments are made", func() bool { return len(l.vas) == withVolume })
	l.settled("a") // the controller has seen them
	l.quiet("without a driver")

	answers(false, "no such volume")
	l.await("all are refused", func() bool {
		n := 0
		for _, va := range l.vas {
			if va.Status.AttachError != nil {
				n++
			}
		}
		return n == withVolume
	})
	l.settled("a")
	l.quiet("with a driver that refuses")

	l.volume("other")
	began, before := time.Now(), reconciles(t)
	l.pod("other", "a", "other")
	l.await("another is attached", func() bool { return l.attachment("other", "a") != nil })
	looks := reconciles(t) - before
	t.Logf("another volume took %v and %v looks to be attached", time.Since(began), looks)
	if looks > 50 {
		t.Errorf("%v looks at volumes until another is attached: it waits behind those that cannot be", looks)
	}
	wait.Until(l, "the pods are deleted", func() bool {
		return l.DeleteAllOf(l.ctx, &corev1.Pod{}, client.InNamespace(l.prefix), client.GracePeriodSeconds(0)) == nil
	})
	l.await("all are detached", func() bool { return len(l.vas) == 0 })
}

func inParallel(l *lab, n int, f func(i int)) {
	l.Helper()
	var g errgroup.Group
	g.SetLimit(16)
	for i := range n {
		g.Go(func() error { f(i); return nil })
	}
	l.must(g.Wait())
}

// quiet waits until the controller has examined nothing for a while, and fails if it keeps examining volumes.
func (l *lab) quiet(when string) {
	l.Helper()
	const rest = 3 * time.Second // longer than it takes to look again at what failed or was refused, the first times
	wait.Until(l, when+": no volume is looked at for a while", func() bool {
		before := reconciles(l.T)
		time.Sleep(rest)
		return reconciles(l.T) == before
	})
	l.Logf("%s: %v looks in all, none in the last %v", when, reconciles(l.T), rest)
}

// reconciles is how often controllers of this process looked at a volume.
func reconciles(t *testing.T) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	total := 0.0
	for _, family := range families {
		if family.GetName() != "controller_runtime_reconcile_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			total += metric.GetCounter().GetValue()
		}
	}
	return total
}

// An API server that refuses on purpose is not asked again and again.
func TestRefusedByTheAPIServer(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.volume("v")
	var allow atomic.Bool
	allow.Store(true)
	asked := make(chan time.Time, 100)
	l.transport = func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if !isAttach(r) || allow.Load() {
				return next.RoundTrip(r)
			}
			asked <- time.Now()
			body := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"a webhook says no"}`
			return &http.Response{
				StatusCode: http.StatusForbidden, Status: "403 Forbidden", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
				Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)),
			}, nil
		})
	}
	l.run()
	// Events of the start would have the volume asked for at once, whatever the clock says.
	l.settled("a")
	l.quiet("before")
	allow.Store(false)
	l.pod("p", "a", "v")
	l.awaitPodEvent("p", explain.FailedAttachVolume, explain.AttachFailed(l.name("v"), "kubernetes.io/csi: attacher.Attach failed: a webhook says no"))
	var last time.Time
	for _, pause := range []time.Duration{0, minRefusalRetry, 2 * minRefusalRetry} {
		next := wait.For(t, "another request", asked)
		if next.Sub(last) < pause {
			t.Errorf("asked again after %v, want %v", next.Sub(last), pause)
		}
		last = next
	}
	allow.Store(true)
	l.pod("q", "a", "v") // what happens to the volume counts, not the clock
	l.awaitReported("v", "a")
}

func TestRefused(t *testing.T) {
	resource := schema.GroupResource{Group: "storage.k8s.io", Resource: "volumeattachments"}
	forbidden := apierrors.NewForbidden(resource, "x", errors.New("no"))
	conflict := apierrors.NewConflict(resource, "x", errors.New("changed"))
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"forbidden":              {forbidden, true},
		"wrapped":                {fmt.Errorf("create: %w", forbidden), true},
		"invalid":                {apierrors.NewInvalid(schema.GroupKind{}, "x", nil), true},
		"bad request":            {apierrors.NewBadRequest("no"), true},
		"all forbidden":          {errors.Join(forbidden, forbidden), true},
		"one of two":             {errors.Join(forbidden, conflict), false},
		"conflict":               {conflict, false},
		"unavailable":            {apierrors.NewServiceUnavailable("no"), false},
		"too many":               {apierrors.NewTooManyRequests("no", 1), false},
		"timeout":                {apierrors.NewTimeoutError("no", 1), false},
		"no answer from anybody": {errors.New("connection refused"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := refused(tt.err); got != tt.want {
				t.Errorf("refused(%v) = %v, want %v", tt.err, got, tt.want)
			}
		})
	}
}
