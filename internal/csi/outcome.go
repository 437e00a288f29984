package csi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Outcome is what a finished call means for its volume. The zero value is Unknown, so that a result that was not set is never read
// as done or as not done.
type Outcome int

const (
	// Unknown: the driver may have done it, may still do it, or never saw it.
	Unknown Outcome = iota
	// Done: the driver replied OK.
	Done
	// Failed: the driver refused the request before it acted.
	Failed
	// InProgress: the driver is already working on this volume (ABORTED, CSI spec "Error Scheme"); how that will end is unknown.
	InProgress
)

// String returns the name used in logs and metrics.
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
// Only codes with which a driver rejects a request before it accesses the storage are Failed. INTERNAL, UNKNOWN and DATA_LOSS come
// from the middle of the work (kubelet and csi-attacher consider them final; then nothing would undo an incomplete mount or
// attachment). RESOURCE_EXHAUSTED is Unknown because gRPC itself returns it for a reply that is too large, after the driver has
// acted.
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

// NodeOutcomeOf classifies the error of NodeStageVolume, NodePublishVolume and of the calls that undo them. There ALREADY_EXISTS
// means that the volume is staged, or published, at this path in an incompatible way (CSI spec, "NodeStageVolume Errors",
// "NodePublishVolume Errors"), so something is mounted.
func NodeOutcomeOf(err error) Outcome {
	if code, ok := Code(err); ok && code == codes.AlreadyExists {
		return Unknown
	}
	return OutcomeOf(err)
}

// Code returns the gRPC code of an error, also of a wrapped one; ok is false if the error did not come from gRPC, and for nil.
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

// NoAnswerError is returned for a call that the driver did not answer within the timeout. gRPC's "context deadline exceeded" names
// nothing that an operator could check.
type NoAnswerError struct {
	Driver, Call string
	Node         string // empty for calls without a node
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

// Unwrap returns gRPC's error, which has the code.
func (e *NoAnswerError) Unwrap() error { return e.err }

// Unanswered turns the error of a call whose deadline has passed into the given one. Any other error is returned unchanged, also a
// driver's own DEADLINE_EXCEEDED before that. The clock decides, not ctx.Err: a driver that observes the deadline too answers at
// the same moment, and either may be noticed first.
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
