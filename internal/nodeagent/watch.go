package nodeagent

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

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
		m.reports.updateReleasedAt(v, time.Now())
		m.growth.addSize(v, w)
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
			m.reports.updateReleasedAt(v, time.Now())
		}
		m.wake(name)
	}
}

// driverReconnected reads stats again, as the driver may have been upgraded.
func (t *tasks) driverReconnected(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, v := range t.all {
		for _, p := range v.pods {
			p.statsUnsupported = p.statsUnsupported && v.driver != name
		}
	}
}
