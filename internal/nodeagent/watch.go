package nodeagent

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodevolume"
)

// wanted gives the volumes that a pod wants to their lives.
func (m *volumeManager) wanted(uid types.UID, wants []*wantedVolume) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range wants {
		if !m.pods.join(uid, w.name()) {
			return // it went meanwhile
		}
		v := m.volumeNamed(w.name(), w.driver, w.handle, w.inline)
		v.publication(w.key()).want = w
		m.noteReleased(v, time.Now())
		m.wantSize(v, w)
		m.wake(v.name)
	}
}

// released has the volumes of a pod looked at that is not wanted any more. What failed on the way in does not hold up the
// way back.
func (m *volumeManager) released(uid types.UID, names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		if v := m.all[name]; v != nil {
			for _, its := range v.pods {
				if its.Key.PodUID == string(uid) {
					its.Failure = nodevolume.Failure{}
				}
			}
			m.noteReleased(v, time.Now())
		}
		m.wake(name)
	}
}

// wakeAll has all volumes looked at.
func (m *volumeManager) wakeAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.all {
		m.wake(name)
	}
}

// wakeDriver has all volumes of a driver looked at.
func (m *volumeManager) wakeDriver(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.all {
		if v.driver == name {
			m.wake(v.name)
		}
	}
}

// driverReconnected: the driver may be another version, and its calls may work again.
func (m *volumeManager) driverReconnected(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.all {
		for _, p := range v.pods {
			p.withoutStats = p.withoutStats && v.driver != name
		}
	}
}

// wake has a volume looked at now, whatever back-off runs: something that it may
// have waited for has changed. The caller holds mu.
func (m *volumeManager) wake(name string) {
	v, ok := m.all[name]
	if !ok {
		return
	}
	v.life.Wake()
	m.queue.Add(name)
}

// wakeMisplaced wakes the volumes that some pod waits for and that may be used by some nodes
// only: by its labels this one may have become one of them.
func (m *volumeManager) wakeMisplaced() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, v := range m.all {
		if slices.ContainsFunc(v.pods, func(p *podVolume) bool {
			return p.want != nil && p.want.affinity != nil && p.Phase != nodevolume.Confirmed
		}) {
			m.wake(name)
		}
	}
}

// learned wakes the volumes about which something new is known.
func (m *volumeManager) learned(names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		m.wake(name)
	}
}

// handshakes says which of the names that the Node lists at start-up have a record here that was made under the handshake.
// One that was mounted without, while its CSIDriver asked for no attachment, is listed anew if it has to be: an agent
// that died may have been taking it out, and that write may still land. Of what cannot be read nobody knows which it was.
func (m *volumeManager) handshakes(names []string) map[string]nodevolume.Knowledge {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := make(map[string]nodevolume.Knowledge, len(names))
	for _, name := range names {
		v := m.all[name]
		if v == nil {
			v = &volume{}
		}
		doubtful := m.isUnaccounted(name) || v.life.Stage.Phase == nodevolume.Absent && m.mountedByOther(name)
		known[name] = v.life.InUseHandshake(doubtful)
	}
	return known
}

// nodeRead has all volumes looked at once the Node has been read. What it lists in use and may be mounted without a
// record is known by name from here on, and spoken of.
func (m *volumeManager) nodeRead(listed []string) {
	m.mu.Lock()
	for _, name := range listed {
		if driver, handle, ok := kube.ParseUniqueVolumeName(name); ok && m.isUnaccounted(name) {
			m.volumeNamed(name, driver, handle, false)
			m.log.Error(nil, "Node lists a volume in use whose record cannot be read", "volume", name)
		}
	}
	names := slices.Collect(maps.Keys(m.all))
	m.mu.Unlock()
	m.learned(names)
}
