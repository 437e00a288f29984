package attachdetach

import (
	"encoding/json"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/cputime"
)

// longNode is how many volumes the longest list of a Node names in these tests: 1.4 MB, which the API server stores.
const longNode = 50_000

// nthVolumes returns the unique names of so many volumes.
func nthVolumes(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = kube.UniqueVolumeName("d", strconv.Itoa(100_000+i))
	}
	return names
}

// One node lists 50,000 volumes in use and sends its status. Each such event is handled by the single goroutine that handles all
// Node events, and must not delay it by more than a few times what the client needs to decode the event.
func TestHeartbeatOfALongNode(t *testing.T) {
	cputime.Judges(t)
	m, names := newModel(t), nthVolumes(longNode)
	m.put(aNode("long", isReady, listing(names, nil)))
	next := aNode("long", listing(names, nil)) // a heartbeat: no list changed
	text, err := json.Marshal(next)
	if err != nil {
		t.Fatal(err)
	}
	cputime.AtMost(t, 3, func() { m.put(next) }, func() {
		if err := json.Unmarshal(text, &corev1.Node{}); err != nil {
			t.Fatal(err)
		}
	})
}

// The same node also writes belay's annotation on its own Node, as long as the API server admits it, and changes its list of
// volumes in use from nothing to 50,000 and back: each volume is woken, and each decision needs the annotation and the list.
// It takes no longer than with the longest list that each decision reads itself.
func TestDecisionsOnALongNode(t *testing.T) {
	cputime.Judges(t)
	cputime.AtMost(t, 1, decisions(t, longNode, 3_500), decisions(t, largeNodeVolumes, 35))
}

// decisions returns a function that decides about volumes that a node with so many volumes in use, and so many detaches requested, has woken.
func decisions(t *testing.T, inUse, requested int) func() {
	t.Helper()
	m, requests := newModel(t), map[string]string{}
	for _, name := range nthVolumes(requested) {
		requests[name] = "2026-01-01T00:00:00.000000000Z"
	}
	text, err := json.Marshal(requests)
	if err != nil || len(text) > 250<<10 {
		t.Fatal(len(text), err)
	}
	noted := func(n *corev1.Node) { n.Annotations[kube.DetachesRequestedAnnotation] = string(text) }
	m.put(aNode("long", isReady, noted))
	woken := m.put(aNode("long", isReady, noted, listing(nthVolumes(inUse), nil)))
	if len(woken) != inUse {
		t.Fatalf("%d volumes are woken, want %d", len(woken), inUse)
	}
	return func() {
		for _, k := range woken[:20] {
			m.decide(k)
		}
	}
}
