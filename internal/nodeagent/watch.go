package nodeagent

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodevolume"
)

// addVolumes adds volumes that a pod uses.
func (m *volumeManager) addVolumes(uid types.UID, volumes []*volumeToMount) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range volumes {
		if !m.pods.addVolume(uid, w.name()) {
			return // the pod was removed
		}
		v := m.ensureVolume(w.name(), w.driver, w.handle, w.inline)
		v.ensurePod(w.key()).toMount = w
		m.updateReleasedAt(v, time.Now())
		m.addSize(v, w)
		m.wake(v.name)
	}
}

// released wakes the volumes of a removed pod. A failed mount does not delay the unmount.
func (m *volumeManager) released(uid types.UID, names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		if v := m.all[name]; v != nil {
			for _, p := range v.pods {
				if p.Key.PodUID == string(uid) {
					p.Failure = nodevolume.Failure{}
				}
			}
			m.updateReleasedAt(v, time.Now())
		}
		m.wake(name)
	}
}

// wakeAll wakes all volumes.
func (m *volumeManager) wakeAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.all {
		m.wake(name)
	}
}

// wakeDriver wakes all volumes of a driver.
func (m *volumeManager) wakeDriver(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.all {
		if v.driver == name {
			m.wake(v.name)
		}
	}
}

// driverReconnected reads stats again, as the driver may have been upgraded.
func (m *volumeManager) driverReconnected(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.all {
		for _, p := range v.pods {
			p.statsUnsupported = p.statsUnsupported && v.driver != name
		}
	}
}

// wake reconciles a volume now, regardless of its back-off, because something that it may wait for has changed. The caller holds mu.
func (m *volumeManager) wake(name string) {
	v, ok := m.all[name]
	if !ok {
		return
	}
	v.state.Wake()
	m.queue.Add(name)
}

// wakeWithAffinity wakes the volumes with a node affinity that a pod waits for, as the labels of the Node have changed.
func (m *volumeManager) wakeWithAffinity() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, v := range m.all {
		if slices.ContainsFunc(v.pods, func(p *podVolume) bool {
			return p.toMount != nil && p.toMount.affinity != nil && p.Phase != nodevolume.Confirmed
		}) {
			m.wake(name)
		}
	}
}

// wakeVolumes wakes the named volumes.
func (m *volumeManager) wakeVolumes(names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		m.wake(name)
	}
}

// handshakes returns which of the volumes that the Node lists in use at start-up were mounted under the handshake. A volume that was
// mounted without it, as its CSIDriver had attachRequired false, is listed again if necessary: an agent that crashed may have been
// removing it, and that write may still be committed. It is Unknown for an unreadable record.
func (m *volumeManager) handshakes(names []string) map[string]nodevolume.Knowledge {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := make(map[string]nodevolume.Knowledge, len(names))
	for _, name := range names {
		v := m.all[name]
		if v == nil {
			v = &volume{}
		}
		doubtful := m.isUnaccounted(name) || v.state.Stage.Phase == nodevolume.Absent && m.mountedByOther(name)
		known[name] = v.state.InUseHandshake(doubtful)
	}
	return known
}

// nodeRead wakes all volumes after the first read of the Node. It adds the volumes listed in use whose records cannot be read.
func (m *volumeManager) nodeRead(listed []string) {
	m.mu.Lock()
	for _, name := range listed {
		if driver, handle, ok := kube.ParseUniqueVolumeName(name); ok && m.isUnaccounted(name) {
			m.ensureVolume(name, driver, handle, false)
			m.log.Error(nil, "Node lists a volume in use whose record cannot be read", "driver", driver, "handle", handle, "remedy", explain.SeeUnreadable)
		}
	}
	m.mu.Unlock()
	m.wakeAll()
}
