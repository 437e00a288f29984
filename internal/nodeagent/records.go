package nodeagent

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
)

// lockFile is locked by the agent that uses the root: two would call drivers for the same volume at once, and overwrite each other's
// volumesInUse.
const lockFile = "belay.lock"

// recordsDir has one file per stage and per publish, below the root.
const recordsDir = "belay/volumes"

func recordPath(name string) string { return path.Join(recordsDir, name) }

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// File names are hashes: a volume handle may have any character, and be longer than a file name. All records are in one directory, so that
// one fsync makes a new one durable.
func stageRecordName(volume string) string { return hash(volume) + ".stage.json" }

// recordName returns the file name of the record of a step.
func (v *volume) recordName(step nodevolume.Step) string {
	switch step.(type) {
	case nodevolume.StageVolume, nodevolume.Unstage:
		return stageRecordName(v.name)
	default:
		return publishRecordName(v.name, nodevolume.KeyOf(step))
	}
}

func publishRecordName(volume string, key nodevolume.PublishKey) string {
	return hash(volume) + "." + hash(key.PodUID + "\x00" + key.SpecName)[:32] + ".publish.json"
}

func (m *volumeManager) saveRecord(name string, record nodevolume.Record, must mount.Durability) error {
	raw, err := record.Encode()
	if err != nil {
		return err
	}
	if err := m.config.writeRecord(m.records, name, raw, must); err != nil {
		return fmt.Errorf("record the %s of volume %s: %w", record.Kind, record.Handle, err)
	}
	return nil
}

// rebuild loads the records. It needs no API server and no driver.
func (m *volumeManager) rebuild() error {
	err := m.root.MakeDirDurable(recordsDir)
	if err == nil {
		m.records, err = m.root.Sub(recordsDir)
	}
	if err != nil {
		return err
	}
	names, err := m.records.List(".")
	if err != nil {
		return err
	}
	slices.Sort(names)
	var unreadable []string
	for _, name := range names {
		switch {
		case mount.IsTemporary(name):
			// The agent crashed before it called the driver.
			if err := m.records.Remove(name); err != nil {
				return err
			}
		case strings.HasSuffix(name, ".stage.json"), strings.HasSuffix(name, ".publish.json"):
			record, err := m.readRecord(name)
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

func (m *volumeManager) readRecord(name string) (nodevolume.Record, error) {
	raw, err := m.records.ReadFile(name)
	if err != nil {
		return nodevolume.Record{}, fmt.Errorf("read record %s: %w", name, err)
	}
	record, err := nodevolume.DecodeRecord(raw)
	if err != nil {
		return record, fmt.Errorf("read record %s: %w", name, err)
	}
	return record, nil
}

// adopt adds the volume of a record found at start-up.
func (m *volumeManager) adopt(record nodevolume.Record) {
	m.metrics.Found(true)
	v := m.ensureVolume(uniqueName(record), record.Driver, record.Handle, record.Inline)
	v.state.AddRecord(record, m.config.BootID, m.mountedAt(record))
	for _, p := range v.state.Pods {
		v.ensurePod(p.Key)
		m.pods.recorded(types.UID(p.Key.PodUID), v.name)
	}
	m.log.Info("Found record", append(namesOf(record).values(), "kind", record.Kind, "confirmed", record.Confirmed, "unmounting", record.Leaving)...)
}

// findUnaccounted reads the vol_data.json files. They replace unreadable records, and reveal volumes that are mounted without a record,
// such as by a kubelet that used this root before. A volume that remains unaccounted for stays in use.
func (m *volumeManager) findUnaccounted(unreadable []string) error {
	found, err := m.findVolumeData()
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
			if err := m.saveRecord(name, record, mount.PowerCut); err != nil {
				return err
			}
			m.log.Info("Recreated record from "+volumeData, append(namesOf(record).values(), "record", name)...)
		case !m.recorded(record) && m.mountedAt(record) != nodevolume.No:
			m.unaccounted[name] = struct{}{}
			m.log.Error(nil, "Keeping volume staged and in use because it is mounted without a record, perhaps by a kubelet",
				append(namesOf(record).values(), "path", m.root.Path(record.Path), "remedy", explain.UnmountUnrecorded)...)
		}
	}
	for _, name := range unreadable {
		m.unaccounted[name] = struct{}{}
		m.metrics.Found(false)
		m.log.Error(nil, "Keeping volume staged and in use because its record cannot be read and no other file describes the mount",
			"record", name, "remedy", explain.UnmountUnreadable(m.records.Path(name)))
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

// mountedAt reports whether something is mounted at the path of a record.
func (m *volumeManager) mountedAt(r nodevolume.Record) nodevolume.Knowledge {
	var mounted bool
	var err error
	if r.Kind == nodevolume.PublishKind {
		mounted, err = m.root.IsPublished(r.Path, r.Block)
	} else {
		mounted, err = m.root.Mounted(r.Path)
	}
	if err != nil {
		return nodevolume.Unknown
	}
	return decision.Known(mounted)
}

// isUnaccounted reports whether the volume may be mounted without a record. The caller holds mu.
func (m *volumeManager) isUnaccounted(volume string) bool {
	if len(m.unaccounted) == 0 {
		return false
	}
	prefix := hash(volume) + "."
	for name := range m.unaccounted {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func recordName(r nodevolume.Record) string {
	volume := uniqueName(r)
	if r.Kind == nodevolume.StageKind {
		return stageRecordName(volume)
	}
	return publishRecordName(volume, nodevolume.PublishKey{PodUID: r.Pod.UID, SpecName: r.SpecName})
}

// findVolumeData translates every vol_data.json below the root to the records that may belong to it, with only what an unmount needs.
func (m *volumeManager) findVolumeData() ([]nodevolume.Record, error) {
	var found []nodevolume.Record
	add := func(dir string, record nodevolume.Record) {
		data, err := readVolumeData(m.root, dir)
		if err != nil {
			return
		}
		record.Driver, record.Handle, record.Root = data["driverName"], data["volumeHandle"], m.configuredRoot()
		record.SpecName = cmp.Or(record.SpecName, data["specVolID"])
		record.SELinuxLabel = data[seLinuxData]
		record.Inline = data["volumeLifecycleMode"] == string(lifecycleMode(true))
		record.InUse, record.Guessed = !record.Inline, !record.Inline
		if record.Driver != "" && record.Handle != "" {
			found = append(found, record)
		}
	}
	err := m.eachDir(csiDir, func(driver string) error {
		return m.eachDir(path.Join(csiDir, driver), func(volume string) error {
			dir := path.Join(csiDir, driver, volume)
			add(dir, nodevolume.Record{Kind: nodevolume.StageKind, Path: path.Join(dir, globalMount)})
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	err = m.eachDir(blockDir, func(pv string) error {
		add(path.Join(blockDir, pv, "data"), nodevolume.Record{
			Kind: nodevolume.StageKind, Block: true, SpecName: pv, Path: path.Join(blockDir, "staging", pv),
		})
		return m.eachDir(path.Join(blockDir, "publish", pv), func(uid string) error {
			add(path.Join(blockDir, pv, "data"), nodevolume.Record{
				Kind: nodevolume.PublishKind, Block: true, SpecName: pv, Path: path.Join(blockDir, "publish", pv, uid),
				Pod: nodevolume.RecordPod{UID: uid},
			})
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	err = m.eachDir("pods", func(uid string) error {
		return m.eachDir(podVolumesDir(uid), func(spec string) error {
			dir := path.Join(podVolumesDir(uid), spec)
			add(dir, nodevolume.Record{Kind: nodevolume.PublishKind, Path: path.Join(dir, "mount"), Pod: nodevolume.RecordPod{UID: uid}})
			return nil
		})
	})
	return found, err
}

func (m *volumeManager) eachDir(dir string, do func(name string) error) error {
	names, err := m.root.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := do(name); err != nil {
			return err
		}
	}
	return nil
}

// mountedByOther reports whether something is mounted at kubelet's staging path of a volume without a record; a kubelet may have used this
// root before.
func (m *volumeManager) mountedByOther(name string) bool {
	driver, handle, ok := kube.ParseUniqueVolumeName(name)
	if !ok || mount.CheckName(driver) != nil {
		return true // not a CSI volume
	}
	mounted, err := m.root.Mounted(path.Join(csiDir, driver, hash(handle), globalMount))
	return mounted || err != nil
}
