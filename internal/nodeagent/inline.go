package nodeagent

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/mount"
)

// inlineHandle is the volume ID of an inline volume (k/k pkg/volume/csi.makeVolumeHandle).
func inlineHandle(podUID, volume string) string { return "csi-" + hash(podUID+volume) }

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
