package node

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"belay.dev/belay/internal/containers"
	"belay.dev/belay/internal/nodeagent"
)

// AttachLimitError is in the error of [Agent.WaitMounted] (errors.As) when the storage system refuses to attach another volume to the
// node (RESOURCE_EXHAUSTED) and the CSIDriver sets nodeAllocatableUpdatePeriodSeconds. By then the agent has refreshed the CSINode.
// Kubelet waits two minutes and then fails the pod with [AttachLimitReason], so that its controller creates a new one, which is
// scheduled to another node. Whether and when to do so is up to the caller.
type AttachLimitError = nodeagent.AttachLimitError

// AttachLimitReason is the status.reason of pods that kubelet fails because of the attach limit.
const AttachLimitReason = nodeagent.AttachLimitReason

// Agent manages the CSI volumes of one node. Create it with [New], then call [Agent.Run], or [Agent.Close] if it is not needed after
// all. All other methods may be called before and during Run, from any goroutine.
type Agent struct {
	agent *nodeagent.Agent
}

// New creates an agent and loads the records under the root. It calls neither the API server nor a driver. It holds a lock on the root
// until Run has returned or Close was called; while another agent holds it, New returns [ErrRootInUse]. Without the capabilities to see
// all users of a volume (CAP_SYS_PTRACE, and CAP_DAC_READ_SEARCH or CAP_DAC_OVERRIDE) it fails, unless Config has MountPoints.
func New(config Config) (*Agent, error) {
	agent, err := nodeagent.New(config.shell())
	if err != nil {
		return nil, err
	}
	return &Agent{agent: agent}, nil
}

// Containers reports whether the containers of a pod have ended. [NewCRI] is one for container runtimes.
type Containers interface {
	// Ended returns nil if no process of the pod is left and none will be started before release is called. The agent calls release
	// once the pod's volumes are unpublished. An error says what is running, or why that is unknown. In both cases the volumes stay
	// mounted, and Ended is called again after 0.1 to 5 s.
	Ended(ctx context.Context, podUID string) (release func(), err error)
}

// NewCRI returns the container runtime that serves CRI at an endpoint, such as unix:///run/containerd/containerd.sock. The runtime may
// start later.
func NewCRI(endpoint string) (Containers, error) { return containers.NewCRI(endpoint) }

// OwnerError is returned by [New] and [Agent.Run] if the records under the root belong to a Node of another name or of another cluster.
// Nothing was changed; the message has a remedy.
type OwnerError = nodeagent.OwnerError

// Run registers drivers, updates the Node and the CSINode, and mounts and unmounts volumes until ctx ends. It returns nil after ctx has
// ended and everything that it started has returned. Running calls to drivers are cancelled; their result counts as uncertain. Run must
// be called only once.
func (a *Agent) Run(ctx context.Context) error { return a.agent.Run(ctx) }

// Close stops [Agent.Run] and waits until it has returned, or releases the root if Run was never called. Volumes stay mounted. After Run
// has returned it does nothing, so it can be deferred right after New.
func (a *Agent) Close() error { return a.agent.Close() }

// SetPod has the pod's volumes mounted. It copies the pod. Setting a pod again is cheap and has two effects only: volumes that a new
// ephemeral container uses are mounted, and from a deletionTimestamp on, requiresRepublish no longer applies to the pod. Setting a pod that
// was removed has no effect while its volumes are being unmounted.
func (a *Agent) SetPod(pod *corev1.Pod) { a.agent.SetPod(pod.DeepCopy()) }

// RemovePod reports that no process of the pod is left and that none will be started: all containers have ended, or none was ever
// started. The caller is responsible for this. A deleted object or the phase Failed does not prove it: kubectl delete --force and PodGC do
// either while containers run. The agent unpublishes the pod's volumes at once, and unstages those that no other pod on this node uses
// and removes them from volumesInUse. RemovePod does not wait and cannot be undone; see [Agent.WaitUnmounted].
//
// As a safety net, the agent does not unmount a volume while another process on the machine has it mounted, according to the mount tables
// of all processes in the agent's PID namespace and below; docs/invariants.md lists who is seen. It then waits, with the reason
// StillMountedElsewhere in errors and events. The check does not see a process that uses the volume through the agent's own mount
// namespace, or that is in another PID namespace, so it does not replace the caller's responsibility.
func (a *Agent) RemovePod(uid types.UID) { a.agent.RemovePod(uid) }

// PodsSynced reports that [Agent.SetPod] was called for every pod of the caller. For any other pod it means the same as
// [Agent.RemovePod]: no process is left. From then on the agent unmounts the volumes of pods that are only known from records, once it has
// verified that the records belong to this node of this cluster. Callers that call SetPod or RemovePod for each pod in [Agent.Pods] do
// not need PodsSynced.
func (a *Agent) PodsSynced() { a.agent.PodsSynced() }

// FollowPods calls SetPod, RemovePod and PodsSynced for the pods that the API binds to the node. A pod whose object is gone, or which has
// the phase Succeeded or Failed, keeps its volumes until [Config].Containers reports that its containers have ended. FollowPods returns
// when ctx ends.
func (a *Agent) FollowPods(ctx context.Context) error { return a.agent.FollowPods(ctx) }

// Pods returns the UIDs of all pods that were set or have a volume on the node, including those from records, in no particular order.
func (a *Agent) Pods() []types.UID { return a.agent.Pods() }

// WaitMounted blocks until every CSI volume that the pod's containers use is published, and returns them. Other volumes (emptyDir,
// configMap ...) are up to the caller. If ctx ends first it returns a [WaitError] that says what each missing volume waits for. It returns
// a [RefusedError] at once if the pod can never be mounted, and [ErrPodNotWanted] if the pod was not set or was removed.
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

// WaitUnmounted blocks until none of the pod's volumes is published, as kubelet does before it finishes the deletion of a pod. It does not
// wait for the unstage. Call it after [Agent.RemovePod]. For an unknown pod it returns at once. If ctx ends first it returns a
// [WaitError].
func (a *Agent) WaitUnmounted(ctx context.Context, uid types.UID) error {
	return a.agent.WaitUnmounted(ctx, uid)
}

// SubPath is the part of a volume that a container mounts with volumeMounts[].subPath, or with subPathExpr after expansion.
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

// MountSubPath mounts a part of a volume at its own path, which it returns, for the runtime to bind into the container. The volume must be
// mounted: see [Agent.WaitMounted]. Like kubelet, it creates a missing directory with the mode of the volume's root; in a read-only volume
// that is an error. It may be called again, such as before each start of a container.
//
// Do not join Path to [Mount].Path instead. A container can write to the volume, and replace any part of the path by a symbolic link
// between a check and the bind mount (CVE-2017-1002101, CVE-2021-25741). Here the kernel resolves the path within the volume and mounts
// what it found. It follows links inside the volume; for a link that is absolute or leads outside, the error is
// [ErrSubPathOutsideVolume].
//
// The agent unmounts all subPaths of a volume before it unpublishes the volume, also after a restart. MountSubPath needs Linux 5.12, and
// blocks for as long as the volume's file system does.
func (a *Agent) MountSubPath(pod types.UID, part SubPath) (path string, err error) {
	return a.agent.MountSubPath(pod, nodeagent.SubPath(part))
}

// VolumeStats returns the latest stats of the pod's volumes for a /stats/summary like kubelet's. They come from drivers with
// GET_VOLUME_STATS, collected every [Config].StatsPeriod. VolumeStats itself calls no driver.
func (a *Agent) VolumeStats(uid types.UID) []stats.VolumeStats { return a.agent.VolumeStats(uid) }

// Ready returns why no volume can be mounted yet: the Node was not read, the CSINode not written, or the CSIDrivers not listed. After the
// first nil it stays nil; later problems show in metrics and events.
func (a *Agent) Ready() error { return a.agent.Ready() }
