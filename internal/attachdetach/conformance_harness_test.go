package attachdetach

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/telemetry"
	"belay.dev/belay/internal/testing/wait"
)

const (
	// unmountTimeout replaces upstream's six minutes.
	unmountTimeout = 2 * time.Second
	// long is how long a test waits for what must not come, where a timer could bring it.
	long = unmountTimeout + time.Second
)

// upstream are the policies that kube-controller-manager has by default.
func upstream() Options {
	return Options{Policy: attachment.Policy{OutOfService: true, UnmountTimeout: unmountTimeout}}
}

// scenario is one of upstream's test cases, or one that it lacks.
type scenario struct {
	name     string
	restarts bool // it has acts before a restart
	acts     func(l *lab) acts
}

// acts are the parts of a scenario, played in this order. Each may be nil.
type acts struct {
	before func() // a controller leads
	down   func() // none does
	after  func() // another one does, started on what is there
}

// play is a scenario without a restart.
func play(name string, f func(l *lab)) scenario {
	return scenario{name: name, acts: func(l *lab) acts { return acts{after: func() { f(l) }} }}
}

// restarted is a scenario with a restart.
func restarted(name string, acts func(l *lab) acts) scenario {
	return scenario{name: name, restarts: true, acts: acts}
}

// prepared is a scenario whose first objects are there when the controller starts.
func prepared(name string, down, after func(l *lab)) scenario {
	return scenario{name: name, acts: func(l *lab) acts {
		return acts{down: func() { down(l) }, after: func() { after(l) }}
	}}
}

// scene plays scenarios side by side, in front of one controller at a time: they see
// only objects of their own.
type scene struct {
	t *testing.T

	mu   sync.Mutex
	labs map[*lab]bool
	// owners finds the scenario of an attachment by its name, which tells nothing.
	owners map[string]*lab
	// parts are passed when every scenario has come so far.
	parts [partEnd + 1]sync.WaitGroup
	begin [partEnd + 1]chan struct{}
	// metrics are those of the controller that leads.
	metrics *prometheus.Registry
	forced  map[string]int // detaches that the scenarios saw forced, by authority
}

const (
	partBefore = iota
	partDown
	partAfter
	partEnd // all are over, and nothing is cleaned up yet
)

// enact plays the scenarios with a controller of the options.
func enact(t *testing.T, o Options, scenarios ...scenario) {
	t.Helper()
	cluster.Start(t)
	s := &scene{t: t, labs: map[*lab]bool{}, owners: map[string]*lab{}, forced: map[string]int{}}
	for i := range s.parts {
		s.parts[i].Add(len(scenarios))
		s.begin[i] = make(chan struct{})
	}
	var all sync.WaitGroup
	for _, sc := range scenarios {
		all.Go(func() { s.play(sc) })
	}
	var stop func()
	if slices.ContainsFunc(scenarios, func(sc scenario) bool { return sc.restarts }) {
		stop = s.lead(o)
	}
	close(s.begin[partBefore])
	s.parts[partBefore].Wait()
	if stop != nil {
		stop()
	}
	close(s.begin[partDown])
	s.parts[partDown].Wait()
	stop = s.lead(o)
	close(s.begin[partAfter])
	s.parts[partAfter].Wait()
	defer stop()
	defer all.Wait()
	defer close(s.begin[partEnd]) // also where the check fails: the scenarios wait for it
	s.checkForced()
}

// lead starts a controller with metrics of its own.
func (s *scene) lead(o Options) (stop func()) {
	registry := prometheus.NewRegistry()
	o.Metrics = telemetry.NewController(registry)
	s.mu.Lock()
	s.metrics = registry
	s.mu.Unlock()
	return launch(s.t, o, s.wrap)
}

// checkForced compares what the controller counts as forced with what was seen. It counts a detach once it has the answer to its delete, which
// may be after the watch of a scenario saw the VolumeAttachment go.
func (s *scene) checkForced() {
	if s.t.Failed() || flag.Lookup("test.run").Value.String() != "" && len(s.forced) == 0 {
		return
	}
	for _, reason := range []string{"timeout", "out-of-service", "deleted-node"} {
		wait.Until(s.t, fmt.Sprintf("%d forced detaches are counted for %s", s.forced[reason], reason), func() bool {
			return s.metric("attach_detach_controller_attachdetach_controller_forced_detaches", map[string]string{"reason": reason}) == float64(s.forced[reason])
		})
	}
}

// metric reads a counter or gauge, or how often a histogram observed; 0 if there is
// none with these labels.
func (s *scene) metric(name string, labels map[string]string) float64 {
	s.mu.Lock()
	registry := s.metrics
	s.mu.Unlock()
	families, err := registry.Gather()
	if err != nil {
		s.t.Error(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			have := 0
			for _, pair := range m.GetLabel() {
				if value, ok := labels[pair.GetName()]; ok && value == pair.GetValue() {
					have++
				}
			}
			if have == len(labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}

func (s *scene) play(sc scenario) {
	passed := 0
	pass := func() { s.parts[passed].Done(); passed++ }
	defer func() {
		for passed < len(s.parts) { // it failed, or was not asked for
			pass()
		}
	}()
	s.t.Run(sc.name, func(t *testing.T) {
		l := newLab(t)
		s.mu.Lock()
		s.labs[l] = true
		s.mu.Unlock()
		l.scene = s
		acts := sc.acts(l)
		for i, act := range []func(){acts.before, acts.down, acts.after} {
			<-s.begin[i]
			if act != nil {
				act()
			}
			pass()
		}
		<-s.begin[partEnd]
	})
}

var attachmentName = regexp.MustCompile("csi-[0-9a-f]{64}")

// wrap passes each request of the controller to the faults of the scenario that it
// belongs to.
func (s *scene) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		l, err := s.owner(r)
		if err != nil {
			return nil, err
		}
		var lost bool
		if l != nil {
			l.mu.Lock()
			fault, lose := l.intercept, l.lose
			l.mu.Unlock()
			if fault != nil {
				if err := fault(r); err != nil {
					return nil, err
				}
			}
			lost = lose != nil && lose(r)
		}
		answer, err := next.RoundTrip(r)
		if err == nil && lost {
			_ = answer.Body.Close()
			return nil, errors.New("the answer was lost")
		}
		return answer, err
	})
}

// owner finds the scenario that a request belongs to, nil if it is none's.
func (s *scene) owner(r *http.Request) (*lab, error) {
	var body []byte
	if isAttach(r) {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := attachmentName.FindString(r.URL.Path)
	for l := range s.labs {
		switch {
		case body != nil && bytes.Contains(body, []byte(l.prefix+"-")):
			s.owners[attachmentName.FindString(string(body))] = l
			return l, nil
		case name != "":
			if s.owners[name] == nil && l.holds(name) {
				s.owners[name] = l
			}
		case strings.Contains(r.URL.Path+"/", "/"+l.prefix+"/") || strings.Contains(r.URL.Path, "/"+l.prefix+"-"):
			return l, nil
		}
	}
	return s.owners[name], nil
}

func (l *lab) holds(va string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.vas[va] != nil
}

// breaks sets the fault that requests of this scenario meet from now on; nil lifts it.
func (l *lab) breaks(fault func(*http.Request) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.intercept = fault
}

// refused waits until the pod has an event that its volume was not attached. The test fails at once if it is attached nevertheless.
func (l *lab) refused(pod, volume, node string) {
	l.Helper()
	l.await(pod+" has the event", func() bool {
		return l.attachment(volume, node) != nil || len(l.messages(pod, explain.FailedAttachVolume)) > 0
	})
	if l.read(volume, node) != nil {
		l.Fatal("S1: attached to a second node")
	}
}

// forced checks that the controller has forced one detach.
func (l *lab) forced(authority string) {
	l.scene.mu.Lock()
	defer l.scene.mu.Unlock()
	l.scene.forced[authority]++
}

// tally counts requests of this scenario that match. What awaits a count is woken by it.
type tally struct {
	lab *lab

	mu sync.Mutex
	n  int
}

func (l *lab) tally() *tally { return &tally{lab: l} }

func (c *tally) add() int {
	defer c.lab.see(func() {})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.n
}

func (c *tally) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// counts counts the requests that match, and lets them pass.
func (l *lab) counts(match func(*http.Request) bool) *tally {
	c := l.tally()
	l.breaks(func(r *http.Request) error {
		if match(r) {
			c.add()
		}
		return nil
	})
	return c
}

// fails lets the requests that match fail, and tells when the first has.
func (l *lab) fails(match func(*http.Request) bool) (met <-chan struct{}) {
	first := make(chan struct{})
	once := sync.OnceFunc(func() { close(first) })
	l.breaks(func(r *http.Request) error {
		if match(r) {
			once()
			return errors.New("no way to the API server")
		}
		return nil
	})
	return first
}

func (l *lab) meet(what string, met <-chan struct{}) {
	l.Helper()
	wait.For(l, what, met)
}

// never watches for a while that something does not come to be.
func (l *lab) never(what string, d time.Duration, holds func() bool) {
	l.Helper()
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	for {
		l.mu.Lock()
		ok, changed := holds(), l.changed
		if ok {
			l.Errorf("%s\n%s", what, l.describe())
		}
		l.mu.Unlock()
		if ok {
			l.FailNow()
		}
		select {
		case <-changed:
		case <-deadline.C:
			return
		}
	}
}

// settled returns when the controller has completed an attach that started after the test's last action: any reaction
// to that action has happened by then, or fails the test later.
func (l *lab) settled(node string) {
	l.Helper()
	name := fmt.Sprintf("mark%d", runs.Add(1))
	l.volume(name)
	l.pod(name, node, name)
	l.awaitReported(name, node)
}

// readyNode makes a managed node that is healthy.
func (l *lab) readyNode(names ...string) {
	l.Helper()
	for _, name := range names {
		l.node(name)
		l.health(name, corev1.ConditionTrue)
	}
}

// health sets the node's condition Ready.
func (l *lab) health(node string, ready corev1.ConditionStatus) {
	l.Helper()
	l.patchStatus(&corev1.Node{}, "", l.name(node), map[string]any{"conditions": []map[string]any{{
		"type": corev1.NodeReady, "status": ready, "reason": "Test", "message": "", "lastHeartbeatTime": nil, "lastTransitionTime": nil,
	}}})
}

// shut deletes the Node object.
func (l *lab) shut(node string) {
	l.Helper()
	l.must(l.Delete(l.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: l.name(node)}}))
}

// lists sets the node's report as another controller left it, and returns the resulting version of the Node.
func (l *lab) lists(node string, unique ...string) (version string) {
	l.Helper()
	var list []map[string]string
	for _, name := range unique {
		list = append(list, map[string]string{"name": name, "devicePath": ""})
	}
	n := &corev1.Node{}
	l.patchStatus(n, "", l.name(node), map[string]any{"volumesAttached": list})
	return n.ResourceVersion
}

// reports whether a node's volumesAttached lists a unique name; hold l.mu.
func (l *lab) reports(node, unique string) bool {
	n := l.nodes[l.name(node)]
	return n != nil && slices.ContainsFunc(n.Status.VolumesAttached, func(v corev1.AttachedVolume) bool {
		return string(v.Name) == unique
	})
}

// at gives the attachment of any driver's volume; hold l.mu.
func (l *lab) at(driver, handle, node string) *storagev1.VolumeAttachment {
	return l.vas[kube.AttachmentName(handle, driver, l.name(node))]
}

// awaitAt waits until any driver's volume is attached and reported.
func (l *lab) awaitAt(driver, handle, node string) {
	l.Helper()
	l.await(handle+" attached and reported on "+node, func() bool {
		va := l.at(driver, handle, node)
		return va != nil && va.Status.Attached && l.reports(node, kube.UniqueVolumeName(driver, handle))
	})
}

func (l *lab) awaitNotAt(driver, handle, node string) {
	l.Helper()
	l.await(handle+" detached from "+node, func() bool {
		return l.at(driver, handle, node) == nil && !l.reports(node, kube.UniqueVolumeName(driver, handle))
	})
}

// lived checks what became visible of the scenario's attachments, in order.
func (l *lab) lived(want ...string) {
	l.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.history, want) {
		l.Errorf("history %q, want %q", l.history, want)
	}
}

// podOf makes a pod from volumes; wait for it to be seen is not needed.
func (l *lab) podOf(name, node string, volumes ...corev1.Volume) *corev1.Pod {
	l.Helper()
	for i := range volumes {
		if volumes[i].Name == "" {
			volumes[i].Name = fmt.Sprintf("v%d", i)
		}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.prefix, Name: name},
		Spec: corev1.PodSpec{
			NodeName: l.name(node), Containers: []corev1.Container{{Name: "c", Image: "i"}}, Volumes: volumes,
		},
	}
	l.must(l.Create(l.ctx, pod))
	l.Cleanup(func() { _ = l.deletePod(name) })
	return pod
}

// pvOf makes a PersistentVolume of any source, and the claim bound to it.
func (l *lab) pvOf(name string, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
	l.Helper()
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: l.name(name)},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Capacity: storage().Requests,
			PersistentVolumeSource: source,
		},
	}
	l.must(l.Create(l.ctx, pv))
	l.claim(name)
	return pv
}

// csiPV is the source of a CSI PersistentVolume.
func csiPV(driver, handle string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}}
}

// kept checks at the API server that the attachment exists, is the given object, and is not being deleted.
func (l *lab) kept(volume, node string, uid any) {
	l.Helper()
	va := l.read(volume, node)
	switch {
	case va == nil || va.DeletionTimestamp != nil:
		l.Errorf("%s on %s was detached", volume, node)
	case fmt.Sprint(va.UID) != fmt.Sprint(uid):
		l.Errorf("%s on %s was detached and attached again", volume, node)
	}
}

// driverObject makes a CSIDriver of the scenario's own.
func (l *lab) driverObject(name string, attachRequired *bool) string {
	l.Helper()
	d := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: l.name(name)}, Spec: storagev1.CSIDriverSpec{AttachRequired: attachRequired},
	}
	l.must(client.IgnoreAlreadyExists(l.Create(l.ctx, d)))
	l.Cleanup(func() { _ = l.Delete(l.background(), d) })
	return d.Name
}

func ofClaim(name string) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
}

// keyOf is the key of a cluster-scoped object.
func keyOf(name string) client.ObjectKey { return client.ObjectKey{Name: name} }

// background outlives the test, for what it cleans up.
func (l *lab) background() context.Context { return context.WithoutCancel(l.ctx) }

// attachedOnA is where most cases begin: pod p runs on node a, and its volume v is
// reported there.
func (l *lab) attachedOnA() {
	l.Helper()
	l.readyNode("a")
	l.volume("v")
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
}

// runAttachedOnA starts the controller, and has pod p run on node a with its volume v
// reported there.
func (l *lab) runAttachedOnA() {
	l.Helper()
	l.node("a")
	l.volume("v")
	l.run()
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
}
