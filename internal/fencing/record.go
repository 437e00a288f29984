package fencing

import (
	"slices"
	"time"
)

// Phase is where a fence stands. Each is stored before what it permits is done.
type Phase string

// The phases, in order. A fence enters them one by one. It can be Cancelled from a phase before Evicting; from Evicting on it cannot.
const (
	Suspected Phase = "Suspected" // the detector found the node silent
	Isolating Phase = "Isolating" // no new pods
	Fencing   Phase = "Fencing"   // evidence is gathered
	Tainting  Phase = "Tainting"  // off, taint, off again
	Evicting  Phase = "Evicting"  // the pods are deleted
	Detaching Phase = "Detaching" // the VolumeAttachments are deleted
	Moved     Phase = "Moved"     // nothing of the boot is left; waits for the next boot
	Releasing Phase = "Releasing" // the taints are removed
	Released  Phase = "Released"  // done
	Cancelled Phase = "Cancelled" // the node lives, and was not switched off; the isolation is removed
)

// Phases lists all phases in order.
func Phases() []Phase {
	return []Phase{Suspected, Isolating, Fencing, Tainting, Evicting, Detaching, Moved, Releasing, Released, Cancelled}
}

// Fence is the stored state of a NodeFence.
type Fence struct {
	UID, ResourceVersion string
	Boot                 Boot
	// Epoch is higher than that of every fence of the node before.
	Epoch int64
	Phase Phase
	// Statement is what a person says, nil for nothing.
	Statement *Statement
	// ManualRelease keeps the taints until a person releases the node.
	ManualRelease bool
	// Intent is the command that was stored last; zero for none.
	Intent Intent
	// Evidence is the class of evidence with which the fence left Fencing; empty before that.
	Evidence Class
	// Untainted is when the out-of-service taint was removed in Releasing.
	Untainted time.Time
	// StorageProven is stored before the first Proof about single volumes: from then on volumes may have been taken from the boot.
	StorageProven bool
	// Deleting is set when a client deleted the object.
	Deleting bool
	// Waits is set while the record says what the fence waits for, and BesideEarlier while that is the end of an earlier machine of the name.
	Waits, BesideEarlier bool
	// SilentAgain is when the node was found silent again after it had renewed its lease; zero for never. A statement from before that counts for
	// nothing.
	SilentAgain time.Time
	// NodeDeleted is set when the fence began because the Node was deleted, not because it was silent. Its machine is asked, and never
	// commanded: without a lease a machine that runs well could not contradict.
	NodeDeleted bool
}

// Intent is a command to switch off, stored for the fencer, who sends it once.
type Intent struct {
	// Nonce names the command. It is empty for none.
	Nonce string
	// NotAfter is by when it has been carried out or is lost: an agent does not live longer, and a switch that queues commands has ended
	// them.
	NotAfter time.Time
	// Renewal is what the node's lease said when the command was stored. The fencer does not send it once the lease says something else.
	Renewal string
}

// InFlight reports whether the fence may still switch a machine off, or take from it what it has. From Detaching on it waits only for others, such as
// the owner of a pod's finalizer. One of a deleted Node commands nothing, and may wait for days.
func (f Fence) InFlight() bool {
	waits := slices.Contains([]Phase{Detaching, Moved, Releasing, Released, Cancelled}, f.Phase)
	return !waits && !f.NodeDeleted
}

// MayTake reports whether the fence may come to take something: it is in flight, and has a power switch to command, or has commanded it, or is not known
// yet to have neither a switch nor a volume that its driver cuts off. One that waits for a switch, or for a person, may wait for weeks. What it has taken
// counts in the window, as a command does.
func (f Fence) MayTake(s Source) bool {
	return f.InFlight() && !f.BesideEarlier && (!f.Waits || f.offSent() || s.answers(f.Boot))
}

// Active reports whether the fence takes one of the places of Brakes.InFlight, and is a reason to keep other remediators from the node: it may take something,
// and has not been commanding in vain for as long as a command counts. Commanded is when its first command was sent; zero for none. A switch that never answers
// holds back neither the fences of other nodes nor another remediator for longer than that.
func (f Fence) Active(now time.Time, s Source, commanded time.Time, window time.Duration) bool {
	vain := !commanded.IsZero() && !f.Proven() && now.Sub(commanded) >= window
	return f.MayTake(s) && !vain
}

// MayEnd reports whether the fence has taken and commanded nothing, so that who asked for it may have it cancelled.
func (f Fence) MayEnd() bool {
	return slices.Contains([]Phase{Suspected, Isolating, Fencing}, f.Phase) && !f.offSent() && !f.StorageProven
}

// Idles reports whether the fence looks for evidence and has neither taken anything nor a command that may still be carried out.
func (f Fence) Idles(now time.Time) bool {
	return slices.Contains([]Phase{Suspected, Isolating, Fencing}, f.Phase) && !f.Intent.open(now) && !f.StorageProven
}

// Proven reports whether the fence has been through the bracket, after which it cannot be cancelled: its boot has ended.
func (f Fence) Proven() bool {
	return slices.Contains([]Phase{Evicting, Detaching, Moved, Releasing, Released}, f.Phase)
}

// open reports whether the command may still be carried out.
func (i Intent) open(now time.Time) bool { return i.Nonce != "" && now.Before(i.NotAfter) }

// IntentFor is how long after it is stored a command may still be carried out.
const IntentFor = 30 * time.Second

// stated reports whether a person's statement about the machine is in force.
func (f Fence) stated(now time.Time) bool {
	return f.Statement.holds(now, f.Boot) && (f.SilentAgain.IsZero() || f.Statement.Made.After(f.SilentAgain))
}

// Commanded reports whether a command to switch off was stored, so that the machine may be off whatever became of the fence.
func (f Fence) Commanded() bool { return f.offSent() }

// offSent reports whether a command to switch off may have been sent.
func (f Fence) offSent() bool { return f.Intent.Nonce != "" }

// Observed is what the actor knows now. The zero value knows nothing.
type Observed struct {
	// Exists is whether there is a Node object of the name.
	Exists Knowledge
	// Now is the boot that it shows.
	Now Boot
	// Version is its resourceVersion, Renewal what its lease says, and ReadAt when both were read from the API server itself.
	Version string
	Renewal string
	ReadAt  time.Time
	// Epoch is the highest of the other NodeFences of the boot that this process has seen lately. What the Node shows does not count: a kubelet can
	// write it.
	Epoch int64
	// Doubled is set when another fence is about the same machine, and was there first.
	Doubled bool
	// Later is set when a later fence is about another machine of the name, and not over: what is bound to the name is that machine's.
	Later bool
	// Earlier is set when VolumeAttachments of the node record another machine, and the component that acts on the taint out-of-service may take all of the
	// node for those of the one that the Node shows.
	Earlier bool
	// Withdrawn is set when the fence began because a remediation asked for it, and none does any more: another remediator works on the machine.
	Withdrawn bool
	// Unasked is set when that is known, and the Node is there that the fence is about: its author deletes a remediation whose Node is gone.
	Unasked bool
	// Ready is Yes if its condition Ready is True, No otherwise.
	Ready Knowledge
	// Silent is set when the lease was not renewed for the node's limit on the clock of this process: a new leader listens first.
	Silent bool
	// Renewed is set when the lease was renewed since the fence was created, or since the node was found silent again, as this process saw. It
	// says nothing about which boot renewed it: Now does.
	Renewed bool
	// AliveSince is since when this process has seen that, without another silence of the node's limit; zero if it was not renewed.
	AliveSince time.Time
	// OptedOut and Maintenance are as in Node.
	OptedOut, Maintenance bool
	// Isolated is set when the Node has this fence's taint NoSchedule, OutOfService when it has the taint out-of-service with this
	// fence's value, ForeignTaint when it has that taint with another value: one taint per key and effect.
	Isolated, OutOfService, ForeignTaint bool
	// IsolatedLater is set when the Node has the taint NoSchedule of a later fence.
	IsolatedLater bool
	// TaintSeen is when this process first saw the taint out-of-service, by any client; zero if it is not there.
	TaintSeen time.Time
	// Ended is set once Decide returned a Proof for this fence that is not about single volumes, in this process and not before: that a
	// boot has ended does not change when the power comes back.
	Ended bool
	// News is when this process last saw something of this change (News.Since); zero if that is not known.
	News time.Time
	// Source is the node's power switch.
	Source Source
	// Cut are the volumes that are attached to the boot, as their VolumeAttachments record, and whose driver cuts the node off before it
	// confirms an unpublish, as an administrator declared. It is empty where nothing could use a Proof about them.
	Cut []Volume
	// Mounted are the volumes of such drivers that the Node lists in use without a VolumeAttachment.
	Mounted []Volume
	// Listed is set when Pods and Attachments were read from the API server itself after the last write of this process.
	Listed bool
	// Pods are those bound to the node.
	Pods []Pod
	// Attachments are the VolumeAttachments of the boot.
	Attachments []Attachment
}

// Pod is one pod of the node.
type Pod struct {
	Namespace, Name, UID string
	// Leaving is set when the delete was accepted.
	Leaving bool
	// Volume is set when it uses a volume that may be attached.
	Volume bool
	// Returns is set when it claims to be of a DaemonSet, or the mirror of a static pod, so that it would be created again. The client that created it
	// wrote that.
	Returns bool
	// Late is set when it was not there yet when this process first listed the pods after the taint.
	Late bool
}

// leaves reports whether a fence deletes the pod and waits for it. What a pod claims to be spares none that uses a volume: a static pod cannot refer
// to a claim (k/k v1.36.3 pkg/kubelet/config/common.go:151, plugin/pkg/admission/noderestriction/admission.go:327), and the next pod of a
// DaemonSet is late.
func (p Pod) leaves() bool { return !p.Late && (p.Volume || !p.Returns) }

// Attachment is one VolumeAttachment of the node.
type Attachment struct {
	Name, UID, Version string
	Volume             Volume
	// Deleting is set when the delete was accepted.
	Deleting bool
	// Unfenced is set when it records that no other fence is to begin for the boot.
	Unfenced bool
}

// outdates reports whether a later fence of the boot has begun, and ended since: the request that created this one was carried out late. So it is if
// another fence of the machine was there first.
func (o Observed) outdates(f Fence) bool { return o.Epoch >= max(f.Epoch, 1) || o.Doubled }

// spared reports whether the owner of the Node wants the machine left alone that it shows.
func (o Observed) spared() bool { return o.OptedOut || o.Maintenance }

// leavesAlone reports whether the owner of the node wants it left alone, or a client has deleted the fence.
func (o Observed) leavesAlone(f Fence) bool {
	return o.spared() || f.Deleting
}

// alive reports whether the boot that is to be fenced shows a sign of life.
func (o Observed) alive(f Fence) bool {
	return o.Renewed && o.Exists == Yes && o.Now.Since(f.Boot) != OtherMachine && o.Now.Since(f.Boot) != Rebooted
}

// silent reports whether the machine was silent for long enough. One without a Node has no lease.
func (o Observed) silent(f Fence) bool {
	return o.Silent || o.Exists == No || o.Exists == Yes && o.Now.Since(f.Boot) == OtherMachine
}

// restarted reports whether the same machine runs another boot.
func (o Observed) restarted(f Fence) bool {
	return o.Exists == Yes && o.Now.Since(f.Boot) == Rebooted
}

// live reports whether the Node was read from the API server itself just now.
func (o Observed) live(now time.Time) bool {
	return !o.ReadAt.IsZero() && !now.Before(o.ReadAt) && now.Sub(o.ReadAt) <= LiveFor
}
