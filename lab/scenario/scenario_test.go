package scenario

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"belay.dev/belay/lab/timeline"
)

func sceneOf(t *testing.T, objects ...runtime.Object) *Scene {
	t.Helper()
	client := fake.NewClientset(objects...)
	state, look, err := watchState(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	return &Scene{Client: client, state: state, look: look, say: t.Logf}
}

func TestTimedOutWaitNamesConditionAndEvents(t *testing.T) {
	scene := sceneOf(t,
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: WriterPod},
			Spec:       corev1.PodSpec{NodeName: "node-2"}, Status: corev1.PodStatus{Phase: corev1.PodPending},
		},
		&corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: Namespace, Name: "e1"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: WriterPod},
			Reason:         "FailedAttachVolume", Message: "Volume is already used by pod(s) intruder",
			LastTimestamp: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
		},
	)
	err := scene.await(t.Context(), 20*time.Millisecond, "the writer to run", func() (bool, error) { return false, nil })
	if err == nil {
		t.Fatal("a wait for what never comes ended well")
	}
	for _, want := range []string{
		"waited 20ms for the writer to run", "pod default/writer-0: Pending on \"node-2\"",
		"FailedAttachVolume Pod/writer-0: Volume is already used by pod(s) intruder",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the failure does not say %q:\n%v", want, err)
		}
	}
}

func TestWaitEndsWhenTheLabChanges(t *testing.T) {
	scene := sceneOf(t)
	looked := make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- scene.await(t.Context(), time.Minute, "a pod", func() (bool, error) {
			select {
			case looked <- struct{}{}:
			default: // only the first look is waited for, and how many follow is up to the machine
			}
			pods, err := scene.state.Core().V1().Pods().Lister().List(everything)
			return len(pods) == 1, err
		})
	}()
	<-looked
	fresh := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "fresh"}}
	if _, err := scene.Client.CoreV1().Pods(Namespace).Create(t.Context(), fresh, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestStoppedWaitIsNotATimeout(t *testing.T) {
	scene := sceneOf(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("somebody pressed Ctrl-C")
	cancel(stopped)
	err := scene.await(ctx, time.Minute, "a pod", func() (bool, error) { return false, nil })
	if !errors.Is(err, stopped) || !strings.HasPrefix(err.Error(), "stopped while waiting for a pod") {
		t.Errorf("got %v", err)
	}
}

// TestRefusalHasItsTimeAndHolder: what a caller does meanwhile is not part of the time.
func TestRefusalHasItsTimeAndHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := []runtime.Object{&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: WriterPod}, Spec: corev1.PodSpec{NodeName: "node-2"},
		}}
		for _, name := range []string{"node-1", "node-2", "node-3"} {
			objects = append(objects, &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
			})
		}
		scene := sceneOf(t, objects...)
		t.Cleanup(scene.state.Shutdown)
		go func() {
			time.Sleep(3 * time.Second)
			event := &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Namespace: Namespace, Name: "e1"},
				InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "intruder"},
				Reason:         "FailedAttachVolume", Message: "held",
			}
			if _, err := scene.Client.CoreV1().Events(Namespace).Create(t.Context(), event, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		}()
		got, err := scene.Refuse(t.Context(), func(context.Context, string) error {
			time.Sleep(5 * time.Second)
			return nil
		})
		want := Refused{Node: "node-3", Pod: "default/intruder", Reason: "FailedAttachVolume", Message: "held", Holder: "writer-0 on node-2", Seconds: 3}
		if err != nil || *got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	})
}

func TestAcknowledged(t *testing.T) {
	for line, want := range map[string]struct {
		n  int64
		ok bool
	}{
		"acknowledged 17": {17, true},
		"found 17 records, dropped 3 torn bytes, continuing as node-1/writer-0": {},
		"acknowledged 17x":      {},
		"acknowledged ":         {},
		"not acknowledged 17":   {},
		"acknowledged 9 behind": {},
	} {
		n, ok := acknowledged(line)
		if ok != want.ok || (ok && n != want.n) {
			t.Errorf("line %q read as %d, %v; want %d, %v", line, n, ok, want.n, want.ok)
		}
	}
}

// TestFollowerReadsOnlyWriterLogs: in a lab with a thousand pods on hollow nodes the requests for logs that do not
// exist cost more than the control plane that was measured.
func TestFollowerReadsOnlyWriterLogs(t *testing.T) {
	for name, tc := range map[string]struct {
		claims []string
		want   bool
	}{
		"the writer's":          {[]string{"default/data-writer-0"}, true},
		"among others":          {[]string{"default/other", "default/data-writer-0"}, true},
		"another's":             {[]string{"default/claim-1"}, false},
		"in another namespace":  {[]string{"other/data-writer-0"}, false},
		"a pod without a claim": {nil, false},
	} {
		if got := writes(timeline.Change{Kind: timeline.PodRunning, Claims: tc.claims}); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestDiffer(t *testing.T) {
	for name, tc := range map[string]struct {
		nodes []string
		want  string
		same  bool
	}{
		"nowhere, as wanted":     {same: true},
		"on its node, as wanted": {nodes: []string{"node-1"}, want: "node-1", same: true},
		"on another node":        {nodes: []string{"node-2"}, want: "node-1"},
		"on two nodes":           {nodes: []string{"node-1", "node-2"}, want: "node-1"},
		"left behind":            {nodes: []string{"node-1"}},
		"not there yet":          {want: "node-1"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := differ("volumesInUse", tc.nodes, tc.want); (len(got) == 0) != tc.same {
				t.Errorf("differ said %q", got)
			}
		})
	}
}

func TestFlow(t *testing.T) {
	for name, tc := range map[string]struct {
		log     string
		records int64
		gap     time.Duration
		broken  bool
	}{
		"records in a row": {
			log:     "2026-01-02T15:04:05.0Z acknowledged 7\n2026-01-02T15:04:05.5Z acknowledged 8\n2026-01-02T15:04:07.0Z acknowledged 9\n",
			records: 3, gap: 1500 * time.Millisecond,
		},
		"other lines": {log: "2026-01-02T15:04:05.0Z found 3 records\n2026-01-02T15:04:05.5Z acknowledged 4\n", records: 1},
		"one is gone": {log: "2026-01-02T15:04:05.0Z acknowledged 7\n2026-01-02T15:04:05.5Z acknowledged 9\n", broken: true},
		"one comes twice": {
			log: "2026-01-02T15:04:05.0Z acknowledged 7\n2026-01-02T15:04:05.5Z acknowledged 7\n", broken: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := flowOf([]byte(tc.log))
			if (err != nil) != tc.broken {
				t.Fatalf("err %v", err)
			}
			if want := (Flow{Records: tc.records, LongestGap: tc.gap}); err == nil && got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}
