package nodeagent

import (
	"fmt"
	"slices"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/explain"
)

// A volume can be mounted with an SELinux label (mount option context=), so that the container runtime need not relabel every file
// (KEP-1710). That needs a CSIDriver with seLinuxMount and a ReadWriteOncePod volume; for other access modes upstream's feature gate
// SELinuxMount is off by default.

// fileLabel returns the file label of a container with these options, completed by the node's policy. It is empty if SELinux is disabled.
func fileLabel(options *corev1.SELinuxOptions) (string, error) {
	if !selinux.GetEnabled() {
		return "", nil
	}
	var given []string
	for _, part := range []struct{ name, value string }{
		{"user", options.User}, {"role", options.Role}, {"type", options.Type}, {"level", options.Level},
	} {
		if part.value != "" {
			given = append(given, part.name+":"+part.value)
		}
	}
	process, file, err := label.InitLabels(given)
	if err != nil {
		return "", err
	}
	// Release the level that the library reserves: no container is created here.
	selinux.ReleaseLabel(process)
	return file, nil
}

// seLinuxLabel returns the label for a pod's ReadWriteOncePod volume, or "". As in kubelet, the containers that mount it must agree even if
// the label is not used in the end.
func seLinuxLabel(pod *corev1.Pod, volume string, fileLabel func(*corev1.SELinuxOptions) (string, error)) (string, error) {
	var labels []string
	for _, options := range seLinuxOptions(pod, volume) {
		if options.Level == "" {
			// The runtime picks a level for each container, so the label is not known.
			labels = append(labels, "")
			continue
		}
		found, err := fileLabel(options)
		if err != nil {
			return "", refuse(explain.NoSELinuxLabel(fmt.Sprintf("%q", options), err))
		}
		labels = append(labels, found)
	}
	slices.Sort(labels)
	labels = slices.Compact(labels)
	security := pod.Spec.SecurityContext
	switch {
	case len(labels) > 1:
		return "", refuse(explain.SeveralSELinuxLabels(labels))
	case len(labels) == 0:
		return "", nil
	case security != nil && security.SELinuxChangePolicy != nil && *security.SELinuxChangePolicy == corev1.SELinuxChangePolicyRecursive:
		return "", nil
	default:
		return labels[0], nil
	}
}

// seLinuxOptions returns the options of the containers that mount the volume, as far as they are set.
func seLinuxOptions(pod *corev1.Pod, volume string) []*corev1.SELinuxOptions {
	var ofPod *corev1.SELinuxOptions
	if security := pod.Spec.SecurityContext; security != nil {
		ofPod = security.SELinuxOptions
	}
	var found []*corev1.SELinuxOptions
	add := func(mounts []corev1.VolumeMount, security *corev1.SecurityContext) {
		options := ofPod
		if security != nil && security.SELinuxOptions != nil {
			options = security.SELinuxOptions
		}
		if options != nil && slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.Name == volume }) {
			found = append(found, options)
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		add(c.VolumeMounts, c.SecurityContext)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		add(c.VolumeMounts, c.SecurityContext)
	}
	return found
}

// withLabel adds the label to the mount options. It is quoted, as it may contain a comma.
func withLabel(options []string, label string) []string {
	if label == "" {
		return options
	}
	return append(slices.Clone(options), fmt.Sprintf("context=%q", label))
}
