package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/timeline"
)

// Lab is what a scene needs of a lab.
type Lab interface {
	Kill(component string) error
	PowerOff(node string) error
	Fabric() *labdisk.Client
}

// Scene is one lab with a writer in it.
type Scene struct {
	Cluster *cluster.Cluster
	Client  kubernetes.Interface
	Record  *timeline.Recorder
	// Options with which the lab was started, defaults filled in by the caller.
	Options cluster.Options

	say    func(format string, args ...any)
	state  informers.SharedInformerFactory
	look   *looks
	acks   *follower
	cancel context.CancelFunc
}

// Open starts a lab and its recorder. say receives the progress; may be nil.
func Open(ctx context.Context, o cluster.Options, say func(format string, args ...any)) (*Scene, error) {
	if say == nil {
		say = func(string, ...any) {}
	}
	// client-go logs every watch that breaks; here they break on purpose.
	klog.SetLogger(logr.Discard())
	o.Progress = say
	lab, err := cluster.Up(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("start the lab: %w", err)
	}
	s := &Scene{Cluster: lab, Options: o, say: say}
	if err := s.watch(ctx); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

// watch starts all that looks at the lab; it ends with Close, not with ctx, so that
// a scene can be closed in order after ctx has ended.
func (s *Scene) watch(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.Cluster.RESTConfig())
	if err != nil {
		return fmt.Errorf("make the scene's client: %w", err)
	}
	s.Client = client
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	start, stop := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("the API server sent no first list within two minutes"))
	defer stop()
	stopEarly := context.AfterFunc(start, func() {
		if ctx.Err() != nil {
			cancel()
		}
	})
	defer stopEarly()
	if s.Record, err = timeline.Record(life, s.Cluster.RESTConfig()); err != nil {
		return err
	}
	if s.state, s.look, err = watchState(life, client); err != nil {
		return err
	}
	s.acks = follow(life, client, s.Record)
	return nil
}

// closeWithin bounds the end of a lab.
const closeWithin = 90 * time.Second

// Close takes the lab down, also after ctx has ended.
func (s *Scene) Close(ctx context.Context) error {
	if s.cancel != nil {
		s.cancel()
	}
	if s.acks != nil {
		s.acks.wait()
	}
	if s.state != nil {
		s.state.Shutdown()
	}
	if s.Record != nil {
		s.Record.Wait()
	}
	ctx, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), closeWithin,
		fmt.Errorf("the lab was not down after %v", closeWithin))
	defer stop()
	if err := s.Cluster.Down(ctx); err != nil {
		return fmt.Errorf("take the lab down: %w", err)
	}
	return nil
}

// Acknowledged is the highest record number that the writer confirmed in its log
// after fsync; 0 while there is none.
func (s *Scene) Acknowledged() int64 { return s.acks.highest() }

// Calls is the driver's record of the calls since a time.
func (s *Scene) Calls(ctx context.Context, since time.Time) ([]timeline.Call, error) {
	calls, err := s.Cluster.Fabric().Calls(ctx, since)
	if err != nil {
		return nil, fmt.Errorf("read the driver's record of calls: %w", err)
	}
	out := make([]timeline.Call, 0, len(calls))
	for _, c := range calls {
		out = append(out, timeline.Call{
			Method: c.Method, Volume: c.Volume, Node: c.Node, Start: c.Start, End: c.End,
			Failed: c.Code != "OK",
		})
	}
	return out, nil
}

// Timeline is the move that a query asks for, as far as it has happened.
func (s *Scene) Timeline(ctx context.Context, q timeline.Query) (*timeline.Move, error) {
	volume, err := s.Record.Volume(q.Volume.Claim)
	if err != nil {
		return nil, err
	}
	q.Volume = volume
	calls, err := s.Calls(ctx, q.Start)
	if err != nil {
		return nil, err
	}
	return timeline.NewMove(q, s.Record.Changes(), calls), nil
}
