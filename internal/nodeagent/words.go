package nodeagent

import (
	"cmp"
	"errors"
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

// waysBack are the steps of the way back as kubelet's log names them; it sends no events about them.
var waysBack = map[bool]map[string]string{
	false: {stepUnpublish: "UnmountVolume.TearDown", stepUnstage: "UnmountDevice"},
	true:  {stepUnpublish: "UnmapVolume.UnmapPodDevice", stepUnstage: "UnmapDevice.TearDownDevice"},
}

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
		return "what the driver needs is not known until the CSIDrivers have been listed"
	case nodevolume.NodeUnknown:
		return "the Node object has not been read or does not exist"
	case nodevolume.NotReportedInUse:
		return "the Node does not list the volume in status.volumesInUse yet; this agent writes it"
	case nodevolume.NotAttached:
		return "Volume not attached according to node status; the attach/detach controller reports it in status.volumesAttached"
	case nodevolume.DriverNotRegistered:
		return "the driver is not registered on this node"
	case nodevolume.OtherSELinuxLabelWanted:
		return "the pod that has it must go first"
	case nodevolume.OtherSELinuxLabelMounted:
		return "the volume is mounted with another SELinux label and is being unmounted"
	case nodevolume.OtherPodMounted:
		return "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
	case nodevolume.UnaccountedMount:
		return "the volume may be mounted here without a record of it: a record cannot be read, or a kubelet left something; the agent's log names it and what to do"
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
	reason, text := failureText(block, step, spec, a.withRemedy(err))
	if step == stepUnpublish {
		reason, text = "FailedUnmount", a.stuckText(block, step, spec, err)
	}
	if !p.told.news(text, time.Now()) {
		return
	}
	a.events.Event(p.podOf(), corev1.EventTypeWarning, reason, text)
	a.log.V(1).Info("Told the pod", "volume", v.name, "pod", p.key.PodUID, "text", text)
}

// stuckText says that a step of the way back failed.
func (a *Agent) stuckText(block bool, step, spec string, err error) string {
	return fmt.Sprintf("%s failed for volume %q : %v; the volume stays in use on node %s and is tried again",
		waysBack[block][step], spec, a.withRemedy(err), a.config.NodeName)
}

// tellLongWait says where a pod that has waited long waits, and since when. The caller holds mu.
func (a *Agent) tellLongWait(v *volume, hold nodevolume.Hold, since time.Time) {
	waits := fmt.Sprintf("in hop %s since %s: %s", hold.Reason, since.UTC().Format(time.RFC3339), cmp.Or(a.labelWords(v, hold.Key, hold.Reason), a.why(hold.Reason)))
	switch {
	case hold.Reason == nodevolume.BackingOff:
		return // it has had its event when the call failed
	case hold.Reason == nodevolume.OwnerSilent:
		// The pod may run well, and who must speak reads no events.
		a.log.Info("Pod's owner has not said whether it lives", "volume", v.name, "pod", hold.Key.PodUID, "since", since)
		return
	case hold.Key.PodUID == "":
		a.tellStagePod(v, fmt.Sprintf("%s waits for volume %q %s", waysBack[v.stage.record.Block][stepUnstage], v.specName(), waits))
		return
	}
	p := v.publication(hold.Key)
	if p.publish.phase == nodevolume.Confirmed && !p.growsFirst && a.claim(p) == nodevolume.Wanted {
		return // the pod runs; what is held is not what it waits for
	}
	step := v.firstStep()
	if p.publish.phase == nodevolume.Confirmed {
		step = stepSetUp // it runs, and waits for its publish to be renewed
	}
	if hold.Reason == nodevolume.NotAttached || hold.Reason == nodevolume.NotReportedInUse {
		step = stepWaitForAttach
	}
	block := p.publish.record.Block || (p.want != nil && p.want.block)
	reason, text := failureText(block, step, p.key.SpecName, errors.New("waits "+waits))
	if p.publish.phase != nodevolume.Absent && a.claim(p) == nodevolume.Released {
		reason, text = "FailedUnmount", fmt.Sprintf("%s waits for volume %q %s", waysBack[block][stepUnpublish], p.key.SpecName, waits)
	}
	if p.told.news(text, time.Now()) {
		a.events.Event(p.podOf(), corev1.EventTypeWarning, reason, text)
	}
}

// tellUnstage says that the volume cannot be unstaged. The caller holds mu.
func (a *Agent) tellUnstage(v *volume, err error) {
	a.tellStagePod(v, a.stuckText(v.stage.record.Block, stepUnstage, v.specName(), err))
}

// tellStagePod tells the pod for which the volume was staged. The caller holds mu.
func (a *Agent) tellStagePod(v *volume, text string) {
	if !v.unstageTold.news(text, time.Now()) {
		return
	}
	p := &publication{key: nodevolume.PublishKey{PodUID: v.stage.record.Pod.UID}, publish: recorded{record: v.stage.record}}
	if p.publish.record.Pod.Name == "" { // of a torn record
		a.log.Info("Volume stays in use", "volume", v.name, "problem", text)
		return
	}
	a.events.Event(p.podOf(), corev1.EventTypeWarning, "FailedUnmount", text)
}

// tellPod sends a FailedMount about a pod as a whole.
func (a *Agent) tellPod(pod *corev1.Pod, text string) {
	a.events.Event(pod, corev1.EventTypeWarning, "FailedMount", "Unable to attach or mount volumes: "+text)
}

// defaultPatience is how long a claim may be unreadable before its pod is told. The
// Node authorizer learns of a new pod with a delay.
const defaultPatience = 5 * time.Second

// tellPodOnce tells a pod that its claims cannot be read, once it has lasted and
// when the problem is another one. The caller holds mu.
func (a *Agent) tellPodOnce(p *pod, err error) {
	now := time.Now()
	if p.problemSince.IsZero() {
		p.problemSince = now
	}
	if now.Sub(p.problemSince) < a.config.patience {
		return
	}
	text := fmt.Sprintf("waits in hop ClaimNotReady since %s: %v", p.problemSince.UTC().Format(time.RFC3339), a.withRemedy(err))
	if p.told.news(text, now) {
		a.tellPod(p.object, text)
	}
}

func klogOf(log logr.Logger) klog.Logger { return log }
