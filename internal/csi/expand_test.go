package csi

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestWhatARefusedExpansionSays(t *testing.T) {
	want := map[codes.Code]Refusal{
		codes.Canceled: NoRefusal, codes.DeadlineExceeded: NoRefusal, codes.Unavailable: NoRefusal, codes.ResourceExhausted: NoRefusal, codes.Aborted: NoRefusal,
		codes.FailedPrecondition: RefusedInUse,
		codes.InvalidArgument:    RefusedForGood, codes.OutOfRange: RefusedForGood, codes.NotFound: RefusedForGood,
		codes.Unknown: RefusedForNow, codes.AlreadyExists: RefusedForNow, codes.PermissionDenied: RefusedForNow, codes.Unimplemented: RefusedForNow,
		codes.Internal: RefusedForNow, codes.DataLoss: RefusedForNow, codes.Unauthenticated: RefusedForNow,
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		err := wrap("NodeExpandVolume", "v", status.Error(code, "no"))
		if got := RefusalOf(fmt.Errorf("expand: %w", err)); got != want[code] {
			t.Errorf("%v: %v, want %v", code, got, want[code])
		}
	}
	for _, err := range []error{nil, errors.New("the socket is gone")} {
		if got := RefusalOf(err); got != NoRefusal {
			t.Errorf("%v: %v, want %v", err, got, NoRefusal)
		}
	}
}
