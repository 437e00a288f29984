package diagnosis

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/explain"
)

// ofPath matches the volume in a path of kubelet (k/k v1.36.3 pkg/kubelet/kubelet_getters.go getPodVolumeDir, pkg/volume/util/subpath/subpath_linux.go:39).
var ofPath = regexp.MustCompile(`/pods/[^/]+/(?:volumes/[^/]+|volume-subpaths)/([^/"\s]+)`)

// pulling are the reasons of a container whose image, or the image of a volume of it, is not there (k/k v1.36.3 pkg/kubelet/images/types.go:26-42,
// pkg/kubelet/kuberuntime/kuberuntime_manager.go:1841).
var pulling = []string{"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError", "InvalidImageName"}

// containerMount explains a container that cannot get a volume of its pod, although it is mounted: its message names the volume, or a path of it, or
// the image of a volume.
func (x *state) containerMount(pod *corev1.Pod, s *corev1.ContainerStatus) (f Finding, ok bool) {
	for _, message := range messagesOf(s) {
		w := wait{since: scheduled(pod), container: s.Name}
		w.detail = w.says(x.foreign(joined("container "+s.Name, message)))
		for _, v := range x.volumesOf(pod) {
			read, means := explain.ReadContainer(message, v.PodVolume)
			switch {
			case means && v.isMeant(message):
				w.reason, w.mount = read.Reason, &read
			case s.State.Waiting != nil && slices.Contains(pulling, s.State.Waiting.Reason) && v.isImageOf(message):
				w.reason = explain.MountFailing
			default:
				continue
			}
			w.own = v.PodVolume
			w.own.Folders = foldersOf(pod, s.Name, v.Name)
			return x.ofContainer(pod, w, x.describeOwn(pod, &v)), true
		}
		if read, means := explain.ReadContainer(message, explain.PodVolume{}); means && read.Nameless() {
			w.reason, w.mount = read.Reason, &read
			return x.ofContainer(pod, w, nil), true
		}
	}
	return f, false
}

func (x *state) ofContainer(pod *corev1.Pod, w wait, v *Volume) Finding {
	if w.mount != nil {
		w.mount.Clean(x.foreign)
	}
	f := x.finding(pod, w, v, nil)
	f.Facts = x.eventFacts(pod)
	return f
}

// foldersOf returns the subPaths that a container has of a volume.
func foldersOf(pod *corev1.Pod, container, volume string) (folders []string) {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, m := range c.VolumeMounts {
			if path := cmp.Or(m.SubPath, m.SubPathExpr); c.Name == container && m.Name == volume && path != "" {
				folders = append(folders, path)
			}
		}
	}
	return folders
}

// messagesOf returns the messages of a container that does not run.
func messagesOf(s *corev1.ContainerStatus) (messages []string) {
	if s.State.Running != nil {
		return nil
	}
	if w := s.State.Waiting; w != nil {
		messages = append(messages, w.Message)
	}
	for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
		if t != nil {
			messages = append(messages, t.Message)
		}
	}
	return messages
}

// isMeant reports whether the message of a container is about the volume: by the name that its volumeMounts have, by a path of kubelet, or by a
// path of the node that the volume is.
func (v *podVolume) isMeant(message string) bool {
	if m := ofPath.FindStringSubmatch(message); m != nil {
		return v.isCalled(m[1])
	}
	if path := v.object("hostPath"); path != "" {
		return names(message, path)
	}
	return strings.Contains(message, `volumeMount "`+v.Name+`" of container`)
}

// isImageOf reports whether the message of a container names the image of the volume.
func (v *podVolume) isImageOf(message string) bool {
	image := v.object("image")
	return image != "" && names(message, image)
}

// object is what the volume refers to, if it is of a kind.
func (v *podVolume) object(kind string) string {
	if len(v.Objects) != 1 {
		return ""
	}
	name, ok := strings.CutPrefix(v.Objects[0], kind+" ")
	if !ok {
		return ""
	}
	return name
}
