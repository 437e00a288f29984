package nodes

import (
	"context"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-client/pkg/logs"

	"belay.dev/belay/node"
)

// shellPod runs a shell script on the node.
func shellPod(name, script string, change func(*corev1.Pod)) *corev1.Pod {
	pod := writerPod(name, "node-1")
	pod.Spec.TerminationGracePeriodSeconds = new(int64(1))
	pod.Spec.Containers[0].Command = []string{"sh", "-c", script}
	pod.Spec.Containers[0].Args = nil
	if change != nil {
		change(pod)
	}
	return pod
}

func never(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyNever }

// ending is what a user sees of a pod.
type ending struct {
	Phase    corev1.PodPhase
	Reason   string
	ExitCode int32
	Restarts int32
	Log      string
}

func endingOf(pod *corev1.Pod) ending {
	e := ending{Phase: pod.Status.Phase}
	for _, s := range pod.Status.ContainerStatuses {
		e.Restarts = s.RestartCount
		switch {
		case s.State.Terminated != nil:
			e.Reason, e.ExitCode = s.State.Terminated.Reason, s.State.Terminated.ExitCode
		case s.State.Waiting != nil:
			e.Reason = s.State.Waiting.Reason
		}
	}
	return e
}

func TestPodsOfABelayNode(t *testing.T) {
	p := startPlane(t)
	n := p.startNode(t, KindBelay, "node-1")
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	if err := AdoptNode(ctx, p.client, "node-1", loopbackIP); err != nil {
		t.Fatal(err)
	}
	t.Run("how pods end", p.testEndings)
	t.Run("a pod that ignores SIGTERM is killed when its grace is over", func(t *testing.T) {
		for left := 5; left > 0; left-- { // a busy machine may stand still meanwhile
			p.create(t, shellPod("stubborn", `trap "" TERM; while :; do sleep 0.05; done`, nil))
			p.awaitPod(t, "stubborn", "running", running)
			began := time.Now()
			p.delete(t, "stubborn", metav1.DeleteOptions{})
			p.awaitPod(t, "stubborn", "gone", gone)
			took := time.Since(began)
			if took < time.Second {
				t.Errorf("deletion took %v with a grace of one second", took)
			}
			if took < 20*time.Second { // without it the grace is 30 s
				return
			}
		}
		t.Error("each deletion took 20 s or more with a grace of one second")
	})
	t.Run("the container of a pod that is deleted by force ends", func(t *testing.T) {
		p.create(t, shellPod("forced", "while :; do sleep 0.05; done", nil))
		p.awaitPod(t, "forced", "running", running)
		before := len(n.processes(t))
		p.delete(t, "forced", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
		p.awaitPod(t, "forced", "gone", gone)
		within(testPatience, func() bool { return len(n.processes(t)) < before-1 })
		if after := len(n.processes(t)); after >= before-1 {
			t.Errorf("%d processes before, %d after", before, after)
		}
	})
	t.Run("a node that is frozen stands still and goes on as if nothing had been", func(t *testing.T) {
		p.create(t, writerPod("ice", "node-1"))
		p.awaitPod(t, "ice", "running", running)
		size := func() (sum int64) {
			logs, _ := filepath.Glob(filepath.Join(n.Config.Dir, "containers", "*", "c", "writer", "0", logFile))
			for _, file := range logs {
				if info, err := os.Stat(file); err == nil {
					sum += info.Size()
				}
			}
			return sum
		}
		// A container runs before it has written its first line.
		within(testPatience, func() bool { return size() > 0 })
		if err := n.Freeze(); err != nil {
			t.Fatal(err)
		}
		n.awaitFrozen(t) // a line in flight into the log may arrive before; then nothing is added
		before := size()
		time.Sleep(300 * time.Millisecond)
		if after := size(); after != before || before == 0 {
			t.Errorf("log grew from %d to %d bytes while frozen", before, after)
		}
		if err := n.Thaw(); err != nil {
			t.Fatal(err)
		}
		within(testPatience, func() bool { return size() > before })
		if size() <= before {
			t.Error("nothing is written after the thaw")
		}
		p.delete(t, "ice", metav1.DeleteOptions{})
		p.awaitPod(t, "ice", "gone", gone)
	})
	t.Run("a pod that is deleted while its agent is dead ends", func(t *testing.T) {
		p.create(t, shellPod("orphan", "sleep 1000", nil))
		p.create(t, shellPod("forgotten", "sleep 1000", nil))
		p.awaitPod(t, "orphan", "running", running)
		p.awaitPod(t, "forgotten", "running", running)
		before := len(n.processes(t))
		if err := n.Kill(ChildAgent); err != nil {
			t.Fatal(err)
		}
		p.delete(t, "orphan", metav1.DeleteOptions{})
		p.delete(t, "forgotten", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
		p.awaitPod(t, "orphan", "gone", gone)
		within(testPatience, func() bool { return len(n.processes(t)) <= before-4 })
		if after := len(n.processes(t)); after > before-4 {
			t.Errorf("%d processes before, %d after two pods of two processes each", before, after)
		}
	})
}

func (p *plane) delete(t *testing.T, name string, options metav1.DeleteOptions) {
	t.Helper()
	if err := p.client.CoreV1().Pods("default").Delete(t.Context(), name, options); err != nil {
		t.Fatal(err)
	}
}

func (p *plane) testEndings(t *testing.T) {
	tests := map[string]struct {
		pod  *corev1.Pod
		want ending
	}{
		"succeeds": {shellPod("succeeds", "echo done", never), ending{Phase: corev1.PodSucceeded, Reason: reasonCompleted, Log: "done"}},
		"fails":    {shellPod("fails", "echo no; exit 4", never), ending{Phase: corev1.PodFailed, Reason: reasonError, ExitCode: 4, Log: "no"}},
		"cannot be started": {shellPod("unstartable", "", func(pod *corev1.Pod) {
			never(pod)
			pod.Spec.Containers[0].Command = []string{"/no/such/program"}
		}), ending{Phase: corev1.PodFailed, Reason: reasonStartError, ExitCode: exitStartError}},
		"crashes again and again": {shellPod("crashes", "echo crash; exit 5", nil),
			ending{Phase: corev1.PodRunning, Reason: reasonBackOff, Restarts: 1, Log: "crash"}},
		"waits for its init container": {shellPod("initialised", "cat /data/made", func(pod *corev1.Pod) {
			never(pod)
			first := *pod.Spec.Containers[0].DeepCopy()
			first.Name, first.Command = "first", []string{"sh", "-c", "echo by-init > /data/made"}
			pod.Spec.InitContainers = []corev1.Container{first}
		}), ending{Phase: corev1.PodSucceeded, Reason: reasonCompleted, Log: "by-init"}},
		"init container fails": {shellPod("uninitialised", "echo never", func(pod *corev1.Pod) {
			never(pod)
			first := *pod.Spec.Containers[0].DeepCopy()
			first.Name, first.Command = "first", []string{"sh", "-c", "exit 6"}
			pod.Spec.InitContainers = []corev1.Container{first}
		}), ending{Phase: corev1.PodFailed, Reason: reasonCreating}},
		"command uses its environment": {shellPod("variables", "", func(pod *corev1.Pod) {
			never(pod)
			pod.Spec.Containers[0].Command = []string{"echo", "$(POD_NAME) on $(NODE_NAME)"}
		}), ending{Phase: corev1.PodSucceeded, Reason: reasonCompleted, Log: "variables on node-1"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p.create(t, test.pod)
			pod := p.awaitPod(t, test.pod.Name, string(test.want.Phase), func(pod *corev1.Pod) bool {
				return pod != nil && pod.Status.Phase == test.want.Phase && endingOf(pod).Reason == test.want.Reason
			})
			got := endingOf(pod)
			got.Restarts = min(got.Restarts, 1) // a busy machine may have seen the pod after the next one
			within(testPatience, func() bool {  // the log of the next run is empty at first
				stream, err := p.client.CoreV1().Pods("default").GetLogs(pod.Name, &corev1.PodLogOptions{Container: "writer"}).Stream(t.Context())
				if err == nil {
					all, _ := io.ReadAll(stream)
					_ = stream.Close()
					got.Log = strings.TrimSpace(string(all))
				}
				return got.Log == test.want.Log
			})
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			p.delete(t, pod.Name, metav1.DeleteOptions{})
			p.awaitPod(t, pod.Name, "gone", gone)
		})
	}
}

func TestMountsOfAContainer(t *testing.T) {
	pod := writerPod("p", "node-1")
	pod.Spec.Volumes = append(pod.Spec.Volumes,
		corev1.Volume{Name: "disk"}, corev1.Volume{Name: "raw"}, corev1.Volume{Name: tokenVolumePrefix + "x"},
		corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc"}}})
	dir := t.TempDir()
	spec := podSpec{pod: pod, dir: dir, ledger: "/bin/ledger", mounted: map[string]node.Mount{
		"disk": {VolumeName: "disk", Path: dir, ReadOnly: true}, "raw": {VolumeName: "raw", Path: "/dev/x", Block: true},
	}}
	own := bind{Source: "/bin/ledger", Target: "/ledger", ReadOnly: true}
	tests := map[string]struct {
		container corev1.Container
		want      []bind
		problem   string
	}{
		"nothing": {want: []bind{own}},
		"a claim that is read-only": {
			container: corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "disk", MountPath: "/data/"}}},
			want:      []bind{own, {Source: dir, Target: "/data", ReadOnly: true}}},
		"a folder of a volume": {
			container: corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "disk", MountPath: "/data", SubPath: "a/b"}}},
			want:      []bind{own, {Source: dir + "/a/b", Target: "/data", ReadOnly: true}}},
		"a folder outside of the volume": {
			container: corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "disk", MountPath: "/data", SubPath: "../b"}}},
			problem:   `path "/../b" in the container is not absolute and plain`},
		"a mount that is read-only": {
			container: corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "host", MountPath: "/e", ReadOnly: true}}},
			want:      []bind{own, {Source: "/etc", Target: "/e", ReadOnly: true}}},
		"a device": {
			container: corev1.Container{VolumeDevices: []corev1.VolumeDevice{{Name: "raw", DevicePath: "/dev/disk"}}},
			want:      []bind{own, {Source: "/dev/x", Target: "/dev/disk", Device: true}}},
		"a device asked for as a folder": {
			container: corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "raw", MountPath: "/d"}}},
			problem:   `volume "raw" is a block device and cannot be mounted as a directory`},
		"a folder asked for as a device": {
			container: corev1.Container{VolumeDevices: []corev1.VolumeDevice{{Name: "disk", DevicePath: "/dev/d"}}},
			problem:   `volume "disk" is no block device`},
		"the service account's token": {
			container: corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: tokenVolumePrefix + "x", MountPath: "/var/run"}}},
			want:      []bind{own}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := spec.mounts(test.container)
			problem := ""
			if err != nil {
				problem = err.Error()
			}
			if diff := cmp.Diff(test.problem, problem); diff != "" {
				t.Errorf("problem -want +got\n%s", diff)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestContainerSecurityContext(t *testing.T) {
	tests := map[string]struct {
		pod       *corev1.PodSecurityContext
		container *corev1.SecurityContext
		want      containerSpec
		problem   string
	}{
		"nothing is said": {},
		"as the pod says": {
			pod:  &corev1.PodSecurityContext{RunAsUser: new(int64(1)), RunAsGroup: new(int64(2)), RunAsNonRoot: new(true)},
			want: containerSpec{UID: new(int64(1)), GID: new(int64(2))}},
		"the container has the last word": {
			pod:       &corev1.PodSecurityContext{RunAsUser: new(int64(1)), RunAsGroup: new(int64(2)), RunAsNonRoot: new(true)},
			container: &corev1.SecurityContext{RunAsUser: new(int64(0)), RunAsNonRoot: new(false), ReadOnlyRootFilesystem: new(true)},
			want:      containerSpec{UID: new(int64(0)), GID: new(int64(2)), ReadOnlyRoot: true}},
		"fsGroup and more groups": {
			pod:       &corev1.PodSecurityContext{FSGroup: new(int64(3)), SupplementalGroups: []int64{4, 5}},
			container: &corev1.SecurityContext{RunAsUser: new(int64(1))},
			want:      containerSpec{UID: new(int64(1)), Groups: []int64{3, 4, 5}}},
		"not root, but nobody else is named": {
			container: &corev1.SecurityContext{RunAsNonRoot: new(true)},
			problem:   "container writer has runAsNonRoot and would run as root"},
		"not root, and root": {
			pod:     &corev1.PodSecurityContext{RunAsUser: new(int64(0)), RunAsNonRoot: new(true)},
			problem: "container writer has runAsNonRoot and would run as root"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := writerPod("p", "node-1")
			pod.Spec.SecurityContext, pod.Spec.Containers[0].SecurityContext = test.pod, test.container
			spec := podSpec{pod: pod, dir: t.TempDir(), ledger: "/bin/ledger"}
			got, err := spec.spec(pod.Spec.Containers[0])
			if test.problem != "" {
				if err == nil || err.Error() != test.problem {
					t.Errorf("problem %v, want %q", err, test.problem)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got = containerSpec{UID: got.UID, GID: got.GID, Groups: got.Groups, ReadOnlyRoot: got.ReadOnlyRoot}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestReadOptions(t *testing.T) {
	tests := map[string]struct {
		query   string
		want    logs.LogOptions
		problem bool
	}{
		"none":              {},
		"follow the end":    {query: "follow=true&tailLines=3", want: logs.LogOptions{Follow: true, TailLines: new(int64(3))}},
		"since a time":      {query: "sinceTime=2026-01-01T12:00:00Z&timestamps=true", want: logs.LogOptions{Since: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), Timestamp: true}},
		"limit":             {query: "limitBytes=10", want: logs.LogOptions{LimitBytes: new(int64(10))}},
		"not a number":      {query: "tailLines=many", problem: true},
		"not a time either": {query: "sinceTime=noon", problem: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			query, err := url.ParseQuery(test.query)
			if err != nil {
				t.Fatal(err)
			}
			got, err := readOptions(query)
			if (err != nil) != test.problem {
				t.Fatalf("error %v, want one: %v", err, test.problem)
			}
			if err == nil {
				if diff := cmp.Diff(&test.want, got); diff != "" {
					t.Errorf("-want +got\n%s", diff)
				}
			}
		})
	}
}
