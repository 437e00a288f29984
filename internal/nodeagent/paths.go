package nodeagent

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"path/filepath"

	storagev1 "k8s.io/api/storage/v1"

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

// subPathsDir is kubelet's directory for the subPath mounts of a pod's volume.
func subPathsDir(key nodevolume.PublishKey) string {
	return filepath.Join("pods", key.PodUID, "volume-subpaths", key.SpecName)
}

// lifecycleMode is the mode as in CSIDriver and vol_data.json.
func lifecycleMode(inline bool) storagev1.VolumeLifecycleMode {
	if inline {
		return storagev1.VolumeLifecycleEphemeral
	}
	return storagev1.VolumeLifecyclePersistent
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// lockFile is locked by the agent that uses the root: two would call drivers for the same volume at once, and overwrite each other's
// volumesInUse.
const lockFile = "belay.lock"

// recordsDir has one file per stage and per publish, below the root.
const recordsDir = "belay/volumes"

func recordPath(name string) string { return path.Join(recordsDir, name) }
