package nodeagent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

const (
	level1, level2   = "s0:c0,c1", "s0:c98,c99"
	label1           = "system_u:object_r:container_file_t:" + level1
	option1, option2 = `context="` + label1 + `"`, `context="system_u:object_r:container_file_t:` + level2 + `"`
)

func mountsLabels(d *storagev1.CSIDriver) { d.Spec.SELinuxMount = new(true) }

// flags are the mount options of the last stage and publish.
func (w *world) flags() (staged, published []string) {
	w.Helper()
	return csidriver.LastRequest[*csispec.NodeStageVolumeRequest](w.driver).VolumeCapability.GetMount().MountFlags,
		csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver).VolumeCapability.GetMount().MountFlags
}

func (w *world) wantFlags(want ...string) {
	w.Helper()
	staged, published := w.flags()
	if !slices.Equal(staged, want) || !slices.Equal(published, want) {
		w.Errorf("staged with %q, published with %q, want %q", staged, published, want)
	}
}

// csiDriverTakesLabels changes the CSIDriver, and waits until the agent knows.
func (w *world) csiDriverTakesLabels(agent *Agent, is bool) {
	w.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"seLinuxMount":%v}}`, is)
	_, err := w.admin.StorageV1().CSIDrivers().Patch(w.ctx, w.driverName(), "application/merge-patch+json", patch, metav1.PatchOptions{})
	must(w, err)
	wait.Until(w, "the CSIDriver is known", func() bool { return agent.plugins.Rules(w.driverName()).SELinux == is })
}

// TestUpstreamSELinuxMount is csi_selinux_mount of upstream's e2e tests with the gates as they are by
// default: a pod with a label, and then another one for the same volume.
func TestUpstreamSELinuxMount(t *testing.T) {
	rwop, rwo, rwx := corev1.ReadWriteOncePod, corev1.ReadWriteOnce, corev1.ReadWriteMany
	tests := map[string]struct {
		notByDriver   bool
		mode          corev1.PersistentVolumeAccessMode
		options       []string
		first, second []func(*corev1.Pod)
		want, then    []string
		unstaged      bool
	}{
		"should pass SELinux mount option for RWOP volume and Pod with SELinux context set": {
			mode: rwop, first: []func(*corev1.Pod){labelled(level1)}, want: []string{option1},
		},
		"should add SELinux mount option to existing mount options": {
			mode: rwop, options: []string{"noexec", "noatime"}, first: []func(*corev1.Pod){labelled(level1)}, want: []string{"noexec", "noatime", option1},
		},
		"should not pass SELinux mount option for RWO volume with SELinuxMount disabled":                      {mode: rwo, first: []func(*corev1.Pod){labelled(level1)}},
		"should not pass SELinux mount option for RWO volume with only SELinuxChangePolicy enabled":           {mode: rwo, first: []func(*corev1.Pod){labelled(level1)}},
		"should not pass SELinux mount option for RWO volume with SELinuxMount disabled and Recursive policy": {mode: rwo, first: []func(*corev1.Pod){labelled(level1), recursively}},
		"should not pass SELinux mount option for Pod without SELinux context":                                {mode: rwop},
		"should not pass SELinux mount option for CSI driver that does not support SELinux mount":             {mode: rwop, notByDriver: true, first: []func(*corev1.Pod){labelled(level1)}},
		"should not unstage RWOP volume when starting a second pod with the same SELinux context": {
			mode: rwop, first: []func(*corev1.Pod){labelled(level1)}, second: []func(*corev1.Pod){labelled(level1)}, want: []string{option1}, then: []string{option1},
		},
		"should unstage RWOP volume when starting a second pod with different SELinux context": {
			mode: rwop, first: []func(*corev1.Pod){labelled(level1)}, second: []func(*corev1.Pod){labelled(level2)}, want: []string{option1}, then: []string{option2}, unstaged: true,
		},
		// Of the volume manager's desired state of the world: one pod.
		"RWOP: ReadWriteOncePod with all SELinux options":             {mode: rwop, first: []func(*corev1.Pod){labelled(level1), inFull}, want: []string{option1}},
		"RWOP+ChangePolicy: ReadWriteOncePod with MountOption policy": {mode: rwop, first: []func(*corev1.Pod){labelled(level1), byMountOption}, want: []string{option1}},
		"RWOP+ChangePolicy: ReadWriteMany with the default policy":    {mode: rwx, first: []func(*corev1.Pod){labelled(level1), inFull}},
		"RWOP+ChangePolicy: ReadWriteMany with Recursive policy":      {mode: rwx, first: []func(*corev1.Pod){labelled(level1), recursively}},
		"RWOP+ChangePolicy: ReadWriteMany with MountOption policy":    {mode: rwx, first: []func(*corev1.Pod){labelled(level1), byMountOption}},
		// And two pods.
		"RWOP+ChangePolicy: ReadWriteOncePod with the same SELinux options and same Recursive policy": {
			mode: rwop, first: []func(*corev1.Pod){labelled(level1), recursively}, second: []func(*corev1.Pod){labelled(level1), recursively},
		},
		"RWOP+ChangePolicy: ReadWriteOncePod with the same SELinux options and conflicting policies": {
			mode: rwop, first: []func(*corev1.Pod){labelled(level1), recursively}, second: []func(*corev1.Pod){labelled(level1)}, then: []string{option1}, unstaged: true,
		},
		// Of testsuites/selinuxmount.go.
		"Pod with RWOP volume and the default policy":  {mode: rwop, first: []func(*corev1.Pod){labelled(level1)}, want: []string{option1}},
		"Pod with RWOP volume and recursive policy":    {mode: rwop, first: []func(*corev1.Pod){labelled(level1), recursively}},
		"Pod with RWO and recursive policy":            {mode: rwo, first: []func(*corev1.Pod){labelled(level1), recursively}},
		"and with different policies":                  {mode: rwop, first: []func(*corev1.Pod){labelled(level1)}, second: []func(*corev1.Pod){labelled(level1), recursively}, want: []string{option1}, unstaged: true},
		"and where the driver has no label to tell of": {mode: rwop, notByDriver: true, first: []func(*corev1.Pod){labelled(level1)}, second: []func(*corev1.Pod){labelled(level2)}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newAttachedWorld(t, func(d *storagev1.CSIDriver) { d.Spec.SELinuxMount = new(!test.notByDriver) })
			w.volume("data", accessModes(test.mode), func(pv *corev1.PersistentVolume) { pv.Spec.MountOptions = test.options })
			agent, _ := w.agent(withSELinux)
			first := w.podWithPolicy("first", test.first, "data")
			agent.SetPod(first)
			w.mounted(agent, first)
			w.wantFlags(test.want...)
			if test.second == nil {
				return
			}
			second := w.podWithPolicy("second", test.second, "data")
			agent.SetPod(second)
			waits := "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
			if test.unstaged {
				waits = "conflicting SELinux labels of volume " + w.name + `-data: "` + map[bool]string{true: label1}[test.want != nil] + `" and "`
			}
			w.waitSays(agent, second, waits)
			agent.RemovePod(first.UID)
			w.mounted(agent, second)
			life := []string{"Stage data", "Publish data", "Unpublish data", "Publish data"}
			if test.unstaged {
				life = slices.Insert(life, 3, "Unstage data", "Stage data")
			}
			w.callsAre(life...)
			w.wantFlags(test.then...)
		})
	}
	t.Run("should not include selinux mount option, if feature gate is enabled but CSIDriver does not exist", func(t *testing.T) {
		w := newWorld(t)
		handle := w.volume("data", accessModes(rwop))
		agent, _ := w.agent(withSELinux)
		w.bringUp(agent, w.podWith("p", labelled(level1), "data"), handle)
		w.wantFlags()
	})
}

// podWithPolicy creates a pod with the changes. By default the API server does not accept the policy MountOption; the
// agent gets it nevertheless, as from an API server of another version.
func (w *world) podWithPolicy(name string, changes []func(*corev1.Pod), claim string) *corev1.Pod {
	w.Helper()
	var policy *corev1.PodSELinuxChangePolicy
	pod := w.podWith(name, func(p *corev1.Pod) {
		for _, change := range changes {
			change(p)
		}
		if security := p.Spec.SecurityContext; security != nil && security.SELinuxChangePolicy != nil && *security.SELinuxChangePolicy == corev1.SELinuxChangePolicyMountOption {
			policy, security.SELinuxChangePolicy = security.SELinuxChangePolicy, nil
		}
	}, claim)
	if policy != nil {
		pod.Spec.SecurityContext.SELinuxChangePolicy = policy
	}
	return pod
}

// TestUpstreamSELinuxConflicts are the cases of upstream's metrics, here for what becomes of two pods: only pods of a
// ReadWriteOncePod volume can conflict. belay has no such metrics.
func TestUpstreamSELinuxConflicts(t *testing.T) {
	tests := map[string]struct {
		mode          corev1.PersistentVolumeAccessMode
		first, second []func(*corev1.Pod)
		conflict      bool
	}{
		"warning is not bumped on two Pods with the same context on RWO volume":                         {corev1.ReadWriteOnce, []func(*corev1.Pod){labelled(level1)}, []func(*corev1.Pod){labelled(level1)}, false},
		"warning is bumped on two Pods with a different context on RWO volume":                          {corev1.ReadWriteOnce, []func(*corev1.Pod){labelled(level1)}, []func(*corev1.Pod){labelled(level2)}, false},
		"warning is bumped on two Pods with different policies on RWO volume":                           {corev1.ReadWriteOnce, []func(*corev1.Pod){labelled(level1)}, []func(*corev1.Pod){labelled(level1), recursively}, false},
		"warning is not bumped on two Pods with Recursive policy and a different context on RWO volume": {corev1.ReadWriteOnce, []func(*corev1.Pod){labelled(level1), recursively}, []func(*corev1.Pod){labelled(level2), recursively}, false},
		"error is bumped on two Pods with a different context on RWOP volume":                           {corev1.ReadWriteOncePod, []func(*corev1.Pod){labelled(level1)}, []func(*corev1.Pod){labelled(level2)}, true},
		"error is not bumped on two Pods with Recursive policy and a different context on RWX volume":   {corev1.ReadWriteMany, []func(*corev1.Pod){labelled(level1), recursively}, []func(*corev1.Pod){labelled(level2), recursively}, false},
		// Of the volume manager's desired state of the world and its populator.
		"RWOP: ReadWriteMany with the same SELinux options":                                        {corev1.ReadWriteMany, []func(*corev1.Pod){labelled(level1)}, []func(*corev1.Pod){labelled(level1)}, false},
		"mismatched SELinux with RWX - success":                                                    {corev1.ReadWriteMany, []func(*corev1.Pod){labelled(level1)}, []func(*corev1.Pod){labelled(level2)}, false},
		"RWOP+ChangePolicy: ReadWriteMany with the same SELinux options with Recursive policy":     {corev1.ReadWriteMany, []func(*corev1.Pod){labelled(level1), recursively}, []func(*corev1.Pod){labelled(level1), recursively}, false},
		"RWOP+ChangePolicy: ReadWriteMany with the same SELinux options with MountOption policy":   {corev1.ReadWriteMany, []func(*corev1.Pod){labelled(level1), byMountOption}, []func(*corev1.Pod){labelled(level1), byMountOption}, false},
		"RWOP+ChangePolicy: ReadWriteMany with the same SELinux options with conflicting policies": {corev1.ReadWriteMany, []func(*corev1.Pod){labelled(level1), byMountOption}, []func(*corev1.Pod){labelled(level1), recursively}, false},
		"RWOP+ChangePolicy: ReadWriteMany with conflicting SELinux options and MountOption policy": {corev1.ReadWriteMany, []func(*corev1.Pod){labelled(level1), byMountOption}, []func(*corev1.Pod){labelled(level2), byMountOption}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, noAttach, mountsLabels)
			w.volume("data", accessModes(test.mode))
			agent, _ := w.agent(withSELinux, func(c *Config) { c.waitEventDelay = 100 * time.Millisecond })
			first, second := w.podWithPolicy("first", test.first, "data"), w.podWithPolicy("second", test.second, "data")
			agent.SetPod(first)
			w.mounted(agent, first)
			agent.SetPod(second)
			if test.conflict {
				w.untilEvent(second, "FailedMount", "conflicting SELinux labels of volume "+w.name+"-data")
				w.callsAre("Stage data", "Publish data")
				return
			}
			w.mounted(agent, second)
			w.wantFlags()
		})
	}
}

// TestMountLabelIsKept: on disk, through a restart, when records are torn, and when the driver is called again for a
// running pod, whatever its CSIDriver asks for by then.
func TestMountLabelIsKept(t *testing.T) {
	w := newWorld(t, republishes, mountsLabels)
	handle := w.volume("data", accessModes(corev1.ReadWriteOncePod))
	agent, stop := w.agent(withSELinux)
	pod := w.podWith("p", labelled(level1), "data")
	if mounts := w.bringUp(agent, pod, handle); mounts[0].SELinuxLabel != label1 {
		t.Errorf("mounts with another label: %+v", mounts)
	}
	wantData(t, filepath.Join(w.root, csiDir, w.driverName(), hash(handle), volumeData), map[string]string{
		"driverName": w.driverName(), "volumeHandle": handle, "seLinuxMountContext": label1,
	})
	wantData(t, filepath.Join(w.root, podVolumesDir(string(pod.UID)), w.name+"-data", volumeData), map[string]string{
		"attachmentID": "csi-" + hash(handle+w.driverName()+w.name), "driverName": w.driverName(), "nodeName": w.name,
		"specVolID": w.name + "-data", "volumeHandle": handle, "volumeLifecycleMode": "Persistent", "seLinuxMountContext": label1,
	})
	stop()
	agent, stop = w.agent(withSELinux, every(20*time.Millisecond))
	agent.SetPod(pod)
	agent.PodsSynced()
	w.mounted(agent, pod)
	w.csiDriverTakesLabels(agent, false)
	w.untilPublished(w.driver.Count("Publish", "") + 3)
	w.wantFlags(option1)
	w.callsAre("Stage data", "Publish data")
	w.csiDriverTakesLabels(agent, true)
	stop()
	w.tearRecords()
	agent, _ = w.agent(withSELinux)
	next := w.podWith("next", labelled(level1), "data")
	w.follows(agent, next)
	w.mounted(agent, next)
	if calls := slices.Compact(w.driver.Made()); !slices.Contains(calls, "Unpublish data") || slices.Contains(calls, "Unstage data") {
		t.Errorf("calls %v, want that the torn record was known to be of the same label", calls)
	}
	w.wantFlags(option1)
}

// TestStageWithAnotherLabelIsUndoneAfterRestart: the records hold the label of a stage, torn records too.
func TestStageWithAnotherLabelIsUndoneAfterRestart(t *testing.T) {
	for name, torn := range map[string]bool{"records": false, "torn records": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, mountsLabels)
			handle := w.volume("data", accessModes(corev1.ReadWriteOncePod))
			agent, stop := w.agent(withSELinux)
			w.bringUp(agent, w.podWith("p", labelled(level1), "data"), handle)
			stop()
			if torn {
				w.tearRecords()
			}
			agent, _ = w.agent(withSELinux)
			next := w.podWith("next", labelled(level2), "data")
			w.follows(agent, next)
			w.mounted(agent, next)
			w.callsAre("Stage data", "Publish data", "Unpublish data", "Unstage data", "Stage data", "Publish data")
			w.wantFlags(option2)
		})
	}
}

// TestUpstreamRestartsWithAnotherLabel is the part of the disruptive e2e suite in which the next pod has another label.
func TestUpstreamRestartsWithAnotherLabel(t *testing.T) {
	for name, force := range map[string]bool{
		"deleted while the kubelet is down is usable by a new pod with a different SELinux context when kubelet returns":       false,
		"force deleted while the kubelet is down is usable by a new pod with a different SELinux context when kubelet returns": true,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, mountsLabels)
			handle := w.volume("data", accessModes(corev1.ReadWriteOncePod))
			agent, stop := w.agent(withSELinux)
			pod := w.podWith("p", labelled(level1), "data")
			w.bringUp(agent, pod, handle)
			stop()
			w.deletePod(pod, force)
			next := w.podWith("next", labelled(level2), "data")
			agent, _ = w.agent(withSELinux)
			go agent.FollowPods(w.ctx)
			w.unmounted(agent, pod)
			wait.Until(w, "the new pod is known", func() bool { return slices.Contains(agent.Pods(), next.UID) })
			w.mounted(agent, next)
			w.callsAre("Stage data", "Publish data", "Unpublish data", "Unstage data", "Stage data", "Publish data")
			w.wantFlags(option2)
		})
	}
}

// follows makes a pod the only one, once it is known which volumes it wants.
func (w *world) follows(agent *Agent, pod *corev1.Pod) {
	w.Helper()
	agent.SetPod(pod)
	wait.Until(w, "it is known what the pod wants", func() bool {
		agent.pods.mu.Lock()
		defer agent.pods.mu.Unlock()
		return agent.pods.known[pod.UID].resolved
	})
	agent.PodsSynced()
}

func (w *world) tearRecords() {
	w.Helper()
	records, err := filepath.Glob(filepath.Join(w.root, recordsDir, "*.json"))
	must(w, err)
	if len(records) == 0 {
		w.Fatal("there are no records")
	}
	for _, record := range records {
		must(w, os.WriteFile(record, nil, 0o600))
	}
}

// TestPodWithConflictingContainerLabelsIsRefused: immediately, with kubelet's message.
func TestPodWithConflictingContainerLabelsIsRefused(t *testing.T) {
	w := newWorld(t, noAttach, mountsLabels)
	w.volume("alone", accessModes(corev1.ReadWriteOncePod))
	w.volume("shared")
	disagree := func(p *corev1.Pod) {
		labelled(level1)(p)
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: "d", Image: "none", VolumeMounts: p.Spec.Containers[0].VolumeMounts,
			SecurityContext: &corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: level2}},
		})
	}
	agent, _ := w.agent(withSELinux)
	refused, shared := w.podWith("refused", disagree, "alone"), w.podWith("shared", disagree, "shared")
	agent.SetPod(refused)
	w.untilEvent(refused, "FailedMount", "Unable to attach or mount volumes", "multiple SELinux labels found: "+label1+",")
	if err := w.waitFails(agent, refused); strings.Contains(err.Error(), "deadline") {
		t.Errorf("the wait says: %v", err)
	}
	agent.SetPod(shared)
	w.mounted(agent, shared) // nothing is mounted with a label there
	if diff := cmp.Diff([]string{"Stage shared", "Publish shared"}, w.driver.Made()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// TestPodWaitingForAnotherLabelGetsEvent: the driver fails to unstage the volume that has another label.
func TestPodWaitingForAnotherLabelGetsEvent(t *testing.T) {
	w := newWorld(t, noAttach, mountsLabels)
	handle := w.volume("data", accessModes(corev1.ReadWriteOncePod))
	w.plays(script{"Unstage": times(always, codes.Internal)})
	agent, _ := w.agent(withSELinux, func(c *Config) { c.waitEventDelay = 100 * time.Millisecond })
	first, second := w.podWith("first", labelled(level1), "data"), w.podWith("second", labelled(level2), "data")
	agent.SetPod(first)
	w.mounted(agent, first)
	agent.SetPod(second)
	agent.RemovePod(first.UID)
	w.untilEvent(second, "FailedMount", `MountVolume.MountDevice failed for volume "`+w.name+`-data" : waiting since `,
		`waiting for unmount of volume "`+string(w.unique(handle))+`", because it is already mounted to a different pod with a different SELinux label`)
	w.plays(nil)
	w.mounted(agent, second)
	w.callsAre("Stage data", "Publish data", "Unpublish data", "Unstage data", "Stage data", "Publish data")
	w.wantFlags(option2)
}
