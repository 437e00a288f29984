package labdisk

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// callRecord takes down calls and deals out faults: the fabric itself, or a node's way to it.
type callRecord interface {
	begin(ctx context.Context, c Call) (Call, *Fault, error)
	end(c Call)
	waitCleared(ctx context.Context, fault string) error
}

// interceptor records every call of a driver's server and lets the faults act on it. Of a node's server, node is the
// node's name.
func interceptor(record callRecord, driver, node string) grpc.UnaryServerInterceptor {
	order := newLines()
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		c := describeCall(req, path.Base(info.FullMethod))
		c.Driver, c.Controller, c.Start = driver, node == "", time.Now()
		if node != "" {
			c.Node = node
		}
		c, fault, err := record.begin(ctx, c)
		if err != nil {
			return nil, status.Errorf(codes.Unavailable, "record %s: %v", c.Method, err)
		}
		resp, err := order.meet(ctx, record, fault, c, func(ctx context.Context) (any, error) { return handle(ctx, req) })
		c.End, c.Code = time.Now(), status.Code(err).String()
		if err != nil {
			c.Message = status.Convert(err).Message()
			slog.Warn("Call failed", "method", c.Method, "driver", driver, "volume", c.Volume, "node", c.Node, "code", c.Code, "message", c.Message)
		}
		record.end(c)
		return resp, err
	}
}

// describeCall reads from a request what the record and the faults need.
func describeCall(req any, method string) Call {
	c := Call{Method: method}
	if r, ok := req.(interface{ GetName() string }); ok {
		c.Volume = r.GetName()
	}
	if r, ok := req.(interface{ GetVolumeId() string }); ok {
		c.Volume = r.GetVolumeId()
	}
	if r, ok := req.(interface{ GetNodeId() string }); ok {
		c.Node = r.GetNodeId()
	}
	if r, ok := req.(interface{ GetStagingTargetPath() string }); ok {
		c.Target = r.GetStagingTargetPath()
	}
	if r, ok := req.(interface{ GetTargetPath() string }); ok {
		c.Target = r.GetTargetPath()
	}
	return c
}

// meet does the work of a call as the fault has it.
func (l *lines) meet(ctx context.Context, record callRecord, f *Fault, c Call, work func(context.Context) (any, error)) (any, error) {
	if f != nil && (f.Effect == EffectLate || f.Effect == EffectDisorder) {
		return l.carryOut(ctx, f, c, work)
	}
	leave, err := l.turn(ctx, c)
	if err != nil {
		return nil, err
	}
	defer leave()
	if f == nil {
		return work(ctx)
	}
	if err := pause(ctx, f.Delay); err != nil {
		return nil, err
	}
	message := f.Message
	if message == "" {
		message = fmt.Sprintf("fault %s of the lab", f.ID)
	}
	switch f.Effect {
	case EffectError:
		return nil, faultStatus(f, message)
	case EffectHang:
		if err := record.waitCleared(ctx, f.ID); ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		} else if err != nil {
			return nil, status.Errorf(codes.Unavailable, "wait for fault %s to be cleared: %v", f.ID, err)
		}
	case EffectLostReply:
		// The work must not end early because the caller timed out: its reply is lost, not its effect.
		_, err := work(context.WithoutCancel(ctx))
		slog.Info("Reply lost by a fault", "fault", f.ID, "method", c.Method, "volume", c.Volume, "node", c.Node, "err", err)
		if f.Code != "" {
			return nil, faultStatus(f, message)
		}
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return work(ctx)
}

// pause waits, or returns the status of a call whose caller abandoned it before.
func pause(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func faultStatus(f *Fault, message string) error {
	code, err := parseCode(f.Code)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return status.Error(code, message)
}

// nodeRecord takes a node's calls to the fabric. While the fabric is away calls are worked on without faults, and their
// records kept until it is back: a node must be able to unmount without its storage.
type nodeRecord struct {
	client *Client

	// mu guards what follows.
	mu   sync.Mutex
	kept []Call
}

const (
	// recordPatience bounds how long a call waits to be recorded.
	recordPatience = 10 * time.Second
	// flushPeriod is how often what is kept is sent again: a node may have no other call for long.
	flushPeriod = time.Second
)

// newNodeRecord makes a record that sends what it keeps, in the group, until ctx ends.
func newNodeRecord(ctx context.Context, group *errgroup.Group, client *Client) *nodeRecord {
	n := &nodeRecord{client: client}
	group.Go(func() error {
		again := time.NewTicker(flushPeriod)
		defer again.Stop()
		for {
			select {
			case <-again.C:
				n.flush(ctx)
			case <-ctx.Done():
				return nil
			}
		}
	})
	return n
}

func (n *nodeRecord) begin(ctx context.Context, c Call) (Call, *Fault, error) {
	n.flush(context.WithoutCancel(ctx))
	ctx, cancel := context.WithTimeout(ctx, recordPatience)
	defer cancel()
	var out begunCall
	if err := n.client.do(ctx, http.MethodPost, "/v1/calls/begin", c, &out); err != nil {
		slog.Warn("Call is not recorded at its begin", "method", c.Method, "err", err)
		return c, nil, nil
	}
	return out.Call, out.Fault, nil
}

func (n *nodeRecord) end(c Call) { n.flush(context.Background(), c) }

// flush sends what is kept and what has just ended, in order, and keeps what the fabric does not take. The caller sends its own: a flush
// beside it must not take it away, or the call is answered before it is sent.
func (n *nodeRecord) flush(ctx context.Context, ended ...Call) {
	n.mu.Lock()
	calls := append(n.kept, ended...)
	n.kept = nil
	n.mu.Unlock()
	for i, c := range calls {
		bounded, cancel := context.WithTimeout(ctx, recordPatience)
		err := n.client.do(bounded, http.MethodPost, "/v1/calls/end", c, nil)
		cancel()
		if err != nil {
			n.mu.Lock()
			n.kept = append(calls[i:], n.kept...)
			n.mu.Unlock()
			return
		}
	}
}

func (n *nodeRecord) waitCleared(ctx context.Context, fault string) error {
	return n.client.do(ctx, http.MethodGet, "/v1/faults/"+fault+"/cleared", nil, nil)
}
