package labdisk

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// handling is one call that the interceptor was given.
type handling struct {
	begun, finish chan struct{} // closed when it is worked on, and to let that end
	answered      chan error
}

func (b *bench) handle(ctx context.Context, meet grpc.UnaryServerInterceptor, volume, node string) handling {
	h := handling{make(chan struct{}), make(chan struct{}), make(chan error, 1)}
	go func() {
		_, err := meet(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: volume, NodeId: node},
			&grpc.UnaryServerInfo{FullMethod: csi.Controller_ControllerUnpublishVolume_FullMethodName}, func(context.Context, any) (any, error) {
				close(h.begun)
				<-h.finish
				return nil, nil //nolint:nilnil // the answer does not matter
			})
		h.answered <- err
	}()
	return h
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Calls of one volume and node are worked on one after the other, others at the same time. One whose caller has abandoned it before its turn is not
// worked on at all: a later one may have been answered.
func TestCallsWaitForTheirTurn(t *testing.T) {
	b := newBench(t, false)
	meet := interceptor(b.fabric, DriverDisk, "")
	first := b.handle(t.Context(), meet, "v", "n1")
	<-first.begun
	ctx, abandon := context.WithCancel(t.Context())
	second := b.handle(ctx, meet, "v", "n1")
	close(second.finish)
	abandon()
	if err := <-second.answered; err == nil || isClosed(second.begun) {
		t.Errorf("abandoned while it waited: answered with %v, worked on %v", err, isClosed(second.begun))
	}
	third := b.handle(t.Context(), meet, "v", "n1")
	otherNode, otherVolume := b.handle(t.Context(), meet, "v", "n2"), b.handle(t.Context(), meet, "w", "n1")
	<-otherNode.begun
	<-otherVolume.begun
	if isClosed(third.begun) {
		t.Error("a call is worked on while an earlier one is")
	}
	close(first.finish)
	<-third.begun
	for _, h := range []handling{third, otherNode, otherVolume} {
		close(h.finish)
		if err := <-h.answered; err != nil {
			t.Error(err)
		}
	}
	for _, node := range []string{"", "n1"} {
		h := b.handle(ctx, interceptor(b.fabric, DriverDisk, node), "v", "n1")
		close(h.finish)
		if err := <-h.answered; err == nil {
			t.Error("a call was worked on that was abandoned before")
		}
	}
}

// A call that is abandoned while it waits for its turn keeps its place: the one behind it waits for the first.
func TestAbandonedCallKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := newLines(), Call{Controller: true, Volume: "v", Node: "n1"}
		leave, err := l.turn(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		impatient, abandon := context.WithCancel(t.Context())
		abandoned := make(chan error, 1)
		go func() {
			_, err := l.turn(impatient, c)
			abandoned <- err
		}()
		synctest.Wait()
		abandon()
		if err := <-abandoned; err == nil {
			t.Error("the abandoned call had its turn")
		}
		turns := make(chan func(), 1)
		go func() {
			leave, err := l.turn(t.Context(), c)
			if err != nil {
				t.Error(err)
			}
			turns <- leave
		}()
		synctest.Wait()
		if len(turns) > 0 {
			t.Error("a call has its turn while an earlier one is carried out")
		}
		leave()
		(<-turns)()
		if len(l.last) > 0 {
			t.Errorf("%d lines are left", len(l.last))
		}
	})
}

// A publish that its caller abandons at any moment has no effect after the answer to the next call.
func TestAbandonedCallsKeepTheOrder(t *testing.T) {
	b := newBench(t, false)
	v := b.newDisk(DriverDisk, "pvc-1")
	_, controller := b.serve()
	for round := range 300 {
		deadline := time.Duration(rand.Int64N(int64(2 * time.Millisecond)))
		impatient, cancel := context.WithTimeout(t.Context(), deadline)
		_, _ = controller.ControllerPublishVolume(impatient, &csi.ControllerPublishVolumeRequest{VolumeId: v, NodeId: "n1", VolumeCapability: mountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "")})
		cancel()
		if _, err := controller.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: v, NodeId: "n1"}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "end of all calls", func() error {
			for _, c := range b.record.callsSince(time.Time{}) {
				if c.End.IsZero() {
					return errors.New("in flight: " + c.Method)
				}
			}
			return nil
		})
		if held := b.attachments(); len(held) > 0 {
			t.Fatalf("round %d: the publish, abandoned after %v, took effect after the unpublish", round, deadline)
		}
	}
}

// A call of a node that its caller has abandoned has no effect once it has the lock of the volume.
func TestAbandonedNodeCallHasNoEffect(t *testing.T) {
	s := &nodeServer{nodeDriver: &nodeDriver{busy: map[string]bool{}}}
	ctx, abandon := context.WithCancel(t.Context())
	abandon()
	if _, err := s.begin(ctx, "v", "target_path", "/t"); err == nil {
		t.Error("it began")
	}
	if _, err := s.begin(t.Context(), "v", "target_path", "/t"); err != nil {
		t.Errorf("the next call: %v", err)
	}
}
