package csi

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"belay.dev/belay/internal/nodevolume"
)

func TestRefusalOf(t *testing.T) {
	want := map[codes.Code]nodevolume.Refusal{
		codes.Canceled: nodevolume.NotRefused, codes.DeadlineExceeded: nodevolume.NotRefused, codes.Unavailable: nodevolume.NotRefused, codes.ResourceExhausted: nodevolume.NotRefused, codes.Aborted: nodevolume.NotRefused,
		codes.FailedPrecondition: nodevolume.RefusedInUse,
		codes.InvalidArgument:    nodevolume.RefusedForGood, codes.OutOfRange: nodevolume.RefusedForGood, codes.NotFound: nodevolume.RefusedForGood,
		codes.Unknown: nodevolume.RefusedForNow, codes.AlreadyExists: nodevolume.RefusedForNow, codes.PermissionDenied: nodevolume.RefusedForNow, codes.Unimplemented: nodevolume.RefusedForNow,
		codes.Internal: nodevolume.RefusedForNow, codes.DataLoss: nodevolume.RefusedForNow, codes.Unauthenticated: nodevolume.RefusedForNow,
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		err := wrap("NodeExpandVolume", "v", status.Error(code, "no"))
		if got := RefusalOf(fmt.Errorf("expand: %w", err)); got != want[code] {
			t.Errorf("%v: %v, want %v", code, got, want[code])
		}
	}
	for _, err := range []error{nil, errors.New("the socket is gone")} {
		if got := RefusalOf(err); got != nodevolume.NotRefused {
			t.Errorf("%v: %v, want %v", err, got, nodevolume.NotRefused)
		}
	}
}
