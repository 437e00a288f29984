package nodeagent

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
)

// refusals are the codes with which a driver refuses a request before it acts. All others leave open what was done;
// AlreadyExists even reports that something exists. (Kubelet trusts Internal, Unknown and DataLoss as well, and leaves
// half-finished work behind.)
var refusals = []codes.Code{
	codes.InvalidArgument, codes.NotFound, codes.PermissionDenied,
	codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated,
}

// eachCode are the codes of gRPC but OK, by the name of a volume that meets it.
func eachCode() map[string]codes.Code {
	all := map[string]codes.Code{}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		all[strings.ToLower(code.String())] = code
	}
	return all
}

// callsOf are the calls for one volume; tries that follow each other count once.
func (w *world) callsOf(volume string) []string {
	var calls []string
	for _, call := range w.driver.Made() {
		if method, of, _ := strings.Cut(call, " "); of == volume {
			calls = append(calls, method)
		}
	}
	return slices.Compact(calls)
}

// TestMountFailsWithEachCode: stage or publish fails with each gRPC code. The pod gets an event, and then the driver
// recovers, or the pod is deleted: what may have been done is undone, and nothing else.
func TestMountFailsWithEachCode(t *testing.T) {
	tests := map[string]struct {
		method, call  string
		block         bool
		reason, event string
		refused, open []string // calls when the pod goes
	}{
		"stage": {
			"Stage", "NodeStageVolume", false, "FailedMount", "MountVolume.MountDevice",
			[]string{"Stage"}, []string{"Stage", "Unstage"},
		},
		"publish": {
			"Publish", "NodePublishVolume", false, "FailedMount", "MountVolume.SetUp",
			[]string{"Stage", "Publish", "Unstage"}, []string{"Stage", "Publish", "Unpublish", "Unstage"},
		},
		"stage of a block volume": {
			"Stage", "NodeStageVolume", true, "FailedMapVolume", "MapVolume.SetUpDevice",
			[]string{"Stage"}, []string{"Stage", "Unstage"},
		},
		"publish of a block volume": {
			"Publish", "NodePublishVolume", true, "FailedMapVolume", "MapVolume.MapPodDevice",
			[]string{"Stage", "Publish", "Unstage"}, []string{"Stage", "Publish", "Unpublish", "Unstage"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			f := newFailing(w, test.method, test.block)
			agent, _ := w.agent()
			for volume, code := range eachCode() {
				f.set(volume, code)
			}
			f.setPods(agent)
			for volume, code := range eachCode() {
				w.untilEvent(f.pods[volume], test.reason, fmt.Sprintf(`%s failed for volume "%s-%s" : `, test.event, w.name, volume),
					test.call+" of volume "+f.handles[volume], fmt.Sprintf("rpc error: code = %s desc = no luck", code))
			}
			// Half of them recover.
			for volume, code := range eachCode() {
				if code%2 == 0 {
					f.set(volume, codes.OK)
				}
			}
			agent.wakeAll() // no back-off is waited for
			for volume, code := range eachCode() {
				if code%2 == 0 {
					w.mounted(agent, f.pods[volume])
				}
			}
			for volume, code := range eachCode() {
				agent.RemovePod(f.pods[volume].UID)
				w.untilNotInUse(f.handles[volume])
				want := test.open
				switch {
				case code%2 == 0:
					want = []string{"Stage", "Publish", "Unpublish", "Unstage"}
				case slices.Contains(refusals, code):
					want = test.refused
				}
				if diff := cmp.Diff(want, w.callsOf(volume)); diff != "" {
					t.Errorf("%s: calls (-want +got):\n%s", code, diff)
				}
			}
			w.untilNothingIsLeft()
		})
	}
}

// TestAlreadyExistsIsNoRefusal: the volume is already staged or published at this path in an incompatible way (CSI
// spec). That is undone when the pod is deleted, and the volume is in use until then.
func TestAlreadyExistsIsNoRefusal(t *testing.T) {
	for method, want := range map[string][]string{
		"Stage": {"Stage", "Unstage"}, "Publish": {"Stage", "Publish", "Unpublish", "Unstage"},
	} {
		t.Run(method, func(t *testing.T) {
			w := newWorld(t)
			handle := w.volume("data")
			w.driver.Before = func(called, _ string, _ int) error {
				if called != method {
					return nil
				}
				return status.Error(codes.AlreadyExists, "it has other mount flags")
			}
			agent, _ := w.agent()
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			w.untilInUse(handle)
			w.attach(handle)
			w.untilEvent(pod, "FailedMount", "AlreadyExists desc = it has other mount flags")
			agent.RemovePod(pod.UID)
			w.untilNotInUse(handle)
			if diff := cmp.Diff(want, w.callsOf("data")); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}

// TestUnmountFailsWithEachCode: no code is taken for success. The volume stays in use, its pod gets an event, and the
// call is repeated.
func TestUnmountFailsWithEachCode(t *testing.T) {
	tests := map[string]struct {
		method, call string
		block        bool
		event        string
	}{
		"unpublish":                   {"Unpublish", "NodeUnpublishVolume", false, "UnmountVolume.TearDown"},
		"unstage":                     {"Unstage", "NodeUnstageVolume", false, "UnmountDevice"},
		"unpublish of a block volume": {"Unpublish", "NodeUnpublishVolume", true, "UnmapVolume.UnmapPodDevice"},
		"unstage of a block volume":   {"Unstage", "NodeUnstageVolume", true, "UnmapDevice.TearDownDevice"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			f := newFailing(w, test.method, test.block)
			agent, _ := w.agent()
			f.setPods(agent)
			for volume, code := range eachCode() {
				w.mounted(agent, f.pods[volume])
				f.set(volume, code)
				agent.RemovePod(f.pods[volume].UID)
			}
			for volume, code := range eachCode() {
				w.untilEvent(f.pods[volume], "FailedUnmount", fmt.Sprintf(`%s failed for volume "%s-%s" : `, test.event, w.name, volume),
					test.call+" of volume "+f.handles[volume], fmt.Sprintf("rpc error: code = %s desc = no luck", code), "stays in use on node "+w.name)
			}
			inUse := w.node().Status.VolumesInUse
			for volume, code := range eachCode() {
				if !slices.Contains(inUse, w.unique(f.handles[volume])) {
					t.Errorf("S7: %s and not in use", code)
				}
				f.set(volume, codes.OK)
			}
			agent.wakeAll() // no back-off is waited for
			for volume, code := range eachCode() {
				w.untilNotInUse(f.handles[volume])
				if diff := cmp.Diff([]string{"Stage", "Publish", "Unpublish", "Unstage"}, w.callsOf(volume)); diff != "" {
					t.Errorf("%s: calls (-want +got):\n%s", code, diff)
				}
			}
			w.untilNothingIsLeft()
		})
	}
}

// TestEachCodeOfTheCapabilities: an error of NodeGetCapabilities is never final, and no other call is made before it
// succeeds.
func TestEachCodeOfTheCapabilities(t *testing.T) {
	w := newWorld(t, noAttach)
	var mu sync.Mutex
	code := codes.OK
	answer := func(with codes.Code) {
		mu.Lock()
		defer mu.Unlock()
		code = with
	}
	w.driver.Intercept(func(call string, _ any, do func() (any, error)) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		if call == "NodeGetCapabilities" && code != codes.OK {
			return nil, status.Error(code, "no luck")
		}
		return do()
	})
	agent, _ := w.agent()
	pods := map[string]*corev1.Pod{}
	for volume, code := range eachCode() {
		w.volume(volume)
		pods[volume] = w.pod("p-"+volume, volume)
		answer(code)
		agent.SetPod(pods[volume])
		w.untilEvent(pods[volume], "FailedMount", `MountVolume.MountDevice failed for volume "`+w.name+"-"+volume+`" : `,
			fmt.Sprintf("NodeGetCapabilities: rpc error: code = %s desc = no luck", code))
		if code%2 == 0 { // gone before the driver answers
			agent.RemovePod(pods[volume].UID)
			w.unmounted(agent, pods[volume])
		}
	}
	if calls := w.driver.Made(); len(calls) > 0 {
		t.Errorf("called before it was known what the driver can do: %v", calls)
	}
	answer(codes.OK)
	for volume, code := range eachCode() {
		if code%2 != 0 {
			w.mounted(agent, pods[volume])
		}
	}
}

// TestFailingCapabilitiesDoNotForgetPublish: a publish gets no answer, then the driver does not answer
// NodeGetCapabilities, then the pod is deleted. (Kubelet forgets the publish.)
func TestFailingCapabilitiesDoNotForgetPublish(t *testing.T) {
	w := newWorld(t)
	handle := w.volume("data")
	var mu sync.Mutex
	published := false
	w.driver.Intercept(func(call string, _ any, do func() (any, error)) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case call == "NodePublishVolume":
			published = true
			_, _ = do()
			return nil, status.Error(codes.DeadlineExceeded, "no answer in time")
		case call == "NodeGetCapabilities" && published:
			return nil, status.Error(codes.Unimplemented, "not now")
		default:
			return do()
		}
	})
	agent, _ := w.agent()
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilInUse(handle)
	w.attach(handle)
	w.untilEvent(pod, "MountVolume.SetUp failed", "DeadlineExceeded")
	w.driver.Stop()
	w.driver.Start()
	w.untilEvent(pod, "NodeGetCapabilities", "Unimplemented")
	agent.RemovePod(pod.UID)
	w.untilNotInUse(handle)
	if diff := cmp.Diff([]string{"Stage", "Publish", "Unpublish", "Unstage"}, w.callsOf("data")); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// failing is a driver with one call that fails for some volumes, one volume for each code.
type failing struct {
	w       *world
	pods    map[string]*corev1.Pod
	handles map[string]string

	mu    sync.Mutex
	codes map[string]codes.Code // by handle; under mu
}

func newFailing(w *world, method string, block bool) *failing {
	w.Helper()
	f := &failing{w: w, pods: map[string]*corev1.Pod{}, handles: map[string]string{}, codes: map[string]codes.Code{}}
	for volume := range eachCode() {
		f.handles[volume] = w.volume(volume, func(pv *corev1.PersistentVolume) {
			if block {
				pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
			}
		})
		f.pods[volume] = w.podWith("p-"+volume, func(p *corev1.Pod) {
			if block {
				asDevice(p)
			}
		}, volume)
	}
	w.driver.Before = func(called, handle string, _ int) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if code := f.codes[handle]; called == method && code != codes.OK {
			return status.Error(code, "no luck")
		}
		return nil
	}
	return f
}

// setPods gives the agent all pods, and attaches their volumes.
func (f *failing) setPods(agent *Agent) {
	f.w.Helper()
	for _, pod := range f.pods {
		agent.SetPod(pod)
	}
	for _, handle := range f.handles {
		f.w.untilInUse(handle)
		f.w.attach(handle)
	}
}

func (f *failing) set(volume string, code codes.Code) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.codes[f.handles[volume]] = code
}
