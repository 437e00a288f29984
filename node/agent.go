package node

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"belay.dev/belay/internal/containers"
	"belay.dev/belay/internal/nodeagent"
)

// AttachLimitError is among the errors of [Agent.WaitMounted], for errors.As, when the
// storage refuses to attach another volume to the node (RESOURCE_EXHAUSTED) and the driver's
// CSIDriver sets nodeAllocatableUpdatePeriodSeconds. Its CSINode has been brought up to date
// by then. Kubelet gives the volume two minutes and then fails the pod with
// [AttachLimitReason], so that its controller makes another one, for another node; whether
// and when to do so is the owner's decision.
type AttachLimitError = nodeagent.AttachLimitError

// AttachLimitReason is the status.reason of pods that kubelet fails for that.
const AttachLimitReason = nodeagent.AttachLimitReason

// Agent looks after the CSI volumes of one node. Make it with [New], then [Agent.Run] it, or [Agent.Close] it if it
// is not to run after all. All other methods may be called before Run, while it runs, and from any goroutine.
type Agent struct {
	agent *nodeagent.Agent
}

// New reads the records under the root and makes an agent that knows them. It
// reads nothing from the API and calls no driver. It takes a lock on the root until Run has returned or Close was
// called; while another agent has that, the error is [ErrRootInUse].
func New(config Config) (*Agent, error) {
	agent, err := nodeagent.New(config.shell())
	if err != nil {
		return nil, err
	}
	return &Agent{agent: agent}, nil
}

// Containers says when the containers of pods have ended: a container runtime ([NewCRI]), or
// whatever knows.
type Containers interface {
	// Ended returns nil if no process of the pod is left, and none will be started before release was called; that
	// is called once the pod's volumes are unpublished. An error says what runs, or why that is not known; both
	// keep the volumes mounted, and it is asked again after 0.1 to 5 s.
	Ended(ctx context.Context, podUID string) (release func(), err error)
}

// NewCRI is a container runtime that serves CRI at an endpoint, such as
// unix:///run/containerd/containerd.sock. It need not be there yet.
func NewCRI(endpoint string) (Containers, error) { return containers.NewCRI(endpoint) }

// OwnerError is what [New] and [Agent.Run] return when the records under the root belong to a Node of another
// name, or of another cluster. Nothing was touched then; the text says what to do.
type OwnerError = nodeagent.OwnerError

// Run registers drivers, keeps the Node and CSINode, and mounts and unmounts
// until ctx ends. It returns nil when ctx ended and everything that it started
// has returned; calls to drivers that are in flight are cancelled and count as
// uncertain. Run must be called once.
func (a *Agent) Run(ctx context.Context) error { return a.agent.Run(ctx) }

// Close ends [Agent.Run] and returns when it has returned, or lets go of the root if the agent was never run. Volumes
// stay as they are. After Run has returned it does nothing, so that it can be deferred as soon as there is an agent.
func (a *Agent) Close() error { return a.agent.Close() }

// SetPod says that the pod's volumes shall be mounted. Setting a pod again is
// cheap and changes nothing, but that volumes are mounted which an ephemeral container
// is the first to use, and that from a deletionTimestamp on, drivers that ask to
// be called again from time to time (CSIDriver.spec.requiresRepublish) are not, for this
// pod. Nor does setting one that was removed change anything, while its volumes are being
// taken down. The pod is copied.
func (a *Agent) SetPod(pod *corev1.Pod) { a.agent.SetPod(pod.DeepCopy()) }

// RemovePod says that no process of the pod is left that could use its volumes, and that none will be
// started: all containers have ended, or none ever ran. The caller vouches for it; that a pod's object is gone or has the
// phase Failed does not show it (kubectl delete --force and PodGC do either while containers run). The pod's
// volumes are unpublished at once, and those that no other pod of this node wants are unstaged and
// taken out of volumesInUse. It cannot be taken back and does not wait; see [Agent.WaitUnmounted].
//
// As a last net, nothing is taken from the machine while another process there has it mounted: the agent looks in
// the mount tables of all processes in its pid namespace and below. It then waits, with the reason
// StillMountedElsewhere in errors and events. A process that reaches the volume through the agent's own mount
// namespace, or that the agent cannot see, is in no such table: the net does not replace the caller's word.
func (a *Agent) RemovePod(uid types.UID) { a.agent.RemovePod(uid) }

// PodsSynced says that [Agent.SetPod] has been called for every pod that the owner
// has, and so, as [Agent.RemovePod] does, that no process is left of any other. From then on a pod that is known from
// records alone is torn down; before, and until the agent knows that the records are those of this node of
// this cluster, its volumes stay mounted and in use. Owners that answer [Agent.Pods] with
// SetPod or RemovePod for each may do without it.
func (a *Agent) PodsSynced() { a.agent.PodsSynced() }

// FollowPods is SetPod, RemovePod and PodsSynced for owners whose pods are those that
// the API binds to the node. A pod whose object is gone, or has the phase Succeeded or Failed, keeps what it has
// until [Config].Containers says that its containers have ended. It returns when ctx ends.
func (a *Agent) FollowPods(ctx context.Context) error { return a.agent.FollowPods(ctx) }

// Pods returns the UIDs of all pods that were set or have a volume here, those
// rebuilt from records included, in no particular order.
func (a *Agent) Pods() []types.UID { return a.agent.Pods() }

// WaitMounted blocks until every CSI volume that the pod's containers use is
// published, and returns them. Volumes of other kinds (emptyDir, configMap ...)
// are the owner's business and not among them. When ctx ends first, the error is a [WaitError] and says
// for each volume that is not ready for what it waits and why. A pod that can never be
// mounted here gets a [RefusedError] at once, one that was not set or was removed [ErrPodNotWanted].
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

// WaitUnmounted blocks until nothing of the pod is published any more, as
// kubelet does before it lets a pod go. It does not wait for the unstage. Call it after
// [Agent.RemovePod]; an unknown pod has nothing published. When ctx ends first, the error is a [WaitError].
func (a *Agent) WaitUnmounted(ctx context.Context, uid types.UID) error {
	return a.agent.WaitUnmounted(ctx, uid)
}

// SubPath is the part of a volume that a container mounts by volumeMounts[].subPath, or by subPathExpr once its variables
// are replaced.
type SubPath struct {
	// Volume is the name of the volume in pod.spec.volumes.
	Volume string
	// Container is the container's name, and MountIndex the place of the mount among its volumeMounts.
	Container  string
	MountIndex int
	// Path is the file or directory, relative to the volume.
	Path string
	// ReadOnly makes the mount read-only; see also [Mount].ReadOnly.
	ReadOnly bool
}

// MountSubPath mounts a part of a volume at a path of its own, which it returns, for the runtime to bind into the
// container. The volume must be mounted: see [Agent.WaitMounted]. A directory that is missing is created with the mode
// of the volume's own, as kubelet does; in a volume that is read-only that is an error. It may be called again, before
// each start of a container for example.
//
// Do not join Path to [Mount].Path instead. Containers can write to the volume, and swap any part of the path for a
// symbolic link between a check and the bind (CVE-2017-1002101, CVE-2021-25741). Here the kernel resolves the path within
// the volume, and what it found is what is mounted: links inside the volume are followed, and for one that is absolute or
// leads out the error is [ErrSubPathOutsideVolume].
//
// The agent unmounts all subPaths of a volume before it unpublishes it, also after a restart; nobody else need. It needs
// Linux 5.12, and blocks for as long as the volume's file system does.
func (a *Agent) MountSubPath(pod types.UID, part SubPath) (path string, err error) {
	return a.agent.MountSubPath(pod, nodeagent.SubPath(part))
}

// VolumeStats is what the drivers said last of the pod's volumes, for the pod's part in a
// kubelet-style /stats/summary: those with GET_VOLUME_STATS, asked each [Config].StatsPeriod.
// It calls nobody.
func (a *Agent) VolumeStats(uid types.UID) []stats.VolumeStats { return a.agent.VolumeStats(uid) }

// Ready says what is missing before volumes can be mounted: the Node has not been read,
// CSINode not written, the CSIDrivers not listed. Nil once all is there; what happens later
// is told by metrics and events.
func (a *Agent) Ready() error { return a.agent.Ready() }
