package nodeagent

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/nodeagent/plugins"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

// TestDriverHangs: a call for one volume gets no answer. Other volumes of the same driver continue. After the deadline
// the pod gets an event and the call is repeated. When the pod is deleted, what the unanswered call may have done is
// undone, although that call still hangs.
func TestDriverHangs(t *testing.T) {
	tests := map[string]struct {
		method, event string
		want          []string
	}{
		"at stage":   {"Stage", "MountVolume.MountDevice failed", []string{"Stage", "Unstage"}},
		"at publish": {"Publish", "MountVolume.SetUp failed", []string{"Stage", "Publish", "Unpublish", "Unstage"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			hung, free := w.volume("hung"), w.volume("free")
			release := make(chan struct{})
			defer close(release)
			w.driver.Before = func(method, volume string, _ int) error {
				if volume == hung && method == test.method {
					<-release
				}
				return nil
			}
			agent, _ := w.agent(func(c *Config) { c.RPCTimeout = time.Second })
			slow, fast := w.pod("slow", "hung"), w.pod("fast", "free")
			agent.SetPod(slow)
			w.untilInUse(hung)
			w.attach(hung)
			wait.Until(w, "the call hangs", func() bool { return slices.Contains(w.driver.Made(), test.method+" hung") })
			w.bringUp(agent, fast, free)
			w.untilEvent(slow, "FailedMount", test.event, "DeadlineExceeded")
			agent.RemovePod(slow.UID)
			w.untilNotInUse(hung)
			if diff := cmp.Diff(test.want, w.callsOf("hung")); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}

// TestUnmountHangs: the volume stays in use, its pod gets an event, and other volumes are unmounted.
func TestUnmountHangs(t *testing.T) {
	for method, event := range map[string]string{"Unpublish": "UnmountVolume.TearDown failed", "Unstage": "UnmountDevice failed"} {
		t.Run(method, func(t *testing.T) {
			w := newWorld(t)
			hung, free := w.volume("hung"), w.volume("free")
			agent, _ := w.agent(func(c *Config) { c.RPCTimeout = time.Second })
			slow, fast := w.pod("slow", "hung"), w.pod("fast", "free")
			w.bringUp(agent, slow, hung)
			w.bringUp(agent, fast, free)
			release := make(chan struct{})
			w.driver.SetBefore(func(called, volume string, _ int) error {
				if volume == hung && called == method {
					<-release
				}
				return nil
			})
			agent.RemovePod(slow.UID)
			wait.Until(w, "the call hangs", func() bool { return slices.Contains(w.driver.Made(), method+" hung") })
			agent.RemovePod(fast.UID)
			w.untilNotInUse(free)
			w.untilEvent(slow, "FailedUnmount", event, "DeadlineExceeded")
			if !slices.Contains(w.node().Status.VolumesInUse, w.unique(hung)) {
				t.Error("S7: not unstaged, and not in use")
			}
			close(release)
			w.untilNotInUse(hung)
		})
	}
}

// TestHangingDriverDoesNotBlockShutdown, and the next agent continues where this one stopped.
func TestHangingDriverDoesNotBlockShutdown(t *testing.T) {
	for _, call := range []string{"NodeGetInfo", "NodeGetCapabilities", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"} {
		t.Run(call, func(t *testing.T) {
			w := newWorld(t, noAttach)
			w.volume("data")
			reached, release := make(chan struct{}, 100), make(chan struct{})
			w.driver.Intercept(func(called string, _ any, do func() (any, error)) (any, error) {
				if called == call {
					reached <- struct{}{}
					<-release
				}
				return do()
			})
			agent, stop := w.agent() // with the usual deadline of two minutes
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			if strings.HasPrefix(call, "NodeUn") {
				w.mounted(agent, pod)
				agent.RemovePod(pod.UID)
			}
			wait.For(t, "the call to arrive", reached)
			stopped := make(chan struct{})
			go func() { stop(); close(stopped) }()
			wait.For(t, "the agent to stop while a call hangs", stopped)
			close(release)
			w.driver.Intercept(nil)
			agent, _ = w.agent()
			agent.SetPod(pod)
			agent.PodsSynced()
			w.mounted(agent, pod)
			agent.RemovePod(pod.UID)
			w.unmounted(agent, pod)
			wait.Until(w, "unstaged", func() bool { return len(w.leftovers()) == 0 })
		})
	}
}

// TestHangingRegistrationBlocksNoOther driver.
func TestHangingRegistrationBlocksNoOther(t *testing.T) {
	w := newWorld(t)
	silent := w.startDriver("silent.test.belay.dev")
	release := make(chan struct{})
	reached := make(chan struct{}, 100)
	silent.Intercept(func(string, any, func() (any, error)) (any, error) {
		reached <- struct{}{}
		<-release
		return nil, context.Canceled
	})
	defer close(release)
	w.driver.Stop()
	w.agent()
	wait.For(t, "the call to arrive", reached)
	w.driver.Start()
	if status := w.driver.Registered(); !status.PluginRegistered {
		t.Errorf("not registered: %s", status.Error)
	}
}

// TestDriverDiesDuringCall and comes back on its socket, or on another one: the call counts as unanswered, and is
// repeated to the driver that came back.
func TestDriverDiesDuringCall(t *testing.T) {
	tests := map[string]struct {
		call   string
		moves  bool // it comes back on another socket
		undone bool // the pod is gone meanwhile
		event  string
	}{
		"stage":                                 {call: "NodeStageVolume", event: "FailedMount: MountVolume.MountDevice"},
		"stage, and moves":                      {call: "NodeStageVolume", moves: true, event: "FailedMount: MountVolume.MountDevice"},
		"stage, and moves, and the pod is gone": {call: "NodeStageVolume", moves: true, undone: true, event: "FailedMount: MountVolume.MountDevice"},
		"publish":                               {call: "NodePublishVolume", event: "FailedMount: MountVolume.SetUp"},
		"publish, and moves, and the pod is gone": {call: "NodePublishVolume", moves: true, undone: true, event: "FailedMount: MountVolume.SetUp"},
		"unpublish":            {call: "NodeUnpublishVolume", event: "FailedUnmount: UnmountVolume.TearDown"},
		"unpublish, and moves": {call: "NodeUnpublishVolume", moves: true, event: "FailedUnmount: UnmountVolume.TearDown"},
		"unstage":              {call: "NodeUnstageVolume", event: "FailedUnmount: UnmountDevice"},
		"unstage, and moves":   {call: "NodeUnstageVolume", moves: true, event: "FailedUnmount: UnmountDevice"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			handle := w.volume("data")
			agent, _ := w.agent()
			pod := w.pod("p", "data")
			back := strings.HasPrefix(test.call, "NodeUn")
			if back {
				w.bringUp(agent, pod, handle)
			}
			reached, release := make(chan struct{}), make(chan struct{})
			w.driver.Intercept(func(called string, _ any, do func() (any, error)) (any, error) {
				if called != test.call {
					return do()
				}
				reply, err := do() // it has done it, and dies before it says so
				reached <- struct{}{}
				<-release
				return reply, err
			})
			if back {
				agent.RemovePod(pod.UID)
			} else {
				agent.SetPod(pod)
				w.untilInUse(handle)
				w.attach(handle)
			}
			wait.For(t, "the call to arrive", reached)
			if !slices.Contains(w.node().Status.VolumesInUse, w.unique(handle)) {
				t.Error("S7: in the middle of a call, and not in use")
			}
			w.driver.Intercept(nil)
			w.driver.Stop() // the connection breaks, the socket's file goes
			close(release)
			if test.undone {
				agent.RemovePod(pod.UID)
			}
			if test.moves {
				w.driver.Address = filepath.Join(w.root, plugins.RegistryDir, "another")
			}
			w.driver.Start()
			w.untilEvent(pod, test.event+` failed for volume "`+w.name+`-data" : `, test.call+" of volume "+handle, "rpc error: code = ")
			if !back && !test.undone {
				w.mounted(agent, pod)
				agent.RemovePod(pod.UID)
			}
			w.unmounted(agent, pod)
			w.untilNotInUse(handle)
			if points, _ := w.driver.MountPoints(); len(points) > 0 {
				t.Errorf("still mounted: %v", points)
			}
			w.untilNothingIsLeft()
		})
	}
}

// TestDriverReturnsWithOtherCapabilities: what was staged is unstaged, and what was not is not; the calls for each pod
// follow the capabilities that the driver reports when they are made.
func TestDriverReturnsWithOtherCapabilities(t *testing.T) {
	const (
		stage = csispec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
		group = csispec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP
	)
	type capabilities = []csispec.NodeServiceCapability_RPC_Type
	tests := map[string]struct {
		before, after capabilities
		second        bool // another pod comes before the first one goes
		want          []string
		staging       bool // the last publish names a staging path
		mountGroup    string
	}{
		"stage is lost": {
			capabilities{stage}, nil, false, []string{"Stage", "Publish", "Unpublish", "Unstage"}, true, "",
		},
		"stage is gained": {
			nil, capabilities{stage}, false, []string{"Publish", "Unpublish"}, false, "",
		},
		"stage is lost, and a second pod comes": {
			capabilities{stage}, nil, true, []string{"Stage", "Publish", "Unpublish", "Unstage"}, false, "",
		},
		"stage is gained, and a second pod comes": {
			nil, capabilities{stage}, true, []string{"Publish", "Stage", "Publish", "Unpublish", "Unstage"}, true, "",
		},
		"group is gained, and a second pod comes": {
			capabilities{stage}, capabilities{stage, group}, true, []string{"Stage", "Publish", "Unpublish", "Unstage"}, true, "3000",
		},
		"group is lost, and a second pod comes": {
			capabilities{stage, group}, capabilities{stage}, true, []string{"Stage", "Publish", "Unpublish", "Unstage"}, true, "",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			// Without a file system type no agent changes the group of files by itself.
			handle := w.volume("data", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.FSType = "" })
			w.driver.NodeServices = test.before
			agent, _ := w.agent()
			w.driver.Registered()
			grouped := func(p *corev1.Pod) {
				p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(3000))}
			}
			first := w.podWith("first", grouped, "data")
			w.bringUp(agent, first, handle)
			w.driver.Stop()
			w.driver.Lock()
			w.driver.NodeServices = test.after
			w.driver.Unlock()
			w.driver.Start()
			w.driver.Registered()
			second := w.podWith("second", grouped, "data")
			if test.second {
				agent.SetPod(second)
				w.mounted(agent, second)
			}
			published := csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver)
			if got := published.StagingTargetPath != ""; got != test.staging {
				t.Errorf("the last publish named the staging path %q", published.StagingTargetPath)
			}
			if got := published.VolumeCapability.GetMount().GetVolumeMountGroup(); got != test.mountGroup {
				t.Errorf("the last publish named the group %q, want %q", got, test.mountGroup)
			}
			agent.RemovePod(first.UID)
			agent.RemovePod(second.UID)
			w.untilNotInUse(handle)
			if diff := cmp.Diff(test.want, w.callsOf("data")); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			w.untilNothingIsLeft()
		})
	}
}

// TestUnpublishIgnoresPublishBackOff: a publish fails repeatedly, the last time after its pod was removed. The
// unpublish is sent immediately.
func TestUnpublishIgnoresPublishBackOff(t *testing.T) {
	w := newWorld(t)
	data := w.volume("data")
	const fails = 3
	last, removed := make(chan struct{}), make(chan struct{})
	failures := make(chan int, 1)
	var agent *Agent
	w.driver.Before = func(method, _ string, attempt int) error {
		switch {
		case method == "Publish" && attempt == fails:
			close(last)
			<-removed
			fallthrough
		case method == "Publish":
			return status.Error(codes.Unavailable, "no time")
		case method == "Unpublish" && attempt == 1:
			agent.volumes.mu.Lock()
			defer agent.volumes.mu.Unlock()
			for _, v := range agent.volumes.all {
				failures <- v.pods[0].Failure.Count
			}
		}
		return nil
	}
	agent, _ = w.agent()
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilInUse(data)
	w.attach(data)
	wait.For(t, "the last attempt", last)
	agent.RemovePod(pod.UID)
	close(removed)
	w.untilNotInUse(data)
	if got := <-failures; got != 0 {
		t.Errorf("the unpublish was sent after a back-off of %d failures", got)
	}
}
