package hollow

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"

	"belay.dev/belay/internal/kube"
)

// volume is what a pod needs attached before it can run.
type volume struct {
	name      string // unique name
	exclusive bool
}

// objects reads claims and volumes from the watch caches.
type objects struct {
	factory informers.SharedInformerFactory
}

// volumesOf lists the attachable volumes of a pod; false while a claim or a volume is
// not there or not bound.
func (o objects) volumesOf(pod *corev1.Pod) ([]volume, bool) {
	var all []volume
	for _, v := range pod.Spec.Volumes {
		var claim string
		switch {
		case v.PersistentVolumeClaim != nil:
			claim = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			claim = pod.Name + "-" + v.Name
		default:
			continue
		}
		found, attachable, ok := o.volumeOf(pod.Namespace, claim)
		if !ok {
			return nil, false
		}
		if attachable {
			all = append(all, found)
		}
	}
	return all, true
}

func (o objects) volumeOf(namespace, name string) (v volume, attachable, ok bool) {
	core := o.factory.Core().V1()
	claim, err := core.PersistentVolumeClaims().Lister().PersistentVolumeClaims(namespace).Get(name)
	if err != nil || claim.Spec.VolumeName == "" || claim.Status.Phase != corev1.ClaimBound {
		return volume{}, false, false
	}
	pv, err := core.PersistentVolumes().Lister().Get(claim.Spec.VolumeName)
	if err != nil {
		return volume{}, false, false
	}
	key, attachable := kube.KeyOfVolume(pv)
	if !attachable {
		return volume{}, false, true
	}
	return volume{
		name: kube.UniqueVolumeName(key.Driver, key.Handle),
		exclusive: !slices.Contains(pv.Spec.AccessModes, corev1.ReadWriteMany) &&
			!slices.Contains(pv.Spec.AccessModes, corev1.ReadOnlyMany),
	}, true, true
}
