package nodeagent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
)

// configuredRoot is the root directory in new requests to drivers, as kubelet's is the one of its flag (k8s.io/kubernetes v1.36.3,
// pkg/kubelet/kubelet.go:609, `rootDirectory: filepath.Clean(rootDirectory)`). It is empty if no symbolic link leads from there to the root.
func (s *recordStore) configuredRoot() string {
	if configured := s.root.Configured(); configured != s.root.Path(".") {
		return configured
	}
	return ""
}

// driverPath is the path of a record in requests to its driver, the same from the first to the last.
func (s *recordStore) driverPath(r nodevolume.Record) string {
	return path.Join(cmp.Or(r.Root, s.root.Path(".")), r.Path)
}

// prepareStage creates the staging directory and vol_data.json, which some drivers read.
func (s *recordStore) prepareStage(r nodevolume.Record) error {
	if err := s.root.MakeDir(r.Path); err != nil {
		return fmt.Errorf("prepare the staging path of volume %s: %w", r.Handle, err)
	}
	data := map[string]string{"driverName": r.Driver, "volumeHandle": r.Handle}
	addLabel(data, r)
	if r.Block {
		return s.writeVolumeData(path.Join(blockDir, path.Base(r.Path), "data"), data)
	}
	return s.writeVolumeData(path.Dir(r.Path), data)
}

// preparePublish creates the parent of the target, which the driver creates itself, and vol_data.json.
func (s *recordStore) preparePublish(r nodevolume.Record) error {
	dir := path.Dir(r.Path)
	if err := s.root.MakeDir(dir); err != nil {
		return fmt.Errorf("prepare the target path of volume %s: %w", r.Handle, err)
	}
	data := map[string]string{
		"attachmentID": kube.AttachmentName(r.Handle, r.Driver, s.nodeName),
		"driverName":   r.Driver, "nodeName": s.nodeName, "specVolID": r.SpecName, "volumeHandle": r.Handle,
	}
	if r.Block {
		return s.writeVolumeData(path.Join(blockDir, r.SpecName, "data"), data)
	}
	data["volumeLifecycleMode"] = string(lifecycleMode(r.Inline))
	addLabel(data, r)
	return s.writeVolumeData(dir, data)
}

func addLabel(data map[string]string, r nodevolume.Record) {
	if r.SELinuxLabel != "" {
		data[seLinuxData] = r.SELinuxLabel
	}
}

func (s *recordStore) writeVolumeData(dir string, data map[string]string) error {
	if err := s.root.MakeDir(dir); err != nil {
		return err
	}
	var raw bytes.Buffer
	if err := json.NewEncoder(&raw).Encode(data); err != nil { // sorted keys and a final newline, as kubelet writes it
		return fmt.Errorf("encode %s: %w", volumeData, err)
	}
	if err := s.root.Write(path.Join(dir, volumeData), raw.Bytes(), mount.Crash); err != nil {
		return fmt.Errorf("write %s: %w", s.root.Path(path.Join(dir, volumeData)), err)
	}
	return nil
}

func readVolumeData(root *mount.Root, dir string) (map[string]string, error) {
	raw, err := root.ReadFile(path.Join(dir, volumeData))
	if err != nil {
		return nil, err
	}
	var data map[string]string
	return data, json.Unmarshal(raw, &data)
}

// tidyStage removes what prepareStage created. It fails if the driver left a mount or files.
func (s *recordStore) tidyStage(r nodevolume.Record) error {
	if err := s.root.Remove(r.Path); err != nil {
		return err
	}
	if r.Block {
		return s.tidyBlockData(path.Base(r.Path)) // the PersistentVolume for which it was staged
	}
	dir := path.Dir(r.Path)
	return errors.Join(s.root.RemoveWritten(path.Join(dir, volumeData)), s.root.RemoveEmpty(dir))
}

// tidyPublish removes what preparePublish created, and an empty target.
func (s *recordStore) tidyPublish(r nodevolume.Record) error {
	pods := path.Join("pods", r.Pod.UID)
	if r.Block {
		devices := podDevicesDir(r.Pod.UID)
		if err := s.root.Remove(path.Join(devices, r.SpecName)); err != nil {
			return err
		}
		if err := s.root.Remove(r.Path); err != nil {
			return err
		}
		return errors.Join(
			s.root.RemoveEmpty(path.Dir(r.Path)), s.tidyBlockData(r.SpecName),
			s.root.RemoveEmpty(devices, path.Dir(devices), pods))
	}
	if err := s.root.Remove(r.Path); err != nil {
		return err
	}
	dir := path.Dir(r.Path)
	if err := s.root.RemoveWritten(path.Join(dir, volumeData)); err != nil {
		return err
	}
	volumes := podVolumesDir(r.Pod.UID)
	return s.root.RemoveEmpty(dir, volumes, path.Dir(volumes), pods)
}

// tidyBlockData removes the data directory of a block volume that is neither staged nor published.
func (s *recordStore) tidyBlockData(pv string) error {
	for _, dir := range []string{path.Join(blockDir, "staging"), path.Join(blockDir, "publish")} {
		names, err := s.root.List(dir)
		if err != nil {
			return err
		}
		if slices.Contains(names, pv) {
			return nil
		}
	}
	data := path.Join(blockDir, pv, "data")
	if err := s.root.RemoveWritten(path.Join(data, volumeData)); err != nil {
		return err
	}
	return s.root.RemoveEmpty(data, path.Dir(data))
}

// linkDevice creates kubelet's symbolic link to a pod's block volume.
func (s *recordStore) linkDevice(r nodevolume.Record) error {
	dir := podDevicesDir(r.Pod.UID)
	if err := s.root.MakeDir(dir); err != nil {
		return err
	}
	return s.root.Symlink(s.root.Path(r.Path), path.Join(dir, r.SpecName))
}

// tidy removes what was created for a call, unless something is mounted there.
func (s *recordStore) tidy(record nodevolume.Record) error {
	if record.Kind == nodevolume.StageKind {
		return s.tidyStage(record)
	}
	return s.tidyPublish(record)
}
