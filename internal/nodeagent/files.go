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

// Kubelet's paths below the root, which drivers and their registrars know.
const (
	csiDir      = "plugins/kubernetes.io/csi"
	blockDir    = csiDir + "/volumeDevices"
	globalMount = "globalmount"
	volumeData  = "vol_data.json"
	seLinuxData = "seLinuxMountContext" // a key in volumeData
)

func podVolumesDir(uid string) string { return path.Join("pods", uid, "volumes", "kubernetes.io~csi") }

func podDevicesDir(uid string) string {
	return path.Join("pods", uid, "volumeDevices", "kubernetes.io~csi")
}

// stagingPath is kubelet's staging path of a volume.
func stagingPath(w *volumeToMount) string {
	if w.block {
		return path.Join(blockDir, "staging", w.specName)
	}
	return path.Join(csiDir, w.driver, hash(w.handle), globalMount)
}

// configuredRoot is the root directory in new requests to drivers, as kubelet's is the one of its flag (k8s.io/kubernetes v1.36.3,
// pkg/kubelet/kubelet.go:609, `rootDirectory: filepath.Clean(rootDirectory)`). It is empty if no symbolic link leads from there to the root.
func (m *volumeManager) configuredRoot() string {
	if configured := m.root.Configured(); configured != m.root.Path(".") {
		return configured
	}
	return ""
}

// driverPath is the path of a record in requests to its driver, the same from the first to the last.
func (m *volumeManager) driverPath(r nodevolume.Record) string {
	return path.Join(cmp.Or(r.Root, m.root.Path(".")), r.Path)
}

// driverStagingPath is the staging path in requests about a volume, with which it was staged, or would be. The caller holds mu.
func (m *volumeManager) driverStagingPath(v *volume, w *volumeToMount) string {
	if v.state.Stage.Phase != nodevolume.Absent {
		return m.driverPath(v.state.Stage.Record)
	}
	return path.Join(m.root.Configured(), stagingPath(w))
}

// publishPath is kubelet's target path of a volume for a pod.
func publishPath(w *volumeToMount) string {
	if w.block {
		return path.Join(blockDir, "publish", w.specName, string(w.pod.UID))
	}
	return path.Join(podVolumesDir(string(w.pod.UID)), w.specName, "mount")
}

func uniqueName(r nodevolume.Record) string {
	if r.Inline {
		return kube.InlineVolumeName(r.Pod.UID, r.SpecName)
	}
	return kube.UniqueVolumeName(r.Driver, r.Handle)
}

// prepareStage creates the staging directory and vol_data.json, which some drivers read.
func (m *volumeManager) prepareStage(r nodevolume.Record) error {
	if err := m.root.MakeDir(r.Path); err != nil {
		return fmt.Errorf("prepare the staging path of volume %s: %w", r.Handle, err)
	}
	data := map[string]string{"driverName": r.Driver, "volumeHandle": r.Handle}
	addLabel(data, r)
	if r.Block {
		return m.writeVolumeData(path.Join(blockDir, path.Base(r.Path), "data"), data)
	}
	return m.writeVolumeData(path.Dir(r.Path), data)
}

// preparePublish creates the parent of the target, which the driver creates itself, and vol_data.json.
func (m *volumeManager) preparePublish(r nodevolume.Record, v *volume) error {
	dir := path.Dir(r.Path)
	if err := m.root.MakeDir(dir); err != nil {
		return fmt.Errorf("prepare the target path of volume %s: %w", r.Handle, err)
	}
	data := map[string]string{
		"attachmentID": kube.AttachmentName(v.handle, v.driver, m.config.NodeName),
		"driverName":   r.Driver, "nodeName": m.config.NodeName, "specVolID": r.SpecName, "volumeHandle": r.Handle,
	}
	if r.Block {
		return m.writeVolumeData(path.Join(blockDir, r.SpecName, "data"), data)
	}
	data["volumeLifecycleMode"] = string(lifecycleMode(r.Inline))
	addLabel(data, r)
	return m.writeVolumeData(dir, data)
}

func addLabel(data map[string]string, r nodevolume.Record) {
	if r.SELinuxLabel != "" {
		data[seLinuxData] = r.SELinuxLabel
	}
}

func (m *volumeManager) writeVolumeData(dir string, data map[string]string) error {
	if err := m.root.MakeDir(dir); err != nil {
		return err
	}
	var raw bytes.Buffer
	if err := json.NewEncoder(&raw).Encode(data); err != nil { // sorted keys and a final newline, as kubelet writes it
		return fmt.Errorf("encode %s: %w", volumeData, err)
	}
	if err := m.root.Write(path.Join(dir, volumeData), raw.Bytes(), mount.Crash); err != nil {
		return fmt.Errorf("write %s: %w", m.root.Path(path.Join(dir, volumeData)), err)
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
func (m *volumeManager) tidyStage(r nodevolume.Record) error {
	if err := m.root.Remove(r.Path); err != nil {
		return err
	}
	if r.Block {
		return m.tidyBlockData(path.Base(r.Path)) // the PersistentVolume for which it was staged
	}
	dir := path.Dir(r.Path)
	return errors.Join(m.root.RemoveWritten(path.Join(dir, volumeData)), m.root.RemoveEmpty(dir))
}

// tidyPublish removes what preparePublish created, and an empty target.
func (m *volumeManager) tidyPublish(r nodevolume.Record) error {
	pods := path.Join("pods", r.Pod.UID)
	if r.Block {
		devices := podDevicesDir(r.Pod.UID)
		if err := m.root.Remove(path.Join(devices, r.SpecName)); err != nil {
			return err
		}
		if err := m.root.Remove(r.Path); err != nil {
			return err
		}
		return errors.Join(
			m.root.RemoveEmpty(path.Dir(r.Path)), m.tidyBlockData(r.SpecName),
			m.root.RemoveEmpty(devices, path.Dir(devices), pods))
	}
	if err := m.root.Remove(r.Path); err != nil {
		return err
	}
	dir := path.Dir(r.Path)
	if err := m.root.RemoveWritten(path.Join(dir, volumeData)); err != nil {
		return err
	}
	volumes := podVolumesDir(r.Pod.UID)
	return m.root.RemoveEmpty(dir, volumes, path.Dir(volumes), pods)
}

// tidyBlockData removes the data directory of a block volume that is neither staged nor published.
func (m *volumeManager) tidyBlockData(pv string) error {
	for _, dir := range []string{path.Join(blockDir, "staging"), path.Join(blockDir, "publish")} {
		names, err := m.root.List(dir)
		if err != nil {
			return err
		}
		if slices.Contains(names, pv) {
			return nil
		}
	}
	data := path.Join(blockDir, pv, "data")
	if err := m.root.RemoveWritten(path.Join(data, volumeData)); err != nil {
		return err
	}
	return m.root.RemoveEmpty(data, path.Dir(data))
}

// linkDevice creates kubelet's symbolic link to a pod's block volume.
func (m *volumeManager) linkDevice(r nodevolume.Record) error {
	dir := podDevicesDir(r.Pod.UID)
	if err := m.root.MakeDir(dir); err != nil {
		return err
	}
	return m.root.Symlink(m.root.Path(r.Path), path.Join(dir, r.SpecName))
}
