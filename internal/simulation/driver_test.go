package simulation

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/csi"
)

// driverName is the name of the CSI driver that every seed has, otherDriver that of the one that some have as well.
const (
	driverName  = "disk.simulation"
	otherDriver = "other.simulation"
)

// driver is one CSI driver with its attacher.
type driver struct {
	name     string
	attacher *attacherProcess
	honesty  honesty
	hangs    hang
	upgrades bool // now and then to a version that gives its nodes IDs of another form, and knows no other
	form     int
	// okTooEarly is how long a publish that was abandoned may take effect although an unpublish was answered OK since; zero if it may not.
	okTooEarly time.Duration
}

// driverOf is the driver of a volume, nil for none.
func (s *sim) driverOf(d *disk) *driver {
	i := slices.IndexFunc(s.drivers, func(of *driver) bool { return of.name == d.key().Driver })
	if i < 0 {
		return nil
	}
	return s.drivers[i]
}

func (s *sim) pickDriver() *driver { return s.drivers[s.rng.IntN(len(s.drivers))] }

// storage is the CSI drivers, and the storage behind them: who may write now.
type storage struct {
	mu sync.Mutex
	// arrived are calls that the scheduler has not looked at.
	arrived []*call
	// running are the calls that the driver works on; the caller of one may have timed out.
	running []*call
	// late are publishes that may take effect, of a driver that answers an unpublish before.
	late []*call
	// published holds, by volume handle, the node IDs that the storage gives access to.
	published map[string]map[string]bool
	// asked holds, by volume and node ID, that a publish was sent and no unpublish was confirmed
	// to the caller since.
	asked map[[2]string]bool
	// nowhere holds, by volume, since when the storage has had it at no node, and no publish of it could take effect.
	nowhere map[string]time.Time
	// answered holds, by volume and node ID, the attachments that protected the last publish of which the caller has the answer.
	answered map[[2]string][]types.UID
	// misdirected are the volumes and node IDs that were published when another machine had the name of the node.
	misdirected map[[2]string]bool
	// queues: the driver refuses no call for what it is at work on, but carries out the calls in the order in which they came, also
	// those that their callers have abandoned.
	queues bool
	// disorderly: it carries them out in any order. No CSI driver may (docs/drivers.md).
	disorderly bool
	// perNode: the driver works on one call per node of a volume at a time, not one per volume: a call for one node that timed out
	// may be carried out among calls for another.
	perNode bool
}

// call is one ControllerPublishVolume or ControllerUnpublishVolume.
type call struct {
	by      *attacherProcess
	publish bool
	volume  string
	nodeID  string // as the storage calls the machine
	called  string // as the driver is asked to
	// gone: the caller has timed out.
	gone   atomic.Bool
	gaveUp time.Time // when it has
	// attached: it is a publish of a volume that is recorded as attached.
	attached bool
	// fate is what the seed chose.
	fate  fate
	reply chan error
	// protectedBy are the attachments that said of the publication when it arrived.
	protectedBy []types.UID
}

type fate int

const (
	works  fate = iota
	silent      // done, and the answer gets lost
	hangs       // done after the caller timed out
	fails       // not done
	stuck       // not done after the caller timed out
)

func (f fate) String() string { return [...]string{"works", "silent", "hangs", "fails", "stuck"}[f] }

func (f fate) acts() bool { return f <= hangs }

func (c *call) String() string {
	verb := "unpublish"
	if c.publish {
		verb = "publish"
	}
	return fmt.Sprintf("%s %s %s", verb, c.volume, c.called)
}

func newStorage() *storage {
	return &storage{published: map[string]map[string]bool{}, asked: map[[2]string]bool{}, nowhere: map[string]time.Time{}, answered: map[[2]string][]types.UID{}, misdirected: map[[2]string]bool{}}
}

type processKey struct{}

// realController is the real client of a driver whose calls end in the process that
// made them: nothing is sent anywhere.
var realController = sync.OnceValues(func() (*csi.Controller, error) {
	conn, err := grpc.NewClient("passthrough:///simulation", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(intercept))
	if err != nil {
		return nil, err
	}
	return csi.NewController(context.Background(), conn)
})

func intercept(ctx context.Context, _ string, request, reply any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
	switch in := request.(type) {
	case *csispec.GetPluginCapabilitiesRequest:
		set(reply, "Capabilities", &csispec.GetPluginCapabilitiesResponse{Capabilities: []*csispec.PluginCapability{{
			Type: &csispec.PluginCapability_Service_{Service: &csispec.PluginCapability_Service{
				Type: csispec.PluginCapability_Service_CONTROLLER_SERVICE,
			}},
		}}})
		return nil
	case *csispec.ControllerGetCapabilitiesRequest:
		var all []*csispec.ControllerServiceCapability
		for _, one := range []csispec.ControllerServiceCapability_RPC_Type{
			csispec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
			csispec.ControllerServiceCapability_RPC_LIST_VOLUMES,
			csispec.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
		} {
			all = append(all, &csispec.ControllerServiceCapability{
				Type: &csispec.ControllerServiceCapability_Rpc{Rpc: &csispec.ControllerServiceCapability_RPC{Type: one}},
			})
		}
		set(reply, "Capabilities", &csispec.ControllerGetCapabilitiesResponse{Capabilities: all})
		return nil
	case *csispec.ListVolumesRequest:
		p := ctx.Value(processKey{}).(*attacherProcess)
		if err := p.hangList(ctx); err != nil {
			return err
		}
		set(reply, "Entries", p.listVolumes())
		return nil
	case *csispec.ControllerPublishVolumeRequest:
		return ctx.Value(processKey{}).(*attacherProcess).call(ctx, &call{publish: true, volume: in.GetVolumeId(), nodeID: in.GetNodeId()})
	case *csispec.ControllerUnpublishVolumeRequest:
		return ctx.Value(processKey{}).(*attacherProcess).call(ctx, &call{volume: in.GetVolumeId(), nodeID: in.GetNodeId()})
	}
	return status.Errorf(codes.Unimplemented, "the simulation knows no %T", request)
}

// set fills in one field of a reply. Both are messages of the same type.
func set(reply any, field string, with any) {
	if hidden, ok := reply.(interface{ Reply() any }); ok { // from the connection's log
		reply = hidden.Reply()
	}
	reflect.ValueOf(reply).Elem().FieldByName(field).Set(reflect.ValueOf(with).Elem().FieldByName(field))
}

// call waits for what the scheduler makes of a call.
func (p *attacherProcess) call(ctx context.Context, c *call) error {
	c.by, c.reply = p, make(chan error, 1)
	c.called = c.nodeID
	c.nodeID, _ = withoutForm(c.called)
	c.volume = handleOf(volumeKey{Driver: p.driver.name, Handle: c.volume})
	s := p.sim.storage
	s.mu.Lock()
	if p.dead {
		s.mu.Unlock()
		return status.Error(codes.Unavailable, "the process has ended")
	}
	s.arrived = append(s.arrived, c)
	s.mu.Unlock()
	select {
	case err := <-c.reply:
		return err
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		c.gone.Store(true)
		c.gaveUp = time.Now()
		return status.FromContextError(ctx.Err()).Err()
	}
}

// receive looks at the calls that have arrived since the last step.
func (s *sim) receive() {
	s.putOff()
	s.storage.mu.Lock()
	arrived := s.storage.arrived
	s.storage.arrived = nil
	s.storage.mu.Unlock()
	slices.SortStableFunc(arrived, func(a, b *call) int { return cmp.Compare(a.String(), b.String()) })
	for _, c := range arrived {
		if s.storage.busy(c) || s.pending(c) {
			if c.by.driver.hangs == mute {
				s.say("driver: %s: no answer", c)
				continue
			}
			s.say("driver: %s: busy", c)
			c.reply <- status.Error(codes.Aborted, "an operation for this volume is pending")
			synctest.Wait() // those who called run one after another
			continue
		}
		if s.unknown(c) {
			s.say("driver: %s: no such node", c)
			c.reply <- status.Error(codes.NotFound, "no such node")
			synctest.Wait()
			continue
		}
		if s.refuses(c) {
			s.say("driver: %s: refused", c)
			c.reply <- status.Error(codes.FailedPrecondition, "the volume is attached to another node")
			synctest.Wait()
			continue
		}
		s.judgeCall(c)
		switch {
		case c.by.driver.hangs == mute:
			c.fate = [...]fate{hangs, stuck}[s.rng.IntN(2)]
		case c.by.driver.hangs == failing:
			c.fate = fails
		case !s.calm:
			c.fate = [...]fate{works, works, works, works, works, works, works, silent, hangs, fails, fails, stuck}[s.rng.IntN(12)]
		}
		s.drawLate(c)
		if c.publish {
			s.storage.asked[[2]string{c.volume, c.nodeID}] = true
			c.protectedBy = s.protecting(s.disk(c.volume), c.called)
			c.attached = s.recordedAsAttached(c)
		}
		s.say("driver: %s arrives", c)
		s.storage.running = append(s.storage.running, c)
	}
}

// busy: the driver works on a call for the volume, or for it and the node, whose caller has timed out, and refuses another one.
func (s *storage) busy(c *call) bool {
	return !s.queues && slices.ContainsFunc(s.running, func(r *call) bool { return r.gone.Load() && s.alike(r, c) })
}

// alike: the driver works on one of the two calls at a time.
func (s *storage) alike(a, b *call) bool {
	return a.volume == b.volume && (!s.perNode || a.nodeID == b.nodeID)
}

// behind: a call waits for one that came before it.
func (s *storage) behind(c *call) bool {
	first := slices.IndexFunc(s.running, func(r *call) bool { return s.alike(r, c) })
	return s.queues && !s.disorderly && s.running[first] != c
}

// gives: the volume is published to the driver's node, or a call that is underway will publish it.
func (s *storage) gives(volume, id string) bool {
	return s.published[volume][id] || slices.ContainsFunc(s.underway(), func(r *call) bool {
		return r.publish && r.volume == volume && r.nodeID == id && r.fate.acts()
	})
}

// land ends a call, unless it hangs.
func (s *sim) land(c *call) (did bool) {
	if c.by.driver.hangs == mute {
		return false
	}
	if (c.fate == hangs || c.fate == stuck) && !c.gone.Load() {
		if !s.calm {
			return false // until the caller times out
		}
		c.fate = works
	}
	st := s.storage
	if st.behind(c) {
		return false
	}
	st.running = slices.DeleteFunc(st.running, func(r *call) bool { return r == c })
	st.mu.Lock()
	if c.gone.Load() && c.fate.acts() && st.published[c.volume][c.nodeID] != c.publish {
		s.say("driver: %s: %s", c, lateEffect)
	}
	if c.fate.acts() {
		if st.published[c.volume] == nil {
			st.published[c.volume] = map[string]bool{}
		}
		if c.publish {
			st.published[c.volume][c.nodeID] = true
			st.late = slices.DeleteFunc(st.late, func(l *call) bool { return l.volume == c.volume && l.nodeID == c.nodeID }) // this is it
		} else {
			delete(st.published[c.volume], c.nodeID)
		}
	}
	st.mu.Unlock()
	s.say("driver: %s %s, caller gone %v", c, c.fate, c.gone.Load())
	if c.gone.Load() {
		return true
	}
	if c.fate != works {
		c.reply <- status.Error([]codes.Code{codes.Unavailable, codes.Internal, codes.ResourceExhausted, codes.InvalidArgument}[s.rng.IntN(4)], "the driver said no")
		return true
	}
	if at := [2]string{c.volume, c.nodeID}; c.publish {
		st.answered[[2]string{c.volume, c.called}] = c.protectedBy
	} else {
		delete(st.asked, at)
	}
	c.reply <- nil
	return true
}
