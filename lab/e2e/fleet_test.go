package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/proxy"
)

// fleetSize is how many nodes there are: two of them may be silent at a time (fencing.DefaultBrakes).
const fleetSize, maySilent = 6, 2

// apiServer is a component of the lab.
const apiServer = "kube-apiserver"

// TestFleet has the faults that are no node's own: most nodes at once, a switch that fails node by node, the API server, and the controller in
// the middle of a fence. All nodes have a BMC that obeys, so what keeps a node from being switched off is recovery alone.
func TestFleet(t *testing.T) {
	needsFencing(t)
	s := openSite(t, cluster.Options{Name: "hl-fleet", Nodes: fleetSize, NodeKind: cluster.NodeKindBelay})
	t.Run("most nodes at once", func(t *testing.T) { s.of(t).manyAtOnce() })
	t.Run("one after the other", func(t *testing.T) { s.of(t).rolling() })
	t.Run("API server frozen", func(t *testing.T) { s.of(t).frozenServer() })
	for _, phase := range []fencing.Phase{fencing.Isolating, fencing.Fencing, fencing.Tainting, fencing.Evicting, fencing.Detaching} {
		t.Run("controller killed in "+string(phase), func(t *testing.T) { s.of(t).killedIn(phase) })
	}
}

// nodes are all nodes, that of the writer first.
func (s *site) nodes() []string {
	s.Helper()
	all := []string{s.WriterNode()}
	for i := range fleetSize {
		if name := fmt.Sprintf("node-%d", i+1); name != all[0] {
			all = append(all, name)
		}
	}
	return all
}

// manyAtOnce: the brake holds while 4 of 6 nodes are cut off. Healed, none has lost anything.
func (s *site) manyAtOnce() {
	lab, began, pod := s.Scene.Cluster, time.Now(), s.WriterPod().UID
	lost := s.nodes()[:4]
	for _, node := range lost {
		s.Must(lab.Partition(node, cluster.Both))
	}
	labtest.Until(s.T, fenceLimit, "an event that says why no node is fenced", func() error {
		return s.Heard(string(fencing.TooManySilent), began)
	})
	for end := began.Add(45 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		s.none(began)
	}
	for _, node := range lost {
		s.Must(lab.Heal(node))
	}
	for _, node := range lost {
		s.Released(node)
	}
	s.none(began)
	if now := s.WriterPod(); now.UID != pod {
		s.Error("the pod is another one")
	}
	s.Intact()
}

// none checks that no node is fenced or was switched off since a time.
func (s *site) none(since time.Time) {
	s.Helper()
	for _, node := range s.nodes() {
		if f := s.Fence(node); f != nil && f.CreationTimestamp.After(since) {
			s.Fatalf("%s is fenced: %+v", node, f.Status)
		}
		if off := s.SwitchedOff(node, since); !off.IsZero() {
			s.Fatalf("%s was switched off at %v", node, off)
		}
	}
}

// rolling: of nodes that fall silent five seconds apart, no more are switched off than may be silent.
func (s *site) rolling() {
	lab, began, nodes := s.Scene.Cluster, time.Now(), s.nodes()
	from := nodes[0]
	for _, node := range nodes[:5] {
		s.Must(lab.Partition(node, cluster.Both))
		time.Sleep(5 * time.Second)
	}
	labtest.Until(s.T, fenceLimit, "an event that says why the others are not fenced", func() error {
		return s.Heard(string(fencing.TooManySilent), began)
	})
	time.Sleep(20 * time.Second)
	var off []string
	for _, node := range nodes {
		if !s.SwitchedOff(node, began).IsZero() {
			off = append(off, node)
		}
		if f := s.Fence(node); f != nil {
			s.Logf("%s is %s", node, f.Status.Phase)
		}
	}
	s.Logf("of %v, cut off one after the other, %v were switched off", nodes[:5], off)
	if len(off) == 0 || len(off) > maySilent || !slices.Contains(off, from) {
		s.Errorf("%d machines were switched off, want 1 to %d, and %s among them", len(off), maySilent, from)
	}
	for _, node := range nodes {
		s.Must(lab.Heal(node))
		s.Must(lab.PowerOn(node))
	}
	s.Moved(from, fenceLimit)
	for _, node := range nodes {
		s.Released(node)
	}
	s.Intact()
	s.forget()
}

// forget deletes the fences that are finished: the brake of several minutes counts them, and a test has more of them.
func (s *site) forget() {
	s.Helper()
	fences := &fencingv1.NodeFenceList{}
	s.Must(s.API.List(s.Context(), fences))
	for i := range fences.Items {
		if f := &fences.Items[i]; len(f.Finalizers) == 0 {
			s.Must(client.IgnoreNotFound(s.API.Delete(s.Context(), f)))
		}
	}
}

// frozenServer: the API server stops for a minute while a node is being fenced. No other node is, although none could renew its lease; the
// one that is gets no second command.
func (s *site) frozenServer() {
	lab, began, from := s.Scene.Cluster, time.Now(), s.WriterNode()
	s.Must(lab.Partition(from, cluster.Both))
	s.Reaches(from, fencing.Fencing)
	server, err := lab.Component(apiServer)
	s.Must(err)
	s.Must(unix.Kill(server.PID, unix.SIGSTOP))
	s.Cleanup(func() { _ = unix.Kill(server.PID, unix.SIGCONT) })
	time.Sleep(time.Minute)
	s.Must(unix.Kill(server.PID, unix.SIGCONT))
	s.Moved(from, fenceLimit)
	s.onlyFenced(from, began)
	s.returns(from)
}

// onlyFenced checks that one node was fenced since a time, by one command, before anything was taken from it.
func (s *site) onlyFenced(node string, since time.Time) {
	s.Helper()
	for _, other := range s.nodes() {
		if f := s.Fence(other); other != node && f != nil && f.CreationTimestamp.After(since) {
			s.Errorf("%s is fenced too: %s", other, f.Status.Phase)
		}
		if off := s.SwitchedOff(other, since); other != node && !off.IsZero() {
			s.Errorf("%s was switched off too", other)
		}
	}
	log, err := s.Scene.Cluster.BMCLog(node)
	s.Must(err)
	commands := 0
	for _, r := range log {
		if r.Request == cluster.BMCOff && r.Began.After(since) {
			commands++
		}
	}
	off, deleted := s.SwitchedOff(node, since), s.Deleted(node, since)
	s.Logf("switched off at %.1f s, VolumeAttachment deleted at %.1f s", off.Sub(since).Seconds(), deleted.Sub(since).Seconds())
	if commands != 1 || off.IsZero() || off.After(deleted) {
		s.Errorf("%d commands; off at %v, VolumeAttachment deleted at %v", commands, off, deleted)
	}
}

// returns lets a node that was switched off start again.
func (s *site) returns(node string) {
	s.Helper()
	s.Must(s.Scene.Cluster.Heal(node))
	s.Must(s.Scene.Cluster.PowerOn(node))
	s.Intact()
	s.Released(node)
	s.forget()
}

// killedIn: the controller is killed when the phase is stored, and before it knows that. Its next run continues from there.
func (s *site) killedIn(phase fencing.Phase) {
	lab := s.Scene.Cluster
	config, err := lab.ControllerConfig()
	s.Must(err)
	between, err := proxy.Start(s.Context(), config)
	s.Must(err)
	s.Must(lab.StopController(s.Context()))
	s.Must(lab.RunController(cluster.ControllerRun{Server: between.URL()}))
	stored := make(chan struct{})
	once := sync.OnceFunc(func() { close(stored) })
	between.Intercept(func(moment proxy.Moment, r proxy.Request) bool {
		enters := r.Right() == "patch nodefences/status" && strings.Contains(string(r.Body), fmt.Sprintf(`"phase":%q`, phase))
		if moment == proxy.After && enters {
			once()
			return false
		}
		return true
	})
	from, began := s.WriterNode(), time.Now()
	s.Must(lab.Partition(from, cluster.Both))
	select {
	case <-stored:
	case <-time.After(fenceLimit):
		s.Fatalf("the fence never came to %s: %+v", phase, s.Fence(from))
	}
	s.Must(lab.CrashController())
	if f := s.Fence(from); fencing.Phase(f.Status.Phase) != phase {
		s.Errorf("killed in %s, want %s", f.Status.Phase, phase)
	}
	s.Must(lab.RunController(cluster.ControllerRun{}))
	s.Moved(from, fenceLimit)
	s.Reaches(from, fencing.Moved)
	s.onlyFenced(from, began)
	s.returns(from)
}
