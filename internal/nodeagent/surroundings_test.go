package nodeagent

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/wait"
)

// smallDisk mounts a disk of a few pages where the records lie. full fills it, and makes room again.
func (w *world) smallDisk() (full func(is bool)) {
	w.Helper()
	if os.Getuid() != 0 {
		w.Skip("needs root to mount")
	}
	dir := filepath.Join(w.root, "belay")
	must(w, os.MkdirAll(dir, 0o750))
	must(w, unix.Mount("records", dir, "tmpfs", 0, "size=64k"))
	w.Cleanup(func() { must(w, unix.Unmount(dir, unix.MNT_DETACH)) })
	ballast := filepath.Join(dir, "ballast")
	return func(is bool) {
		w.Helper()
		if !is {
			must(w, os.Remove(ballast))
			return
		}
		file, err := os.Create(ballast)
		must(w, err)
		defer file.Close()
		for err == nil {
			_, err = file.Write(make([]byte, 4096))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			w.Fatal(err)
		}
	}
}

// TestFullDisk: without a record nothing is called, and the pod gets an event. Mounted volumes can be unmounted
// nevertheless: one of them may be what fills the disk.
func TestFullDisk(t *testing.T) {
	w := newWorld(t)
	full := w.smallDisk()
	l := w.live()
	w.volume("other")
	full(true)
	second := w.pod("second", "data") // staged already
	l.agent.SetPod(second)
	w.untilEvent(second, "FailedMount", `MountVolume.SetUp failed`, "record the publish of volume "+l.handle, "no space left on device", "free space on the file system of "+w.root)
	third := w.pod("third", "other")
	l.agent.SetPod(third)
	w.untilInUse("h-" + w.name + "-other")
	w.attach("h-" + w.name + "-other")
	w.untilEvent(third, "FailedMount", `MountVolume.MountDevice failed`, "record the stage of volume", "no space left on device")
	if diff := cmp.Diff([]string{"Stage data", "Publish data"}, w.driver.Made()); diff != "" {
		t.Errorf("called without a record (-want +got):\n%s", diff)
	}
	l.agent.RemovePod(second.UID)
	l.agent.RemovePod(third.UID)
	l.agent.RemovePod(l.pod.UID)
	w.untilNotInUse(l.handle)
	if diff := cmp.Diff([]string{"Stage data", "Publish data", "Unpublish data", "Unstage data"}, w.driver.Made()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	full(false)
	fourth := w.pod("fourth", "other")
	w.bringUpAttached(l.agent, fourth)
}

// TestFullDiskDuringUnmountAndRestart: the agent ends while the disk is full and an unmount has started. No step of it
// is forgotten.
func TestFullDiskDuringUnmountAndRestart(t *testing.T) {
	w := newWorld(t)
	full := w.smallDisk()
	l := w.live()
	full(true)
	reached, dead := make(chan struct{}, 10), make(chan struct{})
	w.driver.Intercept(func(call string, _ any, do func() (any, error)) (any, error) {
		if call == "NodeUnstageVolume" {
			reached <- struct{}{}
			<-dead
		}
		return do()
	})
	l.agent.RemovePod(l.pod.UID)
	wait.For(t, "the call to arrive", reached)
	l.stop()
	w.driver.Intercept(nil)
	close(dead)
	second := w.pod("second", "data")
	agent, _ := w.agent()
	agent.volumes.mu.Lock()
	for _, v := range agent.volumes.all {
		if !v.state.Stage.Record.Leaving || v.state.Stage.Record.Confirmed {
			t.Errorf("the stage is taken for %s, and its unstage was under way: %+v", v.state.Stage.Phase, v.state.Stage.Record)
		}
	}
	agent.volumes.mu.Unlock()
	agent.SetPod(second)
	agent.PodsSynced()
	full(false)
	w.bringUpAttached(agent, second)
}

// TestRootBecomesReadOnly, as an ext4 file system does after an I/O error.
func TestRootBecomesReadOnly(t *testing.T) {
	w := newWorld(t)
	w.smallDisk()
	l := w.live()
	dir := filepath.Join(w.root, "belay")
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	second := w.pod("second", "data")
	l.agent.SetPod(second)
	w.untilEvent(second, "FailedMount", "read-only file system", "make "+w.root+" writable")
	l.agent.RemovePod(l.pod.UID)
	w.untilEvent(l.pod, "FailedUnmount", "read-only file system")
	if !slices.Contains(w.node().Status.VolumesInUse, w.unique(l.handle)) {
		t.Error("S7: staged, and not in use")
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, ""))
	w.mounted(l.agent, second)
	w.unmounted(l.agent, l.pod)
	l.agent.RemovePod(second.UID)
	w.untilNotInUse(l.handle)
}

// TestRootIsReadOnlyAtStart: the agent reports it and exits.
func TestRootIsReadOnlyAtStart(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	dir := t.TempDir()
	must(t, unix.Mount("root", dir, "tmpfs", unix.MS_RDONLY, ""))
	defer func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	_, err := New(Config{NodeName: "n", Root: dir, RESTConfig: &rest.Config{}, BootID: "b"})
	if !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), "make "+dir+" writable") || strings.Contains(err.Error(), "another") {
		t.Errorf("error: %v", err)
	}
}

// TestOneUnreadableRecord: a record is on a bad block (EIO). The agent starts, that volume stays in use and staged, and
// other volumes are processed.
func TestOneUnreadableRecord(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	w := newWorld(t)
	l := w.live()
	other := w.volume("other")
	second := w.pod("second", "other")
	w.bringUp(l.agent, second, other)
	l.stop()
	record := filepath.Join(w.root, recordPath(stageRecordName(string(w.unique(l.handle)))))
	must(t, unix.Mount("/proc/self/mem", record, "", unix.MS_BIND, "")) // reading it from the beginning is an I/O error
	defer func() { must(t, unix.Unmount(record, unix.MNT_DETACH)) }()
	if _, err := os.ReadFile(record); !errors.Is(err, syscall.EIO) {
		t.Fatalf("reading it: %v", err)
	}
	must(t, os.Remove(filepath.Join(w.root, csiDir, w.driverName(), hash(l.handle), volumeData))) // which would identify the volume
	agent, _ := w.agent()
	agent.PodsSynced()
	w.untilNotInUse(other)
	w.untilHeld(agent, l.handle, nodevolume.UnaccountedMount)
	if calls := w.callsOf("data"); slices.Contains(calls, "Unstage") || !slices.Contains(w.node().Status.VolumesInUse, w.unique(l.handle)) {
		t.Errorf("S7: calls %v, in use %v", calls, w.node().Status.VolumesInUse)
	}
}

// TestSymlinkOutOfTheRoot: it is refused at the start, with an error that explains it.
func TestSymlinkOutOfTheRoot(t *testing.T) {
	for _, name := range []string{"pods", "plugins", "belay"} {
		root := t.TempDir()
		must(t, os.Symlink(t.TempDir(), filepath.Join(root, name)))
		_, err := New(Config{NodeName: "n", Root: root, RESTConfig: &rest.Config{}, BootID: "b"})
		if err == nil || !strings.Contains(err.Error(), filepath.Join(root, name)+": it is a symbolic link that leads out of the root") ||
			!strings.Contains(err.Error(), "mount --rbind TARGET DIRECTORY") {
			t.Errorf("%s: error: %v", name, err)
		}
	}
}

// TestMissingPermission: an event on the pod names the permission, and all pods continue when it is granted.
func TestMissingPermission(t *testing.T) {
	tests := map[string]struct {
		resource string
		verbs    []string
		event    []string
	}{
		"claims":             {"persistentvolumeclaims", []string{"get"}, []string{"ClaimNotReady", "read claim", `cannot get resource "persistentvolumeclaims"`}},
		"volumes":            {"persistentvolumes", []string{"get"}, []string{"ClaimNotReady", "read volume", `cannot get resource "persistentvolumes"`}},
		"attachments":        {"volumeattachments", []string{"get"}, []string{"MountVolume.WaitForAttach failed", `cannot get resource "volumeattachments"`}},
		"secrets":            {"secrets", []string{"get"}, []string{"MountVolume.MountDevice failed", "read secret", `cannot get resource "secrets"`}},
		"reading the node":   {"nodes", []string{"get", "list", "watch"}, []string{"(NodeUnknown)", `cannot get resource "nodes"`}},
		"writing the node":   {"nodes/status", []string{"patch"}, []string{"(NotReportedInUse)", `cannot patch resource "nodes/status"`}},
		"listing csidrivers": {"csidrivers", []string{"list", "watch"}, []string{"(AttachabilityUnknown)", `cannot list resource "csidrivers"`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			role := w.robot()
			granted := role.Rules
			role.Rules = without(granted, test.resource, test.verbs)
			role = w.grant(role)
			_, err := w.admin.CoreV1().Secrets(w.name).Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"}}, metav1.CreateOptions{})
			must(t, err)
			handle := w.volume("data", func(pv *corev1.PersistentVolume) {
				pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: w.name, Name: "key"}
			})
			agent, _ := w.agent(func(c *Config) { c.waitEventDelay, c.claimEventDelay = time.Second, time.Second })
			w.attach(handle)
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			w.untilEvent(pod, append(test.event, "FailedMount", "deploy/belay-node")...)
			if calls := w.driver.Made(); len(calls) > 0 {
				t.Errorf("called all the same: %v", calls)
			}
			role.Rules = granted
			_, err = w.admin.RbacV1().ClusterRoles().Update(w.ctx, role, metav1.UpdateOptions{})
			must(t, err)
			w.mounted(agent, pod)
		})
	}
}

// robot gives the agent an identity with only the permissions that [world.grant] grants, and returns the shipped roles as one.
func (w *world) robot() *rbacv1.ClusterRole {
	w.Helper()
	w.nodeID = server.User(w, "robot-"+w.name)
	shipped := apiserver.Decode[rbacv1.ClusterRole](w, apiserver.Manifests(w, "../../deploy/belay-node/belay-node.yaml", "../../deploy/belay-node/rbac-secrets.yaml"), "ClusterRole")
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: w.name}}
	for _, part := range shipped {
		role.Rules = append(role.Rules, part.Rules...)
	}
	return role
}

// grant gives the role to the robot.
func (w *world) grant(role *rbacv1.ClusterRole) *rbacv1.ClusterRole {
	w.Helper()
	server.Grant(w, role, "robot-"+w.name)
	return role
}

// without are the rules that do not grant the verbs on the resource.
func without(rules []rbacv1.PolicyRule, resource string, verbs []string) []rbacv1.PolicyRule {
	var left []rbacv1.PolicyRule
	for _, rule := range rules {
		kept := *rule.DeepCopy()
		if !slices.Contains(rule.Resources, resource) {
			left = append(left, kept)
			continue
		}
		kept.Resources = slices.DeleteFunc(kept.Resources, func(r string) bool { return r == resource })
		if len(kept.Resources) > 0 {
			left = append(left, kept)
		}
		kept = *rule.DeepCopy()
		kept.Resources = []string{resource}
		kept.Verbs = slices.DeleteFunc(kept.Verbs, func(v string) bool { return slices.Contains(verbs, v) })
		if len(kept.Verbs) > 0 {
			left = append(left, kept)
		}
	}
	return left
}

// bringUpAttached sets a pod whose volumes are attached already, and waits until they are mounted.
func (w *world) bringUpAttached(agent *Agent, pod *corev1.Pod) {
	w.Helper()
	agent.SetPod(pod)
	w.mounted(agent, pod)
}
