package nodeagent

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkHops measures the node's two hops with a driver that answers at once.
// The goals: reported -> published 30 ms, pod removed -> cleared 50 ms, both p50.
func BenchmarkHops(b *testing.B) {
	w := newWorld(b)
	agent, _ := w.agent()
	var up, down []time.Duration
	for i := 0; b.Loop(); i++ {
		name := fmt.Sprintf("v%d", i)
		handle := w.volume(name)
		pod := w.pod("p"+name, name)
		agent.SetPod(pod)
		w.untilInUse(handle)
		reporting := time.Now()
		w.attach(handle) // three API calls of their own
		w.mounted(agent, pod)
		up = append(up, time.Since(reporting))
		removing := time.Now()
		agent.RemovePod(pod.UID)
		w.untilNotInUse(handle)
		down = append(down, time.Since(removing))
	}
	b.ReportMetric(p50(up), "ms-attach-to-published")
	b.ReportMetric(p50(down), "ms-removed-to-cleared")
}

// BenchmarkHundredVolumes mounts a hundred volumes at once.
func BenchmarkHundredVolumes(b *testing.B) {
	const volumes = 100
	w := newWorld(b, noAttach)
	agent, _ := w.agent()
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		pods := make([]*corev1.Pod, volumes)
		for n := range volumes {
			name := fmt.Sprintf("v%d-%d", i, n)
			w.volume(name)
			pods[n] = w.pod("p"+name, name)
		}
		began := time.Now()
		var waiting sync.WaitGroup
		for _, pod := range pods {
			agent.SetPod(pod)
			waiting.Go(func() { w.mounted(agent, pod) })
		}
		waiting.Wait()
		took = append(took, time.Since(began))
		for _, pod := range pods {
			agent.RemovePod(pod.UID)
			w.unmounted(agent, pod)
		}
	}
	b.ReportMetric(p50(took), "ms-hundred")
}

func p50(list []time.Duration) float64 {
	slices.Sort(list)
	return float64(list[len(list)/2].Microseconds()) / 1000
}
