package kubectl

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/fake"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/bundle"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/process"
)

// marker is in every place of the cluster that may have a secret.
const marker = "MARKER0secret"

// unpack returns the files of an archive.
func unpack(t *testing.T, packed string) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		t.Fatalf("%v: %q", err, packed)
	}
	files, archive := map[string]string{}, tar.NewReader(zipped)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		content, readErr := io.ReadAll(archive)
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		files[strings.TrimPrefix(header.Name, "belay-bundle/")] = string(content)
	}
}

// bundled runs the command with the archive on standard output.
func bundled(t *testing.T, kubeconfig string, args ...string) map[string]string {
	t.Helper()
	got := run(t, kubeconfig, append([]string{"bundle", "-f", "-"}, args...)...)
	if got.status != StatusClear {
		t.Fatalf("%v: exit status %d: %s", args, got.status, got.err)
	}
	return unpack(t, got.out)
}

// markedPod has the marker in each field of a pod that may have a secret.
func markedPod(namespace, name, at, claim string) *corev1.Pod {
	pod := fixture.Pod(namespace, name, at, claim)
	pod.Labels = map[string]string{"app": name}
	pod.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": marker, "vault.example.com/token": marker, "example.com/note": marker}
	c := &pod.Spec.Containers[0]
	c.Command, c.Args = []string{"sh", "-c", marker}, []string{"--password=" + marker}
	c.Env = []corev1.EnvVar{{Name: "A", Value: marker}, {Name: "B", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "named-secret"}, Key: marker}}}}
	c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "named-secret"}}}}
	c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{marker}}}}
	c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{marker}}}}
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "none", Env: []corev1.EnvVar{{Name: "A", Value: marker}}}}
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "named-secret"}}
	pod.Spec.Volumes = append(pod.Spec.Volumes,
		corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "named-secret"}}},
		corev1.Volume{Name: "i", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
			Driver: driver, VolumeAttributes: map[string]string{"k": marker}, NodePublishSecretRef: &corev1.LocalObjectReference{Name: "named-secret"},
		}}})
	return pod
}

// marked fills the cluster: a claim whose volume is attached, with the marker in all objects and messages.
func marked(t *testing.T, namespace string) {
	t.Helper()
	create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "named-secret"}, StringData: map[string]string{"password": marker}})
	create(t, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "marked"}, Provisioner: driver, MountOptions: []string{marker}, Parameters: map[string]string{"key": marker, "csi.storage.k8s.io/provisioner-secret-name": "named-secret"}})
	pv := fixture.PersistentVolume("v-"+namespace, driver, "v-"+namespace)
	pv.Spec.MountOptions = []string{"password=" + marker}
	pv.Spec.CSI.VolumeAttributes = map[string]string{"token": marker}
	secret := &corev1.SecretReference{Namespace: namespace, Name: "named-secret"}
	pv.Spec.CSI.ControllerPublishSecretRef, pv.Spec.CSI.NodeStageSecretRef, pv.Spec.CSI.NodePublishSecretRef = secret, secret, secret
	claim := fixture.Claim(namespace, namespace+"-claim", pv)
	claim.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": marker}
	create(t, claim)
	create(t, fixture.Bind(pv, claim))
	pod := markedPod(namespace, namespace+"-db-0", namespace+"-node", claim.Name)
	yes := true
	pod.Labels["pod-template-hash"] = "5d4f"
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "wages-5d4f", UID: "u", Controller: &yes}}
	create(t, pod)
	inline := markedPod(namespace, "ledger-"+namespace, namespace+"-node", "none")
	inline.Spec.Volumes = slices.DeleteFunc(inline.Spec.Volumes, func(v corev1.Volume) bool { return v.CSI == nil })
	inline.Spec.Containers[0].VolumeMounts = nil
	create(t, inline)
	va := fixture.Attachment(kube.AttachmentName(pv.Name, driver, namespace+"-node"), driver, namespace+"-node", pv.Name)
	va.Annotations = map[string]string{"example.com/x": marker}
	va.Status.AttachmentMetadata = map[string]string{"publish-context": marker}
	va.Status.AttachError = &storagev1.VolumeError{Time: metav1.Now(), Message: `rpc error: secret "named-secret" not found: password=` + marker + " https://u:" + marker + "@host"}
	create(t, va)
	create(t, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "e"}, Reason: "FailedAttachVolume", Type: corev1.EventTypeWarning, LastTimestamp: metav1.Now(),
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod.Name, UID: pod.UID},
		Message:        `AttachVolume.Attach failed for volume "` + pv.Name + `": secret named-secret: Authorization: Bearer ` + marker,
	})
}

// TestBundle: the archive has what concerns volumes, and no secret, whatever field or message it was in.
func TestBundle(t *testing.T) {
	server.Start(t)
	namespaces(t, "pack")
	create(t, node("pack-node"))
	create(t, node("pack-other"))
	marked(t, "pack")
	create(t, fenceOn("pack-node", 2))
	source := sourceOf("pack-node", "belay-system", "named-secret")
	source.Spec.Levels[0].Feeds[0].Options = map[string]fencingv1.FeedOption{"ip": marker}
	source.Status.Conditions[0].Message = `read Secret belay-system/named-secret: password=` + marker
	create(t, source)
	kubeconfig := apiserver.Kubeconfig(t, server.Config())
	for _, args := range [][]string{nil, {"-n", "pack"}, {"-A", "-l", "app=pack-db-0"}, {"--node", "pack-node", "--redact-names"}, {"--max-size", "64Ki", "--logs=false"}} {
		files := bundled(t, kubeconfig, args...)
		for name, content := range files {
			for _, secret := range []string{marker, "named-secret"} {
				if strings.Contains(name+content, secret) {
					t.Errorf("%v: %s has %q:\n%s", args, name, secret, content)
				}
			}
			if slices.Contains(args, "--redact-names") {
				for _, real := range []string{"pack-node", "pack-db-0", "pack-claim", "pack-other", "ledger", "wages", "namespace: pack"} {
					if strings.Contains(name+content, real) {
						t.Errorf("%s has the name %q:\n%s", name, real, content)
					}
				}
			}
		}
		for _, name := range []string{"README.txt", "check.txt", "stuck.yaml", "map.yaml", "objects/pods.yaml", "objects/persistentvolumeclaims.yaml", "objects/persistentvolumes.yaml", "objects/volumeattachments.yaml", "objects/nodes.yaml", "objects/storageclasses.yaml", "objects/events.yaml", "objects/nodefences.yaml", "objects/fencesources.yaml"} {
			if files[name] == "" {
				t.Errorf("%v: no %s among %q", args, name, slices.Sorted(maps.Keys(files)))
			}
		}
		if !slices.ContainsFunc(slices.Collect(maps.Keys(files)), func(name string) bool { return strings.HasPrefix(name, "explain/pods-") }) {
			t.Errorf("%v: what is stuck is not explained: %q", args, slices.Sorted(maps.Keys(files)))
		}
	}
	if whole := bundled(t, kubeconfig)["objects/pods.yaml"]; !strings.Contains(whole, "ledger-pack") || !strings.Contains(whole, "wages") {
		t.Errorf("a pod is missing:\n%s", whole)
	}
	some := bundled(t, kubeconfig, "-l", "app=pack-db-0")
	if strings.Contains(some["objects/nodes.yaml"], "name: pack-other") || !strings.Contains(some["objects/nodes.yaml"], "name: pack-node") {
		t.Errorf("-l has the wrong nodes:\n%s", some["objects/nodes.yaml"])
	}
	if none := bundled(t, kubeconfig, "-l", "app=none"); none["objects/pods.yaml"] != "" || none["objects/volumeattachments.yaml"] != "" {
		t.Errorf("-l without a match has %q", slices.Sorted(maps.Keys(none)))
	}
}

// TestBundleRestricted: an archive of a reader of one namespace has no name from another, and says what is missing.
func TestBundleRestricted(t *testing.T) {
	server.Start(t)
	namespaces(t, "packmine", "shroud")
	create(t, node("packed-a", "v-packmine", "v-shroud"))
	create(t, node("packed-b"))
	held(t, "packmine", "v-packmine", "packed-a", "packed-b")
	held(t, "shroud", "v-shroud", "packed-a", "packed-b")
	va := fixture.Attachment("shroud-by-hand", driver, "packed-b", "v-shroud")
	va.Status.AttachError = &storagev1.VolumeError{Time: metav1.Now(), Message: "claim shroud/shroud-claim of pod shroud-holder"}
	va.Name = "by-hand-2"
	create(t, va)
	create(t, heldLease("shroud", "external-attacher-leader-disk-example-com", "shroud-attacher"))
	kubeconfig := member(t, "packer", "packmine")
	for _, args := range [][]string{{"-n", "packmine"}, {"-n", "packmine", "--node", "packed-a"}, {"-n", "shroud"}, {"-A"}} {
		files := bundled(t, kubeconfig, args...)
		for name, content := range files {
			for _, hidden := range []string{"shroud-claim", "shroud-holder", "shroud-waiter", "shroud-password", "shroud-attacher", "namespace: shroud", "shroud/"} {
				if strings.Contains(name+content, hidden) {
					t.Errorf("%v: %s has %q:\n%s", args, name, hidden, content)
				}
			}
		}
		if !strings.Contains(files["README.txt"], "leases: you lack the permission to list them") {
			t.Errorf("%v: README.txt does not name what is missing:\n%s", args, files["README.txt"])
		}
		if own := strings.Contains(files["objects/pods.yaml"], "packmine-waiter"); own != (args[0] == "-n" && args[1] == "packmine" && len(args) == 2) && len(args) == 2 {
			t.Errorf("%v: the pods of the own namespace are there: %v", args, own)
		}
	}
}

// fullDisk is a writer to a disk that has no space left after some bytes.
type fullDisk struct{ left int }

func (d *fullDisk) Write(data []byte) (int, error) {
	if d.left -= len(data); d.left < 0 {
		return 0, &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}
	}
	return len(data), nil
}

// TestBundleFile: the file is there when it is complete, and not at all after an interrupt or a failed write.
func TestBundleFile(t *testing.T) {
	server.Start(t)
	kubeconfig := apiserver.Kubeconfig(t, server.Config())
	folder := t.TempDir()
	name := filepath.Join(folder, "x.tar.gz")
	if got := run(t, kubeconfig, "bundle", "-f", name); got.status != StatusClear || got.out != "" || !strings.Contains(got.err, "Wrote "+name) {
		t.Errorf("exit status %d:\n%s%s", got.status, got.out, got.err)
	}
	content, err := os.ReadFile(name)
	if err != nil || unpack(t, string(content))["README.txt"] == "" {
		t.Errorf("%v", err)
	}
	t.Chdir(folder)
	if got := run(t, kubeconfig, "bundle"); got.status != StatusClear {
		t.Errorf("exit status %d: %s", got.status, got.err)
	}
	if found, _ := filepath.Glob("belay-test-2*.tar.gz"); len(found) != 1 {
		t.Errorf("the default name is not belay-<context>-<time>.tar.gz: %v", files(t, folder))
	}
	before := files(t, folder)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	written := 0
	if err := writeWhole(filepath.Join(folder, "y.tar.gz"), func(out io.Writer) error {
		for {
			n, err := (&interruptible{ctx, out}).Write(make([]byte, 100))
			if written += n; err != nil {
				return err
			}
		}
	}); err == nil || err.Error() != "interrupted" || written > 0 {
		t.Errorf("an interrupt: %v, %d bytes", err, written)
	}
	if err := writeWhole(filepath.Join(folder, "z.tar.gz"), func(out io.Writer) error {
		_, err := out.Write([]byte("a part"))
		return errors.Join(err, syscall.ENOSPC)
	}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
	if after := files(t, folder); !slices.Equal(before, after) {
		t.Errorf("a part is left: %v, before %v", after, before)
	}
	var errOut process.Output
	c := NewCommand(genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &fullDisk{1000}, ErrOut: &errOut}, "test")
	c.SetArgs([]string{"bundle", "-f", "-", "--kubeconfig", kubeconfig})
	if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "write standard output: the disk is full; choose another") {
		t.Errorf("a full disk: %v", err)
	}
	canceled := NewCommand(genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: io.Discard, ErrOut: &errOut}, "test")
	canceled.SetArgs([]string{"bundle", "-f", filepath.Join(folder, "w.tar.gz"), "--kubeconfig", kubeconfig})
	if err := canceled.ExecuteContext(ctx); err == nil || !slices.Equal(before, files(t, folder)) {
		t.Errorf("an interrupt: %v; files %v", err, files(t, folder))
	}
	for _, args := range [][]string{{"--max-size=1"}, {"--max-size=x"}, {"--tail=0"}, {"-A", "-n", "x"}, {"now"}, {"-f", "/nowhere/x"}, {"-l", "((("}, {"--node=none"}} {
		if got := run(t, kubeconfig, append([]string{"bundle"}, args...)...); got.status != StatusError || !strings.Contains(got.err, "error:") {
			t.Errorf("%v: exit status %d: %s", args, got.status, got.err)
		}
	}
}

func files(t *testing.T, folder string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestBundleLogs: the logs of belay's and the drivers' controller pods are there, without secrets; those of belay-node only for its node.
func TestBundleLogs(t *testing.T) {
	clients := fake.NewClientset(component("kube-system", "attacher-0", "example.com/csi-attacher:v4"), component("kube-system", "agent-a", "belay-node:v1"), component("kube-system", "other", "other:v1"))
	for node, want := range map[string][]string{
		"": {"logs/kube-system/attacher-0/c.log"}, "well-a": {"logs/kube-system/agent-a/belay-node.log", "logs/kube-system/attacher-0/c.log"}, "well-b": {"logs/kube-system/attacher-0/c.log"},
	} {
		agent, err := clients.CoreV1().Pods("kube-system").Get(t.Context(), "agent-a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		agent.Spec.Containers[0].Name = "belay-node"
		if _, err := clients.CoreV1().Pods("kube-system").Update(t.Context(), agent, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		s := &diagnosis.Snapshot{AllNamespaces: true}
		g := &gathering{
			plugin: &plugin{IOStreams: genericiooptions.IOStreams{ErrOut: io.Discard}}, bundleOptions: &bundleOptions{tail: 10, node: node}, clients: clients, snapshot: s,
			archive: &bundle.Archive{Redactor: &bundle.Redactor{MayName: s.MayName}, Left: 1 << 20},
		}
		g.gatherLogs(t.Context())
		var out bytes.Buffer
		if err := g.archive.Write(&out, time.Now(), "test", ""); err != nil {
			t.Fatal(err)
		}
		files := unpack(t, out.String())
		delete(files, "README.txt")
		if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, want) || files["logs/kube-system/attacher-0/c.log"] != "fake logs" {
			t.Errorf("node %q: %q, want %q", node, got, want)
		}
	}
}
