package diagnosis

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// starting are the reasons of containers for which kubelet has not said what they wait for (k/k v1.36.3 pkg/kubelet/kubelet_pods.go
// ContainerCreating, PodInitializing).
var starting = []string{"ContainerCreating", "PodInitializing"}

// ofStarted returns what a pod waits for whose volumes are mounted: a container cannot get one of them, or it waits for something else.
func (x *state) ofStarted(pod *corev1.Pod) []Finding {
	statuses := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	for i := range statuses {
		if f, ok := x.containerMount(pod, &statuses[i]); ok {
			return []Finding{f}
		}
	}
	w := x.containerWait(pod)
	if w.waits == explain.WaitImage {
		x.addPullError(&w, pod)
		x.addPullSecrets(&w, pod)
	}
	if w.since = scheduled(pod); w.detail == "" {
		w.detail = x.conditionWait(pod, &w.since)
	}
	if w.detail == "" {
		return nil
	}
	return []Finding{x.notVolume(pod, w)}
}

func (x *state) notVolume(pod *corev1.Pod, w wait) Finding {
	w.reason = explain.NotVolume
	f := x.finding(pod, w, nil, nil)
	f.Facts = x.eventFacts(pod)
	return f
}

// containerWait is what the first container waits for that does not run. Init containers come first.
func (x *state) containerWait(pod *corev1.Pod) wait {
	for i := range pod.Status.InitContainerStatuses {
		s := &pod.Status.InitContainerStatuses[i]
		if w := x.statusWait("init container "+s.Name, s); w.detail != "" {
			return w
		}
		if s.State.Running != nil && !slices.ContainsFunc(pod.Status.ContainerStatuses, begun) {
			return wait{detail: "init container " + s.Name + " runs, and the pod's containers start when it has ended"}
		}
	}
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		if w := x.statusWait("container "+s.Name, s); w.detail != "" {
			return w
		}
	}
	return wait{}
}

func (x *state) statusWait(who string, s *corev1.ContainerStatus) (found wait) {
	switch w, t, last := s.State.Waiting, s.State.Terminated, s.LastTerminationState.Terminated; {
	case w != nil && !slices.Contains(starting, w.Reason):
		found.detail = who + ": " + found.says(x.foreign(joined(w.Reason, w.Message)))
		switch {
		case slices.Contains(pulling, w.Reason):
			found.waits = explain.WaitImage
		case w.Reason == "CreateContainerConfigError": // k/k v1.36.3 pkg/kubelet/kuberuntime/kuberuntime_container.go:69
			found.waits = explain.WaitConfig
		case last != nil:
			found.detail += fmt.Sprintf("; its last run ended with exit code %d", last.ExitCode)
			if last.Reason != "" && last.Reason != "Error" && last.Reason != "Completed" {
				found.detail += " (" + x.foreign(last.Reason) + ")" // OOMKilled, ContainerStatusUnknown
			}
			found.waits, found.container = explain.WaitRestart, s.Name
		}
	case t != nil && t.ExitCode != 0:
		found.detail = fmt.Sprintf("%s ended with exit code %d: %s", who, t.ExitCode, found.says(x.foreign(joined(t.Reason, t.Message))))
	}
	return found
}

// pullSecrets matches the event of kubelet about Secrets for images (k/k v1.36.3 pkg/kubelet/kubelet_pods.go:1092; v1.37.2 pkg/kubelet/kubelet.go:2317).
var pullSecrets = regexp.MustCompile(`^Unable to retrieve some image pull secrets \(([^)]+)\)`)

// addPullSecrets adds the Secrets for images that kubelet could not read.
func (x *state) addPullSecrets(w *wait, pod *corev1.Pod) {
	e := x.lastEvent(string(pod.UID), "FailedToRetrieveImagePullSecret")
	if e == nil || !from(e, nodeAgents) {
		return
	}
	if m := pullSecrets.FindStringSubmatch(strings.TrimPrefix(e.Message, combined)); m != nil {
		w.secrets = x.foreign(m[1])
		w.detail += "; kubelet could not read its pull secrets: " + w.secrets
	}
}

// pullError matches the event of kubelet about an image that it cannot pull (k/k v1.36.3 pkg/kubelet/images/image_manager.go): the image, and the
// innermost error, which the registry gave.
var pullError = regexp.MustCompile(`(?s)^Failed to pull image "([^"]+)": (?:.*: )?([^:]+)$`)

// addPullError adds why an image cannot be pulled, if the container's status does not have it.
func (x *state) addPullError(w *wait, pod *corev1.Pod) {
	e := x.lastEvent(string(pod.UID), "Failed")
	if e == nil || !from(e, nodeAgents) {
		return
	}
	m := pullError.FindStringSubmatch(strings.TrimPrefix(e.Message, combined))
	if m == nil || !strings.Contains(w.detail, m[1]) || strings.Contains(w.detail, m[2]) {
		return
	}
	w.detail += ": " + x.foreign(oneLine(m[2]))
}

func begun(s corev1.ContainerStatus) bool { return s.State.Running != nil || s.State.Terminated != nil }

func joined(reason, message string) string { return strings.TrimSuffix(reason+": "+message, ": ") }

// conditionWait is what the conditions of a pod show that it waits for: another controller (spec.readinessGates), its probes, or the start of its
// containers.
func (x *state) conditionWait(pod *corev1.Pod, since *time.Time) (detail string) {
	runs := slices.ContainsFunc(pod.Status.ContainerStatuses, begun)
	for _, c := range pod.Status.Conditions {
		gate := slices.ContainsFunc(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return g.ConditionType == c.Type })
		switch {
		case gate && c.Status != corev1.ConditionTrue:
			*since = c.LastTransitionTime.Time
			return x.foreign("the readiness gate " + joined(string(c.Type), c.Message))
		case c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse && runs && c.Reason != "PodCompleted":
			*since = c.LastTransitionTime.Time
			detail = "its containers run, and it is not Ready: " + x.foreign(joined(c.Reason, c.Message))
		case c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue && !runs:
			*since = c.LastTransitionTime.Time
			detail = "its volumes are mounted, and kubelet pulls the images or creates the containers"
		}
	}
	return detail
}

// elsewhere are the events of kubelet about what is no volume, before it waits for them and after (k/k v1.36.3 pkg/kubelet/kubelet.go:2105, 2174;
// pkg/kubelet/kuberuntime/kuberuntime_manager.go:1593, 1619, 1630). dataDirectories begins another one (pkg/kubelet/kubelet.go:2190).
var elsewhere = []string{
	"NetworkNotReady", "FailedCreatePodContainer", "FailedPrepareDynamicResources", "FailedCreatePodSandBox", "FailedPodSandBoxStatus",
}

// ofNetwork matches the text about a sandbox whose network fails; there are other causes (containerd v2.0 internal/cri/server/sandbox_run.go,
// CRI-O v1.34 server/sandbox_run_linux.go).
var ofNetwork = regexp.MustCompile(`failed to set ?up network|failed to create pod network sandbox`)

// ofPlugin matches what the network plugin says in such a text, and its name (containernetworking/cni v1.2 pkg/errors, libcni as containerd prints it).
var ofPlugin = regexp.MustCompile(`(?s)plugin type="[^"]*".*$`)

const dataDirectories = "error making pod data directories"

// waitsElsewhere explains a pod without a container for which kubelet reports last that something else than a volume fails. A volume that is not
// attached yet contradicts that it waits for that alone.
func (x *state) waitsElsewhere(pod *corev1.Pod) (f Finding, ok bool) {
	if state := x.node(pod.Spec.NodeName).State; state != NodeReady && state != NodeUnknown {
		return f, false
	}
	for _, v := range x.volumesOf(pod) {
		if v.hasKey && !x.given(v.key, pod.Spec.NodeName) {
			return f, false
		}
	}
	w := wait{since: scheduled(pod)}
	if kube.VolumesMounted(pod) {
		w.detail = x.conditionWait(pod, &w.since)
	}
	if e := x.lastOfKubelet(pod); e != nil && !slices.Contains(mountFailures, e.Reason) {
		w.detail = w.says(x.foreign(ofPlugin.FindString(e.Message)))
		if w.detail == "" {
			w.detail = w.says(x.foreign(strings.TrimPrefix(e.Message, combined)))
		}
		if e.Reason == "NetworkNotReady" || ofNetwork.MatchString(e.Message) {
			w.waits = explain.WaitNetwork
		}
	}
	if w.detail == "" {
		return f, false
	}
	return x.notVolume(pod, w), true
}

// lastOfKubelet is the newest event of a node agent that says why a pod has no container yet.
func (x *state) lastOfKubelet(pod *corev1.Pod) *corev1.Event {
	for _, e := range x.events[string(pod.UID)] {
		tells := slices.Contains(mountFailures, e.Reason) || slices.Contains(elsewhere, e.Reason) || e.Reason == "Failed" && strings.HasPrefix(e.Message, dataDirectories)
		if tells && from(e, nodeAgents) && !repeats(e) {
			return e
		}
	}
	return nil
}

// notStarted explains a pod on a node that has no container, and no volume of which something is known: no pod is without an answer for long.
func (x *state) notStarted(pod *corev1.Pod) Finding {
	w := wait{reason: explain.Mounting, since: scheduled(pod)}
	volumes := x.volumesOf(pod)
	for _, r := range x.reports(pod) {
		if timedOut.MatchString(r.cause) || slices.ContainsFunc(volumes, func(v podVolume) bool { return r.isAbout(&v) }) {
			continue
		}
		v := podVolume{}
		if len(r.about) == 1 {
			v.Name = r.about[0]
		}
		x.readMount(&w, pod, &v, r, r.cause)
		w.own = v.PodVolume
		break
	}
	switch state := x.node(pod.Spec.NodeName).State; {
	case state != NodeReady && state != NodeUnknown:
		w.reason = explain.PodNodeNotReady
	case pod.Annotations[TooManyVolumes] != "":
		w.reason = explain.MountFailing
	case w.reason == explain.Mounting && x.Now.Sub(w.since) > unmountUsual:
		w.reason = explain.MountFailing
	}
	f := x.finding(pod, w, nil, nil)
	f.Facts = x.eventFacts(pod)
	if w.reason == explain.MountFailing && pod.Annotations[TooManyVolumes] != "" {
		f.Summary = fmt.Sprintf("pod %s gets no volume attached: it has more than %d that may be, or those without a claim are too large", pod.Name, kube.MaxVolumes)
	}
	return f
}
