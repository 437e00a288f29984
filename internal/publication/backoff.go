package publication

import (
	"hash/fnv"
	"strconv"
	"time"

	"belay.dev/belay/internal/decision"
)

// maxMessage is the limit of the API server for VolumeError.message, in bytes (k/k v1.36.3 pkg/apis/storage/validation/validation.go:45).
const maxMessage = 1024

// maxQuotedError limits an error that is quoted in another message.
const maxQuotedError = 512

// Truncate shortens a message to what the API server accepts.
func Truncate(message string) string { return decision.Truncate(message, maxMessage) }

// backOff returns when a call may begin that repeats the failed one for this node ID. Another verb or another node ID need not wait. A
// change of what the attempt depends on ends the back-off, and so does, for a publish, that the volume was taken from another node since.
func (v *volume) backOff(a Attachment, verb Verb, nodeID string) time.Time {
	last := a.Call.at(nodeID)
	if until, inDoubt := a.inDoubt(verb, nodeID); inDoubt {
		return until
	}
	taken := verb == Publish && a.Call.NodeID != nodeID && a.Call.confirmed(Unpublish, a.Call.NodeID)
	if !last.failed() || last.Verb != verb || last.Inputs != a.Inputs || taken {
		return time.Time{}
	}
	return v.policy.NextAttempt(a.UID, last)
}

// NextAttempt returns when a failed call is repeated, unless what it depends on changes before.
func (p Policy) NextAttempt(uid string, failed Call) time.Time {
	next := p.due(uid, failed)
	if !failed.RetryAt.IsZero() && failed.RetryAt.Before(next) {
		return failed.RetryAt
	}
	return next
}

// due is NextAttempt without the attempts out of turn.
func (p Policy) due(uid string, failed Call) time.Time {
	if !failed.Due.IsZero() {
		return failed.Due
	}
	return failed.Ended.Add(p.delay(uid, failed))
}

// Due returns when an attempt is due that repeats the failed call; zero for any other. One that begins before, because something woke it, and
// fails leaves that as it was: a wake only brings an attempt forward.
func (p Policy) Due(uid string, last Call, verb Verb, nodeID string) time.Time {
	if last = last.at(nodeID); !last.failed() || last.Verb != verb {
		return time.Time{}
	}
	return p.due(uid, last)
}

// FormatTime formats a time for messages and logs, rounded up to the second.
func FormatTime(t time.Time) string { return t.Add(time.Second - 1).UTC().Format(time.RFC3339) }

// delay doubles with each failure from RetryStart to RetryMax, whatever the code: drivers also use codes that the CSI specification
// calls permanent for temporary conditions (INVALID_ARGUMENT for a disk that another node still uses).
func (p Policy) delay(uid string, failed Call) time.Duration {
	delay := p.RetryStart
	for i := 1; i < failed.Failures && delay < p.RetryMax; i++ {
		delay *= 2
	}
	return Spread(min(delay, p.RetryMax), uid+strconv.Itoa(failed.Failures))
}

// Spread shortens a delay by up to a fifth, so that what failed together is not retried together. The fraction is derived from what the
// delay is for, so that a decision depends on nothing but its input.
func Spread(delay time.Duration, of string) time.Duration {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(of)) // never fails (hash.Hash)
	const part = 1000
	return delay - delay/5*time.Duration(sum.Sum32()%part)/part
}
