package inspect

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/kube"
)

// volumesThatWait returns the volumes of a pod that may be attached, and for one that has a node and no container that runs all others too. Most pods
// run.
func volumesThatWait(pod *corev1.Pod) []corev1.Volume {
	volumes := kube.StripVolumes(pod)
	waits := pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed &&
		!slices.ContainsFunc(pod.Status.ContainerStatuses, runs)
	if !waits || len(volumes) == 0 && kube.TooManyVolumes(pod) {
		return volumes
	}
	for i := range pod.Spec.Volumes {
		if len(volumes) == kube.MaxVolumes {
			break
		}
		v := &pod.Spec.Volumes[i]
		if !slices.ContainsFunc(volumes, func(kept corev1.Volume) bool { return kept.Name == v.Name }) {
			volumes = append(volumes, corev1.Volume{Name: v.Name, VolumeSource: sourceOf(&v.VolumeSource)})
		}
	}
	return volumes
}

// sourceOf keeps of a source that no controller attaches which kind it is, and to what it refers.
func sourceOf(v *corev1.VolumeSource) corev1.VolumeSource {
	switch {
	case v.ConfigMap != nil:
		return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: kube.Name(v.ConfigMap.Name)}}}
	case v.Secret != nil:
		return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: kube.Name(v.Secret.SecretName)}}
	case v.Projected != nil:
		return corev1.VolumeSource{Projected: projectionOf(v.Projected)}
	case v.HostPath != nil:
		return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: short(v.HostPath.Path), Type: v.HostPath.Type}}
	case v.NFS != nil:
		return corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: kube.Name(v.NFS.Server), Path: short(v.NFS.Path)}}
	case v.CSI != nil:
		return corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: kube.Name(v.CSI.Driver)}}
	case v.FlexVolume != nil:
		return corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Driver: kube.Name(v.FlexVolume.Driver)}}
	case v.Image != nil:
		return corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: short(v.Image.Reference)}}
	case v.EmptyDir != nil:
		return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	case v.DownwardAPI != nil:
		return corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}
	case v.GitRepo != nil:
		return corev1.VolumeSource{GitRepo: &corev1.GitRepoVolumeSource{}}
	}
	return otherSource(v)
}

// short cuts a path or a reference, which the API server does not limit.
func short(text string) string {
	if len(text) <= kube.MaxName {
		return text
	}
	return decision.Truncate(text, kube.MaxName)
}

// otherSource keeps the kind of what Kubernetes does not mount any more.
func otherSource(v *corev1.VolumeSource) corev1.VolumeSource {
	switch {
	case v.Glusterfs != nil:
		return corev1.VolumeSource{Glusterfs: &corev1.GlusterfsVolumeSource{}}
	case v.CephFS != nil:
		return corev1.VolumeSource{CephFS: &corev1.CephFSVolumeSource{}}
	case v.RBD != nil:
		return corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{}}
	case v.Flocker != nil:
		return corev1.VolumeSource{Flocker: &corev1.FlockerVolumeSource{}}
	case v.Quobyte != nil:
		return corev1.VolumeSource{Quobyte: &corev1.QuobyteVolumeSource{}}
	case v.ScaleIO != nil:
		return corev1.VolumeSource{ScaleIO: &corev1.ScaleIOVolumeSource{}}
	case v.StorageOS != nil:
		return corev1.VolumeSource{StorageOS: &corev1.StorageOSVolumeSource{}}
	case v.PhotonPersistentDisk != nil:
		return corev1.VolumeSource{PhotonPersistentDisk: &corev1.PhotonPersistentDiskVolumeSource{}}
	}
	return corev1.VolumeSource{}
}

// projectionOf keeps the names of the objects of a projected volume.
func projectionOf(v *corev1.ProjectedVolumeSource) *corev1.ProjectedVolumeSource {
	kept := &corev1.ProjectedVolumeSource{}
	for _, s := range first(v.Sources) {
		switch {
		case s.ConfigMap != nil:
			reference := corev1.LocalObjectReference{Name: kube.Name(s.ConfigMap.Name)}
			kept.Sources = append(kept.Sources, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: reference}})
		case s.Secret != nil:
			reference := corev1.LocalObjectReference{Name: kube.Name(s.Secret.Name)}
			kept.Sources = append(kept.Sources, corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: reference}})
		}
	}
	return kept
}
