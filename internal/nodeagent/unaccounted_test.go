package nodeagent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/testing/wait"
)

// damage empties the records of the kinds and removes every vol_data.json.
func (w *world) damage(kinds ...string) {
	w.Helper()
	for _, kind := range kinds {
		records, err := filepath.Glob(filepath.Join(w.root, recordsDir, "*."+kind+".json"))
		must(w, err)
		if len(records) != 1 {
			w.Fatalf("%s records: %v", kind, records)
		}
		must(w, os.WriteFile(records[0], nil, 0o600))
	}
	must(w, filepath.WalkDir(w.root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == volumeData {
			err = os.Remove(path)
		}
		return err
	}))
}

// untilHeld waits until the unmount of a volume is blocked for the reason.
func (w *world) untilHeld(agent *Agent, handle string, reason nodevolume.Reason) {
	w.Helper()
	wait.Until(w, "volume "+handle+" is held with "+string(reason), func() bool {
		agent.volumes.mu.Lock()
		defer agent.volumes.mu.Unlock()
		v := agent.volumes.all[string(w.unique(handle))]
		return v != nil && v.waits[nodevolume.PublishKey{}].reason == reason
	})
}

// TestUnreadableRecordsWithoutVolumeData: a record cannot be read, and the file that would identify its volume is gone
// too (k/k#101791). The name of the record still identifies the volume: it stays in use and staged, whatever else is
// known of it, until a person has examined it.
func TestUnreadableRecordsWithoutVolumeData(t *testing.T) {
	for name, kinds := range map[string][]string{
		"stage": {nodevolume.StageKind}, "publish": {nodevolume.PublishKind}, "both": {nodevolume.StageKind, nodevolume.PublishKind},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			l := w.live()
			l.stop()
			w.damage(kinds...)
			log := &lines{}
			agent, stop := w.agent(func(c *Config) { c.Logger, c.waitEventDelay = log.logger(), 10*time.Millisecond })
			agent.PodsSynced() // the pod is gone
			w.untilHeld(agent, l.handle, nodevolume.UnaccountedMount)
			if name == "publish" {
				w.untilEvent(l.pod, "FailedUnmount", "UnmountDevice for volume", "has been waiting since", "a record cannot be read", "(UnaccountedMount)")
			} else { // no pod is known
				named := fmt.Sprintf("\"driver\"=%q \"handle\"=%q", w.driverName(), l.handle)
				wait.Until(w, "the log names the volume", func() bool {
					return strings.Contains(strings.Join(log.with("Volume stays in use"), "\n"), named)
				})
			}
			if got := w.detach(l.handle); !errors.Is(got, errStillInUse) {
				t.Fatalf("S7: detach while it is mounted: %v, want %v", got, errStillInUse)
			}
			if calls := w.driver.Made(); slices.Contains(calls, "Unstage data") {
				t.Errorf("unstaged, although it is unknown where it is mounted: %v", calls)
			}

			// A person unmounts what is left and removes the record, as the log says.
			stop()
			w.driver.LoseMounts()
			for _, kind := range kinds {
				records, err := filepath.Glob(filepath.Join(w.root, recordsDir, "*."+kind+".json"))
				must(t, err)
				must(t, os.Remove(records[0]))
			}
			agent, _ = w.agent()
			agent.PodsSynced()
			w.untilNotInUse(l.handle)
		})
	}
}

// TestUnreadableRecordIsRestored: the pod is still wanted. Its volume is staged and published again at the same paths,
// and what was lost is known again. The driver may also refuse the repeated call, which does not show what it did
// before.
func TestUnreadableRecordIsRestored(t *testing.T) {
	for name, refused := range map[string]string{"done": "", "stage refused": "Stage", "publish refused": "Publish"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			l := w.live()
			l.stop()
			w.damage(nodevolume.StageKind, nodevolume.PublishKind)
			w.driver.SetBefore(func(method, _ string, _ int) error {
				if method == refused {
					return status.Error(codes.InvalidArgument, "refused")
				}
				return nil
			})
			agent, _ := w.agent()
			agent.SetPod(l.pod)
			agent.PodsSynced()
			if refused == "" {
				w.mounted(agent, l.pod)
			} else {
				w.untilEvent(l.pod, "FailedMount", "refused")
			}
			agent.RemovePod(l.pod.UID)
			if refused == "Stage" { // the publish was not repeated
				w.untilHeld(agent, l.handle, nodevolume.UnaccountedMount)
				return
			}
			w.untilNotInUse(l.handle)
			if points, _ := w.driver.MountPoints(); len(points) > 0 {
				t.Errorf("not in use, and still mounted: %v", points)
			}
		})
	}
}

// TestUnreadableStageIsRepeatedAndUnstaged: a refusal of the repeated stage does not undo the first one.
func TestUnreadableStageIsRepeatedAndUnstaged(t *testing.T) {
	w := newWorld(t)
	l := w.live()
	l.agent.RemovePod(l.pod.UID)
	w.untilNotInUse(l.handle)
	// Staged, and then nothing: the publish is refused.
	w.driver.SetBefore(func(method, _ string, attempt int) error {
		if method == "Publish" || method == "Stage" && attempt > 2 {
			return status.Error(codes.InvalidArgument, "refused")
		}
		return nil
	})
	pod := w.pod("second", "data")
	l.agent.SetPod(pod)
	w.untilInUse(l.handle)
	w.untilEvent(pod, "FailedMount", "MountVolume.SetUp failed", "refused")
	l.stop()
	w.damage(nodevolume.StageKind)
	// This driver keeps its own records of what it staged: there is no mount.
	w.driver.LoseMounts()
	agent, _ := w.agent()
	agent.SetPod(pod)
	agent.PodsSynced()
	w.untilEvent(pod, "FailedMount", "MountVolume.MountDevice failed", "refused")
	agent.RemovePod(pod.UID)
	w.untilNotInUse(l.handle)
	w.driver.Lock()
	defer w.driver.Unlock()
	if len(w.driver.Staged) > 0 {
		t.Errorf("S7: not in use, and still staged: %v", w.driver.Staged)
	}
}

// kubelets creates what a kubelet leaves of a volume: its file for drivers, and a mount.
func (w *world) kubelets(dataDir, mounted string, data string) {
	w.Helper()
	if data != "" {
		must(w, os.MkdirAll(filepath.Join(w.root, dataDir), 0o750))
		must(w, os.WriteFile(filepath.Join(w.root, dataDir, volumeData), []byte(data+"\n"), 0o600))
	}
	target := filepath.Join(w.root, mounted)
	must(w, os.MkdirAll(target, 0o750))
	w.driver.Lock()
	defer w.driver.Unlock()
	w.driver.Mounts[target] = "left"
}

// kubeletsPublish is a publish of a file system that a kubelet left.
func (w *world) kubeletsPublish(handle string) {
	w.Helper()
	dir := podVolumesDir("left-pod") + "/left-pv"
	w.kubelets(dir, dir+"/mount", `{"attachmentID":"x","driverName":"`+w.driverName()+`","nodeName":"n","specVolID":"left-pv","volumeHandle":"`+handle+`","volumeLifecycleMode":"Persistent"}`)
}

// TestVolumesLeftByKubeletStayInUse: a kubelet ran on this root before and left a volume mounted.
func TestVolumesLeftByKubeletStayInUse(t *testing.T) {
	const handle = "h-left"
	block := func(w *world) string {
		return `{"attachmentID":"x","driverName":"` + w.driverName() + `","nodeName":"n","specVolID":"left-pv","volumeHandle":"` + handle + `"}`
	}
	for name, leave := range map[string]func(w *world){
		"staged": func(w *world) {
			dir := filepath.Join(csiDir, w.driverName(), hash(handle))
			w.kubelets(dir, dir+"/"+globalMount, `{"driverName":"`+w.driverName()+`","volumeHandle":"`+handle+`"}`)
		},
		"staged, without the file for drivers": func(w *world) {
			w.kubelets("", filepath.Join(csiDir, w.driverName(), hash(handle), globalMount), "")
		},
		"published by a driver that does not stage": func(w *world) { w.kubeletsPublish(handle) },
		"block, staged": func(w *world) {
			w.kubelets(blockDir+"/left-pv/data", blockDir+"/staging/left-pv", block(w))
		},
		"block, published": func(w *world) {
			w.kubelets(blockDir+"/left-pv/data", blockDir+"/publish/left-pv/left-pod", block(w))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			leave(w)
			node := w.node()
			node.Status.VolumesInUse = []corev1.UniqueVolumeName{w.unique(handle), w.unique("h-gone")}
			_, err := w.admin.CoreV1().Nodes().UpdateStatus(w.ctx, node, metav1.UpdateOptions{})
			must(t, err)
			agent, stop := w.agent()
			agent.PodsSynced()
			w.untilNotInUse("h-gone") // by the first write
			must(t, w.report(handle, true))
			if got := w.detach(handle); !errors.Is(got, errStillInUse) {
				t.Fatalf("S7: detach while it is mounted: %v, want %v", got, errStillInUse)
			}
			if name != "staged, without the file for drivers" {
				w.untilHeld(agent, handle, nodevolume.UnaccountedMount)
			}
			if calls := w.driver.Made(); len(calls) > 0 {
				t.Errorf("the driver was called for what is not the agent's: %v", calls)
			}
			stop()
			w.driver.LoseMounts()
			w.agent()
			w.untilNotInUse(handle)
		})
	}
}

// TestNoUnstageWhileKubeletPublishIsMounted: the agent's own pod comes and goes, and a kubelet's publish of the same
// volume is still mounted.
func TestNoUnstageWhileKubeletPublishIsMounted(t *testing.T) {
	w := newWorld(t)
	w.kubeletsPublish("h-" + w.name + "-data")
	l := w.live()
	l.agent.RemovePod(l.pod.UID)
	w.unmounted(l.agent, l.pod)
	w.untilHeld(l.agent, l.handle, nodevolume.UnaccountedMount)
	if calls := w.driver.Made(); slices.Contains(calls, "Unstage data") {
		t.Errorf("unstaged under a mount: %v", calls)
	}
	if !slices.Contains(w.node().Status.VolumesInUse, w.unique(l.handle)) {
		t.Error("S7: mounted and not in use")
	}
}

// disk is what would remain of the records after a power cut at this moment.
type disk struct {
	mu    sync.Mutex
	holds map[string][]byte // by kind; empty is torn
}

func (d *disk) write(root *mount.Root, name string, content []byte, must mount.Durability) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	kind := strings.TrimSuffix(name[strings.LastIndex(strings.TrimSuffix(name, ".json"), ".")+1:], ".json")
	switch must {
	case mount.PowerCut:
		d.holds[kind] = content
	case mount.Crash:
		d.holds[kind] = nil // the name may be on the disk before what the file holds
	case mount.InPlace: // the worst is that the old content stays
	}
	return root.Write(name, content, must)
}

// TestRecordIsOnDiskBeforeEachCall: at each call the record is on the disk, whole, so that whatever the driver does is
// known after the machine has lost power.
func TestRecordIsOnDiskBeforeEachCall(t *testing.T) {
	w := newWorld(t)
	disk := &disk{holds: map[string][]byte{}}
	w.driver.Before = func(method, _ string, _ int) error {
		disk.mu.Lock()
		defer disk.mu.Unlock()
		kind := nodevolume.PublishKind
		if strings.HasSuffix(method, "tage") {
			kind = nodevolume.StageKind
		}
		if _, err := nodevolume.DecodeRecord(disk.holds[kind]); err != nil {
			t.Errorf("%s: after a power cut there is no record: %v", method, err)
		}
		return nil
	}
	handle := w.volume("data")
	agent, _ := w.agent(func(c *Config) { c.writeRecord = disk.write })
	pod := w.pod("p", "data")
	w.bringUp(agent, pod, handle)
	agent.RemovePod(pod.UID)
	w.untilNotInUse(handle)
	if calls := w.driver.Made(); len(calls) != 4 {
		t.Errorf("calls: %v", calls)
	}
}

// TestVolumesThatAnEarlierWriteMayRemove: an agent that died may have left a write in flight that removes a volume from the
// list. It cannot concern a volume that was mounted under the handshake, but it can concern one that was mounted while
// its CSIDriver required no attachment.
func TestVolumesThatAnEarlierWriteMayRemove(t *testing.T) {
	for name, test := range map[string]struct {
		options []func(*storagev1.CSIDriver)
		want    bool
	}{"attached": {nil, true}, "not attached": {[]func(*storagev1.CSIDriver){noAttach}, false}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, test.options...)
			handle := w.volume("data")
			agent, stop := w.agent()
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			if test.want {
				w.untilInUse(handle)
				w.attach(handle)
			}
			w.mounted(agent, pod)
			stop()
			agent, _ = w.agent()
			name := string(w.unique(handle))
			if got := agent.volumes.handshakes([]string{name})[name]; got != decision.Known(test.want) {
				t.Errorf("kept at the start: %v, want %v", got, test.want)
			}
		})
	}
}

// TestWriteLeftByDeadAgentIsExcluded: an agent died with a PATCH in flight that removes a volume from volumesInUse. Its
// record is torn, so whether it was made under the handshake is unknown. The next agent believes the list only when
// that PATCH cannot be committed any more.
func TestWriteLeftByDeadAgentIsExcluded(t *testing.T) {
	w := newWorld(t)
	l := w.live()
	l.stop()
	records, err := filepath.Glob(filepath.Join(w.root, recordsDir, "*.json"))
	must(t, err)
	for _, record := range records {
		must(t, os.WriteFile(record, nil, 0o600))
	}
	before := w.node()
	agent, _ := w.agent()
	wait.Until(w, "the list is believed", func() bool { return agent.status.View(string(w.unique(l.handle))).InUse == nodevolume.Yes })
	before.Status.VolumesInUse = nil
	if _, err := w.admin.CoreV1().Nodes().UpdateStatus(w.ctx, before, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("the write of the agent before: %v, want a conflict", err)
	}
	w.untilNode("the list is tidy", func(n *corev1.Node) bool {
		return slices.Equal(n.Status.VolumesInUse, []corev1.UniqueVolumeName{w.unique(l.handle)})
	})
}

// TestRecordsThatWereBeingWrittenAreRemoved: the agent that wrote them died before it called a driver.
func TestRecordsThatWereBeingWrittenAreRemoved(t *testing.T) {
	w := newWorld(t)
	l := w.live()
	l.stop()
	name := filepath.Join(w.root, recordsDir, ".tmp-"+stageRecordName(strings.Repeat("x", 300)))
	must(t, os.WriteFile(name, []byte(`{"version":1,"kind":"st`), 0o600))
	agent, _ := w.agent()
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is there still: %v", err)
	}
	agent.PodsSynced()
	w.untilNotInUse(l.handle)
	w.untilNothingIsLeft()
}
