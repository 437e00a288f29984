package nodeagent

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
)

// rebuild loads the records. It needs no API server and no driver.
func (m *volumeManager) rebuild() error {
	names, err := m.records.open()
	if err != nil {
		return err
	}
	var unreadable []string
	for _, name := range names {
		switch {
		case mount.IsTemporary(name):
			// The agent crashed before it called the driver.
			if err := m.records.dir.Remove(name); err != nil {
				return err
			}
		case strings.HasSuffix(name, ".stage.json"), strings.HasSuffix(name, ".publish.json"):
			record, err := m.records.readRecord(name)
			if err != nil { // such as a bad block; continue with the other records
				m.log.Error(err, "Failed to read record", "record", name)
				unreadable = append(unreadable, name)
				continue
			}
			m.adopt(record)
		}
	}
	return m.findUnaccounted(unreadable)
}

// adopt adds the volume of a record found at start-up.
func (m *volumeManager) adopt(record nodevolume.Record) {
	m.reports.metrics.Found(true)
	v := m.ensureVolume(uniqueName(record), record.Driver, record.Handle, record.Inline)
	v.state.AddRecord(record, m.config.BootID, m.records.mountedAt(record))
	for _, p := range v.state.Pods {
		v.ensurePod(p.Key)
		m.pods.recorded(types.UID(p.Key.PodUID), v.name)
	}
	m.log.Info("Found record", append(namesOf(record).values(), "kind", record.Kind, "confirmed", record.Confirmed, "unmounting", record.Leaving)...)
}

// findUnaccounted reads the vol_data.json files. They replace unreadable records, and reveal volumes that are mounted without a record,
// such as by a kubelet that used this root before. A volume that remains unaccounted for stays in use.
func (m *volumeManager) findUnaccounted(unreadable []string) error {
	found, err := m.records.findVolumeData()
	if err != nil {
		return err
	}
	for _, record := range found {
		name := recordName(record)
		i := slices.Index(unreadable, name)
		switch {
		case i >= 0:
			unreadable = slices.Delete(unreadable, i, i+1)
			m.adopt(record)
			if err := m.records.saveRecord(name, record, mount.PowerCut); err != nil {
				return err
			}
			m.log.Info("Recreated record from "+volumeData, append(namesOf(record).values(), "record", name)...)
		case !m.recorded(record) && m.records.mountedAt(record) != nodevolume.No:
			m.records.unaccounted[name] = struct{}{}
			m.log.Error(nil, "Keeping volume staged and in use because it is mounted without a record, perhaps by a kubelet",
				append(namesOf(record).values(), "path", m.root.Path(record.Path), "remedy", explain.UnmountUnrecorded)...)
		}
	}
	for _, name := range unreadable {
		m.records.unaccounted[name] = struct{}{}
		m.reports.metrics.Found(false)
		m.log.Error(nil, "Keeping volume staged and in use because its record cannot be read and no other file describes the mount",
			"record", name, "remedy", explain.UnmountUnreadable(m.records.dir.Path(name)))
	}
	return nil
}

// recorded reports whether there is a record for a volume found in a vol_data.json.
func (m *volumeManager) recorded(found nodevolume.Record) bool {
	v := m.all[uniqueName(found)]
	switch {
	case v == nil:
		return false
	case found.Kind == nodevolume.StageKind:
		return v.state.Stage.Phase != nodevolume.Absent
	default:
		key := nodevolume.PublishKey{PodUID: found.Pod.UID, SpecName: found.SpecName}
		return slices.ContainsFunc(v.pods, func(p *podVolume) bool { return p.Key == key && p.Phase != nodevolume.Absent })
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
		doubtful := m.records.isUnaccounted(name) || v.state.Stage.Phase == nodevolume.Absent && m.records.mountedByOther(name)
		known[name] = v.state.InUseHandshake(doubtful)
	}
	return known
}

// nodeRead wakes all volumes after the first read of the Node. It adds the volumes listed in use whose records cannot be read.
func (m *volumeManager) nodeRead(listed []string) {
	m.mu.Lock()
	for _, name := range listed {
		if driver, handle, ok := kube.ParseUniqueVolumeName(name); ok && m.records.isUnaccounted(name) {
			m.ensureVolume(name, driver, handle, false)
			m.log.Error(nil, "Node lists a volume in use whose record cannot be read", "driver", driver, "handle", handle, "remedy", explain.SeeUnreadable)
		}
	}
	m.mu.Unlock()
	m.wakeAll()
}
