package nodeagent

import (
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/mount"
)

// inlineHandle is the volume ID of a pod's own volume (k/k pkg/volume/csi.makeVolumeHandle).
func inlineHandle(podUID, volume string) string { return "csi-" + hash(podUID+volume) }

// lifecycleMode is what CSIDrivers and vol_data.json call the two kinds of volumes.
func lifecycleMode(inline bool) storagev1.VolumeLifecycleMode {
	if inline {
		return storagev1.VolumeLifecycleEphemeral
	}
	return storagev1.VolumeLifecyclePersistent
}

// wantOfInline is what a pod wants of a CSI volume that stands in its spec. It
// says all that is needed: there is no claim and no PersistentVolume to read.
func wantOfInline(object *corev1.Pod, volume string, source *corev1.CSIVolumeSource) (*wantedVolume, error) {
	for what, name := range map[string]string{"volume": volume, "driver": source.Driver} {
		if err := mount.CheckName(name); err != nil {
			return nil, refuse("%s: %v", what, err)
		}
	}
	w := &wantedVolume{
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

// checkPaths refuses two volumes of a pod that would be published at one path, over
// each other: an inline one may have a PersistentVolume's name.
func checkPaths(wants []*wantedVolume) error {
	at := map[string]*wantedVolume{}
	for _, w := range wants {
		path := publishPath(w)
		if other := at[path]; other != nil && other.name() != w.name() {
			return refuse("volumes %q and %q would be published at the same path: an inline volume may not have the name of a PersistentVolume that its pod claims (%s)",
				other.volume, w.volume, w.specName)
		}
		at[path] = w
	}
	return nil
}

// checkLifecycle: the driver says that it has volumes of this kind.
func (m *volumeManager) checkLifecycle(w *wantedVolume) error {
	if w.block {
		return nil // kubelet asks about file systems alone
	}
	return m.plugins.supportsMode(w.driver, lifecycleMode(w.inline))
}

// isGone: the driver does not know an inline volume that it is to unpublish. It is
// on no other node and in no other pod, so what was to be undone is undone; whether
// something is mounted still is looked at by who removes the target. Of a persistent
// volume the answer proves nothing: its driver may have lost its memory and not the mount.
func isGone(inline bool, err error) bool {
	code, ok := csi.Code(err)
	return inline && ok && code == codes.NotFound
}

// firstStep is the one that events name while nothing has been asked of the driver yet.
func (v *volume) firstStep() string {
	if v.life.Inline {
		return stepSetUp
	}
	return stepMountDevice
}
