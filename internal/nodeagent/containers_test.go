package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"belay.dev/belay/internal/containers"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/testing/wait"
)

// mountForReal has the driver mount a file system of its own when it stages a volume, and bind it when it
// publishes it. atUnstage runs before each unstage.
func (w *world) mountForReal(atUnstage func(staging string)) {
	w.Helper()
	if os.Getuid() != 0 {
		w.Skip("needs root to mount")
	}
	unmount := func(path string) error {
		if err := unix.Unmount(path, 0); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
		return nil
	}
	var mounted []string
	var mu sync.Mutex
	mount := func(source, path, kind string, flags uintptr) error {
		if err := unix.Mount(source, path, kind, flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", path, err)
		}
		mu.Lock()
		defer mu.Unlock()
		mounted = append(mounted, path)
		return nil
	}
	w.Cleanup(func() {
		for _, path := range slices.Backward(mounted) {
			_ = unix.Unmount(path, unix.MNT_DETACH)
		}
	})
	w.driver.Intercept(func(_ string, request any, do func() (any, error)) (any, error) {
		switch r := request.(type) {
		case *csispec.NodeStageVolumeRequest:
			if err := mount("volume", r.StagingTargetPath, "tmpfs", 0); err != nil {
				return nil, err
			}
		case *csispec.NodeUnpublishVolumeRequest:
			if err := unmount(r.TargetPath); err != nil {
				return nil, err
			}
		case *csispec.NodeUnstageVolumeRequest:
			atUnstage(r.StagingTargetPath)
			if err := unmount(r.StagingTargetPath); err != nil {
				return nil, err
			}
		}
		reply, err := do()
		if r, ok := request.(*csispec.NodePublishVolumeRequest); ok && err == nil {
			err = mount(r.StagingTargetPath, r.TargetPath, "", unix.MS_BIND)
		}
		return reply, err
	})
}

// writer is a container that ignores SIGTERM: a process with mounts of its own that writes lines to its
// volume and counts them elsewhere.
type writer struct {
	*exec.Cmd
	count string
	ended atomic.Bool
}

func startWriter(t *testing.T, volume string) *writer {
	t.Helper()
	w := &writer{count: filepath.Join(t.TempDir(), "count")}
	// As a runtime does: the volume is bound to a place in the container's own root.
	w.Cmd = exec.Command("unshare", "-m", "--propagation", "private", "sh", "-ec",
		`mount -t tmpfs root "$2"; mkdir "$2/data"; mount --bind "$0" "$2/data"
		trap "" TERM; n=0; while :; do n=$((n+1)); echo $n >> "$2/data/log"; echo $n > "$1.new"; mv "$1.new" "$1"; sleep 0.01; done`, volume, w.count, t.TempDir())
	w.Stderr = os.Stderr
	must(t, w.Start())
	t.Cleanup(w.kill)
	w.wrote(t, 5)
	return w
}

// wrote waits until the writer has written so many more lines.
func (w *writer) wrote(t *testing.T, more int) {
	t.Helper()
	until := w.lines(t) + more
	wait.Until(t, fmt.Sprintf("the container has written line %d", until), func() bool { return w.lines(t) >= until })
}

func (w *writer) lines(t *testing.T) int {
	t.Helper()
	raw, err := os.ReadFile(w.count)
	if os.IsNotExist(err) {
		return 0
	}
	must(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	must(t, err)
	return n
}

// kill ends the container. ended is set first, because the kernel removes its mounts before Wait returns.
func (w *writer) kill() {
	w.ended.Store(true)
	_ = w.Process.Kill()
	_ = w.Wait()
}

// goneFromTheAPI are the ways in which a pod's object ends while its containers run.
var goneFromTheAPI = map[string]func(w *world, pod *corev1.Pod){
	"force-deleted": func(w *world, pod *corev1.Pod) {
		must(w, w.admin.CoreV1().Pods(w.name).Delete(w.ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	},
	"PodGC'ed": func(w *world, pod *corev1.Pod) {
		pod, err := w.admin.CoreV1().Pods(w.name).Get(w.ctx, pod.Name, metav1.GetOptions{})
		must(w, err)
		pod.Status.Phase = corev1.PodFailed
		_, err = w.admin.CoreV1().Pods(w.name).UpdateStatus(w.ctx, pod, metav1.UpdateOptions{})
		must(w, err)
		must(w, w.admin.CoreV1().Pods(w.name).Delete(w.ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	},
}

// criRuntime is a container runtime over CRI with one container, which runs as long as its process.
type criRuntime struct {
	cri.UnimplementedRuntimeServiceServer
	pod     string
	running atomic.Bool
	broken  atomic.Bool
}

func (r *criRuntime) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	if r.broken.Load() {
		return nil, status.Error(codes.Unavailable, "the runtime is being restarted")
	}
	return &cri.ListPodSandboxResponse{}, nil
}

func (r *criRuntime) ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	one := &cri.Container{
		Id: "c1", State: cri.ContainerState_CONTAINER_EXITED, Metadata: &cri.ContainerMetadata{Name: "writer"},
		Labels: map[string]string{"io.kubernetes.pod.uid": r.pod},
	}
	if r.running.Load() {
		one.State = cri.ContainerState_CONTAINER_RUNNING
	}
	return &cri.ListContainersResponse{Containers: []*cri.Container{one}}, nil
}

func (r *criRuntime) serve(w *world) Containers {
	w.Helper()
	socket := filepath.Join(w.root, "cri.sock")
	listener, err := net.Listen("unix", socket)
	must(w, err)
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, r)
	go server.Serve(listener)
	w.Cleanup(server.Stop)
	client, err := containers.NewCRI("unix://" + socket)
	must(w, err)
	return client
}

// TestRunningContainerKeepsItsVolumes: the runtime reports, over CRI or by the pod's lock, that a container still runs
// whose pod object is gone. Nothing is unmounted until it has ended, not even through a restart of the agent.
func TestRunningContainerKeepsItsVolumes(t *testing.T) {
	for name, goes := range goneFromTheAPI {
		for _, overCRI := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, CRI %v", name, overCRI), func(t *testing.T) {
				w := newWorld(t)
				var container *writer
				w.mountForReal(func(string) {
					if !container.ended.Load() {
						t.Error("unstaged under a container that runs")
					}
				})
				runtime := &criRuntime{}
				options := func(c *Config) {
					c.MountPoints, c.waitEventDelay = nil, 100*time.Millisecond
					if overCRI {
						c.Containers = runtime.serve(w)
					}
				}
				handle := w.volume("data")
				agent, stop := w.agent(options)
				following, stopFollowing := context.WithCancel(w.ctx)
				go agent.FollowPods(following)
				pod := w.pod("p", "data")
				w.untilInUse(handle)
				w.attach(handle)
				agent.SetPod(pod)
				runtime.pod = string(pod.UID)
				runtime.running.Store(true)
				path := w.mounted(agent, pod)[0].Path
				lock, err := os.OpenFile(filepath.Join(w.root, podLocksDir, string(pod.UID)+".lock"), os.O_RDWR|os.O_CREATE, 0o600)
				if !overCRI {
					must(t, err)
					must(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_SH))
				}
				container = startWriter(t, path)
				goes(w, pod)
				cause := map[bool]string{true: "container writer (c1, RUNNING)", false: string(pod.UID) + ".lock"}[overCRI]
				w.untilEvent(pod, "FailedUnmount", "UnmountVolume.TearDown for volume", "has been waiting since", "ContainersMayRun", cause)
				stopFollowing()
				stop()
				if overCRI {
					must(t, os.Remove(filepath.Join(w.root, "cri.sock")))
				}
				runtime.broken.Store(true)
				agent, _ = w.agent(options)
				go agent.FollowPods(w.ctx)
				wait.Until(w, "the new agent waits for the containers", func() bool {
					agent.volumes.mu.Lock()
					defer agent.volumes.mu.Unlock()
					v := agent.volumes.all[string(w.unique(handle))]
					return v != nil && v.waits[nodevolume.PublishKey{PodUID: string(pod.UID), SpecName: w.name + "-data"}].reason == nodevolume.ContainersMayRun
				})
				container.wrote(t, 20)
				if calls := w.callsOf("data"); !slices.Equal(calls, []string{"Stage", "Publish"}) || !slices.Contains(w.node().Status.VolumesInUse, w.unique(handle)) {
					t.Errorf("S7: a container runs; calls %v, in use %v", calls, w.node().Status.VolumesInUse)
				}
				container.kill()
				runtime.broken.Store(false)
				runtime.running.Store(false)
				_ = lock.Close()
				w.untilNotInUse(handle)
			})
		}
	}
}

// TestContainerOutlivesItsPod, with a runtime that gives the agent no sign: the pod's object goes while a container
// with mounts of its own keeps writing. The volume stays staged and in use until the container ends, and holds every
// line that was written.
func TestContainerOutlivesItsPod(t *testing.T) {
	for name, goes := range goneFromTheAPI {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			var container *writer
			w.mountForReal(func(staging string) {
				raw, err := os.ReadFile(filepath.Join(staging, "log"))
				got, said := strings.Count(string(raw), "\n"), container.lines(t) // it may have ended before it said so of the last one
				if err != nil || got < said || got > said+1 || !container.ended.Load() {
					t.Errorf("unstaged with %d lines (%v) of %d, the container has ended: %v", got, err, said, container.ended.Load())
				}
			})
			handle := w.volume("data")
			agent, _ := w.agent(func(c *Config) { c.MountPoints, c.waitEventDelay = nil, 100*time.Millisecond })
			go agent.FollowPods(w.ctx)
			pod := w.pod("p", "data")
			w.untilInUse(handle)
			w.attach(handle)
			agent.SetPod(pod)
			container = startWriter(t, w.mounted(agent, pod)[0].Path)
			goes(w, pod)
			w.untilEvent(pod, "FailedUnmount", "UnmountDevice for volume", "has been waiting since", "StillMountedElsewhere", fmt.Sprintf("process %d (sh)", container.Process.Pid))
			container.wrote(t, 20)
			if calls := w.callsOf("data"); slices.Contains(calls, "Unstage") || !slices.Contains(w.node().Status.VolumesInUse, w.unique(handle)) {
				t.Errorf("S7: a container writes; calls %v, in use %v", calls, w.node().Status.VolumesInUse)
			}
			container.kill()
			ended := time.Now()
			w.untilNotInUse(handle)
			t.Logf("cleared %v after the container's end", time.Since(ended))
		})
	}
}
