package diagnosis

import (
	"cmp"
	"regexp"
	"strings"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/drivers"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

// spoken is an error by who says what: a part of Kubernetes, and in what it quotes the driver.
type spoken struct {
	own  string // what the attacher or kubelet says itself
	code string // of the driver's answer; "" if the driver answered nothing
	text string // the driver's words
	held string // what belay-attacher says behind the driver's words: the node ID at which the driver's list has the volume
}

var (
	// answer is how gRPC writes an error (grpc-go@v1.81.1/internal/status/status.go:202). The first is the driver's; it may quote others.
	answer = regexp.MustCompile(`(?s)rpc error: code = (\w+) desc = (.*)$`)
	// abandoned is belay-attacher's own, for a driver that did not answer in time.
	abandoned = regexp.MustCompile(`\((DeadlineExceeded)\)`)
	codeNames = map[int32]string{
		3: "InvalidArgument", 4: "DeadlineExceeded", 5: "NotFound", 7: "PermissionDenied", 8: "ResourceExhausted", 9: "FailedPrecondition", 10: "Aborted",
		12: "Unimplemented", 13: "Internal", 14: "Unavailable", 16: "Unauthenticated",
	}
	secrets  = regexp.MustCompile(`(?i)secrets? .*(not found|forbidden|cannot|failed)|(load|get|read|fetch)\w* .*secret(s|ref)?\b`)
	noDriver = regexp.MustCompile(`does not contain driver|no NodeID annotation|csinodes?(\.storage\.k8s\.io)? .*not found|not found in the list of registered CSI drivers`)
	// transport is what gRPC says itself of a connection that does not work (grpc-go@v1.81.1/internal/transport/transport.go:723,
	// http2_client.go:1059, http_util.go:62, picker_wrapper.go:176).
	transport = regexp.MustCompile(`^(connection error: |last connection error: |error reading from server: |transport|(the )?connection (is draining|is closing|closed)|closing transport |the stream is rejected |keepalive |name resolver error|no children to pick from|SubConn state is not Ready|unexpected HTTP status )|connection refused$`)
	// deadline is what gRPC says itself of a call that was not answered in time (rpc_util.go:1100, picker_wrapper.go:133).
	deadline = regexp.MustCompile(`^(context deadline exceeded$|received context error|latest balancer error: |stream terminated )`)
	// isAttached is how a refusal says that the volume is somewhere. A driver that the file does not know has to answer FAILED_PRECONDITION then
	// (CSI specification, ControllerPublishVolume), and answers it to other states too.
	isAttached = regexp.MustCompile(`(?i)^(volume )?(in[- ]use|attached (to|elsewhere))|\b(is|already|still|currently) ([\w-]+ )?(attached|published|mounted|mapped|in[- ]use|used by)\b`)
	// fsGroup is kubelet's own failure to give the files of a volume the pod's fsGroup (k/k v1.30.14 to v1.37.2 pkg/volume/csi/csi_mounter.go
	// "applyFSGroup failed for vol", pkg/volume/volume_linux.go changeFilePermission).
	fsGroup = regexp.MustCompile(`applyFSGroup failed for vol .*: ((?:l?chown|chmod) .*: (?:operation not permitted|permission denied))$`)
	// triedMount is the type and the device of a mount that failed (k8s.io/mount-utils@v0.36.3/mount_linux.go:272).
	triedMount = regexp.MustCompile(`Mounting arguments:(?: -\S+)*? -t (\S+) (?:-o \S+ )?(/dev/\S+) `)
	// listedAt is what belay-attacher appends to a refusal if the driver's own list has the volume at another node ID (explain.NotFreed).
	listedAt = regexp.MustCompile(`; the driver lists the volume at node ID "([^"]*)", which no VolumeAttachment is for.*$`)
	// nextAttempt is when belay-attacher calls the driver again, in an error that is not the driver's.
	nextAttempt = regexp.MustCompile(`; next attempt at ([0-9TZ:.+-]+)$`)
)

// unconfirmed is in belay-attacher's message about a volume whose last VolumeAttachment was removed by hand.
const unconfirmed = "was removed before the driver confirmed the detach"

// meant is what a driver means by an answer whose text does not say it, or says something else.
var meant = map[drivers.Situation]string{
	drivers.UnknownNode: "the driver answers so if it does not know a machine with the node's ID; that is no sign that the volume is lost",
	drivers.Busy:        "another operation of the volume or its machine is under way; the call is repeated",
	drivers.RateLimit:   "the storage limits requests; the node is not full for that",
}

// reasons are those of what a driver's answer is about. What is not here is a failure of the call.
var reasons = map[drivers.Situation]decision.Reason{
	drivers.AttachedElsewhere: explain.BackendDisagrees, drivers.NodeFull: explain.AttachLimitReached, drivers.VolumeGone: explain.HandleNotFound,
	drivers.WrongZone: explain.VolumeInOtherZone, drivers.Quota: explain.StorageQuotaReached, drivers.Credentials: explain.DriverNotAuthorized,
	drivers.Damaged: explain.FileSystemDamaged, drivers.WrongFileSystem: explain.FileSystemMismatch, drivers.NotPermitted: explain.FSGroupRefused,
	drivers.Unsupported: explain.RequestNotSupported, drivers.ServerFailing: explain.StorageServerFailing, drivers.NFSVersion: explain.StorageServerFailing,
	drivers.SourceMissing: explain.VolumeSourceMissing, drivers.ProviderMissing: explain.NodeProgramMissing, drivers.ModuleMissing: explain.NodeProgramMissing,
	drivers.DaemonMissing: explain.NodeProgramMissing, drivers.HostProgram: explain.NodeProgramMissing, drivers.NoCredentials: explain.DriverNotAuthorized,
}

// failures are the reasons of calls that fail for a cause that nothing shows.
var failures = map[drivers.Call]decision.Reason{
	drivers.Publish: attachment.AttachFailed, drivers.Unpublish: attachment.DetachFailed, drivers.Mount: explain.MountFailing,
}

var operations = map[drivers.Call]explain.Operation{drivers.Publish: explain.Attach, drivers.Unpublish: explain.Detach, drivers.Mount: explain.Mount}

// hear splits a message by who says what.
func hear(message string) spoken {
	if found := listedAt.FindStringSubmatchIndex(message); found != nil {
		s := hear(message[:found[0]])
		s.held = message[found[2]:found[3]]
		return s
	}
	if found := answer.FindStringSubmatchIndex(message); found != nil {
		return spoken{own: strings.TrimSpace(message[:found[0]]), code: message[found[2]:found[3]], text: oneLine(nextAttempt.ReplaceAllLiteralString(message[found[4]:found[5]], ""))}
	}
	return spoken{own: oneLine(nextAttempt.ReplaceAllLiteralString(message, ""))}
}

// hearError splits the error of a VolumeAttachment. One with a code is the driver's, also where the message does not say so.
func hearError(e *storagev1.VolumeError) spoken {
	s := hear(e.Message)
	if e.ErrorCode != nil {
		if s.code == "" {
			s.text, s.own = s.own, ""
		}
		s.code = cmp.Or(codeNames[*e.ErrorCode], s.code)
	}
	return s
}

// reasonOf reads an error: whose words it has comes first, then the facts about the driver's answers and the words that drivers say alike, then
// CSI's codes. What none of them shows is a failure of the call.
func reasonOf(s spoken, driver string, call drivers.Call) (decision.Reason, drivers.Reading) {
	if own := ofAttacher(call, s.own); own != "" {
		return own, drivers.Reading{}
	}
	if s.held != "" {
		return explain.BackendDisagrees, drivers.Reading{Situation: drivers.AttachedElsewhere, Where: s.held}
	}
	if s.code == "" {
		return cmp.Or(ofKubernetes(call, s.own), failures[call]), drivers.Reading{}
	}
	if unanswered(s) {
		return explain.DriverUnavailable, drivers.Reading{}
	}
	facts, _ := drivers.Of(driver)
	read := drivers.Read(driver, call, s.code, s.text)
	switch {
	case read.Situation != "":
		return cmp.Or(reasons[read.Situation], failures[call]), read
	case s.code == "ResourceExhausted" && call == drivers.Publish && !facts.Known(call, drivers.NodeFull):
		return explain.AttachLimitReached, read
	case s.code == "FailedPrecondition" && call == drivers.Publish && !facts.Known(call, drivers.AttachedElsewhere) && isAttached.MatchString(s.text):
		return explain.BackendDisagrees, read
	}
	return failures[call], read
}

// RestsOnNodes reports whether the other nodes show what the error of a VolumeAttachment means: which of them has the volume, or is in its zone.
func RestsOnNodes(va *storagev1.VolumeAttachment) bool {
	e := va.Status.AttachError
	if e == nil || va.Status.Attached {
		return false
	}
	reason, _ := reasonOf(hearError(e), va.Spec.Attacher, drivers.Publish)
	return reason == explain.BackendDisagrees || reason == explain.VolumeInOtherZone
}

// quoted returns an event's text, shortened in its middle if it quotes a driver, whose answer is explained apart from it.
func (x *state) quoted(message string) string {
	if answer.MatchString(message) {
		return drivers.Shorten(x.foreign(message), shown)
	}
	return x.foreign(message)
}

// ofKubernetes reads what the attacher or kubelet says itself; "" if it shows no reason.
func ofKubernetes(call drivers.Call, own string) decision.Reason {
	switch {
	case lacking(own) != "":
		return lacking(own)
	case call == drivers.Mount && fsGroup.MatchString(own):
		return explain.FSGroupRefused
	case call != drivers.Mount && (abandoned.MatchString(own) || strings.Contains(own, "connection refused") || strings.Contains(own, "context deadline exceeded")):
		return explain.DriverUnavailable
	}
	return ""
}

// ofAttacher reads the texts that belay-attacher itself writes.
func ofAttacher(call drivers.Call, message string) decision.Reason {
	switch {
	case call == drivers.Mount:
	case strings.Contains(message, explain.MayBeRestored):
		return publication.RestoredAttachment
	case call == drivers.Unpublish && strings.Contains(message, publication.MayStillAttach):
		return publication.PublishInDoubt
	case strings.Contains(message, unconfirmed):
		return explain.BackendDisagrees
	}
	return ""
}

// lacking reads what a text of Kubernetes' parts says to be missing for a call: the driver on the node, or a Secret.
func lacking(message string) decision.Reason {
	switch {
	case noDriver.MatchString(message):
		return explain.DriverNotOnNode
	case secrets.MatchString(message):
		return explain.SecretMissing
	}
	return ""
}

// unanswered reports whether gRPC says that the driver was not reached, or gave no answer. What a driver says of its own storage is an answer, and
// one that it has over a network: a driver is reached by a socket of its node.
func unanswered(s spoken) bool {
	return s.code == "Unavailable" && transport.MatchString(s.text) && !strings.Contains(s.text, "dial tcp ") || s.code == "DeadlineExceeded" && deadline.MatchString(s.text)
}

// answered adds to a wait what an error says, and what the snapshot shows about that.
func (x *state) answered(w wait, call drivers.Call, key attachment.VolumeKey, node string, s spoken) wait {
	reason, read := reasonOf(x.withoutNames(s, key), key.Driver, call)
	w.reason = reason
	w.detail = w.says(drivers.Shorten(x.foreign(cmp.Or(read.Cause(s.text), s.own, s.code)), shown))
	if ofAttacher(call, s.own) != "" {
		w.detail = w.says(x.foreign(strings.TrimSpace(s.own + " " + s.text)))
	}
	if found := fsGroup.FindStringSubmatch(s.own); found != nil && w.reason == explain.FSGroupRefused {
		w.detail = w.says(x.foreign(found[1]))
	}
	x.means(&w, read, node)
	w.answer.Right = rightTo(key.Driver, call)
	if found := triedMount.FindStringSubmatch(s.text); found != nil && w.reason == explain.FileSystemMismatch {
		w.answer.Tried, w.answer.Device = x.foreign(found[1]), x.foreign(found[2])
	}
	w.answer.Call, w.answer.NotSent = operations[call], s.code == "" && w.reason == failures[call] && call != drivers.Mount
	said := meant[read.Situation]
	switch w.reason {
	case explain.AttachLimitReached:
		said = x.limitSaid(&w, read.Situation != drivers.NodeFull, node, key.Driver)
	case explain.BackendDisagrees:
		said = x.elsewhere(&w, key, node, cmp.Or(s.text, s.own), read.Where)
		w.answer.Or = read.Or
	case explain.VolumeInOtherZone:
		x.zonesFor(&w, key.Driver, node)
	}
	if read.Situation == drivers.Busy && (call == drivers.Mount || x.Now.Sub(w.since) > attachment.AnswerTimeout) {
		w.reason, said, w.answer.Open = explain.OperationPending, "", x.ago(w.since)
	}
	if said != "" {
		w.detail += " (" + said + ")"
	}
	x.askable(&w, key.Driver, key.Handle)
	return w
}

// withoutNames blanks the names in a driver's words that users choose: a volume may be called "quota".
func (x *state) withoutNames(s spoken, key attachment.VolumeKey) spoken {
	names := []string{key.Handle}
	for _, pv := range x.byKey[key] {
		names = append(names, pv.Name)
	}
	for _, name := range names {
		for at := 0; len(name) > 3; {
			i := indexWord(s.text[at:], name)
			if i < 0 {
				break
			}
			at += i
			s.text = s.text[:at] + strings.Repeat("x", len(name)) + s.text[at+len(name):]
			at += len(name)
		}
	}
	return s
}

// limitSaid compares an answer that the node is full with the slots that the CSINode has. byCode: the text does not say that it is full.
func (x *state) limitSaid(w *wait, byCode bool, node, driver string) string {
	used, limit, known := x.slots(node, driver)
	switch {
	case !known || used > limit:
		return ""
	case byCode:
		w.reason = attachment.AttachFailed
		return slotsTaken(used, limit) + ", so that it is not full by that count"
	}
	return slotsTaken(used, limit) + "; the storage counts others too"
}

// attemptedSince is since when an attempt of belay-attacher is due, which nothing has answered, if that time has come.
func (x *state) attemptedSince(e *storagev1.VolumeError) (at time.Time, underWay bool) {
	found := nextAttempt.FindStringSubmatch(e.Message)
	if found == nil {
		return at, false
	}
	at, err := time.Parse(time.RFC3339, found[1])
	return at, err == nil && x.Now.After(at)
}

// listsNodes reports whether a driver's list may show where its volumes are published: belay-attacher frees them by it.
func listsNodes(driver string) bool {
	facts, known := drivers.Of(driver)
	return !known || facts.Lists.PublishedNodes == nil || *facts.Lists.PublishedNodes
}

// takesRequests reports whether the attacher of a VolumeAttachment calls the driver when it is asked to: belay-attacher does, and it alone records
// the handle, or says when the next attempt is.
func takesRequests(va *storagev1.VolumeAttachment) bool {
	if va.Annotations[kube.PublishedHandleAnnotation] != "" {
		return true
	}
	for _, e := range []*storagev1.VolumeError{va.Status.AttachError, va.Status.DetachError} {
		if e != nil && nextAttempt.MatchString(e.Message) {
			return true
		}
	}
	return false
}
