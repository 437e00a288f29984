package csi

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// FuzzOutcome sorts every code that a driver may answer with, those that gRPC does not know included. Nothing but OK is Done,
// and nothing is Failed but the codes by which the CSI specification says that the driver has not begun.
func FuzzOutcome(f *testing.F) {
	for code := range uint32(18) {
		f.Add(code, "no space", code%2 == 0)
	}
	f.Add(uint32(4294967295), "\xff", true)
	refusals := []codes.Code{
		codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.FailedPrecondition,
		codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated,
	}
	f.Fuzz(func(t *testing.T, number uint32, message string, wrapped bool) {
		code := codes.Code(number)
		err := status.Error(code, message)
		if wrapped && err != nil {
			err = fmt.Errorf("ControllerPublishVolume: %w", err)
		}
		outcome, onNode := OutcomeOf(err), NodeOutcomeOf(err)
		switch {
		case (outcome == Done) != (code == codes.OK) || (onNode == Done) != (code == codes.OK):
			t.Errorf("%v is %v, on a node %v", code, outcome, onNode)
		case (outcome == Failed) != slices.Contains(refusals, code):
			t.Errorf("%v is %v", code, outcome)
		case onNode != outcome && (code != codes.AlreadyExists || onNode != Unknown):
			t.Errorf("%v is %v, but on a node %v", code, outcome, onNode)
		case (outcome == InProgress) != (code == codes.Aborted):
			t.Errorf("%v is %v", code, outcome)
		}
		if got := OutcomeOf(errors.New(message)); got != Unknown {
			t.Errorf("an error that is not gRPC's is %v", got)
		}
		if got := OutcomeOf(&NoAnswerError{Driver: message, err: status.Error(codes.DeadlineExceeded, message)}); got != Unknown {
			t.Errorf("no answer is %v", got)
		}
	})
}
