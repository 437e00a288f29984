package csi

import (
	"context"
	"errors"
	"fmt"
	"testing"

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
		"caller gave up":                               {of(codes.Canceled), Unknown},
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

func TestRepeatIsHopeless(t *testing.T) {
	tests := map[string]struct {
		err  error
		want bool
	}{
		"invalid argument":  {status.Error(codes.InvalidArgument, ""), true},
		"unimplemented":     {status.Error(codes.Unimplemented, ""), true},
		"permission denied": {status.Error(codes.PermissionDenied, ""), true},
		"not found":         {status.Error(codes.NotFound, ""), false},
		"not from gRPC":     {errors.New("x"), false},
		"success":           {nil, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := RepeatIsHopeless(tt.err); got != tt.want {
				t.Errorf("RepeatIsHopeless(%v) = %v, want %v", tt.err, got, tt.want)
			}
		})
	}
}
