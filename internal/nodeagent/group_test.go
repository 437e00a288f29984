package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodeagent/plugins"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

const testGroup = 54321

// TestVolumesThatFSGroupAppliesTo holds the cases of upstream's TestMounterSetUpWithFSGroup and csi_fsgroup_policy.
func TestVolumesThatFSGroupAppliesTo(t *testing.T) {
	const (
		byDefault = storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
		always    = storagev1.FileFSGroupPolicy
	)
	type volume struct {
		policy   storagev1.FSGroupPolicy
		fsType   string
		modes    []corev1.PersistentVolumeAccessMode
		readOnly bool
		block    bool
		delegate bool
		noGroup  bool
	}
	once, many := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	tests := map[string]struct {
		volume
		want bool
	}{
		"pod without fsGroup":                {volume{policy: always, noGroup: true, fsType: "ext4", modes: once}, false},
		"default policy, all as it must be":  {volume{policy: byDefault, fsType: "ext4", modes: once}, true},
		"default policy, no file system":     {volume{policy: byDefault, modes: once}, false},
		"default policy, no access modes":    {volume{policy: byDefault, fsType: "ext4"}, false},
		"default policy, ReadWriteMany":      {volume{policy: byDefault, fsType: "ext4", modes: many}, false},
		"default policy, ReadWriteOncePod":   {volume{policy: byDefault, fsType: "ext4", modes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}}, true},
		"default policy, one of two modes":   {volume{policy: byDefault, fsType: "ext4", modes: slices.Concat(many, once)}, true},
		"default policy, read-only":          {volume{policy: byDefault, fsType: "ext4", modes: once, readOnly: true}, false},
		"File, ReadWriteMany, nothing known": {volume{policy: always, modes: many}, true},
		"File, read-only":                    {volume{policy: always, modes: many, readOnly: true}, false},
		"File, block":                        {volume{policy: always, modes: once, block: true}, false},
		"File, the driver does it":           {volume{policy: always, fsType: "ext4", modes: once, delegate: true}, false},
		"None, all as it must be":            {volume{policy: storagev1.NoneFSGroupPolicy, fsType: "ext4", modes: once}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := driverCall{
				capabilities: csi.NodeCapabilities{VolumeMountGroup: test.delegate},
				rules:        plugins.Rules{GroupPolicy: test.policy},
				toMount:      &volumeToMount{fsType: test.fsType, accessModes: test.modes, readOnly: test.readOnly, block: test.block},
			}
			if !test.noGroup {
				c.toMount.pod.FSGroup = new(int64(testGroup))
			}
			if got := c.agentAppliesFSGroup(); got != test.want {
				t.Errorf("given to the group: %v", got)
			}
		})
	}
}

// withGroup asks for the test's fsGroup.
func withGroup(policy corev1.PodFSGroupChangePolicy) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(testGroup)), FSGroupChangePolicy: &policy}
	}
}

// owner is a file's group and mode.
func owner(tb testing.TB, path string) string {
	tb.Helper()
	var st unix.Stat_t
	must(tb, unix.Lstat(path, &st))
	return fmt.Sprintf("%d %o", st.Gid, st.Mode&0o7777)
}

// target is where the volume "data" is published for a pod.
func (w *world) target(pod *corev1.Pod) string {
	return filepath.Join(w.root, "pods", string(pod.UID), "volumes/kubernetes.io~csi", w.name+"-data", "mount")
}

// realMounts has the driver bind the volume, a tmpfs, to where it is published, and returns the volume.
func (w *world) realMounts() string {
	w.Helper()
	if os.Getuid() != 0 {
		w.Skip("needs root to mount")
	}
	volume := filepath.Join(w.root, "volume")
	must(w, os.Mkdir(volume, 0o755))
	must(w, unix.Mount("tmpfs", volume, "tmpfs", 0, "size=1m,mode=0755"))
	detach := func(path string) {
		for unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
		}
	}
	w.Cleanup(func() {
		targets, _ := filepath.Glob(filepath.Join(w.root, "pods/*/volumes/kubernetes.io~csi/*/mount"))
		for _, path := range append(targets, volume) {
			detach(path)
		}
	})
	w.driver.After = func(method, _ string, _ int) error {
		if method != "Publish" {
			return nil
		}
		return unix.Mount(volume, csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver).TargetPath, "", unix.MS_BIND, "")
	}
	w.driver.Before = func(method, _ string, _ int) error {
		if method == "Unpublish" {
			detach(csidriver.LastRequest[*csispec.NodeUnpublishVolumeRequest](w.driver).TargetPath)
		}
		return nil
	}
	return volume
}

func TestFSGroupIsAppliedBeforeThePodStarts(t *testing.T) {
	w := newWorld(t, noAttach)
	w.volume("data")
	volume := w.realMounts()
	file, outside := filepath.Join(volume, "dir/file"), filepath.Join(w.root, "outside")
	for _, path := range []string{file, outside} {
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, nil, 0o600))
	}
	must(t, os.Symlink(outside, filepath.Join(volume, "link")))
	agent, _ := w.agent()
	mountFor := func(name string, policy corev1.PodFSGroupChangePolicy) {
		t.Helper()
		pod := w.podWith(name, withGroup(policy), "data")
		agent.SetPod(pod)
		w.mounted(agent, pod)
		if got := owner(t, w.target(pod)); got != "54321 2775" {
			t.Errorf("%s: the volume is %s", name, got)
		}
	}
	wantOwner := func(when, path, want string) {
		t.Helper()
		if got := owner(t, path); got != want {
			t.Errorf("%s: %s is %s, want %s", when, path, got, want)
		}
	}
	mountFor("first", corev1.FSGroupChangeOnRootMismatch)
	wantOwner("first", file, "54321 660")
	wantOwner("first", filepath.Dir(file), "54321 2775")
	wantOwner("first", outside, "0 600")

	must(t, os.Chown(file, 0, 0))
	mountFor("second", corev1.FSGroupChangeOnRootMismatch)
	wantOwner("the root fits", file, "0 660")
	mountFor("third", corev1.FSGroupChangeAlways)
	wantOwner("always", file, "54321 660")
	if capability := csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver).VolumeCapability; capability.GetMount().VolumeMountGroup != "" {
		t.Errorf("a driver without VOLUME_MOUNT_GROUP got group %s", capability.GetMount().VolumeMountGroup)
	}
}

// changes lets a test control when a change of ownership continues, and how it ends.
type changes struct {
	begun atomic.Int64
	// goOn ends the first change, with its error.
	goOn chan error
}

func slowChanges() *changes { return &changes{goOn: make(chan error, 1)} }

func (s *changes) slow(c *Config) {
	c.changeGroup = func(root *mount.Root, ctx context.Context, name string, change *mount.GroupChange) error {
		if s.begun.Add(1) > 1 {
			return root.ChangeGroup(ctx, name, change)
		}
		change.Seen.Add(3)
		select {
		case err := <-s.goOn:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func TestSlowFSGroupChange(t *testing.T) {
	w := newWorld(t, noAttach)
	w.volume("data")
	w.volume("other")
	slow := slowChanges()
	agent, _ := w.agent(slow.slow, func(c *Config) { c.fsGroupEventDelay, c.fsGroupEventInterval = time.Millisecond, 20*time.Millisecond })
	pod := w.podWith("p", withGroup(corev1.FSGroupChangeAlways), "data")
	agent.SetPod(pod)
	where := string(pod.UID) + "/volumes/kubernetes.io~csi/" + w.name + "-data/mount"
	w.untilEvent(pod, "VolumePermissionChangeInProgress: Setting volume ownership for "+where+" is taking longer than expected, consider using OnRootMismatch - https://kubernetes.io/docs/")
	w.untilEvent(pod, "VolumePermissionChangeInProgress: Setting volume ownership for "+where+", processed 3 files.")
	w.waitSays(agent, pod, "is waiting for the ownership of its files to be set to fsGroup 54321, 3 files so far")
	other := w.podWith("other", nil, "other")
	agent.SetPod(other)
	w.mounted(agent, other)

	// The pod is deleted: the change ends, and the unmount starts immediately.
	agent.RemovePod(pod.UID)
	w.unmounted(agent, pod)
	wait.Until(w, "unstaged", func() bool { return slices.Contains(w.driver.Made(), "Unstage data") })
	if slow.begun.Load() != 1 {
		t.Errorf("changed %d times", slow.begun.Load())
	}
	w.never(agent, pod, "FailedMount")
}

// never fails the test if the pod has an event with the text.
func (w *world) never(agent *Agent, pod *corev1.Pod, word string) {
	w.Helper()
	agent.volumes.reports.events.Event(pod, corev1.EventTypeNormal, "TestEvent", "the last one") // events are sent in their order
	w.untilEvent(pod, "TestEvent")
	list, err := w.admin.CoreV1().Events(w.name).List(w.ctx, metav1.ListOptions{})
	must(w, err)
	for _, e := range list.Items {
		if e.InvolvedObject.UID == pod.UID && strings.Contains(e.Reason+": "+e.Message, word) {
			w.Errorf("pod %s has the event %s: %s", pod.Name, e.Reason, e.Message)
		}
	}
}

func TestFailedFSGroupChangeIsReportedAndRetried(t *testing.T) {
	w := newWorld(t, noAttach)
	w.volume("data")
	slow := slowChanges()
	slow.goOn <- fmt.Errorf("list %q: %w", "lost+found", syscall.EIO)
	agent, _ := w.agent(slow.slow)
	pod := w.podWith("p", withGroup(corev1.FSGroupChangeAlways), "data")
	agent.SetPod(pod)
	w.untilEvent(pod, `FailedMount: MountVolume.SetUp failed for volume "`+w.name+`-data" : applyFSGroup failed for vol h-`+w.name+`-data: list "lost+found": input/output error`)
	w.mounted(agent, pod)
	if got := owner(t, w.target(pod)); got != "54321 2770" {
		t.Errorf("the volume is %s", got)
	}
}

// TestInterruptedFSGroupChangeIsRepeated: by a crash, for example.
func TestInterruptedFSGroupChangeIsRepeated(t *testing.T) {
	w := newWorld(t, noAttach)
	w.volume("data")
	slow := slowChanges()
	agent, stop := w.agent(slow.slow)
	pod := w.podWith("p", withGroup(corev1.FSGroupChangeOnRootMismatch), "data")
	agent.SetPod(pod)
	wait.Until(w, "the change has begun", func() bool { return slow.begun.Load() == 1 })
	// Now the disk has what a crash leaves.
	names, err := filepath.Glob(filepath.Join(w.root, recordsDir, "*.publish.json"))
	must(t, err)
	raw, err := os.ReadFile(names[0])
	must(t, err)
	record, err := nodevolume.DecodeRecord(raw)
	must(t, err)
	if record.Confirmed {
		t.Error("the publish is recorded as confirmed before the volume belongs to the group")
	}
	stop()
	agent, _ = w.agent()
	agent.SetPod(pod)
	agent.PodsSynced()
	w.mounted(agent, pod)
	if got := owner(t, w.target(pod)); got != "54321 2770" {
		t.Errorf("after the restart the volume is %s", got)
	}
	if diff := cmp.Diff([]string{"Stage data", "Publish data", "Publish data"}, w.driver.Made()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// TestGroupOfAnInterruptedChangeBefore: a change from one group to another ends midway because its pod is removed, and the next pod has
// the first group again.
func TestGroupOfAnInterruptedChangeBefore(t *testing.T) {
	w := newWorld(t, noAttach)
	w.volume("data")
	volume := w.realMounts()
	const files = 60
	for i := range files {
		must(t, os.MkdirAll(filepath.Join(volume, fmt.Sprint(i%6)), 0o755))
		must(t, os.WriteFile(filepath.Join(volume, fmt.Sprint(i%6), fmt.Sprint(i)), nil, 0o600))
	}
	interrupted := make(chan struct{})
	agent, _ := w.agent(func(c *Config) {
		c.changeGroup = func(root *mount.Root, ctx context.Context, name string, change *mount.GroupChange) error {
			if change.GID == testGroup {
				return root.ChangeGroup(ctx, name, change)
			}
			return root.ChangeGroup(&endsMidway{Context: ctx, change: change, files: files / 2, end: func() { close(interrupted); <-ctx.Done() }}, name, change)
		}
	})
	run := func(name string, gid int64) *corev1.Pod {
		t.Helper()
		pod := w.podWith(name, func(p *corev1.Pod) {
			withGroup(corev1.FSGroupChangeOnRootMismatch)(p)
			p.Spec.SecurityContext.FSGroup = &gid
		}, "data")
		agent.SetPod(pod)
		return pod
	}
	pod := run("first", testGroup)
	w.mounted(agent, pod)
	agent.RemovePod(pod.UID)
	w.unmounted(agent, pod)
	pod = run("other-group", testGroup+1)
	<-interrupted
	agent.RemovePod(pod.UID)
	w.unmounted(agent, pod)
	pod = run("first-group-again", testGroup)
	w.mounted(agent, pod)
	var wrong int
	must(t, filepath.WalkDir(volume, func(path string, _ os.DirEntry, err error) error {
		must(t, err)
		if !strings.HasPrefix(owner(t, path), fmt.Sprint(testGroup, " ")) {
			wrong++
		}
		return nil
	}))
	if wrong > 0 {
		t.Errorf("mounted with %d of %d files of another group", wrong, files+7)
	}
}

// endsMidway is a context whose end is awaited once so many files were seen.
type endsMidway struct {
	context.Context
	change *mount.GroupChange
	files  int64
	end    func()
}

func (e *endsMidway) Err() error {
	if e.change.Seen.Load() >= e.files && e.end != nil {
		e.end()
		e.end = nil
	}
	return e.Context.Err()
}

func TestFileSystemWithoutFSGroupSupportIsMounted(t *testing.T) {
	w := newWorld(t, noAttach)
	w.volume("data")
	var once sync.Once
	agent, _ := w.agent(func(c *Config) {
		c.changeGroup = func(_ *mount.Root, _ context.Context, _ string, change *mount.GroupChange) error {
			once.Do(func() {
				change.Refused.Add(2)
				change.FirstRefusal = errors.New("change the group of \"/x\": operation not permitted")
			})
			return nil
		}
	})
	pod := w.podWith("p", withGroup(corev1.FSGroupChangeAlways), "data")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	w.untilEvent(pod, "VolumePermissionChangeRefused", "refused 2 changes for fsGroup 54321", "operation not permitted")
}
