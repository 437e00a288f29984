package labdisk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// serve puts the fabric's HTTP interface and one driver's controller on sockets.
func (b *bench) serve() (*Client, csi.ControllerClient) {
	b.t.Helper()
	client, socket := b.serveSocket()
	return client, csi.NewControllerClient(dialCSI(b.t, socket))
}

func (b *bench) serveSocket() (client *Client, socket string) {
	b.t.Helper()
	dir := shortDir(b.t)
	lis, err := net.Listen("unix", filepath.Join(dir, "f.sock"))
	if err != nil {
		b.t.Fatal(err)
	}
	web := &http.Server{Handler: b.control(), ReadHeaderTimeout: time.Second}
	go func() { _ = web.Serve(lis) }()
	b.t.Cleanup(func() { _ = web.Close() })
	socket = filepath.Join(dir, "c.sock")
	rpc, err := net.Listen("unix", socket)
	if err != nil {
		b.t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(interceptor(b.fabric, DriverDisk, "")))
	csi.RegisterControllerServer(server, &controller{driver: DriverDisk, fabric: b.fabric})
	csi.RegisterIdentityServer(server, Identity{Driver: DriverDisk})
	go func() { _ = server.Serve(rpc) }()
	b.t.Cleanup(server.Stop)
	client, err = Dial(filepath.Join(dir, "f.sock"))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(client.Close)
	return client, socket
}

// A call that is late is carried out after its caller has abandoned it, before a later one of the volume and node is answered; or, from a
// driver that breaks its promise, after it.
func TestLateCalls(t *testing.T) {
	for effect, overtakes := range map[string]bool{EffectLate: false, EffectDisorder: true} {
		t.Run(effect, func(t *testing.T) {
			untilRight(t, func() (string, bool) { return lateCall(t, effect, overtakes) })
		})
	}
}

// lateCall abandons a publish that is late, unpublishes, and says what is wrong.
func lateCall(t *testing.T, effect string, overtakes bool) (wrong string, forGood bool) {
	t.Helper()
	const delay = 2 * time.Second
	b := newBench(t, false)
	v := b.newDisk(DriverDisk, "pvc-1")
	client, controller := b.serve()
	if _, err := client.SetFault(t.Context(), Fault{Effect: effect, Delay: delay, Method: "ControllerPublishVolume", Count: 1}); err != nil {
		t.Fatal(err)
	}
	impatient, abandon := context.WithCancel(t.Context())
	defer abandon()
	go func() { // as soon as the driver has it
		for len(b.record.callsSince(time.Time{})) == 0 && impatient.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond) // and has it in order
		abandon()
	}()
	began := time.Now()
	_, err := controller.ControllerPublishVolume(impatient, &csi.ControllerPublishVolumeRequest{VolumeId: v, NodeId: "n1", VolumeCapability: mountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "")})
	if status.Code(err) != codes.Canceled {
		return fmt.Sprintf("publish: %v", err), err != nil
	}
	if _, err := controller.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: v, NodeId: "n1"}); err != nil {
		t.Fatalf("unpublish: %v", err)
	}
	if overtakes {
		if took := time.Since(began); took >= delay {
			return fmt.Sprintf("the unpublish was answered after %v and may not have overtaken the publish", took), false
		}
		eventually(t, "attachment after the unpublish", func() error {
			if len(b.attachments()) == 0 {
				return errors.New("there is none")
			}
			return nil
		})
		return "", false
	}
	time.Sleep(delay + time.Second)
	if now := b.attachments(); len(now) > 0 {
		return fmt.Sprintf("attachments after the unpublish: %v", now), true
	}
	return "", false
}

func TestFaults(t *testing.T) {
	type outcome struct {
		Code     codes.Code
		Attached bool // afterwards
	}
	for name, test := range map[string]struct {
		fault Fault
		// want is what call after call of ControllerPublishVolume comes to.
		want []outcome
	}{
		"an error, once":                          {Fault{Effect: EffectError, Code: "UNAVAILABLE", Count: 1}, []outcome{{codes.Unavailable, false}, {codes.OK, true}}},
		"an error of another method":              {Fault{Effect: EffectError, Code: "Unavailable", Method: "CreateVolume"}, []outcome{{codes.OK, true}}},
		"an error of another node":                {Fault{Effect: EffectError, Code: "Unavailable", Node: "n2"}, []outcome{{codes.OK, true}}},
		"an error of the volume, by its name":     {Fault{Effect: EffectError, Code: "Aborted", Volume: "pvc-1"}, []outcome{{codes.Aborted, false}, {codes.Aborted, false}}},
		"an error of another driver":              {Fault{Effect: EffectError, Code: "Aborted", Driver: DriverShare}, []outcome{{codes.OK, true}}},
		"a lost reply with a code":                {Fault{Effect: EffectLostReply, Code: "Unavailable", Count: 1}, []outcome{{codes.Unavailable, true}, {codes.OK, true}}},
		"a lost reply":                            {Fault{Effect: EffectLostReply, Count: 1}, []outcome{{codes.Canceled, true}, {codes.OK, true}}},
		"a hang until the caller abandons it":     {Fault{Effect: EffectHang, Count: 1}, []outcome{{codes.Canceled, false}, {codes.OK, true}}},
		"a delay":                                 {Fault{Effect: EffectDelay, Delay: time.Millisecond}, []outcome{{codes.OK, true}}},
		"a delay longer than the caller's wait":   {Fault{Effect: EffectDelay, Delay: time.Hour}, []outcome{{codes.Canceled, false}}},
		"a limit of none":                         {Fault{Effect: EffectLimit, Limit: 0, Node: "n1"}, []outcome{{codes.ResourceExhausted, false}}},
		"a limit that the volume itself is under": {Fault{Effect: EffectLimit, Limit: 1, Node: "n1"}, []outcome{{codes.OK, true}, {codes.OK, true}}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, false)
			v := b.newDisk(DriverDisk, "pvc-1")
			client, controller := b.serve()
			id, err := client.SetFault(t.Context(), test.fault)
			if err != nil {
				t.Fatal(err)
			}
			var got []outcome
			for i, want := range test.want {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				if want.Code == codes.Canceled {
					go func() { // once the driver has the call, and has done what it does of it
						for ctx.Err() == nil && (len(b.record.callsSince(time.Time{})) <= i || (len(b.attachments()) == 1) != want.Attached) {
							time.Sleep(time.Millisecond)
						}
						time.Sleep(500 * time.Millisecond) // an answer would have come
						cancel()
					}()
				}
				_, err := controller.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: v, NodeId: "n1",
					VolumeCapability: mountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "")})
				cancel()
				got = append(got, outcome{status.Code(err), len(b.attachments()) == 1})
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("outcomes (-want +got):\n%s", diff)
			}
			calls, err := client.Calls(t.Context(), time.Time{})
			if err != nil || len(calls) != len(test.want) || calls[0].Volume != v || calls[0].Node != "n1" {
				t.Errorf("record of calls: %+v, %v", calls, err)
			}
			if hit := got[0] != (outcome{codes.OK, true}); hit && calls[0].Fault != id {
				t.Errorf("the first call met fault %q, want %q", calls[0].Fault, id)
			}
		})
	}
}

func TestClearingAnUnknownFaultFails(t *testing.T) {
	client, _ := newBench(t, false).serve()
	id, err := client.SetFault(t.Context(), Fault{Effect: EffectHang})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.ClearFaults(t.Context(), id, "99"); err == nil || !strings.Contains(err.Error(), `clear fault "99": no such fault`) {
		t.Errorf("got %v, want an error that names the fault", err)
	}
	if left, err := client.Faults(t.Context()); err != nil || len(left) != 1 {
		t.Errorf("left are %v (%v), want the one that was set", left, err)
	}
	if err := client.ClearFaults(t.Context(), id); err != nil {
		t.Error(err)
	}
}

func TestClearedHangContinues(t *testing.T) {
	b := newBench(t, false)
	v := b.newDisk(DriverDisk, "pvc-1")
	client, controller := b.serve()
	if _, err := client.SetFault(t.Context(), Fault{Effect: EffectHang}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := controller.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: v, NodeId: "n1",
			VolumeCapability: mountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "")})
		done <- err
	}()
	eventually(t, "call in flight", func() error {
		calls, err := client.Calls(t.Context(), time.Time{})
		if err == nil && (len(calls) == 0 || !calls[0].End.IsZero()) {
			err = fmt.Errorf("calls %+v", calls)
		}
		return err
	})
	if err := client.ClearFaults(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the call that hung: %v", err)
	}
	attachments, err := client.Attachments(t.Context())
	if err != nil || len(attachments) != 1 || attachments[0].Node != "n1" || attachments[0].Name != "pvc-1" {
		t.Errorf("attachments %+v, %v", attachments, err)
	}
}

func TestFaultsAreChecked(t *testing.T) {
	for name, f := range map[string]Fault{
		"no effect":            {},
		"an unknown effect":    {Effect: "explode"},
		"a delay without time": {Effect: EffectDelay},
		"an error of no code":  {Effect: EffectError},
		"an unknown code":      {Effect: EffectError, Code: "Broken"},
		"an error that is OK":  {Effect: EffectError, Code: "OK"},
		"a lost OK":            {Effect: EffectLostReply, Code: "OK"},
		"an unknown method":    {Effect: EffectHang, Method: "ControllerPublish"},
		"an unknown driver":    {Effect: EffectHang, Driver: "ebs.csi.aws.com"},
		"a negative limit":     {Effect: EffectLimit, Limit: -1},
		"a negative delay":     {Effect: EffectHang, Delay: -1},
		"a negative count":     {Effect: EffectHang, Count: -1},
	} {
		if err := f.check(); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// The record says which calls of the controller about a volume were sent while the caller of another one still waited.
func TestRecordShowsCallsBesideOthers(t *testing.T) {
	b := newBench(t, false)
	v, other := b.newDisk(DriverDisk, "pvc-1"), b.newDisk(DriverDisk, "pvc-2")
	client, controller := b.serve()
	if _, err := client.SetFault(t.Context(), Fault{Effect: EffectHang, Method: "ControllerPublishVolume"}); err != nil {
		t.Fatal(err)
	}
	ctx, abandon := context.WithCancel(t.Context())
	abandoned := make(chan error, 1)
	go func() {
		_, err := controller.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: v, NodeId: "n1",
			VolumeCapability: mountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "")})
		abandoned <- err
	}()
	eventually(t, "call in flight", func() error {
		if calls := b.record.callsSince(time.Time{}); len(calls) == 0 {
			return errors.New("no call")
		}
		return nil
	})
	unpublish := func(volume, node string) {
		t.Helper()
		if _, err := controller.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: volume, NodeId: node}); err != nil {
			t.Fatal(err)
		}
	}
	unpublish(v, "n2")
	unpublish(other, "n2")
	abandon()
	<-abandoned
	unpublish(v, "n2")
	unpublish(v, "n2")
	var beside []uint64
	for _, c := range b.record.callsSince(time.Time{}) {
		beside = append(beside, c.Beside)
	}
	if diff := cmp.Diff([]uint64{0, 1, 0, 0, 0}, beside); diff != "" {
		t.Errorf("calls beside others (-want +got):\n%s", diff)
	}
}

// What a fabric that was away has missed reaches it when it is back, though the node has no other call.
func TestEndReachesFabricThatWasAway(t *testing.T) {
	b := newBench(t, false)
	socket := filepath.Join(shortDir(t), "f.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var away atomic.Bool
	fabric := b.control()
	web := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			http.Error(w, "away", http.StatusServiceUnavailable)
			return
		}
		fabric.ServeHTTP(w, r)
	})}
	go func() { _ = web.Serve(listener) }()
	defer func() { _ = web.Close() }()
	client := newClient(socket)
	defer client.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	record := newNodeRecord(ctx, group, client)
	call, _, err := record.begin(ctx, Call{Method: "NodeUnpublishVolume", Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	end := func() time.Time { return b.record.callsSince(time.Time{})[0].End }
	away.Store(true)
	call.End, call.Code = time.Now(), "OK"
	if record.end(call); !end().IsZero() {
		t.Error("a fabric that is away has taken the end")
	}
	away.Store(false)
	eventually(t, "end of the call", func() error {
		if end().IsZero() {
			return errors.New("it is in flight")
		}
		return nil
	})
	stop()
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}
