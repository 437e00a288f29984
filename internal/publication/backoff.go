package publication

import (
	"hash/fnv"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxMessage is what the API server accepts in VolumeError.message, in bytes.
const maxMessage = 1024

// maxQuotedError is how much of an error is quoted in another message, which goes on after it.
const maxQuotedError = 512

// ellipsis ends a message that was cut.
const ellipsis = "..."

// Truncate shortens a message to what the API server accepts, at a character's edge. What is no UTF-8 would grow on the way.
func Truncate(message string) string { return truncate(message, maxMessage) }

func truncate(message string, most int) string {
	message = strings.ToValidUTF8(message, "?")
	if len(message) <= most {
		return message
	}
	end := most - len(ellipsis)
	for end > 0 && !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + ellipsis
}

// backOff is when a call may begin that the last one would be repeated by: another verb, or the same for another node ID, need not
// wait. A change of what the attempt depends on ends it at once.
func (v *volume) backOff(a Attachment, verb Verb, nodeID string) time.Time {
	if !a.Call.failed() || a.Call.Verb != verb || a.Call.NodeID != nodeID || a.Call.Inputs != a.Inputs {
		return time.Time{}
	}
	return v.policy.NextAttempt(a.UID, a.Call)
}

// NextAttempt is when a call that failed is repeated, unless what it depends on changes before.
func (p Policy) NextAttempt(uid string, failed Call) time.Time {
	next := failed.Ended.Add(p.delay(uid, failed))
	if !failed.RetryAt.IsZero() && failed.RetryAt.Before(next) {
		return failed.RetryAt
	}
	return next
}

// FormatTime is a time as messages and logs have it, rounded up to the second.
func FormatTime(t time.Time) string { return t.Add(time.Second - 1).UTC().Format(time.RFC3339) }

// delay doubles with each failure from RetryStart to RetryMax, whichever code the driver answered with: drivers use also those that
// the CSI specification calls permanent for passing conditions (INVALID_ARGUMENT for a disk that another node still uses). It is
// less by up to a fifth: many volumes that failed together are not tried together again. The
// fifth is drawn from the attachment's UID, so that a decision is a function of
// what was seen.
func (p Policy) delay(uid string, failed Call) time.Duration {
	delay := p.RetryStart
	for i := 1; i < failed.Failures && delay < p.RetryMax; i++ {
		delay *= 2
	}
	delay = min(delay, p.RetryMax)
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(uid + strconv.Itoa(failed.Failures))) // never fails (hash.Hash)
	const part = 1000
	return delay - delay/5*time.Duration(sum.Sum32()%part)/part
}
