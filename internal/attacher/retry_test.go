package attacher

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// allCodes are the gRPC codes of errors.
func allCodes() (all []codes.Code) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		all = append(all, code)
	}
	return all
}

// A driver that answers with an error for 3 s and then works has the volume attached, and detached, within 10 s
// of its change of mind, whichever code it answered with.
func TestPassingErrors(t *testing.T) {
	for _, code := range allCodes() {
		t.Run(code.String(), func(t *testing.T) {
			inBubble(t, 10, func(b *bubble) {
				b.attachedBefore("out", "node2")
				begun := time.Now()
				b.answers(func(context.Context, call) error {
					if time.Since(begun) < 3*time.Second {
						return status.Error(code, "not now")
					}
					return nil
				})
				b.attach("in", "node1")
				b.detach("out", "node2")
				b.within(13*time.Second, "attached and detached", func() bool { return b.isAttached("in", "node1") && b.isGone("out", "node2") })
			})
		})
	}
}
