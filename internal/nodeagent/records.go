package nodeagent

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/go-logr/logr"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
)

// recordStore has the records of the volumes and what else is below the root for them: kubelet's directories and vol_data.json.
type recordStore struct {
	nodeName string
	log      logr.Logger
	root     *mount.Root
	// dir is the directory with the records, once open has been called.
	dir *mount.Root
	// write is Config.writeRecord.
	write func(*mount.Root, string, []byte, mount.Durability) error
	// unaccounted has the names of records that cannot be read or are missing for a mount. A name begins with its volume's hash. It is under
	// the lock of the volumes.
	unaccounted map[string]struct{}
}

func newRecordStore(config Config, root *mount.Root) *recordStore {
	return &recordStore{nodeName: config.NodeName, log: config.Logger, root: root, write: config.writeRecord, unaccounted: map[string]struct{}{}}
}

// open opens the directory with the records, and returns their names.
func (s *recordStore) open() (names []string, err error) {
	if err := s.root.MakeDirDurable(recordsDir); err != nil {
		return nil, err
	}
	if s.dir, err = s.root.Sub(recordsDir); err != nil {
		return nil, err
	}
	names, err = s.dir.List(".")
	slices.Sort(names)
	return names, err
}

func (s *recordStore) close() error {
	if s.dir == nil {
		return nil
	}
	return s.dir.Close()
}

// File names are hashes: a volume handle may have any character, and be longer than a file name. All records are in one directory, so that
// one fsync makes a new one durable.
func stageRecordName(volume string) string { return hash(volume) + ".stage.json" }

func publishRecordName(volume string, key nodevolume.PublishKey) string {
	return hash(volume) + "." + hash(key.PodUID + "\x00" + key.SpecName)[:32] + ".publish.json"
}

func (s *recordStore) saveRecord(name string, record nodevolume.Record, must mount.Durability) error {
	raw, err := record.Encode()
	if err != nil {
		return err
	}
	if err := s.write(s.dir, name, raw, must); err != nil {
		return fmt.Errorf("record the %s of volume %s: %w", record.Kind, record.Handle, err)
	}
	return nil
}

func (s *recordStore) readRecord(name string) (nodevolume.Record, error) {
	raw, err := s.dir.ReadFile(name)
	if err != nil {
		return nodevolume.Record{}, fmt.Errorf("read record %s: %w", name, err)
	}
	record, err := nodevolume.DecodeRecord(raw)
	if err != nil {
		return record, fmt.Errorf("read record %s: %w", name, err)
	}
	return record, nil
}

// mountedAt reports whether something is mounted at the path of a record.
func (s *recordStore) mountedAt(r nodevolume.Record) nodevolume.Knowledge {
	var mounted bool
	var err error
	if r.Kind == nodevolume.PublishKind {
		mounted, err = s.root.IsPublished(r.Path, r.Block)
	} else {
		mounted, err = s.root.Mounted(r.Path)
	}
	if err != nil {
		return nodevolume.Unknown
	}
	return decision.Known(mounted)
}

// isUnaccounted reports whether the volume may be mounted without a record. The caller holds mu.
func (s *recordStore) isUnaccounted(volume string) bool {
	if len(s.unaccounted) == 0 {
		return false
	}
	prefix := hash(volume) + "."
	for name := range s.unaccounted {
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
func (s *recordStore) findVolumeData() ([]nodevolume.Record, error) {
	var found []nodevolume.Record
	add := func(dir string, record nodevolume.Record) {
		data, err := readVolumeData(s.root, dir)
		if err != nil {
			return
		}
		record.Driver, record.Handle, record.Root = data["driverName"], data["volumeHandle"], s.configuredRoot()
		record.SpecName = cmp.Or(record.SpecName, data["specVolID"])
		record.SELinuxLabel = data[seLinuxData]
		record.Inline = data["volumeLifecycleMode"] == string(lifecycleMode(true))
		record.InUse, record.Guessed = !record.Inline, !record.Inline
		if record.Driver != "" && record.Handle != "" {
			found = append(found, record)
		}
	}
	err := s.eachDir(csiDir, func(driver string) error {
		return s.eachDir(path.Join(csiDir, driver), func(volume string) error {
			dir := path.Join(csiDir, driver, volume)
			add(dir, nodevolume.Record{Kind: nodevolume.StageKind, Path: path.Join(dir, globalMount)})
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	err = s.eachDir(blockDir, func(pv string) error {
		add(path.Join(blockDir, pv, "data"), nodevolume.Record{
			Kind: nodevolume.StageKind, Block: true, SpecName: pv, Path: path.Join(blockDir, "staging", pv),
		})
		return s.eachDir(path.Join(blockDir, "publish", pv), func(uid string) error {
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
	err = s.eachDir("pods", func(uid string) error {
		return s.eachDir(podVolumesDir(uid), func(spec string) error {
			dir := path.Join(podVolumesDir(uid), spec)
			add(dir, nodevolume.Record{Kind: nodevolume.PublishKind, Path: path.Join(dir, "mount"), Pod: nodevolume.RecordPod{UID: uid}})
			return nil
		})
	})
	return found, err
}

func (s *recordStore) eachDir(dir string, do func(name string) error) error {
	names, err := s.root.List(dir)
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
func (s *recordStore) mountedByOther(name string) bool {
	driver, handle, ok := kube.ParseUniqueVolumeName(name)
	if !ok || mount.CheckName(driver) != nil {
		return true // not a CSI volume
	}
	mounted, err := s.root.Mounted(path.Join(csiDir, driver, hash(handle), globalMount))
	return mounted || err != nil
}

// saveBefore saves the record of a call. Before an unmount it only sets a mark in place, which needs no disk space: the volume to be
// unmounted may be the one that fills the disk.
func (s *recordStore) saveBefore(name string, call nodevolume.Call) error {
	if call.Record.Leaving {
		return s.saveRecord(name, call.Record, mount.InPlace)
	}
	return s.saveRecord(name, call.Record, mount.PowerCut)
}

// saveConfirmation records that the driver confirmed a call. If that fails, a restarted agent repeats the call.
func (s *recordStore) saveConfirmation(record nodevolume.Record) {
	if err := s.saveRecord(recordName(record), record, mount.InPlace); err != nil {
		s.log.Error(err, "Failed to record that the driver confirmed a call, which a restarted belay-node repeats", append(namesOf(record).values(), "kind", record.Kind)...)
	}
}

// checkPublished checks that the volume is mounted at its target. Otherwise a container would write to the node's own disk, unnoticed until
// the data is missed (csi-driver-nfs#762). A stage cannot be checked: it need not mount anything.
func (s *recordStore) checkPublished(r nodevolume.Record) error {
	mounted, err := s.root.IsPublished(r.Path, r.Block)
	switch {
	case err != nil:
		return fmt.Errorf("check whether volume %s is mounted at its target: %w", r.Handle, err)
	case mounted:
		return nil
	default:
		return errors.New(explain.NothingPublished(r.Driver, r.Handle, s.driverPath(r), cmp.Or(r.Root, s.root.Path(".")), r.Block))
	}
}

func uniqueName(r nodevolume.Record) string {
	if r.Inline {
		return kube.InlineVolumeName(r.Pod.UID, r.SpecName)
	}
	return kube.UniqueVolumeName(r.Driver, r.Handle)
}
