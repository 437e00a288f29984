package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/drivers"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// attacherLease returns the lease of the driver's attacher, nil if none counts or it could not be read. An attacher without leader
// election has none.
func (x *state) attacherLease(driver string) *coordinationv1.Lease {
	if found, ok := x.leases[driver]; ok {
		return found
	}
	name := kube.SanitizeDriverName(kube.AttacherLease + driver)
	var found *coordinationv1.Lease
	for _, lease := range x.Leases {
		if lease.Name == name && (found == nil || renewed(lease).After(renewed(found))) {
			found = lease
		}
	}
	x.leases[driver] = found // all volumes of the driver ask
	return found
}

func renewed(lease *coordinationv1.Lease) time.Time {
	if lease.Spec.RenewTime == nil {
		return time.Time{}
	}
	return lease.Spec.RenewTime.Time
}

func leaseHolder(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// podHolds reports whether the holder of the lease is the name of a pod that was read.
func (x *state) podHolds(lease *coordinationv1.Lease) bool {
	return x.pods[join(lease.Namespace, leaseHolder(lease))] != nil
}

// held reports whether a process holds the lease: it renewed it within twice its duration. A released lease has no holder.
func (x *state) held(lease *coordinationv1.Lease) bool {
	return leaseHolder(lease) != "" && x.Now.Sub(renewed(lease)) <= 2*kube.LeaseLasts(lease)
}

// attacherState is whether an attacher of the driver runs, as its lease shows, and what the lease says.
func (x *state) attacherState(driver string) (runs decision.Knowledge, detail string) {
	lease := x.attacherLease(driver)
	switch {
	case lease == nil:
		return decision.Unknown, ""
	case x.held(lease):
		return decision.Yes, ""
	case x.spokeAfter(driver, lease):
		return decision.Unknown, "" // one without leader election, which leaves the lease of an earlier one as it is
	case leaseHolder(lease) == "":
		return decision.No, "none has held its lease since " + stamp(renewed(lease))
	}
	return decision.No, "its lease was last renewed at " + stamp(renewed(lease))
}

// ago is how long ago something was, as the header of an answer has how long something lasts.
func (x *state) ago(t time.Time) string { return duration.HumanDuration(x.Now.Sub(t)) }

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// wordLasts is how long an error that an attacher wrote says that one works. Attachers repeat a call after five minutes at most
// (--retry-interval-max), and charts let them wait ten for its answer (--timeout).
const wordLasts = 15 * time.Minute

// lastWord returns when an attacher of the driver last wrote an error, and whether that is too fresh to take the driver for removed.
func (x *state) lastWord(driver string) (at time.Time, fresh bool) {
	if x.words == nil { // all volumes of a driver ask
		x.words = map[string]time.Time{}
		for _, va := range x.Attachments {
			for _, e := range []*storagev1.VolumeError{va.Status.AttachError, va.Status.DetachError} {
				if e != nil {
					x.words[va.Spec.Attacher] = later(x.words[va.Spec.Attacher], e.Time.Time)
				}
			}
		}
	}
	at = x.words[driver]
	return at, !at.IsZero() && x.Now.Sub(at) < wordLasts
}

// spokeAfter reports whether an attacher of the driver has lately written an error that it cannot have written as the holder of the lease.
func (x *state) spokeAfter(driver string, lease *coordinationv1.Lease) bool {
	at, fresh := x.lastWord(driver)
	return fresh && at.Sub(renewed(lease)) > 2*kube.LeaseLasts(lease)
}

// removed reports whether the driver is not installed any more: no CSIDriver, no node that has it, no attacher that runs, and no fresh
// word of one. A driver may have no CSIDriver, and an attacher without leader election has no lease: all CSINodes have to be known.
func (x *state) removed(driver string) bool {
	gone, known := x.gone[driver]
	if !known {
		gone = x.isRemoved(driver)
		x.gone[driver] = gone
	}
	return gone
}

// isRemoved does the work of removed, which asks once for each driver.
func (x *state) isRemoved(driver string) bool {
	if _, fresh := x.lastWord(driver); fresh {
		return false
	}
	runs, _ := x.attacherState(driver)
	if runs == decision.Yes || x.drivers[driver] != nil || x.exists(Ref{Resource: Drivers, Name: driver}) != decision.No ||
		!slices.Contains(x.Whole, CSINodes) || slices.ContainsFunc(x.Unread, Unread.HidesLeaders) {
		return false
	}
	for _, node := range x.CSINodes {
		if registered(node, driver) {
			return false
		}
	}
	return true
}

// neverAttaches is NeverAttaches, looked for once for each driver: all its VolumeAttachments ask, and the answer needs all of them.
func (x *state) neverAttaches(driver string) bool {
	never, known := x.never[driver]
	if !known {
		never = x.NeverAttaches(driver)
		x.never[driver] = never
	}
	return never
}

// NeverAttaches reports whether a driver has VolumeAttachments that no attacher has ever worked on, runs on nodes, and has no CSIDriver object: it
// is taken to need an attach, and has no attacher. That of a driver that has one puts its finalizer on each and has a lease.
func (s *Snapshot) NeverAttaches(driver string) bool {
	named := func(d *storagev1.CSIDriver) bool { return d.Name == driver }
	if !slices.Contains(s.Whole, Drivers) || slices.ContainsFunc(s.Drivers, named) || slices.ContainsFunc(s.Unread, Unread.HidesLeaders) {
		return false
	}
	if !slices.ContainsFunc(s.CSINodes, func(n *storagev1.CSINode) bool { return registered(n, driver) }) {
		return false
	}
	lease := kube.SanitizeDriverName(kube.AttacherLease + driver)
	if slices.ContainsFunc(slices.Concat(s.Leases, s.OtherLeases), func(l *coordinationv1.Lease) bool { return l.Name == lease }) {
		return false
	}
	of := 0
	for _, va := range s.Attachments {
		if va.Spec.Attacher != driver {
			continue
		}
		of++
		if va.Status.Attached || va.Status.AttachError != nil || va.Status.DetachError != nil || slices.Contains(va.Finalizers, kube.AttacherFinalizer(driver)) {
			return false
		}
	}
	return of > 0
}

func registered(node *storagev1.CSINode, driver string) bool {
	for i := range node.Spec.Drivers {
		if node.Spec.Drivers[i].Name == driver {
			return true
		}
	}
	return false
}

// onNode is whether the driver has registered on the node.
func (x *state) onNode(driver, node string) decision.Knowledge {
	if kube.NoAttacher(driver) {
		return decision.Yes // kubelet's own plugins
	}
	n := x.csiNodes[node]
	if n == nil {
		return x.exists(Ref{Resource: CSINodes, Name: node})
	}
	return decision.Known(registered(n, driver))
}

// lacksDriver reports whether a node has a CSINode, which does not list the driver: volumes of the driver cannot be used there.
func (x *state) lacksDriver(node, driver string) bool {
	n := x.csiNodes[node]
	return n != nil && !kube.NoAttacher(driver) && !registered(n, driver)
}

// wait is what an operation waits for.
type wait struct {
	reason decision.Reason
	detail string
	// quote is what of the detail another component wrote: a narrow page may shorten it.
	quote string
	since time.Time
	// failed is set if it has failed already, so that it is more than waiting.
	failed bool
	answer explain.Answer
	// own is the volume as the pod has it, and mount what a text of kubelet about it means.
	own   explain.PodVolume
	mount *explain.MountCause
	// waits is what a pod waits for that is no volume, container the one whose log may have the cause, and secrets those for its images that kubelet
	// could not read.
	waits     explain.Elsewhere
	container string
	secrets   string
	// said is set if only the pod's events show it, because of what could not be read.
	said bool
	// fill, if not nil, adds what the guide needs besides the volume and its holder.
	fill func(*explain.Situation)
}

// says returns the words of another component, which are a part of the detail.
func (w *wait) says(text string) string {
	w.quote = text
	return text
}

// attachWait explains why a VolumeAttachment is not attached.
func (x *state) attachWait(va *storagev1.VolumeAttachment) wait {
	w := wait{reason: attachment.Attaching, since: va.CreationTimestamp.Time}
	driver, age := va.Spec.Attacher, x.Now.Sub(va.CreationTimestamp.Time)
	if id, others := x.twins(va.Spec.NodeName, driver); len(others) > 0 && age > usual {
		w.reason, w.detail = explain.NodeIdentityShared, va.Spec.NodeName+" and "+strings.Join(others, ", ")
		w.answer.SharedID = id
		return w
	}
	if pending, ok := x.pendingCall(w, va, drivers.Publish); ok {
		return pending
	}
	if e := va.Status.AttachError; e != nil {
		return x.failed(w, va, drivers.Publish, e)
	}
	if x.deletedNode(va) && age > usual {
		w.reason = attachment.NodeGone // a CSINode goes with its Node
		return w
	}
	if x.onNode(driver, va.Spec.NodeName) == decision.No && age > usual {
		w.reason = explain.DriverNotOnNode
		if x.removed(driver) {
			w.detail = "the cluster has no CSIDriver object of that name, and no attacher for it"
		}
		return w
	}
	w.answer.Works = x.worksElsewhere(va, w)
	return x.silent(va, w, age, attachment.AttachUnanswered)
}

// detachWait explains why a VolumeAttachment that is being deleted still exists.
func (x *state) detachWait(va *storagev1.VolumeAttachment) wait {
	w := wait{reason: attachment.Detaching, since: va.DeletionTimestamp.Time}
	driver, age := va.Spec.Attacher, x.Now.Sub(va.DeletionTimestamp.Time)
	if x.removed(driver) {
		w.reason = explain.DriverRemoved
		return w
	}
	w.answer.Works = x.worksElsewhere(va, w)
	if pending, ok := x.pendingCall(w, va, drivers.Unpublish); ok {
		return pending
	}
	if e := va.Status.DetachError; e != nil {
		w = x.failed(w, va, drivers.Unpublish, e)
		if w.reason == attachment.DetachFailed && hearError(e).code == "NotFound" && x.machineGone(va) {
			w.reason = explain.MachineUnknown
		}
		return w
	}
	return x.silent(va, w, age, attachment.DetachUnanswered)
}

// failed explains what an attacher's error says; what one said that does not run any more is not what the wait is for, nor one before an attempt that
// is under way.
func (x *state) failed(w wait, va *storagev1.VolumeAttachment, call drivers.Call, e *storagev1.VolumeError) wait {
	if runs, lease := x.attacherState(va.Spec.Attacher); runs == decision.No {
		w.reason, w.detail = explain.AttacherNotRunning, lease
		return w
	}
	runs, _ := x.attacherState(va.Spec.Attacher)
	w.answer.RetryNow = takesRequests(va)
	w.answer.BelayFrees = w.answer.RetryNow && runs == decision.Yes && listsNodes(va.Spec.Attacher)
	if at, underWay := x.attemptedSince(e); underWay {
		w.answer.RetryNow = false // it cannot be brought forward
		return x.unansweredCall(w, va, call, fmt.Sprintf("an attempt has been due since %s and has had no answer yet", stamp(at)))
	}
	key, _ := x.volumeOf(va)
	if key.Driver == "" {
		key.Driver = va.Spec.Attacher
	}
	works := w.answer.Works
	w = x.answered(w, call, key, va.Spec.NodeName, hearError(&storagev1.VolumeError{Message: kube.ErrorText(e), ErrorCode: e.ErrorCode}))
	w.answer.Works, w.answer.Affinity = works, affine(x.volume(key))
	w.answer.BelayFrees = w.answer.BelayFrees && !w.answer.Outside
	if w.reason == attachment.AttachFailed && x.deletedNode(va) {
		w.reason = attachment.NodeGone
	}
	return w
}

// silent explains why an attacher has not answered: no error and no result.
func (x *state) silent(va *storagev1.VolumeAttachment, w wait, age time.Duration, unanswered decision.Reason) wait {
	runs, lease := x.attacherState(va.Spec.Attacher)
	switch {
	case age > usual && va.DeletionTimestamp == nil && x.neverAttaches(va.Spec.Attacher):
		w.reason = explain.CSIDriverMissing
	case runs == decision.No:
		w.reason, w.detail = explain.AttacherNotRunning, lease
	case runs == decision.Unknown && age > usual && len(va.Finalizers) == 0 && va.DeletionTimestamp == nil:
		w.reason, w.detail = explain.AttacherNotRunning, "none has added its finalizer since "+stamp(w.since)
	case age > attachment.AnswerTimeout:
		w.reason = unanswered
	}
	return w
}

// machineGone reports whether the Node of a VolumeAttachment was deleted, and no other node has the recorded ID.
func (x *state) machineGone(va *storagev1.VolumeAttachment) bool {
	id := va.Annotations[kube.NodeIDAnnotation]
	return id != "" && x.deletedNode(va) && x.registeredAs(id) == ""
}

// registeredAs returns the node whose CSINode has a CSI node ID; empty if none that was read has it.
func (x *state) registeredAs(id string) string {
	for _, node := range x.CSINodes {
		if slices.ContainsFunc(node.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.NodeID == id }) {
			return node.Name
		}
	}
	return ""
}

// shown is the length to which an error is shortened: its cause is in the summary.
const shown = 400

// attacherFacts are what the attacher said last about a VolumeAttachment.
func (x *state) attacherFacts(va *storagev1.VolumeAttachment) []Fact {
	var facts []Fact
	for _, e := range []struct {
		what string
		err  *storagev1.VolumeError
	}{{"attach", va.Status.AttachError}, {"detach", va.Status.DetachError}} {
		if e.err != nil {
			facts = append(facts, Fact{Component: "attacher", Message: fmt.Sprintf("%s failed: %s", e.what, x.quoted(kube.ErrorText(e.err))), At: timePointer(e.err.Time.Time)})
		}
	}
	switch runs, detail := x.attacherState(va.Spec.Attacher); {
	case runs == decision.No:
		facts = append(facts, Fact{Component: "attacher", Message: "does not run: " + detail})
	case runs == decision.Yes && !va.Status.Attached || va.DeletionTimestamp != nil:
		if lease := x.attacherLease(va.Spec.Attacher); lease != nil {
			facts = append(facts, Fact{Component: "attacher", Message: "runs: its lease was renewed", At: timePointer(renewed(lease))})
		}
	}
	return facts
}
