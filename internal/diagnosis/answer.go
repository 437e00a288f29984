package diagnosis

import (
	"cmp"
	"regexp"
	"strings"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/drivers"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/publication"
)

// The codes of CSI errors, as numbers of the field errorCode and as words of gRPC's text.
var (
	codeWord  = regexp.MustCompile(`code = ([A-Za-z]+)|\((DeadlineExceeded)\)`) // the second is belay-attacher's own
	codeNames = map[int32]string{
		3: "InvalidArgument", 4: "DeadlineExceeded", 5: "NotFound", 8: "ResourceExhausted", 9: "FailedPrecondition", 10: "Aborted", 13: "Internal", 14: "Unavailable",
	}
	secrets  = regexp.MustCompile(`(?i)secrets? .*(not found|forbidden|cannot|failed)|(load|get|read|fetch)\w* .*secret`)
	noDriver = regexp.MustCompile(`does not contain driver|no NodeID annotation|csinodes?(\.storage\.k8s\.io)? .*not found|not found in the list of registered CSI drivers`)
)

// unconfirmed is in belay-attacher's message about a volume whose last VolumeAttachment was removed by hand.
const unconfirmed = "was removed before the driver confirmed the detach"

// meant is what a driver means by an answer whose text does not say it, or says something else.
var meant = map[drivers.Situation]string{
	drivers.UnknownNode: "the driver answers so if it does not know a machine with the node's ID; that is no sign that the volume is lost",
	drivers.Busy:        "another operation of the volume or its machine is under way; the call is repeated",
	drivers.RateLimit:   "the storage limits requests; the node is not full for that",
}

// reasonOf reads the error of an attacher: by the facts about the driver's answers, and where the file does not know them by CSI's codes.
// What neither shows is an error of the driver. said is what the driver means where its text misleads.
func reasonOf(e *storagev1.VolumeError, driver string, call drivers.Call) (reason decision.Reason, said string) {
	otherwise, code := attachment.AttachFailed, codeOf(e)
	if call == drivers.Unpublish {
		otherwise = attachment.DetachFailed
	}
	facts, known := drivers.Of(driver)
	var about drivers.Situation
	if code != "" {
		about = facts.Means(call, code, e.Message)
	}
	switch own := ofAttacher(call, e.Message); {
	case own != "":
		return own, ""
	case about == drivers.AttachedElsewhere:
		return explain.BackendDisagrees, ""
	case about == drivers.NodeFull:
		return explain.AttachLimitReached, ""
	case about != "":
		return otherwise, meant[about]
	case lacking(e.Message) != "":
		return lacking(e.Message), ""
	case code == "ResourceExhausted" && !facts.Known(call, drivers.NodeFull):
		return explain.AttachLimitReached, ""
	case code == "FailedPrecondition" && call == drivers.Publish && !facts.Known(call, drivers.AttachedElsewhere):
		return explain.BackendDisagrees, ""
	case unanswered(code, e.Message, known):
		return explain.DriverUnavailable, ""
	}
	return otherwise, ""
}

// ofAttacher reads the texts that belay-attacher itself writes.
func ofAttacher(call drivers.Call, message string) decision.Reason {
	switch {
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

func codeOf(e *storagev1.VolumeError) string {
	code := ""
	if e.ErrorCode != nil {
		code = codeNames[*e.ErrorCode]
	}
	if found := codeWord.FindStringSubmatch(e.Message); found != nil {
		code = cmp.Or(code, found[1]+found[2])
	}
	return code
}

// unanswered reports whether the driver was not reached, or gave no answer. Another code is an answer, whatever its storage did not
// answer; that is read so for drivers that the file knows.
func unanswered(code, message string, known bool) bool {
	switch {
	case code == "Unavailable", code == "DeadlineExceeded":
		return true
	case known && code != "":
		return false
	}
	return strings.Contains(message, "connection refused") || strings.Contains(message, "context deadline exceeded")
}
