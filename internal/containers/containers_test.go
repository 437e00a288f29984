package containers

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// runtime is a container runtime of which a test says what runs.
type runtime struct {
	cri.UnimplementedRuntimeServiceServer
	sandboxes  []*cri.PodSandbox
	containers []*cri.Container
	failure    error
	hangs      bool
}

func (r *runtime) ListPodSandbox(ctx context.Context, request *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	if r.hangs {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	var items []*cri.PodSandbox
	for _, s := range r.sandboxes {
		if s.Labels[podUIDLabel] == request.GetFilter().GetLabelSelector()[podUIDLabel] {
			items = append(items, s)
		}
	}
	return &cri.ListPodSandboxResponse{Items: items}, nil
}

func (r *runtime) ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	return &cri.ListContainersResponse{Containers: r.containers}, r.failure
}

func (r *runtime) Version(ctx context.Context, _ *cri.VersionRequest) (*cri.VersionResponse, error) {
	if r.hangs {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return &cri.VersionResponse{}, r.failure
}

func (r *runtime) serve(t *testing.T) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "cri.sock")
	listener, err := net.Listen("unix", socket)
	must(t, err)
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, r)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return "unix://" + socket
}

func TestCRIEnded(t *testing.T) {
	label := map[string]string{podUIDLabel: "uid"}
	other := map[string]string{podUIDLabel: "other"}
	sandbox := func(state cri.PodSandboxState) []*cri.PodSandbox {
		return []*cri.PodSandbox{{Id: "s1", Labels: label, State: state}, {Id: "s2", Labels: other}}
	}
	container := func(state cri.ContainerState, labels map[string]string) *cri.Container {
		return &cri.Container{Id: "c1", PodSandboxId: "s1", Labels: labels, State: state, Metadata: &cri.ContainerMetadata{Name: "web"}}
	}
	elsewhere := &cri.Container{Id: "c2", PodSandboxId: "s2", Labels: other, State: cri.ContainerState_CONTAINER_RUNNING}
	tests := map[string]struct {
		runtime *runtime
		want    string // part of the error; empty for none
		unknown bool
	}{
		"nothing of the pod": {&runtime{containers: []*cri.Container{elsewhere}}, "", false},
		"all has ended": {&runtime{sandboxes: sandbox(cri.PodSandboxState_SANDBOX_NOTREADY), containers: []*cri.Container{
			container(cri.ContainerState_CONTAINER_EXITED, label), elsewhere,
		}}, "", false},
		"a container runs":      {&runtime{containers: []*cri.Container{container(cri.ContainerState_CONTAINER_RUNNING, label)}}, "container web (c1, RUNNING)", false},
		"a container is made":   {&runtime{containers: []*cri.Container{container(cri.ContainerState_CONTAINER_CREATED, label)}}, "container web (c1, CREATED)", false},
		"no container is known": {&runtime{containers: []*cri.Container{container(cri.ContainerState_CONTAINER_UNKNOWN, label)}}, "container web (c1, UNKNOWN)", false},
		"a container without its pod's label": {&runtime{sandboxes: sandbox(cri.PodSandboxState_SANDBOX_NOTREADY), containers: []*cri.Container{
			container(cri.ContainerState_CONTAINER_RUNNING, nil),
		}}, "container web", false},
		"a sandbox in which containers may begin": {&runtime{sandboxes: sandbox(cri.PodSandboxState_SANDBOX_READY)}, "sandbox s1", false},
		"it fails":           {&runtime{failure: status.Error(codes.Internal, "broken")}, "broken", true},
		"it does not answer": {&runtime{hangs: true}, "DeadlineExceeded", true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			client, err := NewCRI(tt.runtime.serve(t))
			must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if tt.runtime.hangs {
				ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
			}
			defer cancel()
			release, err := client.Ended(ctx, "uid")
			for status.Code(err) == codes.Unavailable && ctx.Err() == nil { // a busy machine had no time to connect
				release, err = client.Ended(ctx, "uid")
			}
			if tt.want == "" {
				must(t, err)
				release()
				return
			}
			_, runs := errors.AsType[*RunningError](err)
			if err == nil || !strings.Contains(err.Error(), tt.want) || runs == tt.unknown {
				t.Errorf("Ended: %v", err)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	for name, tt := range map[string]struct {
		endpoint string
		answers  bool
	}{
		"it answers":         {(&runtime{}).serve(t), true},
		"it fails":           {(&runtime{failure: status.Error(codes.Unavailable, "starting")}).serve(t), false},
		"it does not answer": {(&runtime{hangs: true}).serve(t), false},
		"it is not there":    {"unix://" + filepath.Join(t.TempDir(), "none.sock"), false},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := NewCRI(tt.endpoint)
			must(t, err)
			patience := time.Second
			if tt.answers {
				patience = time.Minute
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err = client.Check(ctx)
			for tt.answers && err != nil && ctx.Err() == nil { // a busy machine had no time to connect
				err = client.Check(ctx)
			}
			if (err == nil) != tt.answers {
				t.Errorf("Check: %v", err)
			}
		})
	}
}

func TestMissingRuntimeIsUnknown(t *testing.T) {
	client, err := NewCRI("unix://" + filepath.Join(t.TempDir(), "none.sock"))
	must(t, err)
	if _, err := client.Ended(t.Context(), "uid"); err == nil {
		t.Error("the pod has ended")
	}
}

func TestEndpoints(t *testing.T) {
	for endpoint, fits := range map[string]bool{
		"unix:///run/containerd/containerd.sock": true, "/run/crio/crio.sock": true, "": false, "run/x.sock": false, "tcp://127.0.0.1:1": false, "npipe:////./pipe/x": false,
	} {
		if _, err := NewCRI(endpoint); (err == nil) != fits {
			t.Errorf("endpoint %q: %v", endpoint, err)
		}
	}
}

func TestLocks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pods")
	locks, err := NewLocks(dir)
	must(t, err)
	release, err := locks.Ended(t.Context(), "never-ran")
	must(t, err)
	// While its volumes are taken down nothing of it begins.
	late, err := os.OpenFile(filepath.Join(dir, "never-ran.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	if err := syscall.Flock(int(late.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("a pod begins whose volumes are being taken down: %v", err)
	}
	release()
	must(t, syscall.Flock(int(late.Fd()), syscall.LOCK_SH|syscall.LOCK_NB))
	if _, err := os.Stat(late.Name()); !os.IsNotExist(err) {
		t.Errorf("the lock that it got is at the path still: %v", err)
	}

	runs, err := os.OpenFile(filepath.Join(dir, "runs.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	must(t, syscall.Flock(int(runs.Fd()), syscall.LOCK_SH))
	_, err = locks.Ended(t.Context(), "runs")
	if running, ok := errors.AsType[*RunningError](err); !ok || !strings.Contains(running.Error(), "runs.lock") {
		t.Errorf("Ended: %v", err)
	}
	// An agent that was killed leaves its locks; the next one removes them, and no other.
	must(t, os.WriteFile(filepath.Join(dir, "left.lock"), nil, 0o600))
	locks, err = NewLocks(dir)
	must(t, err)
	if left, _ := os.ReadDir(dir); len(left) != 1 || left[0].Name() != "runs.lock" {
		t.Errorf("left by the new agent: %v", left)
	}
	must(t, runs.Close())
	release, err = locks.Ended(t.Context(), "runs")
	must(t, err)
	release()
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	for _, uid := range []string{"", ".", "..", "../x", "a/b"} {
		if _, err := locks.Ended(t.Context(), uid); err == nil {
			t.Errorf("a pod with UID %q has ended", uid)
		}
	}
}
