package csi

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestOutcomeOf(t *testing.T) {
	of := func(code codes.Code) error { return status.Error(code, "mock") }
	tests := map[string]struct {
		err  error
		want Outcome
	}{
		"driver said OK":                               {nil, Done},
		"reply was lost":                               {of(codes.Unavailable), Unknown},
		"deadline passed":                              {of(codes.DeadlineExceeded), Unknown},
		"caller timed out":                             {of(codes.Canceled), Unknown},
		"reply too large, or node full":                {of(codes.ResourceExhausted), Unknown},
		"driver broke in the middle":                   {of(codes.Internal), Unknown},
		"driver returned an error without a code":      {of(codes.Unknown), Unknown},
		"driver is busy with the volume":               {of(codes.Aborted), InProgress},
		"request refused":                              {of(codes.InvalidArgument), Failed},
		"volume not found":                             {of(codes.NotFound), Failed},
		"published elsewhere":                          {of(codes.FailedPrecondition), Failed},
		"not from gRPC":                                {errors.New("no socket"), Unknown},
		"context error that did not pass through gRPC": {context.DeadlineExceeded, Unknown},
		"refusal wrapped in what was tried":            {fmt.Errorf("publish v1: %w", of(codes.NotFound)), Failed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := OutcomeOf(tt.err); got != tt.want {
				t.Errorf("OutcomeOf(%v) = %v, want %v", tt.err, got, tt.want)
			}
		})
	}
	var zero Outcome
	if zero != Unknown {
		t.Error("the zero Outcome must be Unknown")
	}
}

func TestUnanswered(t *testing.T) {
	timedOut := status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	as := NoAnswerError{Driver: "disk.csi.example.com", Call: "ControllerPublishVolume", Node: "node-1", Timeout: 15 * time.Second}
	const text = `CSI driver "disk.csi.example.com" did not answer ControllerPublishVolume for node "node-1" within 15s (DeadlineExceeded)`
	tests := map[string]struct {
		err    error
		left   time.Duration // until the call's deadline; 0 for none
		want   string
		silent bool
	}{
		"no answer":                       {timedOut, -time.Second, text, true},
		"the driver's own deadline":       {status.Error(codes.DeadlineExceeded, "array"), time.Hour, "rpc error: code = DeadlineExceeded desc = array", false},
		"another error after the timeout": {status.Error(codes.Internal, "array"), -time.Second, "rpc error: code = Internal desc = array", false},
		"not from gRPC":                   {errors.New("no secret"), -time.Second, "no secret", false},
		"no deadline":                     {timedOut, 0, timedOut.Error(), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if tt.left != 0 {
				bounded, cancel := context.WithTimeout(ctx, tt.left)
				defer cancel()
				ctx = bounded
			}
			err := Unanswered(ctx, tt.err, as)
			if err.Error() != tt.want || IsUnanswered(err) != tt.silent || !errors.Is(err, tt.err) {
				t.Errorf("%v, unanswered %v; want %s, %v", err, IsUnanswered(err), tt.want, tt.silent)
			}
			was, _ := Code(tt.err)
			if code, _ := Code(err); code != was {
				t.Errorf("code %v, want %v", code, was)
			}
		})
	}
	if err := Unanswered(t.Context(), nil, as); err != nil {
		t.Errorf("success became %v", err)
	}
}

func TestNodeOutcomeOf(t *testing.T) {
	of := func(code codes.Code) error { return fmt.Errorf("stage v1: %w", status.Error(code, "mock")) }
	tests := map[string]struct {
		err  error
		want Outcome
	}{
		"staged at this path in a way that does not fit": {of(codes.AlreadyExists), Unknown},
		"request refused":     {of(codes.InvalidArgument), Failed},
		"staged elsewhere":    {of(codes.FailedPrecondition), Failed},
		"busy with it":        {of(codes.Aborted), InProgress},
		"driver said OK":      {nil, Done},
		"not from the driver": {errors.New("no socket"), Unknown},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := NodeOutcomeOf(tt.err); got != tt.want {
				t.Errorf("NodeOutcomeOf(%v) = %v, want %v", tt.err, got, tt.want)
			}
		})
	}
}
