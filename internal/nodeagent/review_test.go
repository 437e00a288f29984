package nodeagent

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// rewritten changes every PersistentVolume that the agent reads on the wire: an API server of another version may
// accept what this one refuses.
func (w *world) rewritten(change func(pv *corev1.PersistentVolume)) {
	w.nodeID.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if !strings.Contains(r.URL.Path, "/persistentvolumes/") {
				return next.RoundTrip(r)
			}
			r = r.Clone(r.Context())
			r.Header.Set("Accept", "application/json")
			reply, err := next.RoundTrip(r)
			if err != nil {
				return nil, err
			}
			defer reply.Body.Close()
			var pv corev1.PersistentVolume
			if err := json.NewDecoder(reply.Body).Decode(&pv); err != nil {
				return nil, err
			}
			change(&pv)
			raw, err := json.Marshal(&pv)
			reply.Body, reply.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
			reply.Header.Del("Content-Length")
			return reply, err
		})
	})
}

// TestInvalidNamesAreRefused: nothing is written for names that lead elsewhere in a file system, or are not valid
// names, whether they come from the API or from the caller that sets the pods.
func TestInvalidNamesAreRefused(t *testing.T) {
	names := map[string]string{
		"up": "../../../../%s", "below": "a/%s", "newline": "a\n%s", "long": strings.Repeat("x", 4096), "dot": ".", "dots": "..", "empty": "", "nul": "a\x00%s",
	}
	fields := map[string]func(pv *corev1.PersistentVolume, pod *corev1.Pod, name string){
		"volume": func(pv *corev1.PersistentVolume, _ *corev1.Pod, name string) { pv.Name = name },
		"driver": func(pv *corev1.PersistentVolume, _ *corev1.Pod, name string) { pv.Spec.CSI.Driver = name },
		"handle": func(pv *corev1.PersistentVolume, _ *corev1.Pod, name string) { pv.Spec.CSI.VolumeHandle = name },
		"pod":    func(_ *corev1.PersistentVolume, pod *corev1.Pod, name string) { pod.UID = types.UID(name) },
	}
	for field, change := range fields {
		for kind, name := range names {
			if field == "handle" && (kind == "up" || kind == "below" || kind == "long" || kind == "dot" || kind == "dots") {
				continue // of handles only hashes get into paths: see TestHandlesOfAnyForm
			}
			t.Run(field+" "+kind, func(t *testing.T) {
				w := newWorld(t, noAttach)
				escaped := w.name + "-escaped"
				name := strings.ReplaceAll(name, "%s", escaped)
				w.volume("data")
				w.rewritten(func(pv *corev1.PersistentVolume) { change(pv, &corev1.Pod{}, name) })
				agent, _ := w.agent()
				w.driver.Registered()
				pod := w.pod("p", "data")
				change(&corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{}}}}, pod, name)
				agent.SetPod(pod)
				w.waitSays(agent, pod, "not a valid path element", "is empty or contains control characters")
				if field != "pod" {
					w.untilEvent(pod, "FailedMount", "Unable to attach or mount volumes: ")
				}
				agent.RemovePod(pod.UID)
				if calls := w.driver.Made(); len(calls) > 0 {
					t.Errorf("the driver was called: %v", calls)
				}
				if left := w.leftovers(); len(left) > 0 {
					t.Errorf("written: %v", left)
				}
				for dir := w.root; dir != "/"; dir = filepath.Dir(dir) {
					if found, _ := filepath.Glob(filepath.Join(dir, "*"+escaped+"*")); len(found) > 0 {
						t.Errorf("written outside: %v", found)
					}
				}
			})
		}
	}
}

func TestHandlesOfAnyForm(t *testing.T) {
	for kind, handle := range map[string]string{"up": "../../../x", "below": "a/b", "dots": "..", "long": strings.Repeat("x", 4096), "spaces": " a b ", "caret": "a^b"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			w.volume("data")
			w.rewritten(func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = handle })
			agent, _ := w.agent()
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			w.untilInUse(handle)
			must(t, w.attachAs(handle, w.name+"-data"))
			w.mounted(agent, pod)
			agent.RemovePod(pod.UID)
			w.untilNotInUse(handle)
			w.untilNothingIsLeft()
		})
	}
}

// TestRemovalStopsWhereTheDriversOwnFilesBegin: files below the target and the staging path are not the agent's. They
// stay, the pod gets an event, and the volume stays in use.
func TestRemovalStopsWhereTheDriversOwnFilesBegin(t *testing.T) {
	for name, test := range map[string]struct {
		method string
		path   func(w *world, l life) string // of what is left
		event  string
	}{
		"in the target": {"Unpublish", func(w *world, l life) string {
			return filepath.Join(w.root, podVolumesDir(string(l.pod.UID)), w.name+"-data", "mount")
		}, "UnmountVolume.TearDown failed"},
		"in the staging path": {"Unstage", func(w *world, l life) string {
			return filepath.Join(w.root, csiDir, w.driverName(), hash(l.handle), globalMount)
		}, "UnmountDevice failed"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			l := w.live()
			precious := filepath.Join(test.path(w, l), "dir", "precious")
			w.driver.SetAfter(func(method, _ string, _ int) error {
				if method != test.method {
					return nil
				}
				return errors.Join(os.MkdirAll(filepath.Dir(precious), 0o750), os.WriteFile(precious, []byte("x"), 0o600))
			})
			l.agent.RemovePod(l.pod.UID)
			w.untilEvent(l.pod, "FailedUnmount", test.event, "directory not empty", "stays in use")
			if _, err := os.Stat(precious); err != nil {
				t.Errorf("what was not the agent's is gone: %v", err)
			}
			w.driver.SetAfter(nil)
			must(t, os.RemoveAll(filepath.Dir(precious)))
			w.untilNotInUse(l.handle)
		})
	}
}

// TestRemovalCrossesNoMount: something is mounted at a path that the agent would remove, and the mount table that it
// was given does not show it.
func TestRemovalCrossesNoMount(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	w := newWorld(t)
	l := w.live()
	dir := filepath.Join(w.root, podVolumesDir(string(l.pod.UID)), w.name+"-data")
	w.driver.Intercept(func(call string, request any, do func() (any, error)) (any, error) {
		if call != "NodeUnpublishVolume" {
			return do()
		}
		w.driver.Lock()
		defer w.driver.Unlock()
		delete(w.driver.Mounts, request.(*csispec.NodeUnpublishVolumeRequest).TargetPath)
		return &csispec.NodeUnpublishVolumeResponse{}, nil
	})
	other := t.TempDir()
	must(t, os.WriteFile(filepath.Join(other, "precious"), []byte("x"), 0o600))
	target := filepath.Join(dir, "mount")
	must(t, unix.Mount(other, target, "", unix.MS_BIND, ""))
	mounted := true
	defer func() {
		if mounted {
			_ = unix.Unmount(target, unix.MNT_DETACH)
		}
	}()
	l.agent.RemovePod(l.pod.UID)
	w.untilEvent(l.pod, "FailedUnmount", "UnmountVolume.TearDown failed", "returned OK")
	if _, err := os.Stat(filepath.Join(other, "precious")); err != nil {
		t.Errorf("what lies in another mount is gone: %v", err)
	}
	must(t, unix.Unmount(target, 0))
	mounted = false
	w.untilNotInUse(l.handle)
}
