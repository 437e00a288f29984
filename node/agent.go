package node

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"belay.dev/belay/internal/containers"
	"belay.dev/belay/internal/nodeagent"
)

// AttachLimitError is among the errors of [Agent.WaitMounted] (errors.As) when the storage refuses to attach another volume to the
// node (RESOURCE_EXHAUSTED) and the driver's CSIDriver sets nodeAllocatableUpdatePeriodSeconds. The CSINode has been updated then.
// Kubelet waits two minutes for the volume and then fails the pod with [AttachLimitReason], so that its controller creates another
// one, for another node; whether and when to do so is the owner's decision.
type AttachLimitError = nodeagent.AttachLimitError

// AttachLimitReason is the status.reason of pods that kubelet fails for that.
const AttachLimitReason = nodeagent.AttachLimitReason

// Agent manages the CSI volumes of one node. Create it with [New], then [Agent.Run] it, or [Agent.Close] it if it does not run. All
// other methods may be called before Run, while it runs, and from any goroutine.
type Agent struct {
	agent *nodeagent.Agent
}

// New reads the records under the root and creates an agent that knows them. It reads nothing from the API and calls no driver. It
// holds a lock on the root until Run has returned or Close was called; while another agent holds it, the error is [ErrRootInUse].
func New(config Config) (*Agent, error) {
	agent, err := nodeagent.New(config.shell())
	if err != nil {
		return nil, err
	}
	return &Agent{agent: agent}, nil
}

// Containers reports when the containers of pods have ended: a container runtime ([NewCRI]), or another component that knows.
type Containers interface {
	// Ended returns nil if no process of the pod is left, and none will be started before release was called, which happens once
	// the pod's volumes are unpublished. An error names what is running, or why that is unknown; in both cases the volumes stay
	// mounted, and it is called again after 0.1 to 5 s.
	Ended(ctx context.Context, podUID string) (release func(), err error)
}

// NewCRI returns a container runtime that serves CRI at an endpoint, such as unix:///run/containerd/containerd.sock, which need not
// exist yet.
func NewCRI(endpoint string) (Containers, error) { return containers.NewCRI(endpoint) }

// OwnerError is returned by [New] and [Agent.Run] when the records under the root belong to a Node of another name, or of another
// cluster. Nothing was changed; the text names what to do.
type OwnerError = nodeagent.OwnerError

// Run registers drivers, maintains the Node and CSINode, and mounts and unmounts until ctx ends. It then returns nil when
// everything that it started has returned; calls to drivers in flight are cancelled and count as uncertain. Run must be called
// once.
func (a *Agent) Run(ctx context.Context) error { return a.agent.Run(ctx) }

// Close ends [Agent.Run] and returns when it has returned, or releases the root if the agent never ran. Volumes stay as they are.
// After Run has returned it does nothing, so it can be deferred after New.
func (a *Agent) Close() error { return a.agent.Close() }

// SetPod requests that the pod's volumes are mounted. Setting a pod again is cheap, and changes two things only: volumes are
// mounted that an ephemeral container is the first to use, and from a deletionTimestamp on, nothing is republished for the pod
// (CSIDriver.spec.requiresRepublish). Setting a pod that was removed has no effect while its volumes are being unmounted. The pod
// is copied.
func (a *Agent) SetPod(pod *corev1.Pod) { a.agent.SetPod(pod.DeepCopy()) }

// RemovePod reports that no process of the pod is left that could use its volumes, and that none will be started: all containers
// have ended, or none ever ran. The caller guarantees it; a deleted object or the phase Failed does not prove it (kubectl delete
// --force and PodGC cause both while containers run). The pod's volumes are unpublished at once, and those that no other pod of
// this node wants are unstaged and removed from volumesInUse. It cannot be undone and does not wait; see [Agent.WaitUnmounted].
//
// As a safety net, no volume is taken from the machine while another process has it mounted: the agent checks the mount tables of
// all processes in its pid namespace and below. It then waits, with the reason StillMountedElsewhere in errors and events. A
// process that reaches the volume through the agent's own mount namespace, or that the agent cannot see, is in no such table: the
// net does not replace the caller's guarantee.
func (a *Agent) RemovePod(uid types.UID) { a.agent.RemovePod(uid) }

// PodsSynced reports that [Agent.SetPod] has been called for every pod that the owner has and, like [Agent.RemovePod], that no
// process of any other is left. From then on a pod that is known only from records is unmounted; before, and until the agent knows
// that the records belong to this node of this cluster, its volumes stay mounted and in use. Owners that call SetPod or RemovePod
// for each of [Agent.Pods] need not call it.
func (a *Agent) PodsSynced() { a.agent.PodsSynced() }

// FollowPods calls SetPod, RemovePod and PodsSynced for the pods that the API binds to the node. A pod whose object is gone, or has
// the phase Succeeded or Failed, keeps what it has until [Config].Containers reports that its containers have ended. It returns
// when ctx ends.
func (a *Agent) FollowPods(ctx context.Context) error { return a.agent.FollowPods(ctx) }

// Pods returns the UIDs of all pods that were set or have a volume here, including those known from records, in no particular
// order.
func (a *Agent) Pods() []types.UID { return a.agent.Pods() }

// WaitMounted blocks until every CSI volume that the pod's containers use is published, and returns them. Other volumes (emptyDir,
// configMap ...) are the owner's responsibility. When ctx ends first, the error is a [WaitError] with what each volume waits for
// and why. A pod that can never be mounted here gets a [RefusedError] at once, one that was not set or was removed
// [ErrPodNotWanted].
func (a *Agent) WaitMounted(ctx context.Context, uid types.UID) ([]Mount, error) {
	ready, err := a.agent.WaitMounted(ctx, uid)
	if err != nil {
		return nil, err
	}
	mounts := make([]Mount, 0, len(ready))
	for _, m := range ready {
		mounts = append(mounts, Mount(m))
	}
	return mounts, nil
}

// WaitUnmounted blocks until nothing of the pod is published any more, as kubelet does before it deletes a pod. It does not wait
// for the unstage. Call it after [Agent.RemovePod]; an unknown pod has nothing published. When ctx ends first, the error is a
// [WaitError].
func (a *Agent) WaitUnmounted(ctx context.Context, uid types.UID) error {
	return a.agent.WaitUnmounted(ctx, uid)
}

// SubPath is the part of a volume that a container mounts by volumeMounts[].subPath, or by subPathExpr after its variables are
// replaced.
type SubPath struct {
	// Volume is the name of the volume in pod.spec.volumes.
	Volume string
	// Container is the container's name, and MountIndex the index of the mount in its volumeMounts.
	Container  string
	MountIndex int
	// Path is the file or directory, relative to the volume.
	Path string
	// ReadOnly makes the mount read-only; see also [Mount].ReadOnly.
	ReadOnly bool
}

// MountSubPath mounts a part of a volume at a path of its own, which it returns, for the runtime to bind into the container. The
// volume must be mounted: see [Agent.WaitMounted]. A missing directory is created with the mode of the volume's root, as kubelet
// does; in a read-only volume that is an error. It may be called again, for example before each start of a container.
//
// Do not join Path to [Mount].Path instead. Containers can write to the volume, and replace any element of the path by a symbolic
// link between a check and the bind (CVE-2017-1002101, CVE-2021-25741). Here the kernel resolves the path within the volume, and
// what it found is mounted: links inside the volume are followed, and one that is absolute or leads out returns
// [ErrSubPathOutsideVolume].
//
// The agent unmounts all subPaths of a volume before it unpublishes it, also after a restart. It needs Linux 5.12, and blocks for
// as long as the volume's file system does.
func (a *Agent) MountSubPath(pod types.UID, part SubPath) (path string, err error) {
	return a.agent.MountSubPath(pod, nodeagent.SubPath(part))
}

// VolumeStats returns the last stats of the pod's volumes, for the pod's part in a kubelet-style /stats/summary, from drivers with
// GET_VOLUME_STATS, which are asked every [Config].StatsPeriod. It calls no driver.
func (a *Agent) VolumeStats(uid types.UID) []stats.VolumeStats { return a.agent.VolumeStats(uid) }

// Ready returns what is missing before volumes can be mounted: the Node has not been read, CSINode not written, the CSIDrivers not
// listed. Nil once all is done; later problems are reported by metrics and events.
func (a *Agent) Ready() error { return a.agent.Ready() }
