package diagnosis

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
)

// sandbox is kubelet's event for a network that fails.
const sandbox = `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "8f2": plugin type="calico" failed (add): no route`

// TestWhatContainersWaitFor: what a container waits for is a volume, or is named although it is none.
func TestWhatContainersWaitFor(t *testing.T) {
	started := func(change func(*corev1.Pod)) func(*Snapshot, *corev1.Pod) {
		return func(_ *Snapshot, pod *corev1.Pod) { change(pod) }
	}
	image := corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "registry.example.com/model:1"}}
	const path = "/var/lib/kubelet/pods/0f1/volumes/kubernetes.io~csi/pv/mount"
	for name, c := range map[string]kubeletText{
		"a subPath that cannot be made": {
			source: "1.31.4 pkg/kubelet/kubelet_pods.go:336", volume: ofClaim, pv: onCSI(), container: true, reason: "CreateContainerConfigError",
			message: `failed to create subPath directory for volumeMount "v" of container "app"`,
			want:    explain.ContainerMountFailing, says: []string{"volume v (claim claim)", "container app", "node n1"}, next: "root of node n1 may enter",
		},
		"an absolute subPath": {
			source: "1.34.2 pkg/kubelet/kubelet_pods.go:313", volume: ofClaim, pv: onCSI(), container: true, reason: "CreateContainerConfigError", message: "error SubPath `/abs` must not be an absolute path",
			want: explain.ContainerMountFailing, says: []string{"subPath /abs", "absolute"}, next: "Correct subPath",
		},
		"a subPath that leads out": {
			source: "1.34.2 pkg/kubelet/kubelet_pods.go:317", volume: ofClaim, pv: onCSI(), container: true, reason: "CreateContainerConfigError", message: "unable to provision SubPath `../x`: must not contain '..'",
			want: explain.ContainerMountFailing, says: []string{"subPath ../x", "'..'"}, next: "Correct subPath",
		},
		"a label, containerd": {
			source: "containerd v2.0.0 internal/cri/opts/spec_linux_opts.go", volume: ofClaim, pv: onCSI(), container: true, reason: "CreateContainerError",
			message: `failed to generate container "b6" spec: failed to generate spec: relabel "` + path + `" with "system_u:object_r:container_file_t:s0:c1,c2" failed: lsetxattr ` + path + `: operation not supported`,
			want:    explain.ContainerMountFailing, says: []string{"volume v", "SELinux", "operation not supported"}, next: "context=",
		},
		"a label, CRI-O": {
			source: "CRI-O v1.34.0 server/container_create_linux.go", volume: ofClaim, pv: onCSI(), container: true, reason: "CreateContainerError",
			message: "relabel failed " + path + ": lsetxattr " + path + "/f: read-only file system",
			want:    explain.ContainerMountFailing, says: []string{"volume v", "SELinux", "read-only"}, next: "SELinux",
		},
		"a file on a directory": {
			source: "runc v1.3.0 libcontainer/rootfs_linux.go", volume: configMap("app"), container: true, reason: "RunContainerError",
			message: `failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: error mounting "/var/lib/kubelet/pods/0f1/volume-subpaths/v/app/0" to rootfs at "/etc/app": mount src=/x, dst=/etc/app, flags=MS_BIND: not a directory`,
			want:    explain.ContainerMountFailing, says: []string{"volume v", "/etc/app", "not a directory"}, next: "mountPath",
		},
		"the image of a volume": {
			source: "1.36.3 pkg/kubelet/images/image_manager.go:157, kuberuntime_manager.go:1841", volume: image, container: true, reason: "ErrImageNeverPull",
			message: `Container image "registry.example.com/model:1" is not present with pull policy of Never`,
			want:    explain.MountFailing, says: []string{"volume v", "registry.example.com/model:1"},
		},
		"a device that is mounted": {
			source: "1.33.2 pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go:496", volume: ofClaim, pv: onCSI(), reason: "FailedMount",
			message: notProcessed("volume v has volumeMode Filesystem, but is specified in volumeDevices"),
			want:    explain.VolumeUnsupported, says: []string{"volume v (claim claim)", "Filesystem", "volumeDevices"}, next: "Use volumeMounts",
		},
		"a claim that is being deleted": {
			source: "1.33.2 pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go", volume: ofClaim, pv: onCSI(), reason: "FailedMount",
			message: notProcessed("error processing PVC ns/claim: PVC is being deleted"),
			want:    explain.VolumeSourceMissing, says: []string{"claim", "being deleted"}, next: "kubectl describe pvc claim -n ns",
		},
		"two labels": {
			source: "1.35.0 pkg/kubelet/volumemanager/cache/desired_state_of_world.go:377", volume: ofClaim, pv: onCSI(), reason: "FailedMount",
			message: notProcessed(`conflicting SELinux labels of volume pv: "s0:c1" and "s0:c2"`),
			want:    explain.VolumeUnsupported, says: []string{"volume v (claim claim)", "s0:c1", "s0:c2", "node n1"}, next: "seLinuxOptions",
		},
		"no network": {
			source: "1.32.3 pkg/kubelet/kubelet.go:1924", volume: ofClaim, pv: onCSI(), reason: "NetworkNotReady", message: "network is not ready: container runtime network not ready: NetworkReady=false: cni plugin not initialized",
			want: explain.NotVolume, says: []string{"pod app-0", "node n1", "cni plugin not initialized"}, next: "network plugin",
		},
		"a cgroup": {
			source: "1.32.3 pkg/kubelet/kubelet.go:1984", volume: configMap("app"), reason: "FailedCreatePodContainer", message: "unable to ensure pod container exists: failed to create container for [kubepods burstable] : no space left on device",
			want: explain.NotVolume, says: []string{"no space left on device"}, next: "kubectl describe pod app-0 -n ns",
		},
		"a device of a claim for devices": {
			source: "1.34.2 pkg/kubelet/kuberuntime/kuberuntime_manager.go:1322", volume: configMap("app"), reason: "FailedPrepareDynamicResources", message: "Failed to prepare dynamic resources: resource claim gpu does not exist",
			want: explain.NotVolume, says: []string{"resource claim gpu"}, next: "kubectl describe pod",
		},
		"a sandbox": {
			source: "1.36.3 pkg/kubelet/kuberuntime/kuberuntime_manager.go:1619", volume: configMap("app"), reason: "FailedCreatePodSandBox", message: sandbox,
			want: explain.NotVolume, says: []string{"calico"}, next: "network plugin",
		},
		"a crash": {
			source: "1.36.3 pkg/kubelet/container/sync_result.go:77", volume: configMap("app"), container: true, reason: "CrashLoopBackOff", message: "back-off 5m0s restarting failed container=app",
			also: started(func(pod *corev1.Pod) {
				pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137}
			}),
			want: explain.NotVolume, says: []string{"container app", "CrashLoopBackOff", "exit code 137"}, next: "kubectl logs app-0 -c app --previous --tail=50 -n ns",
		},
		"a crash for lack of memory": {
			source: "1.36.3 pkg/kubelet/kuberuntime/kuberuntime_container.go: OOMKilled", volume: configMap("app"), container: true, reason: "CrashLoopBackOff", message: "back-off 5m0s restarting failed container=app",
			also: started(func(pod *corev1.Pod) {
				pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}
			}),
			want: explain.NotVolume, says: []string{"exit code 137 (OOMKilled)"}, next: "kubectl logs app-0",
		},
		"an image without its pull secret": {
			source: "1.37.2 pkg/kubelet/kubelet.go:2317", volume: configMap("app"), container: true, reason: "ImagePullBackOff", message: `Back-off pulling image "registry.example.com/app:2"`,
			also: func(s *Snapshot, pod *corev1.Pod) {
				s.Events = append(s.Events, eventOf(pod, "", "FailedToRetrieveImagePullSecret", "Unable to retrieve some image pull secrets (regcred); attempting to pull the image may not succeed.", metav1.NewTime(s.Now.Add(-time.Minute))))
			},
			want: explain.NotVolume, says: []string{"waits for its image", "pull secrets: regcred"}, next: "Create the Secret regcred",
		},
		"scheduling gates": {
			source: "1.36.3 pkg/registry/core/pod/strategy.go:929", volume: ofClaim, also: func(_ *Snapshot, pod *corev1.Pod) {
				pod.Spec.NodeName, pod.Spec.SchedulingGates = "", []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
				pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
					Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated, Message: "Scheduling is blocked due to non-empty scheduling gates",
				}}}
			},
			pv:   onCSI(),
			want: explain.NotVolume, says: []string{"waits for the scheduler, and for no volume", "kueue.x-k8s.io/admission"}, next: "Find the controller",
		},
		"an init container": {
			source: "1.36.3 pkg/kubelet/kubelet_pods.go: PodInitializing", volume: configMap("app"), also: started(func(pod *corev1.Pod) {
				pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "wait-for-db", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
			}),
			want: explain.NotVolume, says: []string{"init container wait-for-db runs"},
		},
		"a readiness gate": {
			source: "1.36.3 pkg/kubelet/status/generate.go", volume: configMap("app"), also: started(func(pod *corev1.Pod) {
				pod.Status.Phase, pod.Status.ContainerStatuses[0].State = corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
				pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "target-health.alb"}}
				pod.Status.Conditions = []corev1.PodCondition{{Type: "target-health.alb", Status: corev1.ConditionFalse, Message: "initial health checks in progress"}}
			}),
			want: explain.NotVolume, says: []string{"readiness gate target-health.alb", "initial health checks"},
		},
		"images that are pulled": {
			source: "1.36.3 pkg/kubelet/status/generate.go", volume: configMap("app"), also: started(func(pod *corev1.Pod) {
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
			}),
			want: explain.NotVolume, says: []string{"volumes are mounted"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.checkFew(t)
			if c.want != explain.NotVolume {
				return
			}
			s, _ := c.snapshot()
			if e, _ := Explain(s, Ref{Pods, "ns", "app-0"}); e.Verdict != NotVolume {
				t.Errorf("the verdict is %s", e.Verdict)
			}
			if list := Stuck(s, "ns", 0); len(list.Items) != 0 || list.Verdict != Clear {
				t.Errorf("stuck lists %+v", list.Items)
			}
		})
	}
}

// TestContainersThatNeedNoVolume: the same words of another speaker, at another time or about another thing, are no volume's.
func TestContainersThatNeedNoVolume(t *testing.T) {
	earlier := func(reason, message string) func(*Snapshot, *corev1.Pod) {
		return func(s *Snapshot, pod *corev1.Pod) {
			s.Events = append(s.Events, eventOf(pod, "", reason, message, metav1.NewTime(s.Now.Add(-3*time.Minute))))
		}
	}
	for name, c := range map[string]kubeletText{
		"a time-out, as old kubelets write it": {
			volume: ofClaim, pv: onCSI(), reason: "FailedMount", message: notProcessed("timed out waiting for the condition"), want: explain.MountFailing, says: []string{"nor reported an error"},
		},
		"a time-out":       {volume: ofClaim, pv: onCSI(), reason: "FailedMount", message: notProcessed("context deadline exceeded"), want: explain.MountFailing, says: []string{"nor reported an error"}},
		"no time-out only": {volume: ofClaim, pv: onCSI(), reason: "FailedMount", message: notProcessed("error processing PVC ns/claim: failed to fetch PVC from API server: context deadline exceeded"), want: explain.MountFailing, says: []string{"failed to fetch PVC"}},
		"the Secret of an environment variable": {
			volume: secret("app-tls"), container: true, reason: "CreateContainerConfigError", message: `secret "app-tls" not found`, want: explain.NotVolume, says: []string{`secret "app-tls" not found`}, next: "Create the ConfigMap, Secret or key",
		},
		"a sandbox, by another speaker": {
			volume: ofClaim, pv: onCSI(), from: "cni-operator", reason: "FailedCreatePodSandBox", message: sandbox, want: explain.MountFailing,
		},
		"a sandbox before the volume is attached": {
			volume: ofClaim, pv: onCSI(), reason: "FailedCreatePodSandBox", message: sandbox,
			also: func(s *Snapshot, _ *corev1.Pod) {
				s.Attachments[0].Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "rpc error: code = Internal desc = no"}}
			},
			want: attachment.AttachFailed,
		},
		"a sandbox before a mount fails": {
			volume: configMap("app"), reason: "FailedMount", message: setUp(`configmap "app" not found`), also: earlier("FailedCreatePodSandBox", sandbox), want: explain.VolumeSourceMissing,
		},
		"a mount that failed before the sandbox": {
			volume: configMap("app"), reason: "FailedCreatePodSandBox", message: sandbox, also: earlier("FailedMount", setUp(`configmap "app" not found`)), want: explain.NotVolume,
		},
		"a program's own words": {
			volume: configMap("app"), container: true, reason: "CrashLoopBackOff", message: `failed to prepare subPath for volumeMount "cache" of container "worker"`, want: explain.NotVolume,
		},
		"a mount that is no volume": {
			volume: hostPath("/srv"), container: true, reason: "RunContainerError", message: `error mounting "/etc/resolv.conf" to rootfs at "/etc/resolv.conf": no such file`, want: explain.NotVolume,
		},
		"the container's own image": {
			volume: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "registry.example.com/model:1"}}, container: true, reason: "ImagePullBackOff",
			message: `Back-off pulling image "registry.example.com/model:12"`, want: explain.NotVolume, next: "imagePullSecrets",
		},
		"a container that runs again": {
			volume: configMap("app"), also: func(_ *Snapshot, pod *corev1.Pod) {
				pod.Status.Phase, pod.Status.ContainerStatuses[0].State = corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
				pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Message: `failed to prepare subPath for volumeMount "v" of container "app"`}
			},
			want: attachment.Settled,
		},
	} {
		t.Run(name, c.check)
	}
}

// TestClaimBesideAnotherVolume: what fails belongs to the volume that kubelet names, and not to the claim beside it.
func TestClaimBesideAnotherVolume(t *testing.T) {
	c := kubeletText{volume: ofClaim, pv: onCSI(), reason: "FailedMount", message: `MountVolume.SetUp failed for volume "config" : configmap "app" not found`}
	c.also = func(_ *Snapshot, pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "config", VolumeSource: configMap("app")})
	}
	s, _ := c.snapshot()
	for _, ref := range []Ref{{Claims, "ns", "claim"}, {Volumes, "", "pv"}} {
		if e, err := Explain(s, ref); err != nil || e.Verdict != Clear {
			t.Errorf("%s: %s %s: %s (%v)", ref, e.Verdict, e.Reason, e.Summary, err)
		}
	}
	if e, _ := Explain(s, Ref{Claims, "ns", "claim"}); !strings.Contains(e.Summary, "pod app-0 waits for its volume config") {
		t.Errorf("the claim: %s", e.Summary)
	}
	e, err := Explain(s, Ref{Pods, "ns", "app-0"})
	if err != nil || len(e.Findings) != 1 || e.Findings[0].Volume.Name != "config" || e.Findings[0].Volume.Claim != "" {
		t.Errorf("the pod: %+v (%v)", e.Findings, err)
	}
	list := Stuck(s, "ns", 0)
	if len(list.Items) != 1 || list.Items[0].Volume.Name != "config" {
		t.Errorf("stuck lists %+v", list.Items)
	}
}

// TestEndedPods: a pod that has ended waits for nothing, and the answer has why it failed.
func TestEndedPods(t *testing.T) {
	for name, c := range map[string]struct {
		status corev1.PodStatus
		says   string
	}{
		"the size of an emptyDir": { // k/k v1.36.3 pkg/kubelet/eviction/helpers.go:58
			corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: `Usage of EmptyDir volume "cache" exceeds the limit "1Gi". `},
			`needs no volume any more: Evicted: Usage of EmptyDir volume "cache" exceeds the limit "1Gi"`,
		},
		"too many volumes for the node": { // k/k v1.36.3 pkg/kubelet/volumemanager/volume_manager.go:91
			corev1.PodStatus{Phase: corev1.PodFailed, Reason: "VolumeAttachmentLimitExceeded", Message: "Node has insufficient volume attachment capacity"}, "any more: VolumeAttachmentLimitExceeded: Node has",
		},
		"a container": {corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "app", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}},
		}}}, "any more: container app ended with exit code 1: Error"},
		"nothing": {corev1.PodStatus{Phase: corev1.PodFailed}, "needs no volume any more"},
	} {
		t.Run(name, func(t *testing.T) {
			text := kubeletText{volume: configMap("app"), want: attachment.Settled, says: []string{c.says}, also: func(_ *Snapshot, pod *corev1.Pod) { pod.Status = c.status }}
			text.check(t)
		})
	}
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		c := kubeletText{volume: configMap("app"), reason: "FailedMount", message: setUp(`configmap "app" not found`), want: attachment.Settled}
		c.also = func(_ *Snapshot, pod *corev1.Pod) { pod.Status.Phase = phase }
		t.Run(string(phase), c.check)
	}
}
