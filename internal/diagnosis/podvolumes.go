package diagnosis

import (
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// podVolume is a volume of a pod, of any kind.
type podVolume struct {
	explain.PodVolume
	claim  string
	driver string // of a CSI volume
	// names are those that kubelet has for it: its PersistentVolume's, and the pod's own.
	names []string
	pv    *corev1.PersistentVolume
	// key is that of a volume that a controller attaches, or that a CSI driver mounts.
	key    attachment.VolumeKey
	hasKey bool
}

// volumesOf returns all volumes of a pod.
func (x *state) volumesOf(pod *corev1.Pod) []podVolume {
	found := make([]podVolume, 0, len(pod.Spec.Volumes))
	for i := range pod.Spec.Volumes {
		source := &pod.Spec.Volumes[i]
		v := podVolume{PodVolume: explain.PodVolume{Name: source.Name, Kind: kindOf(source.VolumeSource), Objects: objectsOf(&source.VolumeSource)}, names: []string{source.Name}}
		if claim := kube.ClaimName(pod, source); claim != "" {
			x.addClaim(&v, pod.Namespace, claim)
		} else if inline := kube.InlineVolumes(&corev1.Pod{ObjectMeta: pod.ObjectMeta, Spec: corev1.PodSpec{Volumes: pod.Spec.Volumes[i : i+1]}}); len(inline) > 0 {
			v.key, v.hasKey, v.pv = inline[0].Key, true, x.volume(inline[0].Key)
			v.names = append(v.names, inline[0].Name)
		}
		if source.CSI != nil {
			v.driver = source.CSI.Driver
		}
		if v.hasKey && !kube.NoAttacher(v.key.Driver) {
			v.Kind, v.driver = "csi", v.key.Driver
		}
		found = append(found, v)
	}
	return found
}

// addClaim adds what a claim is bound to. The names of what could not be read are those of the claim.
func (x *state) addClaim(v *podVolume, namespace, name string) {
	v.claim, v.Kind, v.Objects = name, "", []string{explain.ClaimOf(name)}
	claim := x.claims[join(namespace, name)]
	if claim == nil || claim.Spec.VolumeName == "" {
		return
	}
	v.names, v.driver = append([]string{claim.Spec.VolumeName}, v.names...), claim.Annotations[ProvisionerAnnotation]
	if v.pv = x.volumes[claim.Spec.VolumeName]; v.pv != nil {
		v.Kind = kindOf(v.pv.Spec.PersistentVolumeSource)
		v.key, v.hasKey = kube.KeyOfVolume(v.pv)
	}
}

// kindOf is the name of the field of a source that is set.
func kindOf(source any) string {
	v := reflect.ValueOf(source)
	for i := range v.NumField() {
		if !v.Field(i).IsNil() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return ""
}

// objectsOf returns what a source refers to.
func objectsOf(source *corev1.VolumeSource) (objects []string) {
	switch {
	case source.ConfigMap != nil:
		return []string{explain.ConfigMapOf(source.ConfigMap.Name)}
	case source.Secret != nil:
		return []string{explain.SecretOf(source.Secret.SecretName)}
	case source.HostPath != nil:
		return []string{explain.ObjectOf("hostPath", source.HostPath.Path)}
	case source.NFS != nil:
		return []string{explain.ObjectOf("nfs", source.NFS.Server+":"+source.NFS.Path)}
	case source.CSI != nil:
		return []string{explain.ObjectOf("CSI driver", source.CSI.Driver)}
	case source.FlexVolume != nil:
		return []string{explain.ObjectOf("FlexVolume driver", source.FlexVolume.Driver)}
	case source.Image != nil:
		return []string{explain.ObjectOf("image", source.Image.Reference)}
	case source.Projected != nil:
		for _, s := range source.Projected.Sources {
			switch {
			case s.ConfigMap != nil:
				objects = append(objects, explain.ConfigMapOf(s.ConfigMap.Name))
			case s.Secret != nil:
				objects = append(objects, explain.SecretOf(s.Secret.Name))
			}
		}
	}
	return objects
}

// isCalled reports whether kubelet calls the volume so.
func (v *podVolume) isCalled(name string) bool { return slices.Contains(v.names, name) }

// isNamed reports whether kubelet and the controller call the volume so in a text about one volume: by its PersistentVolume, if it has one. The pod may call
// another of its volumes so.
func (v *podVolume) isNamed(name string) bool {
	if v.claim != "" {
		return v.names[0] == name
	}
	return v.isCalled(name)
}

// describeOwn is describe for a volume of a pod, as the pod has it.
func (x *state) describeOwn(pod *corev1.Pod, v *podVolume) *Volume {
	d := x.describe(v.key, v.pv)
	d.Name, d.Kind, d.WantedOn = v.Name, v.Kind, pod.Spec.NodeName
	if d.Driver == "" {
		d.Driver = v.driver
	}
	if v.claim != "" {
		d.Namespace, d.Claim = pod.Namespace, v.claim
		d.PersistentVolume = v.names[0]
		if len(v.names) == 1 {
			d.PersistentVolume = ""
		}
	}
	return d
}
