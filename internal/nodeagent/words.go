package nodeagent

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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

// stepNodeAffinity is what the events call a stage or publish that was not begun, because the
// PersistentVolume may not be used on this node.
const stepNodeAffinity = "NodeAffinity check"

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

// reasonWords say what a reason means to the person who waits.
var reasonWords = map[nodevolume.Reason]string{
	nodevolume.AttachabilityUnknown:     "what the driver needs is not known until the CSIDrivers have been listed",
	nodevolume.NodeUnknown:              "the Node object has not been read or does not exist",
	nodevolume.NotReportedInUse:         "the Node does not list the volume in status.volumesInUse yet; this agent writes it",
	nodevolume.NotAttached:              "Volume not attached according to node status; the attach/detach controller reports it in status.volumesAttached",
	nodevolume.DriverNotRegistered:      "the driver is not registered on this node",
	nodevolume.OtherSELinuxLabelWanted:  "the pod that has it must go first",
	nodevolume.OtherSELinuxLabelMounted: "the volume is mounted with another SELinux label and is being unmounted",
	nodevolume.OtherPodMounted:          "volume uses the ReadWriteOncePod access mode and is already in use by another pod",
	nodevolume.UnaccountedMount:         "the volume may be mounted here without a record of it: a record cannot be read, or a kubelet left something; the agent's log names it and what to do",
	nodevolume.BackingOff:               "the last call failed and is tried again after a while",
	nodevolume.AttachmentNotReady:       "the VolumeAttachment does not say that the volume is attached",
	nodevolume.AttachmentReplaced:       "the volume was attached anew since it was staged, and waits for pods that still use the old attachment",
	nodevolume.OwnerSilent:              "the pod is known from records alone and its owner has not said whether it lives",
	nodevolume.ContainersMayRun:         "the pod's object is gone or says that the pod is over, but its containers may run",
	nodevolume.StillMountedElsewhere:    "something on this node still has the volume mounted, and would go on writing to it",
	nodevolume.InUseNotCleared:          "the volume is unmounted and is being taken out of status.volumesInUse",
}

func inWords(reason nodevolume.Reason) string {
	return cmp.Or(reasonWords[reason], "is being worked on")
}

// hops are the steps in the words of the life of a volume.
var hops = map[string]string{
	stepWaitForAttach: "attach", stepMountDevice: "stage", stepSetUp: "publish", stepUnpublish: "unpublish", stepUnstage: "unstage",
}

func inUTC(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// failedStep is a step that does not come about.
type failedStep struct {
	block      bool
	step, spec string
	// verb is what it does, if not "failed".
	verb string
	// since is when it failed first of the times in a row; zero if what is told says it.
	since time.Time
}

// hop is the one in which the volume is, and since when.
func (f failedStep) hop() string {
	if f.since.IsZero() {
		return "hop: " + hops[f.step]
	}
	return "hop: " + hops[f.step] + " since " + inUTC(f.since)
}

// told is kubelet's sentence about it, and the hop.
func (f failedStep) told(err error) (reason, text string) {
	step, way, reason := f.step, "MountVolume", "FailedMount"
	if f.block {
		step, way, reason = cmp.Or(blockSteps[f.step], f.step), "MapVolume", "FailedMapVolume"
	}
	if affinity, ok := errors.AsType[*affinityError](err); ok {
		step, reason, err = stepNodeAffinity, "FailedMount", affinity.err // the reason is the same for block volumes
	}
	return reason, fmt.Sprintf("%s.%s %s for volume %q : %v (%s)", way, step, cmp.Or(f.verb, "failed"), f.spec, err, f.hop())
}

// tellFailure sends an event about a failed step, once for each new text. The caller holds mu.
func (a *Agent) tellFailure(v *volume, p *publication, step string, err error) {
	block := p.publish.record.Block || (p.want != nil && p.want.block)
	failed := failedStep{block: block, step: step, spec: p.key.SpecName, since: p.failingSince}
	reason, text := failed.told(a.withRemedy(err))
	if step == stepUnpublish {
		text = a.stuckText(failed, err)
	}
	if !p.told.news(text, time.Now()) {
		return
	}
	if step == stepUnpublish {
		a.tellStuck(p.podOf(), p.claimOf(), text)
		return
	}
	a.events.Event(p.podOf(), corev1.EventTypeWarning, reason, text)
	a.log.V(1).Info("Told the pod", "volume", v.name, "pod", p.key.PodUID, "text", text)
}

// stuckText says that a step of the way back failed, or does not end.
func (a *Agent) stuckText(f failedStep, err error) string {
	return fmt.Sprintf("%s %s for volume %q : %v (%s); the volume stays in use on node %s and is tried again",
		waysBack[f.block][f.step], cmp.Or(f.verb, "failed"), f.spec, a.withRemedy(err), f.hop(), a.config.NodeName)
}

// toldAfter is after how long a pod that waits is told so: where another pod has a volume
// for itself at once, as kubelet does, for that may last.
func (a *Agent) toldAfter(reason nodevolume.Reason) time.Duration {
	if reason == nodevolume.OtherPodMounted {
		return 0
	}
	return a.config.longWait
}

// whyOf is why a volume waits, in kubelet's words where it has some. The caller holds mu.
func (a *Agent) whyOf(v *volume, hold nodevolume.Hold) string {
	if hold.Reason == nodevolume.DriverNotRegistered {
		return fmt.Sprintf("%s: driver name %s not found in the list of registered CSI drivers", a.why(hold.Reason), v.driver)
	}
	switch owner := a.pods[types.UID(hold.Key.PodUID)]; {
	case hold.Reason == nodevolume.StillMountedElsewhere:
		return v.users.words()
	case hold.Reason == nodevolume.ContainersMayRun && owner != nil && owner.ending != nil:
		return fmt.Sprintf("%s: %v", a.why(hold.Reason), owner.ending)
	}
	return cmp.Or(a.labelWords(v, hold.Key, hold.Reason), a.why(hold.Reason))
}

// tellLongWait says where a pod that has waited long waits, and since when. The caller holds mu.
func (a *Agent) tellLongWait(v *volume, hold nodevolume.Hold, since time.Time) {
	waits := fmt.Sprintf("in hop %s since %s: %s", hold.Reason, inUTC(since), a.whyOf(v, hold))
	switch {
	case hold.Reason == nodevolume.BackingOff:
		return // it has had its event when the call failed
	case hold.Reason == nodevolume.OwnerSilent:
		// The pod may run well, and who must speak reads no events.
		a.log.Info("Pod's owner has not said whether it lives", "volume", v.name, "pod", hold.Key.PodUID, "since", since)
		return
	case hold.Key.PodUID == "":
		a.tellStage(v, fmt.Sprintf("%s waits for volume %q %s", waysBack[v.stage.record.Block][stepUnstage], v.specName(), waits))
		return
	}
	p := v.publication(hold.Key)
	if v.isReady(p) && a.claim(p) == nodevolume.Wanted {
		return // the pod runs; what is held is not what it waits for
	}
	block := p.publish.record.Block || (p.want != nil && p.want.block)
	problem := errors.New("waits " + waits)
	if hold.Reason == nodevolume.OtherPodMounted {
		// Kubelet's sentence comes first: it is matched on.
		problem = fmt.Errorf("%s; waits in hop %s since %s", a.whyOf(v, hold), hold.Reason, inUTC(since))
	}
	reason, text := failedStep{block: block, step: stepHeld(v, p, hold.Reason), spec: p.key.SpecName}.told(problem)
	if p.publish.phase != nodevolume.Absent && (a.claim(p) == nodevolume.Released || hold.Reason == nodevolume.ContainersMayRun) {
		if text = fmt.Sprintf("%s waits for volume %q %s", waysBack[block][stepUnpublish], p.key.SpecName, waits); p.told.news(text, time.Now()) {
			a.tellStuck(p.podOf(), p.claimOf(), text)
		}
		return
	}
	if p.told.news(text, time.Now()) {
		a.events.Event(p.podOf(), corev1.EventTypeWarning, reason, text)
	}
}

// stepHeld is the step that cannot begin.
func stepHeld(v *volume, p *publication, reason nodevolume.Reason) string {
	switch {
	case reason == nodevolume.NotAttached, reason == nodevolume.NotReportedInUse:
		return stepWaitForAttach
	case reason == nodevolume.OtherPodMounted && p.want != nil && p.want.block:
		return stepMountDevice
	case reason == nodevolume.OtherPodMounted:
		return stepSetUp
	case p.publish.phase == nodevolume.Confirmed:
		return stepSetUp // it runs, and waits for its publish to be renewed
	default:
		return v.firstStep()
	}
}

// tellUnstage says that the volume cannot be unstaged. The caller holds mu.
func (a *Agent) tellUnstage(v *volume, err error) {
	if v.unstage.Count == 1 {
		v.unstageFailingSince = cmp.Or(v.began, v.unstage.At)
	}
	failed := failedStep{block: v.stage.record.Block, step: stepUnstage, spec: v.specName(), since: v.unstageFailingSince}
	a.tellStage(v, a.stuckText(failed, err))
}

// tellMapped says that a pod has a block volume as a device; kubelet says nothing of the kind about others.
func (a *Agent) tellMapped(w *want) {
	a.events.Event(w.pod.ref(), corev1.EventTypeNormal, "SuccessfulMountVolume", fmt.Sprintf(
		"MapVolume.MapPodDevice succeeded for volume %q volumeMapPath %q", w.specName, a.root.Path(podDevicesDir(string(w.pod.UID)))))
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
	text := fmt.Sprintf("waits in hop ClaimNotReady since %s: %v", inUTC(p.problemSince), a.withRemedy(err))
	if p.told.news(text, now) {
		a.tellPod(p.object, text)
	}
}

func klogOf(log logr.Logger) klog.Logger { return log }
