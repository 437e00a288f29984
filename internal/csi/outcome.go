package csi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Outcome is what a finished call says about the volume it was for. The zero
// value is Unknown, so that a result nobody filled in is never read as done or
// as not done.
type Outcome int

const (
	// Unknown: the driver may have done it, may still do it, or never saw it.
	Unknown Outcome = iota
	// Done: the driver said OK; what was asked for is so.
	Done
	// Failed: the driver looked at the request and refused it before it acted.
	Failed
	// InProgress: the driver is at work on this volume already (ABORTED, CSI
	// spec "Error Scheme"); nothing is known about how that will end.
	InProgress
)

// String is the name used in logs and metrics.
func (o Outcome) String() string {
	switch o {
	case Done:
		return "Done"
	case Failed:
		return "Failed"
	case InProgress:
		return "InProgress"
	default:
		return "Unknown"
	}
}

// OutcomeOf classifies the error of a CSI call; nil is Done.
//
// Only codes with which a driver turns a request down before it touches the
// storage are Failed. INTERNAL, UNKNOWN and DATA_LOSS come out of the middle of
// the work (kubelet and csi-attacher take them for final; a mount or an
// attachment that was half made then has nobody to undo it).
// RESOURCE_EXHAUSTED is Unknown because gRPC itself returns it for a reply that
// is too large, after the driver has acted.
func OutcomeOf(err error) Outcome {
	if err == nil {
		return Done
	}
	code, ok := Code(err)
	if !ok {
		return Unknown
	}
	switch code {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated:
		return Failed
	case codes.Aborted:
		return InProgress
	default:
		return Unknown
	}
}

// NodeOutcomeOf classifies the error of NodeStageVolume, NodePublishVolume and of the calls that undo
// them. ALREADY_EXISTS means there that the volume is staged, or published, at this very path, in a way
// that does not fit the request (CSI spec, "NodeStageVolume Errors", "NodePublishVolume Errors"): the
// refusal says that something is there.
func NodeOutcomeOf(err error) Outcome {
	if code, ok := Code(err); ok && code == codes.AlreadyExists {
		return Unknown
	}
	return OutcomeOf(err)
}

// Code is the gRPC code of an error, also of a wrapped one; ok is false if the
// error did not come from gRPC, and for nil.
func Code(err error) (code codes.Code, ok bool) {
	if err == nil {
		return codes.OK, false
	}
	s, ok := status.FromError(err)
	if !ok {
		return codes.OK, false
	}
	return s.Code(), true
}

// NoAnswerError is a call that the driver did not answer within the call's timeout. gRPC says "context deadline exceeded",
// which names nothing that an operator could look at.
type NoAnswerError struct {
	Driver, Call string
	Node         string // empty for calls that are not about one
	Timeout      time.Duration

	err error // gRPC's
}

func (e *NoAnswerError) Error() string {
	call := e.Call
	if e.Node != "" {
		call += fmt.Sprintf(" for node %q", e.Node)
	}
	return fmt.Sprintf("CSI driver %q did not answer %s within %v (%v)", e.Driver, call, e.Timeout, codes.DeadlineExceeded)
}

// Unwrap is gRPC's error: it has the code.
func (e *NoAnswerError) Unwrap() error { return e.err }

// Unanswered turns the error of a call whose deadline has passed into the given one. Any other error, also a driver's own
// DEADLINE_EXCEEDED before that, is left as it is. The clock decides, not ctx.Err: a driver that keeps the deadline
// too answers at the same moment, and either may be noticed first.
func Unanswered(ctx context.Context, err error, as NoAnswerError) error {
	code, _ := Code(err)
	if deadline, ok := ctx.Deadline(); !ok || code != codes.DeadlineExceeded || time.Now().Before(deadline) {
		return err
	}
	as.err = err
	return &as
}

// IsUnanswered reports whether an error is, or wraps, a NoAnswerError.
func IsUnanswered(err error) bool {
	_, ok := errors.AsType[*NoAnswerError](err)
	return ok
}
