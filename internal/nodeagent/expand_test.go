package nodeagent

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

func TestClaimExpandedBeforeMount(t *testing.T) {
	for name, kind := range map[string]resizer{"by a resizer that tracks it": tracks, "by an old resizer": legacy} {
		t.Run(name, func(t *testing.T) {
			w := expandable(t, func(pv *corev1.PersistentVolume) {
				pv.Spec.MountOptions = []string{"noatime"}
			})
			w.grow("2Gi", kind)
			agent, _ := w.agent()
			pod := w.pod("p", "data")
			var early []Mount
			var during claimState
			w.driver.Before = func(method, _ string, _ int) error {
				if method == "Expand" {
					early = agent.waits.mounted(pod.UID).mounts
					during = stateOf(w.claim())
				}
				return nil
			}
			agent.SetPod(pod)
			w.mounted(agent, pod)
			w.wantClaimNow(claimState{Capacity: "2Gi"})
			w.wantCalls("Stage data", "Publish data", "Expand data")
			if len(early) > 0 {
				t.Errorf("ready before the expansion: %v", early)
			}
			pending := claimState{Capacity: "1Gi", Conditions: []string{"FileSystemResizePending"}}
			if kind == tracks {
				pending.Status = "NodeResizeInProgress"
			}
			if diff := cmp.Diff(pending, during); diff != "" {
				t.Errorf("claim during the call (-want +got):\n%s", diff)
			}
			published := csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver)
			if diff := cmp.Diff(&csispec.NodeExpandVolumeRequest{
				VolumeId: "h-" + w.name + "-data", VolumePath: published.TargetPath, StagingTargetPath: published.StagingTargetPath,
				CapacityRange: &csispec.CapacityRange{RequiredBytes: twoGi}, VolumeCapability: published.VolumeCapability,
			}, csidriver.LastRequest[*csispec.NodeExpandVolumeRequest](w.driver), protocmp.Transform()); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
			text := fmt.Sprintf("FileSystemResizeSuccessful: MountVolume.NodeExpandVolume succeeded for volume %q %s", w.name+"-data", w.name)
			w.untilEvent(pod, text)
			w.untilEvent(w.aboutClaim(), text)
		})
	}
}

func TestBlockVolumeExpansionRequest(t *testing.T) {
	w := expandable(t, func(pv *corev1.PersistentVolume) {
		pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
		pv.Spec.MountOptions = []string{"noatime"}
	})
	w.grow("2Gi", tracks)
	agent, _ := w.agent()
	pod := w.podWith("p", func(p *corev1.Pod) {
		p.Spec.Containers[0].VolumeMounts = nil
		p.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/xvda"}}
	}, "data")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	w.wantCalls("Stage data", "Publish data", "Expand data")
	devices := filepath.Join(w.root, "plugins/kubernetes.io/csi/volumeDevices")
	if diff := cmp.Diff(&csispec.NodeExpandVolumeRequest{
		VolumeId:          "h-" + w.name + "-data",
		VolumePath:        filepath.Join(devices, "publish", w.name+"-data", string(pod.UID)),
		StagingTargetPath: filepath.Join(devices, "staging", w.name+"-data"),
		CapacityRange:     &csispec.CapacityRange{RequiredBytes: twoGi},
		VolumeCapability: &csispec.VolumeCapability{
			AccessMode: &csispec.VolumeCapability_AccessMode{Mode: csispec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			AccessType: &csispec.VolumeCapability_Block{Block: &csispec.VolumeCapability_BlockVolume{}},
		},
	}, csidriver.LastRequest[*csispec.NodeExpandVolumeRequest](w.driver), protocmp.Transform()); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	w.wantClaimNow(claimState{Capacity: "2Gi"})
}

// TestExpansionSecret: it is sent, also to a driver that does not stage, and the event of a failure does not contain
// it.
func TestExpansionSecret(t *testing.T) {
	w := expandable(t, func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.NodeExpandSecretRef = &corev1.SecretReference{Namespace: pv.Name[:10], Name: "key"}
	})
	w.driver.NodeServices = []csispec.NodeServiceCapability_RPC_Type{csispec.NodeServiceCapability_RPC_EXPAND_VOLUME}
	_, err := w.admin.CoreV1().Secrets(w.name).Create(w.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "key"}, StringData: map[string]string{"password": "hunter2"},
	}, metav1.CreateOptions{})
	must(t, err)
	w.refuseExpand(codes.Internal, "login with hunter2 failed", 1)
	w.grow("2Gi", tracks)
	agent, _ := w.agent()
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilEvent(pod, "FailedMount: MountVolume.Setup failed while expanding volume for volume", "login with [REDACTED] failed")
	w.mounted(agent, pod)
	request := csidriver.LastRequest[*csispec.NodeExpandVolumeRequest](w.driver)
	if got := request.Secrets["password"]; got != "hunter2" {
		t.Errorf("secret %q", got)
	}
	if want := filepath.Join(w.root, csiDir, w.driverName(), hash(request.VolumeId), globalMount); request.StagingTargetPath != want {
		t.Errorf("staging path %q, want %q, as kubelet says it also to a driver that does not stage", request.StagingTargetPath, want)
	}
}

// TestUnreadableSecretMarksNoExpansionFailure: the driver was not called, so the claim's status does not report a
// failure.
func TestUnreadableSecretMarksNoExpansionFailure(t *testing.T) {
	w := expandable(t, func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.NodeExpandSecretRef = &corev1.SecretReference{Namespace: pv.Name[:10], Name: "key"}
	})
	w.grow("2Gi", tracks)
	agent, _ := w.agent()
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilEvent(pod, "FailedMount: MountVolume.Setup failed while expanding volume for volume", "read secret "+w.name+"/key")
	w.wantClaimNow(claimState{Capacity: "1Gi", Status: "NodeResizeInProgress", Conditions: []string{"FileSystemResizePending"}})
	w.wantCalls("Stage data", "Publish data")
	_, err := w.admin.CoreV1().Secrets(w.name).Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"}}, metav1.CreateOptions{})
	must(t, err)
	w.mounted(agent, pod)
	w.wantClaimNow(claimState{Capacity: "2Gi"})
}

func TestClaimExpandedUnderRunningPod(t *testing.T) {
	for name, kind := range map[string]resizer{"by a resizer that tracks it": tracks, "by an old resizer": legacy} {
		t.Run(name, func(t *testing.T) {
			w := expandable(t)
			agent, _ := w.agent(often)
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			w.mounted(agent, pod)
			w.grow("2Gi", kind)
			w.wantClaim(claimState{Capacity: "2Gi"})
			w.wantCalls("Stage data", "Publish data", "Expand data")
			if got := csidriver.LastRequest[*csispec.NodeExpandVolumeRequest](w.driver).CapacityRange.RequiredBytes; got != twoGi {
				t.Errorf("asked for %d bytes", got)
			}
			w.untilEvent(pod, "FileSystemResizeSuccessful")
		})
	}
}

// A claim that waits for the node although all sizes are equal: kubelet compares the sizes first, and the claim waits
// forever (k/k#131402).
func TestClaimWaitsForNodeWithEqualSizes(t *testing.T) {
	w := expandable(t)
	agent, _ := w.agent(often)
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	w.grow("2Gi", tracks)
	w.wantClaim(claimState{Capacity: "2Gi"})
	late := func() {
		w.changeClaim(func(c *corev1.PersistentVolumeClaim) {
			setResizeStatus(&c.Status, corev1.PersistentVolumeClaimNodeResizePending)
		})
	}
	late() // the resizer had an old version of the claim
	w.wantClaim(claimState{Capacity: "2Gi"})
	agent.RemovePod(pod.UID)
	w.unmounted(agent, pod)
	late() // while no pod uses the volume
	second := w.pod("q", "data")
	agent.SetPod(second)
	w.mounted(agent, second)
	w.wantClaim(claimState{Capacity: "2Gi"})
}

// TestEditedPodReadsItsClaims immediately, as kubelet syncs an edited pod; a change of the status does not count.
func TestEditedPodReadsItsClaims(t *testing.T) {
	w := expandable(t)
	agent, _ := w.agent(func(c *Config) { c.SyncPeriod = time.Hour })
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	w.grow("2Gi", tracks)
	edited := pod.DeepCopy()
	edited.Status.Phase = corev1.PodRunning
	if wasEdited(pod, edited) {
		t.Error("a new status counts as an edit")
	}
	edited.Annotations = map[string]string{"hurry": "up"}
	agent.SetPod(edited)
	w.wantClaim(claimState{Capacity: "2Gi"})
}

func TestReadOnlyVolumeIsNotExpanded(t *testing.T) {
	w := expandable(t)
	w.grow("2Gi", tracks)
	var r reads
	agent, _ := w.agent(often, r.count)
	pod := w.podWith("p", func(p *corev1.Pod) { p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true }, "data")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	text := fmt.Sprintf("FileSystemResizeFailed: MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", w.name+"-data")
	w.untilEvent(pod, text)
	w.untilEvent(w.aboutClaim(), text)
	writer := w.pod("writer", "data") // a pod that may write has it expanded, for all
	agent.SetPod(writer)
	w.mounted(agent, writer)
	w.wantCalls("Stage data", "Publish data", "Publish data", "Expand data")
	if got := csidriver.LastRequest[*csispec.NodeExpandVolumeRequest](w.driver).VolumePath; !strings.Contains(got, string(writer.UID)) {
		t.Errorf("expanded at %s", got)
	}
	w.wantClaimNow(claimState{Capacity: "2Gi"})
}

func TestDriverWithoutNodeExpansionIsNotCalled(t *testing.T) {
	t.Run("old resizer: the pod starts", func(t *testing.T) {
		w := expandable(t)
		w.driver.NodeServices = w.driver.NodeServices[:1]
		w.grow("2Gi", legacy)
		agent, _ := w.agent(often)
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		w.mounted(agent, pod)
		w.wantCalls("Stage data", "Publish data")
		w.wantClaimNow(claimState{Capacity: "1Gi", Conditions: []string{"FileSystemResizePending"}})
	})
	t.Run("the claim waits for the node: the pod does, too", func(t *testing.T) {
		w := expandable(t)
		w.driver.NodeServices = w.driver.NodeServices[:1]
		w.grow("2Gi", tracks)
		agent, _ := w.agent(often)
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		why := "NodeExpand is not supported by the CSI driver " + w.driverName()
		w.untilEvent(pod, "FailedMount: MountVolume.Setup failed while expanding volume", why)
		w.wantClaim(claimState{Capacity: "1Gi", Status: "NodeResizeInProgress", Conditions: []string{
			"FileSystemResizePending", "NodeResizeError: failed to expand pvc with " + why,
		}})
		w.waitSays(agent, pod, why)
		w.wantCalls("Stage data", "Publish data")
	})
}

func TestInfeasibleExpansion(t *testing.T) {
	for _, code := range []codes.Code{codes.InvalidArgument, codes.OutOfRange, codes.NotFound} {
		t.Run(code.String(), func(t *testing.T) {
			w := expandable(t)
			w.grow("2Gi", tracks)
			w.refuseExpand(code, "too large")
			var r reads
			agent, _ := w.agent(often, r.count)
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			w.mounted(agent, pod) // it gets what there is
			why := fmt.Sprintf("NodeExpandVolume of volume h-%s-data: rpc error: code = %s desc = too large", w.name, code)
			w.wantClaimNow(claimState{Capacity: "1Gi", Status: "NodeResizeInfeasible", Conditions: []string{
				"FileSystemResizePending", "NodeResizeError: failed to expand pvc with " + why,
			}})
			w.untilEvent(pod, "FailedMount", "failed while expanding volume", why)
			w.more(&r, 5)
			if got := w.expansions(); got != 1 {
				t.Errorf("asked %d times", got)
			}
			// The user asks for less, and the resizer starts again.
			w.refuseExpand(codes.Internal, "", 0)
			w.ask("1536Mi")
			w.begin("1536Mi")
			w.enlarge("1536Mi")
			w.changeClaim(func(c *corev1.PersistentVolumeClaim) {
				setResizeStatus(&c.Status, corev1.PersistentVolumeClaimNodeResizePending)
			})
			w.wantClaim(claimState{Capacity: "1536Mi"})
			if got := w.expansions(); got != 2 {
				t.Errorf("asked %d times", got)
			}
		})
	}
}

// TestInfeasibleExpansionReadBack: the agent reads what it wrote to the claim, and releases the pod, before the answer to the write arrives. The
// pod waited for the expansion all the same, and gets kubelet's event for that.
func TestInfeasibleExpansionReadBack(t *testing.T) {
	w := expandable(t)
	w.grow("2Gi", tracks)
	w.refuseExpand(codes.InvalidArgument, "too large")
	released := make(chan struct{})
	agent, _ := w.agent(often, func(c *Config) { holdAnswer(c, string(corev1.PersistentVolumeClaimNodeResizeInfeasible), released) })
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	close(released)
	w.untilEvent(pod, "FailedMount", "failed while expanding volume", "too large")
}

// TestExpansionWhileInUse: FAILED_PRECONDITION does not block a pod, and the expansion is not retried while the pod
// runs.
func TestExpansionWhileInUse(t *testing.T) {
	for name, kind := range map[string]resizer{"tracked": tracks, "old resizer": legacy} {
		t.Run(name, func(t *testing.T) {
			w := expandable(t)
			w.grow("2Gi", kind)
			w.refuseExpand(codes.FailedPrecondition, "in use")
			var r reads
			agent, _ := w.agent(often, r.count)
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			w.mounted(agent, pod)
			want := claimState{Capacity: "1Gi", Conditions: []string{"FileSystemResizePending"}}
			if kind == tracks {
				want.Status = "NodeResizeInProgress"
				want.Conditions = append(want.Conditions, fmt.Sprintf(
					"NodeResizeError: failed to expand pvc with NodeExpandVolume of volume h-%s-data: rpc error: code = FailedPrecondition desc = in use", w.name))
			}
			w.wantClaimNow(want)
			w.more(&r, 5)
			if got := w.expansions(); got != 1 {
				t.Errorf("asked %d times under a running pod", got)
			}
			w.refuseExpand(codes.Internal, "", 0)
			next := w.pod("next", "data")
			agent.SetPod(next)
			w.mounted(agent, next)
			w.wantClaim(claimState{Capacity: "2Gi"})
			if got := w.expansions(); got != 2 {
				t.Errorf("asked %d times", got)
			}
		})
	}
}

func TestFailedExpansionIsRetried(t *testing.T) {
	failure := "code = Internal desc = resize2fs: busy"
	t.Run("before the pod starts", func(t *testing.T) {
		w := expandable(t)
		w.grow("2Gi", tracks)
		w.refuseExpand(codes.Internal, "resize2fs: busy")
		agent, _ := w.agent()
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		w.untilExpanded(1)
		w.waitSays(agent, pod, failure)
		w.wantClaim(claimState{Capacity: "1Gi", Status: "NodeResizeInProgress", Conditions: []string{
			"FileSystemResizePending", fmt.Sprintf("NodeResizeError: failed to expand pvc with NodeExpandVolume of volume h-%s-data: rpc error: %s", w.name, failure),
		}})
		w.untilEvent(pod, fmt.Sprintf("FailedMount: MountVolume.Setup failed while expanding volume for volume %q : ", w.name+"-data"), failure)
		w.untilExpanded(2)
		w.refuseExpand(codes.Internal, "", 0)
		w.mounted(agent, pod)
		w.wantClaimNow(claimState{Capacity: "2Gi"})
		w.callsAre("Stage data", "Publish data", "Expand data")
	})
	t.Run("and the pod goes", func(t *testing.T) {
		w := newAttachedWorld(t).expandable()
		w.grow("2Gi", tracks)
		w.refuseExpand(codes.Internal, "resize2fs: busy")
		agent, _ := w.agent()
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		w.waitSays(agent, pod, failure)
		agent.RemovePod(pod.UID)
		w.untilForgotten(agent)
		w.callsAre("Stage data", "Publish data", "Expand data", "Unpublish data", "Unstage data")
	})
	t.Run("under a running pod", func(t *testing.T) {
		w := expandable(t)
		w.refuseExpand(codes.Internal, "resize2fs: busy", 1)
		agent, _ := w.agent(often)
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		w.mounted(agent, pod)
		w.grow("2Gi", tracks)
		w.untilEvent(pod, fmt.Sprintf("VolumeResizeFailed: NodeExpandVolume.NodeExpandVolume failed for volume %q : ", w.name+"-data"), failure)
		w.mounted(agent, pod) // it stays so
		w.wantClaim(claimState{Capacity: "2Gi"})
		if got := w.expansions(); got != 2 {
			t.Errorf("asked %d times", got)
		}
	})
}

// TestExpansionRefusedAfterRequestChanged: a final error then returns the expansion to the controller. A call without
// an answer does not: the driver may still be executing it.
func TestExpansionRefusedAfterRequestChanged(t *testing.T) {
	w := expandable(t)
	w.grow("2Gi", tracks)
	var final atomic.Int32
	w.refuseFinally(&final, 0)
	agent, _ := w.agent()
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilExpanded(1)
	w.ask("1536Mi")
	w.untilExpanded(2)
	w.wantClaimNow(claimState{Capacity: "1Gi", Status: "NodeResizeInProgress", Conditions: []string{"FileSystemResizePending"}})
	w.refuseFinally(&final, 1)
	broken := fmt.Sprintf("NodeResizeError: failed to expand pvc with NodeExpandVolume of volume h-%s-data: rpc error: code = Internal desc = broken", w.name)
	w.wantClaim(claimState{Capacity: "1Gi", Status: "NodeResizeInProgress", Conditions: []string{"FileSystemResizePending", broken}})
	w.refuseFinally(&final, always)
	w.wantClaim(claimState{Capacity: "1Gi", Status: "NodeResizeInfeasible", Conditions: []string{"FileSystemResizePending", broken}})
	w.mounted(agent, pod)
	if got := final.Load(); got != 2 {
		t.Errorf("refused %d times", got)
	}
}

// TestAnotherNodeExpandedItFirst: the claim has its new size already.
func TestAnotherNodeExpandedItFirst(t *testing.T) {
	finish := func(c *corev1.PersistentVolumeClaim) {
		c.Status.Capacity, c.Status.AllocatedResourceStatuses = storage("2Gi"), nil
		c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue, Message: "on a third node"}}
	}
	shared := func(pv *corev1.PersistentVolume) {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	}
	running := func(t *testing.T, options ...volumeOptions) (*world, *reads) {
		t.Helper()
		w := expandable(t, options...)
		r := &reads{}
		agent, _ := w.agent(often, r.count)
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		w.mounted(agent, pod)
		return w, r
	}
	settle := func(w *world) {
		w.Helper()
		w.ask("2Gi")
		w.begin("2Gi")
		w.enlarge("2Gi")
		w.changeClaim(finish)
	}
	t.Run("ReadWriteMany: here as well, and the claim is left alone", func(t *testing.T) {
		w, r := running(t, shared)
		settle(w)
		version := w.claim().ResourceVersion
		w.untilExpanded(1)
		w.more(r, 5)
		if got := w.expansions(); got != 1 {
			t.Errorf("asked %d times", got)
		}
		if got := w.claim().ResourceVersion; got != version {
			t.Error("the claim was written")
		}
	})
	t.Run("ReadWriteMany, but the resizer says that no node needs to", func(t *testing.T) {
		w, r := running(t, shared)
		claim := w.claim()
		claim.Annotations = map[string]string{nodeExpansionNotRequired: "true"}
		_, err := w.admin.CoreV1().PersistentVolumeClaims(w.name).Update(w.ctx, claim, metav1.UpdateOptions{})
		must(t, err)
		settle(w)
		w.more(r, 5)
		w.wantCalls("Stage data", "Publish data")
	})
	t.Run("ReadWriteOnce: the controller has done it", func(t *testing.T) {
		w, r := running(t)
		settle(w)
		w.more(r, 5)
		w.wantCalls("Stage data", "Publish data")
	})
	t.Run("the controller is at work: it is not this node's turn", func(t *testing.T) {
		w, r := running(t)
		w.ask("2Gi")
		w.begin("2Gi")
		w.enlarge("2Gi")
		w.more(r, 5)
		w.wantCalls("Stage data", "Publish data")
		w.changeClaim(func(c *corev1.PersistentVolumeClaim) {
			setResizeStatus(&c.Status, corev1.PersistentVolumeClaimNodeResizePending)
		})
		w.wantClaim(claimState{Capacity: "2Gi"})
	})
}

// TestPodDoesNotWaitForControllerExpansion: while the controller expands the volume, or the expansion is infeasible,
// the pod gets the volume at its present size.
func TestPodDoesNotWaitForControllerExpansion(t *testing.T) {
	for _, turn := range []corev1.ClaimResourceStatus{
		corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimNodeResizeInfeasible,
	} {
		t.Run(string(turn), func(t *testing.T) {
			w := expandable(t)
			w.ask("2Gi")
			w.begin("2Gi")
			w.enlarge("2Gi")
			w.changeClaim(func(c *corev1.PersistentVolumeClaim) { setResizeStatus(&c.Status, turn) })
			agent, _ := w.agent(often)
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			w.mounted(agent, pod)
			w.wantCalls("Stage data", "Publish data")
			w.wantClaimNow(claimState{Capacity: "1Gi", Status: string(turn)})
			w.changeClaim(func(c *corev1.PersistentVolumeClaim) {
				setResizeStatus(&c.Status, corev1.PersistentVolumeClaimNodeResizePending)
			})
			w.wantClaim(claimState{Capacity: "2Gi"})
		})
	}
}

// TestCrashBetweenExpansionAndClaimStatus: the next agent repeats the call, which is harmless for the driver.
func TestCrashBetweenExpansionAndClaimStatus(t *testing.T) {
	w := expandable(t)
	w.grow("2Gi", tracks)
	called, dead := make(chan struct{}), make(chan struct{})
	w.driver.After = func(method, _ string, attempt int) error {
		if method == "Expand" && attempt == 1 {
			close(called)
			<-dead
		}
		return nil
	}
	agent, stop := w.agent()
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	wait.For(t, "the call to arrive", called)
	stop()
	close(dead)
	w.wantClaimNow(claimState{Capacity: "1Gi", Status: "NodeResizeInProgress", Conditions: []string{"FileSystemResizePending"}})
	agent, _ = w.agent()
	agent.SetPod(pod)
	w.mounted(agent, pod)
	w.wantClaimNow(claimState{Capacity: "2Gi"})
	w.wantCalls("Stage data", "Publish data", "Expand data", "Expand data")
}

// TestConcurrentClaimStatusUpdate: what another writer put into the claim's status stays. The driver is called again
// only if every write of the status conflicts.
func TestConcurrentClaimStatusUpdate(t *testing.T) {
	watched := func(c *corev1.PersistentVolumeClaim) {
		c.Status.Conditions = append(c.Status.Conditions, corev1.PersistentVolumeClaimCondition{Type: "Watched", Status: corev1.ConditionTrue})
	}
	t.Run("once", func(t *testing.T) {
		w := expandable(t)
		w.grow("2Gi", tracks)
		w.driver.Before = func(method, _ string, _ int) error {
			if method == "Expand" {
				w.changeClaim(watched)
			}
			return nil
		}
		agent, _ := w.agent()
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		w.mounted(agent, pod)
		w.wantClaimNow(claimState{Capacity: "2Gi", Conditions: []string{"Watched"}})
		w.wantCalls("Stage data", "Publish data", "Expand data")
	})
	t.Run("and the driver refuses", func(t *testing.T) {
		w := expandable(t)
		w.grow("2Gi", tracks)
		w.driver.Before = func(method, _ string, _ int) error {
			if method != "Expand" {
				return nil
			}
			w.changeClaim(watched)
			return status.Error(codes.OutOfRange, "too large")
		}
		agent, _ := w.agent()
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		w.mounted(agent, pod)
		w.wantClaimNow(claimState{Capacity: "1Gi", Status: "NodeResizeInfeasible", Conditions: []string{
			"FileSystemResizePending",
			fmt.Sprintf("NodeResizeError: failed to expand pvc with NodeExpandVolume of volume h-%s-data: rpc error: code = OutOfRange desc = too large", w.name),
			"Watched",
		}})
	})
	t.Run("by being another one of its name", func(t *testing.T) {
		w := expandable(t)
		agent, _ := w.agent()
		pod := w.pod("p", "data") // without one a node may read no claim
		agent.SetPod(pod)
		w.mounted(agent, pod)
		other := &volumeToMount{pod: podIdentity{Namespace: w.name}, claim: claimRef{"data", "another"}}
		if _, err := agent.volumes.growth.readClaim(w.ctx, other, ""); err == nil || !strings.Contains(err.Error(), "was recreated after the pod was bound") {
			t.Errorf("the claim was taken for the one that the pod was bound with: %v", err)
		}
	})
	t.Run("before each of the agent's writes", func(t *testing.T) {
		w := expandable(t)
		w.grow("2Gi", legacy)
		left := claimWrites
		agent, _ := w.agent(func(c *Config) {
			c.RESTConfig = rest.CopyConfig(c.RESTConfig)
			c.RESTConfig.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(request *http.Request) (*http.Response, error) {
					if request.Method == http.MethodPatch && strings.HasSuffix(request.URL.Path, "/persistentvolumeclaims/data/status") && left > 0 {
						left--
						w.changeClaim(watched)
					}
					return next.RoundTrip(request)
				})
			})
		})
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		w.untilEvent(pod, "FailedMount", "mountVolume.NodeExpandVolume update pvc status failed")
		w.mounted(agent, pod)
		w.wantCalls("Stage data", "Publish data", "Expand data", "Expand data")
		w.wantClaimNow(claimState{Capacity: "2Gi", Conditions: []string{"Watched", "Watched", "Watched"}})
	})
}

// TestHangingExpansionEndsAtItsDeadline: and the end of the pod does not wait for its success.
func TestHangingExpansionEndsAtItsDeadline(t *testing.T) {
	w := expandable(t)
	w.grow("2Gi", tracks)
	stuck := make(chan struct{})
	t.Cleanup(func() { close(stuck) })
	w.driver.Before = func(method, _ string, _ int) error {
		if method == "Expand" {
			<-stuck
		}
		return nil
	}
	agent, _ := w.agent(func(c *Config) { c.RPCTimeout = time.Second })
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilEvent(pod, "FailedMount", "did not answer NodeExpandVolume within 1s (DeadlineExceeded)")
	agent.RemovePod(pod.UID)
	w.unmounted(agent, pod)
	wait.Until(w, "unstaged", func() bool { return len(agent.Pods()) == 0 })
}
