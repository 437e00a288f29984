package nodeagent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

func republishes(d *storagev1.CSIDriver) { d.Spec.RequiresRepublish = new(true) }

func every(d time.Duration) func(*Config) { return func(c *Config) { c.republishPeriod = d } }

func (w *world) untilPublished(times int) {
	w.Helper()
	wait.Until(w, "published often enough", func() bool { return w.driver.Count("Publish", "data") >= times })
}

func TestRepublishUsesCurrentSecretsAndTokens(t *testing.T) {
	w := newWorld(t, republishes, asksForTokens(storagev1.TokenRequest{Audience: "vault"}))
	secrets := w.admin.CoreV1().Secrets(w.name)
	key := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"}, StringData: map[string]string{"password": "old"}}
	_, err := secrets.Create(w.ctx, key, metav1.CreateOptions{})
	must(t, err)
	handle := w.volume("data", func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: w.name, Name: "key"}
	})
	agent, _ := w.agent(every(20 * time.Millisecond))
	pod := w.podOfRobot("p", "data")
	w.bringUp(agent, pod, handle)
	first := csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver)
	w.untilPublished(3)
	key.StringData["password"] = "new"
	_, err = secrets.Update(w.ctx, key, metav1.UpdateOptions{})
	must(t, err)
	wait.Until(w, "the new secret is passed", func() bool {
		return csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver).Secrets["password"] == "new"
	})
	again := csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver)
	if diff := cmp.Diff([]any{first.TargetPath, first.StagingTargetPath, first.PublishContext, first.VolumeContext},
		[]any{again.TargetPath, again.StagingTargetPath, again.PublishContext, again.VolumeContext}); diff != "" {
		t.Errorf("the repeated publish differs (-first +again):\n%s", diff)
	}
	if again.PublishContext["device"] != "/dev/"+handle {
		t.Errorf("publish context %v", again.PublishContext)
	}
	w.wantToken(tokensIn(t, again.VolumeContext)["vault"], "vault", pod)
	agent.RemovePod(pod.UID)
	w.unmounted(agent, pod)
	w.untilNotInUse(handle)
	calls := w.driver.Made()
	if stages := slices.Compact(slices.DeleteFunc(calls, func(c string) bool { return c == "Publish data" })); !slices.Equal(stages, []string{"Stage data", "Unpublish data", "Unstage data"}) {
		t.Errorf("calls besides the publishes: %v", stages)
	}
	w.untilNothingIsLeft()
}

// TestMounterSetUpFWithNodePublishFinalError is upstream's "setup with remount preserves
// mount dir on final error" (k/k#121271), for every kind of error.
func TestMounterSetUpFWithNodePublishFinalError(t *testing.T) {
	for _, code := range []codes.Code{codes.InvalidArgument, codes.NotFound, codes.Internal, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted} {
		t.Run(code.String(), func(t *testing.T) {
			w := newWorld(t, republishes)
			handle := w.volume("data")
			w.driver.Before = func(method, _ string, attempt int) error {
				if method == "Publish" && attempt > 1 {
					return status.Error(code, "cannot renew")
				}
				return nil
			}
			agent, stop := w.agent(every(20 * time.Millisecond))
			pod := w.pod("p", "data")
			mounts := w.bringUp(agent, pod, handle)
			w.untilEvent(pod, "FailedMount", `MountVolume.SetUp failed for volume "`+w.name+`-data" :`, "publish again", "cannot renew")
			w.untilPublished(3) // it is tried again
			wantStanding := func(when string) {
				t.Helper()
				if diff := cmp.Diff(placesOf(mounts), placesOf(w.mounted(agent, pod))); diff != "" {
					t.Errorf("%s: mounts (-want +got):\n%s", when, diff)
				}
				for _, file := range []string{mounts[0].Path, filepath.Join(filepath.Dir(mounts[0].Path), volumeData)} {
					if _, err := os.Stat(file); err != nil {
						t.Errorf("%s: %v", when, err)
					}
				}
				if points, _ := w.driver.MountPoints(); !slices.Contains(points, mounts[0].Path) {
					t.Errorf("%s: mounted are %v", when, points)
				}
				if !slices.Contains(w.node().Status.VolumesInUse, w.unique(handle)) {
					t.Errorf("%s: not in use", when)
				}
				if published := w.publishRecord(); !published.Confirmed || published.Leaving {
					t.Errorf("%s: the record says %+v", when, published)
				}
			}
			wantStanding("after failures")
			stop() // a restart finds it as it was
			agent, _ = w.agent(every(20 * time.Millisecond))
			agent.SetPod(pod)
			wantStanding("after a restart")
			before := w.driver.Count("Publish", "data")
			w.untilPublished(before + 1)
			agent.RemovePod(pod.UID) // no back-off of a republish delays the unmount
			w.unmounted(agent, pod)
			w.untilNotInUse(handle)
			w.untilNothingIsLeft()
		})
	}
}

func TestRepeatedRepublishFailureEmitsEvents(t *testing.T) {
	w := newWorld(t, republishes, noAttach)
	w.volume("data")
	w.driver.Before = func(method, _ string, attempt int) error {
		if method == "Publish" && (attempt == 2 || attempt == 4) {
			return status.Error(codes.Internal, "cannot renew")
		}
		return nil
	}
	agent, _ := w.agent(every(20 * time.Millisecond))
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	wait.Until(w, "the pod gets an event about the second failure", func() bool {
		events, err := w.admin.CoreV1().Events(w.name).List(w.ctx, metav1.ListOptions{})
		must(t, err)
		told := int32(0)
		for _, event := range events.Items {
			told += event.Count // one event, or two if they say different seconds
		}
		return told == 2
	})
	w.untilPublished(6) // and it continues
}

// publishRecord is the only record of a publish on disk.
func (w *world) publishRecord() nodevolume.Record {
	w.Helper()
	files, err := filepath.Glob(filepath.Join(w.root, recordsDir, "*.publish.json"))
	must(w, err)
	if len(files) != 1 {
		w.Fatalf("records of publishes: %v", files)
	}
	raw, err := os.ReadFile(files[0])
	must(w, err)
	record, err := nodevolume.DecodeRecord(raw)
	must(w, err)
	return record
}

func TestRestartRepublishesOnce(t *testing.T) {
	w := newWorld(t, republishes)
	handle := w.volume("data")
	agent, stop := w.agent()
	pod := w.pod("p", "data")
	w.bringUp(agent, pod, handle)
	stop()
	agent, _ = w.agent(every(time.Hour))
	agent.SetPod(pod)
	w.untilPublished(2)
	wait.Until(w, "the next one is due in an hour", func() bool {
		_, decision := agent.volumes.decide(string(w.unique(handle)), time.Now())
		return decision.Next == nil && time.Until(decision.RecheckAt) > 50*time.Minute
	})
	if diff := cmp.Diff([]string{"Stage data", "Publish data", "Publish data"}, w.driver.Made()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// TestRepublishedPods asks for the decision of an hour later.
func TestRepublishedPods(t *testing.T) {
	w := newWorld(t, noAttach)
	name := string(w.unique(w.volume("data")))
	agent, _ := w.agent()
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	want := func(when string, want nodevolume.Step) {
		t.Helper()
		_, decision := agent.volumes.decide(name, time.Now().Add(time.Hour))
		if diff := cmp.Diff(want, decision.Next); diff != "" {
			t.Errorf("%s: next (-want +got):\n%s", when, diff)
		}
	}
	want("the driver does not ask for it", nil)
	drivers := w.admin.StorageV1().CSIDrivers()
	object, err := drivers.Get(w.ctx, w.driverName(), metav1.GetOptions{})
	must(t, err)
	republishes(object)
	_, err = drivers.Update(w.ctx, object, metav1.UpdateOptions{})
	must(t, err)
	wait.Until(w, "the CSIDriver is seen", func() bool { return agent.plugins.Rules(w.driverName()).Republish })
	want("the driver asks for it", nodevolume.Republish{Key: nodevolume.PublishKey{PodUID: string(pod.UID), SpecName: w.name + "-data"}})
	pod.DeletionTimestamp = new(metav1.Now())
	agent.SetPod(pod)
	want("the pod is being deleted", nil)
}
