package nodeagent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodeagent/plugins"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

// TestClaimNotBoundToItsVolume: no call is made until the claim is bound to the volume.
func TestClaimNotBoundToItsVolume(t *testing.T) {
	changePV := func(w *world, name string, change func(*corev1.PersistentVolume)) {
		w.Helper()
		volumes := w.admin.CoreV1().PersistentVolumes()
		pv, err := volumes.Get(w.ctx, w.name+"-"+name, metav1.GetOptions{})
		must(w, err)
		change(pv)
		_, err = volumes.Update(w.ctx, pv, metav1.UpdateOptions{})
		must(w, err)
	}
	bindTo := func(w *world, pv, claim string) {
		object, err := w.admin.CoreV1().PersistentVolumeClaims(w.name).Get(w.ctx, claim, metav1.GetOptions{})
		must(w, err)
		changePV(w, pv, func(pv *corev1.PersistentVolume) {
			pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: w.name, Name: claim, UID: object.UID}
		})
	}
	terminate := func(finalizer string) func(*world) {
		return func(w *world) {
			w.volume("data")
			claims := w.admin.CoreV1().PersistentVolumeClaims(w.name)
			claim, err := claims.Get(w.ctx, "data", metav1.GetOptions{})
			must(w, err)
			claim.Finalizers = []string{finalizer}
			_, err = claims.Update(w.ctx, claim, metav1.UpdateOptions{})
			must(w, err)
			must(w, claims.Delete(w.ctx, "data", metav1.DeleteOptions{}))
		}
	}
	tests := map[string]struct {
		make func(*world)
		pod  func(*corev1.Pod)
		says string
		mend func(*world) // nil: it cannot be
	}{
		"the claim's name is too long": {func(w *world) { w.volume("data") }, func(pod *corev1.Pod) {
			pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = strings.Repeat("x", 1<<20)
		}, kube.NoName, nil},
		"the volume's name is too long": {func(w *world) {
			claims := w.admin.CoreV1().PersistentVolumeClaims(w.name)
			claim, err := claims.Create(w.ctx, fixture.Claim(w.name, "data", fixture.PersistentVolume(strings.Repeat("x", 1<<20), "", "")), metav1.CreateOptions{})
			must(w, err)
			claim.Status.Phase = corev1.ClaimBound
			_, err = claims.UpdateStatus(w.ctx, claim, metav1.UpdateOptions{})
			must(w, err)
		}, nil, kube.NoName, nil},
		"being deleted":                {terminate("test.belay.dev/last"), nil, "PVC is being deleted", nil},
		"being deleted, and protected": {terminate("kubernetes.io/pvc-protection"), nil, "", nil},
		"the volume is another one's": {func(w *world) {
			w.volume("data")
			changePV(w, "data", func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "of-an-earlier-one" })
		}, nil, "(the UIDs differ)", func(w *world) { bindTo(w, "data", "data") }},
		"the volume is of another mode": {func(w *world) {
			w.volume("block", blockVolume)
			claims := w.admin.CoreV1().PersistentVolumeClaims(w.name)
			claim, err := claims.Create(w.ctx, &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: w.name},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeName: w.name + "-block",
					StorageClassName: new(""), Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
						corev1.ResourceStorage: resource.MustParse("1Gi"),
					}},
				},
			}, metav1.CreateOptions{})
			must(w, err)
			claim.Status.Phase = corev1.ClaimBound
			_, err = claims.UpdateStatus(w.ctx, claim, metav1.UpdateOptions{})
			must(w, err)
			bindTo(w, "block", "data")
		}, asDevice, "has volumeMode Block, its claim ", nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, noAttach)
			test.make(w)
			agent, _ := w.agent()
			pod := w.podWith("p", test.pod, "data")
			agent.SetPod(pod)
			if test.says != "" {
				w.waitSays(agent, pod, test.says)
				w.callsAre()
			}
			if test.mend != nil {
				test.mend(w)
			}
			if test.mend != nil || test.says == "" {
				w.mounted(agent, pod)
			}
		})
	}
}

// TestDeletingAttachmentDoesNotCount, although its status says that it is attached.
func TestDeletingAttachmentDoesNotCount(t *testing.T) {
	w := newWorld(t)
	handle := w.volume("data")
	agent, _ := w.agent()
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilInUse(handle)
	api, full := w.admin.StorageV1().VolumeAttachments(), w.name+"-data"
	va, err := api.Create(w.ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: kube.AttachmentName(handle, w.driverName(), w.name), Finalizers: []string{"test.belay.dev/last"}},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: w.driverName(), NodeName: w.name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &full},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	va.Status.Attached = true
	_, err = api.UpdateStatus(w.ctx, va, metav1.UpdateOptions{})
	must(t, err)
	must(t, api.Delete(w.ctx, va.Name, metav1.DeleteOptions{}))
	must(t, w.report(handle, true))
	w.untilEvent(pod, `FailedMount: MountVolume.WaitForAttach failed for volume "`+full+`" : volume attachment is being deleted`)
	w.callsAre()
	_, err = api.Patch(w.ctx, va.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	must(t, err)
	w.attach(handle)
	w.mounted(agent, pod)
}

// TestRootWithoutMountPropagationIsLogged: mounts of drivers in containers do not become visible there.
func TestRootWithoutMountPropagationIsLogged(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	for name, test := range map[string]struct {
		flag   uintptr
		logged int
	}{"private": {unix.MS_PRIVATE, 1}, "shared": {unix.MS_SHARED, 0}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			must(t, unix.Mount(w.root, w.root, "", unix.MS_BIND, ""))
			t.Cleanup(func() { must(t, unix.Unmount(w.root, unix.MNT_DETACH)) })
			must(t, unix.Mount("", w.root, "", test.flag, ""))
			var log lines
			agent, _ := w.agent(func(c *Config) { c.MountPoints, c.Logger = nil, log.logger() })
			wait.Until(w, "it is at work", func() bool { return agent.Ready() == nil })
			if got := log.with("do not propagate"); len(got) != test.logged {
				t.Errorf("logged %q, want %d times", got, test.logged)
			}
		})
	}
}

// TestPodInfoAndTokensAreNotStored among the volume's own attributes: those are passed on with later calls, whatever
// the CSIDriver asks for by then.
func TestPodInfoAndTokensAreNotStored(t *testing.T) {
	forEver := time.Now().Add(24 * time.Hour)
	pods := newPodManager(Config{}, nil, nil, newSchedule(), nil, podHandlers{})
	defer pods.queue.ShutDown()
	pods.known["uid"] = &pod{tokens: &tokenCache{
		tokens: map[tokenKey]cachedToken{{audience: "vault"}: {
			status:  authenticationv1.TokenRequestStatus{Token: "token", ExpirationTimestamp: metav1.NewTime(forEver)},
			renewAt: forEver,
		}},
	}}
	requests := &requests{pods: pods}
	for name, rules := range map[string]plugins.Rules{
		"the pod":            {PodInfo: true},
		"tokens":             {Tokens: []storagev1.TokenRequest{{Audience: "vault"}}},
		"the pod and tokens": {PodInfo: true, Tokens: []storagev1.TokenRequest{{Audience: "vault"}}},
	} {
		t.Run(name, func(t *testing.T) {
			own := map[string]string{"pool": "fast"}
			c := driverCall{toMount: &volumeToMount{attributes: own, pod: podIdentity{UID: "uid", Name: "p"}}, rules: rules}
			call := csi.NodeVolume{Context: c.volumeContext(), Secrets: map[string]string{}}
			must(t, requests.addTokens(t.Context(), c, &call))
			if len(call.Context) < 2 {
				t.Errorf("the driver got %v", call.Context)
			}
			if diff := cmp.Diff(map[string]string{"pool": "fast"}, own); diff != "" {
				t.Errorf("the volume's own attributes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPartialWritesOfDeadAgentAreRemoved together with the volume.
func TestPartialWritesOfDeadAgentAreRemoved(t *testing.T) {
	for name, block := range map[string]bool{"file system": false, "block": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, noAttach)
			full, dirs := w.name+"-data", []string{}
			agent, _ := w.agent()
			var pod *corev1.Pod
			if block {
				w.volume("data", blockVolume)
				pod = w.podWith("p", asDevice, "data")
				dirs = append(dirs, filepath.Join(blockDir, full, "data"))
			} else {
				handle := w.volume("data")
				pod = w.pod("p", "data")
				dirs = append(dirs, filepath.Join("plugins/kubernetes.io/csi", w.driverName(), hash(handle)),
					filepath.Join(podVolumesDir(string(pod.UID)), full))
			}
			agent.SetPod(pod)
			w.mounted(agent, pod)
			for _, dir := range dirs {
				must(t, os.WriteFile(filepath.Join(w.root, dir, ".tmp-"+volumeData), []byte("{"), 0o600))
			}
			agent.RemovePod(pod.UID)
			w.unmounted(agent, pod)
			w.untilNothingIsLeft()
		})
	}
}

// TestMountOptionAnnotationIsIgnored: the options in the annotation are for in-tree plugins, from which a volume may
// have been migrated.
func TestMountOptionAnnotationIsIgnored(t *testing.T) {
	w, err := newVolumeToMount(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv", Annotations: map[string]string{corev1.MountOptionAnnotation: "noexec"}},
		Spec: corev1.PersistentVolumeSpec{
			MountOptions:           []string{"noatime"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}},
		},
	})
	must(t, err)
	if !slices.Equal(w.mountOptions, []string{"noatime"}) {
		t.Errorf("mount options %q", w.mountOptions)
	}
}
