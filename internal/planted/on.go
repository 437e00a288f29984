//go:build belay_faults

package planted

import (
	"os"
	"time"
)

var (
	// S1: an attachment that was not confirmed does not count (k/k#124334).
	S1 = is("s1")
	// S1Attacher is the same in the attacher.
	S1Attacher = is("s1_attacher")
	// S2: a node that is not ready is abandoned before the unmount timeout has passed.
	S2 = is("s2")
	// S3: a volume that is not in use is detached while it is still reported.
	S3 = is("s3")
	// S4: a detach does not wait for the call that is in flight.
	S4 = is("s4")
	// S5: an unpublish that failed counts as done.
	S5 = is("s5")
	// S6: a delete is not bound to the version that was decided on.
	S6 = is("s6")
	// S6Attacher: finalizers are stored on whatever object has the name by now.
	S6Attacher = is("s6_attacher")
	// S7: a volume counts as listed in use although a write that removes it may still be applied.
	S7 = is("s7")
	// S9: an attachment is reported before the attacher confirmed it.
	S9 = is("s9")
	// S10: the driver is called before the finalizers are stored.
	S10 = is("s10")

	// Abandoned: what the driver lists at a node without an attachment is unpublished there, whether the Node lists it in use or not.
	Abandoned = is("abandoned")
	// Bogus: a UUID that a maker of boards leaves, or that another Node has too, identifies a machine (S1, S2).
	Bogus = is("bogus")
	// Doubt: the OK to an unpublish that follows a publish without an answer counts, of whatever driver (S1, S5).
	Doubt = is("doubt")
	// Identity: a missing bootID or systemUUID counts as a different one, so that a volume in use is released (S2).
	Identity = is("identity")
	// Isolation: a volume is not attached to a node while the driver of another volume has not confirmed an attachment there.
	Isolation = is("isolation")
	// Lease: a renewal that failed counts as done, so that a leader continues when its lease has expired (S1, S4).
	Lease = is("lease")
	// SharedPlace: the volume is unpublished from a node ID although another attachment needs it there (S2).
	SharedPlace = is("shared_place")
	// Listing: a recreated Node that lists a volume is taken for the Node object that the volume was attached to (S2).
	Listing = is("listing")
	// Places: of the places of an attachment the first one is unpublished until it is confirmed, and no other one before (liveness).
	Places = is("places")
	// PreMount: what a recreated Node lists is a pre-mount entry wherever pods want the volume (S1, S2).
	PreMount = is("premount")
	// Recreated: the PersistentVolume that an attachment names decides which volume was published (S1, S5).
	Recreated = is("recreated")
	// SharedWake: the end of a PersistentVolume wakes only the attachments that name it, and not the others of the volume.
	SharedWake = is("shared_wake")
	// Wake: the health of a node wakes none of the volumes that wait for it.
	Wake = is("wake")
	// Wall: waits are measured by the wall clock of the machine (S2).
	Wall = is("wall")

	// Clock backdates the request of a detach, so that the unmount timeout has passed as soon as it begins (S2).
	Clock time.Duration
)

func init() {
	if is("clock") {
		Clock = 10 * time.Minute
	}
}

func is(name string) bool { return os.Getenv("BELAY_FAULT") == name }
