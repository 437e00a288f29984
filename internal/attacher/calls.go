package attacher

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/publication"
)

// record is the state of the calls for one attachment in this process.
type record struct {
	identity
	uid     types.UID
	name    string
	node    string
	created time.Time

	call publication.Call
	// asked is publication.Attachment.Asked.
	asked map[string]publication.NodesAnswer
	// abandon ends the call in flight.
	abandon context.CancelCauseFunc
	// unconfirmedWrite: a write of the finalizer or the node ID got no response.
	unconfirmedWrite bool
	// untouched is publication.Attachment.Untouched, regardless of calls that were made.
	untouched bool
	// released is publication.Attachment.Released.
	released bool
	// exclusive: the volume could be published to one node only when the last call began.
	exclusive bool
	// open: a publish had no answer, or none that is final, and the driver has confirmed nothing since.
	open bool
	// publishContext is the response to a confirmed Publish that is not recorded in the status yet.
	publishContext map[string]string
	err            error   // of the last attempt
	refused        refusal // of the last attempt
	// unanswered: a publish got no answer since the driver confirmed an unpublish.
	unanswered bool
	// drift is how ListVolumes contradicts the attachment, until a call that corrects it was confirmed and recorded.
	drift publication.Drift
	// found is nil if there was neither a drift nor a reason to hold one back: most records have none.
	found *finding
}

// finding is what a comparison found about an attachment. It is never changed.
type finding struct {
	nodeID string    // that an Abandoned or HalfPublished volume is published to
	asOf   time.Time // before the observations that the drift rests on
	held   string    // why a volume that may be Abandoned is not unpublished
}

// finding returns what the last comparison found; the zero value for nothing.
func (r record) finding() finding {
	if r.found == nil {
		return finding{}
	}
	return *r.found
}

// ledger remembers calls by the UID of their attachment. It is empty when a process starts: the finalizers alone show
// what an earlier process called.
type ledger struct {
	mu       sync.Mutex
	byUID    map[types.UID]*record
	byVolume map[string]*volumeRecords
	// unpublished holds the confirmed unpublishes of an exclusive volume since the last confirmed publish, by its handle.
	unpublished map[string][]unpublished
	// byRefusal holds the attachments whose last attempt a full or busy node refused.
	byRefusal map[refusal]map[types.UID]*record
	outage    outage
	// doubtful is how long a publish without a final answer may take effect after the driver has confirmed an unpublish; zero if it may not.
	doubtful time.Duration
	// started is when this process began to send calls.
	started time.Time
}

func newLedger() *ledger {
	return &ledger{byUID: map[types.UID]*record{}, byVolume: map[string]*volumeRecords{}, byRefusal: map[refusal]map[types.UID]*record{},
		unpublished: map[string][]unpublished{}, outage: outage{since: map[types.UID]*record{}}}
}

// of returns the record of an attachment.
func (l *ledger) of(uid types.UID) record {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r, ok := l.byUID[uid]; ok {
		return *r
	}
	return record{}
}

// ofKey returns the records of a volume, or of one of its places: those with a call for it, or of one of its nodes.
func (l *ledger) ofKey(key publication.Key) []record {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.byVolume[key.Volume]
	if of == nil {
		return nil
	}
	records := of.all
	switch {
	case key.NodeID != "":
		records = of.at(key.NodeID)
	case key.Node != "":
		records = of.at(ofNode(key.Node))
	}
	found := make([]record, 0, len(records))
	for _, r := range records {
		found = append(found, *r)
	}
	return found
}

// attempt is one call for an attachment.
type attempt struct {
	key        publication.Key // of the decision
	uid        types.UID
	attachment *storagev1.VolumeAttachment // nil if it is gone
	volume     identity
	node       string
	verb       publication.Verb
	nodeID     string
	inputs     string
	abandon    context.CancelCauseFunc
	left       []unpublished
	begunAlone bool      // the finalizer, but no attach, is recorded: an earlier process may have sent a publish
	elsewhere  bool      // an unpublish of a node ID that is not the attachment's
	attached   bool      // status.attached
	due        time.Time // publication.Policy.Due
	waitsSince time.Time // the end of the attempt before, or the creation of the attachment
}

// begin records that a call is about to be made. It returns false while another call excludes it, which the queue's
// keys prevent except while a volume changes between exclusive and shared, and if its decision is outdated. That is
// checked under the lock: a decision under the next key of the volume sees this call.
func (l *ledger) begin(a attempt, outdated func() bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if outdated() {
		return false
	}
	exclusive := !a.key.Shared()
	if of := l.byVolume[a.volume.handle]; of != nil && of.excludes(a, exclusive) {
		return false
	}
	r := l.recordFor(a)
	defer l.moved(r, r.call)
	if l.doubtful > 0 && a.begunAlone && r.call.Verb == publication.NoCall {
		r.call = r.call.DoubtUntil(l.started.Add(l.doubtful), false)
	}
	if a.elsewhere {
		r.call = r.call.BeginElsewhere(a.nodeID, a.inputs)
	} else {
		r.call = r.call.Begin(a.verb, a.nodeID, a.inputs, a.attached)
	}
	r.call = r.call.BegunAt(time.Now())
	r.call.Due, r.publishContext, r.err, r.abandon, r.exclusive = a.due, nil, nil, a.abandon, exclusive
	if exclusive && len(a.left) > 0 {
		l.unpublished[r.handle] = a.left
	}
	l.setRefusal(r, refusal{})
	return true
}

// recordFor finds or creates the record of an attempt's attachment. A record without any call moves to the current
// volume of the attachment.
func (l *ledger) recordFor(a attempt) *record {
	r, ok := l.byUID[a.uid]
	switch {
	case !ok:
		r = &record{uid: a.uid, identity: a.volume, node: a.node}
		if a.attachment != nil {
			r.name, r.created = a.attachment.Name, a.attachment.CreationTimestamp.Time
		}
		l.byUID[a.uid] = r
	case a.volume.handle == "" || r.handle == a.volume.handle || r.call.Sent:
		return r
	default:
		l.removeFromVolume(r)
		r.identity = a.volume
	}
	if l.byVolume[r.handle] == nil {
		l.byVolume[r.handle] = &volumeRecords{}
	}
	l.byVolume[r.handle].add(r)
	return r
}

// removeFromVolume removes a record from the index by volume.
func (l *ledger) removeFromVolume(r *record) {
	of := l.byVolume[r.handle]
	if of.remove(r); len(of.all) == 0 {
		delete(l.byVolume, r.handle)
	}
}

// moved updates the index by volume after the calls of a record have changed; hold the lock.
func (l *ledger) moved(r *record, before publication.Call) {
	if of := l.byVolume[r.handle]; of != nil {
		of.moved(r, before)
	}
}

// confirm records that the driver returned OK. trusted: that is taken for the end of a publish without a final answer.
func (l *ledger) confirm(uid types.UID, publishContext map[string]string, now time.Time) (trusted bool) {
	l.change(uid, func(r *record) {
		r.call = r.call.Confirm(now)
		trusted = r.open && r.call.Verb == publication.Unpublish && l.doubtful == 0
		r.open = false
		r.publishContext = publishContext
		l.remember(r)
		r.unanswered = r.unanswered && r.call.Verb == publication.Publish
		if r.drift != publication.NotPublished && r.call.Verb == publication.Unpublish {
			r.drift = publication.NoDrift // there is nothing to record
		}
	})
	return trusted
}

// maxUnpublished is of how many node IDs of a volume a confirmed unpublish is remembered.
const maxUnpublished = 4

// remember keeps the node ID of a confirmed unpublish until the driver confirms a publish of the exclusive volume; hold the lock.
func (l *ledger) remember(r *record) {
	switch id := r.call.NodeID; {
	case r.call.Verb == publication.Publish:
		delete(l.unpublished, r.handle)
	case r.exclusive:
		others := slices.DeleteFunc(slices.Clone(l.unpublished[r.handle]), func(other unpublished) bool { return other.NodeID == id })
		l.unpublished[r.handle] = append([]unpublished{{NodeID: id, Node: r.node}}, others[:min(len(others), maxUnpublished-1)]...)
	}
}

// unpublished is a node ID of which the driver confirmed an unpublish, and the Node that had it then.
type unpublished struct {
	NodeID string `json:"nodeID"`
	Node   string `json:"node"`
}

// unpublishedFrom returns the confirmed unpublishes of the volume since the last confirmed publish.
func (l *ledger) unpublishedFrom(handle string) []unpublished {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unpublished[handle]
}

// forgetVolume drops what is remembered of a volume that is gone.
func (l *ledger) forgetVolume(handle string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.unpublished, handle)
}

// answered records what Nodes answered about a node ID.
func (l *ledger) answered(uid types.UID, nodeID string, answer publication.NodesAnswer) {
	l.change(uid, func(r *record) {
		r.asked = maps.Clone(r.asked) // snapshots share it
		if r.asked == nil {
			r.asked = map[string]publication.NodesAnswer{}
		}
		r.asked[nodeID] = answer
	})
}

// refusals are the codes with which drivers refuse to publish a volume that another node has: FAILED_PRECONDITION by the CSI specification,
// and as Hetzner's does; INVALID_ARGUMENT, GCE PD; INTERNAL, EBS, Cinder and Azure Disk; ABORTED, Dell Unity; UNKNOWN, an error without a code.
var refusals = []codes.Code{codes.FailedPrecondition, codes.InvalidArgument, codes.Internal, codes.Aborted, codes.Unknown}

// fail records that an attempt failed. Its effect is unknown.
func (l *ledger) fail(uid types.UID, err error, now time.Time) {
	l.change(uid, func(r *record) {
		r.call, r.err = r.call.Fail(now, err.Error(), csi.IsUnanswered(err)), err
		code, ok := csi.Code(err)
		r.call.NotFound, r.call.Refused = code == codes.NotFound, slices.Contains(refusals, code)
		if r.call.Verb == publication.Publish && slices.Contains(noAnswer, code) {
			r.unanswered = true
		}
		if ok && r.call.Verb == publication.Publish && csi.OutcomeOf(err) != csi.Failed {
			l.mayBeLate(r, now)
		}
		l.setRefusal(r, refusalOf(r.call, err))
		l.outage.failed(r, err)
	})
}

// noAnswer are the codes of a call that may have taken effect without the driver's answer: the deadline passed, here or at the driver, or
// the connection was lost.
var noAnswer = []codes.Code{codes.DeadlineExceeded, codes.Unavailable, codes.Canceled}

// release ends the back-off of the attachments that a full node rejected: one now, the longest waiting first, and one
// more after each pause. It returns them in this order.
func (l *ledger) release(nodeID string, now time.Time, pause time.Duration) (released []record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, r := range slices.SortedFunc(maps.Values(l.byRefusal[refusal{nodeID: nodeID, full: true}]), longestWaiting) {
		r.call = r.call.RetryFrom(now.Add(time.Duration(i) * pause))
		released = append(released, *r)
	}
	return released
}

// refuse records an attempt that failed before a call was made.
func (l *ledger) refuse(a attempt, err error, now time.Time) {
	l.mu.Lock()
	r := l.recordFor(a)
	before := r.call
	r.call = r.call.Refuse(a.verb, a.nodeID, a.inputs)
	r.call.Due = a.due
	l.moved(r, before)
	l.mu.Unlock()
	l.fail(a.uid, err, now)
}

// cancel abandons the call in flight.
func (l *ledger) cancel(uid types.UID) {
	l.change(uid, func(r *record) {
		if r.call.InFlight && r.abandon != nil {
			r.call.Cancelled = true
			r.abandon(errDeleted)
		}
	})
}

// recorded records that the result of the last call is in the status.
func (l *ledger) recorded(uid types.UID) {
	l.change(uid, func(r *record) {
		r.call.Recorded, r.publishContext = true, nil
		if r.call.Confirmed {
			r.drift = publication.NoDrift
		}
	})
}

// protected records that our finalizer was added to an attachment that had neither it nor a node ID.
func (l *ledger) protected(a attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recordFor(a).untouched = true
}

// recordAnswer records whether a write of the finalizer and the node ID got a response.
func (l *ledger) recordAnswer(a attempt, yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r, ok := l.byUID[a.uid]; ok || !yes {
		if !ok {
			r = l.recordFor(a)
		}
		r.unconfirmedWrite = !yes
	}
}

// settle records that nothing is published at a node ID, which the finalizer's record is about to lose.
func (l *ledger) settle(uid types.UID, nodeID string) {
	l.change(uid, func(r *record) { r.call = r.call.Settle(nodeID) })
}

// lateWrites is how long a write may be carried out after its process has ended: the API server's --request-timeout.
const lateWrites = time.Minute

// gone records that an attachment has gone.
func (l *ledger) gone(uid types.UID, now time.Time) {
	l.change(uid, func(r *record) { r.released = now.Before(l.started.Add(lateWrites)) })
}

// forget drops an attachment that is gone and no longer published anywhere.
func (l *ledger) forget(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.byUID[uid]
	if !ok {
		return
	}
	delete(l.byUID, uid)
	l.removeFromVolume(r)
	l.setRefusal(r, refusal{})
	delete(l.outage.since, uid)
}

func (l *ledger) change(uid types.UID, apply func(*record)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r, ok := l.byUID[uid]; ok {
		apply(r)
	}
}
