package nodeagent

import (
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/mount"
)

// inlineHandle is the volume ID of an inline volume (k/k pkg/volume/csi.makeVolumeHandle).
func inlineHandle(podUID, volume string) string { return "csi-" + hash(podUID+volume) }

// lifecycleMode is the mode as in CSIDriver and vol_data.json.
func lifecycleMode(inline bool) storagev1.VolumeLifecycleMode {
	if inline {
		return storagev1.VolumeLifecycleEphemeral
	}
	return storagev1.VolumeLifecyclePersistent
}

// inlineVolumeToMount returns an inline CSI volume of a pod. It needs no claim and no PersistentVolume.
func inlineVolumeToMount(object *corev1.Pod, volume string, source *corev1.CSIVolumeSource) (*volumeToMount, error) {
	for what, name := range map[string]string{"volume": volume, "driver": source.Driver} {
		if err := mount.CheckName(name); err != nil {
			return nil, refuse(explain.InvalidName(what, err))
		}
	}
	w := &volumeToMount{
		inline: true, pod: identityOf(object), volume: volume,
		since:    time.Now(),
		specName: volume, driver: source.Driver, handle: inlineHandle(string(object.UID), volume),
		accessMode: string(corev1.ReadWriteOnce), accessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		attributes: source.VolumeAttributes,
	}
	if source.FSType != nil {
		w.fsType = *source.FSType
	}
	if source.ReadOnly != nil {
		w.readOnly = *source.ReadOnly
	}
	if ref := source.NodePublishSecretRef; ref != nil {
		w.podSecret = &corev1.SecretReference{Namespace: object.Namespace, Name: ref.Name}
	}
	return w, nil
}

// checkPaths rejects a pod with two volumes at one target path: an inline volume may have a PersistentVolume's name.
func checkPaths(volumes []*volumeToMount) error {
	at := map[string]*volumeToMount{}
	for _, w := range volumes {
		path := publishPath(w)
		if other := at[path]; other != nil && other.name() != w.name() {
			return refuse(explain.SamePath(other.volume, w.volume, w.specName))
		}
		at[path] = w
	}
	return nil
}

// checkLifecycle checks that the driver supports the volume's lifecycle mode.
func (m *volumeManager) checkLifecycle(w *volumeToMount) error {
	if w.block {
		return nil // kubelet checks file system volumes only
	}
	return m.plugins.Rules(w.driver).Supports(lifecycleMode(w.inline))
}

// isGone reports whether the driver does not know the inline volume to unpublish. Such a volume is used by one pod only, so there is
// nothing left to undo; tidy finds a remaining mount. For a persistent volume NOT_FOUND proves nothing: the driver may have lost its
// state, but not the mount.
func isGone(inline bool, err error) bool {
	code, ok := csi.Code(err)
	return inline && ok && code == codes.NotFound
}

// firstStep is the step named in events before any call to the driver.
func (v *volume) firstStep() string {
	if v.state.Inline {
		return stepSetUp
	}
	return stepMountDevice
}
