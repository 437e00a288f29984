package attachdetach

import (
	"encoding/json"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/kube"
)

// One node lists 50,000 volumes in use (1.4 MB, which the API server stores) and sends its status. Each such event is
// handled by the single goroutine that handles all Node events.
func TestHeartbeatOfALongNode(t *testing.T) {
	measures(t)
	m := newModel(t)
	var names []string
	for i := range 50_000 {
		names = append(names, kube.UniqueVolumeName("d", strconv.Itoa(100_000+i)))
	}
	m.put(aNode("long", isReady, listing(names, nil)))
	next := aNode("long", listing(names, nil)) // a heartbeat: no list changed
	if took := cpuTimeOf(t, func() { m.put(next) }); took > time.Second {
		t.Errorf("one event of one node takes %v", took)
	} else {
		t.Logf("one event of one node takes %v", took)
	}
}

// The same node also writes belay's annotation on its own Node, as long as the API server
// admits it, and changes its list of volumes in use from nothing to 50,000 and back: each
// volume is woken, and each decision reads the whole annotation and the whole list again.
func TestDecisionsOnALongNode(t *testing.T) {
	measures(t)
	m := newModel(t)
	requests := map[string]string{}
	for i := range 3_500 {
		requests[kube.UniqueVolumeName("d", strconv.Itoa(100_000+i))] = "2026-01-01T00:00:00.000000000Z"
	}
	text, err := json.Marshal(requests)
	if err != nil || len(text) > 250<<10 {
		t.Fatal(len(text), err)
	}
	var names []string
	for i := range 50_000 {
		names = append(names, kube.UniqueVolumeName("d", strconv.Itoa(100_000+i)))
	}
	noted := func(n *corev1.Node) { n.Annotations[kube.DetachesRequestedAnnotation] = string(text) }
	m.put(aNode("long", isReady, noted))
	woken := m.put(aNode("long", isReady, noted, listing(names, nil)))
	const sample = 200
	took := cpuTimeOf(t, func() {
		for _, k := range woken[:sample] {
			m.decide(k)
		}
	})
	if all := took * time.Duration(len(woken)) / sample; all > 10*time.Second {
		t.Errorf("one write of one node costs %v of processor time: %d decisions of %v", all.Round(time.Second), len(woken), took/sample)
	}
}
