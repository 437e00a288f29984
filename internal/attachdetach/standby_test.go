package attachdetach

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/kube"
)

// received is what a controller has read from the API server.
type received struct {
	lab *lab
	// answers are the bodies, each by itself: those of several watches come at the same time, in pieces. Guarded by lab.mu, as is what follows.
	answers []*answer
	leases  int // answers about the lease
}

// answer is the body of one answer, as far as it was read.
type answer struct {
	lab  *lab
	text []byte
}

func (a *answer) Write(p []byte) (int, error) {
	a.lab.see(func() { a.text = append(a.text, p...) })
	return len(p), nil
}

func (r *received) transport(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		if err != nil {
			return nil, err
		}
		body := &answer{lab: r.lab}
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(response.Body, body), response.Body}
		r.lab.see(func() {
			r.answers = append(r.answers, body)
			if strings.Contains(request.URL.Path, "/leases/") {
				r.leases++
			}
		})
		return response, nil
	})
}

// has reports whether a text was among it; hold lab.mu.
func (r *received) has(text string) bool {
	return slices.ContainsFunc(r.answers, func(a *answer) bool { return bytes.Contains(a.text, []byte(text)) })
}

// The leader moves an exclusive Fibre Channel volume from a to b, a's kubelet registers again, and the leader exits:
// the standby has observed all of it and leads.
func TestStandbyThatLeadsReportsToOneNode(t *testing.T) {
	l := newLab(t)
	l.readyNode("a", "b")
	fc, unique := l.fcVolume()
	l.pvOf("v", corev1.PersistentVolumeSource{FC: &fc})
	stopLeader := l.run()
	l.pod("p", "a", "v")
	l.await("reported to a", func() bool { return l.reports("a", unique) })
	standby := &received{lab: l}
	l.transport = standby.transport
	stopStandby := l.run()
	defer stopStandby()
	l.await("the standby has the Node's report", func() bool { return standby.has(unique) })
	l.mu.Lock()
	from := standby.leases
	l.mu.Unlock()
	l.await("and has long asked for the lease, its caches being warm", func() bool { return standby.leases >= from+10 })
	l.uses("a", unique)
	l.gone("p")
	l.pod("q", "b", "v")
	l.uses("a")
	l.await("attached to the other node", func() bool { return l.reports("b", unique) && !l.reports("a", unique) })
	l.uses("b", unique)
	l.shut("a")
	l.registers("a", func(n *corev1.Node) { n.Labels = map[string]string{"registered": "again-" + l.prefix} })
	l.await("the standby has the Node that was recreated", func() bool { return standby.has("again-" + l.prefix) })
	stopLeader()
	l.settled("b") // the standby leads
	l.never("S1: reported to a while it is reported to and mounted on b", 0, func() bool {
		return l.reports("a", unique) && l.reports("b", unique)
	})
}

// a has a Fibre Channel volume mounted; its Node is deleted and recreated, for the same boot, by a client that leaves
// the annotation to kubelet.
func TestRecreatedNodeWithoutAnnotationBlocksOthers(t *testing.T) {
	l := newLab(t)
	l.readyNode("a", "b")
	fc, unique := l.fcVolume()
	l.pvOf("v", corev1.PersistentVolumeSource{FC: &fc})
	stop := l.run()
	defer stop()
	l.pod("p", "a", "v")
	l.await("reported to a", func() bool { return l.reports("a", unique) })
	l.uses("a", unique)
	l.pod("q", "b", "v")
	l.shut("a")
	l.gone("p")
	l.registers("a", func(n *corev1.Node) { delete(n.Annotations, kube.ManagedAttachAnnotation) })
	l.never("S1: reported to b while a has it mounted", 10*time.Second, func() bool { return l.reports("b", unique) })
}
