package nodeagent

import (
	"slices"
	"sync"

	"k8s.io/client-go/util/workqueue"

	"belay.dev/belay/internal/nodevolume"
)

// volumeSet is the volumes of the node, with their lock and their queue. All rooms that work on volumes share it; the lock is taken before
// those of nodestatus, podManager and plugins, in this order.
type volumeSet struct {
	// queue has the volumes to reconcile. It hands a key to one goroutine at a time; there is no other lock per volume.
	queue workqueue.TypedDelayingInterface[string]

	mu sync.Mutex
	// Under mu:
	all map[string]*volume
}

func newVolumeSet() *volumeSet {
	return &volumeSet{queue: workqueue.NewTypedDelayingQueue[string](), all: map[string]*volume{}}
}

// ensureVolume returns the volume, and creates it if it is new. The caller holds mu.
func (s *volumeSet) ensureVolume(name, driver, handle string, inline bool) *volume {
	v, ok := s.all[name]
	if !ok {
		v = &volume{name: name, driver: driver, handle: handle, state: nodevolume.VolumeState{Inline: inline}, waits: map[nodevolume.PublishKey]currentWait{}}
		s.all[name] = v
	}
	return v
}

// findPodVolume returns the entry of a pod's volume, or nil. The caller holds mu.
func (s *volumeSet) findPodVolume(w *volumeToMount) (*podVolume, *volume) {
	v := s.all[w.name()]
	if v == nil {
		return nil, nil
	}
	return v.findPod(w.key()), v
}

func (s *volumeSet) podVolume(v *volume, key nodevolume.PublishKey) *podVolume {
	s.mu.Lock()
	defer s.mu.Unlock()
	return v.ensurePod(key)
}

// recordCount is the number of recorded stages and publishes.
func (s *volumeSet) recordCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := 0
	for _, v := range s.all {
		if v.state.Stage.Phase != nodevolume.Absent {
			count++
		}
		for _, p := range v.pods {
			if p.Phase != nodevolume.Absent {
				count++
			}
		}
	}
	return count
}

// wake reconciles a volume now, regardless of its back-off, because something that it may wait for has changed. The caller holds mu.
func (s *volumeSet) wake(name string) {
	v, ok := s.all[name]
	if !ok {
		return
	}
	v.state.Wake()
	s.queue.Add(name)
}

// wakeAll wakes all volumes.
func (s *volumeSet) wakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.all {
		s.wake(name)
	}
}

// wakeVolumes wakes the named volumes.
func (s *volumeSet) wakeVolumes(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		s.wake(name)
	}
}

// wakeDriver wakes all volumes of a driver.
func (s *volumeSet) wakeDriver(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.all {
		if v.driver == name {
			s.wake(v.name)
		}
	}
}

// wakeWithAffinity wakes the volumes with a node affinity that a pod waits for, as the labels of the Node have changed.
func (s *volumeSet) wakeWithAffinity() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, v := range s.all {
		if slices.ContainsFunc(v.pods, func(p *podVolume) bool {
			return p.toMount != nil && p.toMount.affinity != nil && p.Phase != nodevolume.Confirmed
		}) {
			s.wake(name)
		}
	}
}

// queueWaiting queues the volumes that wait for a reason. Unlike wake it keeps their back-offs. The caller holds mu.
func (s *volumeSet) queueWaiting(reason nodevolume.Reason) {
	for name, v := range s.all {
		for _, wait := range v.waits {
			if wait.reason == reason {
				s.queue.Add(name)
				break
			}
		}
	}
}
