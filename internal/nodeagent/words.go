package nodeagent

import (
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/nodevolume"
)

// The steps by the names that kubelet's events give them; operators match on these.
const (
	stepWaitForAttach = "WaitForAttach"
	stepMountDevice   = "MountDevice"
	stepSetUp         = "SetUp"
	stepUnpublish     = "TearDown"
	stepUnstage       = "UnmountDevice"
)

// blockSteps are kubelet's names of the same steps for a block volume.
var blockSteps = map[string]string{stepMountDevice: "SetUpDevice", stepSetUp: "MapPodDevice"}

func (a *Agent) newRecorder() record.EventRecorder {
	return a.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "belay-node", Host: a.config.NodeName})
}

func (a *Agent) startEvents() {
	a.broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: a.client.CoreV1().Events("")})
}

// inWords says what a reason means to the person who waits.
func inWords(reason nodevolume.Reason) string {
	switch reason {
	case nodevolume.AttachabilityUnknown:
		return "whether the driver needs an attach is not known until the CSIDrivers have been listed"
	case nodevolume.NodeUnknown:
		return "the Node object has not been read or does not exist"
	case nodevolume.NotReportedInUse:
		return "the Node does not list the volume in status.volumesInUse yet; this agent writes it"
	case nodevolume.NotAttached:
		return "Volume not attached according to node status; the attach/detach controller reports it in status.volumesAttached"
	case nodevolume.DriverNotRegistered:
		return "the driver is not registered on this node"
	case nodevolume.OtherPodMounted:
		return "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
	case nodevolume.BackingOff:
		return "the last call failed and is tried again after a while"
	case nodevolume.AttachmentNotReady:
		return "the VolumeAttachment does not say that the volume is attached"
	case nodevolume.AttachmentReplaced:
		return "the volume was attached anew since it was staged, and waits for pods that still use the old attachment"
	case nodevolume.OwnerSilent:
		return "the pod is known from records alone and its owner has not said whether it lives"
	case nodevolume.InUseNotCleared:
		return "the volume is unmounted and is being taken out of status.volumesInUse"
	default:
		return "is being worked on"
	}
}

// hops are the steps in the words of the life of a volume.
var hops = map[string]string{stepWaitForAttach: "attach", stepMountDevice: "stage", stepSetUp: "publish"}

// failureText is kubelet's sentence, and the hop in which the volume is.
func failureText(block bool, step, spec string, err error) (reason, text string) {
	err = fmt.Errorf("%w (hop: %s)", err, hops[step])
	if !block {
		return "FailedMount", fmt.Sprintf("MountVolume.%s failed for volume %q : %v", step, spec, err)
	}
	if named, ok := blockSteps[step]; ok {
		step = named
	}
	return "FailedMapVolume", fmt.Sprintf("MapVolume.%s failed for volume %q : %v", step, spec, err)
}

// tellFailure sends an event about a failed step, once for each new text. The caller holds mu.
func (a *Agent) tellFailure(v *volume, p *publication, step string, err error) {
	block := p.publish.record.Block || (p.want != nil && p.want.block)
	spec := p.key.SpecName
	reason, text := failureText(block, step, spec, err)
	if step == stepUnpublish {
		reason = "FailedUnmount"
		text = fmt.Sprintf("UnmountVolume.%s failed for volume %q : %v; the volume stays in use on node %s and is tried again", step, spec, err, a.config.NodeName)
	}
	if p.told == text {
		return
	}
	p.told = text
	a.events.Event(p.podOf(), corev1.EventTypeWarning, reason, text)
	a.log.V(1).Info("Told the pod", "volume", v.name, "pod", p.key.PodUID, "text", text)
}

// tellLongWait says where a pod that has waited long waits. The caller holds mu.
func (a *Agent) tellLongWait(v *volume, hold nodevolume.Hold) {
	if hold.Key.PodUID == "" || hold.Reason == nodevolume.BackingOff {
		return // a back-off has had its event when the call failed
	}
	p := v.publication(hold.Key)
	step := stepMountDevice
	if hold.Reason == nodevolume.NotAttached || hold.Reason == nodevolume.NotReportedInUse {
		step = stepWaitForAttach
	}
	reason, text := failureText(p.want != nil && p.want.block, step, p.key.SpecName,
		fmt.Errorf("waits in hop %s: %s", hold.Reason, inWords(hold.Reason)))
	if p.publish.phase != nodevolume.Absent && a.claim(p) == nodevolume.Released {
		reason, text = "FailedUnmount", fmt.Sprintf("UnmountVolume.%s waits for volume %q in hop %s: %s", stepUnpublish, p.key.SpecName, hold.Reason, inWords(hold.Reason))
	}
	if p.told == text {
		return
	}
	p.told = text
	a.events.Event(p.podOf(), corev1.EventTypeWarning, reason, text)
}

// tellUnstage says on the pod for which the volume was staged that it cannot be unstaged.
func (a *Agent) tellUnstage(v *volume, err error) {
	pod := v.stage.record.Pod
	if pod.Name == "" {
		return
	}
	p := &publication{key: nodevolume.PublishKey{PodUID: pod.UID}, publish: recorded{record: v.stage.record}}
	a.events.Event(p.podOf(), corev1.EventTypeWarning, "FailedUnmount", fmt.Sprintf(
		"UnmountDevice failed for volume %q : %v; the volume stays in use on node %s and is tried again", v.specName(), err, a.config.NodeName))
}

// tellPod sends a FailedMount about a pod as a whole.
func (a *Agent) tellPod(pod *corev1.Pod, text string) {
	a.events.Event(pod, corev1.EventTypeWarning, "FailedMount", "Unable to attach or mount volumes: "+text)
}

// patience is how long a claim may be unreadable before its pod is told. The
// Node authorizer learns of a new pod with a delay.
const patience = 5 * time.Second

// tellPodOnce tells a pod that its claims cannot be read, once it has lasted and
// when the problem is another one. The caller holds mu.
func (a *Agent) tellPodOnce(p *pod, err error) {
	now := time.Now()
	if p.problemSince.IsZero() {
		p.problemSince = now
	}
	if now.Sub(p.problemSince) < patience || p.told == err.Error() {
		return
	}
	p.told = err.Error()
	a.tellPod(p.object, "waits in hop ClaimNotReady: "+err.Error())
}

func klogOf(log logr.Logger) klog.Logger { return log }
