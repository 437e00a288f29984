package nodeagent

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/testing/wait"
)

// TestUnansweredCallIsNamed while it hangs: in the event of the pod that waits for it, and in the error of the caller
// that waits for the pod.
func TestUnansweredCallIsNamed(t *testing.T) {
	for call, event := range map[string]string{
		"NodeStageVolume": "FailedMount: MountVolume.MountDevice", "NodePublishVolume": "FailedMount: MountVolume.SetUp",
		"NodeGetCapabilities": "FailedMount: MountVolume.MountDevice", "NodeUnpublishVolume": "FailedUnmount: UnmountVolume.TearDown",
		"NodeUnstageVolume": "FailedUnmount: UnmountDevice",
	} {
		t.Run(call, func(t *testing.T) {
			w := newWorld(t)
			handle := w.volume("data")
			release := make(chan struct{})
			defer close(release)
			w.driver.Intercept(func(called string, _ any, do func() (any, error)) (any, error) {
				if called == call {
					<-release
				}
				return do()
			})
			agent, _ := w.agent(func(c *Config) { c.waitEventDelay = 300 * time.Millisecond }) // with the usual timeout of two minutes
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			w.untilInUse(handle)
			w.attach(handle)
			back := strings.HasPrefix(call, "NodeUn")
			if back {
				w.mounted(agent, pod)
				agent.RemovePod(pod.UID)
			}
			w.untilEvent(pod, event+` has not ended for volume "`+w.name+`-data" : CSI driver "`+w.driverName()+`" has not answered `+call+" since 20", "times out after 2m0s")
			if back {
				return
			}
			err := w.waitSays(agent, pod, "has not answered "+call)
			if strings.Contains(err.Error(), "NotAttached") {
				t.Errorf("the wait blames the attach: %v", err)
			}
			if !regexp.MustCompile(call + ` since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ \(for [0-9.]+m?s\); the call times out after 2m0s`).MatchString(err.Error()) {
				t.Errorf("the wait says: %v", err)
			}
		})
	}
}

// TestWaitReportsSinceWhen: as a time, and for how long.
func TestWaitReportsSinceWhen(t *testing.T) {
	w := newWorld(t)
	handle := w.volume("data")
	agent, _ := w.agent()
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilInUse(handle)
	err := w.waitSays(agent, pod, "NotAttached")
	if !regexp.MustCompile(`has been waiting since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ \(for [0-9.]+m?s\)`).MatchString(err.Error()) {
		t.Errorf("the wait says: %v", err)
	}
}

// TestFailedUnmountEmitsEvents on the claim and the Node as well: the pod is gone, so its events are not read any more.
// The time of a failing unstage counts from its first attempt.
func TestFailedUnmountEmitsEvents(t *testing.T) {
	for method, event := range map[string]string{"Unpublish": "UnmountVolume.TearDown failed", "Unstage": "UnmountDevice failed"} {
		for _, restarted := range []bool{false, true} {
			t.Run(method+map[bool]string{true: " after a restart"}[restarted], func(t *testing.T) {
				w := newWorld(t)
				l := w.live()
				claim, err := w.admin.CoreV1().PersistentVolumeClaims(w.name).Get(w.ctx, "data", metav1.GetOptions{})
				must(t, err)
				begun := make(chan time.Time, 10)
				w.driver.SetBefore(func(called, _ string, _ int) error {
					if called == method {
						begun <- time.Now()
						time.Sleep(2100 * time.Millisecond)
						return status.Error(codes.Internal, "no luck")
					}
					return nil
				})
				wanted := time.Now()
				agent := l.agent
				if restarted {
					l.stop()
					agent, _ = w.agent()
				}
				agent.RemovePod(l.pod.UID)
				first := <-begun
				w.untilEvent(l.pod, "FailedUnmount", event, "no luck")
				pvc := &corev1.Pod{}
				pvc.UID = claim.UID
				w.untilEvent(pvc, "FailedUnmount", event, "no luck", w.name)
				told := w.eventAbout("Node", types.UID(w.name), "FailedUnmount", event)
				_, since, _ := strings.Cut(told, "since ")
				since, _, _ = strings.Cut(since, "Z")
				// The agent begins the call before the driver has it.
				if at, err := time.Parse(time.RFC3339, since+"Z"); err != nil || at.Before(wanted.Truncate(time.Second)) || at.After(first) {
					t.Errorf("started at %s, the event reports %s", first.UTC(), told)
				}
			})
		}
	}
}

// eventAbout waits for an event about an object of no namespace.
func (w *world) eventAbout(kind string, uid types.UID, words ...string) string {
	w.Helper()
	var found string
	wait.Until(w, "an event about "+kind+" "+string(uid), func() bool {
		events, err := w.admin.CoreV1().Events("default").List(w.ctx, metav1.ListOptions{})
		must(w, err)
		for _, e := range events.Items {
			text := e.Reason + ": " + e.Message
			if e.InvolvedObject.Kind == kind && e.InvolvedObject.UID == uid && !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) }) {
				found = text
				return true
			}
		}
		return false
	})
	return found
}
