package nodeagent

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/nodevolume"
)

// A volume whose files shall have one SELinux label can be mounted with it (the option
// context=), which saves whoever runs the pod from changing file after file (KEP-1710). That
// needs a driver whose CSIDriver says seLinuxMount, and a ReadWriteOncePod volume: for
// others it is behind the gate SELinuxMount, which upstream has off.

// fileLabel is the label that the files of a container with these options have; what they
// leave open comes from the node's policy. Empty where SELinux is off.
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
	// The library keeps the level from being drawn for others; no container is made here.
	selinux.ReleaseLabel(process)
	return file, nil
}

// seLinuxLabel is the label that a pod wants its ReadWriteOncePod volume mounted with,
// if the driver does that; empty for none. The containers that mount it must agree, also
// where the label is not used in the end, as with kubelet.
func seLinuxLabel(pod *corev1.Pod, volume string, fileLabel func(*corev1.SELinuxOptions) (string, error)) (string, error) {
	var labels []string
	for _, options := range seLinuxOptions(pod, volume) {
		if options.Level == "" {
			// The runtime draws one for each container: its label is not known.
			labels = append(labels, "")
			continue
		}
		found, err := fileLabel(options)
		if err != nil {
			return "", refuse("failed to construct SELinux label from context %q: %v", options, err)
		}
		labels = append(labels, found)
	}
	slices.Sort(labels)
	labels = slices.Compact(labels)
	security := pod.Spec.SecurityContext
	switch {
	case len(labels) > 1:
		return "", refuse("multiple SELinux labels found: %s", strings.Join(labels, ","))
	case len(labels) == 0:
		return "", nil
	case security != nil && security.SELinuxChangePolicy != nil && *security.SELinuxChangePolicy == corev1.SELinuxChangePolicyRecursive:
		return "", nil
	default:
		return labels[0], nil
	}
}

// seLinuxOptions are those of the containers that mount the volume and have any.
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

// label is the one that a pod's volume is to be mounted with, as its CSIDriver stands.
func (r driverRules) label(w *wantedVolume) string {
	if w == nil || !r.seLinux {
		return ""
	}
	return w.seLinuxLabel
}

// withLabel adds the label to a volume's own mount options. A label may hold a comma.
func withLabel(options []string, label string) []string {
	if label == "" {
		return options
	}
	return append(slices.Clone(options), fmt.Sprintf("context=%q", label))
}

// labelWords is why a pod's volume waits, in kubelet's words, where labels are the reason. The caller holds mu.
func (m *volumeManager) labelWords(v *volume, key nodevolume.PublishKey, reason nodevolume.Reason) string {
	switch reason {
	case nodevolume.OtherSELinuxLabelWanted:
		return explain.OtherLabelWanted(key.SpecName, v.mountedLabel(), m.plugins.rules(v.driver).label(v.publication(key).want))
	case nodevolume.OtherSELinuxLabelMounted:
		return explain.OtherLabelMounted(v.name)
	default:
		return ""
	}
}

// mountedLabel is the label with which the volume is, or may be, mounted.
func (v *volume) mountedLabel() string {
	if v.life.Stage.Phase != nodevolume.Absent {
		return v.life.Stage.Record.SELinuxLabel
	}
	for _, p := range v.pods {
		if p.Phase != nodevolume.Absent {
			return p.Record.SELinuxLabel
		}
	}
	return ""
}
